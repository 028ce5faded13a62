"""What a node's policies are shown and what starts before them: no core idles while a step waits
that only cores run, and what was passed too often goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.dispatch import ReadyList
from hrm.pipelines.core.feasibility import CAPS, QUEUED_MAX
from hrm.pipelines.core.model import (
    Device,
    PipelineSpec,
    ReadySubtask,
    Row,
    SubtaskKey,
    TaskId,
)
from hrm.pipelines.core.node import NodeBounds, PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome
from hrm.pipelines.core.order import Work
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.iawp import Iawp
from tests.core.pipeline.building import (
    BOTH,
    CPU,
    GPU,
    Node,
    capacity,
    pipeline,
    subtask,
    task,
)
from tests.core.pipeline.invariants import check_node

POLICIES = ("random", "mct", "min-min", "pats", "iawp", "iawp:guarded")
TIMES_S = {
    "cpu": {Device.CPU: 1.0},
    "gpu": {Device.GPU: 2.0},
    "leaning": {Device.CPU: 60.0, Device.GPU: 1.0},
    "even": {Device.CPU: 3.0, Device.GPU: 3.0},
}


def test_whether_a_step_is_ready_is_known_without_its_place_in_the_order() -> None:
    asked: list[Work] = []

    def remaining_s(work: Work) -> float:
        asked.append(work)
        return 0.0

    ready = ReadyList(remaining_s)
    keys = [SubtaskKey(TaskId(f"t{number}"), "a") for number in range(50)]
    for key in keys:
        one = ReadySubtask(key=key, row=Row("kind/a", 0, ""), devices=CPU, since=0.0)
        ready.rank(one, (), 0.0)
    ready.discard(keys[7])
    assert [key in ready for key in keys] == [key != keys[7] for key in keys]
    assert not asked


def kind_of(name: str, **more: object) -> PipelineSpec:
    return pipeline(subtask(name, on=frozenset(TIMES_S[name]), **more))


def known(model: str) -> Stdm:
    """Everything about ``TIMES_S`` was measured."""
    estimates = Stdm(memory_mib=4096.0, gpu_memory_mib={"P4": 8000.0})
    for name, times in TIMES_S.items():
        row = Row(f"kind/{name}", 0, model)
        estimates.declare(row, kind_of(name).subtasks[0])
        for device, ran_s in times.items():
            for _ in range(3):
                estimates.observe_run(row, device, ran_s, 10.0, 10.0)
        estimates.observe_cells(row, {"sm": 0.3, "cpu": 1.0})
    return estimates


def node_with(policy: str, *, cores: int, gpus: int) -> PipelineNode:
    what = capacity(cores=cores, gpus=gpus)
    name, options = corun.parse(policy)
    made = corun.load(name, rng=np.random.default_rng(0), **options)
    return PipelineNode(what, made, known(what.gpu_model))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None)
@given(
    cores=st.integers(1, 4),
    gpus=st.integers(0, 2),
    kinds=st.lists(st.sampled_from(sorted(TIMES_S)), min_size=1, max_size=40),
    ends=st.lists(st.integers(0, 99), max_size=40),
)
def test_no_core_idles_while_a_step_waits_that_only_cores_run(
    policy: str, cores: int, gpus: int, kinds: list[str], ends: list[int]
) -> None:
    node = node_with(policy, cores=cores, gpus=gpus)
    running: list[m.StartSubtask] = []

    def deliver(event: m.NodeEvent) -> None:
        running.extend(one for one in node.handle(event) if isinstance(one, m.StartSubtask))
        check_node(node)
        waiting = [key for key in node._ready if node._ready[key].devices == CPU]
        idle = [number for number, run in enumerate(node.resources.cores) if run is None]
        assert not (waiting and idle), (waiting, idle)

    for number, name in enumerate(kinds):
        spec = task(f"t{number}", kind_of(name), at=float(number))
        deliver(m.TaskPlaced(now=float(number), task=spec, attempt=1))
    for second, which in enumerate(ends):
        if running:
            start = running.pop(which % len(running))
            now = 100.0 + second
            deliver(m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=RunOutcome.DONE))


def test_a_gpu_that_others_fill_keeps_no_cores_idle() -> None:
    """Two-version steps that the policy keeps for the GPU, in front of steps for cores alone."""
    node = node_with("mct", cores=8, gpus=1)
    node.handle(m.LoadSampled(now=0.0, gpu_utilisation=(0.5,), gpu_memory_used_mib=(7_999.0,)))
    for number in range(10):
        spec = task(f"g{number}", kind_of("leaning"), at=0.01 * number)
        node.handle(m.TaskPlaced(now=1.0, task=spec, attempt=1))
    for number in range(20):
        spec = task(f"c{number}", kind_of("cpu"), at=1.0)
        node.handle(m.TaskPlaced(now=1.0, task=spec, attempt=1))
    assert all(run is not None for run in node.resources.cores)


@pytest.mark.parametrize("name", ["gpu", "leaning"])
def test_iawp_gets_as_many_steps_as_its_gpu_queue_has_places(name: str) -> None:
    node = node_with("iawp:guarded", cores=1, gpus=1)
    for number in range(40):
        spec = task(f"t{number}", kind_of(name, gpu_memory_mib=7000), at=float(number))
        node.handle(m.TaskPlaced(now=float(number), task=spec, attempt=1))
    assert isinstance(node.policy, Iawp)
    assert len(node.policy.queue) == QUEUED_MAX


def test_min_min_plans_all_that_it_is_shown() -> None:
    """More cores than the 64 steps that it once planned at most."""
    node = node_with("min-min", cores=100, gpus=0)
    node.finishing = True
    for number in range(100):
        spec = task(f"t{number}", kind_of("cpu"), at=float(number))
        node.handle(m.TaskPlaced(now=1.0, task=spec, attempt=1))
    assert len(node.policy.dispatch(node.view(1.0))) == 100


# --- overdue ---

LARGE = pipeline(subtask("x", on=GPU, gpu_memory_mib=6000))
SMALL = pipeline(subtask("k", on=GPU, gpu_memory_mib=3000))


@pytest.mark.parametrize("outcome", [RunOutcome.RAISED, RunOutcome.DONE])
def test_profiles_do_not_pass_what_is_overdue(outcome: RunOutcome) -> None:
    """Steps that fail, or of which too little is seen, are never measured: each is a profile."""
    node = Node(capacity(gpus=1), bounds=NodeBounds(passes_max=4))
    node.estimates.observe_run(Row("kind/x", 0, "P4"), Device.GPU, 0.5, 10.0, 6000.0, ())
    node.place(task("k0", SMALL))
    node.place(task("x", LARGE, at=0.1), 0.1)
    placed, now = 1, 1.0
    while "x.x" not in node.running:
        assert placed < 40, "x waits for ever"
        while len(node.core.tasks) < 5:
            node.place(task(f"k{placed}", SMALL, at=now), now)
            placed += 1
        now += 1.0
        node.end(min(node.running), now, outcome)
        for means in (node.estimates._alone, node.estimates._shared):
            means.pop((Row("kind/k", 0, "P4"), Device.GPU), None)


def test_a_gpu_that_is_kept_and_empty_takes_nothing_else() -> None:
    """What fills its memory is not HRM's; a small step would start again and again."""
    node = Node(capacity(gpus=1), bounds=NodeBounds(profiling=False, passes_max=0))
    node.place(task("runs"))
    node.handle(m.LoadSampled(now=0.0, gpu_utilisation=(0.1,), gpu_memory_used_mib=(4000.0,)))
    node.place(task("x", LARGE), 1.0)
    node.place(task("k", SMALL, at=1.0), 1.0)
    assert set(node.running) == {"runs.a"}
    node.handle(m.LoadSampled(now=2.0, gpu_utilisation=(0.1,), gpu_memory_used_mib=(0.0,)))
    assert set(node.running) == {"runs.a", "x.x"}


