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

from hrm.core.vocabulary.bounds import YIELD_GRACE_S
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.quick import quick, record

__all__ = [
    "DRIVER_PREFIX",
    "NOTHING",
    "NO_LAUNCH",
    "NO_UNIT",
    "WORKLOAD_PREFIX",
    "ApplicationId",
    "ApplicationState",
    "ContainerEnd",
    "ContainerId",
    "ContainerRequest",
    "ContainerSpec",
    "ContainerState",
    "ContainerStatus",
    "EndCause",
    "ExecutorTasks",
    "FirstExecutors",
    "Followed",
    "Gpu",
    "LaunchContext",
    "LaunchFile",
    "NodeName",
    "NodeState",
    "Progress",
    "ResourceUnit",
    "ResourceUnitId",
    "Resources",
    "Shortcut",
    "StageProgress",
    "TrainingReport",
    "Usage",
    "WorkloadClass",
    "application_of",
    "container_id_of",
    "is_driver",
]

DRIVER_PREFIX = "driver-"
WORKLOAD_PREFIX = "pipelines-"
"""What the ids of applications begin with whose containers run tasks of pipelines."""

ApplicationId = NewType("ApplicationId", str)
ContainerId = NewType("ContainerId", str)
NodeName = NewType("NodeName", str)
ResourceUnitId = NewType("ResourceUnitId", str)

NO_UNIT = ResourceUnitId("")


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
    MISPLACED = "misplaced"


@quick
@dataclass(frozen=True, slots=True)
class Resources:
    """What a container holds or an RU offers: vcores, memory and device memory in MiB.

    ``gpus``: over how many GPUs a container's device memory is spread, evenly; sums do not add it.
    """

    vcores: int
    memory_mib: int
    gpu_memory_mib: int = 0
    gpus: int = 1

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
        gpu += f" over {self.gpus} GPUs" if self.gpus > 1 else ""
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

    ``capacity`` is what the unit has by the node's layout or, where that is more, what its
    containers hold. ``borrowed`` is the part of it that is beyond the layout, ``lent`` the part
    that containers of other units hold still. Both are nothing but while containers of an earlier
    layout run; so there is a ``target`` capacity and a ``current`` one.

    ``cpus`` are the CPU numbers bound to the unit; empty means not pinned.

    ``pool`` names the unit whose vcores and memory this one shares; empty: its own. The capacity of
    a unit that shares is what it can use at most; ``own_capacity`` is what it adds to its node.

    ``gpu``: the first of its GPUs, ``more_gpus`` the others. A container that uses the GPUs of a
    unit uses all of them, and takes an equal part of each; ``run_limit`` counts for each.

    ``gpu_only``: no container without device memory may hold what is bound to the GPU.
    ``draining``: takes no new containers; it goes when those that run there have ended.
    ``preempts``: does its node preempt batch there for streams that wait? So the node has said.
    ``yield_grace_s``: how long a container there that yields has to end, as its node has said, too.
    """

    unit_id: ResourceUnitId
    capacity: Resources
    run_limit: int
    cpus: tuple[int, ...] = ()
    gpu: Gpu | None = None
    pool: ResourceUnitId = ResourceUnitId("")
    gpu_only: bool = False
    draining: bool = False
    lent: Resources = NOTHING
    borrowed: Resources = NOTHING
    more_gpus: tuple[Gpu, ...] = ()
    preempts: bool = True
    yield_grace_s: float = YIELD_GRACE_S

    @property
    def target(self) -> Resources:
        """What it has once no container of an earlier layout runs."""
        return self.capacity - self.borrowed

    @property
    def current(self) -> Resources:
        """What its containers may hold now."""
        return self.capacity - self.lent

    @property
    def takes_more(self) -> bool:
        """May containers come? Whatever is freed at a unit that borrows is another's."""
        return not self.draining and self.borrowed == NOTHING

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of its GPUs, near each other."""
        return () if self.gpu is None else (self.gpu, *self.more_gpus)

    @property
    def gpus_used(self) -> int:
        """How many GPUs a container with device memory is to use to be here."""
        return 1 + len(self.more_gpus)

    @property
    def own_capacity(self) -> Resources:
        """What counts when the units of a node are added up: shared cores only once."""
        return self.own(self.target)

    def own(self, resources: Resources) -> Resources:
        """The part of ``resources`` that no other unit counts as well."""
        return Resources(0, 0, resources.gpu_memory_mib) if self.pool else resources


SHUFFLE_SERVICE_OPTION = "-Dspark.shuffle.service.enabled=true"


@record
class LaunchFile:
    """A file that an executor needs in its working directory before its JVM starts.

    ``name``: of the file there; of an archive, of the directory that it is unpacked to.
    ``archive``: the archive's own name, whose end says of what kind it is; empty: it is none.
    """

    sha256: str
    size_bytes: int
    name: str
    archive: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """How the executors of one application start. Opaque to the core; holds a secret, so never
    stored and never printed.

    ``decommissions``: on SIGPWR they finish their tasks, hand their data over and end; others just
    end. ``decommission_signal``: the signal in its place, without "SIG"; empty: SIGPWR it is.
    ``driver``: not empty where this is no executor but a driver; what its node must know.
    ``worker``: the same of a worker of pipelines.
    ``files``: in the working directory before the start; the master keeps their contents.
    """

    driver_url: str = ""
    spark_version: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    java_options: tuple[str, ...] = ()
    extra_class_path: tuple[str, ...] = ()
    decommissions: bool = False
    decommission_signal: str = ""
    driver: str = field(default="", repr=False)
    worker: str = field(default="", repr=False)
    files: tuple[LaunchFile, ...] = ()

    @property
    def shuffle_service(self) -> bool:
        """Do they need a shuffle service on their node?"""
        return SHUFFLE_SERVICE_OPTION in self.java_options


NO_LAUNCH = LaunchContext()


@record
class ContainerRequest:
    """One container an application requests. The AppMaster names it, so a repeated request is
    harmless.

    ``expected_duration_s``: estimated run time; 0 where unknown. ``gpus``: how many; with no device
    memory named in ``resources`` they are whole GPUs, alone. ``hosts``: where its data lies, the
    most of it first; ``near``: the nodes that these are; see ``hrm.core.master.locality``.
    ``platform``: until ``platform_until_s`` it is placed on nodes of this platform alone, where its
    queue has a part left; empty: anywhere; see ``hrm.core.master.platform_shares``. ``place``: the
    unit where it stands first, as the replacement of a container that was preempted there; set by
    the master alone, see ``hrm.core.master.places``. ``yields``: it uses what is idle, and ends
    soon when anything else wants that, see ``hrm.core.queue.yielding``; what a stream or a driver
    requests does not yield. ``yields_on_loan``: it does so where its queue has been lent what it
    takes.
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
    platform: str = ""
    platform_until_s: float = 0.0
    place: ResourceUnitId = NO_UNIT
    yields: bool = False
    yields_on_loan: bool = False

    @property
    def prefers(self) -> bool:
        """Are there nodes that it would rather be on than on others?"""
        return bool(self.near or self.platform)

    def prefers_until_s(self, requested_at_s: float) -> float:
        """Until when it waits for capacity there, and is placed nowhere else."""
        near_s = requested_at_s + self.locality_wait_s if self.near else 0.0
        return max(near_s, self.platform_until_s if self.platform else 0.0)


