"""A node's estimates: measured first, then its kind at other sizes, then the predictor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, Estimates, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.metrics import (
    COLUMN,
    DEFAULTS,
    scaled_size,
    scaled_speedup,
    speedup_of,
)
from hrm.pipelines.policies.corun.store import dump_estimates, load_estimates
from hrm.pipelines.policies.corun.subtask_estimates import DEFAULT_S_PER_MB, ROWS_MAX

ROW = Row("edges", 2, "P4")
SHARES = ("cpu", "sm", "l1", "l2", "tex", "dram", "load", "store")


def stdm(**options: object) -> Stdm:
    return Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000}, **options)  # type: ignore[arg-type]


def declared(kind: str, *devices: Device, gpu_memory_mib: int = 0) -> Stdm:
    estimates = stdm()
    spec = SubtaskSpec(
        name=kind, kind=kind, devices=frozenset(devices), gpu_memory_mib=gpu_memory_mib
    )
    estimates.declare(Row(spec.kind, 0, "P4"), spec)
    return estimates


def grown(rows: int = 30) -> Stdm:
    """Rows of other kinds in which l2 is half of sm and all else 0.3."""
    estimates = stdm()
    rng = np.random.default_rng(0)
    for number in range(rows):
        row = Row(f"kind{number}", number % 6, "P4")
        sm = rng.uniform(0.1, 0.9)
        for metric in SHARES:
            estimates.observe(row, metric, {"sm": sm, "l2": sm / 2}.get(metric, 0.3))
        estimates.observe_run(row, Device.CPU, 10.0)
        estimates.observe_run(row, Device.GPU, 10.0 / (1 + 10 * sm))
    return estimates


def test_it_is_what_policies_ask() -> None:
    estimates: Estimates = stdm()
    assert estimates.speedup(ROW) > 0


def test_scales() -> None:
    assert scaled_size(200) == pytest.approx(0.884775, abs=5e-7)
    assert scaled_size(1e9) == 1.5
    assert scaled_speedup(50) == scaled_speedup(90) == 1.0
    assert speedup_of(scaled_speedup(7.5)) == pytest.approx(7.5)


def test_before_anything_is_known_defaults_hold() -> None:
    estimates = stdm()
    assert estimates.complete(ROW)[COLUMN["sm"]] == DEFAULTS[COLUMN["sm"]]
    assert estimates.run_s(ROW, Device.CPU) == pytest.approx(90 * DEFAULT_S_PER_MB[Device.CPU])
    assert estimates.speedup(ROW) == pytest.approx(4.0)
    assert estimates.memory_mib(ROW) < 32_000
    assert estimates.gpu_memory_mib(ROW) < 0.9 * 8000


@settings(max_examples=40, deadline=None)
@given(
    seen=st.lists(
        st.tuples(
            st.sampled_from(["edges", "faces"]),
            st.integers(0, 5),
            st.sampled_from(SHARES),
            st.floats(0, 1),
        ),
        max_size=30,
    )
)
def test_measured_cells_are_never_predicted(seen: list[tuple[str, int, str, float]]) -> None:
    estimates = stdm(refit_after=1)
    sums: dict[tuple[Row, str], list[float]] = {}
    for kind, bucket, metric, value in seen:
        row = Row(kind, bucket, "P4")
        estimates.observe(row, metric, value)
        sums.setdefault((row, metric), []).append(value)
    for (row, metric), values in sums.items():
        known = estimates.complete(row)[COLUMN[metric]]
        if len(values) <= 20:
            assert known == pytest.approx(sum(values) / len(values))
    for kind in ("edges", "faces", "other"):
        row = Row(kind, 3, "P4")
        assert np.isfinite(estimates.gpu_features(row)).all()
        assert ((estimates.gpu_features(row) >= 0) & (estimates.gpu_features(row) <= 1)).all()
        for device in Device:
            assert 0 < estimates.run_s(row, device) < math.inf
        assert estimates.memory_mib(row) >= 0
        assert estimates.gpu_memory_mib(row) >= 0


def test_versions_that_do_not_exist_are_not_asked_for() -> None:
    cpu = declared("edges", Device.CPU)
    assert (cpu.run_s(ROW, Device.GPU), cpu.speedup(ROW)) == (math.inf, 0.0)
    assert not cpu.gpu_features(ROW).any()
    assert cpu.gpu_memory_mib(ROW) == 0
    with pytest.raises(InvalidRequest, match=r"'edges'.*'sm'"):
        cpu.observe(ROW, "sm", 0.5)
    gpu = declared("edges", Device.GPU)
    assert (gpu.run_s(ROW, Device.CPU), gpu.speedup(ROW)) == (math.inf, math.inf)
    with pytest.raises(InvalidRequest, match="'cpu'"):
        gpu.observe(ROW, "cpu", 0.5)


def test_a_new_kind_is_estimated_from_its_measured_cells() -> None:
    estimates = grown()
    for sm in (0.2, 0.8):
        row = Row(f"new {sm}", 3, "P4")
        estimates.observe(row, "sm", sm)
        features = estimates.gpu_features(row)
        assert features[0] == pytest.approx(sm)
        assert features[2] == pytest.approx(sm / 2, abs=0.06)
        assert estimates.speedup(row) == pytest.approx(1 + 10 * sm, rel=0.35)


def test_the_same_kind_at_other_sizes_comes_before_other_kinds() -> None:
    estimates = grown()
    for bucket, l1 in ((0, 0.1), (5, 0.9)):
        estimates.observe(Row("edges", bucket, "P4"), "l1", l1)
    completed = [estimates.complete(Row("edges", b, "P4"))[COLUMN["l1"]] for b in range(6)]
    assert completed == sorted(completed)
    assert (completed[0], completed[5]) == (0.1, 0.9)
    assert estimates.complete(Row("edges", 2, "K80"))[COLUMN["l1"]] == pytest.approx(0.3, abs=0.05)


def test_durations_are_interpolated_over_sizes() -> None:
    estimates = stdm()
    estimates.observe_run(Row("edges", 1, "P4"), Device.CPU, 4.0)
    assert estimates.run_s(Row("edges", 3, "P4"), Device.CPU) == pytest.approx(16.0)
    estimates.observe_run(Row("edges", 5, "P4"), Device.CPU, 40.0)
    between = estimates.run_s(Row("edges", 3, "P4"), Device.CPU)
    assert 4.0 < between < 40.0
    assert estimates.run_s(Row("edges", 0, "P4"), Device.CPU) == pytest.approx(1.0)
    assert estimates.run_s(Row("edges", 1, "K80"), Device.CPU) == 4.0, "cores are the same ones"


def test_one_devices_time_gives_the_others() -> None:
    estimates = grown()
    row = Row("new", 3, "P4")
    estimates.observe(row, "sm", 0.5)
    estimates.observe_run(row, Device.CPU, 30.0)
    assert estimates.run_s(row, Device.GPU) == pytest.approx(30.0 / estimates.speedup(row))
    estimates.observe_run(row, Device.GPU, 3.0)
    assert estimates.speedup(row) == pytest.approx(10.0)
    assert estimates.complete(row)[COLUMN["speedup"]] == pytest.approx(scaled_speedup(10.0))


def test_runs_with_others_teach_slowdowns_and_leave_the_time_alone() -> None:
    estimates = grown()
    one, other = Row("kind1", 1, "P4"), Row("kind2", 2, "P4")
    alone_s = estimates.run_s(one, Device.GPU)
    for _ in range(30):
        estimates.observe_run(one, Device.GPU, 1.7 * alone_s, co_runners=(other,))
    assert estimates.run_s(one, Device.GPU) == alone_s
    assert estimates.slowdowns.observed == 30
    loads = [np.asarray(estimates.gpu_features(row)[:7], float) for row in (one, other)]
    assert estimates.slowdowns.slowdown(loads[0], loads[1][None, :]) == pytest.approx(1.7, abs=0.1)


def test_a_first_time_with_others_is_a_guess_until_it_ran_alone() -> None:
    estimates = stdm()
    estimates.observe_run(ROW, Device.GPU, 9.0, co_runners=(Row("faces", 1, "P4"),))
    assert 0 < estimates.run_s(ROW, Device.GPU) <= 9.0
    estimates.observe_run(ROW, Device.GPU, 2.0)
    assert estimates.run_s(ROW, Device.GPU) == 2.0


def test_memory_is_the_most_that_was_seen() -> None:
    estimates = declared("edges", Device.CPU, Device.GPU, gpu_memory_mib=700)
    assert estimates.gpu_memory_mib(ROW) == 700
    for mib in (900.0, 1200.0, 1000.0):
        estimates.observe_run(ROW, Device.GPU, 1.0, memory_mib=mib, gpu_memory_mib=2 * mib)
    assert estimates.memory_mib(ROW) == pytest.approx(1200.0)
    assert estimates.gpu_memory_mib(ROW) == pytest.approx(2400.0)


@pytest.mark.parametrize(
    ("metric", "value"), [("speed", 1.0), ("size", 3.0), ("sm", -0.1), ("sm", math.nan)]
)
def test_what_is_no_measurement_is_refused(metric: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=metric):
        stdm().observe(ROW, metric, value)
    with pytest.raises(InvalidRequest, match="took"):
        stdm().observe_run(ROW, Device.CPU, -1.0)


def test_rows_are_bounded() -> None:
    estimates = stdm()
    for number in range(ROWS_MAX + 5):
        estimates.observe_run(Row(f"k{number}", 0, "P4"), Device.CPU, 1.0)
        spec = SubtaskSpec(name="a", kind=f"k{number}", devices=frozenset({Device.CPU}))
        estimates.declare(Row(spec.kind, 0, "P4"), spec)
    assert len(estimates.entries) == len(estimates.devices) == ROWS_MAX
    assert Row("k4", 0, "P4") not in estimates.entries


def test_new_cells_change_the_loads_that_were_reported_before() -> None:
    estimates = grown()
    before = estimates.gpu_features(ROW).copy()
    estimates.observe(ROW, "sm", 0.95)
    assert estimates.gpu_features(ROW)[0] == pytest.approx(0.95)
    assert before[0] != pytest.approx(0.95)


def test_a_file_brings_everything_back(tmp_path: Path) -> None:
    estimates = grown()
    spec = SubtaskSpec(name="a", kind="edges", devices=frozenset({Device.CPU}))
    estimates.declare(Row(spec.kind, 0, "P4"), spec)
    one = Row("kind1", 1, "P4")
    estimates.observe_run(one, Device.GPU, 7.0, co_runners=(Row("kind2", 2, "P4"),))
    (tmp_path / "stdm.npz").write_bytes(dump_estimates(estimates))
    again = stdm()
    load_estimates(tmp_path / "stdm.npz", again)
    assert again.devices == estimates.devices
    for row in (one, Row("new", 3, "P4")):
        assert np.allclose(again.complete(row), estimates.complete(row), atol=1e-6)
        assert again.run_s(row, Device.GPU) == pytest.approx(estimates.run_s(row, Device.GPU))
    assert again.slowdowns.observed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["stdm.npz"]


def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stdm.npz"
    path.write_bytes(dump_estimates(grown()))
    path.write_bytes(path.read_bytes()[:-200])
    estimates = stdm()
    with pytest.raises(InvalidRequest, match=r"(?s)stdm\.npz.*learned from scratch"):
        load_estimates(path, estimates)
    broken = grown()
    broken.entries[Row("kind1", 1, "P4")].values[2] = -1.0
    path.write_bytes(dump_estimates(broken))
    with pytest.raises(InvalidRequest, match="no number"):
        load_estimates(path, estimates)
    assert not estimates.entries


def test_memory_is_kept_in_mebibytes_whatever_the_node_has_now(tmp_path: Path) -> None:
    before = Stdm(memory_mib=1000.0, gpu_memory_mib={"P4": 8000.0})
    before.observe(ROW, "memory", 250.0)
    before.observe(ROW, "gpu_memory", 2000.0)
    (tmp_path / "stdm.npz").write_bytes(dump_estimates(before))
    after = Stdm(memory_mib=4000.0, gpu_memory_mib={"P4": 16000.0})
    load_estimates(tmp_path / "stdm.npz", after)
    assert after.memory_mib(ROW) == pytest.approx(250.0)
    assert after.gpu_memory_mib(ROW) == pytest.approx(2000.0)
    before.memory_scale_mib = math.nan
    (tmp_path / "stdm.npz").write_bytes(dump_estimates(before))
    fresh = Stdm(memory_mib=1000.0)
    with pytest.raises(InvalidRequest, match="scale of memory"):
        load_estimates(tmp_path / "stdm.npz", fresh)
    assert not fresh.entries
