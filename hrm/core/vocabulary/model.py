"""The nouns of HRM: what is requested, what is offered, and what is known of each.

A *node* is partitioned into *resource units* (RUs): vcores, memory and at most one GPU's memory. A
*container* is one placed thing, for Spark an executor. An *application* is a driver with its
containers; it is of class STREAM or BATCH. Quantities are whole numbers: vcores, MiB.

Source: HRM paper, sections 3.1 (RUs) and 4.1 (records RS and RT).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from hrm.core.vocabulary.quick import quick, record

__all__ = [
    "DRIVER_PREFIX",
    "NOTHING",
    "NO_LAUNCH",
    "ApplicationId",
    "ApplicationState",
    "ContainerEnd",
    "ContainerId",
    "ContainerRequest",
    "ContainerSpec",
    "ContainerState",
    "ContainerStatus",
    "EndCause",
    "Followed",
    "Gpu",
    "LaunchContext",
    "NodeName",
    "NodeState",
    "Progress",
    "ResourceUnit",
    "ResourceUnitId",
    "Resources",
    "Shortcut",
    "StageProgress",
    "Usage",
    "WorkloadClass",
    "container_id_of",
    "is_driver",
]

DRIVER_PREFIX = "driver-"

ApplicationId = NewType("ApplicationId", str)
ContainerId = NewType("ContainerId", str)
NodeName = NewType("NodeName", str)
ResourceUnitId = NewType("ResourceUnitId", str)


@dataclass(frozen=True, slots=True)
class Followed:
    """The newest epoch that one has followed, and its id; see ``hrm.core.master.epochs``."""

    epoch: int
    epoch_id: str = ""


class WorkloadClass(enum.Enum):
    """What HRM treats differently: streams never end and must not wait, batch does both."""

    __hash__ = object.__hash__  # members are single: as good as hashing names, and much faster

    BATCH = "batch"
    STREAM = "stream"


class ApplicationState(enum.Enum):
    """The life of an application; ``core.vocabulary.transitions`` holds the table."""

    __hash__ = object.__hash__  # members are single: as good as hashing names, and much faster

    SUBMITTED = "submitted"
    RUNNING = "running"
    DETACHED = "detached"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def ended(self) -> bool:
        return self in _ENDED_APPLICATION


_ENDED_APPLICATION = frozenset(
    {ApplicationState.SUCCEEDED, ApplicationState.FAILED, ApplicationState.KILLED}
)


class ContainerState(enum.Enum):
    """The life of a container; ``core.vocabulary.transitions`` holds the table."""

    __hash__ = object.__hash__  # members are single: as good as hashing names, and much faster

    PENDING = "pending"
    ASSIGNED = "assigned"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class NodeState(enum.Enum):
    __hash__ = object.__hash__  # members are single: as good as hashing names, and much faster

    ALIVE = "alive"
    DRAINING = "draining"
    LOST = "lost"


class EndCause(enum.Enum):
    """Why a container ended."""

    __hash__ = object.__hash__  # members are single: as good as hashing names, and much faster

    EXITED = "exited"
    RELEASED = "released"
    MEMORY_LIMIT = "memory-limit"
    NODE_LOST = "node-lost"
    LAUNCH_FAILED = "launch-failed"
    KILLED = "killed"
    LOST = "lost"
    PREEMPTED = "preempted"
    DISK_LIMIT = "disk-limit"
    GPU_MEMORY_LIMIT = "gpu-memory-limit"
    UNSUITABLE = "unsuitable"


@quick
@dataclass(frozen=True, slots=True)
class Resources:
    """What a container holds or an RU offers: vcores, memory and device memory in MiB."""

    vcores: int
    memory_mib: int
    gpu_memory_mib: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.vcores + other.vcores,
            self.memory_mib + other.memory_mib,
            self.gpu_memory_mib + other.gpu_memory_mib,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.vcores - other.vcores,
            self.memory_mib - other.memory_mib,
            self.gpu_memory_mib - other.gpu_memory_mib,
        )

    def __str__(self) -> str:
        gpu = f", {self.gpu_memory_mib} MiB device memory" if self.gpu_memory_mib else ""
        cores = "1 vcore" if self.vcores == 1 else f"{self.vcores} vcores"
        return f"{cores}, {self.memory_mib} MiB{gpu}"


NOTHING = Resources(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a node. ``numa`` is -1 where the machine does not report it.

    A ``declared`` one exists in a setting alone: it is scheduled, shown as declared, and backed by
    no device.
    """

    index: int
    memory_mib: int
    numa: int = -1
    uuid: str = ""
    name: str = ""
    declared: bool = False

    def __str__(self) -> str:
        what = f"GPU {self.index}, {self.name or 'unnamed'}, {self.memory_mib} MiB"
        return f"{what} (declared)" if self.declared else what


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUnit:
    """A part of a node. ``run_limit``: most containers that may run at once (section 3.3).

    ``cpus`` are the CPU numbers bound to the unit; empty means not pinned.

    ``pool`` names the unit whose vcores and memory this one shares; empty: its own. The capacity of
    a unit that shares is what it can use at most; ``own_capacity`` is what it adds to its node.

    ``gpu_only``: no container without device memory may hold what is bound to the GPU.
    ``draining``: takes no new containers until those that run there have ended; then the node is
    partitioned again.
    """

    unit_id: ResourceUnitId
    capacity: Resources
    run_limit: int
    cpus: tuple[int, ...] = ()
    gpu: Gpu | None = None
    pool: ResourceUnitId = ResourceUnitId("")
    gpu_only: bool = False
    draining: bool = False

    @property
    def own_capacity(self) -> Resources:
        """What counts when the units of a node are added up: shared cores only once."""
        return self.own(self.capacity)

    def own(self, resources: Resources) -> Resources:
        """The part of ``resources`` that no other unit counts as well."""
        return Resources(0, 0, resources.gpu_memory_mib) if self.pool else resources