@record
class FirstExecutors:
    """What a submitted driver needs on nodes to begin its work: ``count`` executors of
    ``resources`` each, with a GPU each where ``gpus`` is 1.

    ``stated``: by ``spark.hrm.gang.min`` or ``spark.hrm.stream.min``, so that the driver is of no
    use without them. Otherwise one executor is assumed, of the submission's size. ``requires``:
    what a node must meet to get them; None: nothing.
    """

    count: int
    resources: Resources
    gpus: int = 0
    stated: bool = False
    requires: NodeRequirement | None = None


@record
class ContainerSpec:
    """All that a node needs of a container. ``user``: the submitter's own claim.

    ``stands_first``: where it waits, it goes before other batch (``UnitQueue.enqueue``).
    ``yields``: see ``ContainerRequest``. ``application_name``: the application's, as it registered.
    """

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
    stands_first: bool = False
    yields: bool = False
    application_name: str = ""


@record
class ContainerEnd:
    """How a container ended. ``exit_code`` is -1 where there is none.

    ``lost_host``: the host that disappeared with it, as its executors name it to Spark; empty where
    it has not, or may live. Only the master knows.
    """

    cause: EndCause
    exit_code: int = -1
    message: str = ""
    lost_host: str = ""


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

    Times are seconds since the epoch; 0: not yet. ``preempted``: it was ordered to end for a stream
    that waits at its unit. ``stands_first``: see ``ContainerSpec``. Only nodes report these two.
    ``yields``: see ``ContainerRequest``.
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
    preempted: bool = False
    stands_first: bool = False
    yields: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTasks:
    """Tasks of one stage that ended well on one executor, since the previous report: at least one.

    ``stage``: the same whenever the application runs. ``run_s``: above 0, and ``input_bytes``: what
    they read, 0 where that is not known; of all of them together.
    """

    executor_id: str
    stage: str
    tasks: int
    run_s: float
    input_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """One epoch of a model that an application trains, as its driver says with ``hrm.report``.

    ``loss`` and ``accuracy``: as stated, which may be no number; None: not stated. ``seconds``:
    since the report before, 0 of the first. ``epochs``: how many there will be at most, 0: not
    stated.
    """

    epoch: int
    loss: float
    accuracy: float | None = None
    seconds: float = 0.0
    epochs: int = 0


def is_driver(application_id: ApplicationId) -> bool:
    """Is this what holds the driver of a submission? It is named after it (Standalone's form)."""
    return application_id.startswith(DRIVER_PREFIX)


def container_id_of(application_id: ApplicationId, executor_id: str) -> ContainerId:
    """The id of an application's container: known to both sides without a message."""
    return ContainerId(f"{application_id}-x{executor_id}")


def application_of(container_id: ContainerId) -> ApplicationId:
    """Whose container this is; an id of another form is an application by itself."""
    return ApplicationId(container_id.rpartition("-x")[0] or container_id)
