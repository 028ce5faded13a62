"""How much subtasks on one GPU slow each other down: the truth of the simulated world.

Three worlds, none of which knows a cosine:

- ``measured``: laws fitted to measured slow-downs of pairs. The slow-down of a victim beside a
  partner is 1 + S(victim) * A(partner) * e; A, what a job does to others, and S, how much it
  suffers, explain 79 to 85 % of the variance of ln(slow-down - 1) in the pairs of training jobs on
  K80 and P100; e is what is left, drawn once for each pair. A kind of subtask gets the A of the
  measured job with the same rank of demand, and the S that goes with such an A.
- ``overload``: every part of the GPU (the seven loads of a kind) has a capacity of one; what is
  asked beyond it makes everybody slower by as much.
- ``none``: co-running costs nothing.

More than one partner: their effects add up (assumed; pairs are all that was measured).

``fit`` makes the few numbers of a law from any such table; ``LAWS`` are those that ship.

Source of the fits: the throughputs of Gavel (Narayanan et al., OSDI 2020; K80 and P100, time
sharing) and the latencies of iGniter (Xu et al., TPDS 2022; V100, MPS with fixed shares). A P4 is
of the P100's generation and gets its law.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.sim.profiles import K80, P4, Kind
from hrm.sim.traces.measured import gavel_pairs, igniter_pairs, igniter_profiles
from hrm.sim.traces.reading import LoadReport

__all__ = ["LAWS", "WORLDS", "Law", "Pair", "World", "fit", "laws_of", "pairs_of", "world"]

WORLDS = ("measured", "measured-mps", "overload", "none")
_ALIKE = 1e-6
_SLOWDOWN_MIN = 0.02
"""Least excess of a slow-down that a fit takes seriously; below it is noise."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement: how many times as long ``victim`` took beside ``partner``."""

    gpu: str
    victim: str
    partner: str
    slowdown: float


@dataclass(frozen=True, slots=True)
class Law:
    """What is left of a table of pairs.

    ln A at rank q (0: least demand, 1: most) = ``ln_a[0] + ln_a[1] * q``; ln S at such an A =
    ``ln_s[0] + ln_s[1] * ln A``; ``spread``: standard deviation of what no job explains;
    ``explained``: the share of variance that A and S explain; ``pairs`` that it stands on.
    """

    ln_a: tuple[float, float]
    ln_s: tuple[float, float]
    spread: float
    explained: float
    pairs: int


_V100 = Law((-1.498, 0.556), (-1.541, -0.263), 0.399, 0.306, 1500)
LAWS: Mapping[str, Mapping[str, Law]] = {
    "measured": {
        K80: Law((-0.618, 1.076), (-0.137, -0.711), 0.186, 0.850, 589),
        P4: Law((-1.026, 1.614), (-0.267, -0.218), 0.321, 0.786, 656),
    },
    "measured-mps": {K80: _V100, P4: _V100},
}
"""The fits that ship. In ``measured`` two jobs that share a GPU do 1.07 (K80) and 1.20 (P100) times
what they would do taking turns, on average; the best pairs 1.26 and 1.6 times."""


class World:
    """The slow-downs of every set of kinds on every model of GPU."""

    def __init__(self, name: str, kinds: Mapping[str, Kind], laws: Mapping[str, Law]) -> None:
        self.name = name
        self._kinds = kinds
        self._laws = laws
        with_gpu = [kind for kind in kinds.values() if kind.log_gpu_s is not None]
        ordered = sorted(with_gpu, key=lambda one: (one.features[0] + one.features[4], one.name))
        last = max(1, len(ordered) - 1)
        self._rank = {one.name: place / last for place, one in enumerate(ordered)}
        self._pairs: dict[tuple[str, str, str], float] = {}
        self._known: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}

    def slowdowns(self, gpu_model: str, kinds: tuple[str, ...]) -> tuple[float, ...]:
        """How many times as long as alone each takes while all of them run; at least 1."""
        key = gpu_model, kinds
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._slowdowns(gpu_model, kinds)
        return found

    def _slowdowns(self, gpu_model: str, kinds: tuple[str, ...]) -> tuple[float, ...]:
        if len(kinds) < 2 or self.name == "none":
            return (1.0,) * len(kinds)
        if self.name == "overload":
            loads = np.sum([self._kinds[kind].features for kind in kinds], axis=0)
            return (1.0 + float(np.maximum(0.0, loads - 1.0).sum()),) * len(kinds)
        return tuple(
            1.0
            + sum(
                self._pair(gpu_model, kind, other)
                for place, other in enumerate(kinds)
                if place != own
            )
            for own, kind in enumerate(kinds)
        )

    def _pair(self, gpu_model: str, victim: str, partner: str) -> float:
        """The excess of the victim's slow-down."""
        key = gpu_model, victim, partner
        if key not in self._pairs:
            law = self._laws[gpu_model]
            ln_a = law.ln_a[0] + law.ln_a[1] * self._rank[partner]
            own_ln_a = law.ln_a[0] + law.ln_a[1] * self._rank[victim]
            ln_s = law.ln_s[0] + law.ln_s[1] * own_ln_a
            seed = zlib.crc32("|".join(key).encode())
            rest = law.spread * float(np.random.default_rng(seed).standard_normal())
            self._pairs[key] = math.exp(ln_a + ln_s + rest)
        return self._pairs[key]


