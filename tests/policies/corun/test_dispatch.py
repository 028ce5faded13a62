"""The node policies on examples that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hrm.pipelines.core.feasibility import Caps
from hrm.pipelines.core.model import Device, NodePolicy, Row
from hrm.pipelines.policies.corun import SCORES, Stdm, load
from hrm.pipelines.policies.corun.iawp import Iawp
from hrm.pipelines.policies.corun.scores import Cosine
from tests.policies.corun.worlds import ONE_SLOT, Known, gpu, node_view, run_all, subtask

CPU_S = {"a": 8.0, "b": 6.0, "c": 10.0, "d": 4.0, "e": 12.0, "f": 9.0}
GPU_S = {"a": 5.0, "b": 1.0, "c": 1.0, "d": 5.0, "e": 4.0, "f": 2.0}
SIX = [subtask(kind) for kind in CPU_S]
TIMES = Known(CPU_S, GPU_S)

BUSY = {
    "A": [0.80, 0.30, 0.40, 0.10, 0.60, 0.50, 0.40],
    "B": [0.75, 0.35, 0.35, 0.05, 0.65, 0.55, 0.35],
    "C": [0.10, 0.60, 0.20, 0.70, 0.10, 0.05, 0.10],
    "D": [0.05, 0.10, 0.05, 0.90, 0.05, 0.10, 0.05],
}
LOADS = Known(features={kind: [*loads, 0.0] for kind, loads in BUSY.items()})


def made(name: str, **options: Any) -> NodePolicy:
    return load(name, rng=np.random.default_rng(0), **options)


def iawp(**options: Any) -> Iawp:
    return Iawp(rng=np.random.default_rng(0), score=Cosine(), **options)


def test_completion_times_put_all_but_the_fourth_on_the_gpu() -> None:
    makespan_s, began = run_all(made("mct", caps=ONE_SLOT), SIX, TIMES)
    assert makespan_s == 13.0
    assert [kind for kind, (device, _) in began.items() if device is Device.CPU] == ["d"]


def test_the_speedup_order_is_the_best_that_there_is() -> None:
    makespan_s, began = run_all(made("pats", caps=ONE_SLOT), SIX, TIMES)
    assert makespan_s == 12.0
    assert {kind: at for kind, (device, at) in began.items() if device is Device.GPU} == {
        "c": 0.0, "b": 1.0, "f": 2.0, "e": 4.0
    }  # fmt: skip
    assert [began[kind] for kind in "da"] == [(Device.CPU, 0.0), (Device.CPU, 4.0)]


def test_the_shortest_end_goes_first() -> None:
    _, began = run_all(made("min-min", caps=ONE_SLOT), SIX, TIMES)
    assert (began["b"], began["c"]) == ((Device.GPU, 0.0), (Device.GPU, 1.0))


def test_the_gpu_queue_takes_the_largest_speedups() -> None:
    policy = iawp(queue_length=3, caps=ONE_SLOT)
    busy = gpu(0, running=["a"])
    starts = policy.dispatch(node_view(SIX, TIMES, idle=[0], gpus=[busy]))
    assert [start.key.subtask for start in starts] == ["d"]
    assert [key.subtask for key in policy.queue] == ["c", "b", "f"]


def test_the_least_alike_joins() -> None:
    co_runners = gpu(0, running=["A", "C"], utilisation=0.5)
    ready = [subtask("B"), subtask("D")]
    starts = iawp(caps=Caps(co_runners_max=3)).dispatch(node_view(ready, LOADS, gpus=[co_runners]))
    assert [start.key.subtask for start in starts] == ["D"]


def test_an_idle_gpu_comes_before_a_shared_one() -> None:
    gpus = [gpu(0, running=["A"], utilisation=0.5), gpu(1)]
    starts = iawp(caps=Caps(co_runners_max=2)).dispatch(
        node_view([subtask("B"), subtask("C")], LOADS, gpus=gpus)
    )
    # Of two that are alike in all else the older takes the idle GPU. C then is at 0.419 to it, and
    # at 0.431 to A.
    assert [(start.key.subtask, start.number) for start in starts] == [("B", 1), ("C", 1)]


@pytest.mark.parametrize("score", sorted(SCORES))
def test_equal_scores_spread_over_gpus(score: str) -> None:
    small = Known(features={"A": [0.0] * 8})
    ready = [subtask("A", task=f"t{number}") for number in range(8)]
    policy = made("iawp", score=score)
    starts = policy.dispatch(node_view(ready, small, gpus=[gpu(number) for number in range(4)]))
    assert sorted(start.number for start in starts) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(start.number for start in starts[:4]) == [0, 1, 2, 3]


@pytest.mark.parametrize("score", sorted(SCORES))
def test_what_ran_faster_next_to_others_takes_an_idle_gpu_all_the_same(score: str) -> None:
    estimates, rows = Stdm(memory_mib=32_000), {kind: Row(kind, 1, "P4") for kind in "AB"}
    for row in rows.values():
        estimates.observe_run(row, Device.GPU, 10.0)  # the first: imports, compilation
        estimates.observe_cells(row, {"sm": 0.3})
    for _ in range(6):
        estimates.observe_run(rows["A"], Device.GPU, 5.0, co_runners=(rows["B"],))
        estimates.observe_run(rows["B"], Device.GPU, 5.0, co_runners=(rows["A"],))
    gpus = [gpu(0, running=["A"], utilisation=0.3), gpu(1)]
    starts = made("iawp", score=score).dispatch(node_view([subtask("B")], estimates, gpus=gpus))
    assert [start.number for start in starts] == [1]


def test_of_shared_gpus_that_cost_nothing_the_one_with_the_better_partner_is_taken() -> None:
    estimates = Stdm(memory_mib=32_000)
    for kind in "ABC":
        estimates.observe_run(Row(kind, 1, "P4"), Device.GPU, 10.0)
        estimates.observe_cells(Row(kind, 1, "P4"), {"sm": 0.3})
    for kind, seconds in (("A", 9.0), ("C", 6.0)):
        for _ in range(6):
            co_runners = (Row(kind, 1, "P4"),)
            estimates.observe_run(Row("B", 1, "P4"), Device.GPU, seconds, co_runners=co_runners)
    gpus = [gpu(0, running=["A"], utilisation=0.3), gpu(1, running=["C"], utilisation=0.3)]
    starts = made("iawp").dispatch(node_view([subtask("B")], estimates, gpus=gpus))
    assert [start.number for start in starts] == [1]


def test_what_joins_counts_before_the_next_does() -> None:
    ready = [subtask("A", task=f"t{n}") for n in range(5)]
    starts = iawp().dispatch(node_view(ready, LOADS, gpus=[gpu(0)]))
    assert len(starts) == 2, "0.8 and 0.8 are more than 0.9"


def test_one_that_waited_too_long_goes_first() -> None:
    policy = iawp(caps=Caps(co_runners_max=3))
    full = gpu(0, running=["A", "C", "C"], utilisation=0.5)
    assert policy.dispatch(node_view([subtask("B")], LOADS, gpus=[full])) == []
    free = gpu(0, running=["A", "C"], utilisation=0.5)
    for now, first in ((19.0, "D"), (21.0, "B")):
        ready = [subtask("B"), subtask("D", task=f"at {now}", since=now)]
        starts = policy.dispatch(node_view(ready, LOADS, now=now, gpus=[free]))
        assert [start.key.subtask for start in starts] == [first]


def test_a_gpu_is_kept_for_one_that_waited_too_long() -> None:
    policy = iawp()
    estimates = Known(gpu_memory_mib={"batch": 7000.0})
    taken = gpu(0, running=["edges"])
    large = subtask("batch")
    assert policy.dispatch(node_view([large], estimates, gpus=[taken])) == []
    small = subtask("edges", task="later", since=100.0)
    assert policy.dispatch(node_view([large, small], estimates, now=100.0, gpus=[taken])) == []
    starts = policy.dispatch(node_view([large, small], estimates, now=101.0, gpus=[gpu(0)]))
    assert [start.key for start in starts] == [large.key]


@pytest.mark.parametrize(("guard", "core"), [(False, ["e"]), (True, [])])
def test_a_core_refuses_what_a_gpu_ends_sooner(guard: bool, core: list[str]) -> None:
    busy = gpu(0, running=["a"])
    view = node_view([subtask("e")], TIMES, idle=[0], gpus=[busy])
    starts = iawp(tail_guard=guard, caps=ONE_SLOT).dispatch(view)
    assert [start.key.subtask for start in starts if start.device is Device.CPU] == core


@pytest.mark.parametrize(("steal", "stolen"), [(False, []), (True, ["d"])])
def test_an_idle_core_takes_from_the_queue_what_gains_by_it(steal: bool, stolen: list[str]) -> None:
    policy = iawp(steal=steal, caps=ONE_SLOT)
    busy = gpu(0, running=["a"])
    assert len(policy.dispatch(node_view([*SIX], TIMES, gpus=[busy]))) == 0
    starts = policy.dispatch(node_view([*SIX], TIMES, idle=[0], gpus=[busy]))
    assert [start.key.subtask for start in starts] == stolen


def test_queues_forget_what_is_gone() -> None:
    policy = iawp(caps=ONE_SLOT)
    policy.dispatch(node_view(SIX, TIMES, gpus=[gpu(0, running=["a"])]))
    policy.dispatch(node_view([SIX[0]], TIMES, gpus=[gpu(0, running=["a"])]))
    assert policy.queue == (SIX[0].key,)


@pytest.mark.parametrize(
    ("sm", "gain", "joins"),
    [
        (0.4, None, ["B"]),
        (0.4, 0.5, ["B"]),
        (0.8, 0.0, ["B"]),
        (0.8, 0.2, ["B"]),
        (0.8, 0.3, []),
        (1.0, 0.1, []),
    ],
)
def test_one_joins_others_only_where_enough_more_is_done_together(
    sm: float, gain: float | None, joins: list[str]
) -> None:
    # In turns, two that each want 0.8 of the time do 2 / 1.6 = 1.25 seconds of work in a second.
    estimates = Known(features={kind: [sm, *[0.0] * 7] for kind in "AB"})
    busy = gpu(0, running=["A"], utilisation=0.5)
    starts = iawp(gain_min=gain).dispatch(node_view([subtask("B")], estimates, gpus=[busy]))
    assert [start.key.subtask for start in starts] == joins


def test_an_idle_gpu_and_one_that_waited_too_long_need_no_gain() -> None:
    estimates = Known(features={kind: [1.0, *[0.0] * 7] for kind in "AB"})
    policy = iawp(gain_min=0.5)
    busy = gpu(0, running=["A"], utilisation=0.5)
    assert policy.dispatch(node_view([subtask("B")], estimates, gpus=[busy])) == []
    late = policy.dispatch(node_view([subtask("B")], estimates, now=21.0, gpus=[busy]))
    assert [start.key.subtask for start in late] == ["B"], "five times its 4 s have passed"
    idle = iawp(gain_min=0.5).dispatch(node_view([subtask("B")], estimates, gpus=[gpu(0)]))
    assert [start.key.subtask for start in idle] == ["B"]