def test_what_waits_for_a_gpu_does_not_keep_another_overdue_step_from_a_core() -> None:
    node = Node(capacity(cores=1, gpus=1), bounds=NodeBounds(profiling=False, passes_max=0))
    node.core.finishing = True
    for name, spec in (("k", SMALL), ("x", LARGE), ("c", pipeline(subtask("c")))):
        node.place(task(name, spec))
    node.core.finishing = False
    node.handle(m.ClockTicked(now=1.0))
    starts = {x.key.subtask: x for x in node.running.values()}
    assert set(starts) == {"k", "c"}


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    needs_mib=st.lists(st.sampled_from([500, 3500, 7000]), min_size=30, max_size=80),
    choices=st.lists(st.integers(0, 9), min_size=80, max_size=80),
    passes_max=st.integers(1, 6),
)
def test_nothing_is_passed_more_often_than_the_bound_says(
    policy: str, needs_mib: list[int], choices: list[int], passes_max: int
) -> None:
    """One GPU, for which all wait: one in four as large as may be, the others small, and they fail,
    so that they are profiles for ever. A policy may start several at once."""
    name, options = corun.parse(policy)
    made = corun.load(name, rng=np.random.default_rng(0), **options)
    bounds = NodeBounds(passes_max=passes_max)
    node = PipelineNode(capacity(gpus=1), made, known("P4"), bounds=bounds)
    running: list[m.StartSubtask] = []

    def deliver(event: m.NodeEvent) -> None:
        running.extend(one for one in node.handle(event) if isinstance(one, m.StartSubtask))
        most = max(map(node._ready.passes, node._ready), default=0)
        assert most < passes_max + CAPS.co_runners_max

    for number, need_mib in enumerate(needs_mib):
        now = 0.5 * number
        small = subtask(f"new{need_mib // 3}", on=GPU, gpu_memory_mib=need_mib // 3, attempts=2)
        spec = pipeline(small) if number % 4 else kind_of("gpu", gpu_memory_mib=need_mib)
        deliver(m.TaskPlaced(now=now, task=task(f"t{number}", spec, at=now), attempt=1))
        if running:
            start = running.pop(choices[number] % len(running))
            fails = start.key.subtask.startswith("new")
            outcome = RunOutcome.RAISED if fails else RunOutcome.DONE
            deliver(m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=outcome))


@pytest.mark.parametrize("on", [CPU, GPU, BOTH])
def test_the_window_ignores_how_many_wait_for_other_devices(on: frozenset[Device]) -> None:
    node = Node(capacity(cores=2, gpus=1), bounds=NodeBounds(profiling=False))
    node.core.finishing = True
    for number in range(30):
        for name, devices in (("c", CPU), ("g", GPU), ("b", BOTH)):
            spec = task(f"{name}{number}", pipeline(subtask(name, on=devices)), at=float(number))
            node.place(spec, 50.0)
    shown = [one for one in node.core.view(50.0).ready if one.devices == on]
    assert len(shown) == {CPU: 2, GPU: QUEUED_MAX, BOTH: QUEUED_MAX}[on]
    assert [int(one.key.task_id[1:]) for one in shown] == list(range(len(shown)))
