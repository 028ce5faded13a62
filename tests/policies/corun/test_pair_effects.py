"""What each suffers and inflicts on a shared GPU, learned from pairs that ran."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, Row
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun import pair_effects as module
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing, sharing_of
from hrm.pipelines.policies.corun.pair_effects import PairEffects, pair_prior
from hrm.pipelines.policies.corun.scores import Sensitivity, progress
from hrm.pipelines.policies.corun.slowdowns import LOADS
from hrm.pipelines.policies.corun.store import dump_estimates, load_estimates

NAMES = ("a", "b", "c", "d", "e", "f")
ROWS = {name: Row(name, 1, "P4") for name in NAMES}
SUFFERS = dict(zip(NAMES, (0.9, 0.5, 0.3, 0.1, 0.05, 0.6), strict=True))
INFLICTS = dict(zip(NAMES, (0.1, 0.4, 0.2, 0.8, 0.05, 0.3), strict=True))


def truth(victim: str, partner: str) -> float:
    return math.exp(SUFFERS[victim] + INFLICTS[partner])


def none(victim: Row, partner: Row) -> float:
    return 0.0


def loads(sm: float) -> np.ndarray:
    return np.array([sm, *[0.0] * (LOADS - 1)])


def test_a_pair_that_never_ran_follows_from_what_both_did_with_others() -> None:
    effects = PairEffects()
    never = {("a", "d"), ("d", "a"), ("b", "c"), ("c", "b")}
    for _ in range(10):
        for victim in NAMES:
            for partner in NAMES:
                if (victim, partner) not in never:
                    rows = ROWS[victim], [ROWS[partner]]
                    effects.observe(*rows, truth(victim, partner), none)
    effects.fit(none)
    for victim, partner in never:
        told = 1.0 + effects.excess(ROWS[victim], ROWS[partner], none)
        assert told == pytest.approx(truth(victim, partner), rel=0.15)


def test_another_size_of_a_known_kind_has_the_effects_of_its_kind() -> None:
    effects = PairEffects()
    for _ in range(5):
        for victim in NAMES:
            effects.observe(ROWS[victim], [ROWS["b"]], truth(victim, "b"), none)
    effects.fit(none)
    told = {kind: effects.excess(Row(kind, 4, "P4"), ROWS["b"], none) for kind in ("a", "e")}
    assert told["a"] > told["e"] + 0.3


def test_before_any_co_run_the_loads_decide() -> None:
    effects = PairEffects()
    assert effects.excess(ROWS["a"], ROWS["b"], none) == 0.0
    assert effects.excess(ROWS["a"], ROWS["b"], lambda *_: math.log(1.4)) == pytest.approx(0.4)


@pytest.mark.parametrize(("sm", "slower"), [(0.3, 1.0), (0.5, 1.0), (0.8, 1.6), (1.0, 2.0)])
def test_in_turns_two_take_the_sum_of_their_shares_of_the_time(sm: float, slower: float) -> None:
    told = math.exp(pair_prior(loads(sm), loads(sm), GpuSharing.TIME_SLICING))
    assert told == pytest.approx(slower)


def test_under_mps_the_memory_traffic_of_a_partner_counts_and_its_time_does_not() -> None:
    alone, beside = np.zeros(LOADS), np.zeros(LOADS)
    beside[4] = 0.8
    assert pair_prior(alone, beside, GpuSharing.MPS) > pair_prior(beside, alone, GpuSharing.MPS)
    assert pair_prior(alone, beside, GpuSharing.TIME_SLICING) == 0.0


def test_what_a_run_with_several_took_longer_goes_to_those_that_are_known_to_inflict() -> None:
    effects = PairEffects()
    for _ in range(10):
        effects.observe(ROWS["a"], [ROWS["d"]], 2.0, none)
        effects.observe(ROWS["a"], [ROWS["e"]], 1.02, none)
    effects.fit(none)
    effects.observe(ROWS["a"], [ROWS["d"], ROWS["e"]], 2.1, none)
    sums = effects.sums()
    both = {name: sums[ROWS["a"], ROWS[name]] for name in "de"}
    assert both["d"] == pytest.approx((10.5, 10 * math.log(2) + 0.5 * math.log(2.07)), rel=0.03)
    assert both["e"][1] < 1.0
    assert effects.slowdown(ROWS["a"], [ROWS["d"], ROWS["e"]], none) == pytest.approx(2.0, abs=0.2)


def test_one_that_hung_weighs_no_more_than_a_tenfold_slowdown() -> None:
    effects = PairEffects()
    effects.observe(ROWS["a"], [ROWS["b"]], 1e9, none)
    assert effects.sums()[ROWS["a"], ROWS["b"]][1] == pytest.approx(math.log(10))


def test_the_oldest_pairs_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS_MAX", 10)
    effects = PairEffects()
    for number in range(30):
        effects.observe(Row(f"k{number}", 0, ""), [ROWS["a"]], 1.5, none)
    assert len(effects) == 10
    assert (Row("k29", 0, ""), ROWS["a"]) in effects.sums()


def _with_co_runs() -> Stdm:
    stdm = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    for name in "abd":
        stdm.observe_run(ROWS[name], Device.GPU, 1.0)
    for name, slower in (("a", 3.0), ("b", 1.1)):
        for _ in range(4):
            stdm.observe_run(ROWS[name], Device.GPU, slower, co_runners=(ROWS["d"],))
    return stdm


def test_a_node_learns_them_from_its_runs_and_keeps_them() -> None:
    stdm = _with_co_runs()
    again = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    load_estimates(dump_estimates(stdm), again)
    score = Sensitivity()
    for one in (stdm, again):
        assert score.own(ROWS["a"], [ROWS["d"]], one) > score.own(ROWS["b"], [ROWS["d"]], one) + 0.5
    assert again.pair_effects.sums() == stdm.pair_effects.sums()


def test_damaged_pairs_are_refused_and_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    stdm = _with_co_runs()
    stdm.pair_effects._sums[ROWS["a"], ROWS["d"]] = (0.0, math.nan)
    again = Stdm(memory_mib=32_000)
    with pytest.raises(InvalidRequest, match="sums of pairs"):
        load_estimates(dump_estimates(stdm), again)
    assert not again.entries and not again.pair_effects.sums()


def test_progress_of_those_that_share_a_gpu() -> None:
    stdm = _with_co_runs()
    assert progress([], stdm) == 0.0
    assert progress([ROWS["a"]], stdm) == 1.0
    told = [stdm.pair_effects.excess(*pair, stdm.pair_prior) for pair in
            ((ROWS["a"], ROWS["d"]), (ROWS["d"], ROWS["a"]))]  # fmt: skip
    by_hand = sum(1 / (1 + max(0.0, one)) for one in told)
    assert progress([ROWS["a"], ROWS["d"]], stdm) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, GpuSharing.TIME_SLICING),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, GpuSharing.TIME_SLICING),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/w/mps/gpu0"}, GpuSharing.MPS),
    ],
)
def test_the_mode_is_that_which_the_agent_gave_the_container(
    environment: dict[str, str], mode: GpuSharing
) -> None:
    assert sharing_of(environment) is mode
