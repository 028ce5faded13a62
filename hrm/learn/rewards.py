"""Three rewards of a placement, and the schedules of learning.

``delta`` is the LDWP paper's: throughput now minus throughput at the last decision, where
throughput is the tasks completed in the last minute. These differences add up to the last minus the
first, whatever was done between, and below saturation throughput equals the rate of arrivals.
``smdp`` counts the completions between two decisions and discounts by the time between them.
``slowdown`` waits for the task's own end and rewards its placement with -ln(response / ideal): no
discount and no guess. It cannot learn to leave capacity for others.

Rewards are scaled by ``kappa``, so that their standard deviation under a random policy is 0.5; the
paper's learning rate is not stable far from that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

__all__ = ["MODES", "Mode", "Rewards", "epsilon_at", "kappa_of"]

Mode = Literal["delta", "smdp", "slowdown"]
MODES: tuple[Mode, ...] = ("delta", "smdp", "slowdown")

WINDOW_S = 60.0
STD_WANTED = 0.5
LEAST, MOST = -5.0, 1.0  # of the logarithm in ``slowdown``


class Rewards:
    """Records of ended tasks, and the rewards that follow from them."""

    def __init__(self, mode: Mode, *, gamma: float = 0.8, tau_s: float = 60.0) -> None:
        self.mode: Mode = mode
        self.kappa = 1.0
        self._gamma = gamma
        self._tau_s = tau_s
        self._ends: deque[float] = deque()
        self._new = 0
        self._last: tuple[float, float] | None = None  # the last decision: now, throughput

    def begin(self) -> None:
        """A new history."""
        self._ends.clear()
        self._new = 0
        self._last = None

    def ended(self, at: float, *, ok: bool) -> None:
        """A task has ended; failed ones do not count as throughput."""
        if ok:
            self._ends.append(at)
            self._new += 1

    def of_task(self, response_s: float, ideal_s: float, *, ok: bool) -> float:
        """``slowdown``: the reward of the placement of a task that has ended."""
        if not ok or not ideal_s > 0.0:
            return self.kappa * LEAST
        return self.kappa * float(np.clip(-math.log(response_s / ideal_s), LEAST, MOST))

    def interval(self, now: float) -> tuple[float, float] | None:
        """``delta``, ``smdp``: (reward, discount) of the time since the last call; None: the
        first."""
        throughput = self._throughput(now)
        last, self._last = self._last, (now, throughput)
        new, self._new = self._new, 0
        if last is None:
            return None
        if self.mode == "smdp":
            return self.kappa * new, math.exp(-(now - last[0]) / self._tau_s)
        return self.kappa * (throughput - last[1]), self._gamma

    def _throughput(self, now: float) -> float:
        """Tasks completed in the minute before ``now``, per minute."""
        while self._ends and self._ends[0] <= now - WINDOW_S:
            self._ends.popleft()
        return len(self._ends) * 60.0 / WINDOW_S


def kappa_of(rewards: Sequence[float]) -> float:
    """The scale that gives unscaled ``rewards`` a standard deviation of 0.5; 1 if they have
    none."""
    deviation = float(np.std(rewards)) if len(rewards) else 0.0
    return STD_WANTED / deviation if deviation > 0.0 else 1.0


def epsilon_at(step: int, start: float, end: float, steps: int) -> float:
    """Share of random actions at ``step``: from ``start`` to ``end`` linearly over ``steps``."""
    if steps <= 0:
        return end
    return start + (end - start) * min(step / steps, 1.0)
