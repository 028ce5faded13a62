"""The order of tasks under overload: short and nearly finished first, and nothing passed for ever.

What a task has left is recounted here from the runs that the test has reported, not from the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import node_messages as nm
from hrm.pipelines.core.cluster import ClusterBounds, LeastWait, PipelineCluster
from hrm.pipelines.core.model import (
    Device,
    PipelineSpec,
    Row,
    SubtaskKey,
    SubtaskSpec,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.core.node import NodeBounds
from hrm.pipelines.core.node_messages import EndTask, ReportSubtask, RunOutcome, SubtaskTiming
from hrm.pipelines.core.order import (
    LINES_MAX,
    STRETCH,
    DueOrder,
    RemainingTimes,
    Speeds,
    Work,
    WorkStep,
)
from hrm.pipelines.core.subtasks import SubtaskState
from hrm.sim.actors.pipeline_estimates import PlainEstimates
from tests.core.pipeline.building import BOTH, CPU, GPU, Node, capacity, pipeline, subtask, task
from tests.core.pipeline.invariants import check_cluster
from tests.core.pipeline.running_means import RunningMeans

WORKS: Sequence[Work] = [(WorkStep(f"kind/{name}", 0, CPU),) for name in "abc"]
seconds = st.floats(0.0, 1e3)


def observe(estimates: RunningMeans, row: Row, device: Device, ran_s: float) -> None:
    estimates.observe_run(row, device, ran_s, 0.0, 0.0, ())


# --- the order and the remaining time ---


@given(
    st.lists(st.tuples(st.floats(0.0, 1e4), st.integers(0, 2)), max_size=40),
    st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=3),
    st.data(),
)
def test_the_order_is_that_of_a_sorted_list_whatever_the_works_take_meanwhile(
    several: list[tuple[float, int]], times: list[tuple[float, ...]], data: st.DataObject
) -> None:
    now_s = dict.fromkeys(WORKS, 0.0)
    order: DueOrder[str] = DueOrder(now_s.__getitem__)
    for number, (at_s, which) in enumerate(several):
        order.add(f"t{number}", WORKS[which], at_s, number)
    here = set(range(len(several)))
    for works_s in times:
        now_s.update(zip(WORKS, works_s, strict=True))
        for gone in data.draw(st.sets(st.integers(0, len(several) + 3), max_size=5)):
            order.discard(f"t{gone}")
            here.discard(gone)

        def rank(number: int) -> tuple[float, float, int]:
            at_s, which = several[number]
            return at_s + STRETCH * now_s[WORKS[which]], at_s, number

        expected = [f"t{number}" for number in sorted(here, key=rank)]
        assert list(order) == expected
        assert len(order) == len(expected) and all(key in order for key in expected)
        assert [order.ahead(key) for key in expected] == list(range(len(expected)))
        assert not expected or order.first() == expected[0]


def test_the_first_is_found_by_the_heads_of_the_lines_alone() -> None:
    asked: list[Work] = []

    def remaining_s(work: Work) -> float:
        asked.append(work)
        return 0.0

    order: DueOrder[int] = DueOrder(remaining_s)
    for number in range(3000):
        order.add(number, WORKS[number % 3], float(number), number)
    asked.clear()
    assert order.first() == 0
    assert len(asked) == len(WORKS)


def test_of_works_that_are_all_different_a_bounded_number_is_compared() -> None:
    asked: list[Work] = []

    def remaining_s(work: Work) -> float:
        asked.append(work)
        return 1000.0 if work else 0.0

    order: DueOrder[int] = DueOrder(remaining_s)
    count = 3 * LINES_MAX
    for number in range(count):
        order.add(number, (WorkStep(f"kind/{number}", 0, CPU),), float(number), number)
    asked.clear()
    assert order.first() == LINES_MAX, "the rest waits as what was never measured"
    assert len(asked) == LINES_MAX + 1
    assert list(order) == [*range(LINES_MAX, count), *range(LINES_MAX)]
    for number in range(count):
        order.discard(number)
    assert not len(order) and not order._lines


P4, H100, NO_GPU = Speeds("P4", 1.0, 1.0), Speeds("H100", 1.0, 1.0), Speeds("", 1.0, 0.0)


def remaining_s(
    on: frozenset[Device],
    machines: Iterable[Speeds],
    *runs: tuple[str, Device, float],
) -> float:
    estimates = RunningMeans()
    for model, device, ran_s in runs:
        observe(estimates, Row("kind/a", 0, model), device, ran_s)
    return RemainingTimes(estimates, machines)((WorkStep("kind/a", 0, on),))


def test_what_was_never_measured_counts_as_nothing() -> None:
    assert remaining_s(BOTH, [P4]) == 0.0
    assert remaining_s(BOTH, []) == 0.0


def test_a_step_counts_where_it_is_fastest_of_what_was_measured() -> None:
    assert remaining_s(BOTH, [P4], ("P4", Device.CPU, 60.0)) == 60.0
    assert remaining_s(BOTH, [P4], ("P4", Device.CPU, 60.0), ("P4", Device.GPU, 2.0)) == 2.0
    assert remaining_s(BOTH, [H100, P4], ("H100", Device.GPU, 7.0)) == 7.0, (
        "the P4 is yet to run it"
    )
    assert remaining_s(CPU, [P4], ("P4", Device.CPU, 60.0), ("P4", Device.GPU, 2.0)) == 60.0


def test_a_device_that_no_machine_has_counts_only_where_nothing_else_was_measured() -> None:
    on_both = [("", Device.CPU, 60.0), ("P4", Device.GPU, 1.0)]
    assert remaining_s(BOTH, [NO_GPU], *on_both) == 60.0
    assert remaining_s(BOTH, [NO_GPU], on_both[1]) == 1.0
    assert remaining_s(BOTH, [], *on_both) == 1.0, "no worker is there yet"


def test_times_are_those_of_the_machines_speed() -> None:
    slow, fast = Speeds("", 0.5, 0.0), Speeds("", 2.0, 0.0)
    assert remaining_s(CPU, [slow], ("", Device.CPU, 10.0)) == 20.0
    assert remaining_s(CPU, [slow, fast], ("", Device.CPU, 10.0)) == 5.0


def test_the_remaining_time_follows_what_is_measured_and_which_machines_are_there() -> None:
    estimates, work = RunningMeans(), (WorkStep("kind/a", 0, CPU),)
    times = RemainingTimes(estimates, [P4])
    assert times(work) == 0.0
    observe(estimates, Row("kind/a", 0, "P4"), Device.CPU, 30.0)
    assert times(work) == 30.0
    observe(estimates, Row("kind/a", 0, "P4"), Device.CPU, 10.0)
    assert times(work) == 20.0
    times.set_machines([Speeds("P4", 2.0, 0.0)])
    assert times(work) == 10.0


# --- at the master ---

PIPELINES: Sequence[PipelineSpec] = [
    pipeline(subtask("a")),
    pipeline(subtask("b")),
    pipeline(subtask("a"), subtask("c", "a")),
]


class MasterOrder(RuleBasedStateMachine):
    """Tasks come, wait for few places and end; times change with every run, and nodes are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        bounds = ClusterBounds(node_tasks_limit=1, node_timeout_s=1e9, attempts_limit=100)
        self.core = PipelineCluster(LeastWait(), PlainEstimates(), bounds=bounds)
        self.measured_s: dict[str, float] = {}
        self.joined = 0

    def left_s(self, spec: TaskSpec) -> float:
        """The latest time counts, which is how these estimates learn."""
        return sum(self.measured_s.get(one.kind, 0.0) for one in spec.pipeline.subtasks)

    def handle(self, event: m.ClusterEvent) -> None:
        commands = self.core.handle(event)
        check_cluster(self.core)
        placed = [one for one in commands if isinstance(one, m.PlaceTask)]
        behind = [self.core.tasks[one].spec for one in self.core.queue]
        for one in reversed(placed):
            for passed in behind:
                bound_s = passed.submitted_at_s + STRETCH * self.left_s(passed)
                assert one.task.submitted_at_s <= bound_s + 1e-6, (one.task, passed)
            behind.append(one.task)

    @rule(which=st.integers(0, 2), later_s=st.floats(0.0, 100.0))
    def submit(self, which: int, later_s: float) -> None:
        self.now += later_s
        name = f"t{len(self.core.tasks) + len(self.core.ended)}"
        spec = task(name, PIPELINES[which], at=self.now)
        self.handle(m.TaskSubmitted(now=self.now, task=spec))

    @precondition(lambda self: len(self.core.table.nodes) < 2)
    @rule()
    def join(self) -> None:
        self.joined += 1
        self.handle(m.NodeJoined(now=self.now, capacity=capacity(f"n{self.joined}")))

    @precondition(lambda self: len(self.core.table.nodes) > 1)
    @rule()
    def lose(self) -> None:
        name = next(iter(self.core.table.nodes))
        self.handle(m.NodeLost(now=self.now, name=name, why="it burns"))

    @precondition(lambda self: any(x.node for x in self.core.tasks.values()))
    @rule(ran_s=st.sampled_from([0.1, 1.0, 60.0, 3600.0]))
    def end(self, ran_s: float) -> None:
        record = next(x for x in self.core.tasks.values() if x.node)
        task_id, node, attempt = record.spec.task_id, record.node, record.attempt
        assert node is not None
        self.now += 0.1
        for one in record.spec.pipeline.subtasks:
            self.measured_s[one.kind] = ran_s
            report = ReportSubtask(
                task_id=task_id, attempt=attempt, timing=timing(task_id, one, ran_s)
            )
            self.handle(m.SubtaskReported(now=self.now, name=node, report=report))
        end = EndTask(
            task_id=task_id,
            attempt=attempt,
            outcome=nm.TaskOutcome.DONE,
            message="",
            timings=(),
        )
        self.handle(m.TaskEnded(now=self.now, name=node, end=end))

    @invariant()
    def places_are_those_of_the_queue(self) -> None:
        for ahead, task_id in enumerate(self.core.queue):
            assert self.core.queue.ahead(task_id) == ahead
            assert not ahead or f"{ahead} before it" in self.core.explain(task_id)


