"""PipelinesCore under the next master: its workers are others, and what comes back is as before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import hosted
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    ContainerStatus,
    NodeName,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.errors import Unavailable
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import pipelines_core as w
from hrm.pipelines.core.cluster import LeastWait, PipelineCluster
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.pool_facts import Alone
from hrm.pipelines.core.workload import ASKED_MAX, WorkloadKey
from hrm.pipelines.core.workload_steps import CompleteOpening, FollowCommand, WorkloadStep
from tests.core.pipeline.building import capacity, task
from tests.core.pipeline.pool import SMALL
from tests.core.pipeline.running_means import RunningMeans

APP = ApplicationId("pipelines-1-1-0001")
KEY = WorkloadKey("ana", "", WorkloadClass.BATCH, "p", "", SMALL)
RECORD = ApplicationRecord(application_id=APP, submission_key="key", name="p", user="ana")


class _Second(Alone):
    epoch = 2


def _taken_over(
    now: float, *containers: ContainerStatus
) -> tuple[w.PipelinesCore, list[WorkloadStep]]:
    """The next master's, with two tasks of an earlier one and the containers that nodes have
    reported; of the earlier one's requests the record has the fifth."""
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
        facts=_Second(),
    )
    steps = workloads.recover(APP, KEY, [task("t"), task("u")], now, known=RECORD)
    admitted = c.ApplicationAdmitted(
        application_id=APP, epoch=2, containers=containers, last_executor_number=5
    )
    for _ in ("registered", "attached"):
        steps = workloads.reply_received(APP, c.Reply(call_id=0, result=admitted), now)
    return workloads, steps


def _requested(steps: list[WorkloadStep]) -> set[str]:
    return {
        request.executor_id
        for step in steps
        if isinstance(step, hosted.SubmitToMaster) and isinstance(step.event, e.ContainersRequested)
        for request in step.event.requests
    }


def _released(steps: list[WorkloadStep]) -> set[str]:
    return {
        executor_id
        for step in steps
        if isinstance(step, hosted.SubmitToMaster) and isinstance(step.event, e.ContainersReleased)
        for executor_id in step.event.executor_ids
    }


def _running(executor_id: str) -> ContainerStatus:
    return ContainerStatus(
        container_id=container_id_of(APP, executor_id),
        application_id=APP,
        executor_id=executor_id,
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=SMALL.resources,
        state=ContainerState.RUNNING,
        node=NodeName("n1"),
    )


def test_no_two_masters_number_workers_alike() -> None:
    """A record may be older than the last requests, and their workers may run somewhere; a store
    may be an older copy, and the epochs of two masters the same."""
    first, second = (_requested(_taken_over(1_700_000_000.0 + x)[1]) for x in (0.0, 0.5))
    assert len(first) == len(second) == 2
    assert not {str(x) for x in range(1, 100_000)} & (first | second)
    assert not first & second


def test_requests_are_taken_back_before_a_worker_that_may_have_a_task() -> None:
    """Those that have come back with their nodes have not connected yet."""
    now = 1_700_000_000.0
    workloads, steps = _taken_over(now, _running("3"))
    (requested,) = _requested(steps)
    steps = workloads.notice_received(APP, c.ContainerChanged(status=_running("4")), now)
    steps += workloads.ticked(now)
    assert _released(steps) == {requested}
    for second in range(60):
        assert not _released(workloads.ticked(now + second)), second


def test_what_a_worker_brings_back_counts_as_work_there() -> None:
    cluster = PipelineCluster(LeastWait(), RunningMeans())
    cluster.handle(m.TaskRecovered(now=0.0, task=task("t"), until_s=10.0))
    back = m.NodeJoined(now=1.0, capacity=capacity("n1"), tasks=((TaskId("t"), -7),))
    cluster.handle(back)
    row = cluster.table.nodes[NodeName("n1")]
    assert (cluster.tasks[TaskId("t")].node, list(row.placed)) == ("n1", ["t"])
    assert row.unreported == {TaskId("t"): 1.0}  # as long as a step takes of which nothing is known


def test_one_that_still_waits_at_its_node_is_released_as_it_can_have_no_task() -> None:
    now = 1_700_000_000.0
    waiting = replace(_running("3"), state=ContainerState.WAITING)
    workloads, _ = _taken_over(now, waiting)
    steps = [x for name in ("t", "u") for x in workloads.cancel(TaskId(name), "enough", now)]
    assert "3" in _released(steps)


def test_only_an_earlier_masters_placement_comes_back() -> None:
    """A number of this master's is made up: nothing was placed yet."""
    cluster = PipelineCluster(LeastWait(), RunningMeans())
    cluster.handle(m.TaskRecovered(now=0.0, task=task("t"), until_s=10.0))
    made_up = m.NodeJoined(now=1.0, capacity=capacity("n1"), tasks=((TaskId("t"), 2**31 - 1),))
    commands = cluster.handle(made_up)
    assert cluster.tasks[TaskId("t")].node is None
    assert any(isinstance(x, m.CancelTask) for x in commands)


