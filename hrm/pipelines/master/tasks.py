"""Pipelines at the master, live: carries out what ``Workloads`` decides.

Everything runs on the master's loop. Watchers and workers have bounded queues; one that overflows
is disconnected, reconnects, and gets the full state again. Inputs go to a worker piece by piece
before the order to run them, and results come back the same way before their end is reported.

On the wire, the number of an attempt contains the master's epoch, so that a worker that still has a
task of an earlier master, under an id that a client has reused, can distinguish the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from hrm import clock
from hrm.config import MasterSettings
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, ContainerId, LaunchContext, NodeName
from hrm.core.vocabulary.ownership import denied, is_owner
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.errors import (
    AlreadyExists,
    HrmError,
    InvalidConfig,
    LimitReached,
    NotFound,
    Unavailable,
)
from hrm.master.interpreter import Interpreter, NoticeForwarder
from hrm.master.node_policies import NodePolicies
from hrm.master.policy_service import cluster_policy
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import ClusterBounds, PipelineCluster, TaskRecord
from hrm.pipelines.core.model import ClusterPolicy, PipelineSpec, ResultFormat, TaskId, TaskSpec
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.table import NodeRow
from hrm.pipelines.core.workload import WorkerSize, WorkloadKey, size_for, workload_id
from hrm.pipelines.core.workloads import (
    AskMaster,
    CompleteOpening,
    FollowCommand,
    ListenTo,
    ReportToMaster,
    StopListeningTo,
    Workloads,
    WorkloadStep,
)
from hrm.pipelines.master.result_files import PipelineFiles
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.policies.guard import GuardRegistry
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import policy_pb2
from hrm.wire import pipeline_stream
from hrm.wire import pipelines as pw
from hrm.wire.pipeline_stream import Joining

__all__ = ["PipelineTasks", "Watcher", "WorkerStream", "bounds_of_workloads", "pipeline_policy"]

CALL_TIMEOUT_S = 15.0
TICK_INTERVAL_S = 0.5
_WATCHED_MAX = 10_000
_FORGOTTEN_AT_ONCE = 100
_ORDERS_MAX = 10_000
"""More than a node's maximum of tasks, and withdrawals of them."""
_ATTEMPTS_MAX = 1 << 10
"""Per task; above both limits on losses."""
_OPEN_SWEPT = 1_000
"""Where more tasks of one application are remembered, those that have ended are forgotten."""
_EPOCHS = 1 << 20
"""Epochs wrap around here, so that an attempt within an epoch has 30 bits."""
_MEMORY_MIB = 65_536.0
"""The scale of a node's memory in estimates."""
log = structlog.get_logger("master.pipelines")


def pipeline_policy(settings: MasterSettings, guards: GuardRegistry, *, seed: int) -> ClusterPolicy:
    """The cluster policy of the settings; a learned one is registered with ``guards``.

    Raises:
        InvalidConfig: there is no policy of that name, or its model is missing or damaged.
    """
    try:
        return cluster_policy(
            settings.pipeline_policy,
            guards=guards,
            state_dir=settings.state_dir,
            heartbeat_s=settings.heartbeat_interval_s,
            seed=seed,
        )
    except NotFound as error:
        raise InvalidConfig(f"pipeline_policy: {error.message}") from error


def bounds_of_workloads(settings: MasterSettings) -> WorkloadBounds:
    """The bounds that are settings have the settings' values."""
    return WorkloadBounds(
        workers_max=settings.pipeline_workers_max,
        worker_idle_s=settings.pipeline_worker_idle_s,
        worker_cores=settings.pipeline_worker_cores,
        worker_memory_mib=settings.pipeline_worker_memory_mib,
    )


async def _no_groups(_user: str) -> tuple[str, ...]:
    return ()


@dataclass(slots=True, eq=False)
class Watcher:
    """A client that watches ``open`` tasks. ``overflowed``: it was too slow and misses updates."""

    open: set[TaskId]
    updates: deque[pb.PipelineTaskUpdate] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    overflowed: bool = False

    def put(self, update: pb.PipelineTaskUpdate) -> None:
        if len(self.updates) >= _WATCHED_MAX + len(self.open):
            self.overflowed = True
        else:
            self.updates.append(update)
        self.changed.set()


