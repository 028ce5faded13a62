"""A division policy and a measure of affinity, as the rule by which the master divides shares.

See ``hrm.core.tenancy.platform_division``. How much each queue may have is decided there, by
guarantees and weights; a policy gets that as what each wants, so that it decides of platforms
alone.

What is learned is not exact, and some of it is reported by those who gain by it. So affinities in
force differ from those of experiments (``hrm.policies.sharing.affinity``):

- means are of logarithms, and reciprocal ones are weighted by the cores that queues want: neither
  long tasks nor a queue of few cores decide for all;
- ratios are bounded by ``RATIO_MAX``;
- platforms that suit a queue by less than ``ALIKE`` more than others are alike to it, and those who
  prefer none get the same part of each;
- no queue loses more than ``LOSS_MAX`` of the speed that it would have with the same part of every
  platform as others: else all are given so much of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.columns import Bools, Floats, Ints
from hrm.errors import InvalidRequest
from hrm.policies.sharing.affinity import Affinity
from hrm.policies.sharing.affinity_first import ApplicationAffinityFirst, ProviderAffinityFirst
from hrm.policies.sharing.affinity_round_robin import AffinityRoundRobin
from hrm.policies.sharing.dominant_share import DominantShare
from hrm.policies.sharing.simple_fairness import SimpleFairness
from hrm.policies.sharing.tenant_demands import Division, DivisionPolicy, TenantDemands

__all__ = [
    "ALIKE",
    "DEFAULT",
    "DEFAULT_MEASURE",
    "DIVISIONS",
    "LOSS_MAX",
    "RATIO_MAX",
    "PlatformDivider",
    "divider",
]

ALIKE = 0.2
"""Some forty observations with a noise of 20 % are as exact as that, with a confidence of 95 %."""

RATIO_MAX = 100.0
"""By which two platforms may differ for a queue."""

LOSS_MAX = 0.1
"""What it may cost a queue that others gain more by a platform than it does."""

DIVISIONS: dict[str, DivisionPolicy] = {
    policy.name: policy
    for policy in (
        AffinityRoundRobin(),
        ApplicationAffinityFirst(),
        DominantShare(),
        ProviderAffinityFirst(),
        SimpleFairness(),
    )
}
DEFAULT = AffinityRoundRobin().name
DEFAULT_MEASURE = Affinity.RECIPROCAL
"""The fairest, and the shortest makespans (docs/fairness.md)."""


@dataclass(frozen=True)
class PlatformDivider:
    """``policy`` with affinities by ``measure``; ``loss_max``: see ``LOSS_MAX``."""

    policy: DivisionPolicy
    measure: Affinity = DEFAULT_MEASURE
    loss_max: float = LOSS_MAX

    def divide(self, wanted: Ints, cores: Ints, run_s: Floats) -> tuple[Division, Floats]:
        """See ``PlatformDivision.divide``. More than there is, as where nodes take nothing more, is
        divided in proportion."""
        there, asked = int(cores.sum()), int(wanted.sum())
        if asked > there:
            wanted = wanted * there // asked
        logs, known = _centred(run_s)
        affinity = self._affinity(logs, known, wanted)
        division = self.policy.divide(TenantDemands(wanted, cores, affinity))
        even = SimpleFairness().divide(TenantDemands(wanted, cores, affinity))
        mixed = _within(division, even, np.exp(-logs), self.loss_max)
        return (division if mixed is None else _rounded(mixed, wanted, cores)), affinity

    def _affinity(self, logs: Floats, known: Bools, wanted: Ints) -> Floats:
        """Over what is known of each queue; 1 elsewhere. One queue alone takes nothing from others:
        reciprocal affinity is egocentric then."""
        if self.measure is Affinity.RECIPROCAL and known.any(axis=1).sum() > 1:
            weights = np.maximum(wanted, 1)[:, None] * known
            means = (weights * logs).sum(axis=0) / np.maximum(weights.sum(axis=0), 1)
            logs = np.where(known, logs - means, 0.0)
        others = known.sum(axis=1, keepdims=True) - 1
        gains = (logs.sum(axis=1, keepdims=True) - logs) / np.maximum(others, 1) - logs
        gains = np.where(known & (others > 0), gains, 0.0)
        affinity: Floats = np.exp(np.where(np.abs(gains) < math.log(1 + ALIKE), 0.0, gains))
        return affinity


def _centred(run_s: Floats) -> tuple[Floats, Bools]:
    """Logarithms of run times, relative to each queue's mean of them and bounded; 0 where nothing
    is known, and where something is."""
    known = np.isfinite(run_s)
    logs = np.log(np.where(known, run_s, 1.0))
    means = logs.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    most = math.log(RATIO_MAX) / 2
    centred: Floats = np.where(known, np.clip(logs - means, -most, most), 0.0)
    return centred, known


def _within(division: Division, even: Division, speeds: Floats, loss_max: float) -> Floats | None:
    """The division, but as much nearer to ``even`` as it takes for no queue to lose more than
    ``loss_max`` of the speed that it has by that; None: it is that already."""
    ours, theirs = (division * speeds).sum(axis=1), (even * speeds).sum(axis=1)
    least = (1 - loss_max) * theirs
    loses = ours < least
    if not loses.any():
        return None
    part = float(((least - ours)[loses] / (theirs - ours)[loses]).max())
    mixed: Floats = part * even + (1 - part) * division
    return mixed


def _rounded(mixed: Floats, wanted: Ints, cores: Ints) -> Division:
    """Whole cores: each queue gets as many as it wants, no platform gives more than it has."""
    whole = np.floor(mixed + 1e-9).astype(np.int64)
    spare = cores - whole.sum(axis=0)
    for row in range(len(whole)):
        rests = mixed[row] - whole[row]
        for _ in range(int(wanted[row] - whole[row].sum())):
            usable = np.where(spare > 0, rests, -np.inf)
            column = int(usable.argmax())
            if spare[column] <= 0:
                break
            whole[row, column] += 1
            spare[column] -= 1
            rests[column] -= 1
    return whole


def divider(
    policy: str = DEFAULT, measure: str | Affinity = DEFAULT_MEASURE
) -> PlatformDivider | None:
    """By names; None for "none".

    Raises:
        InvalidRequest: there is no such policy, or no such measure.
    """
    if policy == "none":
        return None
    if policy not in DIVISIONS:
        names = ", ".join((*sorted(DIVISIONS), "none"))
        raise InvalidRequest(f"there is no division {policy!r}; choose one of {names}")
    try:
        return PlatformDivider(DIVISIONS[policy], Affinity(measure))
    except ValueError:
        names = ", ".join(x.value for x in Affinity)
        raise InvalidRequest(f"there is no affinity {measure!r}; choose one of {names}") from None
