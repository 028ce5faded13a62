"""How much subtasks on one GPU slow each other down: the truth of the simulated world.

Three worlds, none of which is based on a cosine:

- ``measured``: laws fitted to measured slow-downs of pairs. The slow-down of a victim with a
  partner is 1 + S(victim) * A(partner) * e; A, what a job does to others, and S, how much it
  suffers, explain 79 to 85 % of the variance of ln(slow-down - 1) on K80 and P100; e is the
  residual, drawn once for each pair. A kind of subtask gets the A of the measured job with the same
  rank of demand, and the S that goes with such an A.
- ``overload``: every part of the GPU (the seven loads of a kind) has a capacity of one; demand
  beyond it slows all runs down by as much.
- ``none``: co-running costs nothing.

The effects of several partners add up (an assumption; only pairs were measured).
``benchmarks.pipelines.pair_laws`` makes a law from any such table.

Source of the fits: the throughputs of Gavel (Narayanan et al., OSDI 2020; K80 and P100, time
sharing) and the latencies of iGniter (Xu et al., TPDS 2022; V100, MPS with fixed shares). A P4 is
of the P100's generation and gets its law.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.sim.profiles import K80, P4, Kind

__all__ = ["LAWS", "WORLDS", "InterferenceWorld", "Law", "world"]

WORLDS = ("measured", "measured-mps", "overload", "none")


@dataclass(frozen=True, slots=True)
class Law:
    """The summary of a table of pairs.

    ln A at rank q (0: least demand, 1: most) = ``ln_a[0] + ln_a[1] * q``; ln S at such an A =
    ``ln_s[0] + ln_s[1] * ln A``; ``spread``: standard deviation of the residual; ``explained``:
    the share of variance that A and S explain; ``pairs``: how many it is based on.
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
"""The shipped fits. In ``measured`` two jobs that share a GPU do 1.07 (K80) and 1.20 (P100) times
what they would do in turns, on average; the best pairs 1.26 and 1.6 times."""


class InterferenceWorld:
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


def world(
    name: str, kinds: Mapping[str, Kind], *, laws: Mapping[str, Law] | None = None
) -> InterferenceWorld:
    """The world of this name. ``laws``: instead of the shipped ones, by model of GPU.

    Raises:
        InvalidRequest: there is no world of this name.
    """
    if name not in WORLDS:
        raise InvalidRequest(f"no world {name!r}; name one of {', '.join(WORLDS)}")
    return InterferenceWorld(name, kinds, laws or LAWS.get(name, {}))
