"""How long the tasks of one kind of application take, by platform and by company.

Tasks of different stages are of unlike sizes, so each stage has a line for each platform, and only
like is compared with like: that a platform has run the long stages does not make it slow. The
logarithm of a run time is taken as::

    stage on platform + slope * load + sum over others (part * extra) + elasticity * size

*Load* is the part of the node's other cores that are held, a *part* that of them which one kind of
application holds. What a full node costs is much the same for all stages of a kind, so a line's
slope leans on the slope of all of them together, and that on what is common elsewhere. What
company of one kind costs beyond that is its *extra*, near 0 until it is seen. Sizes are bytes read
by a task, relative to the first that were seen of a stage; run times are taken as in proportion to
them until they are seen not to be. Each effect is learned from what the others leave unexplained
(backfitting), of deviations from what is usual on that platform: company that never changes there
cannot be distinguished from the platform, and is not learned.

The times of a kind are the means of its stages' logarithms, weighted by the run time that each
takes in all. A stage that has not run on some platform is inferred from the kind's other stages
there (``completion``) first.

Intervals have a part for noise, of which all lines of a kind have the same, and one for what is
assumed. Limits: effects are additive on logarithms; a node's load is that of one moment.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hrm.core.tenancy.completion import completed
from hrm.core.tenancy.fading_line import NORMAL_95, SHARE_MIN, FadingLine, student_95
from hrm.core.tenancy.observed_run_times import (
    OUTLIER_LEAST,
    OUTLIER_SPREADS,
    OUTLIERS_FROM,
    SLOPE,
    SLOPE_SPREAD,
    SLOPE_WEIGHT,
)
from hrm.core.vocabulary.columns import Floats

__all__ = [
    "CO_RUNNERS_MAX",
    "PLATFORMS_MAX",
    "STAGES_MAX",
    "ApplicationKind",
    "CompanySlowdown",
    "KindTimes",
    "PlatformTime",
    "TaskTimes",
]

STAGES_MAX = 32
PLATFORMS_MAX = 16
CO_RUNNERS_MAX = 16
"""Of one kind; the least recently seen are forgotten."""

LINE_SPREAD = 0.3
"""Standard deviation of the slopes of a kind's lines around the slope of all of them."""

NOISE = 0.0625
"""Variance of logarithms where little is seen: a standard deviation of 25 %."""

NOISE_WEIGHT = 2.0
"""Of that assumption, in observations."""

LINE_WEIGHT = NOISE / LINE_SPREAD**2
"""Of the slope of all lines in that of one, as a variance of loads times observations."""

EXTRA_SPREAD = 0.3
"""Standard deviation of what one kind's company costs beyond that of others, as a logarithm."""

INFERRED_SPREAD = 0.3
"""Standard deviation of a time that is inferred from other stages, as a logarithm."""

SIZE_WEIGHT = 0.05
"""Of the assumption that times are in proportion to sizes, as a variance of sizes' logarithms times
observations."""

ELASTICITY_MAX = 2.0
SIZE_LOG_MAX = math.log(1_000.0)

HALVE_AFTER = 256
"""Observations of a kind after which what its stages weighed counts half."""

_LEAST_PART = 0.01
_LOG_MOST = 100.0
_RUN_MAX_S = 1e12


class ApplicationKind(NamedTuple):
    """Applications that are taken as alike: a queue's, of one name but for its numbers."""

    queue: str
    name: str


class TaskTimes(NamedTuple):
    """Of tasks of one stage that ran on one node, together.

    ``mean_s``: above 0. ``load``: the part of the node's other cores that are held, 0 to 1;
    ``company``: of those, the parts by kind. ``input_bytes``: what one task read; 0: not known.
    """

    platform: str
    tasks: int
    mean_s: float
    load: float
    company: Mapping[ApplicationKind, float]
    input_bytes: float = 0.0


class PlatformTime(NamedTuple):
    """The logarithm of a time alone, in seconds; half of its 95 % interval, infinite where too
    little is known; of how many observations, after fading."""

    log: float
    half: float
    observations: float


