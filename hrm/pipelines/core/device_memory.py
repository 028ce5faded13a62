"""The probability that steps which share a GPU need more memory than it has.

A step's greatest use of device memory differs from run to run, with its input above all. Adding up
the greatest that was ever seen of each keeps a GPU empty for what is never going to happen at the
same time; adding up means runs out of memory every other time. So each step has a distribution, and
a set of steps may run together if the probability that their peaks add up to more than the GPU
offers is small.

Peaks are taken to be independent, and all at the same time: co-runners that peak one after the
other need less. The sum is taken to be normal, with the sum of means and of variances, up to the
sum of the greatest peaks: what many runs have never reached is not expected of the next one. Where
nothing is known of the spread, the variance is 0, and an amount either fits or does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["OUT_OF_MEMORY_FACTOR", "PeakMemory", "certain"]

OUT_OF_MEMORY_FACTOR = 1.5
"""What a run that ran out of device memory is given when it is tried again, over what it had."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The greatest device memory of a run, or of several together: MiB and MiB squared."""

    mean_mib: float
    variance: float = 0.0
    most_mib: float = math.inf
    """Where the distribution ends."""

    def plus(self, other: PeakMemory) -> PeakMemory:
        """Of both at once."""
        return PeakMemory(
            self.mean_mib + other.mean_mib,
            self.variance + other.variance,
            self.most_mib + other.most_mib,
        )

    def at_least(self, mean_mib: float) -> PeakMemory:
        """With a mean of at least this, and the same spread around it."""
        more_mib = mean_mib - self.mean_mib
        if more_mib <= 0.0:
            return self
        return PeakMemory(mean_mib, self.variance, self.most_mib + more_mib)

    def exceeds(self, limit_mib: float) -> float:
        """The probability of more than ``limit_mib``, 0..1."""
        if self.most_mib <= limit_mib:
            return 0.0
        if self.variance <= 0.0:
            return 1.0 if self.mean_mib > limit_mib else 0.0
        return 0.5 * math.erfc((limit_mib - self.mean_mib) / math.sqrt(2.0 * self.variance))


def certain(mib: float) -> PeakMemory:
    """An amount of which nothing but itself is known."""
    return PeakMemory(mib, 0.0, mib)
