"""What divides the cores of unlike platforms among queues: the contract of such a rule.

A *platform* is a group of like nodes. How many cores a queue may have is its share
(``hrm.core.tenancy.accounts``); which platforms' they are is what is decided here. The rules
themselves are ``hrm.policies.sharing``.

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hrm.core.vocabulary.columns import Floats, Ints

__all__ = ["PlatformDivision", "RunTimes"]


class PlatformDivision(Protocol):
    """Keeps nothing between calls: the same arguments give the same results."""

    def affinity(self, run_s: Floats) -> Floats:
        """How much each queue prefers each platform, higher is better; same shape as ``run_s``, the
        run times of its tasks there, (queues, platforms), NaN where nothing is known."""
        ...

    def divide(self, wanted: Ints, cores: Ints, affinity: Floats, held: Ints) -> Ints:
        """Cores by queue and platform: in sum no more than ``wanted`` of each queue, nor than
        ``cores`` of each platform.

        Args:
            wanted: of each queue, shape (queues,).
            cores: of each platform, shape (platforms,).
            affinity: see above.
            held: what each queue has on each platform now, shape (queues, platforms).
        """
        ...


class RunTimes(Protocol):
    """How long tasks take, by queue and platform."""

    def run_times(
        self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]
    ) -> Floats:
        """Seconds, shape (queues, platforms), NaN where nothing is known. ``queues``: of each the
        names of its applications, and by how much each counts."""
        ...
