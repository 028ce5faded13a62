"""How fairly queues are served, as it is observed: throughput, each relative to what is due to it.

Two queues with like guarantees are served alike if each gets on as fast as the other *relative to
what it could ideally do*: equal cores are not, where one has the slow ones. So what is compared is

    t = work done in a time / work that its due cores would do in it on its fastest platform

in core-seconds of the queue's fastest platform. Work done is the cores that it holds, times the
``speed`` at which its tasks ran there: the time that they would have taken on its fastest platform
over the time that they took. What is due is ``entitled`` cores, what guarantees and weights give it
of what all want (``core.master.queue_fairness``); so a queue that is guaranteed three times as much
is to get three times as much for the same t, and 1 is what the rules say, on the fastest platform.

*Fairness* is 1 less the coefficient of variation of t over queues: 1 where all are slowed or
favoured alike, 0 where one of two gets everything, below that with more of them (population
standard deviation, ddof 0). ``jain`` is (sum t)^2 / (n sum t^2), ``spread`` the greatest t over the
least.

That is the source's metric. There, a tenant u of n like ones has tasks that take ``solo`` seconds
each on its fastest platform, of which it finishes so many in a time, of K cores:

    t[u] = (tasks / time) / (K/n x 1/solo) = tasks x solo / (K/n x time)

where K/n is what is due to it, and tasks x solo the work done. Weighing each task by its own time
on the fastest platform makes the same of unlike tasks. One thing differs: the source's tenants
always have a task for every core. Here executors may idle, and a queue that has all that it wants
is not badly served because its executors do. So cores count while they are held; ``busy``, the part
of that time in which tasks ran, is stated separately, and ``t x busy`` counts finished tasks only.

All sums fade: half of what counts is of the last half-life. A queue takes part once it has wanted
or held something for a tenth of a half-life, until it has not for a whole one. Time in which it
wants nothing counts neither for it nor against it.

Limits: cores alone are compared, not memory, nor GPUs. What runs next to tasks slows them, and that
is not seen in ``speed``. After a start of the master all begins again.

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018; weights are an extension.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.waiting_times import WaitingTimes, WaitSummary

__all__ = ["FairnessSummary", "LeafObservation", "ObservedFairness", "evenness", "jain_index"]

_LEAST_PART = 0.1
"""Of a half-life: for so long a queue wants something before it takes part."""
_COMPARED_PART = 0.5
"""Of what tasks ran, so much is to be of known speed for that to stand for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafObservation:
    """One leaf queue lately. ``throughput``: t, None where nothing was due to it. ``entitled``,
    ``held``: cores, the means over the time in which it wanted or held something. ``speed``: of
    its tasks, relative to their fastest platform, None: unknown, and taken for 1. ``busy``: None
    where its executors report no tasks. ``waits``: None where nothing has started yet."""

    takes_part: bool
    throughput: float | None
    entitled: float
    held: float
    speed: float | None
    busy: float | None
    waits: WaitSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessSummary:
    """Over ``queues`` that take part, of which the speeds of ``with_speeds`` are known. The
    metrics are None with fewer than two of them, or where none got anything; ``spread`` also where
    one got nothing."""

    half_life_s: float
    queues: int = 0
    with_speeds: int = 0
    fairness: float | None = None
    jain: float | None = None
    spread: float | None = None


class _Window:
    """The fading sums of one leaf, as of ``faded_s``: ``wanted_s`` seconds in which it wanted or
    held something; core-seconds that were ``due`` to it and that it ``held``; those that tasks
    ``ran``, of which those that can be ``compared`` would have ``worked`` for so many on their
    fastest platform. ``latest_s``: when it last wanted something."""

    __slots__ = (
        "compared", "due", "faded_s", "held", "latest_s", "ran", "waits", "wanted_s", "worked",
    )  # fmt: skip

    def __init__(self, half_life_s: float, now: float) -> None:
        self.faded_s = now
        self.latest_s = -math.inf
        self.wanted_s = self.due = self.held = 0.0
        self.ran = self.compared = self.worked = 0.0
        self.waits = WaitingTimes(half_life_s)

    @property
    def speed(self) -> float | None:
        is_known = self.ran and self.compared >= _COMPARED_PART * self.ran
        return self.worked / self.compared if is_known else None

    @property
    def throughput(self) -> float | None:
        speed = self.speed
        return self.held * (1.0 if speed is None else speed) / self.due if self.due else None

    def fade(self, half_life_s: float, now: float) -> None:
        if now > self.faded_s:
            factor = 0.5 ** ((now - self.faded_s) / half_life_s)
            self.wanted_s *= factor
            self.due *= factor
            self.held *= factor
            self.ran *= factor
            self.compared *= factor
            self.worked *= factor
            self.faded_s = now