@dataclass(frozen=True, slots=True)
class _Proof:
    """A worker's proof of a result, which only the client can verify."""

    kind: ResultFormat
    proof: bytes
    placement: int


_NO_PROOF = _Proof(ResultFormat.PICKLE, b"", 0)


class WorkerStream:
    """The stream to one worker: orders in sequence; an input is read when it is due."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.queue: asyncio.Queue[m.PlaceTask | pb.MasterPipelineMessage | None] = asyncio.Queue()
        self.closed = False
        self.stream_ended = asyncio.Event()
        """Set with ``closed``: the handler ends the stream, whatever it waits for."""

    def put(self, what: m.PlaceTask | pb.MasterPipelineMessage) -> None:
        if self.closed:
            return
        if self.queue.qsize() >= _ORDERS_MAX:
            log.warning("a worker does not keep up; it must reconnect", orders=_ORDERS_MAX)
            self.close()
            return
        self.queue.put_nowait(what)

    def close(self) -> None:
        self.closed = True
        self.stream_ended.set()
        self.queue.put_nowait(None)


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Code:
    """What is sent with a task besides its input. Tasks of the same code share one."""

    raw: bool
    files: dict[str, bytes]


class PipelineTasks:
    """All workloads of this master.

    Invariant: ``_code`` has an entry for each live task; a live task's input is in ``files``.
    """

    def __init__(
        self,
        settings: MasterSettings,
        master: Interpreter,
        *,
        policy: ClusterPolicy,
        token_of: Callable[[str, str], str],
    ) -> None:
        """``token_of``: the token that an application has of its own, by its id and its user.

        Raises:
            InvalidConfig: the stored modes of node policies are damaged.
        """
        self._master = master
        self._token_of = token_of
        self._attempts_before = master.core.epoch % _EPOCHS * _ATTEMPTS_MAX
        self._policy = policy
        self._estimates = Stdm(memory_mib=_MEMORY_MIB)
        self._bounds = ClusterBounds(
            queue_limit=settings.pipeline_queue_limit,
            attempts_limit=settings.pipeline_attempts,
            node_timeout_s=settings.node_timeout_s,
            ended_kept=settings.pipeline_ended_kept,
        )
        self.workloads = Workloads(
            self._new_cluster,
            self._new_id,
            bounds_of_workloads(settings),
            epoch=lambda: master.core.epoch,
        )
        directory: Path = settings.state_dir / "pipelines"
        self.files = PipelineFiles(directory, settings.pipeline_held_mib << 20)
        self.payload_bytes_max = settings.pipeline_payload_mib << 20
        self.streams: dict[NodeName, WorkerStream] = {}
        self.policies = NodePolicies(settings.state_dir, self._order_all)
        self.groups_of: Callable[[str], Awaitable[tuple[str, ...]]] = _no_groups
        """Of a user, for the rules that choose its queue."""
        self._ids = itertools.count(1)
        self._opening: dict[int, asyncio.Future[ApplicationId]] = {}
        self._opening_count = itertools.count(1)
        self._calls: set[asyncio.Task[None]] = set()
        self._watchers: dict[TaskId, list[Watcher]] = {}
        self._last: dict[TaskId, pb.PipelineTaskUpdate] = {}
        """For each known task, where it is or how it ended."""
        self._owners: dict[TaskId, str] = {}
        """For each known task, the digest of its client's ownership key."""
        self._code: dict[TaskId, _Code] = {}
        self._keys: dict[TaskId, bytes] = {}
        """Of live tasks; each is sent only to the worker that runs the task."""
        self._proofs: dict[TaskId, _Proof] = {}
        """Of results that have been received and whose ends are about to be reported."""
        self.has_ended: Callable[[str], bool] = lambda _scope: False
        """Has an application or submission with a token of its own ended?"""
        self._open_of: dict[str, set[TaskId]] = {}
        """By these, the tasks that they have submitted; some may have ended."""
        self._arriving: set[TaskId] = set()
        """Tasks whose inputs are being written; the core does not know them yet."""
        self._shared: WeakValueDictionary[bytes, _Code] = WeakValueDictionary()

    @property
    def policy(self) -> ClusterPolicy:
        """What chooses the worker of a task."""
        return self._policy

    def _new_cluster(self, key: WorkloadKey, ended: dict[TaskId, TaskRecord]) -> PipelineCluster:
        bounds = replace(self._bounds, node_tasks_limit=key.size.slots)
        return PipelineCluster(self._policy, self._estimates, bounds=bounds, ended=ended)

    def _new_id(self, now: float) -> ApplicationId:
        return workload_id(now, self._master.core.epoch, next(self._ids))

    def _has_gpus(self) -> bool:
        nodes = self._master.core.master_state.nodes.values()
        return any(unit.gpu is not None for node in nodes for unit in node.units)

    def size_of(self, pipeline: PipelineSpec) -> WorkerSize:
        """What a worker for this pipeline needs."""
        return size_for(pipeline, self.workloads.bounds, has_gpus=self._has_gpus())

    # --- steps --------------------------------------------------------------------------------

    def _carry_out(self, decide: Callable[[], list[WorkloadStep]]) -> None:
        """Carry out what the core decides.

        Raises:
            HrmError: it refuses.
        """
        try:
            steps = decide()
        except (AlreadyExists, LimitReached, NotFound, Unavailable):
            raise
        except Exception as error:
            log.critical("core of pipelines failed", exc_info=True)
            if not self._master.stopped.done():
                failed = HrmError(f"pipelines could not be processed: {error!r}")
                self._master.stopped.set_result(failed)
            return
        for step in steps:
            match step:
                case ReportToMaster():
                    self._master.submit(replace(step.event, now=clock.now()))
                case AskMaster():
                    call = asyncio.create_task(self._ask(step))
                    self._calls.add(call)
                    call.add_done_callback(self._calls.discard)
                case ListenTo():
                    take = partial(self._notice_received, step.application_id)
                    self._master.application_outboxes[step.application_id] = NoticeForwarder(take)
                case StopListeningTo():
                    self._master.application_outboxes.pop(step.application_id, None)
                case CompleteOpening():
                    self._opened(step)
                case FollowCommand():
                    self._follow(step.command)

    async def _ask(self, step: AskMaster) -> None:
        """Make the call that a step is about, and pass on the reply."""
        master, event, app_id = self._master, step.event, step.application_id
        reply: c.Reply | c.Refuse
        try:
            if isinstance(event, e.ApplicationRegistered):
                launch = LaunchContext(
                    worker=json.dumps({"token": self._token_of(app_id, event.user)}),
                    decommissions=True,
                    decommission_signal="TERM",
                )
                groups = await self.groups_of(event.user)
                event = replace(event, launch=launch, groups=groups)
            result = await master.call(
                lambda call_id: replace(event, now=clock.now(), call_id=call_id)
            )
            reply = c.Reply(call_id=0, result=result)
        except HrmError as error:
            log.warning("a workload is refused", application=app_id, why=error.message)
            reply = c.Refuse(call_id=0, error=error)
        self._carry_out(partial(self.workloads.reply_received, app_id, reply, clock.now()))

    def _notice_received(self, application_id: ApplicationId, notice: c.Notice) -> None:
        now = clock.now()
        self._carry_out(partial(self.workloads.notice_received, application_id, notice, now))

    def _opened(self, step: CompleteOpening) -> None:
        opening = self._opening.get(step.call_id)
        if opening is None or opening.done():
            return
        if isinstance(step.result, HrmError):
            opening.set_exception(step.result)
        else:
            opening.set_result(step.result)

    async def _open(self, key: WorkloadKey) -> ApplicationId:
        """The application of this workload.

        Raises:
            HrmError: it is refused.
        """
        call_id = next(self._opening_count)
        opening = self._opening[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._carry_out(partial(self.workloads.open, call_id, key, clock.now()))
            return await asyncio.wait_for(opening, CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the master is overloaded; try again") from None
        finally:
            del self._opening[call_id]

    def _follow(self, command: m.ClusterCommand) -> None:
        match command:
            case m.PlaceTask():
                self._send(command.node, command)
            case m.CancelTask():
                attempt = self._attempt_of(command.task_id, command.attempt)
                self._send(command.node, pipeline_stream.withdrawal(attempt, command.why))
            case m.ReportPlacement():
                node = self.node_of(command.node)
                update = pipeline_stream.placement(command, node)
                self._update_watchers(command.task_id, update, last=True)
            case m.ReportTiming():
                node = self.node_of(command.node)
                update = pipeline_stream.timing_reported(command.report.timing, node)
                self._update_watchers(command.report.task_id, update)
            case m.FinishTask():
                self._finished(command)

    def node_of(self, worker: NodeName | None) -> str:
        """Where a worker runs; its own name, if that is not known any more."""
        if worker is None:
            return ""
        workload = self.workloads.of_worker.get(ContainerId(worker))
        found = None if workload is None else workload.workers.get(ContainerId(worker))
        return worker if found is None or not found.node else found.node

    async def tick_forever(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            now = clock.now()
            self._carry_out(partial(self.workloads.ticked, now))
            self._close_lost_streams()
            self._cancel_left()

    def end_with(self, scope: str, task_id: TaskId) -> None:
        """Cancel this task when the application or submission ends that has submitted it with a
        token of its own: nobody else has the key of its result."""
        self._open_of.setdefault(scope, set()).add(task_id)

    def _cancel_left(self) -> None:
        for scope, task_ids in list(self._open_of.items()):
            live = {x for x in task_ids if self._is_live(x)}
            if self.has_ended(scope):
                why = f"{scope}, which has submitted it, has ended"
                for task_id in live:
                    self.cancel(task_id, why)
                task_ids.clear()
            elif len(task_ids) > _OPEN_SWEPT:
                task_ids &= live
            if not task_ids:
                del self._open_of[scope]

    def _is_live(self, task_id: TaskId) -> bool:
        record = self.workloads.find(task_id)
        return record is not None and record.outcome is None

    def cancel(self, task_id: TaskId, why: str) -> None:
        """Raises NotFound."""
        self._carry_out(partial(self.workloads.cancel, task_id, why, clock.now()))

    def _close_lost_streams(self) -> None:
        """Close the streams of workers that have ended, or were silent for too long."""
        for name in [x for x in self.streams if not self._row_of(x)]:
            self.streams.pop(name).close()
            self.policies.left(name)

    def _row_of(self, name: NodeName) -> NodeRow | None:
        workload = self.workloads.of_worker.get(ContainerId(name))
        return None if workload is None else workload.cluster.table.nodes.get(name)

    def _send(self, node: NodeName, what: m.PlaceTask | pb.MasterPipelineMessage) -> None:
        """Sends nothing to a worker whose stream is down: it is updated when it reconnects."""
        stream = self.streams.get(node)
        if stream is not None:
            stream.put(what)

    def _order_all(self, order: policy_pb2.PolicyOrder) -> None:
        for stream in self.streams.values():
            stream.put(pipeline_stream.policy_order(order))

    # --- tasks --------------------------------------------------------------------------------

    async def submit(
        self,
        task: TaskSpec,
        payload: bytes,
        *,
        raw: bool,
        files: dict[str, bytes],
        key: bytes = b"",
        owner: str = "",
        queue: str = "",
        scope: str = "",
    ) -> None:
        """Accept a task, once its workload is admitted and its input is on the disk. ``queue``: as
        it names it; ``scope``: the application whose own token submits it.

        Raises:
            HrmError: the core or the files refuse it; nothing of it remains.
        """
        task_id = task.task_id
        self.check_owner(task_id, owner)
        if self._known(task_id):
            raise AlreadyExists(f"a pipeline task {task_id} is there already; choose another id")
        self._arriving.add(task_id)
        self._owners[task_id] = owner
        try:
            workload = await self._open(
                WorkloadKey(
                    *(task.user, queue, task.workload, task.pipeline.name, scope),
                    self.size_of(task.pipeline),
                )
            )
            await self.files.put_input(task_id, payload)
            self._code[task_id] = self._code_of(raw, files)
            self._keys[task_id] = key
            self._carry_out(partial(self.workloads.submit, workload, task, clock.now()))
        except BaseException:  # the client may also have disconnected
            self.files.drop(task_id)
            self._code.pop(task_id, None)
            self._keys.pop(task_id, None)
            self._owners.pop(task_id, None)
            raise
        finally:
            self._arriving.discard(task_id)

    def check_owner(self, task_id: TaskId, owner: str) -> None:
        """Check that the key is the task's, if there is such a task.

        Raises:
            NotOwner: it is not.
        """
        if not is_owner(self._owners.get(task_id, ""), owner):
            raise denied(f"pipeline task {task_id}", "choose another id")

    def _code_of(self, raw: bool, files: dict[str, bytes]) -> _Code:
        """Shared, so that ten thousand tasks do not hold a package of 2 MB ten thousand times."""
        digest = hashlib.sha256(b"raw" if raw else b"")
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        return self._shared.setdefault(digest.digest(), _Code(raw, files))

    def _finished(self, command: m.FinishTask) -> None:
        task_id = command.task_id
        done = command.outcome is TaskOutcome.DONE
        self.files.drop(task_id, result=not done)
        self._code.pop(task_id, None)
        self._keys.pop(task_id, None)
        proof = self._proofs.pop(task_id, _NO_PROOF)
        node = self.node_of(command.node)
        end = pipeline_stream.from_end(
            *(command.outcome, command.message, command.timings, node),
            attempt=command.attempt,
            response_s=command.response_s,
            result_bytes=self.files.size(task_id, "out"),
            result_format=pw.from_result_format(proof.kind) if done else None,
            proof=proof.proof if done else b"",
            placement=proof.placement if done else 0,
        )
        self._update_watchers(task_id, pipeline_stream.task_ended(end), last=True)
        for watcher in self._watchers.pop(task_id, ()):
            watcher.open.discard(task_id)
        log.info("task ended", task=task_id, outcome=command.outcome.value, why=command.message)
        self._forget_old()

    def _forget_old(self) -> None:
        """Drop what the core has forgotten, some at a time."""
        if len(self._last) < self.workloads.known + _FORGOTTEN_AT_ONCE:
            return
        for old in [one for one in self._last if not self._known(one)]:
            del self._last[old]
            self._owners.pop(old, None)
            self.files.drop(old)

    def _known(self, task_id: TaskId) -> bool:
        return self.workloads.find(task_id) is not None or task_id in self._arriving

    def _update_watchers(
        self, task_id: TaskId, update: pb.PipelineTaskUpdate, *, last: bool = False
    ) -> None:
        update.task_id = task_id
        update.at_s = clock.now()
        if last:
            self._last[task_id] = update
        for watcher in self._watchers.get(task_id, ()):
            watcher.put(update)

    def watch(self, task_ids: list[TaskId]) -> Watcher:
        """Watch these from now on; the first updates say where each of them is."""
        watcher = Watcher(open={one for one in task_ids if self._is_live(one)})
        places = self.workloads.places()
        for task_id in task_ids:
            why = self.workloads.explain(task_id, places)
            last = self._last.get(task_id)
            if last is None:
                last = pipeline_stream.queued(why)
                last.task_id, last.at_s = task_id, clock.now()
            watcher.put(last)
        for task_id in watcher.open:
            self._watchers.setdefault(task_id, []).append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        for task_id in watcher.open:
            others = [one for one in self._watchers.get(task_id, ()) if one is not watcher]
            if others:
                self._watchers[task_id] = others
            else:
                self._watchers.pop(task_id, None)

    # --- workers ------------------------------------------------------------------------------

    def joining(self, message: pb.NodePipelineMessage) -> Joining:
        """Read the first message of a worker's stream.

        Raises:
            InvalidRequest: it is another one, or a field is malformed.
        """
        return pipeline_stream.to_joining(message, self._attempts_before, clock.now())

    def join(self, joining: Joining) -> WorkerStream:
        """A worker has connected; its stream is to be written from its second message on.

        Raises:
            InvalidRequest: a report of a learned policy is malformed.
            NotFound: it is no worker of a live application.
        """
        name = joining.event.capacity.name
        self.policies.left(name)
        self.policies.take_report(name, joining.policies)
        stream = WorkerStream(joining.identity)
        for order in self.policies.orders.values():
            stream.put(pipeline_stream.policy_order(order))
        before = self.streams.get(name)
        self.streams[name] = stream
        if before is not None:
            before.close()
        try:
            self._reported(name, joining.event)
        except NotFound:
            self.streams.pop(name).close()
            raise
        return stream

    def _reported(self, name: NodeName, event: m.ClusterEvent) -> None:
        self._carry_out(partial(self.workloads.worker_reported, ContainerId(name), event))

    def leave(self, name: NodeName, stream: WorkerStream) -> None:
        """Its stream is down. It gets nothing new, and is lost if it does not return."""
        if self.streams.get(name) is stream:
            del self.streams[name]
            self.policies.left(name)
            with contextlib.suppress(NotFound):  # its container has ended
                self._reported(name, m.NodeDraining(now=clock.now(), name=name))

    async def take_report(self, name: NodeName, message: pb.NodePipelineMessage) -> None:
        """Take in a worker's report; returns when a piece of a result is on the disk, so that it is
        read no faster than that.

        Raises:
            InvalidRequest: a field is malformed.
        """
        if message.WhichOneof("message") == "data":
            await self._result_data(name, message.data)
            return
        report = pipeline_stream.to_report(message, name, self._attempts_before, clock.now())
        match report:
            case m.PipelineNodeReported():
                self.policies.take_report(name, message.load.policies)
                self._reported(name, report)
            case m.SubtaskReported():
                self._reported(name, report)
            case m.TaskEnded():
                self._attempt_ended(report, message.ended)

    def _is_current(self, name: NodeName, attempt: pb.PipelineAttempt) -> bool:
        record = self.workloads.find(TaskId(attempt.task_id))
        place = (name, attempt.attempt - self._attempts_before)
        if record is None or record.outcome is not None:
            return False
        return (record.node, record.attempt) == place

    def _attempt_of(self, task_id: TaskId, attempt: int) -> pb.PipelineAttempt:
        return pw.attempt_of(task_id, self._attempts_before + attempt)

    async def _result_data(self, name: NodeName, data: pb.PipelineData) -> None:
        attempt = data.attempt
        if self._is_current(name, attempt):
            task_id = TaskId(attempt.task_id)
            try:
                await self.files.add(task_id, attempt.attempt, data.offset, data.data)
            except HrmError as error:
                log.warning("no space for a result", task=task_id, why=error.message)

    def _attempt_ended(self, event: m.TaskEnded, ended: pb.PipelineAttemptEnd) -> None:
        attempt, end, result_bytes = ended.attempt, event.end, ended.end.result_bytes
        if self._is_current(event.name, attempt) and end.outcome is TaskOutcome.DONE:
            proof = _Proof(*pipeline_stream.to_proof(ended.end), attempt.attempt)
            if self.files.finish(end.task_id, attempt.attempt, result_bytes):
                self._proofs[end.task_id] = proof
            else:
                message = (
                    f"its result of {result_bytes} bytes did not arrive whole: inputs and "
                    f"results may hold pipeline_held_mib of the master's disk"
                )
                end = replace(end, outcome=TaskOutcome.FAILED, message=message)
        self._reported(event.name, replace(event, end=end))
        self._send(event.name, pipeline_stream.acknowledgement(attempt))

    def placing(self, command: m.PlaceTask) -> pb.PlacePipelineTask | None:
        """The order to run a task; None: it has ended, or been placed elsewhere, meanwhile."""
        task = command.task
        attempt = self._attempt_of(task.task_id, command.attempt)
        code = self._code.get(task.task_id)
        if code is None or not self._is_current(command.node, attempt):
            return None
        return pipeline_stream.order(
            *(attempt, task, code.files),
            raw=code.raw,
            payload_bytes=self.files.size(task.task_id, "in"),
            result_key=self._keys.get(task.task_id, b""),
        )