def test_tasks_of_an_application_that_was_killed_before_their_ends_were_written_are_cancelled() -> (
    None
):
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
        facts=_Second(),
    )
    killed = replace(RECORD, state=ApplicationState.KILLED, message="by ana")
    steps = workloads.recover(APP, KEY, [task("t"), task("u")], 100.0, known=killed)
    ends = [
        (step.command.task_id, step.command.outcome, step.command.message)
        for step in steps
        if isinstance(step, FollowCommand) and isinstance(step.command, m.FinishTask)
    ]
    why = f"{APP} has ended: by ana"
    assert ends == [
        (TaskId("t"), TaskOutcome.CANCELLED, why),
        (TaskId("u"), TaskOutcome.CANCELLED, why),
    ]
    assert not any(isinstance(step, hosted.CallMaster) for step in steps)
    assert workloads.live == {}


# --- a master that is busy, or whose disk is full ------------------------------------------------

BUSY = c.Refuse(call_id=0, error=Unavailable("the disk is full"))


def _asked(steps: list[WorkloadStep]) -> int:
    return sum(isinstance(step, hosted.CallMaster) for step in steps)


def _known_by(known: ApplicationRecord | None) -> w.PipelinesCore:
    """What an earlier master has accepted, or of which the store has only the task."""
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
    )
    assert _asked(workloads.recover(APP, KEY, [task("t")], 0.0, known=known)) == 1
    return workloads


def test_what_has_been_accepted_is_asked_for_again_while_the_master_is_busy() -> None:
    workloads, now = _known_by(RECORD), 0.0
    for _ in range(5):
        assert _asked(workloads.reply_received(APP, BUSY, now)) == 0
        assert _asked(workloads.ticked(now + 0.5)) == 0, "not at once"
        now += 1.0
        assert _asked(workloads.ticked(now)) == 1
        assert _asked(workloads.ticked(now + 0.1)) == 0, "while a reply is awaited"
    admitted = c.ApplicationAdmitted(
        application_id=APP, epoch=2, containers=(), last_executor_number=0
    )
    assert _asked(workloads.reply_received(APP, c.Reply(call_id=0, result=admitted), now)) == 1
    assert _asked(workloads.reply_received(APP, BUSY, now)) == 0
    assert _asked(workloads.ticked(now + 1.0)) == 1, "to attach, too"
    assert workloads.live


def test_it_is_not_asked_for_without_end() -> None:
    workloads, now = _known_by(RECORD), 0.0
    for _ in range(ASKED_MAX):
        workloads.reply_received(APP, BUSY, now)
        now += 1.0
        workloads.ticked(now)
    assert not workloads.live
    record = workloads.find(TaskId("t"))
    assert record is not None and record.outcome is TaskOutcome.FAILED


def test_a_new_one_is_refused_at_once() -> None:
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
    )
    workloads.open(7, KEY, TaskId("t"), 0.0)
    steps = workloads.reply_received(APP, BUSY, 1.0)
    assert CompleteOpening(7, BUSY.error) in steps


def test_who_waits_for_a_new_one_is_told_when_the_master_is_too_slow() -> None:
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
    )
    workloads.open(7, KEY, TaskId("t"), 0.0)
    assert not workloads.ticked(w.OPENING_TIMEOUT_S - 0.1)
    (step,) = workloads.ticked(w.OPENING_TIMEOUT_S)
    assert isinstance(step, CompleteOpening) and isinstance(step.result, Unavailable)


# --- the end of the recovery ----------------------------------------------------------------------


def _placed(steps: list[WorkloadStep]) -> set[str]:
    commands = [x.command for x in steps if isinstance(x, FollowCommand)]
    return {x.task.task_id for x in commands if isinstance(x, m.PlaceTask)}


def test_tasks_are_placed_once_all_workers_are_back() -> None:
    workloads, _ = _taken_over(100.0, _running("6"), _running("7"))
    first, second = (container_id_of(APP, x) for x in ("6", "7"))
    joined = m.NodeJoined(now=101.0, capacity=capacity(first), tasks=((TaskId("t"), -1),))
    assert not _placed(workloads.worker_reported(first, joined)), "the other may have the other"
    assert not _placed(workloads.ticked(102.0))
    joined = m.NodeJoined(now=103.0, capacity=capacity(second))
    placed = _placed(workloads.worker_reported(second, joined))
    assert (placed | _placed(workloads.ticked(103.5))) == {"u"}


def test_not_while_nodes_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Second, "recovering", True)
    workloads, _ = _taken_over(100.0, _running("6"))
    first = container_id_of(APP, "6")
    joined = m.NodeJoined(now=101.0, capacity=capacity(first))
    assert not _placed(workloads.worker_reported(first, joined))
    assert not _placed(workloads.ticked(102.0))
    monkeypatch.setattr(_Second, "recovering", False)
    assert _placed(workloads.ticked(103.0)) == {"t", "u"}


def test_not_while_it_has_not_heard_of_a_worker_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    workloads, _ = _taken_over(100.0, _running("6"))
    first, second = (container_id_of(APP, x) for x in ("6", "7"))
    monkeypatch.setattr(_Second, "running", lambda _facts, _app: [first, second])
    joined = m.NodeJoined(now=101.0, capacity=capacity(first))
    assert not _placed(workloads.worker_reported(first, joined))
    assert not _placed(workloads.ticked(102.0)), "its node is back, its notice waits for the disk"
    workloads.notice_received(APP, c.ContainerChanged(status=_running("7")), 103.0)
    joined = m.NodeJoined(now=104.0, capacity=capacity(second), tasks=((TaskId("t"), -1),))
    placed = _placed(workloads.worker_reported(second, joined))
    assert (placed | _placed(workloads.ticked(104.5))) == {"u"}
