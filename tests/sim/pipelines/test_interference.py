"""The worlds of interference: processor sharing, and no cosine anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import SubtaskKey, TaskId
from hrm.pipelines.sim.interference import LAWS, WORLDS, world
from hrm.pipelines.sim.profiles import K80, P4
from hrm.pipelines.sim.simulated_machine import GpuLoad
from tests.sim.pipelines.invented import sample

KINDS = sample().kinds
WITH_GPU = sorted(name for name, kind in KINDS.items() if kind.log_gpu_s is not None)
ONE, OTHER, THIRD = WITH_GPU[:3]


@pytest.mark.parametrize("name", WORLDS)
def test_none_is_faster_with_others(name: str) -> None:
    truth = world(name, KINDS)
    for model in (P4, K80):
        assert truth.slowdowns(model, ()) == ()
        assert truth.slowdowns(model, (ONE,)) == (1.0,)
        two = truth.slowdowns(model, (ONE, OTHER))
        three = truth.slowdowns(model, (ONE, OTHER, THIRD))
        assert all(one >= 1.0 for one in two)
        assert three[0] >= two[0] and three[1] >= two[1]


def test_overload_is_what_is_asked_beyond_one() -> None:
    truth = world("overload", KINDS)
    loads = np.add(KINDS[ONE].features, KINDS[OTHER].features)
    expected = 1.0 + float(np.maximum(0.0, loads - 1.0).sum())
    assert truth.slowdowns(P4, (ONE, OTHER)) == pytest.approx((expected, expected))


def test_magnitude_counts_where_a_cosine_is_blind() -> None:
    """Of two kinds with features in one direction, the larger one does more harm."""
    truth = world("measured", KINDS)
    mean = {
        partner: np.mean([truth.slowdowns(K80, (v, partner))[0] for v in WITH_GPU if v != partner])
        for partner in WITH_GPU
    }
    demand = {kind: KINDS[kind].features[0] + KINDS[kind].features[4] for kind in WITH_GPU}
    least, most = min(demand, key=demand.__getitem__), max(demand, key=demand.__getitem__)
    assert mean[most] > mean[least]


def test_what_ships_states_what_it_stands_on() -> None:
    assert LAWS["measured"][K80].pairs == 589
    assert 0.7 < LAWS["measured"][P4].explained < 0.9


def test_no_such_world() -> None:
    with pytest.raises(InvalidRequest, match="overload"):
        world("cosine", KINDS)


def test_a_gpu_shares_its_speed_as_the_world_states() -> None:
    truth = world("overload", KINDS)
    slowdown = truth.slowdowns(P4, (ONE, OTHER))[0]
    gpu = GpuLoad(P4, 8_192.0, truth)
    key = SubtaskKey(TaskId("t"), "s")
    gpu.advance(0.0)
    gpu.start(1, key, KINDS[ONE], 10.0, 100.0)
    gpu.advance(4.0)
    gpu.start(2, key, KINDS[OTHER], 100.0, 200.0)
    at_s, number = gpu.next_end() or (0.0, 0)
    assert number == 1
    assert at_s == pytest.approx(4.0 + 6.0 * slowdown)
    assert gpu.memory_used_mib == 300.0
    gpu.advance(4.0 + 6.0 * slowdown)
    gpu.stop(1)
    at_s, number = gpu.next_end() or (0.0, 0)
    assert number == 2
    assert at_s == pytest.approx(4.0 + 6.0 * slowdown + 94.0)
    assert gpu.busy_s == pytest.approx(4.0 + 6.0 * slowdown)
    assert gpu.work_s == pytest.approx(4.0 + 6.0 + 6.0)