def timing(task_id: TaskId, one: SubtaskSpec, ran_s: float) -> SubtaskTiming:
    return SubtaskTiming(
        key=SubtaskKey(task_id, one.name),
        row=Row(one.kind, 0, ""),
        device=Device.CPU,
        number=0,
        run=1,
        outcome=RunOutcome.DONE,
        ready_at_s=0.0,
        started_at_s=0.0,
        waited_s=0.0,
        ran_s=ran_s,
        memory_mib=0.0,
        gpu_memory_mib=0.0,
    )


TestMasterOrder = MasterOrder.TestCase
TestMasterOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_backlog_that_came_before_anything_was_known_is_ordered_once_it_is() -> None:
    estimates = RunningMeans()
    core = PipelineCluster(LeastWait(), estimates, bounds=ClusterBounds(node_tasks_limit=1))
    for number in range(6):
        spec = task(f"t{number}", PIPELINES[number % 2], at=float(number))
        core.handle(m.TaskSubmitted(now=float(number), task=spec))
    observe(estimates, Row("kind/a", 0, ""), Device.CPU, 60.0)
    observe(estimates, Row("kind/b", 0, ""), Device.CPU, 1.0)
    (placed,) = (
        one
        for one in core.handle(m.NodeJoined(now=9.0, capacity=capacity("n1")))
        if isinstance(one, m.PlaceTask)
    )
    assert [placed.task.task_id, *core.queue] == ["t1", "t3", "t5", "t0", "t2", "t4"]


