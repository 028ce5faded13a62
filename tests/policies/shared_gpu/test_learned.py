"""The set network in use, and what its guard refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidConfig
from hrm.policies import model_files
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model
from hrm.policies.shared_gpu.features import (
    GPU_FIELDS,
    JOB_FIELDS,
    ROWS_MAX,
    SHARING_SCHEMA,
    observe,
)
from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
from hrm.policies.shared_gpu.heuristics import GpuSharingView, PackedByLength, WaitingGpuJob
from hrm.policies.shared_gpu.learned import BASE, LearnedGpuSharing, improved
from hrm.policies.shared_gpu.network import action_values, network_shapes
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile, ProfileTable
from tests.policies.shared_gpu.printed import P, Q, S, U

RULE = CapacityRule(memory="aligned")


def model(changes: Mapping[str, Any] | None = None, **meta: Any) -> Model:
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.normal(0.0, 0.2, size=shape).astype(np.float32)
        for name, shape in network_shapes().items()
    }
    inputs = len(JOB_FIELDS) + len(GPU_FIELDS)
    arrays |= {"low": np.full(inputs, -9, np.float32), "high": np.full(inputs, 99, np.float32)}
    return Model(
        kind="dqngpu-ddqn",
        version=1,
        schema=SHARING_SCHEMA,
        arrays={**arrays, **(changes or {})},
        meta={"q_abs_max": 50.0, "margin": 0.0, "margin_known": 0.0, **meta},
    )


def view(
    waiting: list[GpuUseProfile], running: list[tuple[GpuUseProfile, int]] | None = None
) -> GpuSharingView:
    held = running or []
    jobs = [WaitingGpuJob(key, one, 0) for key, one in enumerate(waiting)]
    return GpuSharingView(3, held, jobs, RULE.fitting(held, ProfileTable(waiting)), RULE)


def guarded(made: Model, mode: GuardMode = GuardMode.ON) -> GuardedGpuSharing:
    return GuardedGpuSharing(
        made, LearnedGpuSharing(made), gpu="node-1/gpu-0", clock_s=lambda: 0.0, mode=mode
    )


def test_the_order_of_jobs_does_not_matter() -> None:
    weights = model().arrays
    jobs = [P, Q, S, U]
    ahead = action_values(weights, observe(view(jobs, [(S, 1)])))
    behind = action_values(weights, observe(view(jobs[::-1], [(S, 1)])))
    assert ahead[0] == pytest.approx(behind[0], abs=1e-5)
    assert ahead[1:] == pytest.approx(behind[1:][::-1], abs=1e-5)


def test_jobs_that_are_alike_share_a_row_that_stands_for_the_oldest() -> None:
    state = observe(view([P, Q, P, P]))
    assert state.places.tolist() == [0, 1]
    assert len(state.jobs) == 2
    alike = JOB_FIELDS.index("alike")
    assert state.jobs[:, alike] == pytest.approx([0.3, 0.1])


def test_of_more_kinds_of_jobs_than_rows_those_that_fit_are_seen() -> None:
    large = [GpuUseProfile(P.uses) for _ in range(ROWS_MAX)]
    fitting = GpuUseProfile(S.uses)
    state = observe(view([*large, fitting], [(Q, 0)]))
    assert len(state.jobs) == ROWS_MAX
    assert state.mask.sum() == 2
    assert state.places[int(np.argmax(state.mask[1:]))] == ROWS_MAX


def test_an_idle_gpu_may_not_wait() -> None:
    assert not observe(view([P])).mask[0]
    assert observe(view([P], [(S, 1)])).mask[0]


def test_what_is_illegal_has_no_value() -> None:
    state = observe(view([P, S], [(Q, 0)]))
    q = action_values(model().arrays, state)
    assert np.isneginf(q[~state.mask]).all()
    assert np.isfinite(q[state.mask]).all()


def test_speeds_that_are_not_known_are_full_speed() -> None:
    plain = observe(view([P, S], [(Q, 0)])).jobs
    speeds = [JOB_FIELDS.index(name) for name in ("speed", "speed_gain", "speed_paired")]
    assert plain[:, speeds].tolist() == [[1.0, 1.0, 2.0]] * 2
    seen = dataclasses.replace(view([P, S], [(Q, 0)]), pace=np.array([[0.5, 0.2, 1.1]] * 2))
    assert observe(seen).jobs[:, speeds] == pytest.approx(np.array([[0.5, 0.2, 1.1]] * 2))


def test_a_model_file_decides_as_the_model_did(tmp_path: Path) -> None:
    made = model()
    model_files.write(made, tmp_path / "dqngpu-ddqn-1.npz")
    read = model_files.find("dqngpu-ddqn", state_dir=tmp_path)
    seen = view([P, Q, S, U], [(S, 0)])
    assert LearnedGpuSharing(read).choose(seen) == LearnedGpuSharing(made).choose(seen)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (dataclasses.replace(model(), schema="0" * 16), "trained on other features"),
        (model({"wj": np.zeros((1, 64), np.float32)}), "array 'wj' has the shape"),
        (model({"more": np.zeros(1, np.float32)}), "belongs to no network"),
        (model(q_abs_max="high"), "q_abs_max"),
        (model(margin=-1.0), "margin"),
        (model(margin_known=None), "margin_known"),
    ],
)
def test_a_model_of_another_network_is_refused(made: Model, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        LearnedGpuSharing(made)


def test_what_is_better_by_less_than_the_margin_leaves_the_heuristics_choice() -> None:
    seen = view([P, Q, S, U], [(S, 0)])
    longest = BASE.choose(seen)
    assert longest == PackedByLength(longest=True).choose(seen)
    choices = {LearnedGpuSharing(model(margin=each)).choose(seen) for each in (50.0, 90.0)}
    assert choices == {longest}
    assert improved(np.array([0.0, 1.0, 1.2], np.float32), 1, 0.1) == 2
    assert improved(np.array([0.0, 1.0, 1.2], np.float32), 1, 0.3) == 1
    assert improved(np.array([np.nan, -np.inf, 1.2], np.float32), 2, 0.3) == 2


def test_where_slowdowns_are_known_another_margin_counts() -> None:
    seen = view([P, Q, S, U], [(S, 0)])
    pace = np.tile((0.9, 0.8, 1.8), (4, 1))
    known = dataclasses.replace(seen, pace=pace)
    at_once = LearnedGpuSharing(model())
    base = BASE.choose(known)
    others = [place for place in (at_once.choose(seen), at_once.choose(known)) if place != base]
    assert others, "without a margin the network decides in one of them"
    assert LearnedGpuSharing(model(margin_known=90.0)).choose(known) == base
    assert LearnedGpuSharing(model(margin_known=90.0)).choose(seen) == at_once.choose(seen)


def test_on_the_network_decides() -> None:
    some = guarded(model())
    seen = view([P, Q, S, U], [(S, 0)])
    assert some.choose(seen) == LearnedGpuSharing(model()).choose(seen)
    assert some.guard.status(0.0).fallbacks == {}


def test_in_the_shadow_packed_sjf_decides() -> None:
    some = guarded(model(), GuardMode.SHADOW)
    assert some.choose(view([P, Q, S, U])) == 2
    assert some.guard.status(0.0).shadowed == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bv": np.full(1, np.nan, np.float32)}, "not-finite"),
        ({"bv": np.full(1, 9_999.0, np.float32)}, "value-out-of-range"),
        ({"high": np.full(len(JOB_FIELDS) + len(GPU_FIELDS), -1, np.float32)},
         "out-of-distribution"),
    ],
)  # fmt: skip
def test_where_its_answer_must_not_count_packed_sjf_decides(
    changes: dict[str, Any], reason: str
) -> None:
    some = guarded(model(changes))
    assert some.choose(view([P, Q, S, U])) == 2
    assert some.guard.status(0.0).fallbacks == {reason: 1}


def test_a_model_of_other_features_is_never_called() -> None:
    made = dataclasses.replace(model(), schema="0" * 16)
    some = GuardedGpuSharing(made, None, gpu="g", clock_s=lambda: 0.0, mode=GuardMode.ON)
    assert some.choose(view([P, Q, S, U])) == 2
    assert some.guard.status(0.0).fallbacks == {"schema": 1}


def test_a_policy_whose_jobs_run_out_of_memory_goes_back_to_the_shadow() -> None:
    some = guarded(model(), GuardMode.CANARY_50)
    for number in range(240):
        seen = dataclasses.replace(view([Q]), now=61 * number)
        seen = dataclasses.replace(seen, waiting=[WaitingGpuJob(number, Q, 0)])
        before = some.guard.status(0.0).learned
        assert some.choose(seen) == 0
        learned = some.guard.status(0.0).learned > before
        some.ended(number, now=610.0 * number + 30.0, ran_s=30.0, ok=not learned)
    assert some.guard.mode is GuardMode.SHADOW
    assert "watchdog" in some.guard.status(0.0).fallbacks
