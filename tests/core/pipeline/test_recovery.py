"""Workloads under the next master: its workers are others, and what comes back is as before."""

from __future__ import annotations

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, NodeName, WorkloadClass
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import workloads as w
from hrm.pipelines.core.cluster import LeastWait, PipelineCluster
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.workload import WorkloadKey
from tests.core.pipeline.building import capacity, task
from tests.core.pipeline.pool import SMALL
from tests.core.pipeline.running_means import RunningMeans

APP = ApplicationId("pipelines-1-1-0001")
KEY = WorkloadKey("ana", "", WorkloadClass.BATCH, "p", "", SMALL)


def _requested(epoch: int, last_number: int) -> set[str]:
    """The workers that the master of an epoch requests for two tasks of an earlier one, whose
    record of the application ends with this number."""
    workloads = w.Workloads(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
        epoch=lambda: epoch,
    )
    steps = workloads.recover(APP, KEY, [task("t"), task("u")], 0.0, is_known=True)
    admitted = c.ApplicationAdmitted(
        application_id=APP, epoch=epoch, containers=(), last_executor_number=last_number
    )
    for _ in ("registered", "attached"):
        steps = workloads.reply_received(APP, c.Reply(call_id=0, result=admitted), 0.0)
    return {
        request.executor_id
        for step in steps
        if isinstance(step, w.ReportToMaster) and isinstance(step.event, e.ContainersRequested)
        for request in step.event.requests
    }


def test_no_two_masters_number_workers_alike() -> None:
    """A record may be older than the last requests, and their workers may run somewhere."""
    second, third = _requested(2, 5), _requested(3, 5)
    assert len(second) == len(third) == 2
    assert not {str(x) for x in range(1, 100_000)} & (second | third)
    assert not second & third


def test_what_a_worker_brings_back_counts_as_work_there() -> None:
    cluster = PipelineCluster(LeastWait(), RunningMeans())
    cluster.handle(m.TaskRecovered(now=0.0, task=task("t"), until_s=10.0))
    back = m.NodeJoined(now=1.0, capacity=capacity("n1"), tasks=((TaskId("t"), -7),))
    cluster.handle(back)
    row = cluster.table.nodes[NodeName("n1")]
    assert (cluster.tasks[TaskId("t")].node, list(row.placed)) == ("n1", ["t"])
    assert row.unreported == {TaskId("t"): 1.0}  # as long as a step takes of which nothing is known
