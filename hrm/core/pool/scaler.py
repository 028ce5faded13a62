"""How many nodes there should be, and which of them go.

Wanted is the largest of what the forecast says, what runs and waits now needs, and what queues are
guaranteed, within the bounds. Up at once. Down only after everything wanted within ``down_after_s``
was less, a part at a time, and not before ``cooldown_s`` have passed since the last change. Where
samples lie more than ``gap_s`` apart, what was wanted in between is unknown: the time begins again.

Amounts in sum say little of what fits: executors of 3 cores leave a core of each node of 4. So, if
something still waits for a place ``place_after_s`` after every node that was asked for has come,
there is to be one more, up to ``PLACE_TRIES`` times; until then nothing goes. Where that has not
helped, amounts alone decide again, until the wait has ended: it waits for another kind of node.

Nodes leave in two steps: drained, so that they get nothing new; then, once nothing runs there any
more, named to the hook. Never drained is a node with a driver or with anything that is not
understood (``NodeSample.is_protected``), nor the last node in service with executors of a stream.
A node is more than one of a number, for nodes are unlike: what stays has as much of each resource
as was needed within ``down_after_s``, or guaranteed. And while any node stays the last one with
GPUs does, for without it requests for GPUs would be refused, not wait.
One that leaves comes back if it is needed; not one whose removal the hook has taken on, for its
machine may end at any moment. A drain holds for a name: a machine that comes under one that was
removed before is returned to service if it is needed, and otherwise leaves again.

A hook that fails changes nothing: the target is what it was, nodes that were to go are back in
service, and it is called again after a pause that doubles. Nodes that were asked for and have not
come are asked for again after ``boot_timeout_s``.

Events in, orders out; no IO, no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

__all__ = [
    "NOTHING",
    "PLACE_TRIES",
    "REMOVED_MAX",
    "REMOVE_CHARACTERS_MAX",
    "Amount",
    "CallHook",
    "DrainNodes",
    "NodeSample",
    "PoolSample",
    "ReturnNodes",
    "Scaler",
    "ScalerBounds",
    "ScalerOrder",
]

Amount: TypeAlias = tuple[float, float, float]
"""Cores, MiB, MiB of GPUs."""

NOTHING: Amount = (0.0, 0.0, 0.0)
_GPUS = 2

REMOVED_MAX = 1_000

REMOVE_CHARACTERS_MAX = 32_000
"""Of the names in one call: no program starts with a variable of more than 128 KiB."""

PLACE_TRIES = 3
"""Nodes, one after the other, for what waits for a place though amounts in sum suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerBounds:
    """Limits of what it may do; times in seconds, ``shrink_part`` of the present target. ``gap_s``:
    the longest time between two samples that counts as observed."""

    nodes_min: int = 1
    nodes_max: int = 10
    down_after_s: float = 600.0
    cooldown_s: float = 300.0
    boot_timeout_s: float = 600.0
    place_after_s: float = 60.0
    retry_s: float = 30.0
    retry_max_s: float = 1800.0
    shrink_part: float = 0.2
    gap_s: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """A node that the master knows and has not lost. ``is_open``: it gets new containers.
    ``containers``: how many it holds. ``is_protected``: it must not be drained. ``streams``: those
    of which executors run there. ``capacity``: what it has."""

    name: str
    is_open: bool = True
    containers: int = 0
    is_protected: bool = False
    streams: frozenset[str] = frozenset()
    capacity: Amount = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """The cluster at one moment.

    Attributes:
        needed_nodes: for what is held and what waits, as far as queues' maxima let it start.
        guaranteed_nodes: for what queues are guaranteed in numbers; parts of the cluster are
            guaranteed of whatever there is.
        forecast_nodes: for the P90 of the intervals to come; None: there is no forecast.
        waiting: what waits and may start, by ``needed_nodes``.
        needed: of each resource, what ``needed_nodes`` or ``guaranteed_nodes`` are for, whichever
            is more.
        is_complete: all that runs is known; not so while nodes come back to a restarted master.
        is_without_place: something may start by its queue, and no node has a place for it.
    """

    now: float
    nodes: tuple[NodeSample, ...]
    needed_nodes: int
    guaranteed_nodes: int = 0
    forecast_nodes: int | None = None
    waiting: Amount = NOTHING
    needed: Amount = NOTHING
    is_complete: bool = True
    is_without_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodes:
    """They get nothing new from now on."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnNodes:
    """Back into service: they are needed after all, or the hook has failed."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHook:
    """``wanted_nodes``: how many there should be, those included that are drained by anyone and
    are not to be removed now. ``present_nodes``: how many there are, those included that go.
    ``remove``: nodes that hold nothing and get nothing, to be ended; no other ones may be.
    ``waiting_cores`` and so on: what waits, for a hook that chooses among kinds of machines."""

    wanted_nodes: int
    present_nodes: int
    remove: tuple[str, ...]
    reason: str
    waiting_cores: float = 0.0
    waiting_memory_mib: float = 0.0
    waiting_gpu_memory_mib: float = 0.0


