"""The node's core: what starts when, what happens to runs that fail, and what must never happen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import Device, NodeView, Row, StartDecision, SubtaskKey, TaskId
from hrm.pipelines.core.node import NodeBounds, PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.pipelines.core.subtasks import SubtaskState
from tests.core.pipeline.building import (
    BOTH,
    GPU,
    FirstFit,
    Node,
    capacity,
    pipeline,
    subtask,
    task,
)
from tests.core.pipeline.invariants import check_node


def test_a_task_runs_along_its_graph() -> None:
    node = Node()
    diamond = pipeline(subtask("a"), subtask("b", "a"), subtask("c", "a"), subtask("d", "b", "c"))
    node.place(task("t", diamond))
    assert set(node.running) == {"t.a"}
    node.end("t.a", 1.0)
    assert set(node.running) == {"t.b", "t.c"}
    node.end("t.b", 2.0)
    assert node.core.states(TaskId("t"))["d"] is SubtaskState.PENDING
    node.end("t.c", 4.0)
    node.end("t.d", 5.0)
    (end,) = node.ended
    assert end.outcome is TaskOutcome.DONE
    assert [one.key.subtask for one in end.timings] == ["a", "b", "c", "d"]
    assert end.timings[3].started_at_s == 4.0
    assert not node.core.tasks


def test_tasks_wait_for_cores_and_for_memory() -> None:
    node = Node(capacity(cores=2, memory_mib=1000))
    spec = pipeline(subtask("a", memory_mib=600))
    for name in "xyz":
        node.place(task(name, spec))
    assert set(node.running) == {"x.a"}  # a core is idle, but the memory is not there
    node.end("x.a", 1.0)
    assert set(node.running) == {"y.a"}


def test_at_most_four_share_a_gpu_and_their_memory_stays_below_nine_tenths() -> None:
    node = Node(capacity(gpus=1, gpu_memory_mib=10_000))
    small = pipeline(subtask("a", on=GPU, gpu_memory_mib=1000))
    for number in range(6):
        node.place(task(f"s{number}", small))
    assert len(node.running) == 4
    wide = Node(capacity(gpus=1, gpu_memory_mib=10_000))
    large = pipeline(subtask("a", on=GPU, gpu_memory_mib=4600))
    wide.place(task("l1", large))
    wide.place(task("l2", large))
    assert set(wide.running) == {"l1.a"}  # 9200 of 10000 would be over 90 %


def test_a_busy_gpu_takes_nothing_until_a_sample_or_an_end_reports_otherwise() -> None:
    node = Node(capacity(gpus=1))
    spec = pipeline(subtask("a", on=GPU, gpu_memory_mib=100))
    node.place(task("x", spec))
    node.handle(m.LoadSampled(now=1.0, gpu_utilisation=(0.95,), gpu_memory_used_mib=(100.0,)))
    node.place(task("y", spec), 2.0)
    assert set(node.running) == {"x.a"}
    node.handle(m.LoadSampled(now=3.0, gpu_utilisation=(0.5,), gpu_memory_used_mib=(100.0,)))
    assert set(node.running) == {"x.a", "y.a"}


def test_the_utilisation_that_is_predicted_counts_before_telemetry_shows_it() -> None:
    node = Node(capacity(gpus=1))
    spec = pipeline(subtask("a", on=GPU, gpu_memory_mib=100))
    node.estimates.observe_cells(Row("kind/a", 0, "P4"), {"sm": 0.5})
    for name in "xyz":
        node.place(task(name, spec))
    assert set(node.running) == {"x.a", "y.a"}


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (RunOutcome.RAISED, "raised"),
        (RunOutcome.CRASHED, "crashed"),
        (RunOutcome.OUT_OF_MEMORY, "out of memory"),
    ],
)
def test_a_run_that_fails_is_tried_again_until_its_attempts_are_used_up(
    outcome: RunOutcome, word: str
) -> None:
    node = Node()
    node.place(task("t", pipeline(subtask("a", attempts=2), subtask("b"), subtask("c", "a", "b"))))
    node.end("t.a", 1.0, outcome, "first")
    assert "t.a" in node.running
    node.end("t.a", 2.0, outcome, "second")
    assert not node.ended, "b runs still"
    assert isinstance(node.commands[-1], m.StopSubtask)
    node.end("t.b", 3.0, RunOutcome.STOPPED)
    (end,) = node.ended
    assert end.outcome is TaskOutcome.FAILED
    for part in ("'a'", "n1", word, "2 times", "second"):
        assert part in end.message


def test_what_cannot_be_imported_fails_at_once() -> None:
    node = Node()
    node.place(task("t"))
    node.end("t.a", 1.0, RunOutcome.NOT_IMPORTABLE, "no module named 'x'")
    (end,) = node.ended
    assert "'a'" in end.message and "n1" in end.message and "no module named 'x'" in end.message


def test_too_little_device_memory_is_more_the_next_time_and_then_a_core() -> None:
    node = Node(capacity(cores=1, gpus=1, gpu_memory_mib=10_000))
    node.place(task("t", pipeline(subtask("a", on=BOTH, gpu_memory_mib=1000, attempts=1))))
    assert node.running["t.a"].device.value == "gpu"
    assert node.core.view(0.0).gpus[0].memory_used_mib == 1000
    node.end("t.a", 1.0, RunOutcome.OUT_OF_GPU_MEMORY, "CUDA out of memory")
    assert node.core.view(1.0).gpus[0].memory_used_mib == 1500
    node.end("t.a", 2.0, RunOutcome.OUT_OF_GPU_MEMORY, "CUDA out of memory")
    assert node.running["t.a"].device is Device.CPU


def test_too_little_device_memory_without_a_cpu_version_fails() -> None:
    node = Node(capacity(gpus=1))
    node.place(task("t", pipeline(subtask("a", on=GPU, gpu_memory_mib=1000))))
    node.end("t.a", 1.0, RunOutcome.OUT_OF_GPU_MEMORY, "one")
    node.end("t.a", 2.0, RunOutcome.OUT_OF_GPU_MEMORY, "two")
    (end,) = node.ended
    assert end.outcome is TaskOutcome.FAILED and "device memory: two" in end.message


def test_a_node_that_slept_is_notified_first_whether_a_run_has_ended_in_time() -> None:
    node = Node()
    node.place(task("t", pipeline(subtask("a", timeout_s=5.0, attempts=1))))
    assert node.handle(m.ClockTicked(now=60.0)) == [], "its clock comes first"
    again_s = node.core.next_deadline()
    assert 60.0 < again_s < 65.0
    (stop,) = node.handle(m.ClockTicked(now=again_s + 30.0))
    assert isinstance(stop, m.StopSubtask), "it is forgiven once"


def test_a_run_over_its_time_limit_is_stopped() -> None:
    node = Node()
    node.place(task("t", pipeline(subtask("a", timeout_s=5.0, attempts=1))))
    assert node.core.next_deadline() == 5.0
    assert node.handle(m.ClockTicked(now=4.9)) == []
    (stop,) = node.handle(m.ClockTicked(now=5.0))
    assert isinstance(stop, m.StopSubtask)
    assert node.handle(m.ClockTicked(now=6.0)) == [], "told once"
    assert node.core.next_deadline() == math.inf
    node.end("t.a", 6.0, RunOutcome.STOPPED, "killed")
    assert "limit of 5 s" in node.ended[0].message and "'a'" in node.ended[0].message


def test_a_task_that_can_never_run_here_fails_with_the_reason() -> None:
    node = Node(capacity(gpus=1, gpu_memory_mib=1000))
    node.place(task("t", pipeline(subtask("a", on=GPU, gpu_memory_mib=950))))
    assert "'a' needs 950 MiB of a GPU" in node.ended[0].message
    node.place(task("u", pipeline(subtask("a", memory_mib=10_000))))
    assert "10000 MiB of memory" in node.ended[1].message


def test_a_withdrawn_task_ends_once_its_runs_have() -> None:
    node = Node()
    node.place(task("t", pipeline(subtask("a"), subtask("b", "a"))))
    node.handle(m.TaskWithdrawn(now=1.0, task_id=TaskId("t"), attempt=2))
    assert "t.a" in node.running and not node.ended, "another placement was meant"
    node.handle(m.TaskWithdrawn(now=1.0, task_id=TaskId("t"), attempt=1))
    assert not node.ended
    node.end("t.a", 2.0)
    assert node.ended[0].outcome is TaskOutcome.CANCELLED


def test_the_second_message_of_a_placement_changes_nothing() -> None:
    node = Node()
    node.place(task("t"))
    assert node.place(task("t")) == []
    (back,) = node.place(task("t"), attempt=2)
    assert isinstance(back, m.EndTask) and back.outcome is TaskOutcome.GIVEN_BACK


def test_draining_gives_back_what_has_not_begun() -> None:
    node = Node(capacity(cores=1))
    node.place(task("x"))
    node.place(task("y"))
    node.handle(m.DrainAsked(now=1.0))
    assert [(end.task_id, end.outcome) for end in node.ended] == [("y", TaskOutcome.GIVEN_BACK)]
    node.place(task("z"), 2.0)
    node.end("x.a", 3.0)
    assert [one.outcome.value for one in node.ended] == ["given back", "given back", "done"]


TWO_STEPS = pipeline(subtask("a"), subtask("b", "a"))


def test_a_node_that_ends_lets_steps_end_and_gives_the_rest_back() -> None:
    node = Node(capacity(cores=2))
    for name, spec in (("x", TWO_STEPS), ("y", pipeline(subtask("a"))), ("z", TWO_STEPS)):
        node.place(task(name, spec))
    node.handle(m.DrainAsked(now=1.0, after_step=True))
    assert [x.task_id for x in node.ended] == ["z"], "it has not begun"
    node.place(task("late"), 2.0)
    node.end("x.a", 3.0)
    node.end("y.a", 4.0)
    ends = {x.task_id: x.outcome for x in node.ended}
    back = TaskOutcome.GIVEN_BACK
    assert ends == {"x": back, "y": TaskOutcome.DONE, "z": back, "late": back}
    assert not node.running and not node.core.tasks, "no second step has started"


def test_a_step_that_fails_at_a_nodes_end_is_tried_again_elsewhere() -> None:
    node = Node(capacity(cores=1))
    node.place(task("t", pipeline(subtask("a", attempts=2))))
    node.handle(m.DrainAsked(now=1.0, after_step=True))
    node.end("t.a", 2.0, RunOutcome.CRASHED, "killed")
    (end,) = node.ended
    assert end.outcome is TaskOutcome.GIVEN_BACK and not node.running


def test_what_is_between_two_steps_is_given_back_at_once() -> None:
    node = Node(capacity(cores=1))
    node.place(task("between", TWO_STEPS))
    node.place(task("runs", at=-100.0))
    node.end("between.a", 1.0)
    assert set(node.running) == {"runs.a"}, "it was submitted first"
    node.handle(m.DrainAsked(now=2.0, after_step=True))
    assert [(x.task_id, x.outcome) for x in node.ended] == [("between", TaskOutcome.GIVEN_BACK)]
    node.end("runs.a", 3.0)
    assert node.ended[-1].outcome is TaskOutcome.DONE


def test_the_bound_on_tasks_gives_back() -> None:
    node = Node(bounds=NodeBounds(tasks_limit=1, profiling=False))
    node.place(task("x"))
    node.place(task("y"))
    assert node.ended[0].outcome is TaskOutcome.GIVEN_BACK
    assert "1 tasks already" in node.ended[0].message


class _Newest:
    """Starts the newest subtask on the lowest core, and nothing else."""

    name = "newest"

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        pairs = zip(reversed(view.ready), view.idle_cores, strict=False)
        return [StartDecision(ready.key, Device.CPU, core) for ready, core in pairs]


class _Idle:
    """A policy that starts nothing: what starts is started by the core."""

    name = "idle"

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        return []


def test_one_that_was_passed_too_often_goes_first() -> None:
    bounds = NodeBounds(profiling=False, passes_max=4)
    node = Node(capacity(cores=2), policy=_Newest(), bounds=bounds)
    for name in ("runs", "t0"):
        node.place(task(name))
    node.place(task("old", at=0.5), 0.5)
    for second in range(1, 6):
        node.place(task(f"t{second}", at=float(second)), float(second))
        assert set(node.running) == {"runs.a", f"t{second - 1}.a"}
        node.end(f"t{second - 1}.a", float(second))
    assert set(node.running) == {"runs.a", "old.a"}


def test_a_gpu_is_kept_for_one_that_was_passed_too_often() -> None:
    bounds = NodeBounds(profiling=False, passes_max=1)
    node = Node(capacity(gpus=1, gpu_memory_mib=10_000), bounds=bounds)
    small = pipeline(subtask("a", on=GPU, gpu_memory_mib=2000))
    for name in "xyz":
        node.place(task(name, small))
    node.place(task("large", pipeline(subtask("b", on=GPU, gpu_memory_mib=8000))))
    node.place(task("v", small), 0.0)
    assert set(node.running) == {"x.a", "y.a", "z.a", "v.a"}
    node.place(task("w", small), 9.0)
    for name in "xyzv":
        node.end(f"{name}.a", 10.0)
        if name != "v":
            assert "w.a" not in node.running
    assert set(node.running) == {"large.b"}


def test_one_that_was_passed_too_often_waits_for_the_device_that_ends_it_first() -> None:
    """Under overload much is overdue; on a core it would take ten times as long as it waits."""
    bounds = NodeBounds(profiling=False, passes_max=0)
    node = Node(capacity(gpus=1, gpu_memory_mib=1_000), policy=_Idle(), bounds=bounds)
    both = pipeline(subtask("a", on=BOTH, gpu_memory_mib=800))
    row = Row("kind/a", 0, "P4")
    node.estimates.observe_run(row, Device.CPU, 100.0, 10.0, 0.0, ())
    node.estimates.observe_run(row, Device.GPU, 10.0, 10.0, 800.0, ())
    node.place(task("first", both))
    node.place(task("second", both), 1.0)
    assert set(node.running) == {"first.a"}
    node.end("first.a", 10.0)
    assert node.running["second.a"].device is Device.GPU


def test_tasks_that_are_nearly_done_go_before_those_that_have_not_begun() -> None:
    node = Node(capacity(cores=1))
    for name, seconds in (("long", 10.0), ("short", 1.0)):
        node.estimates.observe_run(Row(f"kind/{name}", 0, ""), Device.CPU, seconds, 9.0, 0.0, ())
    both = pipeline(subtask("long"), subtask("short", "long"))
    node.place(task("x", both))
    node.place(task("y", both), 1.0)
    node.end("x.long", 10.0)
    assert set(node.running) == {"x.short"}, "y has been ready for longer, and has more to do"


def test_a_policy_is_shown_what_is_due_first_and_enough_for_each_kind_of_device() -> None:
    bounds = NodeBounds(profiling=False)
    node = Node(capacity(cores=1, gpus=1), policy=_Idle(), bounds=bounds)
    node.place(task("runs", at=99.0))
    for number in range(9):
        node.place(task(f"c{number}", at=10.0 - number))
        node.place(task(f"g{number}", pipeline(subtask("b", on=GPU)), at=10.0 - number))
    shown = [one.key.task_id for one in node.core.view(20.0).ready]
    assert [one for one in shown if one[0] == "c"] == ["c8"]
    assert [one for one in shown if one[0] == "g"] == [f"g{number}" for number in range(8, 0, -1)]


def test_little_known_rows_are_profiled_one_at_a_time_on_each_device() -> None:
    node = Node(capacity(cores=4), bounds=NodeBounds())
    spec = pipeline(subtask("a"))
    other = pipeline(subtask("b"))
    for name, what in (("x", spec), ("y", other), ("z", spec)):
        node.place(task(name, what))
    assert [one.profile for one in node.running.values()] == [True, False, False]
    start = node.running["x.a"]
    node.handle(m.SubtaskProfiled(now=4.0, key=start.key, run=start.run, cells={"cpu": 0.9}))
    assert node.estimates.measured_cells(Row("kind/a", 0, "")) == 1
    node.place(task("w", other), 5.0)
    assert node.running["w.b"].profile


def test_a_policy_that_proposes_nonsense_is_refused_and_remembered() -> None:
    class Wrong:
        name = "wrong"

        def dispatch(self, view: NodeView) -> list[StartDecision]:
            key = SubtaskKey(TaskId("nobody"), "a")
            twice = [StartDecision(view.ready[0].key, Device.CPU, 0)] * 2
            return [
                *twice,
                StartDecision(view.ready[-1].key, Device.GPU, 3),
                StartDecision(key, Device.CPU, 0),
            ]

    node = Node(policy=Wrong())
    node.place(task("t"))
    assert set(node.running) == {"t.a"}
    assert node.core.dispatcher.refused == 3
    assert "nobody" in node.core.dispatcher.refusals[-1]


def test_the_latest_refusals_are_kept_and_no_others() -> None:
    class Stubborn:
        name = "stubborn"

        def dispatch(self, view: NodeView) -> list[StartDecision]:
            return [
                StartDecision(SubtaskKey(TaskId(f"no-{one}"), "a"), Device.CPU, 0)
                for one in range(40)
            ]

    node = Node(policy=Stubborn())
    node.place(task("t"))
    dispatcher = node.core.dispatcher
    assert dispatcher.refused == 40
    assert [one.split()[3] for one in dispatcher.refusals] == [f"no-{n}" for n in range(8, 40)]


def test_a_policy_that_fails_is_replaced_for_the_time_and_counted() -> None:
    class Broken:
        name = "broken"

        def dispatch(self, view: NodeView) -> list[StartDecision]:
            raise ValueError("no idea")

    node = Node(policy=Broken())
    node.place(task("x"))
    node.place(task("y"))
    assert set(node.running) == {"x.a", "y.a"}
    assert node.core.dispatcher.faults == 2
    assert "no idea" in node.core.dispatcher.refusals[-1]


def test_a_policy_that_waits_on_an_empty_node_is_not_waited_for() -> None:
    class Never:
        name = "never"

        def dispatch(self, view: NodeView) -> list[StartDecision]:
            return []

    node = Node(policy=Never())
    node.place(task("x"))
    node.place(task("y"))
    assert set(node.running) == {"x.a"}


def test_one_that_shared_the_gpu_for_half_of_a_run_is_its_co_runner() -> None:
    node = Node(capacity(gpus=1))
    for name in "xyz":
        spec = pipeline(subtask(name, on=GPU, gpu_memory_mib=100))
        node.place(task(name, spec), 0.0 if name != "z" else 9.0)
    node.end("y.y", 6.0)
    node.end("x.x", 10.0)
    (long,) = (end for end in node.ended if end.task_id == "x")
    assert [row.kind for row in long.timings[0].co_runners] == ["kind/y"]


def test_what_a_run_used_of_its_gpu_is_learned_and_reported_if_it_was_alone() -> None:
    node = Node(capacity(gpus=1))
    use = (GpuUsePart(0.5, 90.0, 0.5, 0.1),) * USE_PARTS
    spec = pipeline(subtask("a", on=GPU, gpu_memory_mib=100))

    def end(name: str, now: float, outcome: RunOutcome = RunOutcome.DONE) -> tuple[object, ...]:
        start = node.running.pop(f"{name}.a")
        ended = m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=outcome, gpu_use=use)
        return tuple(one.gpu_use for one in node.handle(ended) if isinstance(one, m.ReportSubtask))

    row = Row("kind/a", 0, "P4")
    for name in "xy":
        node.place(task(name, spec))
    assert end("x", 2.0) == ((),) and end("y", 4.0) == ((),), "they have shared it"
    node.place(task("z", spec), 5.0)
    assert end("z", 6.0, RunOutcome.RAISED) == ((),), "a part of a life is no profile"
    assert node.estimates.gpu_use(row) == ()
    assert end("z", 8.0) == (use,)
    assert node.estimates.gpu_use(row) == use


def test_the_load_states_what_is_waiting_and_for_how_long() -> None:
    node = Node(capacity(cores=2))
    row = Row("kind/a", 0, "")
    node.estimates.observe_run(row, Device.CPU, 10.0, 100.0, 0.0, ())
    for name in "wxyz":
        node.place(task(name))
    load = node.core.load(0.0)
    assert (load.running, load.waiting_batch, load.free_cores) == (2, 2, 0)
    assert load.expected_wait_s == pytest.approx(20.0)
    assert load.cpu == 1.0
    assert load.tasks == {"w", "x", "y", "z"}


def _random_node(seed: int) -> tuple[PipelineNode, dict[str, int]]:
    """Drive a node through random events; returns the tally of how tasks ended."""
    rng = np.random.default_rng(seed)
    node = Node(
        capacity(cores=3, memory_mib=2000, gpus=2, gpu_memory_mib=4000),
        policy=FirstFit(),
        bounds=NodeBounds(passes_max=2),
    )
    core, now, placed = node.core, 0.0, 0
    live: list[m.StartSubtask] = []
    ends: dict[str, int] = {}

    def deliver(event: m.NodeEvent) -> None:
        for command in core.handle(event):
            if isinstance(command, m.StartSubtask):
                live.append(command)
            elif isinstance(command, m.EndTask):
                ends[command.task_id] = ends.get(command.task_id, 0) + 1
        check_node(core)

    devices = [frozenset({Device.CPU}), GPU, BOTH]
    for _ in range(400):
        now += float(rng.exponential(1.0))
        match int(rng.integers(0, 10)):
            case 0 | 1 | 2 if placed < 60:
                placed += 1
                steps = [
                    subtask(
                        name,
                        *after,
                        on=devices[int(rng.integers(3))],
                        memory_mib=int(rng.integers(0, 900)),
                        gpu_memory_mib=int(rng.integers(0, 3000)),
                        timeout_s=5.0,
                        attempts=2,
                    )
                    for name, after in (("a", ()), ("b", ("a",)), ("c", ("a",)), ("d", "bc"))
                ]
                deliver(m.TaskPlaced(now=now, task=task(f"t{placed}", pipeline(*steps))))
            case 3 | 4 | 5 | 6 if live:
                start = live.pop(int(rng.integers(len(live))))
                outcomes = [RunOutcome.DONE] * 12 + list(RunOutcome)
                outcome = outcomes[int(rng.integers(len(outcomes)))]
                deliver(m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=outcome))
                deliver(m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=outcome))
            case 7:
                deliver(m.ClockTicked(now=now))
            case 8:
                use = tuple(float(x) for x in rng.random(2))
                deliver(m.LoadSampled(now=now, gpu_utilisation=use))
            case 9 if placed:
                gone = TaskId(f"t{rng.integers(1, placed + 1)}")
                deliver(m.TaskWithdrawn(now=now, task_id=gone, attempt=1))
    while live:
        now += 0.5
        start = live.pop()
        deliver(m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=RunOutcome.DONE))
    assert set(ends) == {f"t{number}" for number in range(1, placed + 1)}
    return core, ends


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_every_task_ends_once_and_nothing_stays_allocated(seed: int) -> None:
    core, ends = _random_node(seed)
    assert set(ends.values()) == {1}
    assert not core.tasks and not core.resources.runs
    assert core.resources.memory_free_mib == core.capacity.memory_mib


def test_what_only_a_gpu_can_lack_does_not_make_a_core_try_for_ever() -> None:
    node = Node()
    node.place(task("t", pipeline(subtask("a", attempts=2))))
    node.end("t.a", 1.0, RunOutcome.OUT_OF_GPU_MEMORY, "so it says")
    node.end("t.a", 2.0, RunOutcome.OUT_OF_GPU_MEMORY, "so it says")
    (end,) = node.ended
    assert end.outcome is TaskOutcome.FAILED and "2 times" in end.message


def test_a_clock_that_is_set_back_makes_no_time_negative() -> None:
    node = Node(capacity(cores=1))
    node.place(task("one"), 100.0)
    node.place(task("two"), 100.0)
    node.end("one.a", 50.0)
    node.end("two.a", 20.0)
    timings = [timing for end in node.ended for timing in end.timings]
    assert len(timings) == 2
    assert all(timing.waited_s >= 0 and timing.ran_s >= 0 for timing in timings)


def test_what_a_profile_measured_is_in_the_report_of_its_run() -> None:
    node = Node(bounds=NodeBounds(profiling=True))
    node.place(task("t", pipeline(subtask("a"))))
    run = node.running["t.a"]
    node.handle(m.SubtaskProfiled(now=4.0, key=run.key, run=run.run, cells={"cpu": 0.5}))
    node.end("t.a", 9.0)
    (end,) = node.ended
    assert end.timings[0].cells == {"cpu": 0.5}