def world(name: str, kinds: Mapping[str, Kind], *, laws: Mapping[str, Law] | None = None) -> World:
    """The world of this name. ``laws``: instead of the shipped ones, by model of GPU.

    Raises:
        InvalidRequest: there is none of this name.
    """
    if name not in WORLDS:
        raise InvalidRequest(f"no world {name!r}; name one of {', '.join(WORLDS)}")
    return World(name, kinds, laws or LAWS.get(name, {}))


def fit(pairs: Iterable[Pair]) -> Law:
    """The law of the pairs of one GPU, by least squares on ln(slow-down - 1).

    Raises:
        InvalidRequest: fewer than 3 jobs or fewer pairs than twice the jobs.
    """
    pairs = list(pairs)
    jobs = sorted({one.victim for one in pairs} | {one.partner for one in pairs})
    if len(jobs) < 3 or len(pairs) < 2 * len(jobs):
        raise InvalidRequest(
            f"{len(pairs)} pairs of {len(jobs)} jobs are too few for a law of interference; give "
            "at least two pairs for each of three jobs"
        )
    number = {job: place for place, job in enumerate(jobs)}
    matrix = np.zeros((len(pairs), 2 * len(jobs)))
    for row, one in enumerate(pairs):
        matrix[row, number[one.victim]] = 1.0
        matrix[row, len(jobs) + number[one.partner]] = 1.0
    excess = np.log([max(one.slowdown - 1.0, _SLOWDOWN_MIN) for one in pairs])
    weights = np.linalg.lstsq(matrix, excess, rcond=None)[0]
    rest = excess - matrix @ weights
    ln_s, ln_a = weights[: len(jobs)], np.sort(weights[len(jobs) :])
    own = np.argsort(weights[len(jobs) :], kind="stable")
    slope_a, start_a = np.polyfit(np.linspace(0.0, 1.0, len(jobs)), ln_a, 1)
    alike = np.ptp(ln_a) < _ALIKE
    slope_s, start_s = (0.0, ln_s.mean()) if alike else np.polyfit(ln_a, ln_s[own], 1)
    return Law(
        ln_a=(float(start_a), float(slope_a)),
        ln_s=(float(start_s), float(slope_s)),
        spread=float(rest.std()),
        explained=float(1.0 - rest.var() / excess.var()) if excess.var() > 0 else 1.0,
        pairs=len(pairs),
    )


def pairs_of(path: Path) -> list[Pair]:
    """Measured pairs from a table of Gavel's or iGniter's form, found by its contents.

    Raises:
        InvalidRequest: no such file, or it has neither form.
    """
    found = _training_pairs(path) if "throughputs" in _names(path) else _inference_pairs(path)
    if not found:
        raise InvalidRequest(f"{path} has no pair of jobs that share a GPU")
    return found


def _names(path: Path) -> str:
    if not path.exists():
        raise InvalidRequest(f"no such table of pairs: {path}")
    return path.name if path.is_file() else " ".join(sorted(one.name for one in path.iterdir()))


def _training_pairs(path: Path) -> list[Pair]:
    rows = [row for row in gavel_pairs(path, LoadReport()) if row.scale == 1]
    alone = {(row.gpu, row.job): row.iterations_per_s for row in rows if not row.other}
    return [
        Pair(row.gpu, row.job, row.other, alone[row.gpu, row.job] / row.iterations_per_s)
        for row in rows
        if row.other and row.other_scale == 1 and row.iterations_per_s > 0
        and alone.get((row.gpu, row.job), 0.0) > 0 and "unconsolidated" not in row.gpu
    ]  # fmt: skip


def _inference_pairs(path: Path) -> list[Pair]:
    alone = {
        (row.model, row.batch, row.gpu_percent): row.value
        for row in igniter_profiles(path, LoadReport())
        if row.metric == "latency"
    }
    found = []
    for row in igniter_pairs(path, LoadReport()):
        first = row.first, row.first_batch, row.gpu_percent
        second = row.second, row.second_batch, 100 - row.gpu_percent
        if first in alone and second in alone:
            names = [f"{model} on {percent} %" for model, _, percent in (first, second)]
            slow = row.first_latency_ms / alone[first], row.second_latency_ms / alone[second]
            found += [Pair("V100", names[0], names[1], slow[0]),
                      Pair("V100", names[1], names[0], slow[1])]  # fmt: skip
    return found


def laws_of(pairs: Sequence[Pair]) -> dict[str, Law]:
    """A law for each of the cluster's models of GPU from pairs of whatever models there are.

    Raises:
        InvalidRequest: too few pairs.
    """
    by_gpu: dict[str, list[Pair]] = {}
    for one in pairs:
        by_gpu.setdefault(one.gpu.lower(), []).append(one)
    fitted = {gpu: fit(own) for gpu, own in by_gpu.items()}
    any_law = fitted[min(fitted)]
    return {K80: fitted.get("k80", any_law), P4: fitted.get("p100", any_law)}