class CompanySlowdown(NamedTuple):
    """What company on all other cores of a node does to run times.

    ``factor``: relative to alone. It is between ``factor / exp(half_width)`` and ``factor *
    exp(half_width)`` with a confidence of 95 %. ``observations``: how many count, after fading.
    """

    factor: float
    half_width: float
    observations: float


class _Mean:
    """A fading mean."""

    __slots__ = ("count", "mean")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.mean = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.mean += max(SHARE_MIN, 1 / self.count) * (value - self.mean)

    @property
    def observations(self) -> float:
        """About as many of equal weight would be as certain."""
        return min(self.count, (2 - SHARE_MIN) / SHARE_MIN)


class _Effect:
    """A coefficient, from deviations of what it multiplies and what is unexplained without it."""

    __slots__ = ("product", "square", "usual")

    def __init__(self) -> None:
        self.square = _Mean()
        self.product = _Mean()
        self.usual: dict[str, _Mean] = {}

    def deviation(self, platform: str, value: float) -> float:
        """From what is usual there, which ``value`` joins; 0 for the first."""
        usual = self.usual.get(platform)
        if usual is None:
            usual = self.usual[platform] = _Mean()
            usual.add(value)
            return 0.0
        deviation = value - usual.mean
        usual.add(value)
        return deviation

    def add(self, deviation: float, unexplained: float, weight: float) -> None:
        self.square.add(weight * deviation * deviation)
        self.product.add(weight * deviation * unexplained)

    @property
    def seen(self) -> float:
        return self.square.observations * self.square.mean

    def estimate(self, assumed: float, weight: float) -> float:
        """``weight``: of the assumption, as ``seen``."""
        products = self.product.observations * self.product.mean
        return (products + weight * assumed) / (self.seen + weight)


class _Stage:
    __slots__ = ("first_log", "lines", "run_s", "size")

    def __init__(self) -> None:
        self.lines: OrderedDict[str, FadingLine] = OrderedDict()
        self.run_s = 0.0
        self.size: _Effect | None = None
        self.first_log = 0.0

    def size_log(self, input_bytes: float) -> float:
        """Relative to the first that was known; 0 where it is not."""
        if input_bytes <= 0:
            return 0.0
        if self.size is None:
            self.size = _Effect()
            self.first_log = math.log(input_bytes)
        log = math.log(input_bytes) - self.first_log
        return min(max(log, -SIZE_LOG_MAX), SIZE_LOG_MAX)

    @property
    def elasticity(self) -> float:
        if self.size is None:
            return 1.0
        return min(max(self.size.estimate(1.0, SIZE_WEIGHT), 0.0), ELASTICITY_MAX)


@dataclass(slots=True)
class _Slopes:
    """Of all lines of a kind: the sums of ``FadingLine.loads`` and ``together``."""

    loads: float = 0.0
    together: float = 0.0

    def count(self, line: FadingLine, sign: int) -> None:
        self.loads = max(0.0, self.loads + sign * line.loads)
        self.together += sign * line.together

    @property
    def slope(self) -> float:
        return (self.together + SLOPE_WEIGHT * SLOPE) / (self.loads + SLOPE_WEIGHT)

    def variance(self, noise: float) -> float:
        """Of the slope."""
        whole = self.loads + SLOPE_WEIGHT
        return noise * self.loads / whole**2 + (SLOPE_WEIGHT / whole * SLOPE_SPREAD) ** 2


