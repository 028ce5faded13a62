"""A learned node policy under its guard: which policy decides, fallbacks, and reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hrm.errors import InvalidConfig
from hrm.pipelines.core.dispatch import FOR_WAITING
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    Device,
    Estimates,
    NodeView,
    Row,
    StartDecision,
    SubtaskKey,
    TaskId,
)
from hrm.pipelines.core.node_messages import RunOutcome, SubtaskTiming
from hrm.pipelines.policies.corun import HEURISTIC, GuardedNodePolicy, Stdm, load, load_guarded
from hrm.pipelines.policies.corun.guarded import SLICE_S, FiniteScore
from hrm.pipelines.policies.corun.tentative import Tentative
from hrm.policies.guard import GuardBounds, GuardMode
from tests.policies.corun.worlds import Known, gpu, node_view, subtask, views

TIMES = Known({"edges": 8.0, "faces": 9.0}, {"edges": 1.0, "faces": 3.0})
READY = [subtask("edges", task="t1"), subtask("faces", task="t2")]


class Backwards:
    """Starts the last ready one on the first core; ``does`` may do something else."""

    name = "backwards"

    def __init__(self, does: Callable[[NodeView], Sequence[StartDecision]] | None = None) -> None:
        self.does = does

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        if self.does is not None:
            return list(self.does(view))
        return [StartDecision(view.ready[-1].key, Device.CPU, view.idle_cores[0])]


class Ticks:
    """A clock that advances by ``step_s`` each time it is read."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def made(
    learned: Any = None, mode: GuardMode = GuardMode.ON, clock: Ticks | None = None, **more: Any
) -> GuardedNodePolicy:
    options: dict[str, Any] = {
        "node": "n1",
        "model": "m",
        "outside": lambda _rows: 0.0,
        "sampled_at_s": lambda: None,
        "bounds": GuardBounds(budget_s=0.01, blind_share=1.0),
    }
    rng = np.random.default_rng(0)
    return GuardedNodePolicy(
        learned or Backwards(),
        load("pats", rng=rng),
        clock_s=clock or Ticks(),
        mode=mode,
        **(options | more),
    )


def view(now: float = 100.0, ready: Sequence[Any] = READY, known: Known = TIMES) -> NodeView:
    return node_view(ready, known, now=now, idle=[0], gpus=[gpu()])


def fallbacks(policy: GuardedNodePolicy) -> dict[str, int]:
    return policy.guard.status(0.0).fallbacks


def test_a_trusted_policy_decides_and_each_start_reports_it() -> None:
    (start,) = made().dispatch(view())
    assert start == StartDecision(READY[1].key, Device.CPU, 0, placed_by="backwards")


@pytest.mark.parametrize("mode", [GuardMode.OFF, GuardMode.SHADOW])
def test_an_untrusted_one_does_not(mode: GuardMode) -> None:
    policy = made(mode=mode)
    starts = policy.dispatch(view())
    assert {(one.placed_by, one.fallback) for one in starts} == {("pats", "")}
    status = policy.guard.status(0.0)
    assert (status.kind, status.asked, status.learned) == ("node", 1, 0)
    assert status.shadowed == (mode is GuardMode.SHADOW)
    if status.shadowed:
        (record,) = status.records
        assert (record.learned, record.same) == ("t2/faces on cpu 0", False)
        assert "t1/edges on gpu 0" in record.heuristic


def test_the_same_starts_in_another_order_are_the_same_result() -> None:
    pats = load("pats", rng=np.random.default_rng(0))
    policy = made(Backwards(lambda seen: pats.dispatch(seen)[::-1]), GuardMode.SHADOW)
    policy.dispatch(view())
    assert policy.guard.status(0.0).agreed == 1


def _raises(_view: NodeView) -> list[StartDecision]:
    raise RuntimeError("a bug")


def _nan_speedup() -> Known:
    known = Known()
    known.speedup = lambda row: math.nan  # type: ignore[method-assign]
    return known


