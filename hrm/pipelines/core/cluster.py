"""The master's core for pipeline tasks: which node runs which task. Sans-IO.

Tasks wait in one bounded queue, in the order in which they are due (``order``). Its head is shown
to a ``ClusterPolicy`` with the nodes that may take it, and goes to the node that the policy names;
a policy that fails or names another node is replaced for this one decision by ``LeastWait``, and
counted. A task that no node could ever run, or only such as are away, leaves the queue until a node
joins.

Nothing is lost and nothing happens twice:

- a placement has a number, the attempt; ends of any other attempt are ignored;
- tasks of a lost node go back to their place in the queue, up to ``attempts_limit`` placements;
- a task that a node returns was not started and does not count as an attempt; the node gets no more
  until it has reported, or it would be offered the task again immediately, up to the limit;
- a task that a node refuses was not started either, but counts like a loss, because all nodes may
  refuse it; other machines come first from then on;
- a node that reconnects keeps the tasks that are still its own and is ordered to drop the rest.

Source: LDWP + IAWP, section 3.2 (masks) and algorithm 1 (the place of the policy).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hrm.core.vocabulary.bounds import BOUNDS
from hrm.core.vocabulary.model import NodeName
from hrm.core.vocabulary.wakefulness import Wakefulness, excused
from hrm.errors import AlreadyExists, LimitReached, NotFound
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.forgetting import ForgettingOrder
from hrm.pipelines.core.model import (
    Choice,
    ClusterPolicy,
    LearningEstimates,
    PipelineClusterView,
    PipelineSpec,
    TaskId,
    TaskSpec,
    size_bucket,
)
from hrm.pipelines.core.node_messages import (
    EndTask,
    ReportSubtask,
    RunOutcome,
    TaskOutcome,
)
from hrm.pipelines.core.order import DueOrder, WorkStep
from hrm.pipelines.core.reported_runs import learn
from hrm.pipelines.core.table import Mask, NodeTable
from hrm.pipelines.core.task_record import (
    TaskRecord,
    is_possible,
    keep_timing,
    outcome_in_words,
)

__all__ = [
    "ClusterBounds",
    "LeastWait",
    "PipelineCluster",
]

_RATE_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBounds:
    """Bounds of the cluster's core; the daemon fills them from its settings."""

    queue_limit: int = 10_000
    node_tasks_limit: int = 1_000
    attempts_limit: int = 3
    given_back_limit: int = 100
    node_timeout_s: float = BOUNDS.node_timeout_s
    tick_late_s: float = BOUNDS.tick_late_s
    ended_kept: int = 1_000


