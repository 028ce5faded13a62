"""PipelinesCore under the next master: its workers are others, and what comes back is as before."""

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


def _requested(now: float) -> set[str]:
    """The workers that a master requests for two tasks of an earlier one, of whose requests the
    record has the fifth."""
    workloads = w.PipelinesCore(
        lambda _key, ended: PipelineCluster(LeastWait(), RunningMeans(), ended=ended),
        lambda _now: APP,
        epoch=lambda: 2,
    )
    steps = workloads.recover(APP, KEY, [task("t"), task("u")], now, is_known=True)
    admitted = c.ApplicationAdmitted(
        application_id=APP, epoch=2, containers=(), last_executor_number=5
    )
    for _ in ("registered", "attached"):
        steps = workloads.reply_received(APP, c.Reply(call_id=0, result=admitted), now)
    return {
        request.executor_id
        for step in steps
        if isinstance(step, w.ReportToMaster) and isinstance(step.event, e.ContainersRequested)
        for request in step.event.requests
    }


def test_no_two_masters_number_workers_alike() -> None:
    """A record may be older than the last requests, and their workers may run somewhere; a store
    may be an older copy, and the epochs of two masters the same."""
    first, second = _requested(1_700_000_000.0), _requested(1_700_000_000.5)
    assert len(first) == len(second) == 2
    assert not {str(x) for x in range(1, 100_000)} & (first | second)
    assert not first & second


def test_what_a_worker_brings_back_counts_as_work_there() -> None:
    cluster = PipelineCluster(LeastWait(), RunningMeans())
    cluster.handle(m.TaskRecovered(now=0.0, task=task("t"), until_s=10.0))
    back = m.NodeJoined(now=1.0, capacity=capacity("n1"), tasks=((TaskId("t"), -7),))
    cluster.handle(back)
    row = cluster.table.nodes[NodeName("n1")]
    assert (cluster.tasks[TaskId("t")].node, list(row.placed)) == ("n1", ["t"])
    assert row.unreported == {TaskId("t"): 1.0}  # as long as a step takes of which nothing is known