SHUFFLE_SERVICE_OPTION = "-Dspark.shuffle.service.enabled=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """How the executors of one application start. Opaque to the core; holds a secret, so never
    stored and never printed.

    ``decommissions``: on SIGPWR they finish their tasks, hand their data over and end; others just
    end. ``driver``: not empty where this is no executor but a driver; what its node must know.
    """

    driver_url: str = ""
    spark_version: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    java_options: tuple[str, ...] = ()
    extra_class_path: tuple[str, ...] = ()
    decommissions: bool = False
    driver: str = field(default="", repr=False)

    @property
    def shuffle_service(self) -> bool:
        """Do they need a shuffle service on their node?"""
        return SHUFFLE_SERVICE_OPTION in self.java_options


NO_LAUNCH = LaunchContext()


@record
class ContainerRequest:
    """One container an application requests. The AppMaster names it, so a repeated request is
    harmless.

    ``expected_duration_s``: estimated run time; 0 where unknown. ``gpus``: 0 or 1; one GPU with no
    device memory named in ``resources`` is a whole GPU, alone. ``hosts``: where its data lies, the
    most of it first; ``near``: the nodes that these are; see ``hrm.core.master.locality``.
    """

    executor_id: str
    resource_profile_id: int
    resources: Resources
    heap_mib: int = 0
    expected_duration_s: float = 0.0
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    locality_wait_s: float = 0.0
    near: tuple[NodeName, ...] = ()


@record
class ContainerSpec:
    """All that a node needs of a container. ``user``: the submitter's own claim."""

    container_id: ContainerId
    application_id: ApplicationId
    executor_id: str
    resource_profile_id: int
    workload_class: WorkloadClass
    resources: Resources
    unit_id: ResourceUnitId
    heap_mib: int = 0
    expected_duration_s: float = 0.0
    launch: LaunchContext = NO_LAUNCH
    user: str = ""


@record
class ContainerEnd:
    """How a container ended. ``exit_code`` is -1 where there is none."""

    cause: EndCause
    exit_code: int = -1
    message: str = ""


@record
class Usage:
    """What a container or node uses: percent of one CPU, MiB, number of processes.

    ``disk_mib``: of the work directory, logs included; ``disk_free_mib``: of a node, what is left.
    """

    cpu_percent: float = 0.0
    memory_mib: int = 0
    processes: int = 0
    memory_total_mib: int = 0
    load_1m: float = 0.0
    disk_mib: int = 0
    disk_free_mib: int = 0
    gpu_memory_mib: int = 0


@record
class Shortcut:
    """A way by which a node starts executors faster, such as an archive of classes.

    ``state`` is one of off, waiting, building, ready, failed; ``note`` has details. ``used`` counts
    the starts since the agent's own that took it, ``missed`` those that could not, and
    ``why_missed`` is the latest reason.
    """

    name: str
    state: str
    note: str = ""
    used: int = 0
    missed: int = 0
    why_missed: str = ""


@record
class ContainerStatus:
    """What a node reports, and what the master sends on, about one container.

    Times are seconds since the epoch; 0: not yet.
    """

    container_id: ContainerId
    application_id: ApplicationId
    executor_id: str
    resource_profile_id: int
    workload_class: WorkloadClass
    resources: Resources
    state: ContainerState
    node: NodeName = NodeName("")
    unit_id: ResourceUnitId = ResourceUnitId("")
    requested_at_s: float = 0.0
    assigned_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    end: ContainerEnd | None = None
    stdout_url: str = ""
    stderr_url: str = ""
    usage: Usage | None = None
    expected_duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    stage_id: int
    attempt: int = 0
    name: str = ""
    tasks_total: int = 0
    tasks_running: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    mean_task_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What an application does, as its driver counts it."""

    active_jobs: int = 0
    active_stages: int = 0
    completed_stages: int = 0
    tasks_total: int = 0
    tasks_running: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    mean_task_s: float = 0.0
    streaming_queries: tuple[str, ...] = ()
    stages: tuple[StageProgress, ...] = ()


def is_driver(application_id: ApplicationId) -> bool:
    """Is this what holds the driver of a submission? It is named after it (Standalone's form)."""
    return application_id.startswith(DRIVER_PREFIX)


def container_id_of(application_id: ApplicationId, executor_id: str) -> ContainerId:
    """The id of an application's container: known to both sides without a message."""
    return ContainerId(f"{application_id}-x{executor_id}")