def test_the_master_and_a_node_rank_alike() -> None:
    """A step with a version for GPUs that a cluster without any has never run."""
    on_both, on_cpu = pipeline(subtask("g", on=BOTH)), pipeline(subtask("c"))
    cluster = PipelineCluster(LeastWait(), RunningMeans(), bounds=ClusterBounds(node_tasks_limit=0))
    cluster.handle(m.NodeJoined(now=0.0, capacity=capacity("n1", cores=1)))
    node = Node(capacity("n1", cores=1))
    node.place(task("runs", on_cpu))
    for name, spec in (("g", on_both), ("c", on_cpu)):
        cluster.handle(m.TaskSubmitted(now=2.0, task=task(name, spec, at=2.0)))
        node.place(task(name, spec, at=2.0), 2.0)
    for estimates in (cluster.estimates, node.estimates):
        for name, device, ran_s in (
            ("g", Device.CPU, 60.0),
            ("g", Device.GPU, 1.0),
            ("c", Device.CPU, 10.0),
        ):
            model = "P4" if device is Device.GPU else ""
            estimates.observe_run(Row(f"kind/{name}", 0, model), device, ran_s, 0.0, 0.0, ())
    assert list(cluster.queue) == ["c", "g"]
    assert [key.task_id for key in node.core._ready] == ["c", "g"]


