"""Pipelines at the master, live: carries out what ``PipelinesCore`` decides.

Everything runs on the master's loop. Watchers and workers have bounded queues; one that overflows
is disconnected, reconnects, and gets the full state again. Inputs go to a worker piece by piece
before the order to run them, and results come back the same way before their end is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from hrm import clock
from hrm.config import MasterSettings
from hrm.core.vocabulary.model import ApplicationId, ContainerId, NodeName
from hrm.core.vocabulary.ownership import denied, is_owner
from hrm.errors import HrmError, NotFound
from hrm.identity.caller import caller, check_user
from hrm.master.interpreter import Interpreter
from hrm.master.node_policies import NodePolicies
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import ClusterBounds, PipelineCluster
from hrm.pipelines.core.end_writes import EndWrites
from hrm.pipelines.core.forgetting import UNFETCHED_MAX, ForgettingOrder
from hrm.pipelines.core.model import ClusterPolicy, PipelineSpec, TaskId, TaskSpec
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.pipelines.core.pool_facts import MasterFacts
from hrm.pipelines.core.recovery import take_over
from hrm.pipelines.core.resizing import Resizing
from hrm.pipelines.core.table import NodeRow
from hrm.pipelines.core.task_record import TaskRecord
from hrm.pipelines.core.workload import WorkerSize, WorkloadKey, size_for, workload_id
from hrm.pipelines.master.estimates import EstimatesOfUsers
from hrm.pipelines.master.hosting import WorkloadHost
from hrm.pipelines.master.kept_tasks import Code, KeptTasks
from hrm.pipelines.master.placements import KeptPlacements
from hrm.pipelines.master.result_files import NO_PROOF, PipelineFiles, ResultProof
from hrm.pipelines.master.settings import bounds_of_workloads
from hrm.pipelines.master.streams import WatchedTasks, Watcher, WorkerStream
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import policy_pb2
from hrm.wire import pipeline_stream
from hrm.wire import pipelines as pw
from hrm.wire.pipeline_stream import Joining

__all__ = ["PipelineTasks"]

TICK_INTERVAL_S = 0.5
_CLEAN_INTERVAL_S = 600.0
_GIVEN_BACK_MAX = 1_000
"""Times that a task comes back from workers that were preempted, before it fails."""
_FORGOTTEN_AT_ONCE = 100
_ENDS_PART = 8
"""Ends of tasks, which are in the memory, too, may have this part of ``pipeline_held_mib``."""
_OPEN_SWEPT = 1_000
"""Where more tasks of one application are remembered, those that have ended are forgotten."""
_DONE = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE
log = structlog.get_logger("master.pipelines")


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
        resizing: Resizing | None = None,
    ) -> None:
        """``token_of``: the token that an application has of its own, by its id and its user;
        ``resizing``: how many workers a workload wants.

        Raises:
            InvalidConfig: the stored modes of node policies are damaged.
        """
        self._master = master
        self._attempts_before = m.attempts_before(clock.now())
        self.policy = policy
        self.estimates = EstimatesOfUsers(settings.state_dir / "pipelines/estimates", self._user_of)
        self._placements = KeptPlacements(policy, settings.state_dir)
        self._bounds = ClusterBounds(
            queue_limit=settings.pipeline_queue_limit,
            attempts_limit=settings.pipeline_attempts,
            given_back_limit=_GIVEN_BACK_MAX,
            node_timeout_s=settings.node_timeout_s,
            ended_kept=settings.pipeline_ended_kept,
        )
        self._facts = MasterFacts(master.core)
        held = settings.pipeline_held_mib << 20
        self._order = ForgettingOrder(settings.pipeline_ended_kept, bytes_max=held // _ENDS_PART)
        self.workloads = PipelinesCore(
            *(self._new_cluster, self._new_id, bounds_of_workloads(settings)),
            facts=self._facts,
            resizing=resizing,
        )
        self.host = WorkloadHost(master, self.workloads, token_of, self._follow)
        directory: Path = settings.state_dir / "pipelines"
        self.files = PipelineFiles(directory / "files", held, lambda: self._order.held_bytes)
        self.files.evicted = self._order.settle
        self._kept = KeptTasks(master.store, directory / "code")
        self.payload_bytes_max = settings.pipeline_payload_mib << 20
        self.streams: dict[NodeName, WorkerStream] = {}
        self.policies = NodePolicies(settings.state_dir, self._order_all, self.host.age_s)
        self._ids = itertools.count(1)
        self._ends = EndWrites[tuple[NodeName, pb.PipelineAttempt]]()
        self._writes: set[asyncio.Task[None]] = set()
        self._cleaned_s = clock.now()
        self._watchers = WatchedTasks()
        """For each known task, where it is or how it ended."""
        self._owners: dict[TaskId, str] = {}
        """For each known task, the digest of its client's ownership key."""
        self._code: dict[TaskId, Code] = {}
        self._keys: dict[TaskId, bytes] = {}
        """Of live tasks; each is sent only to the worker that runs the task."""
        self._proofs: dict[TaskId, ResultProof] = {}
        """Of results that have been received and whose ends are about to be reported."""
        self.has_ended: Callable[[str], bool] = lambda _scope: False
        """Has an application or submission with a token of its own ended?"""
        self.scopes: dict[TaskId, str] = {}
        """For known tasks, the application or submission whose own token has submitted them."""
        self._open_of: dict[str, set[TaskId]] = {}
        """By these, the tasks that they have submitted; some may have ended."""

    def _new_cluster(self, key: WorkloadKey, ended: dict[TaskId, TaskRecord]) -> PipelineCluster:
        bounds = replace(self._bounds, node_tasks_limit=key.size.slots)
        estimates = self.estimates.of(key.user)
        return PipelineCluster(
            self.policy, estimates, bounds=bounds, ended=ended, order=self._order
        )

    def _new_id(self, now: float) -> ApplicationId:
        return workload_id(now, self._master.core.epoch, next(self._ids))

    def size_of(self, pipeline: PipelineSpec) -> WorkerSize:
        """What a worker for this pipeline needs."""
        return size_for(pipeline, self.workloads.bounds, has_gpus=self._facts.has_gpus)

    def recover(self) -> None:
        """Take over the tasks of an earlier master, before anything is served. Those that had not
        ended are placed again, once their workers have had time to come back.

        Raises:
            HrmError: the store is damaged.
        """
        now, tasks = clock.now(), list[tuple[ApplicationId, WorkloadKey, TaskSpec]]()
        ended, live = list[TaskId](), set[TaskId]()
        left: list[tuple[pb.StoredPipelineTask, TaskSpec]] = []
        for stored, spec, record in self._kept.recovered():
            self._owners[spec.task_id] = stored.owner
            if stored.scope:
                self.scopes[spec.task_id] = stored.scope
            if record is None:
                live.add(spec.task_id)
                left.append((stored, spec))
                continue
            ended.append(spec.task_id)
            self.workloads.recover_ended(record, ApplicationId(stored.application_id))
            update = self._watchers.last[spec.task_id] = pipeline_stream.task_ended(stored.end)
            update.task_id, update.at_s = spec.task_id, now
            self._order.ended(spec.task_id, record.kept_bytes)
        self.files.adopt(live, ended)
        for task_id in ended:
            self._settle(task_id)
        for stored, spec in left:
            code = self._kept.take_up(stored)
            key = self._kept.key_of(stored, spec)
            tasks.append((ApplicationId(stored.application_id), key, spec))
            self._keys[spec.task_id] = stored.request.result_key
            if code is not None:
                self._code[spec.task_id] = code
            self._end_with(stored.scope, spec.task_id)
        self._kept.drop_unused()
        state = self._master.core.master_state
        self.host.carry_out(partial(take_over, self.workloads, tasks, state, now))
        self._cancel_damaged(left)

    def _cancel_damaged(self, tasks: list[tuple[pb.StoredPipelineTask, TaskSpec]]) -> None:
        for _, spec in tasks:
            if spec.task_id not in self._code or not self.files.has_input(spec.task_id):
                self.cancel(
                    spec.task_id, "its input or its modules are lost from the master's disk"
                )

    # --- what the core decides ------------------------------------------------------------------

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
                self._watchers.update(command.task_id, update, last=True)
            case m.ReportTiming():
                node = self.node_of(command.node)
                update = pipeline_stream.timing_reported(command.report.timing, node)
                self._watchers.update(command.report.task_id, update)
            case m.FinishTask():
                self._finished(command)

    def _user_of(self, worker: NodeName) -> str | None:
        workload = self.workloads.of_worker.get(ContainerId(worker))
        return None if workload is None else workload.key.user

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
            try:
                self._tick(clock.now())
            except Exception as error:
                log.critical("pipelines failed", exc_info=True)
                self.host.stop_master(error)
                return

    def _tick(self, now: float) -> None:
        self.host.carry_out(partial(self.workloads.ticked, now))
        self._close_lost_streams()
        self._cancel_left()
        self._placements.save_if_due()
        self.estimates.ticked(self.streams)
        if now - self._cleaned_s >= _CLEAN_INTERVAL_S:
            self._cleaned_s = now
            try:
                self._kept.drop_unused()
            except OSError as error:
                log.warning("modules that no task needs cannot be removed", why=str(error))

    def _end_with(self, scope: str, task_id: TaskId) -> None:
        """Cancel this task when the application or submission ends that has submitted it with a
        token of its own: nobody else has the key of its result."""
        if scope:
            self.scopes[task_id] = scope
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
        self.host.carry_out(partial(self.workloads.cancel, task_id, why, clock.now()))

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
        labels: tuple[str, ...] = (),
    ) -> None:
        """Accept a task, once its workload is admitted, and it and its input are on the disk.
        ``queue``, ``labels``: as it names them; ``scope``: the application whose own token submits
        it.

        Raises:
            HrmError: the core, the files or the full disk refuse it; nothing of it remains.
        """
        task_id = task.task_id
        self.check_owner(task_id, owner)
        self.workloads.arrive(task_id)
        self._owners[task_id] = owner
        workload_key = WorkloadKey(
            *(task.user, queue, task.workload_class, task.pipeline.name, scope),
            self.size_of(task.pipeline),
            labels,
        )
        try:
            if self._master.full is not None:  # not of one that is there: its call is repeated
                raise self._master.full
            application_id = await self.host.open(workload_key, task_id)
            await self.files.put_input(task_id, payload)
            code = self._code[task_id] = await self._kept.code_of(raw, files)
            self._keys[task_id] = key
            decide = partial(self.workloads.submit, application_id, task, clock.now())
            writing = asyncio.ensure_future(
                self._kept.keep(
                    task, application_id, workload_key, code, result_key=key, owner=owner
                )
            )
            try:
                await writing
                self.host.carry_out(decide)
                self._end_with(scope, task_id)
            except BaseException:
                self._kept.drop(task_id)
                raise
        except BaseException:  # the client may also have disconnected
            self.files.drop(task_id)
            self._code.pop(task_id, None)
            self._keys.pop(task_id, None)
            self._owners.pop(task_id, None)
            raise
        finally:
            self.workloads.arrived(task_id)

    def check_own(self, task_id: TaskId) -> None:
        """Check that the caller may act on it, or is an operator.

        Raises:
            NotAllowed: it is another user's.
            NotFound: nothing is known of it (any more).
        """
        record = self.workloads.find(task_id)
        if record is None:
            raise self._no_such(task_id)
        if caller().role.rules:
            return
        check_user(f"pipeline task {task_id}", record.spec.user, self.scopes.get(task_id, ""))

    def _no_such(self, task_id: TaskId) -> NotFound:
        return NotFound(
            f"no pipeline task {task_id!r}; hrm pipeline list shows them. Of ended tasks the "
            f"master keeps those whose result nobody has fetched with forget, up to "
            f"{UNFETCHED_MAX}, and the latest {self._bounds.ended_kept} of the rest "
            f"(pipeline_ended_kept)"
        )

    def check_owner(self, task_id: TaskId, owner: str) -> None:
        """Check that the key is the task's, if there is such a task.

        Raises:
            NotOwner: it is not.
        """
        if not is_owner(self._owners.get(task_id, ""), owner):
            raise denied(f"pipeline task {task_id}", "choose another id")

    def _finished(self, command: m.FinishTask) -> None:
        task_id = command.task_id
        done = command.outcome is TaskOutcome.DONE
        self._code.pop(task_id, None)
        self._keys.pop(task_id, None)
        proof = self._proofs.pop(task_id, NO_PROOF)
        node = self.node_of(command.node)
        end = pipeline_stream.from_end(
            *(command.outcome, command.message, command.timings, node),
            attempt=m.placement_number(command.attempt),
            response_s=command.response_s,
            result_bytes=proof.size if done else 0,
            in_result_dir=proof.in_dir and done,
            result_format=pw.from_result_format(proof.kind) if done else None,
            proof=proof.proof if done else b"",
            placement=proof.placement if done else 0,
        )
        log.info("task ended", task=task_id, outcome=command.outcome.value, why=command.message)
        if self._kept.has(task_id):
            self._ends.begin(task_id)
            write = asyncio.create_task(self._write_end(task_id, end))
            self._writes.add(write)
            write.add_done_callback(partial(self._end_written, task_id, end))
        else:
            self._report_end(task_id, end)
        self._forget_old()

    async def _write_end(self, task_id: TaskId, end: pb.PipelineTaskEnd) -> None:
        """Its result is whole on the disk before its end is, and its input still there: a master
        that dies between them has one or the other."""
        await self.files.settled(task_id)
        write = self._kept.ended(task_id, end)
        if write is not None:
            await write

    def _end_written(
        self, task_id: TaskId, end: pb.PipelineTaskEnd, write: asyncio.Task[None]
    ) -> None:
        self._writes.discard(write)
        if write.cancelled() or write.exception() is not None:
            return  # the master stops
        acknowledgements = self._ends.written(task_id)
        self._report_end(task_id, end)
        for name, attempt in acknowledgements:
            self._send(name, pipeline_stream.acknowledgement(attempt))

    def _report_end(self, task_id: TaskId, end: pb.PipelineTaskEnd) -> None:
        self.files.drop(task_id, result=end.outcome != _DONE)
        if self._watchers.end(task_id, pipeline_stream.task_ended(end)):
            self._settle(task_id)

    def _settle(self, task_id: TaskId) -> None:
        """The end of a task is known to a client, which needs no more if there is no result."""
        if not self.files.size(task_id, "out"):
            self._order.settle(task_id)

    def fetched(self, task_id: TaskId) -> None:
        """A client has the result, and the master need not keep it."""
        self.files.drop(task_id)
        self._settle(task_id)

    def _forget_old(self) -> None:
        """Drop what the core has forgotten, some at a time."""
        last, known = self._watchers.last, self.workloads.known
        if len(last) < known + max(_FORGOTTEN_AT_ONCE, known // 10):
            return
        forgotten = [one for one in last if not self.workloads.knows(one)]
        self._kept.forget(forgotten)
        for old in forgotten:
            del last[old]
            self.scopes.pop(old, None)
            self._owners.pop(old, None)
            self.files.drop(old)

    def watch(self, task_ids: list[TaskId]) -> Watcher:
        """Watch these, which are known, from now on; the first updates say where each is."""
        places = self.workloads.places()
        where = {task_id: self.workloads.explain(task_id, places) for task_id in task_ids}
        live = {x for x in task_ids if self._is_live(x) or x in self._ends}
        for task_id in where.keys() - live:
            self._settle(task_id)
        return self._watchers.watch(where, live)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.unwatch(watcher)

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
        self.host.carry_out(partial(self.workloads.worker_reported, ContainerId(name), event))

    def leave(self, name: NodeName, stream: WorkerStream) -> None:
        """Its stream is down. It gets nothing new, and is lost if it does not return."""
        if self.streams.get(name) is stream:
            del self.streams[name]
            self.policies.left(name)
            with contextlib.suppress(NotFound):  # its container has ended
                self._reported(name, m.NodeAway(now=clock.now(), name=name))

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
            in_dir = ended.end.in_result_dir and self._has_result_dir(end.task_id)
            said = pipeline_stream.to_proof(ended.end)
            proof = ResultProof(*said, attempt.attempt, result_bytes, in_dir)
            if in_dir or self.files.finish(end.task_id, attempt.attempt, result_bytes):
                self._proofs[end.task_id] = proof
            else:
                message = (
                    f"its result of {result_bytes} bytes did not arrive whole: inputs and "
                    f"results may hold pipeline_held_mib of the master's disk"
                )
                end = replace(end, outcome=TaskOutcome.FAILED, message=message)
        self._reported(event.name, replace(event, end=end))
        if not self._ends.hold(end.task_id, (event.name, attempt)):
            self._send(event.name, pipeline_stream.acknowledgement(attempt))

    def _has_result_dir(self, task_id: TaskId) -> bool:
        record = self.workloads.find(task_id)
        return record is not None and bool(record.spec.result_dir)

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
