"""What becomes of one shared GPU if jobs run as they are believed to: runs that are only imagined.

``GpuJobKinds`` has what is known of each kind of job: its profile, what it may start next to, how
fast kinds are together. ``ImaginedRun`` is a state, jobs of these kinds that run and that wait, and
goes on from it as the simulated GPU of ``hrm.learn.shared_gpu`` would, tick by tick, until a
``StartRule`` has started all of them. Nothing fails, nothing arrives.

Thousands of such ticks are a decision, so sets of kinds are bits of a whole number, and the tests
of the capacity rule are kept: first what may start next to each that runs by itself, whose
intersection is nearly always the answer, then the rule for all of them. What is kept follows from
profiles alone and changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import add, le
from typing import NamedTuple, Protocol

import numpy as np

from hrm.policies.shared_gpu.interference import PairSlowdowns
from hrm.policies.shared_gpu.profiles import (
    RESOURCES,
    Bits,
    CapacityRule,
    GpuUseProfile,
    ProfileTable,
)

__all__ = [
    "GpuJobKinds",
    "ImaginedRun",
    "ProfileFit",
    "StartRule",
    "StartsFastestTogether",
    "StartsShortest",
]

_DONE = 1e-9
_TICKS_BITS = 17
"""A tick of a profile fits in them (``profiles.TICKS_MAX``)."""
_SETS_MAX = 100_000


class ProfileFit:
    """Which of ``profiles`` may start next to which, as bits, by their numbers."""

    def __init__(self, profiles: Sequence[GpuUseProfile], rule: CapacityRule) -> None:
        self.profiles = tuple(profiles)
        self.rule = rule
        self.lengths = [len(one) for one in profiles]
        self._table = ProfileTable(profiles)
        self._next_to: list[NextTo | None] = [None] * len(profiles)
        self._sets: dict[tuple[int, ...], int] = {}
        self._uses = [(one.uses[0].tolist(), one.peak.tolist()) for one in profiles]
        self._limits = [limit + _DONE for limit in rule.limits]
        self.alone = self._tested(())
        """What may start on an idle GPU."""

    def next_to(self, number: int) -> NextTo:
        """What may start next to this profile alone."""
        found = self._next_to[number]
        if found is None:
            profile = self.profiles[number]
            fits = self.rule.fitting_over_life(profile, self._table)
            starts = [_bits(row) for row in fits]
            now = profile.uses.tolist()
            later = np.maximum.accumulate(profile.uses[::-1])[::-1].tolist()
            every = list(zip(starts, now, later, strict=True))
            found = NextTo(starts, _until(starts), now, later, _until(every))
            self._next_to[number] = found
        return found

    def next_to_all(
        self, running: Sequence[tuple[NextTo, int, int]], wanted: int
    ) -> tuple[int, bool]:
        """Those of ``wanted`` that may start next to all of ``running``, each with the ticks that
        it has done and its number; and whether that stays so while all of them are steady.

        What fits even at all peaks, and what does not fit this very tick, needs no test.
        """
        now, later = [0.0] * len(RESOURCES), [0.0] * len(RESOURCES)
        for one, done, _ in running:
            now = list(map(add, now, one.now[done]))
            later = list(map(add, later, one.later[done]))
        sure = unsure = 0
        left = wanted
        while left:
            bit = left & -left
            left ^= bit
            first, peak = self._uses[bit.bit_length() - 1]
            if all(map(le, map(add, later, peak), self._limits)):
                sure |= bit
            elif all(map(le, map(add, now, first), self._limits)):
                unsure |= bit
        if not unsure:
            return sure, True
        key = tuple(sorted(_placed(number, done) for _, done, number in running))
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= _SETS_MAX:
                self._sets.clear()
            self._sets[key] = found = self._tested(key)
        return sure | unsure & found, False

    def _tested(self, running: tuple[int, ...]) -> int:
        held = [(self.profiles[one >> _TICKS_BITS], one & ((1 << _TICKS_BITS) - 1))
                for one in running]  # fmt: skip
        return _bits(self.rule.fitting(held, self._table))


class NextTo(NamedTuple):
    """By ticks done of one profile: what may ``starts`` next to it, bits, and ``until`` which tick
    of its work that stays; what it uses ``now``, and at most ``later``, by resource; and until
    which tick all of it is ``steady``."""

    starts: list[int]
    until: list[int]
    now: list[list[float]]
    later: list[list[float]]
    steady: list[int]


def _until(values: Sequence[object]) -> list[int]:
    """For each, the place of the next one that is another, or the end."""
    found = [len(values)] * len(values)
    for place in range(len(values) - 2, -1, -1):
        same = values[place] == values[place + 1]
        found[place] = found[place + 1] if same else place + 1
    return found


def _bits(fits: Bits) -> int:
    return sum(1 << number for number in fits.nonzero()[0].tolist())


def _placed(number: int, done: int) -> int:
    return number << _TICKS_BITS | done


class GpuJobKinds:
    """Kinds of jobs, by their number in ``fit``. Two with one profile may differ in the pairs that
    they make.

    Args:
        pair_of: the kind of each in ``slowdowns``.
        slowdowns: None where they are not known: then all are imagined at full speed.
    """

    def __init__(
        self,
        fit: ProfileFit,
        pair_of: Sequence[int] = (),
        slowdowns: PairSlowdowns | None = None,
    ) -> None:
        self.fit = fit
        self.lengths = fit.lengths
        self.slowdowns = slowdowns
        self.pair_of = tuple(pair_of)
        self._speeds: dict[tuple[int, ...], tuple[float, ...]] = {}

    def speeds(self, kinds: tuple[int, ...]) -> tuple[float, ...]:
        """Of jobs of these kinds that run together, over the speed of each alone."""
        found = self._speeds.get(kinds)
        if found is None:
            if self.slowdowns is None:
                found = (1.0,) * len(kinds)
            else:
                found = tuple(self.slowdowns.together([self.pair_of[kind] for kind in kinds]))
            if len(self._speeds) >= _SETS_MAX:
                self._speeds.clear()
            self._speeds[kinds] = found
        return found


class StartRule(Protocol):
    """Which kind an imagined run starts next."""

    def next_start(self, run: ImaginedRun, fitting: int) -> int:
        """One of ``fitting``, bits of kinds that wait and may start now; -1: none in this tick. On
        an idle GPU it has to be one."""


class ImaginedRun:
    """One state of the GPU, which goes on by itself.

    Attributes:
        running, done: the kind of each job that runs, and its ticks of work with fractions.
        places: by kind, where its waiting jobs stand in the queue; they start in this order.
        waiting: how many jobs of each kind wait; ``waiting_bits``: the kinds that do.
        tick: now. ``started``: how many were started. ``ends``: the sum of all ends so far;
            ``last_end``: the latest.
        quiet: for how much work of each that runs ``fitting`` stays as it was found, ticks; None:
            for this tick alone.
        steps: how often time went on, the measure of what it took.
    """

    __slots__ = ("done", "ends", "kinds", "last_end", "places", "quiet", "running", "started",
                 "steps", "tick", "together_max", "waiting", "waiting_bits")  # fmt: skip

    def __init__(
        self,
        kinds: GpuJobKinds,
        places: Sequence[Sequence[int]],
        running: Sequence[tuple[int, float]] = (),
        *,
        tick: int = 0,
        together_max: int | None = None,
    ) -> None:
        self.kinds = kinds
        self.running = [kind for kind, _ in running]
        self.done = [ticks for _, ticks in running]
        self.places = places
        self.waiting = [len(held) for held in places]
        self.waiting_bits = sum(1 << kind for kind, count in enumerate(self.waiting) if count)
        self.tick = tick
        every = len(running) + sum(self.waiting)
        self.together_max = every if together_max is None else together_max
        self.started = 0
        self.ends = 0.0
        self.last_end = 0.0
        self.quiet: list[float] | None = None
        self.steps = 0

    def copy(self) -> ImaginedRun:
        """The same state, to be continued differently."""
        other = ImaginedRun.__new__(ImaginedRun)
        for name in ImaginedRun.__slots__:
            setattr(other, name, getattr(self, name))
        other.running, other.done = self.running.copy(), self.done.copy()
        other.waiting = self.waiting.copy()
        return other

    @property
    def over(self) -> bool:
        return not self.running and not self.waiting_bits

    @property
    def left(self) -> float:
        """Ticks of work of all that runs and waits, at full speed."""
        lengths = self.kinds.lengths
        waits = sum(count * ticks for count, ticks in zip(self.waiting, lengths, strict=True))
        return float(waits + sum(lengths[kind] for kind in self.running) - sum(self.done))

    def fitting(self) -> int:
        """The kinds that wait and may start now, as bits; ``quiet`` becomes for how much work of
        each that runs that stays so."""
        fit = self.kinds.fit
        running, found = self.running, self.waiting_bits
        self.quiet = None
        if not running:
            return found & fit.alone
        if not found or len(running) >= self.together_max:
            lengths = self.kinds.lengths
            self.quiet = [lengths[kind] - had for kind, had in zip(running, self.done, strict=True)]
            return 0
        held = []
        for kind, ticks in zip(running, self.done, strict=True):
            next_to, whole = fit.next_to(kind), int(ticks + _DONE)
            found &= next_to.starts[whole]
            held.append((next_to, whole, kind))
        steady = True
        if found and len(held) > 1:
            found, steady = fit.next_to_all(held, found)
            ends = [next_to.steady[whole] for next_to, whole, _ in held]
        else:
            ends = [next_to.until[whole] for next_to, whole, _ in held]
        if steady:
            self.quiet = [end - had for end, had in zip(ends, self.done, strict=True)]
        return found

    def start(self, kind: int) -> None:
        """Start one that waits and fits."""
        self.running.append(kind)
        self.done.append(0.0)
        self.waiting[kind] -= 1
        self.started += 1
        if not self.waiting[kind]:
            self.waiting_bits &= ~(1 << kind)

    def advance(self) -> None:
        """Let a tick pass, or as many as ``fitting`` found nothing to change in; something runs."""
        running, done = self.running, self.done
        self.steps += 1
        speeds = self.kinds.speeds(tuple(running))
        lengths = self.kinds.lengths
        ticks = 1
        if self.quiet is not None:
            left = min(work / speed for work, speed in zip(self.quiet, speeds, strict=True))
            ticks = max(1, math.ceil(left - _DONE))
        self.tick += ticks
        over = False
        for place, speed in enumerate(speeds):
            had = done[place] + ticks * speed
            done[place] = had
            over = over or had >= lengths[running[place]] - _DONE
        if over:
            self._end(speeds)

    def _end(self, speeds: tuple[float, ...]) -> None:
        running, done, lengths = self.running, self.done, self.kinds.lengths
        going = []
        for place, kind in enumerate(running):
            beyond = done[place] - lengths[kind]
            if beyond < -_DONE:
                going.append(place)
                continue
            end = self.tick - beyond / speeds[place]
            self.ends += end
            self.last_end = max(self.last_end, end)
        self.running = [running[place] for place in going]
        self.done = [done[place] for place in going]

    def go_on(self, rule: StartRule, *, starts: int, steps: int) -> None:
        """Continue until nothing is left that fits the card, or ``starts`` jobs were started, or
        ``steps`` taken."""
        while (self.running or self.waiting_bits) and self.steps < steps:
            while fitting := self.fitting():
                if self.started >= starts:
                    return
                kind = rule.next_start(self, fitting)
                if kind < 0:
                    break
                self.start(kind)
            if not self.running or (self.waiting_bits and self.started >= starts):
                return
            self.advance()


class StartsFastestTogether:
    """``FastestTogether`` in imagined runs: of those that fit one of the kind that adds most to the
    sum of all speeds; of equal ones the longest, then the oldest. It waits where none adds
    ``least``.
    """

    by_gain = True
    sign = 1

    def __init__(self, kinds: GpuJobKinds, *, least: float = 0.0) -> None:
        self._kinds = kinds
        self._least = least
        self._of_sets = kinds.slowdowns is not None and (self.by_gain or least > -math.inf)
        self._choices: dict[tuple[tuple[int, ...], int, int], tuple[int, ...]] = {}

    def next_start(self, run: ImaginedRun, fitting: int) -> int:
        """See ``StartRule``."""
        key: tuple[tuple[int, ...], int, int] = ((), fitting, 0)
        if self._of_sets:
            running = tuple(sorted(run.running))
            key = (running, fitting, 0 if running else run.waiting_bits)
        best = self._choices.get(key)
        if best is None:
            if len(self._choices) >= _SETS_MAX:
                self._choices.clear()
            best = self._choices[key] = self._equal(*key)
        if len(best) <= 1:
            return best[0] if best else -1
        places, waiting = run.places, run.waiting
        return min(best, key=lambda kind: places[kind][-waiting[kind]])

    def _equal(self, running: tuple[int, ...], fitting: int, waiting: int) -> tuple[int, ...]:
        """The best kinds, all equal; none: it waits."""
        some = _members(fitting)
        if self._of_sets:
            gains = self._gains(running, some, _members(waiting))
            if running:
                some = [kind for kind in some if gains[kind] >= self._least]
            if some and self.by_gain:
                most = max(gains[kind] for kind in some)
                some = [kind for kind in some if gains[kind] == most]
        lengths = self._kinds.lengths
        length = max((self.sign * lengths[kind] for kind in some), default=0)
        return tuple(kind for kind in some if self.sign * lengths[kind] == length)

    def _gains(
        self, running: tuple[int, ...], some: Sequence[int], waiting: Sequence[int]
    ) -> dict[int, float]:
        """As ``FastestTogether.gains``."""
        speeds = self._kinds.speeds
        if not running:
            best = {kind: max(sum(speeds((kind, other))) for other in waiting) for kind in some}
            return {kind: round(total, 9) for kind, total in best.items()}
        before = sum(speeds(running))
        return {kind: round(sum(speeds((*running, kind))) - before, 9) for kind in some}


class StartsShortest(StartsFastestTogether):
    """Packed SJF in imagined runs: of those that fit one of the shortest kind, then the oldest."""

    by_gain = False
    sign = -1

    def __init__(self, kinds: GpuJobKinds, *, least: float = -math.inf) -> None:
        super().__init__(kinds, least=least)


def _members(bits: int) -> list[int]:
    return [number for number in range(bits.bit_length()) if bits >> number & 1]
