"""Looking ahead: each start that is possible, and waiting, is imagined to its end.

For every kind of job that fits now, and for a tick without a start where something runs, what runs
and waits is imagined until all of it is done (``imagined``), as believed profiles and known
slowdowns have it. What follows the first step, simple rules decide: ``FastestTogether`` and packed
SJF. Each gives a whole schedule, and an option is worth its better one. The option with the least
makespan is taken, of equal ones that with the least mean response. It is a rollout of those rules:
in a world as it is imagined, and within its bounds, never worse than either (Bertsekas, Tsitsiklis
and Wu, 1997).

A decision is bounded in what it imagines, not by a clock: one view has one decision, on any
machine. Of more than ``OPTIONS_MAX`` kinds, those are tried that ``FastestTogether`` ranks first.
Where options x jobs x rules exceed ``STARTS_MAX``, there is one rule, and where they still do, each
run ends when its share of that many jobs has started; what is then left counts at the mean pace of
all runs. Beyond ``LENGTH_MAX`` and ``KINDS_MAX`` nothing is imagined, and ``FastestTogether``
decides.

It does not know what will arrive, and that a job may fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hrm.policies.shared_gpu.heuristics import FastestTogether, GpuSharingView
from hrm.policies.shared_gpu.imagined import (
    GpuJobKinds,
    ImaginedRun,
    ProfileFit,
    StartRule,
    StartsFastestTogether,
    StartsShortest,
)
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile

__all__ = ["KINDS_MAX", "LENGTH_MAX", "OPTIONS_MAX", "STARTS_MAX", "STEPS_MAX", "LookAhead"]

OPTIONS_MAX = 16
STARTS_MAX = 100
"""Jobs that a decision imagines to start, in all of its runs. On generated sets of 30 jobs twice as
many gained nothing, and half as many lost a fifth of what is gained over packed SJF."""
STEPS_MAX = 1_000
"""How often time goes on in all of them."""
LENGTH_MAX = 128
"""Ticks of the longest profile."""
KINDS_MAX = 48
_STEPS_LEAST = 8
_DONE = 1e-9
_LEAST_PACE = 1e-9


_Key = tuple[GpuUseProfile, int]
"""A profile, and a kind in the slowdowns of pairs."""


class _Value(NamedTuple):
    """Less is better: the last end, of equal ones the sum of all ends, in ticks."""

    last_end: float
    ends: float


class LookAhead:
    """A ``GpuSharingPolicy``: see the module. What it keeps between calls follows from profiles
    alone, and changes no decision.

    Args:
        gain_min: a job joins others only where it adds so much to the sum of all speeds, as far as
            slowdowns are known; None: wherever that ends sooner.
        starts_max, steps_max: the bounds of a decision, at least 1.
    """

    name = "look-ahead"

    def __init__(
        self,
        *,
        gain_min: float | None = None,
        starts_max: int = STARTS_MAX,
        steps_max: int = STEPS_MAX,
    ) -> None:
        self._gain_min = gain_min
        self._starts_max = starts_max
        self._steps_max = steps_max
        self._beyond = FastestTogether(0.0 if gain_min is None else gain_min)
        self._kinds = GpuJobKinds(ProfileFit((), CapacityRule()))
        self._rules: list[StartRule] = []

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        if not view.fits.any():
            return None
        kinds = _Kinds(view)
        if kinds.longest > LENGTH_MAX or len(kinds.keys) > KINDS_MAX:
            return self._beyond.choose(view)
        options = _options(view, kinds, self._gain_min)
        if len(options) == 1:
            return options[0]
        numbers = self._numbered(view, kinds.keys)
        state = kinds.state(view, self._kinds, numbers)
        begun = []
        for place in options:
            run = state.copy()
            if place is None:
                run.advance()
            else:
                run.start(numbers[kinds.waiting[place]])
            begun.append(run)
        values = self._values(state, begun)
        return options[min(range(len(options)), key=lambda n: (values[n], n))]

    def _numbered(self, view: GpuSharingView, keys: Sequence[_Key]) -> list[int]:
        """The number of each kind in ``_kinds``, which is made again where it does not have all of
        them; what is known of profiles is kept where slowdowns alone are others."""
        slowdowns = None if view.pairs is None else view.pairs.slowdowns
        before = self._kinds
        if before.fit.rule == view.rule and before.slowdowns is slowdowns:
            held = zip(before.fit.profiles, before.pair_of, strict=True)
            have = {(id(profile), pair): number for number, (profile, pair) in enumerate(held)}
            found = [have.get((id(profile), pair), -1) for profile, pair in keys]
            if min(found) >= 0:
                return found
        numbers = _unused(before.fit, keys) if before.fit.rule == view.rule else None
        fit = before.fit
        if numbers is None:
            numbers = list(range(len(keys)))
            fit = ProfileFit([profile for profile, _ in keys], view.rule)
        pair_of = [-1] * len(fit.profiles)
        for number, (_, pair) in zip(numbers, keys, strict=True):
            pair_of[number] = pair
        self._kinds = made = GpuJobKinds(fit, pair_of, slowdowns)
        self._rules = [StartsFastestTogether(made), StartsShortest(made)]
        if self._gain_min is not None:
            self._rules = [StartsFastestTogether(made, least=self._gain_min),
                           StartsShortest(made, least=self._gain_min)]  # fmt: skip
        return numbers

    def _values(self, state: ImaginedRun, begun: Sequence[ImaginedRun]) -> list[_Value]:
        """Of each of ``begun``, the first steps after ``state``."""
        rules = self._rules
        jobs = sum(state.waiting)
        if jobs * len(begun) * len(rules) > self._starts_max:
            rules = rules[:1]
        starts = jobs
        if jobs * len(begun) > self._starts_max:
            starts = max(1, self._starts_max // len(begun))
        steps = max(_STEPS_LEAST, self._steps_max // (len(begun) * len(rules)))
        imagined = [[run.copy() for _ in rules] for run in begun]
        worked, passed = 0.0, 0
        for runs in imagined:
            for run, rule in zip(runs, rules, strict=True):
                run.go_on(rule, starts=starts, steps=steps)
                worked += state.left - run.left
                passed += run.tick - state.tick
        pace = max(worked / max(passed, 1), _LEAST_PACE)
        return [min(_value(run, pace) for run in runs) for runs in imagined]


def _value(run: ImaginedRun, pace: float) -> _Value:
    if run.over:
        return _Value(round(run.last_end, 6), round(run.ends, 6))
    last_end = run.tick + run.left / pace
    left = sum(run.waiting) + len(run.running)
    ends = run.ends + left * (run.tick + last_end) / 2.0
    return _Value(round(last_end, 6), round(ends, 6))


def _options(view: GpuSharingView, kinds: _Kinds, gain_min: float | None) -> list[int | None]:
    """The oldest place of each kind that fits, and None where something runs."""
    first: dict[int, int] = {}
    for place in view.fits.nonzero()[0].tolist():
        first.setdefault(kinds.waiting[place], place)
    places = list(first.values())
    gains = FastestTogether.gains(view)
    if view.running and gain_min is not None and view.pace is not None:
        places = [place for place in places if gains[place] >= gain_min]
    if len(places) > OPTIONS_MAX:
        lengths = [len(one.profile) for one in view.waiting]
        places.sort(key=lambda place: (-gains[place], -lengths[place], place))
        places = sorted(places[:OPTIONS_MAX])
    return [*places, None] if view.running else [*places]


class _Kinds:
    """The kinds of jobs of a view, those that run first, then in the order of arrival.

    Attributes:
        keys: by kind, its profile, and its kind in the slowdowns of pairs.
        running, waiting: the kind of each job.
        longest: ticks.
    """

    def __init__(self, view: GpuSharingView) -> None:
        self.keys: list[_Key] = []
        self._kind_of: dict[tuple[int, int], int] = {}
        pairs = view.pairs
        running = [0] * len(view.running) if pairs is None else pairs.running
        waiting = [0] * len(view.waiting) if pairs is None else pairs.waiting
        self.running = [
            self._kind(profile, pair)
            for (profile, _), pair in zip(view.running, running, strict=True)
        ]
        self.waiting = [
            self._kind(one.profile, pair) for one, pair in zip(view.waiting, waiting, strict=True)
        ]
        self.longest = max(len(profile) for profile, _ in self.keys)

    def _kind(self, profile: GpuUseProfile, pair: int) -> int:
        key = (id(profile), pair)
        kind = self._kind_of.setdefault(key, len(self.keys))
        if kind == len(self.keys):
            self.keys.append((profile, pair))
        return kind

    def state(
        self, view: GpuSharingView, kinds: GpuJobKinds, numbers: Sequence[int]
    ) -> ImaginedRun:
        """The view as a state of ``kinds``, in which these have ``numbers``."""
        places: list[list[int]] = [[] for _ in kinds.lengths]
        for place, kind in enumerate(self.waiting):
            places[numbers[kind]].append(place)
        progress = [done for _, done in view.running] if view.progress is None else view.progress
        running = []
        for kind, (profile, _), done in zip(self.running, view.running, progress, strict=True):
            # One that has taken longer than was believed is taken to be in its last tick.
            within = done < len(profile) - _DONE
            running.append((numbers[kind], done if within else len(profile) - 1.0))
        return ImaginedRun(kinds, places, running, tick=view.now, together_max=view.together_max)


def _unused(fit: ProfileFit, keys: Sequence[_Key]) -> list[int] | None:
    """A number for each kind, by its profile; None where one has none."""
    numbers: dict[int, list[int]] = {}
    for number, profile in enumerate(fit.profiles):
        numbers.setdefault(id(profile), []).append(number)
    found = [held.pop(0) for profile, _ in keys if (held := numbers.get(id(profile)))]
    return found if len(found) == len(keys) else None
