"""Pipelines as applications: the master requests workers for them, and acts as their AppMaster.

Tasks of one user, queue, class and pipeline are one *workload*: an application of the cluster, with
a state, events, a queue and a share like any other. Its containers are *workers*, each of the size
that the pipeline's steps need. They are requested as tasks wait, released when there is nothing
left for them, and placed, queued, preempted and isolated as executors are. Which worker runs which
task is decided by the workload's ``PipelineCluster``; a worker is a node there.

An idle workload ends after a while; the next task begins another one. One whose application is
killed cancels its tasks; one whose request can never be served, or whose workers keep failing, ends
its tasks with the reason.

Sans-IO: what is to be done is returned as steps, in order. ``hrm.pipelines.master`` and the
simulator carry them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.hosted import Listen, StopListening, SubmitToMaster
from hrm.core.vocabulary.ends import end_rule
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerId,
    ContainerState,
    ContainerStatus,
    NodeName,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.ownership import MASTER
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.errors import AlreadyExists, HrmError, NotFound, Unavailable
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.model import TaskId, TaskSpec
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.pool_facts import Alone, PoolFacts
from hrm.pipelines.core.resizing import InForce, OnePerTask, Resizing
from hrm.pipelines.core.task_record import TaskRecord, choices_in_words, outcome_in_words
from hrm.pipelines.core.workload import Worker, Workload, WorkloadKey, registration
from hrm.pipelines.core.workload_steps import CompleteOpening, FollowCommand, WorkloadStep

__all__ = ["PipelinesCore"]

_SESSION = 1
"""Nothing else attaches to a workload."""
OPENING_TIMEOUT_S = 15.0
"""Time in which the master's core has to admit a new workload."""
_FORGOTTEN_AT_ONCE = 100
_HEARD = (TaskOutcome.DONE, TaskOutcome.FAILED)
"""Ends that a policy hears of: that of a task which is cancelled says nothing of it."""
_NUMBERS_A_SECOND = 1_000
"""Workers of a workload that is taken over are numbered from the time of that: of those that an
earlier master has requested last there may be no record, and they may run on nodes that have not
come back. Nor does an epoch set masters apart, where a store is an older copy."""


