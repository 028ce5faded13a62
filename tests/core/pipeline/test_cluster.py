"""The cluster's core: where tasks go, and that none is lost or finished twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hrm.core.vocabulary.model import NodeName
from hrm.errors import AlreadyExists, LimitReached, NotFound
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import ClusterBounds, LeastWait, PipelineCluster
from hrm.pipelines.core.model import (
    Choice,
    ClusterPolicy,
    Device,
    PipelineClusterView,
    Row,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.core.node_messages import EndTask, NodeCapacity, NodeLoad, TaskOutcome
from hrm.pipelines.core.task_record import TaskRecord
from tests.core.pipeline.building import BOTH, GPU, Node, capacity, pipeline, subtask, task
from tests.core.pipeline.invariants import check_cluster
from tests.core.pipeline.running_means import RunningMeans


def ended(
    now: float,
    node: NodeName,
    name: str,
    *,
    attempt: int = 1,
    outcome: TaskOutcome = TaskOutcome.DONE,
    message: str = "",
) -> m.TaskEnded:
    end = EndTask(
        task_id=TaskId(name), attempt=attempt, outcome=outcome, message=message, timings=()
    )
    return m.TaskEnded(now=now, name=node, end=end)


class Cluster:
    def __init__(
        self, policy: ClusterPolicy | None = None, bounds: ClusterBounds | None = None
    ) -> None:
        self.core = PipelineCluster(policy or LeastWait(), RunningMeans(), bounds=bounds)
        self.placed: dict[str, m.PlaceTask] = {}
        self.cancelled: list[m.CancelTask] = []
        self.finished: list[m.FinishTask] = []

    def handle(self, event: m.ClusterEvent) -> list[m.ClusterCommand]:
        commands = self.core.handle(event)
        check_cluster(self.core)
        for command in commands:
            if isinstance(command, m.PlaceTask):
                self.placed[command.task.task_id] = command
            elif isinstance(command, m.CancelTask):
                self.cancelled.append(command)
            elif isinstance(command, m.FinishTask):
                self.finished.append(command)
        return commands

    def join(self, what: NodeCapacity, now: float = 0.0, **more: object) -> None:
        self.handle(m.NodeJoined(now=now, capacity=what, **more))  # type: ignore[arg-type]

    def submit(self, spec: TaskSpec, now: float = 0.0) -> None:
        self.handle(m.TaskSubmitted(now=now, task=spec))

    def end(
        self, name: str, now: float, outcome: TaskOutcome = TaskOutcome.DONE, message: str = ""
    ) -> None:
        place = self.placed[name]
        self.handle(
            ended(now, place.node, name, attempt=place.attempt, outcome=outcome, message=message)
        )

    def why(self, name: str) -> str:
        return self.core.explain(TaskId(name))


def test_tasks_go_to_the_node_with_the_least_to_do() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    cluster.join(capacity("n2"))
    for name in "abcd":
        cluster.submit(task(name))
    assert [cluster.placed[name].node for name in "abcd"] == ["n1", "n2", "n1", "n2"]
    cluster.end("a", 3.0)
    (finish,) = cluster.finished
    assert (finish.outcome, finish.node, finish.response_s) == (TaskOutcome.DONE, "n1", 3.0)
    assert cluster.why("a") == "done"
    assert "at n2 (" in cluster.why("b")


def test_a_full_queue_refuses_by_name_and_number() -> None:
    cluster = Cluster(bounds=ClusterBounds(queue_limit=2))
    cluster.submit(task("a"))
    cluster.submit(task("b"))
    with pytest.raises(LimitReached, match="pipeline_queue_limit is 2"):
        cluster.submit(task("c"))
    with pytest.raises(AlreadyExists, match="task a is there"):
        cluster.submit(task("a"))
    assert "none runs yet" in cluster.why("a")
    cluster.join(capacity("n1"))
    assert set(cluster.placed) == {"a", "b"}


def test_a_task_that_fits_nowhere_steps_aside_and_reports_it() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    cluster.submit(task("gpu", pipeline(subtask("a", on=GPU, gpu_memory_mib=100))))
    cluster.submit(task("cpu"))
    assert set(cluster.placed) == {"cpu"}
    assert "could ever run" in cluster.why("gpu")
    cluster.join(capacity("n2", gpus=1))
    assert cluster.placed["gpu"].node == "n2"


def test_the_mask_is_the_rule_of_the_nodes() -> None:
    cluster = Cluster()
    cluster.join(capacity("small", memory_mib=100))
    cluster.join(capacity("tight", gpus=1, gpu_memory_mib=1000))
    cluster.join(capacity("wide", gpus=1, gpu_memory_mib=1200))
    spec = task("t", pipeline(subtask("a"), subtask("b", "a", on=GPU, gpu_memory_mib=950)))
    could = cluster.core.table.could_ever(spec)
    assert could.tolist() == [False, False, True]
    for name, fits in zip(("small", "tight", "wide"), could, strict=True):
        node = Node(cluster.core.table.nodes[NodeName(name)].capacity)
        node.place(spec)
        assert bool(node.ended) is not bool(fits)


def test_the_tasks_of_a_lost_node_are_placed_again_in_their_order() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    for name in "ab":
        cluster.submit(task(name))
    cluster.handle(m.NodeLost(now=1.0, name=NodeName("n1"), why="killed"))
    assert list(cluster.core.stranded) == ["a", "b"]
    assert "node n1 was lost: killed" in cluster.why("a")
    cluster.join(capacity("n2"), 2.0)
    assert cluster.placed["a"].node == "n2" and cluster.placed["a"].attempt == 2
    late = ended(3.0, NodeName("n1"), "a")
    assert cluster.handle(late) == [], "an answer of the lost node counts no more"
    cluster.end("a", 4.0)
    cluster.handle(ended(5.0, NodeName("n2"), "a", attempt=2))
    assert [one.task_id for one in cluster.finished] == ["a"], "answered once"


def test_a_task_that_loses_its_node_too_often_fails() -> None:
    cluster = Cluster(bounds=ClusterBounds(attempts_limit=2))
    cluster.submit(task("t"))
    for number in (1, 2):
        cluster.join(capacity(f"n{number}"))
        cluster.handle(m.NodeLost(now=float(number), name=NodeName(f"n{number}"), why="died"))
    (finish,) = cluster.finished
    assert finish.outcome is TaskOutcome.FAILED
    assert "2 times" in finish.message and "n2 was lost: died" in finish.message


def test_a_node_that_ended_as_ordered_costs_its_tasks_none_of_their_attempts() -> None:
    cluster = Cluster(bounds=ClusterBounds(attempts_limit=1, given_back_limit=3))
    cluster.submit(task("t"))
    for number in (1, 2):
        cluster.join(capacity(f"n{number}"), float(number))
        assert cluster.placed["t"].node == f"n{number}"
        lost = m.NodeLost(
            now=number + 0.5, name=NodeName(f"n{number}"), why="preempted", counts=False
        )
        cluster.handle(lost)
    assert not cluster.finished
    assert "node n2 has ended: preempted" in cluster.why("t")
    cluster.join(capacity("n3"), 3.0)
    cluster.handle(m.NodeLost(now=3.5, name=NodeName("n3"), why="preempted", counts=False))
    (finish,) = cluster.finished
    assert finish.outcome is TaskOutcome.FAILED, "not without end"
    assert "given back 3 times" in finish.message and "preempted" in finish.message


def test_when_there_will_be_no_node_all_tasks_end_wherever_they_are() -> None:
    cluster = Cluster(bounds=ClusterBounds(node_tasks_limit=1))
    cluster.join(capacity("n1"))
    cluster.submit(task("placed"))
    cluster.submit(task("stranded", pipeline(subtask("a", on=GPU))))
    cluster.submit(task("queued"))
    why = "its application was killed"
    cluster.handle(m.AllEnded(now=2.0, outcome=TaskOutcome.CANCELLED, why=why))
    ends = {x.task_id: (x.outcome, x.message, x.response_s) for x in cluster.finished}
    assert ends == dict.fromkeys(
        ("placed", "stranded", "queued"), (TaskOutcome.CANCELLED, why, 2.0)
    )
    assert not cluster.core.tasks
    cluster.end("placed", 3.0)
    assert len(cluster.finished) == 3, "a late end is no other end"


def test_clusters_may_share_what_has_ended() -> None:
    ended_tasks: dict[TaskId, TaskRecord] = {}
    cores = [PipelineCluster(LeastWait(), RunningMeans(), ended=ended_tasks) for _ in range(2)]
    for number, core in enumerate(cores):
        core.handle(m.TaskSubmitted(now=0.0, task=task(f"t{number}")))
        core.handle(m.CancelAsked(now=1.0, task_id=TaskId(f"t{number}")))
    assert list(ended_tasks) == ["t0", "t1"]
    assert cores[0].ended is cores[1].ended


def test_silent_nodes_are_lost() -> None:
    cluster = Cluster(bounds=ClusterBounds(node_timeout_s=10.0))
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    for second in range(1, 11):
        cluster.handle(m.ClusterTicked(now=float(second)))
    assert len(cluster.core.table.names) == 1
    cluster.handle(m.ClusterTicked(now=11.0))
    assert len(cluster.core.table.names) == 0
    assert list(cluster.core.queue) == [] and list(cluster.core.stranded) == ["t"]


def test_a_master_that_slept_gives_its_nodes_a_fresh_limit() -> None:
    cluster = Cluster(bounds=ClusterBounds(node_timeout_s=10.0))
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    cluster.handle(m.ClusterTicked(now=60.0))
    for second in range(61, 71):
        cluster.handle(m.ClusterTicked(now=float(second)))
    assert len(cluster.core.table.names) == 1, "its silence counts from the master's waking"
    cluster.handle(m.ClusterTicked(now=71.0))
    assert len(cluster.core.table.names) == 0


def test_a_node_that_comes_back_keeps_what_is_its_own_and_drops_the_rest() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    for name in "ab":
        cluster.submit(task(name))
    cluster.join(capacity("n1"), 1.0, tasks=((TaskId("a"), 1), (TaskId("old"), 1)))
    assert [one.task_id for one in cluster.cancelled] == ["old"]
    assert cluster.placed["a"].attempt == 1
    assert cluster.placed["b"].attempt == 2, "it had never arrived there"


def test_what_is_given_back_goes_elsewhere_and_counts_as_no_attempt() -> None:
    cluster = Cluster(bounds=ClusterBounds(attempts_limit=1))
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    cluster.handle(m.NodeAway(now=1.0, name=NodeName("n1")))
    cluster.join(capacity("n2"), 1.0)
    cluster.end("t", 2.0, TaskOutcome.GIVEN_BACK, "draining")
    assert cluster.placed["t"].node == "n2"
    assert not cluster.finished


def test_what_is_refused_goes_to_another_machine_and_counts() -> None:
    cluster = Cluster(bounds=ClusterBounds(attempts_limit=3))
    for name, machine in (("w1", "n1"), ("w2", "n1"), ("w3", "n2")):
        cluster.join(replace(capacity(name), machine=machine))
    cluster.submit(task("t"))
    cluster.submit(task("u"))
    assert cluster.placed["t"].node == "w1"
    cluster.end("t", 1.0, TaskOutcome.REFUSED, "node n1: result_dir /shared: no such directory")
    assert cluster.placed["t"].node == "w3", "w2 is on the same machine"
    cluster.end("t", 2.0, TaskOutcome.REFUSED, "node n2: result_dir /shared: no such directory")
    assert cluster.placed["t"].attempt == 3, "no machine is left, but an attempt is"
    cluster.submit(task("v"), 2.0)
    assert "v" in cluster.placed, "others are not held up"
    cluster.end("t", 3.0, TaskOutcome.REFUSED, "node n2: its files cannot be written")
    (finish,) = cluster.finished
    assert finish.outcome is TaskOutcome.FAILED
    assert "refused" in finish.message and "3 times" in finish.message
    assert "node n2: its files cannot be written" in finish.message


def test_a_cancelled_task_ends_at_once_wherever_it_is() -> None:
    cluster = Cluster()
    cluster.submit(task("queued"))
    cluster.handle(m.CancelAsked(now=1.0, task_id=TaskId("queued")))
    cluster.join(capacity("n1"))
    cluster.submit(task("placed"))
    cluster.handle(m.CancelAsked(now=2.0, task_id=TaskId("placed")))
    assert [one.outcome for one in cluster.finished] == [TaskOutcome.CANCELLED] * 2
    assert [one.task_id for one in cluster.cancelled] == ["placed"]
    cluster.end("placed", 3.0)
    assert len(cluster.finished) == 2
    with pytest.raises(NotFound):
        cluster.handle(m.CancelAsked(now=3.0, task_id=TaskId("nobody")))


def _load(tasks: frozenset[TaskId] = frozenset(), wait_s: float = 0.0) -> NodeLoad:
    return NodeLoad(
        at=0.0,
        cpu=0.5,
        gpu=0.0,
        memory=0.25,
        gpu_memory=0.0,
        sent=0.0,
        received=0.0,
        running=len(tasks),
        waiting_batch=0,
        waiting_stream=0,
        expected_wait_s=wait_s,
        free_cores=1,
        free_memory_mib=1000,
        free_gpu_memory_mib=0,
        tasks=tasks,
    )


def test_the_view_counts_what_was_placed_since_a_node_reported() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1", cores=2))
    cluster.core.estimates.observe_run(Row("kind/a", 0, ""), Device.CPU, 4.0, 0.0, 0.0, ())
    cluster.submit(task("a"))
    view, _ = cluster.core.view(task("next"), 1.0)
    assert view.expected_wait_s.tolist() == [2.0] and view.waiting_batch.tolist() == [1.0]
    load = _load(frozenset({TaskId("a")}), wait_s=1.5)
    cluster.handle(m.PipelineNodeReported(now=2.0, name=NodeName("n1"), load=load))
    view, fits = cluster.core.view(task("next"), 5.0)
    assert view.expected_wait_s.tolist() == [1.5] and view.waiting_batch.tolist() == [0.0]
    assert view.running.tolist() == [1.0] and view.report_age_s.tolist() == [3.0]
    assert view.task_s.tolist() == [4.0] and fits.tolist() == [True]
    assert view.arrival_rate_per_s == pytest.approx(1 / 60)


class _Reply:
    """A policy with a fixed choice."""

    name = "says"

    def __init__(self, node: int) -> None:
        self.node = node
        self.ends: list[tuple[str, bool]] = []

    def choose(
        self, task: TaskSpec, view: PipelineClusterView, fits: npt.NDArray[np.bool_]
    ) -> Choice:
        return Choice(node=self.node, why="so said")

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.ends.append((task_id, ok))


def test_a_policy_that_names_a_node_it_may_not_is_replaced_and_counted() -> None:
    cluster = Cluster(policy=_Reply(7))
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    assert cluster.placed["t"].node == "n1"
    assert cluster.core.policy_faults == 1 and "chose node 7" in cluster.why("t")


def test_a_task_at_a_worker_says_how_long_its_work_may_take() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    assert "nine times in ten" not in cluster.why("t")
    load = replace(_load(wait_s=4.0), expected_wait_p90_s=7.0)
    cluster.handle(m.PipelineNodeReported(now=1.0, name=NodeName("n1"), load=load))
    assert "work for 4.0 s is there, nine times in ten for at most 7.0 s" in cluster.why("t")


def test_a_policy_may_wait_and_is_asked_again_after_the_next_event() -> None:
    policy = _Reply(-1)
    cluster = Cluster(policy=policy)
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    assert not cluster.placed and "so said" in cluster.why("t")
    policy.node = 0
    cluster.handle(m.PipelineNodeReported(now=1.0, name=NodeName("n1"), load=_load()))
    assert cluster.placed["t"].why == "so said"
    cluster.end("t", 2.0)
    assert policy.ends == [("t", True)]


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_every_task_gets_one_end(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = Cluster(bounds=ClusterBounds(attempts_limit=4, node_tasks_limit=5))
    names = [f"n{i}" for i in range(4)]
    submitted, now = 0, 0.0
    for _ in range(300):
        now += 0.1
        name = names[int(rng.integers(4))]
        live = list(cluster.core.tasks)
        match int(rng.integers(0, 8)):
            case 0:
                cluster.join(capacity(name), now)
            case 1 if rng.random() < 0.3:
                counts = bool(rng.random() < 0.5)
                cluster.handle(m.NodeLost(now=now, name=NodeName(name), counts=counts))
            case 2:
                cluster.handle(m.NodeAway(now=now, name=NodeName(name)))
            case 3 | 4:
                submitted += 1
                cluster.submit(task(f"t{submitted}"), now)
            case 5 | 6 if cluster.placed:
                chosen = list(cluster.placed)[int(rng.integers(len(cluster.placed)))]
                outcomes = list(TaskOutcome)
                cluster.end(chosen, now, outcomes[int(rng.integers(len(outcomes)))])
            case 7 if live and rng.random() < 0.3:
                cluster.handle(m.CancelAsked(now=now, task_id=live[0]))
    for name in (*names, "last"):
        cluster.join(capacity(name), now)
    while cluster.core.tasks:
        now += 0.1
        for name in [str(one) for one in cluster.core.tasks]:
            cluster.end(name, now)
    finished_ids = [one.task_id for one in cluster.finished]
    assert sorted(finished_ids) == sorted(f"t{i}" for i in range(1, submitted + 1))


def test_a_node_that_gave_back_gets_nothing_before_it_has_reported() -> None:
    cluster = Cluster()
    cluster.join(capacity("n1"))
    cluster.submit(task("t"))
    first = cluster.placed["t"]
    cluster.end("t", 1.0, TaskOutcome.GIVEN_BACK, "it is busy")
    assert cluster.placed["t"] is first, "it would bounce, up to the limit, within a moment"
    assert "gave one back" in cluster.core.explain(TaskId("t"))
    cluster.handle(m.PipelineNodeReported(now=2.0, name=NodeName("n1"), load=_load()))
    assert cluster.placed["t"].attempt == 2


def test_one_that_waits_for_a_worker_that_is_away_does_not_hold_up_the_others() -> None:
    cluster = Cluster()
    cluster.join(capacity("gpu", gpus=1))
    cluster.join(capacity("cpu"))
    cluster.handle(m.NodeAway(now=1.0, name=NodeName("gpu")))
    cluster.submit(task("needs-gpu", pipeline(subtask("a", on=GPU))), 1.0)
    cluster.submit(task("other"), 1.0)
    assert cluster.placed["other"].node == "cpu"
    assert "are away" in cluster.core.explain(TaskId("needs-gpu"))
    cluster.join(capacity("gpu", gpus=1), 2.0)
    assert cluster.placed["needs-gpu"].node == "gpu"


def test_arrivals_are_forgotten_even_if_no_policy_is_asked() -> None:
    cluster = Cluster()
    for second in range(200):
        cluster.submit(task(f"t{second}"), float(second))
    assert len(cluster.core._arrivals) <= 60


def test_places_agree_with_explain() -> None:
    cluster = Cluster(policy=_Reply(-1))
    cluster.join(capacity("n1"))
    for name in ("a", "b", "c"):
        cluster.submit(task(name))
    places = cluster.core.places()
    assert places == {"a": 0, "b": 1, "c": 2}
    assert "2 before it" in cluster.core.explain(TaskId("c"), places)
    assert cluster.core.explain(TaskId("c")) == cluster.core.explain(TaskId("c"), places)


def test_those_behind_wait_for_what_the_first_waits_for() -> None:
    cluster = Cluster(bounds=ClusterBounds(node_tasks_limit=1))
    for name in ("a", "b", "c"):
        cluster.submit(task(name))
    assert "none runs yet" in cluster.why("c")
    cluster.join(capacity("n1"))
    assert cluster.placed["a"].node == "n1"
    assert "none runs yet" not in cluster.why("c")
    assert cluster.why("c").replace("1 before it", "") == cluster.why("b").replace(":", ", :", 1)


def test_of_many_that_are_alike_one_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.join(capacity("gpu", gpus=1))
    cluster.handle(m.NodeAway(now=1.0, name=NodeName("gpu")))
    for number in range(50):
        cluster.submit(task(f"t{number}", pipeline(subtask("a", on=GPU))), 1.0)
    asked: list[str] = []
    fits = cluster.core.table.fits

    def counted(spec: TaskSpec, limit: int) -> tuple[npt.NDArray[np.bool_], str]:
        asked.append(spec.task_id)
        return fits(spec, limit)

    monkeypatch.setattr(cluster.core.table, "fits", counted)
    cluster.join(capacity("cpu"), 2.0)
    assert len(asked) == 1
    assert all("are away" in cluster.core.explain(one) for one in cluster.core.tasks)


def test_the_queue_is_in_the_order_in_which_tasks_are_due() -> None:
    cluster = Cluster(policy=_Reply(-1))
    cluster.join(capacity("n1"))
    for name, seconds in (("long", 100.0), ("short", 1.0)):
        row = Row(f"kind/{name}", 0, "")
        cluster.core.estimates.declare(row, subtask(name))
        cluster.core.estimates.observe_run(row, Device.CPU, seconds, 0.0, 0.0, ())
    long, short = pipeline(subtask("long")), pipeline(subtask("short"))
    cluster.submit(task("a", long, at=0.0))
    cluster.submit(task("b", short, at=5.0), 5.0)
    cluster.submit(task("c", short, at=1000.0), 1000.0)
    assert list(cluster.core.queue) == ["b", "a", "c"], "a may be passed for 1,000 s less b's own"


def test_a_view_counts_the_steps_whose_time_was_never_measured() -> None:
    """Of inputs of about this size, on whatever device."""
    steps = (subtask("a"), subtask("b", on=BOTH), subtask("c", on=GPU))
    seen: list[int] = []

    class Asked(LeastWait):
        def choose(
            self, task: TaskSpec, view: PipelineClusterView, fits: npt.NDArray[np.bool_]
        ) -> Choice:
            seen.append(view.unmeasured_steps)
            return super().choose(task, view, fits)

    cluster = Cluster(Asked())
    cluster.join(capacity(gpus=1))
    estimates = cluster.core.estimates
    cluster.submit(task("t0", pipeline(*steps)))
    estimates.observe_run(Row("kind/a", 0, "P4"), Device.CPU, 3.0, 0.0, 0.0, ())
    cluster.submit(task("t1", pipeline(*steps)))
    estimates.observe_run(Row("kind/b", 0, "P4"), Device.CPU, 3.0, 0.0, 0.0, ())
    estimates.observe_run(Row("kind/c", 1, "P4"), Device.GPU, 3.0, 0.0, 0.0, ())
    cluster.submit(task("t2", pipeline(*steps)))
    estimates.observe_run(Row("kind/c", 0, "P4"), Device.GPU, 3.0, 0.0, 0.0, ())
    cluster.submit(task("t3", pipeline(*steps)))
    assert seen == [3, 2, 1, 0]