CASES: dict[str, tuple[Any, dict[str, Any], Known]] = {
    "fault": (Backwards(_raises), {}, TIMES),
    "infeasible": (Backwards(lambda v: [StartDecision(v.ready[0].key, Device.CPU, 7)]), {}, TIMES),
    "infeasible ": (
        Backwards(lambda v: [StartDecision(one.key, Device.CPU, 0) for one in v.ready]), {}, TIMES,
    ),
    "infeasible  ": (
        Backwards(lambda v: [StartDecision(SubtaskKey(TaskId("x"), "x"), Device.CPU, 0)]),
        {},
        TIMES,
    ),
    "over-budget": (None, {"clock": Ticks(0.02)}, TIMES),
    "schema": (None, {"schema": "of another HRM"}, TIMES),
    "stale-snapshot": (None, {"sampled_at_s": lambda: 100.0 - 3.5}, TIMES),
    "out-of-distribution": (None, {"outside": lambda _rows: 0.2}, TIMES),
    "not-finite": (None, {}, _nan_speedup()),
    "not-finite ": (None, {}, Known(features={"edges": [math.nan] * 8})),
    "not-finite  ": (None, {}, Known({"edges": math.inf})),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_in_doubt_the_heuristic_decides_and_the_reason_is_reported(case: str) -> None:
    learned, more, known = CASES[case]
    policy, reason = made(learned, **more), case.strip()
    starts = policy.dispatch(view(known=known))
    assert starts and {one.placed_by for one in starts} == {"pats"}
    assert all(one.fallback.startswith(f"{reason}: ") for one in starts)
    assert fallbacks(policy) == {reason: 1}


class _NoNumber:
    name = "no-number"

    def score(self, row: Row, beside: Sequence[Row], estimates: Estimates) -> float:
        return math.nan


def test_a_score_that_is_no_number_is_a_doubt() -> None:
    score = FiniteScore(_NoNumber())
    policy = made(load("iawp", rng=np.random.default_rng(0), score=score))
    busy = node_view(READY, TIMES, now=100.0, gpus=[gpu(running=["edges"])])
    assert {one.placed_by for one in policy.dispatch(busy)} == {"pats"}
    assert fallbacks(policy) == {"not-finite": 1}


def test_three_slow_decisions_open_the_breaker() -> None:
    policy = made(clock=Ticks(0.02))
    for number in range(5):
        policy.dispatch(view(now=100.0 + number))
    assert fallbacks(policy) == {"over-budget": 3, "breaker-open": 2}


def test_a_canary_is_a_share_of_the_time_other_on_each_node() -> None:
    def slices(node: str) -> list[bool]:
        policy = made(mode=GuardMode.CANARY_10, node=node)
        found = []
        for number in range(1_000):
            starts = policy.dispatch(view(now=SLICE_S * number))
            again = policy.dispatch(view(now=SLICE_S * number + SLICE_S / 2))
            assert {one.placed_by for one in starts} == {one.placed_by for one in again}
            found.append(starts[0].placed_by == "backwards")
        return found

    one, other = slices("n1"), slices("n2")
    assert sum(one) == pytest.approx(100, abs=30)
    assert sum(mine and theirs for mine, theirs in zip(one, other, strict=True)) < 40


def test_no_policy_is_asked_while_all_is_full() -> None:
    policy = made()
    assert policy.dispatch(node_view(READY, TIMES, gpus=[gpu(running=["edges"] * 4)])) == []
    assert policy.guard.status(0.0).asked == 0


def timing(
    start: StartDecision, waited_s: float, outcome: RunOutcome = RunOutcome.DONE
) -> SubtaskTiming:
    return SubtaskTiming(
        key=start.key, row=Row(start.key.subtask, 1, "P4"), device=start.device, number=0, run=1,
        outcome=outcome, ready_at_s=0.0, started_at_s=waited_s, waited_s=waited_s, ran_s=1.0,
        placed_by=start.placed_by,
    )  # fmt: skip


def _placed(policy: GuardedNodePolicy, number: int, now: float) -> StartDecision:
    one = replace(subtask("edges", task=f"t{number}"), since=now)
    (start,) = policy.dispatch(view(now=now, ready=[one]))
    return start


def _watched(policy: GuardedNodePolicy, number: int, waited_s: float) -> None:
    now = 10.0 * number
    start = _placed(policy, number, now)
    policy.ended(timing(start, waited_s), now)


def test_it_goes_back_to_its_shadow_where_it_is_worse_for_long() -> None:
    policy = made(mode=GuardMode.OFF)
    fell: list[bool] = []
    policy.guard.on_roll_back = lambda: fell.append(True)
    for number in range(30):
        _watched(policy, number, 0.1)
    policy.guard.set_mode(GuardMode.ON)
    for number in range(30, 90):
        _watched(policy, number, 0.1)
    assert policy.guard.mode is GuardMode.ON, "as good as the heuristic"
    for number in range(90, 330):
        _watched(policy, number, 5.0)
    assert (policy.guard.mode, fell) == (GuardMode.SHADOW, [True])
    assert fallbacks(policy)["watchdog"] == 1


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (RunOutcome.OUT_OF_GPU_MEMORY, True),
        (RunOutcome.RAISED, False),
        (RunOutcome.STOPPED, False),
    ],
)
def test_a_failure_counts_where_its_place_may_be_why(outcome: RunOutcome, counts: bool) -> None:
    policy = made()
    for number in range(25):
        start = _placed(policy, number, 100.0)
        policy.ended(timing(start, 0.1, outcome), 100.0)
    ratio = policy.guard.status(100.0).ratio_p95
    assert ratio == 10.0 if counts else math.isnan(ratio)