class PipelinesCore:
    """All workloads of one master.

    Invariant: a live task is in the cluster of the workload that ``of_task`` names; the workers of
    a workload are all and only its containers that have not ended.
    """

    def __init__(
        self,
        new_cluster: Callable[[WorkloadKey, dict[TaskId, TaskRecord]], PipelineCluster],
        new_id: Callable[[float], ApplicationId],
        bounds: WorkloadBounds | None = None,
        facts: PoolFacts | None = None,
        resizing: Resizing | None = None,
    ) -> None:
        """``new_cluster``: of a key, and the ended tasks of all; ``facts``: what is so in the
        cluster; ``resizing``: how many workers a workload wants."""
        self._new_cluster = new_cluster
        self._new_id = new_id
        self._facts = facts or Alone()
        self._resizing = resizing or InForce(OnePerTask())
        self.bounds = bounds or WorkloadBounds()
        self.live: dict[ApplicationId, Workload] = {}
        self.ended: dict[TaskId, TaskRecord] = {}
        self.of_task: dict[TaskId, Workload] = {}
        """Of every task that is known, the ended ones among them."""
        self.of_ended: dict[TaskId, ApplicationId] = {}
        """Whose those are that had ended under an earlier master."""
        self.of_worker: dict[ContainerId, Workload] = {}
        self.arriving: dict[TaskId, Workload | None] = {}
        """Tasks that are being written down; of which workload, once that is opened for them."""
        self._by_key: dict[WorkloadKey, Workload] = {}
        self._out: list[WorkloadStep] = []

    # --- queries ------------------------------------------------------------------------------

    def find(self, task_id: TaskId) -> TaskRecord | None:
        workload = self.of_task.get(task_id)
        live = None if workload is None else workload.cluster.tasks.get(task_id)
        return live or self.ended.get(task_id)

    def knows(self, task_id: TaskId) -> bool:
        """Is there such a task, or is one about to be accepted?"""
        return task_id in self.arriving or self.find(task_id) is not None

    def application_of(self, task_id: TaskId) -> str:
        """Empty: no such task is known."""
        workload = self.of_task.get(task_id)
        return self.of_ended.get(task_id, "") if workload is None else workload.application_id

    def chosen(self, task_id: TaskId) -> list[str]:
        """See ``choices_in_words``. Raises NotFound."""
        record = self.find(task_id)
        if record is None:
            raise _no_such(task_id)
        return choices_in_words(record)

    def records(self, *, ended: bool = True) -> Iterator[TaskRecord]:
        if ended:
            yield from self.ended.values()
        for workload in self.live.values():
            yield from workload.cluster.tasks.values()

    def places(self) -> dict[TaskId, int]:
        """How many tasks are ahead of each that waits."""
        found: dict[TaskId, int] = {}
        for workload in self.live.values():
            found |= workload.cluster.places()
        return found

    def explain(self, task_id: TaskId, places: Mapping[TaskId, int] | None = None) -> str:
        """Where a task is and what it waits for, in one line.

        Raises:
            NotFound: no such task, or it ended too long ago.
        """
        record, workload = self.find(task_id), self.of_task.get(task_id)
        if record is None:
            raise _no_such(task_id)
        if record.outcome is not None or workload is None:
            return outcome_in_words(record)
        said = workload.cluster.explain(task_id, places, workload.place_of)
        if record.node is not None:
            return said
        running = sum(x.runs for x in workload.workers.values())
        of = f"{running} of {workload.wanted} workers run"
        return f"{said}; {of} (hrm app why {workload.application_id})"

    # --- inputs -------------------------------------------------------------------------------

    def arrive(self, task_id: TaskId) -> None:
        """A task of this id is about to be written down, which ends with ``arrived``.

        Raises:
            Unavailable: another one is.
            AlreadyExists: there is one.
        """
        if task_id in self.arriving:
            raise Unavailable(f"pipeline task {task_id} is being accepted; try again")
        if self.find(task_id) is not None:
            raise AlreadyExists(f"a pipeline task {task_id} is there already; choose another id")
        self.arriving[task_id] = None

    def arrived(self, task_id: TaskId) -> None:
        """It has been submitted, or is not accepted."""
        self.arriving.pop(task_id, None)

    def open(
        self, call_id: int, key: WorkloadKey, task_id: TaskId, now: float
    ) -> list[WorkloadStep]:
        """Answer with the application of the workload of this key, once it is admitted, or that the
        master is overloaded, after ``OPENING_TIMEOUT_S``. It does not end for want of tasks before
        this one has ``arrived``."""
        workload = self._by_key.get(key)
        if workload is None:
            cluster = self._new_cluster(key, self.ended)
            workload = Workload(self._new_id(now), key, cluster, idle_since_s=now)
            self._by_key[key] = self.live[workload.application_id] = workload
            self._out.append(Listen(workload.application_id))
            self._out.append(workload.ask(registration(workload, now)))
        workload.idle_since_s = now
        if task_id in self.arriving:
            self.arriving[task_id] = workload
        if workload.started:
            self._out.append(CompleteOpening(call_id, workload.application_id))
        else:
            workload.openings[call_id] = now + OPENING_TIMEOUT_S
        return self._flush()

    def submit(
        self, application_id: ApplicationId, task: TaskSpec, now: float
    ) -> list[WorkloadStep]:
        """A task of a workload.

        Raises:
            Unavailable: the workload has ended meanwhile.
            LimitReached, AlreadyExists: as ``PipelineCluster``.
        """
        workload = self.live.get(application_id)
        if workload is None or workload.ending:
            raise Unavailable(f"{application_id} has just ended; submit the task again")
        if self.find(task.task_id) is not None:
            message = f"a pipeline task {task.task_id} is there already; choose another id"
            raise AlreadyExists(message)
        view = workload.view(self.bounds.workers_max)
        workload.take(task)
        self._feed(workload, m.TaskSubmitted(now=now, task=task))
        self._resizing.submitted(application_id, task.task_id, view)
        self.of_task[task.task_id] = workload
        self._adjust(workload, now)
        return self._flush()

    def recover(
        self,
        application_id: ApplicationId,
        key: WorkloadKey,
        tasks: Iterable[TaskSpec],
        now: float,
        *,
        known: ApplicationRecord | None,
    ) -> list[WorkloadStep]:
        """A workload of an earlier master, with the tasks that had not ended. ``known``: its record
        at the master's core; None: there is none. Where that has ended, such as a killed one's, so
        have they. To be called before anything is opened."""
        cluster = self._new_cluster(key, self.ended)
        workload = Workload(application_id, key, cluster, idle_since_s=now)
        workload.count = int(now * _NUMBERS_A_SECOND)
        workload.tally.recover(
            self.ended[x] for x, app_id in self.of_ended.items() if app_id == application_id
        )
        self._by_key[key] = self.live[application_id] = workload
        for task in tasks:
            until_s = now + self.bounds.recovery_s
            workload.take(task)
            self._feed(workload, m.TaskRecovered(now=now, task=task, until_s=until_s))
            self.of_task[task.task_id] = workload
        if known is not None and known.state.ended:
            why = f"{application_id} has ended: {known.message}"
            self._end(workload, TaskOutcome.CANCELLED, why, now)
            return self._flush()
        self._out.append(Listen(application_id))
        workload.was_accepted = known is not None
        self._out.append(workload.ask(registration(workload, now, is_known=known is not None)))
        return self._flush()

    def recover_ended(self, record: TaskRecord, application_id: ApplicationId) -> None:
        """A task that had ended under an earlier master; its result may be here."""
        self.ended[record.spec.task_id] = record
        self.of_ended[record.spec.task_id] = application_id

    def cancel(self, task_id: TaskId, why: str, now: float) -> list[WorkloadStep]:
        """Raises NotFound."""
        record, workload = self.find(task_id), self.of_task.get(task_id)
        if record is None:
            raise _no_such(task_id)
        if record.outcome is not None or workload is None:
            return []
        self._feed(workload, m.CancelAsked(now=now, task_id=task_id, why=why))
        self._adjust(workload, now)
        return self._flush()

    def worker_reported(
        self, container_id: ContainerId, event: m.ClusterEvent
    ) -> list[WorkloadStep]:
        """What a connected worker sends, and that its stream is down.

        Raises:
            NotFound: it is no worker that runs, or is about to.
        """
        workload = self.of_worker.get(container_id)
        if workload is None or workload.ending:
            raise NotFound(f"{container_id} is no worker of a live application")
        worker = workload.workers[container_id]
        if isinstance(event, m.NodeJoined):
            worker.runs, worker.busy_at_s = True, event.now
        if isinstance(event, m.TaskEnded) and event.end.outcome is TaskOutcome.DONE:
            workload.failures = 0
        self._feed(workload, event)
        if isinstance(event, m.NodeJoined):
            if worker.leaves:
                self._feed(workload, m.NodeAway(now=event.now, name=event.capacity.name))
            self._end_recovery(workload, event.now)
        self._adjust(workload, event.now)
        return self._flush()

    def reply_received(
        self, application_id: ApplicationId, reply: c.Reply | c.Refuse, now: float
    ) -> list[WorkloadStep]:
        """The master's core has replied to a ``CallMaster``."""
        workload = self.live.get(application_id)
        if workload is None:
            return self._flush()
        if isinstance(reply, c.Refuse):
            if not workload.asks_later(reply.error, now):
                self._refused(workload, reply.error, now)
        elif not workload.started and isinstance(reply.result, c.ApplicationAdmitted):
            self._admitted(workload, reply.result, now)
        return self._flush()

    def notice_received(
        self, application_id: ApplicationId, notice: c.Notice, now: float
    ) -> list[WorkloadStep]:
        workload = self.live.get(application_id)
        if workload is None:
            return self._flush()
        match notice:
            case c.ContainerChanged():
                self._changed(workload, notice.status, now)
            case c.RequestRefused():
                self._request_refused(workload, notice, now)
            case c.EndApplication():
                state = TaskOutcome.CANCELLED
                self._end(workload, state, f"{application_id} has ended: {notice.message}", now)
        return self._flush()

    def ticked(self, now: float) -> list[WorkloadStep]:
        for workload in list(self.live.values()):
            self._feed(workload, m.ClusterTicked(now=now))
            self._report_progress(workload, now)
            self._release_lost(workload, now)
            self._leave_drained(workload, now)
            self._end_recovery(workload, now)
            self._out += workload.ask_again(now)
            for call_id in [x for x, until_s in workload.openings.items() if now >= until_s]:
                del workload.openings[call_id]
                late = Unavailable("the master is overloaded; try again")
                self._out.append(CompleteOpening(call_id, late))
            if not workload.ending:
                self._adjust(workload, now)
        if len(self.of_task) > 2 * (self.known + _FORGOTTEN_AT_ONCE):
            self.of_task = {x: of for x, of in self.of_task.items() if self.find(x) is not None}
            self.of_ended = {x: of for x, of in self.of_ended.items() if x in self.ended}
        return self._flush()

    @property
    def known(self) -> int:
        """How many tasks are live, or have ended and are kept."""
        return len(self.ended) + sum(len(x.cluster.tasks) for x in self.live.values())

    # --- applications -------------------------------------------------------------------------

    def _admitted(self, workload: Workload, admitted: c.ApplicationAdmitted, now: float) -> None:
        """First it is registered, then the master attaches to it as its AppMaster."""
        app_id = workload.application_id
        if not workload.attaching:
            workload.attaching = True
            attach = e.ApplicationAttached(
                now=now, call_id=0, application_id=app_id, session=_SESSION,
                epoch=self._facts.epoch, owner=MASTER,
            )  # fmt: skip
            self._out.append(workload.ask(attach))
            return
        workload.started = True
        workload.count = max(workload.count, admitted.last_executor_number)
        for status in admitted.containers:
            self._changed(workload, status, now)
        openings, workload.openings = workload.openings, {}
        self._out += [CompleteOpening(call_id, app_id) for call_id in openings]
        self._adjust(workload, now)

    def _refused(self, workload: Workload, error: HrmError, now: float) -> None:
        openings, workload.openings = workload.openings, {}
        self._out += [CompleteOpening(call_id, error) for call_id in openings]
        self._end(workload, TaskOutcome.FAILED, error.message, now)

    def _end(self, workload: Workload, outcome: TaskOutcome, why: str, now: float) -> None:
        """All of its tasks end so."""
        workload.ending = True
        self._forget(workload)
        self._feed(workload, m.AllEnded(now=now, outcome=outcome, why=why))
        app_id = workload.application_id
        self._out.append(StopListening(app_id))
        failed = outcome is TaskOutcome.FAILED
        state = ApplicationState.FAILED if failed else ApplicationState.SUCCEEDED
        finished = e.ApplicationFinished(now=now, application_id=app_id, state=state, message=why)
        self._out.append(SubmitToMaster(finished))

    def _forget(self, workload: Workload) -> None:
        """Its tasks stay known, as long as its cluster knows them."""
        self.live.pop(workload.application_id, None)
        if self._by_key.get(workload.key) is workload:
            del self._by_key[workload.key]
        for container_id in workload.workers:
            self.of_worker.pop(container_id, None)
        workload.workers.clear()

    # --- workers ------------------------------------------------------------------------------

    def _adjust(self, workload: Workload, now: float) -> None:
        """As many workers as there is work for: more at once, fewer after a while."""
        if not workload.started or workload.ending:
            return
        cluster, workers = workload.cluster, workload.workers
        for name, row in cluster.table.nodes.items():
            if row.placed:
                workers[ContainerId(name)].busy_at_s = now
        if cluster.tasks:
            workload.idle_since_s = now
        has = [x for x in workers.values() if not (x.released or x.leaves)]
        wanted = workload.size(self._resizing, self.bounds.workers_max, now)
        if waiting := workload.waits_for_gpu(now):  # one of them goes on, besides what cores do
            has = [x for x in has if x not in waiting]
            is_of_use = 0 < wanted >= len(has) and self.bounds.workers_max > 1
            wanted = min(wanted, self.bounds.workers_max - is_of_use)
            why = "cores do in place of a GPU"
            self._release(workload, waiting[is_of_use:], why, now)
        if len(has) < wanted:
            running = sum(x.runs for x in has)
            begun = len(has) - running
            many = min(wanted - len(has), max(self.bounds.begun_max, 2 * running) - begun)
            self._request(workload, many, now)
        elif len(has) > wanted:
            self._release_idle(workload, has, len(has) - wanted, now)
        is_over = not workers and now - workload.idle_since_s >= self.bounds.workload_idle_s
        if is_over and not workload.openings and workload not in self.arriving.values():
            self._end(workload, *workload.tally.verdict(), now)

    def _request(self, workload: Workload, many: int, now: float) -> None:
        keeps = self._facts.staying(workload.key) - sum(
            not x.yields for x in workload.workers.values()
        )
        if workload.key.workload_class is WorkloadClass.STREAM:
            many = int(min(many, max(0, keeps)))  # a stream yields to none
        requests = workload.request(many, keeps, now)
        new = (container_id_of(workload.application_id, x.executor_id) for x in requests)
        self.of_worker.update(dict.fromkeys(new, workload))
        if requests:
            asked = e.ContainersRequested(
                now=now, application_id=workload.application_id, requests=requests,
                again=False,
            )  # fmt: skip
            self._out.append(SubmitToMaster(asked))

    def _release_idle(self, workload: Workload, has: list[Worker], many: int, now: float) -> None:
        """First those that wait for a place, then those that have had nothing to do for a while."""
        rows = workload.cluster.table.nodes
        is_stream = workload.key.workload_class is WorkloadClass.STREAM
        idle_s = self.bounds.stream_idle_s if is_stream else self.bounds.worker_idle_s
        free = [x for x in has if not x.runs and not x.adopted]
        for worker in has:
            row = rows.get(NodeName(worker.container_id))
            has_task = row is not None and bool(row.placed)
            if worker.runs and not has_task and now - worker.busy_at_s >= idle_s:
                free.append(worker)
        self._release(workload, free[:many], "there is no task for it", now)

    def _release(self, workload: Workload, workers: list[Worker], why: str, now: float) -> None:
        if not workers:
            return
        for worker in workers:
            worker.released = True
        event = e.ContainersReleased(
            now=now,
            application_id=workload.application_id,
            executor_ids=tuple(x.executor_id for x in workers),
            reason=why,
        )
        self._out.append(SubmitToMaster(event))

    def _release_lost(self, workload: Workload, now: float) -> None:
        """One that runs and has been silent for too long is of no use any more."""
        rows = workload.cluster.table.nodes
        lost, never = list[Worker](), list[Worker]()
        for worker in workload.workers.values():
            if worker.released:
                continue
            if worker.runs and NodeName(worker.container_id) not in rows:
                lost.append(worker)
            elif not worker.runs and now - worker.started_at_s >= self.bounds.connect_s:
                never.append(worker)
        self._release(workload, lost, "it does not report any more", now)
        self._release(workload, never, "it has not connected to the master", now)
        if never:
            where = ", ".join(sorted({x.node for x in never}))
            self._failed(workload, len(never), f"not connected to the master, on {where}", now)

    def _leave_drained(self, workload: Workload, now: float) -> None:
        """One whose node is drained gets nothing new, and goes when it has done what it has."""
        rows, idle = workload.cluster.table.nodes, list[Worker]()
        for worker in workload.workers.values():
            if worker.released or not (worker.leaves or self._facts.is_draining(worker.node)):
                continue
            name = NodeName(worker.container_id)
            if not worker.leaves:
                worker.leaves = True
                self._feed(workload, m.NodeAway(now=now, name=name))
            if worker.runs and not (name in rows and rows[name].placed):
                idle.append(worker)
        self._release(workload, idle, "its node is drained", now)

    def _end_recovery(self, workload: Workload, now: float) -> None:
        """Once all nodes are back, and all workers that run there, no task comes with another. A
        node may be back while what is known of its workers waits for the disk."""
        if not workload.cluster.away or not workload.started or self._facts.recovering:
            return
        if any(x not in workload.workers for x in self._facts.running(workload.application_id)):
            return
        awaited = (x for x in workload.workers.values() if x.adopted and not x.released)
        if all(x.runs for x in awaited):
            self._feed(workload, m.RecoveryEnded(now=now))

    def _changed(self, workload: Workload, status: ContainerStatus, now: float) -> None:
        worker = workload.workers.get(status.container_id)
        if worker is None:
            if status.state is ContainerState.ENDED or workload.ending:
                return
            worker = workload.add(status.executor_id)
            self.of_worker[worker.container_id] = workload
            worker.adopted = status.state not in (ContainerState.ASSIGNED, ContainerState.WAITING)
        worker.node = status.node or worker.node
        if status.state is ContainerState.RUNNING and worker.started_at_s == math.inf:
            worker.started_at_s = now
        if status.state is not ContainerState.ENDED or status.end is None:
            return
        del workload.workers[worker.container_id]
        self.of_worker.pop(worker.container_id, None)
        end, rule = status.end, end_rule(status.end)
        why = end.message or end.cause.value
        is_blamed = rule.blame.caused_by_app and not worker.released
        name = NodeName(worker.container_id)
        self._feed(workload, m.NodeLost(now=now, name=name, why=why, counts=is_blamed))
        if is_blamed:
            self._failed(workload, 1, f"on {worker.node}: {why}", now)
        if not workload.ending:
            self._adjust(workload, now)

    def _failed(self, workload: Workload, many: int, why: str, now: float) -> None:
        """So many workers have failed; after too many in a row others would fail, too."""
        workload.failures += many
        if workload.failures >= self.bounds.failures_max:
            app_id = workload.application_id
            message = (
                f"{workload.failures} workers in a row have failed, the last {why}; hrm app logs "
                f"{app_id} may show more"
            )
            self._end(workload, TaskOutcome.FAILED, message, now)

    def _request_refused(self, workload: Workload, notice: c.RequestRefused, now: float) -> None:
        gone = []
        for executor_id in notice.executor_ids:
            container_id = container_id_of(workload.application_id, executor_id)
            gone.append(workload.workers.pop(container_id, None))
            self.of_worker.pop(container_id, None)
        if workload.key.size.gpu_memory_mib and not any(x is None or x.on_gpu for x in gone):
            workload.needs_gpu = True  # no node has cores that would do in place of one
        elif not workload.workers:
            self._end(workload, TaskOutcome.FAILED, f"no worker can be had: {notice.message}", now)

    def _feed(self, workload: Workload, event: m.ClusterEvent) -> None:
        app_id = workload.application_id
        for command in workload.cluster.handle(event):
            self._out.append(FollowCommand(app_id, command))
            workload.tally.take(command, workload.executor_of)
            if isinstance(command, m.FinishTask) and command.outcome in _HEARD:
                self._resizing.ended(
                    command.task_id, now=event.now, response_s=command.response_s,
                    ok=command.outcome is TaskOutcome.DONE,
                )  # fmt: skip

    def _report_progress(self, workload: Workload, now: float) -> None:
        cluster = workload.cluster
        running = sum(len(row.placed) for row in cluster.table.nodes.values())
        report = workload.tally.report(len(cluster.tasks), running)
        if report is not None and workload.started and not workload.ending:
            progressed = e.ProgressReported(
                now=now, application_id=workload.application_id, progress=report[0],
                tasks=report[1],
            )  # fmt: skip
            self._out.append(SubmitToMaster(progressed))

    def _flush(self) -> list[WorkloadStep]:
        out, self._out = self._out, []
        return out


def _no_such(task_id: TaskId) -> NotFound:
    return NotFound(f"no pipeline task {task_id}; hrm pipeline list shows those there are")
