"""Profiles of GPU use: what runs leave, what a file and another table keep, what ticks show."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm, load_estimates
from hrm.pipelines.policies.corun.store import dump_estimates, merge_estimates
from hrm.policies.shared_gpu.recorded_use import RecordedUse, in_ticks

ROW, OTHER = Row("edges", 1, "P4"), Row("faces", 1, "P4")
AS_FAST = dict.fromkeys(Device, 1.0)


def constant(gpu: float, memory_mib: float) -> tuple[GpuUsePart, ...]:
    return (GpuUsePart(gpu, memory_mib, gpu, 0.0),) * USE_PARTS


def rising() -> tuple[GpuUsePart, ...]:
    return tuple(GpuUsePart(0.5, 100.0 * (n + 1), 0.4, 0.1) for n in range(USE_PARTS))


def stdm() -> Stdm:
    return Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})


def test_shares_are_means_and_memory_is_about_the_greatest() -> None:
    first = RecordedUse(constant(0.8, 1000.0))
    second = first.observed(constant(0.4, 600.0))
    assert second.runs == 2
    assert second.parts[0].gpu == pytest.approx(0.6)
    assert second.parts[0].memory_mib == pytest.approx(980.0), "it falls by a twentieth"
    third = second.observed(constant(0.6, 2000.0))
    assert third.parts[3].memory_mib == 2000.0, "and rises at once"


def test_of_what_was_measured_long_ago_little_is_left() -> None:
    held = RecordedUse(constant(1.0, 5000.0))
    for _ in range(100):
        held = held.observed(constant(0.2, 500.0))
    assert held.runs == 101, "the count has no bound"
    assert held.parts[0].gpu == pytest.approx(0.2, abs=0.01)
    assert held.parts[0].memory_mib == pytest.approx(500.0, rel=0.1)


def test_a_tick_shows_the_greatest_of_the_parts_that_it_touches() -> None:
    profile = in_ticks(rising(), run_s=16.0, tick_s=4.0, memory_mib=1600.0)
    assert profile.uses.shape == (4, 4)
    assert profile.uses[:, 1] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    uneven = in_ticks(rising(), run_s=16.0, tick_s=6.0, memory_mib=1600.0)
    assert uneven.uses[:, 1] == pytest.approx([6 / 16, 12 / 16, 1.0])
    fine = in_ticks(rising(), run_s=16.0, tick_s=0.5, memory_mib=1600.0)
    assert len(fine) == 32 and fine.uses[:4, 1] * 16 == pytest.approx([1, 1, 2, 2])


@pytest.mark.parametrize("run_s", [0.0, 0.001, 3.0])
def test_what_is_shorter_than_a_tick_has_one_with_its_peak(run_s: float) -> None:
    profile = in_ticks(rising(), run_s=run_s, tick_s=4.0, memory_mib=1600.0)
    assert profile.uses.tolist() == [pytest.approx([0.5, 1.0, 0.4, 0.1])]


def test_a_profile_survives_its_file_and_what_has_none_has_none(tmp_path: Path) -> None:
    known = stdm()
    known.observe_run(OTHER, Device.GPU, 1.0)
    known.observe_gpu_use(ROW, rising())
    path = tmp_path / "estimates.npz"
    path.write_bytes(dump_estimates(known))
    loaded = stdm()
    load_estimates(path, loaded)
    assert np.array(loaded.gpu_use(ROW)) == pytest.approx(np.array(rising()), rel=1e-6)
    assert loaded.gpu_use(OTHER) == () == loaded.gpu_use(Row("none", 0, "P4"))


def test_a_file_of_before_profiles_were_recorded_is_as_good() -> None:
    known = stdm()
    known.observe_run(ROW, Device.GPU, 2.0)
    with np.load(io.BytesIO(dump_estimates(known))) as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("gpu_use")}
    assert "gpu_use" not in "".join([*arrays, str(arrays["meta"])])
    content = io.BytesIO()
    np.savez(content, **arrays)
    loaded = stdm()
    load_estimates(content.getvalue(), loaded)
    assert loaded.run_s(ROW, Device.GPU) == 2.0 and loaded.gpu_use(ROW) == ()


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("gpu_uses", np.full((1, USE_PARTS, 4), np.nan)),
        ("gpu_uses", np.full((1, USE_PARTS, 4), 2.0)),
        ("gpu_uses", np.zeros((1, USE_PARTS - 1, 4))),
        ("gpu_uses", np.zeros((2, USE_PARTS, 4))),
        ("gpu_use_runs", np.array([0])),
        ("gpu_use_runs", np.array([1, 1])),
        ("gpu_use_rows", np.array([1])),
        ("gpu_use_rows", np.array([-1])),
        ("gpu_use_rows", np.array([0, 0])),
    ],
)
def test_a_damaged_profile_is_refused_and_nothing_is_added(
    array: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    known, here = stdm(), stdm()
    known.observe_gpu_use(ROW, rising())
    with np.load(io.BytesIO(dump_estimates(known))) as file:
        arrays = {name: file[name] for name in file.files} | {array: value}
    content = io.BytesIO()
    np.savez(content, **arrays)
    with pytest.raises(InvalidRequest, match="holds no estimates"):
        merge_estimates(content.getvalue(), here, AS_FAST)
    assert not here.entries


def test_of_two_tables_the_profile_of_more_runs_counts() -> None:
    there, here = stdm(), stdm()
    for _ in range(2):
        there.observe_gpu_use(ROW, constant(0.8, 900.0))
        here.observe_gpu_use(OTHER, constant(0.3, 300.0))
    here.observe_gpu_use(ROW, constant(0.1, 100.0))
    there.observe_gpu_use(OTHER, constant(0.9, 990.0))
    content = dump_estimates(there)
    merge_estimates(content, here, AS_FAST)
    assert here.gpu_use(ROW)[0].gpu == pytest.approx(0.8)
    assert here.gpu_use(OTHER)[0].gpu == pytest.approx(0.3)
    changes = here.changes
    merge_estimates(content, here, AS_FAST)
    assert here.changes == changes, "it has that already"


def test_of_two_tables_with_many_runs_that_of_more_still_counts() -> None:
    there, here = stdm(), stdm()
    for _ in range(30):
        here.observe_gpu_use(ROW, constant(0.1, 100.0))
        there.observe_gpu_use(ROW, constant(0.8, 900.0))
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.gpu_use(ROW)[0].gpu == pytest.approx(0.1), "as many: its own"
    there.observe_gpu_use(ROW, constant(0.8, 900.0))
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.gpu_use(ROW)[0].gpu == pytest.approx(0.8)


def test_a_profile_is_sent_once_with_its_row_alone() -> None:
    there, here = stdm(), stdm()
    for row in (OTHER, ROW, Row("batch", 1, "P4")):
        there.observe_run(row, Device.GPU, 2.0)
    there.observe_gpu_use(OTHER, constant(0.3, 300.0))
    mark = there.changes
    there.observe_gpu_use(ROW, rising())
    merge_estimates(dump_estimates(there, since=mark), here, AS_FAST)
    assert list(here.entries) == [ROW]
    assert np.array(here.gpu_use(ROW)) == pytest.approx(np.array(rising()), rel=1e-6)
    assert not there.since(there.changes)


@pytest.mark.parametrize(
    "use",
    [
        constant(0.5, 100.0)[:-1],
        constant(1.5, 100.0),
        constant(0.5, -1.0),
        constant(float("nan"), 100.0),
        constant(0.5, float("inf")),
    ],
)
def test_what_is_no_profile_is_refused(use: tuple[GpuUsePart, ...]) -> None:
    known = stdm()
    with pytest.raises(InvalidRequest, match="profile of a GPU"):
        known.observe_gpu_use(ROW, use)
    assert known.gpu_use(ROW) == ()


def test_what_has_no_version_for_a_gpu_has_no_profile() -> None:
    known = stdm()
    known.declare(ROW, SubtaskSpec(name="a", kind="edges", devices=frozenset({Device.CPU})))
    known.observe_gpu_use(ROW, rising())
    assert known.gpu_use(ROW) == ()