class PipelineCluster:
    """``handle(event) -> commands``; ``explain`` gives the reason why a task waits.

    Invariants: a live task is in exactly one of the queue, ``stranded``, ``away`` and a node's
    ``placed``; each task submitted has exactly one ``FinishTask``. ``away``: tasks of an earlier
    master that may be at a node, until when.
    """

    def __init__(
        self,
        policy: ClusterPolicy,
        estimates: LearningEstimates,
        *,
        bounds: ClusterBounds | None = None,
        ended: dict[TaskId, TaskRecord] | None = None,
        order: ForgettingOrder | None = None,
    ) -> None:
        """``ended``: where tasks go that have ended, of several clusters perhaps; ``order``: in
        which these are forgotten, None: as they ended."""
        self.policy = policy
        self.estimates = estimates
        self.bounds = bounds or ClusterBounds()
        self.table = NodeTable(self.estimates)
        self.tasks: dict[TaskId, TaskRecord] = {}
        """Live tasks, in the order of submission."""
        self.ended: dict[TaskId, TaskRecord] = {} if ended is None else ended
        kept = self.bounds.ended_kept
        self.order = ForgettingOrder(kept, unfetched_max=kept) if order is None else order
        self.queue: DueOrder[TaskId] = DueOrder(self.table.remaining_s)
        self.stranded: dict[TaskId, None] = {}
        self.away: dict[TaskId, float] = {}
        self.policy_faults = 0
        self.latest_fault = ""
        self._fallback = LeastWait()
        self._arrivals: deque[float] = deque()
        self._arrived = 0
        self._awake: Wakefulness | None = None
        self._commands: list[m.ClusterCommand] = []

    def handle(self, event: m.ClusterEvent) -> list[m.ClusterCommand]:
        """Take the event in; returns the commands, in order.

        Raises:
            LimitReached: of a submission, the queue is full.
            AlreadyExists: of a submission, a task has this id.
            NotFound: of a cancellation, no live task has this id.
        """
        commands: list[m.ClusterCommand] = []
        self._commands = commands
        self._notice_sleep(event)
        match event:
            case m.TaskSubmitted():
                self._submit(event)
            case m.TaskRecovered():
                task_id = event.task.task_id
                self._record(event.task).why = "it may be at a worker that has not come back yet"
                self.away[task_id] = event.until_s
            case m.RecoveryEnded():
                self.away = dict.fromkeys(self.away, event.now)
                self._expect_no_more(event.now)
            case m.CancelAsked():
                self._cancel(event)
            case m.NodeJoined():
                self._join(event)
            case m.NodeLost():
                why = event.why or "it was lost"
                self._lose(event.name, event.now, why, counts=event.counts)
            case m.AllEnded():
                for record in list(self.tasks.values()):
                    self._finish(record, event.outcome, event.why, event.now)
            case m.NodeAway():
                self._set_away(event)
            case m.PipelineNodeReported():
                if event.name in self.table.nodes:
                    self.table.reported(event.name, event.load, event.now)
            case m.SubtaskReported():
                self._report(event)
            case m.TaskEnded():
                self._ended(event)
            case m.ClusterTicked():
                self._lose_silent(event.now)
                self._expect_no_more(event.now)
        self._place(event.now)
        return commands

    # --- queries ------------------------------------------------------------------------------

    def places(self) -> dict[TaskId, int]:
        """How many tasks are ahead of each in the queue, as it is now: for ``explain`` of many."""
        return {task_id: ahead for ahead, task_id in enumerate(self.queue)}

    def explain(
        self,
        task_id: TaskId,
        places: Mapping[TaskId, int] | None = None,
        place_of: Callable[[NodeName], str] = str,
    ) -> str:
        """Where the task is and what it waits for, in one line. ``place_of``: a worker, as people
        know it.

        Raises:
            NotFound: no such task, or it ended too long ago.
        """
        record = self.tasks.get(task_id) or self.ended.get(task_id)
        if record is None:
            raise NotFound(f"no pipeline task {task_id}; hrm pipeline list shows those there are")
        if record.outcome is not None:
            return outcome_in_words(record)
        if record.node is None:
            if places is not None:
                ahead = places.get(task_id, 0)
            else:
                ahead = self.queue.ahead(task_id) if task_id in self.queue else 0
            before = f", {ahead} before it" if ahead else ""
            past = f"; before that: {record.before}" if record.before else ""
            # Those behind the head are not looked at: they wait for what that waits for.
            why = (self.tasks[self.queue.first()].why if ahead and self.queue else "") or record.why
            return f"it waits for a worker{before}: {why}{past}"
        done = {t.key.subtask for t in record.timings if t.outcome is RunOutcome.DONE}
        left = [one.name for one in record.spec.pipeline.subtasks if one.name not in done]
        load = self.table.nodes[record.node].load
        work = "" if load is None else load.wait_in_words()
        return (
            f"at {place_of(record.node)} ({record.why.removeprefix(f'{record.node}: ')}), "
            f"placement {record.number}; "
            f"done: {', '.join(sorted(done)) or 'nothing'}; to do: {', '.join(left) or 'nothing'}"
            f"{work}"
        )

    def view(self, task: TaskSpec, now: float) -> tuple[PipelineClusterView, Mask]:
        """What the policy would get for this task now, and the nodes that may take it."""
        fits, _ = self.table.fits(task, self.bounds.node_tasks_limit)
        return self._view(task, fits, now), fits

    def _view(self, task: TaskSpec, fits: Mask, now: float) -> PipelineClusterView:
        self._forget_arrivals(now)
        return self.table.view(
            task,
            fits,
            now=now,
            queue_length=len(self.queue),
            rate_per_s=len(self._arrivals) / _RATE_WINDOW_S,
        )

    def _forget_arrivals(self, now: float) -> None:
        while self._arrivals and self._arrivals[0] <= now - _RATE_WINDOW_S:
            self._arrivals.popleft()

    # --- tasks --------------------------------------------------------------------------------

    def _submit(self, event: m.TaskSubmitted) -> None:
        task_id = event.task.task_id
        if task_id in self.tasks or task_id in self.ended:
            raise AlreadyExists(f"a pipeline task {task_id} is there already; choose another id")
        waiting = len(self.queue) + len(self.stranded)
        if waiting >= self.bounds.queue_limit:
            raise LimitReached(
                f"{waiting} pipeline tasks wait for a node already, and pipeline_queue_limit is "
                f"{self.bounds.queue_limit}; submit more when some have ended, or raise it"
            )
        self._record(event.task)
        self._enqueue(task_id)
        self._forget_arrivals(event.now)
        self._arrivals.append(event.now)

    def _record(self, task: TaskSpec) -> TaskRecord:
        self._arrived += 1
        record = self.tasks[task.task_id] = TaskRecord(task, arrival=self._arrived)
        return record

    def _cancel(self, event: m.CancelAsked) -> None:
        record = self.tasks.get(event.task_id)
        if record is None:
            if event.task_id in self.ended:
                return
            raise NotFound(f"no pipeline task {event.task_id}")
        why = event.why or "it was cancelled"
        if record.node is not None:
            self._order_withdrawal(record.node, event.task_id, record.attempt, why)
        self._finish(record, TaskOutcome.CANCELLED, why, event.now)

    def _order_withdrawal(self, node: NodeName, task_id: TaskId, attempt: int, why: str) -> None:
        self._commands.append(m.CancelTask(node=node, task_id=task_id, attempt=attempt, why=why))

    def _report(self, event: m.SubtaskReported) -> None:
        record = self._current(event.name, event.report)
        if record is None:
            return
        timing = event.report.timing
        if not is_possible(record, timing):
            return
        worker = self.table.nodes[event.name]
        learn(self.estimates, event.report, record.spec, worker.capacity, worker.rows, event.now)
        kept = keep_timing(record, timing)
        if kept is not None:
            report = replace(event.report, timing=kept)
            self._commands.append(m.ReportTiming(node=event.name, report=report))

    def _current(self, name: NodeName, what: ReportSubtask | EndTask) -> TaskRecord | None:
        """The task, if this is from its present placement."""
        record = self.tasks.get(what.task_id)
        if record is None or (record.node, record.attempt) != (name, what.attempt):
            return None
        return record

    def _ended(self, event: m.TaskEnded) -> None:
        end, now, record = event.end, event.now, self._current(event.name, event.end)
        if record is None:
            return
        if end.timings:
            record.drop_timings()
            for timing in end.timings:
                keep_timing(record, timing)
        if end.outcome is TaskOutcome.GIVEN_BACK:
            self.table.nodes[event.name].gave_back = True
            self._give_back(record, now, f"returned by {event.name}: {end.message}")
        elif end.outcome is TaskOutcome.REFUSED:
            record.refused_at.add(self.table.nodes[event.name].machine)
            self._again(record, now, end.message or f"refused by {event.name}")
        elif end.outcome is TaskOutcome.CANCELLED:
            self._again(record, now, end.message or "its node released it")
        else:
            self._finish(record, end.outcome, end.message, now)

    def _give_back(self, record: TaskRecord, now: float, why: str) -> None:
        """It is placed again, and nothing has failed; not without end."""
        record.given_back += 1
        if record.given_back >= self.bounds.given_back_limit:
            message = f"given back {record.given_back} times, the last time {why}"
            self._finish(record, TaskOutcome.FAILED, message, now)
        else:
            self._requeue(record, now, why)

    def _again(self, record: TaskRecord, now: float, why: str) -> None:
        """Its node has lost or refused it: place it again, or end it as failed."""
        record.losses += 1
        if record.losses >= self.bounds.attempts_limit:
            times = f"{record.losses} times" if record.losses > 1 else "once"
            what = (
                "it was refused, or its worker lost,"
                if record.refused_at
                else "its worker was lost"
            )
            message = f"{what} {times}, which is the limit; the last: {why}"
            self._finish(record, TaskOutcome.FAILED, message, now)
        else:
            self._requeue(record, now, why)

    def _leave_node(self, record: TaskRecord, now: float, *, ok: bool) -> None:
        if record.node is None:
            return
        if record.node in self.table.nodes:
            self.table.over(record.node, record.spec.task_id)
        record.node = None
        response_s = now - record.spec.submitted_at_s
        try:
            self.policy.ended(record.spec.task_id, now=now, response_s=response_s, ok=ok)
        except Exception as error:
            self._fault(f"{self.policy.name} failed to take in an end: {error!r}")

    def _requeue(self, record: TaskRecord, now: float, why: str) -> None:
        self._leave_node(record, now, ok=False)
        record.why = "it is in the queue again"
        record.placed_by = record.fallback = ""
        record.before = why
        record.drop_timings()
        self._enqueue(record.spec.task_id)
        self._commands.append(
            m.ReportPlacement(
                task_id=record.spec.task_id, node=None, attempt=record.attempt, message=why
            )
        )

    def _finish(self, record: TaskRecord, outcome: TaskOutcome, message: str, now: float) -> None:
        task_id, node = record.spec.task_id, record.node
        self._leave_node(record, now, ok=outcome is TaskOutcome.DONE)
        if node is None:
            self.stranded.pop(task_id, None)
            self.away.pop(task_id, None)
            self.queue.discard(task_id)
        del self.tasks[task_id]
        record.outcome, record.message = outcome, message
        self.ended[task_id] = record
        self.order.ended(task_id, record.kept_bytes)
        for old in self.order.forget():
            self.ended.pop(old, None)
        self._commands.append(
            m.FinishTask(
                task_id=task_id,
                node=node,
                attempt=record.attempt,
                outcome=outcome,
                message=message,
                timings=tuple(record.timings),
                response_s=now - record.spec.submitted_at_s,
            )
        )

    # --- nodes --------------------------------------------------------------------------------

    def _join(self, event: m.NodeJoined) -> None:
        name = event.capacity.name
        before = self.table.nodes.get(name)
        had = list(before.placed.values()) if before else []
        self.table.add(event.capacity, event.now)
        has = dict(event.tasks)
        for task in had:
            record = self.tasks[task.task_id]
            if has.get(task.task_id) == record.attempt:
                self.table.placed(name, task)
            else:
                self._again(record, event.now, f"node {name} came back without it")
        for task_id, attempt in event.tasks:
            if attempt <= 0 and self.away.pop(task_id, None) is not None:
                # An earlier master placed it there.
                record = self.tasks[task_id]
                record.node, record.attempt, record.why = name, attempt, "it was there before"
                self.table.declare(record.spec.pipeline, record.spec.size_mb)
                self.table.placed(name, record.spec)
        kept = self.table.nodes[name].placed
        for task_id, attempt in event.tasks:
            if task_id not in kept or self.tasks[task_id].attempt != attempt:
                self._order_withdrawal(
                    name, task_id, attempt, "it was assigned to another node, or has ended"
                )
        if event.load is not None:
            self.table.reported(name, event.load, event.now)
        self._call_back_stranded()

    def _expect_no_more(self, now: float) -> None:
        """What has not come back by now is placed again."""
        late = [task_id for task_id, until_s in self.away.items() if now >= until_s]
        for task_id in late:
            del self.away[task_id]
            self.tasks[task_id].why = "it is in the queue again"
        for task_id in late:
            self._enqueue(task_id)

    def _call_back_stranded(self) -> None:
        for task_id in self.stranded:
            self._enqueue(task_id)
        self.stranded.clear()

    def _lose(self, name: NodeName, now: float, why: str, *, counts: bool = True) -> None:
        if name not in self.table.nodes:
            return
        tasks = list(self.table.remove(name).placed)
        for task_id in tasks:
            record = self.tasks[task_id]
            if counts:
                self._again(record, now, f"node {name} was lost: {why}")
            else:
                self._give_back(record, now, f"node {name} has ended: {why}")

    def _notice_sleep(self, event: m.ClusterEvent) -> None:
        """This process slept, and has not received the nodes' reports since."""
        if self._awake is None:
            late_s = min(self.bounds.tick_late_s, self.bounds.node_timeout_s / 4)
            self._awake = Wakefulness(late_s, event.now)
        slept_s = self._awake.passed(event.now)
        if isinstance(event, m.ClusterTicked):
            slept_s += self._awake.ticked(event.now)
        for row in self.table.nodes.values() if slept_s else ():
            row.excused_at_s = excused(row.reported_at_s, row.excused_at_s, event.now, slept_s)

    def _lose_silent(self, now: float) -> None:
        limit_s = self.bounds.node_timeout_s
        for name, row in list(self.table.nodes.items()):
            if now - max(row.reported_at_s, row.excused_at_s) > limit_s:
                self._lose(name, now, f"it has not reported for {limit_s:g} s")

    def _set_away(self, event: m.NodeAway) -> None:
        row = self.table.nodes.get(event.name)
        if row is not None:
            row.away = True
            self.table.recount(event.name)

    # --- placing ------------------------------------------------------------------------------

    def _enqueue(self, task_id: TaskId) -> None:
        record = self.tasks[task_id]
        spec, bucket = record.spec, size_bucket(record.spec.size_mb)
        work = tuple(WorkStep(one.kind, bucket, one.devices) for one in spec.pipeline.subtasks)
        self.queue.add(task_id, work, spec.submitted_at_s, record.arrival)

    def _strand(self, task_id: TaskId) -> None:
        self.queue.discard(task_id)
        self.stranded[task_id] = None

    def _place(self, now: float) -> None:
        """Place the head of the queue, as long as some node may take it and the policy agrees."""
        # Thousands that wait for one node are mostly alike: each kind is tested once.
        nowhere: dict[tuple[PipelineSpec, int], str] = {}
        while self.queue:
            task_id = self.queue.first()
            record = self.tasks[task_id]
            kind = (record.spec.pipeline, size_bucket(record.spec.size_mb))
            if kind in nowhere:
                record.why = nowhere[kind]
                self._strand(task_id)
                continue
            fits, why = self.table.fits(record.spec, self.bounds.node_tasks_limit)
            if not fits.any():
                record.why = why if self.table.nodes else "none runs yet"
                if self.table.nodes and self.table.waits_for_capacity(record.spec):
                    return
                nowhere[kind] = record.why
                self._strand(task_id)
                continue
            fits = self.table.elsewhere(fits, record.refused_at)
            choice = self._choose(record.spec, fits, now)
            if choice.node < 0:
                record.why = choice.why
                return
            self.queue.discard(task_id)
            record.placed_by = choice.placed_by or self.policy.name
            record.fallback = choice.fallback
            self._send(record, self.table.names[choice.node], choice.why)

    def _choose(self, task: TaskSpec, fits: Mask, now: float) -> Choice:
        view = self._view(task, fits, now)
        try:
            choice = self.policy.choose(task, view, fits)
            if choice.node < 0 or (choice.node < len(fits) and fits[choice.node]):
                return choice
            self._fault(f"{self.policy.name} chose node {choice.node}, which may not take the task")
        except Exception as error:
            self._fault(f"{self.policy.name} failed: {error!r}")
        choice = self._fallback.choose(task, view, fits)
        return Choice(
            node=choice.node,
            why=f"{choice.why}; {self.latest_fault}",
            placed_by=self._fallback.name,
            fallback=self.latest_fault,
        )

    def _fault(self, what: str) -> None:
        self.policy_faults += 1
        self.latest_fault = what

    def _send(self, record: TaskRecord, node: NodeName, why: str) -> None:
        record.node = node
        record.attempt = max(0, record.attempt) + 1  # those of earlier masters are below
        record.why = why
        self.table.placed(node, record.spec)
        task_id, attempt = record.spec.task_id, record.attempt
        self._commands.append(m.PlaceTask(node=node, task=record.spec, attempt=attempt, why=why))
        self._commands.append(
            m.ReportPlacement(task_id=task_id, node=node, attempt=record.attempt, message=why)
        )


class LeastWait:
    """A ``ClusterPolicy``, the fallback: least expected wait, fewest tasks, lowest row."""

    name = "least-wait"

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Mask) -> Choice:
        tasks = view.running + view.waiting_batch + view.waiting_stream
        rows = np.flatnonzero(fits)
        order = np.lexsort((rows, tasks[rows], view.expected_wait_s[rows]))
        node = int(rows[order[0]])
        return Choice(node=node, why=f"expected wait {view.expected_wait_s[node]:.1f} s")

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """It keeps no state."""
