"""In which order batch starts that waits for a shared GPU.

By default the longest that has waited starts. A node may ask a policy instead, which knows what
containers use of a GPU over their lives (``hrm.policies.shared_gpu.waiters``). It changes the order
and nothing else. Streams, reservations and what yields are as ever (``BatchTurn``), and what may
start does start. Among containers that may start now at one unit, one after the other in the line
and all with profiles, the policy names the next; where it names none, or something without a
profile uses the GPU, the first starts, as it always did.

Three bounds. A container that may start is passed ``passes_max`` times; then it is the first. One
that has waited ``ageing_factor`` times as long as it is to run goes first. And none starts where
what it is expected to need of device memory, with what the others there may come to need, is more
than the unit has: what containers declare fits, but a profile may have seen more. It is *kept
back*, later ones may pass it as often as they may pass any, and after ``kept_max_s`` the node
returns it, to be requested again elsewhere: two gangs that keep each other back would else wait
without end.

The master does not know profiles: its estimates of waits are those of the line's order.

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), sections 3 and 4. The bounds are HRM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from hrm.core.messages.claims import Entry
from hrm.core.queue.batch_turn import BatchTurn
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import duration_s
from hrm.core.vocabulary.bounds import GPU_WAITER_BOUNDS, GpuWaiterBounds
from hrm.core.vocabulary.feasibility import Column, fits
from hrm.core.vocabulary.model import ContainerId, ContainerSpec

__all__ = ["GpuSharer", "GpuWaiterPolicy", "GpuWaiters", "SharedGpuView"]


class GpuSharer(NamedTuple):
    """A container that runs on a GPU, or waits for it, since ``since_s``. ``run_s``: for how long
    it is expected to run, infinite for a stream and a driver."""

    spec: ContainerSpec
    since_s: float
    run_s: float


class SharedGpuView(NamedTuple):
    """One GPU's unit at one moment. ``running`` uses it; of ``waiting``, in the order of the line,
    each may start now. All of them have profiles. ``together_max``: how many may run at once."""

    now: float
    memory_mib: int
    together_max: int
    running: tuple[GpuSharer, ...]
    waiting: tuple[GpuSharer, ...]


class GpuWaiterPolicy(Protocol):
    """Deterministic, without IO. Its answers may change when profiles do."""

    def peak_mib(self, spec: ContainerSpec) -> int | None:
        """The most device memory that such a container is known to have had, MiB; None: it has no
        profile."""

    def choose(self, view: SharedGpuView) -> int | None:
        """The place in ``view.waiting``, at least two, of the one that starts next; None: no
        matter."""


class _Known(Protocol):
    """What a node has of a container."""

    spec: ContainerSpec
    assigned_at_s: float
    started_at_s: float


class GpuWaiters:
    """The order of one node.

    Args:
        containers: those of the node, by id.
    """

    def __init__(
        self,
        policy: GpuWaiterPolicy,
        containers: Mapping[ContainerId, _Known],
        bounds: GpuWaiterBounds = GPU_WAITER_BOUNDS,
    ) -> None:
        self._policy = policy
        self._containers = containers
        self._bounds = bounds
        self._kept_since_s: dict[ContainerId, float] = {}

    def concerns(self, pool: Iterable[UnitQueue]) -> bool:
        """Does batch of this pool wait for a GPU that it may share?"""
        return any(_is_shared(queue) and queue.batch_waiting for queue in pool)

    def start_batch(self, units: list[UnitQueue], now: float) -> list[Entry]:
        """See ``StartBatch``."""
        started: list[Entry] = []
        while units and (found := self._next(units, now)) is not None:
            queue, entry = found
            started.append(queue.run(entry, now))
        return started

    def keeps_back(self, queue: UnitQueue, entry: Entry) -> bool:
        """Is more device memory expected to be needed than the unit has, if ``entry`` starts next
        to what runs there? Not on an idle GPU: a larger one would not be found by waiting."""
        if not _is_shared(queue) or not entry.demand[Column.GPU_MEMORY_MIB]:
            return False
        held = [self._mib(x) for x in _users(queue)]
        return bool(held) and sum(held) + self._mib(entry) > queue.capacity[Column.GPU_MEMORY_MIB]

    def kept_too_long(self, pool: Iterable[UnitQueue], now: float) -> list[ContainerId]:
        """Which have been kept back for ``kept_max_s``. Call it from time to time, with all units
        of the node."""
        kept = {
            entry.container_id
            for queue in pool
            for entry in queue.batch_waiting.values()
            if fits(entry.demand, queue.free) and self.keeps_back(queue, entry)
        }
        self._kept_since_s = {x: self._kept_since_s.get(x, now) for x in sorted(kept)}
        limit_s = self._bounds.kept_max_s
        return [x for x, since_s in self._kept_since_s.items() if now - since_s >= limit_s]

    def _next(self, units: list[UnitQueue], now: float) -> tuple[UnitQueue, Entry] | None:
        """What starts next of all that waits at ``units``, if anything may."""
        run = list(self._run(units, now))
        if not run:
            return None
        queue, first = run[0]
        entries = [entry for _, entry in run]
        aged = [x for x in entries if self._has_aged(x, now)]
        if aged:
            return queue, aged[0]
        users = list(_users(queue))
        if len(entries) == 1 or any(self._peak_mib(x) is None for x in users):
            return queue, first
        view = SharedGpuView(
            now=now,
            memory_mib=queue.capacity[Column.GPU_MEMORY_MIB],
            together_max=queue.capacity[Column.SLOTS],
            running=tuple(self._sharer(x) for x in users),
            waiting=tuple(self._sharer(x) for x in entries),
        )
        place = self._policy.choose(view)
        return queue, first if place is None else entries[place]

    def _run(self, units: list[UnitQueue], now: float) -> Iterator[tuple[UnitQueue, Entry]]:
        """The first that may start and, if that is to share a GPU and has a profile, those behind
        it that may go before it."""
        turn: BatchTurn[UnitQueue] = BatchTurn(now)
        at: UnitQueue | None = None
        for container_id, queue in units[0].line.items():
            if queue not in units:
                continue
            entry = queue.batch_waiting[container_id]
            if not turn.admits(queue, entry):
                continue
            if self.keeps_back(queue, entry):
                if not self._keeps_back_for_good(queue, entry):
                    turn.keep(queue, entry, self._bounds.passes_max)
                continue
            known = _is_shared(queue) and self._peak_mib(entry) is not None
            if at is not None and (queue is not at or not known):
                return
            at = queue
            yield queue, entry
            if not known or entry.passed >= self._bounds.passes_max:
                return

    def _keeps_back_for_good(self, queue: UnitQueue, entry: Entry) -> bool:
        """Do streams and drivers alone keep it back? Then nothing is gained if others wait."""
        held = sum(self._mib(x) for x in _users(queue) if x.has_no_end)
        return bool(held) and held + self._mib(entry) > queue.capacity[Column.GPU_MEMORY_MIB]

    def _has_aged(self, entry: Entry, now: float) -> bool:
        waited_s = now - self._containers[entry.container_id].assigned_at_s
        return waited_s > self._bounds.ageing_factor * duration_s(entry)

    def _peak_mib(self, entry: Entry) -> int | None:
        return self._policy.peak_mib(self._containers[entry.container_id].spec)

    def _mib(self, entry: Entry) -> int:
        """What it may come to need: as its profile has it, else as it declares."""
        peak_mib = self._peak_mib(entry)
        return entry.demand[Column.GPU_MEMORY_MIB] if peak_mib is None else peak_mib

    def _sharer(self, entry: Entry) -> GpuSharer:
        container = self._containers[entry.container_id]
        since_s = container.started_at_s or container.assigned_at_s
        return GpuSharer(container.spec, since_s, duration_s(entry))


def _is_shared(queue: UnitQueue) -> bool:
    """Is it the unit of one GPU, which several containers may use at once?"""
    device_mib, slots = queue.capacity[Column.GPU_MEMORY_MIB], queue.capacity[Column.SLOTS]
    return queue.gpus == 1 and device_mib > 0 and slots > 1


def _users(queue: UnitQueue) -> Iterator[Entry]:
    """What runs there and uses the GPU."""
    for entry in queue.running.values():
        if entry.demand[Column.GPU_MEMORY_MIB]:
            yield entry