class ObservedFairness:
    """Of all leaf queues. ``half_life_s`` is above 0. At most one window a queue that was named;
    ``keep`` forgets those of queues that are gone."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self._windows: dict[QueueName, _Window] = {}

    def keep(self, names: Container[QueueName]) -> None:
        """These are the leaves now."""
        self._windows = {x: y for x, y in self._windows.items() if x in names}

    def had(
        self, queue: QueueName, entitled: float, held: float, passed_s: float, now: float
    ) -> None:
        """It has wanted or held something for the last ``passed_s``: so many cores were due to it,
        and so many it held."""
        window = self._window(queue, now)
        part_s = passed_s * self._mean_weight(passed_s)
        window.wanted_s += part_s
        window.due += entitled * part_s
        window.held += held * part_s
        window.latest_s = now

    def ran(self, queue: QueueName, run_s: float, speed: float | None, now: float) -> None:
        """Tasks have ended that ran for ``run_s`` core-seconds; on their fastest platform they
        would have for ``run_s * speed``. ``speed``: None where that is not known."""
        window = self._window(queue, now)
        window.ran += run_s
        if speed is not None:
            window.compared += run_s
            window.worked += run_s * speed

    def started(self, queue: QueueName, waited_s: float, now: float) -> None:
        """A container has started."""
        self._window(queue, now).waits.add(waited_s, now)

    def of(self, queue: QueueName, now: float) -> LeafObservation | None:
        """None: nothing has been observed of it."""
        window = self._windows.get(queue)
        if window is None:
            return None
        window.fade(self.half_life_s, now)
        return LeafObservation(
            takes_part=self._takes_part(window, now),
            throughput=window.throughput,
            entitled=window.due / window.wanted_s if window.wanted_s else 0.0,
            held=window.held / window.wanted_s if window.wanted_s else 0.0,
            speed=window.speed,
            busy=min(1.0, window.ran / window.held) if window.ran and window.held else None,
            waits=window.waits.summary(now),
        )

    def summary(self, now: float) -> FairnessSummary:
        throughputs: list[float] = []
        with_speeds = 0
        for window in self._windows.values():
            window.fade(self.half_life_s, now)
            if self._takes_part(window, now) and window.throughput is not None:
                throughputs.append(window.throughput)
                with_speeds += window.speed is not None
        least = min(throughputs, default=0.0)
        return FairnessSummary(
            half_life_s=self.half_life_s,
            queues=len(throughputs),
            with_speeds=with_speeds,
            fairness=evenness(throughputs),
            jain=jain_index(throughputs),
            spread=max(throughputs) / least if len(throughputs) > 1 and least > 0 else None,
        )

    def _takes_part(self, window: _Window, now: float) -> bool:
        was_long = window.wanted_s >= _LEAST_PART * self.half_life_s
        return was_long and now - window.latest_s <= self.half_life_s

    def _window(self, queue: QueueName, now: float) -> _Window:
        window = self._windows.get(queue)
        if window is None:
            window = self._windows[queue] = _Window(self.half_life_s, now)
        window.fade(self.half_life_s, now)
        return window

    def _mean_weight(self, passed_s: float) -> float:
        """What is left, on average, of what was spread over the last ``passed_s``."""
        exponent = passed_s / self.half_life_s * math.log(2)
        return -math.expm1(-exponent) / exponent if exponent else 1.0


def evenness(throughputs: Sequence[float]) -> float | None:
    """The source's fairness, 1 - std/mean with ddof 0; None for fewer than two, or all 0."""
    many, total = len(throughputs), sum(throughputs)
    if many < 2 or not total:
        return None
    mean = total / many
    return 1 - math.sqrt(sum((x - mean) ** 2 for x in throughputs) / many) / mean


def jain_index(throughputs: Sequence[float]) -> float | None:
    """From 1/n, where one has everything, to 1; None for fewer than two, or all 0."""
    squares = sum(x * x for x in throughputs)
    if len(throughputs) < 2 or not squares:
        return None
    return sum(throughputs) ** 2 / (len(throughputs) * squares)
