"""One workload: tasks that are an application together, and the workers that are its containers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from hrm.core.messages import events as e
from hrm.core.messages.hosted import CallMaster
from hrm.core.vocabulary.model import (
    WORKLOAD_PREFIX,
    ApplicationId,
    ContainerId,
    ContainerRequest,
    LaunchContext,
    NodeName,
    Resources,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.ownership import MASTER
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.errors import HrmError, Unavailable
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import Device, PipelineSpec, TaskSpec
from hrm.pipelines.core.progress import Tally
from hrm.pipelines.core.resizing import Resizing, WorkloadView

__all__ = [
    "Worker",
    "WorkerSize",
    "Workload",
    "WorkloadKey",
    "registration",
    "size_for",
    "workload_id",
]

_NOWHERE = NodeName("")
ASKED_MAX = 60
_ASK_AGAIN_S = 1.0
GPU_WAIT_S = 2.0
"""For so long a worker waits for a part of a GPU before others do without."""


class WorkerSize(NamedTuple):
    """``gpu_memory_mib`` 0: it has no GPU."""

    vcores: int
    memory_mib: int
    gpu_memory_mib: int = 0

    @property
    def slots(self) -> int:
        """Tasks that it has at a time: one for each core, and one more next to what is on a GPU."""
        return self.vcores + bool(self.gpu_memory_mib)

    @property
    def resources(self) -> Resources:
        return Resources(self.vcores, self.memory_mib, self.gpu_memory_mib)


class WorkloadKey(NamedTuple):
    """Tasks with the same key are of one workload. ``scope``: the application or submission whose
    own token has submitted them; ``queue``: as they name it; ``labels``: of the nodes that may have
    its workers."""

    user: str
    queue: str
    workload_class: WorkloadClass
    pipeline: str
    scope: str
    size: WorkerSize
    labels: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Worker:
    """A container of a workload. ``runs``: it has connected. ``started_at_s``: its container runs
    since then. ``busy_at_s``: when it last had a task, or connected. ``adopted``: an earlier master
    has requested it, so that it may have a task before it has connected. ``leaves``: its node is
    drained. ``on_gpu``: it is to have a part of one."""

    container_id: ContainerId
    executor_id: str
    node: NodeName = _NOWHERE
    runs: bool = False
    released: bool = False
    yields: bool = False
    adopted: bool = False
    leaves: bool = False
    on_gpu: bool = False
    requested_at_s: float = math.inf
    started_at_s: float = math.inf
    busy_at_s: float = math.inf


@dataclass(slots=True, eq=False)
class Workload:
    """``started``: the master's core has admitted it. ``ending``: it is over, and so are its tasks.
    ``failures``: workers that have failed since a task last ended. ``openings``: calls that wait
    for its application, and until when. ``question``: what the master's core has been asked last,
    ``asked`` times; ``was_accepted``: by an earlier master. ``wanted``: workers, as a
    policy has said of ``sized_for``. ``needs_gpu``: some task has a step without a version for
    cores."""

    application_id: ApplicationId
    key: WorkloadKey
    cluster: PipelineCluster
    idle_since_s: float
    attaching: bool = False
    started: bool = False
    ending: bool = False
    workers: dict[ContainerId, Worker] = field(default_factory=dict)
    openings: dict[int, float] = field(default_factory=dict)
    question: e.ApplicationRegistered | e.ApplicationAttached | None = None
    asked: int = 0
    wanted: int = 0
    needs_gpu: bool = False
    sized_for: WorkloadView | None = None
    ask_again_at_s: float = math.inf
    was_accepted: bool = False
    count: int = 0
    failures: int = 0
    tally: Tally = field(default_factory=Tally)

    def view(self, workers_max: int) -> WorkloadView:
        """What a resize policy gets."""
        nodes, tally = self.cluster.table.nodes.values(), self.tally
        return WorkloadView(
            tasks=len(self.cluster.tasks),
            running=sum(len(row.placed) for row in nodes),
            workers=sum(not (x.released or x.leaves) for x in self.workers.values()),
            slots=self.key.size.slots,
            workers_max=workers_max,
            run_s=tally.ran_s / tally.completed if tally.completed else math.nan,
        )

    def size(self, resizing: Resizing, workers_max: int, now: float) -> int:
        """How many workers it wants, within the bounds of ``ResizePolicy.workers``; asked only if
        something has changed: events come by the thousand."""
        view = self.view(workers_max)
        if view != self.sized_for:
            self.sized_for = view
            said = resizing.workers(self.application_id, view, now)
            self.wanted = max(1, min(said, workers_max)) if view.tasks else 0
        return self.wanted

    def ask(self, event: e.ApplicationRegistered | e.ApplicationAttached) -> CallMaster:
        self.question, self.asked = event, 1
        return CallMaster(self.application_id, event)

    def asks_later(self, error: HrmError, now: float) -> bool:
        """Is the question to be put again, after this answer? What has been accepted before does
        not fail because the master is busy or its disk full."""
        is_known = self.attaching or self.was_accepted
        passes = isinstance(error, Unavailable) and self.asked < ASKED_MAX
        if not is_known or not passes or self.ending:
            return False
        self.ask_again_at_s = now + _ASK_AGAIN_S
        return True

    def ask_again(self, now: float) -> list[CallMaster]:
        """The question, if it is time to put it again."""
        if self.question is None or now < self.ask_again_at_s:
            return []
        self.ask_again_at_s = math.inf
        self.asked += 1
        return [CallMaster(self.application_id, self.question)]

    def take(self, task: TaskSpec) -> None:
        """A task of it is known from now on."""
        steps = task.pipeline.subtasks
        self.needs_gpu = self.needs_gpu or any(Device.CPU not in x.devices for x in steps)

    def add(self, executor_id: str) -> Worker:
        container_id = container_id_of(self.application_id, executor_id)
        worker = self.workers[container_id] = Worker(container_id, executor_id)
        return worker

    def request(self, many: int, keeps: float, now: float) -> tuple[ContainerRequest, ...]:
        """Containers for so many workers more, of which those beyond ``keeps`` yield. They are to
        have a part of a GPU, as the workload's size says, but for those that do without, because
        another has waited for one and its steps run on cores, too."""
        requests = []
        resources = self.key.size.resources
        if self.waits_for_gpu(now):
            resources = replace(resources, gpu_memory_mib=0)
        for number in range(many):
            self.count += 1
            worker = self.add(str(self.count))
            worker.yields, worker.requested_at_s = number >= keeps, now
            worker.on_gpu = bool(resources.gpu_memory_mib)
            requests.append(
                ContainerRequest(
                    executor_id=worker.executor_id,
                    resource_profile_id=0,
                    resources=resources,
                    yields=worker.yields,
                    yields_on_loan=True,
                )
            )
        return tuple(requests)

    def waits_for_gpu(self, now: float) -> list[Worker]:
        """Those that have waited for a part of a GPU while cores would do, the oldest first."""
        if self.needs_gpu or not self.key.size.gpu_memory_mib:
            return []
        return [
            x
            for x in self.workers.values()
            if x.on_gpu and not x.released and x.started_at_s == math.inf
            and now - x.requested_at_s >= GPU_WAIT_S
        ]  # fmt: skip

    def executor_of(self, name: str) -> str:
        """The number of a worker; empty: it has ended."""
        worker = self.workers.get(ContainerId(name))
        return "" if worker is None else worker.executor_id

    def place_of(self, name: NodeName) -> str:
        """A worker, as people know it."""
        worker = self.workers.get(ContainerId(name))
        if worker is None:
            return f"worker {name}"
        where = f" on {worker.node}" if worker.node else ""
        return f"worker {worker.executor_id} of {self.application_id}{where}"


def workload_id(now: float, epoch: int, number: int) -> ApplicationId:
    """The id of the ``number``-th workload of a master."""
    second = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d%H%M%S")
    return ApplicationId(f"{WORKLOAD_PREFIX}{second}-{epoch}-{number:04d}")


def size_for(pipeline: PipelineSpec, bounds: WorkloadBounds, *, has_gpus: bool) -> WorkerSize:
    """What a worker needs for any step of a pipeline. ``has_gpus``: are there nodes with GPUs? If
    not, steps that have a version for cores are run there."""
    memory_mib = max((x.memory_mib for x in pipeline.subtasks), default=0)
    memory_mib = max(bounds.worker_memory_mib, math.ceil(1.25 * memory_mib) * bounds.worker_cores)
    on_gpu = [x for x in pipeline.subtasks if Device.GPU in x.devices]
    needs = any(Device.CPU not in x.devices for x in on_gpu)
    if not on_gpu or not (has_gpus or needs):
        return WorkerSize(bounds.worker_cores, memory_mib)
    most = max(x.gpu_memory_mib or bounds.gpu_memory_mib for x in on_gpu)
    return WorkerSize(bounds.worker_cores, memory_mib, math.ceil(most / CAPS.gpu_memory_share))


def registration(
    workload: Workload, now: float, *, is_known: bool = False
) -> e.ApplicationRegistered:
    """Of its application with the master's core. ``is_known``: that has it already."""
    key = workload.key
    return e.ApplicationRegistered(
        now=now,
        call_id=0,
        application_id=workload.application_id if is_known else ApplicationId(""),
        new_id=workload.application_id,
        submission_key=workload.application_id,
        name=key.pipeline,
        user=key.user,
        queue=key.queue,
        declared_class=key.workload_class,
        launch=LaunchContext(),
        owner=MASTER,
        requires=NodeRequirement(labels=frozenset(key.labels)) if key.labels else None,
        stream_min=1 if key.workload_class is WorkloadClass.STREAM else 0,
    )