@pytest.mark.parametrize(("by", "counts"), [("backwards", True), (FOR_WAITING, False)])
def test_what_the_node_started_itself_after_all_is_unowned(by: str, counts: bool) -> None:
    policy = made(bounds=GuardBounds(samples_min=1, blind_share=1.0))
    start = _placed(policy, 0, 100.0)
    policy.ended(timing(start._replace(placed_by=by), 60.0), 160.0)
    assert math.isfinite(policy.guard.status(160.0).ratio_p95) is counts


def test_what_was_waited_for_counts_from_when_it_was_ready() -> None:
    """One that becomes ready with nine others is expected to take as long as all of them."""
    policy = made(mode=GuardMode.OFF, bounds=GuardBounds(samples_min=1))
    many = [subtask("track", task=f"t{number}") for number in range(10)]
    ready = [replace(one, since=100.0) for one in many]
    (start,) = policy.dispatch(node_view(ready, Known({"track": 4.0}), now=100.0, idle=[0]))
    policy.ended(timing(start, 39.1), 140.0)
    assert policy.guard.status(140.0).reference_p95 == pytest.approx(1.0)


@given(seen=views())
def test_whatever_it_is_asked_what_it_starts_fits(seen: NodeView) -> None:
    policy = made(load("iawp", rng=np.random.default_rng(0)))
    free = Tentative(seen, CAPS)
    ready = {one.key: one for one in seen.ready}
    for start in policy.dispatch(seen):
        assert free.fits(ready[start.key], start.device, start.number)
        free.take(ready[start.key], start.device, start.number)


def test_an_agents_policy_is_guarded_if_it_is_a_learned_one() -> None:
    def loaded(name: str) -> Any:
        return load_guarded(
            name,
            rng=np.random.default_rng(0),
            node="n1",
            estimates=Stdm(memory_mib=1000.0),
            sampled_at_s=lambda: None,
        )

    assert not isinstance(loaded("pats"), GuardedNodePolicy)
    guarded = loaded("iawp")
    assert isinstance(guarded, GuardedNodePolicy)
    status = guarded.guard.status(0.0)
    assert (status.policy, status.heuristic, status.mode) == ("iawp", HEURISTIC, GuardMode.SHADOW)
    assert status.model == "sensitivity over gaussian"
    guarded.dispatch(view())
    assert fallbacks(guarded) == {"out-of-distribution": 1}, "nothing was measured here yet"


def test_an_agents_setting_names_the_score_and_the_guards() -> None:
    def loaded(spec: str) -> GuardedNodePolicy:
        policy = load_guarded(
            spec,
            rng=np.random.default_rng(0),
            node="n1",
            estimates=Stdm(memory_mib=1000.0),
            sampled_at_s=lambda: None,
            clock_s=Ticks(),
        )
        assert isinstance(policy, GuardedNodePolicy)
        return policy

    models = [loaded(spec).guard.model for spec in ("iawp:guarded", "iawp:learned:guarded")]
    assert models == ["guarded sensitivity over gaussian", "guarded learned over gaussian"]
    assert loaded("iawp:guarded").name == "iawp", "what `hrm policy set` calls it"
    times = Known({"faces": 9.0}, {"faces": 1.0})
    busy = node_view([subtask("faces")], times, idle=[0], gpus=[gpu(running=["edges"] * 4)])
    asked = {spec: loaded(spec)._learned.dispatch(busy) for spec in ("iawp", "iawp:guarded")}
    assert [one.device for one in asked["iawp"]] == [Device.CPU]
    assert asked["iawp:guarded"] == [], "a GPU ends it sooner, waiting included"
    wrong_ones = ("iawp:oracle", "iawp:nonsense", "iawp:learned:nonsense", "pats:guarded")
    for wrong in (*wrong_ones, "iawp:gain=x", "iawp:gain=2", "iawp:gain=nan"):
        with pytest.raises(InvalidConfig):
            loaded(wrong)


def test_estimates_report_how_far_a_row_is_from_what_was_measured() -> None:
    stdm = Stdm(memory_mib=1000.0)
    rows = [Row(f"k{number}", 2, "P4") for number in range(8)]
    assert stdm.outside(rows) == 1.0
    for number, row in enumerate(rows):
        stdm.observe(row, "sm", 0.2 + 0.05 * number)
        stdm.observe(row, "memory", 100.0)
    assert stdm.outside(rows) == 0.0
    assert stdm.outside([Row("new", 2, "P4")]) == 0.0, "it is believed to be like the others"
    far = Row("far", 2, "P4")
    stdm.observe(far, "sm", 0.95)
    assert stdm.outside([far]) == pytest.approx(1 / 3), "of processors, memory and size"
    for _ in range(3):
        for number in range(8):
            stdm.observe(Row(f"like it {number}", 2, "P4"), "sm", 0.9)
    assert stdm.outside([far]) == 0.0, "learned meanwhile"