ScalerOrder: TypeAlias = DrainNodes | ReturnNodes | CallHook


@dataclass(slots=True)
class Scaler:
    """Attributes:
    target: nodes that there should be in service; None before the first sample.
    leaving: nodes that this scaler has drained; an administrator's drains are none of them.
    removed: nodes whose removal the hook has taken on, and those that leave and are not seen, as
        after a restart of the master; True: not seen since, of which the latest ``REMOVED_MAX`` are
        kept.
    """

    bounds: ScalerBounds
    target: int | None = None
    leaving: dict[str, None] = field(default_factory=dict)
    removed: dict[str, bool] = field(default_factory=dict)
    _wanted: deque[tuple[float, int, Amount]] = field(default_factory=deque)
    _since_s: float | None = None
    _changed_at_s: float = float("-inf")
    _called_at_s: float = float("-inf")
    _retry_at_s: float = float("-inf")
    _retry_s: float = 0.0
    _unplaced_since_s: float | None = None
    _place_tries: int = 0
    _open: CallHook | None = None
    _target_before: int = 0
    _before: tuple[int | None, dict[str, None]] | None = None

    def sampled(self, sample: PoolSample) -> list[ScalerOrder]:
        """What is to be done now, in order; nothing while the sample is incomplete. A ``CallHook``
        is the last of it; its outcome comes as ``hook_ended`` before the next sample."""
        assert self._open is None, "the outcome of the last call is missing"
        if not sample.is_complete:
            return []
        self._follow(sample)
        in_service = [node for node in sample.nodes if node.is_open]
        wanted = self.wanted(sample)
        if self.target is None:
            self.target = len(in_service)
        self.target = min(self.target, max(self.bounds.nodes_max, len(in_service)))
        self._before = self.target, dict(self.leaving)
        if self._since_s is None or sample.now < self._wanted[-1][0]:  # the clock was set back
            self._since_s, self._wanted = sample.now, deque()
            self._changed_at_s = self._called_at_s = self._retry_at_s = float("-inf")
            self._unplaced_since_s = None
        elif sample.now - self._wanted[-1][0] > self.bounds.gap_s:
            self._since_s, self._unplaced_since_s = sample.now, None
        is_for_place = self._tries_for_place(sample, len(in_service))
        if is_for_place:
            wanted = max(wanted, min(self.target + 1, self.bounds.nodes_max))
        self._wanted.append((sample.now, wanted, sample.needed))
        while self._wanted[0][0] < sample.now - self.bounds.down_after_s:
            self._wanted.popleft()
        if sample.now < self._retry_at_s:
            return []
        if wanted > self.target:
            if is_for_place:
                self._place_tries += 1
                self._unplaced_since_s = sample.now
            return self._grow(sample, wanted, len(in_service), is_for_place=is_for_place)
        orders = self._shrink(sample, in_service)
        return [*orders, *self._call_if_due(sample, len(in_service))]

    def _follow(self, sample: PoolSample) -> None:
        """What has become of nodes that were to go. One that an administrator has returned to
        service is as any other."""
        closed = {node.name for node in sample.nodes if not node.is_open}
        present = {node.name for node in sample.nodes}
        again = [name for name, is_gone in self.removed.items() if is_gone and name in closed]
        away = [name for name in self.leaving if name not in present]
        self.leaving = {name: None for name in (*self.leaving, *again) if name in closed}
        followed = {**self.removed, **dict.fromkeys(away, True)}
        self.removed = {
            name: is_gone or name not in present
            for name, is_gone in followed.items()
            if name not in again and (name in closed or name not in present)
        }
        gone = [name for name, is_gone in self.removed.items() if is_gone]
        for name in gone[: max(0, len(gone) - REMOVED_MAX)]:
            del self.removed[name]

    def wanted(self, sample: PoolSample) -> int:
        """Nodes that there should be, without regard to what has been before."""
        forecast = sample.forecast_nodes or 0
        most = max(forecast, sample.needed_nodes, sample.guaranteed_nodes)
        return min(max(most, self.bounds.nodes_min), self.bounds.nodes_max)

    def _tries_for_place(self, sample: PoolSample, in_service: int) -> bool:
        """Is one more node to be tried, for what all that have come have no place for?"""
        assert self.target is not None
        if not sample.is_without_place:
            self._unplaced_since_s, self._place_tries = None, 0
            return False
        if self._unplaced_since_s is None or in_service < self.target:
            self._unplaced_since_s = sample.now  # those that are to come may have the place
        waited = sample.now - self._unplaced_since_s >= self.bounds.place_after_s
        return waited and self._place_tries < PLACE_TRIES

    def hook_ended(self, ok: bool, now: float) -> list[ScalerOrder]:
        """The hook that was called last has ended, well or not."""
        call, self._open = self._open, None
        assert call is not None
        self._called_at_s = now
        if ok:
            self._retry_s, self._retry_at_s = 0.0, float("-inf")
            for name in call.remove:
                self.leaving.pop(name, None)
                self.removed[name] = False
            return []
        self.target = self._target_before
        doubled = min(self.bounds.retry_max_s, max(self.bounds.retry_s, 2 * self._retry_s))
        self._retry_s, self._retry_at_s = doubled, now + doubled
        back = tuple(name for name in call.remove if name in self.leaving)
        if not back:
            return []
        for name in back:
            del self.leaving[name]
        self.target += len(back)  # they are in service again
        return [ReturnNodes(names=back, reason="the hook that was to remove them has failed")]

    def carried_out(self) -> None:
        """The latest orders were, to their end."""
        self._before = None

    def interrupted(self) -> None:
        """If the latest orders were not carried out to their end: a call of the master has failed.
        The next sample shows how far they went."""
        if self._before is not None:
            self._open = None
            self.target, leaving = self._before
            self.leaving = {**leaving, **self.leaving}
            self._before = None

    def _grow(
        self, sample: PoolSample, wanted: int, in_service: int, *, is_for_place: bool
    ) -> list[ScalerOrder]:
        assert self.target is not None
        forecast = "no" if sample.forecast_nodes is None else str(sample.forecast_nodes)
        reason = (
            f"{sample.needed_nodes} needed now, {forecast} forecast, "
            f"{sample.guaranteed_nodes} guaranteed"
        )
        if is_for_place:
            reason += f", and something waits for a place that none of {in_service} has"
        orders: list[ScalerOrder] = []
        self._target_before = self.target
        back = tuple(self.leaving)[: wanted - self.target]
        if back:
            orders.append(ReturnNodes(names=back, reason=reason))
            for name in back:
                del self.leaving[name]
            self._target_before += len(back)
        self.target, self._changed_at_s = wanted, sample.now
        if in_service + len(back) < wanted:
            orders.append(self._call(sample, (), back, reason))
        return orders

    def _shrink(self, sample: PoolSample, in_service: list[NodeSample]) -> list[ScalerOrder]:
        """Drain what is not needed any more, as far as it may be."""
        bounds, target = self.bounds, self.target
        assert target is not None and self._since_s is not None
        peak = max(wanted for _, wanted, _ in self._wanted)
        size = max(target, len(in_service))  # others may have added some
        rested = sample.now - self._changed_at_s >= bounds.cooldown_s
        observed = sample.now - self._since_s >= bounds.down_after_s
        hopes = sample.is_without_place and self._place_tries < PLACE_TRIES
        if peak >= size or hopes or not rested or not observed:
            return []
        lowest = max(peak, size - max(1, int(bounds.shrink_part * size)))
        self.target, self._changed_at_s = lowest, sample.now
        going = _that_may_go(in_service, len(in_service) - lowest, self._needed(peak))
        self.target = max(lowest, len(in_service) - len(going))
        self.leaving |= dict.fromkeys(going)
        reason = f"{peak} wanted at most within {bounds.down_after_s:g} s, of {len(in_service)}"
        return [DrainNodes(names=going, reason=reason)] if going else []

    def _needed(self, peak: int) -> Sequence[float]:
        """Of each resource, at most within ``down_after_s``. Where that may be more than
        ``nodes_max`` have, their number alone counts."""
        if peak >= self.bounds.nodes_max:
            return NOTHING
        return [max(column) for column in zip(*(x for _, _, x in self._wanted), strict=True)]

    def _call_if_due(self, sample: PoolSample, in_service: int) -> list[ScalerOrder]:
        """Nodes that are empty go; and what was asked for and has not happened is asked for
        again. Where nodes are missing, those that leave come back."""
        target = self.target
        assert target is not None
        back = tuple(self.leaving)[: max(0, target - in_service)]
        if back:
            for name in back:
                del self.leaving[name]
            why = f"{in_service} are in service, of {target} that there should be"
            return [ReturnNodes(names=back, reason=why)]
        late = sample.now - self._called_at_s >= self.bounds.boot_timeout_s
        going = {*self.leaving, *self.removed} if late else self.leaving
        empty = tuple(
            node.name
            for node in sample.nodes
            if node.name in going and not (node.is_open or node.containers)
        )
        if not empty and not (in_service < target and late):
            return []
        self._target_before = target
        reason = f"{len(empty)} drained and empty" if empty else "nodes have not come in time"
        return [self._call(sample, _that_fit(empty), (), reason)]

    def _call(
        self, sample: PoolSample, remove: tuple[str, ...], back: tuple[str, ...], reason: str
    ) -> CallHook:
        """``back``: nodes that are in service again by an order before it."""
        assert self.target is not None
        others = {*remove, *back, *self.removed}
        kept = sum(not node.is_open and node.name not in others for node in sample.nodes)
        self._open = CallHook(
            wanted_nodes=self.target + kept,
            present_nodes=len(sample.nodes),
            remove=remove,
            reason=reason,
            waiting_cores=sample.waiting[0],
            waiting_memory_mib=sample.waiting[1],
            waiting_gpu_memory_mib=sample.waiting[2],
        )
        return self._open

    # --- over restarts ------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """What another process needs to go on. While orders are carried out, nodes that were to go
        before them may go still: to be written then, too, for drains outlive a process."""
        target, before = self._before or (self.target, {})
        return {
            "target": target,
            "leaving": list({**before, **self.leaving}),
            "removed": dict(self.removed),
        }

    def restore(self, document: Mapping[str, Any]) -> None:
        """Take over from an earlier process.

        Raises:
            ValueError: the document is none.
        """
        target, leaving = document.get("target"), document.get("leaving", [])
        removed = document.get("removed", {})
        is_whole = isinstance(leaving, list) and isinstance(removed, dict)
        is_number = isinstance(target, int) and not isinstance(target, bool) and target >= 0
        if not (target is None or is_number) or not is_whole:
            raise ValueError("it is no state of a scaler")
        self.target = target
        self.removed = {str(name): bool(is_gone) for name, is_gone in removed.items()}
        self.leaving = dict.fromkeys(str(name) for name in leaving)


def _that_fit(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first of them, as many as one call may name; the next sample has the others."""
    ends = accumulate(len(name) + 1 for name in names)
    return names[: max(1, sum(end <= REMOVE_CHARACTERS_MAX for end in ends))]


def _that_may_go(
    in_service: list[NodeSample], count: int, needed: Sequence[float]
) -> tuple[str, ...]:
    """At most so many, those first that hold least. What stays has what is ``needed`` of each
    resource, or all of it where that is less; and GPUs, if some had."""
    left = Counter(stream for node in in_service for stream in node.streams)
    capacity = [sum(column) for column in zip(*(x.capacity for x in in_service), strict=True)]
    with_gpus = sum(node.capacity[_GPUS] > 0 for node in in_service)
    going: list[str] = []
    for node in sorted(in_service, key=lambda each: (each.containers, each.name)):
        if len(going) >= count:
            break
        if node.is_protected or any(left[stream] < 2 for stream in node.streams):
            continue
        rest = [total - part for total, part in zip(capacity, node.capacity, strict=True)]
        if any(part and x < y for part, x, y in zip(node.capacity, rest, needed, strict=True)):
            continue
        is_last = len(in_service) - len(going) == 1
        if node.capacity[_GPUS] and with_gpus == 1 and not is_last:
            continue
        left.subtract(node.streams)
        capacity, with_gpus = rest, with_gpus - (node.capacity[_GPUS] > 0)
        going.append(node.name)
    return tuple(going)
