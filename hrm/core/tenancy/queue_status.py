"""What is shown of a queue."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hrm.core.tenancy.observed_fairness import LeafObservation
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ApplicationId, ContainerId, Resources
from hrm.core.vocabulary.priority_class import PriorityClass

__all__ = [
    "HELD_BY_LIMITS",
    "WITHOUT_PLACE",
    "ClassCount",
    "QueueStatus",
    "QueueWait",
    "Supposed",
    "Supposition",
    "WaitReason",
]


class WaitReason(enum.Enum):
    """Why an application's containers wait; the whole set, also of the metric."""

    NONE = "none"
    MAX_RUNNING = "max-running"
    QUEUE_SHARE = "queue-share"
    QUEUE_MAXIMUM = "queue-maximum"
    USER_LIMIT = "user-limit"
    DRIVER_SHARE = "driver-share"
    BEHIND_OTHERS = "behind-others"
    GANG = "gang"
    NO_PLACE = "no-place"
    AT_NODE = "at-node"
    RECOVERING = "recovering"


HELD_BY_LIMITS = frozenset(
    {
        WaitReason.MAX_RUNNING,
        WaitReason.QUEUE_MAXIMUM,
        WaitReason.USER_LIMIT,
        WaitReason.DRIVER_SHARE,
    }
)
"""A limit of its queue or user holds it back: more nodes would not start it."""
WITHOUT_PLACE = frozenset({WaitReason.NO_PLACE, WaitReason.GANG})
"""It may start by its queue, and there is no place for it."""


@dataclass(frozen=True, slots=True)
class QueueWait:
    """An application that waits: from which ``position`` of its queue, the first is 1; with how
    many containers; why, as a reason of the set and as a sentence. ``tenths``: its priority in an
    order of classes, None in another."""

    application_id: ApplicationId
    user: str
    position: int
    containers: int
    reason: WaitReason
    why: str
    tenths: int | None = None


@dataclass(frozen=True, slots=True)
class PlatformPart:
    """Of a leaf's share: ``cores`` of one platform that it may have, ``held`` by its containers
    there, or meant for it; ``affinity``: see ``core.tenancy.platform_division``."""

    platform: str
    cores: int
    held: float
    affinity: float


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Of a leaf in an order of classes: how many live applications are of one, and of them how many
    wait for something."""

    priority_class: PriorityClass
    applications: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A queue at one moment, with all below it.

    ``share``: what it may have now, by what all queues want; ``used``: what its containers hold at
    nodes; ``borrowed``: of that what is beyond its guarantee; ``pending``: what it waits for.
    ``running``: applications that hold containers or may get some. ``waiting``: of a leaf,
    the first of ``waiting_total``.
    ``past_use``: what it has held beyond its guarantee, as a part of the cluster; the past fades.
    ``observed``: of a leaf, how it has been served lately. ``longest_wait_s``: of a leaf, of what
    has not started yet. ``platforms``: of a leaf that holds or wants something, where shares are
    divided over several. ``classes``: of a leaf in an order of classes.
    """

    spec: QueueSpec
    is_leaf: bool
    guaranteed: Governed
    maximum: Governed
    share: Governed
    used: Governed
    borrowed: Governed
    pending: Governed
    running: int
    applications: int
    past_use: float = 0.0
    waiting: tuple[QueueWait, ...] = ()
    waiting_total: int = 0
    observed: LeafObservation | None = None
    longest_wait_s: float = 0.0
    platforms: tuple[PlatformPart, ...] = ()
    classes: tuple[ClassCount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposition:
    """So many like containers, requested in a queue by a user; empty: by one without limits."""

    queue: str
    executors: int
    resources: Resources
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """What would become of so many like containers, were they requested in a queue now.

    ``at_once``: how many would start on what is free; ``by_preemption``: for how many others would
    be ``preempted``, and start within ``grace_s``; ``later``: how many would wait for ends, the
    first of them for ``later_s`` by the estimates of units, None where nobody can say. ``why``: the
    reason for those that wait.
    """

    at_once: int
    by_preemption: int
    later: int
    preempted: tuple[tuple[ContainerId, ApplicationId], ...]
    grace_s: float
    later_s: float | None
    why: str
