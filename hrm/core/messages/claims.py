"""Claims of schedulers on resource units, and what becomes of them.

A scheduler proposes; the negotiator (``hrm.core.scheduling.negotiator``) decides.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple

from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import Vector, pooled_part
from hrm.core.vocabulary.model import (
    DRIVER_PREFIX,
    NO_UNIT,
    ApplicationId,
    ContainerId,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.quick import quick

__all__ = ["Claim", "Decision", "Entry", "GpuPart", "Outcome", "Proposal"]

_as_tuple = tuple.__new__  # makes a named tuple twice as fast as calling its class


class Entry(NamedTuple):
    """A container in a unit's queue.

    ``duration_s`` is its estimated run time, which does not count where it ``has_no_end``;
    ``started_at_s`` counts only while it runs; ``passed`` while it waits as batch: how many later
    ones have started before it, or stand before it, ``PASSES_MAX`` standing for more as well.
    ``place``: the unit in whose batch queue it stands first (``ContainerRequest.place``).
    ``yields``: as its request states, whatever it has become; see ``yields_now``.
    """

    container_id: ContainerId
    workload_class: WorkloadClass
    demand: Vector
    duration_s: float
    started_at_s: float = 0.0
    passed: int = 0
    place: ResourceUnitId = NO_UNIT
    yields: bool = False

    def started(self, now: float) -> Entry:
        """The same, running since ``now``."""
        return _as_tuple(Entry, (*self[:4], now, 0, NO_UNIT, self.yields))

    def overtaken(self) -> Entry:
        """The same, passed once more."""
        return self._replace(passed=min(self.passed + 1, PASSES_MAX))

    def pooled(self) -> Entry:
        """As the siblings of its unit see it."""
        return self._replace(demand=pooled_part(self.demand))

    @property
    def has_no_end(self) -> bool:
        """Is nothing gained by waiting for its end? A driver, which is never preempted, may itself
        wait for what waits."""
        is_stream = self.workload_class is WorkloadClass.STREAM
        return is_stream or self.container_id.startswith(DRIVER_PREFIX)

    @property
    def yields_now(self) -> bool:
        """Does it end for whatever else waits at its unit, and start after all of that? What has
        become a stream's does not."""
        return self.yields and not self.has_no_end

    def remaining_s(self, now: float) -> float:
        """Estimated seconds until it ends; never negative, infinite where it ``has_no_end``."""
        if self.has_no_end:
            return math.inf
        return max(0.0, self.duration_s - (now - self.started_at_s))


class Claim(NamedTuple):
    """A scheduler's claim to put one container on one unit, made on ``version`` of its row."""

    entry: Entry
    unit_id: ResourceUnitId
    version: int


class GpuPart(NamedTuple):
    """What an application may have in one round of the GPUs that one demand of it could use, where
    others want some, too.

    ``starts``: how many containers may start; ``queues``: where that is none, how many may wait at
    units.
    """

    starts: int
    queues: int


@quick
@dataclass(frozen=True, slots=True)
class Proposal:
    """The claims of one scheduling round. ``lease_token``: 0 for batch. ``gang``: how many claims,
    the first ones, must all run at once. ``must_run``: demands whose claims may not wait at a unit,
    for others have a share in what they use. ``requires``: what the nodes must
    meet; None: nothing."""

    scheduler: str
    application_id: ApplicationId
    workload_class: WorkloadClass
    claims: tuple[Claim, ...]
    lease_token: int = 0
    gang: int = 0
    must_run: frozenset[Vector] = frozenset()
    requires: NodeRequirement | None = None


class Decision(enum.Enum):
    __hash__ = object.__hash__

    RUN = "run"
    QUEUE = "queue"
    ABORT = "abort"


class Outcome(NamedTuple):
    """What became of one claim, and why where it was aborted."""

    claim: Claim
    decision: Decision
    reason: str = ""