def test_nodes_that_have_left_do_not_count_and_their_speed_does() -> None:
    core = PipelineCluster(LeastWait(), RunningMeans(), bounds=ClusterBounds(node_tasks_limit=0))
    (work,) = ((WorkStep("kind/a", 0, CPU),),)
    observe(core.estimates, Row("kind/a", 0, ""), Device.CPU, 10.0)  # type: ignore[arg-type]
    for name, speed in (("slow", 0.5), ("fast", 2.0)):
        machine = nm.NodeCapacity(
            name=NodeName(name), cores=1, memory_mib=4096, gpus=(), cpu_speed=speed
        )
        core.handle(m.NodeJoined(now=0.0, capacity=machine))
    assert core.table.remaining_s(work) == 5.0
    core.handle(m.NodeLost(now=1.0, name=NodeName("fast"), why=""))
    assert core.table.remaining_s(work) == 20.0


# --- on a node ---


class NodeOrder(RuleBasedStateMachine):
    """As at the master: of the steps that wait for a core, which starts first?"""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.node = Node(capacity(cores=2), bounds=NodeBounds(profiling=False, passes_max=10**9))
        self.measured_s: dict[str, list[float]] = {}
        self.count = 0

    def left_s(self, task_id: TaskId) -> float:
        runs = [
            self.measured_s.get(one.spec.kind, [0.0])
            for one in self.node.core.tasks[task_id].subtasks.values()
            if one.state is not SubtaskState.DONE
        ]
        return sum(sum(times) / len(times) for times in runs)

    def check(self, commands: Iterable[nm.NodeCommand]) -> None:
        started = [one for one in commands if isinstance(one, nm.StartSubtask)]
        submitted = {x: one.spec.submitted_at_s for x, one in self.node.core.tasks.items()}
        behind = [key.task_id for key in self.node.core._ready]
        for one in reversed(started):
            for passed in behind:
                bound_s = submitted[passed] + STRETCH * self.left_s(passed)
                assert submitted[one.key.task_id] <= bound_s + 1e-6, (one.key, passed)
            behind.append(one.key.task_id)

    @rule(which=st.integers(0, 3), later_s=st.floats(0.0, 60.0))
    def place(self, which: int, later_s: float) -> None:
        self.now += later_s
        self.count += 1
        wide = pipeline(*(subtask(x) for x in "abcd"))
        spec = task(f"t{self.count}", [*PIPELINES, wide][which], at=self.now)
        self.check(self.node.place(spec, self.now))

    @precondition(lambda self: self.node.running)
    @rule(ran_s=st.sampled_from([0.1, 1.0, 60.0, 600.0]), latest=st.booleans())
    def end(self, ran_s: float, latest: bool) -> None:
        self.now += 0.1
        which = list(self.node.running)[-1 if latest else 0]
        start = self.node.running.pop(which)
        self.measured_s.setdefault(f"kind/{start.key.subtask}", []).append(ran_s)
        ended = nm.SubtaskEnded(
            now=self.now, key=start.key, run=start.run, outcome=RunOutcome.DONE, ran_s=ran_s
        )
        self.check(self.node.handle(ended))


TestNodeOrder = NodeOrder.TestCase
TestNodeOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_parallel_steps_move_up_as_their_task_makes_progress() -> None:
    """Ten steps of 1 s, of which eight are done: due at 20, not at 100 as when it came."""
    node = Node(capacity(cores=1))
    for name, ran_s in [*((f"s{number}", 1.0) for number in range(10)), ("b", 5.0)]:
        observe(node.estimates, Row(f"kind/{name}", 0, ""), Device.CPU, ran_s)
    wide = pipeline(*(subtask(f"s{number}") for number in range(10)))
    node.place(task("wide", wide))
    for second in range(1, 9):
        (runs,) = node.running
        node.end(runs, float(second))
    node.place(task("b", pipeline(subtask("b")), at=8.5), 8.5)
    (runs,) = node.running
    node.end(runs, 9.0)
    (runs,) = node.running
    assert runs.startswith("wide."), "b is due at 58.5"


@pytest.mark.parametrize("on", [CPU, GPU])
def test_a_step_that_is_ranked_again_keeps_its_passes(on: frozenset[Device]) -> None:
    node = Node(capacity(cores=1, gpus=1), bounds=NodeBounds(profiling=False))
    for name in ("a", "b", "d", "e", "f"):
        node.place(task(name, pipeline(subtask(f"{name}1", on=on), subtask(f"{name}2", on=on))))
    key = next(iter(node.core._ready))
    node.core._ready._passes[key] = 7
    node.core._rank(node.core.tasks[key.task_id])
    assert node.core._ready.passes(key) == 7