class KindTimes:
    """``run_s``: what all its tasks have taken, fading; ``cells``: how many estimates it keeps.
    ``platforms``: how many observations of each, the latest seen last.

    Invariants:
        ``_slopes`` sums all and only the lines of ``_stages``; ``platforms`` has theirs.
    """

    def __init__(self) -> None:
        self.cells = 0
        self.observations = 0
        self.platforms: OrderedDict[str, int] = OrderedDict()
        self._stages: OrderedDict[str, _Stage] = OrderedDict()
        self._co_runners: OrderedDict[ApplicationKind, _Effect] = OrderedDict()
        self._slopes = _Slopes()
        self._noise = _Mean()
        self._times: dict[str, PlatformTime] | None = None

    @property
    def run_s(self) -> float:
        return sum(stage.run_s for stage in self._stages.values())

    @property
    def co_runners(self) -> tuple[ApplicationKind, ...]:
        """The kinds that have been seen on its nodes, the latest last."""
        return tuple(self._co_runners)

    def observe(self, name: str, times: TaskTimes) -> None:
        """Tasks of stage ``name`` have ended; they count as one observation."""
        self._times = None
        stage, line = self._line(name, times.platform)
        self._weigh(stage, times.tasks * times.mean_s)
        parts = self._parts(times.company)
        extra = sum(part * self._extra(kind) for kind, part in parts.items())
        size = stage.size_log(times.input_bytes)
        elasticity = stage.elasticity
        log = math.log(times.mean_s) - extra - elasticity * size
        deviations = {
            kind: effect.deviation(times.platform, parts.get(kind, 0.0))
            for kind, effect in self._co_runners.items()
        }
        larger = 0.0
        if stage.size is not None and times.input_bytes > 0:
            larger = stage.size.deviation(times.platform, size)
        if line.count:
            expected = line.at(times.load, self._slope(line))
            unexplained = self._clipped(log - expected)
            log = expected + unexplained
            weight = line.observations / (line.observations + 1)
            self._noise.add(weight * unexplained**2)
            for kind, deviation in deviations.items():
                if abs(deviation) >= _LEAST_PART:
                    whole = unexplained + deviation * self._extra(kind)
                    self._co_runners[kind].add(deviation, whole, weight)
            if larger and stage.size is not None:
                stage.size.add(larger, unexplained + elasticity * larger, weight)
        self._slopes.count(line, -1)
        line.add(times.load, log)
        self._slopes.count(line, +1)
        self.platforms[times.platform] += 1

    def times(self) -> dict[str, PlatformTime]:
        """Alone on a node, by platform: those on which it has run."""
        if self._times is None:
            self._times = self._combined()
        return self._times

    def sensitivity(self) -> CompanySlowdown:
        """To company as it has had it."""
        variance = self._slopes.variance(self.noise)
        return self._slowdown(self._slopes.slope, variance, self._noise.observations)

    def slowdown(self, kind: ApplicationKind) -> CompanySlowdown:
        """By company of this kind alone."""
        effect = self._co_runners.get(kind)
        variance, slope = self._slopes.variance(self.noise), self._slopes.slope
        if effect is None:
            return self._slowdown(slope, variance + EXTRA_SPREAD**2, 0.0)
        of_extra = self.noise / (effect.seen + self.noise / EXTRA_SPREAD**2)
        count = effect.square.observations
        return self._slowdown(slope + self._extra(kind), variance + of_extra, count)

    @property
    def noise(self) -> float:
        """The variance of logarithms around their lines."""
        count = self._noise.observations
        return (count * self._noise.mean + NOISE_WEIGHT * NOISE) / (count + NOISE_WEIGHT)

    def _slowdown(self, log: float, variance: float, observations: float) -> CompanySlowdown:
        half = NORMAL_95 * math.sqrt(variance)
        return CompanySlowdown(math.exp(min(max(log, -_LOG_MOST), _LOG_MOST)), half, observations)

    def _extra(self, kind: ApplicationKind) -> float:
        return self._co_runners[kind].estimate(0.0, self.noise / EXTRA_SPREAD**2)

    def _slope(self, line: FadingLine) -> float:
        return line.slope(self._slopes.slope, LINE_WEIGHT)

    def _clipped(self, unexplained: float) -> float:
        if self._noise.count < OUTLIERS_FROM:
            return unexplained
        most = max(OUTLIER_SPREADS * math.sqrt(self._noise.mean), OUTLIER_LEAST)
        return min(max(unexplained, -most), most)

    def _weigh(self, stage: _Stage, run_s: float) -> None:
        stage.run_s += min(max(run_s, 1 / _RUN_MAX_S), _RUN_MAX_S)
        self.observations += 1
        if self.observations % HALVE_AFTER == 0:
            for each in self._stages.values():
                each.run_s /= 2

    def _line(self, name: str, platform: str) -> tuple[_Stage, FadingLine]:
        stage = self._stages.get(name)
        if stage is None:
            stage = self._stages[name] = _Stage()
            if len(self._stages) > STAGES_MAX:
                self._forget_stage()
        self._stages.move_to_end(name)
        self.platforms.setdefault(platform, 0)
        self.platforms.move_to_end(platform)
        if len(self.platforms) > PLATFORMS_MAX:
            self._forget_platform()
        line = stage.lines.get(platform)
        if line is None:
            line = stage.lines[platform] = FadingLine()
            self.cells += 1
        return stage, line

    def _forget_stage(self) -> None:
        _, oldest = self._stages.popitem(last=False)
        for line in oldest.lines.values():
            self._slopes.count(line, -1)
        self.cells -= len(oldest.lines)
        left = {platform: None for x in self._stages.values() for platform in x.lines}
        self.platforms = OrderedDict(x for x in self.platforms.items() if x[0] in left)

    def _forget_platform(self) -> None:
        platform, _ = self.platforms.popitem(last=False)
        for stage in self._stages.values():
            line = stage.lines.pop(platform, None)
            if line is not None:
                self._slopes.count(line, -1)
                self.cells -= 1
            if stage.size is not None:
                stage.size.usual.pop(platform, None)
        for effect in self._co_runners.values():
            effect.usual.pop(platform, None)

    def _parts(self, company: Mapping[ApplicationKind, float]) -> dict[ApplicationKind, float]:
        """Of those that are followed; the largest are, where there are many."""
        most = sorted(company.items(), key=lambda x: (-x[1], x[0]))[:CO_RUNNERS_MAX]
        parts = {kind: part for kind, part in most if part >= _LEAST_PART}
        for kind in parts:
            if kind not in self._co_runners:
                effect = self._co_runners[kind] = _Effect()
                self.cells += 1
                for platform, count in self.platforms.items():
                    if count:  # where it has not been so far
                        effect.usual[platform] = _Mean(count)
            self._co_runners.move_to_end(kind)
        while len(self._co_runners) > CO_RUNNERS_MAX:
            self._co_runners.popitem(last=False)
            self.cells -= 1
        return parts

    def _combined(self) -> dict[str, PlatformTime]:
        stages, platforms = list(self._stages.values()), list(self.platforms)
        logs = np.full((len(stages), len(platforms)), np.nan)
        for row, stage in enumerate(stages):
            for column, platform in enumerate(platforms):
                line = stage.lines.get(platform)
                if line is not None and line.count:
                    logs[row, column] = line.at(0.0, self._slope(line))
        logs = completed(logs)
        weights = np.array([stage.run_s for stage in stages])
        weights /= weights.sum()
        means = weights @ logs
        return {
            platform: PlatformTime(float(means[column]), *self._certainty(platform, weights))
            for column, platform in enumerate(platforms)
        }

    def _certainty(self, platform: str, weights: Floats) -> tuple[float, float]:
        """Half of an interval, and how many observations."""
        noise, of_all = self.noise, self._slopes.variance(self.noise)
        observed = assumed = inferred = count = known = 0.0
        for weight, stage in zip(weights.tolist(), self._stages.values(), strict=True):
            line = stage.lines.get(platform)
            if line is None or not line.count:
                inferred += weight
                continue
            whole = line.loads + LINE_WEIGHT
            of_noise = 1 / line.observations + line.load**2 * line.loads / whole**2
            observed += weight**2 * noise * of_noise
            leans = LINE_WEIGHT / whole * line.load
            assumed += weight * leans * math.sqrt(of_all + LINE_SPREAD**2)
            count += line.observations
            known += weight
        if self._noise.count < 2 or known <= 0:
            return math.inf, count
        spread = assumed / known + inferred * INFERRED_SPREAD
        chance = student_95(max(self._noise.observations, 1.0)) * math.sqrt(observed) / known
        return math.hypot(chance, NORMAL_95 * spread), count
