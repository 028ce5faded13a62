"""The profile: its format, what is counted against what is known, the roofline, the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pipelines import PIPELINES, counting, devices, profile
from benchmarks.pipelines.__main__ import main
from benchmarks.pipelines.counting import CARDS, LAUNCH_S, Card, Operation, Work
from hrm.errors import NotFound

FEATURES = {"sm", "l1", "l2", "tex", "dram", "load", "store"}


def test_what_is_counted_is_what_is_known() -> None:
    one, other = torch.ones((64, 32)), torch.ones((32, 16))
    picture, kernel = torch.ones((2, 3, 20, 20)), torch.ones((5, 3, 3, 3))
    with counting.counted() as work:
        _ = one @ other
        _ = torch.nn.functional.conv2d(picture, kernel)
        _ = one + one
        _ = one.t().reshape(-1, 1)[3:]
        devices.upload(np.zeros((10, 10), np.float32))
    product, convolution, addition, *rest = work.operations
    assert product.flops == 2 * 64 * 32 * 16 and product.dense
    assert product.read == 4 * (64 * 32 + 32 * 16) and product.written == 4 * 64 * 16
    assert convolution.flops == 2 * (2 * 5 * 18 * 18) * 27
    assert addition.flops == 64 * 32 and not addition.dense
    assert len(rest) <= 1, "a view is no kernel; a transposed reshape is one copy"
    assert (work.copied, work.copies) == (400, 1)


def test_memory_alive_is_counted_at_its_peak() -> None:
    with counting.counted() as work:
        one = torch.zeros(1000)
        two = one + 1
        del one
        three = two + 1
        del two, three
    assert work.memory_bytes == 8000


def test_the_roofline_takes_what_binds() -> None:
    card = Card("card", 1e12, 1e11, 8192)
    assert card.seconds(Operation(4, 4, 1, False)) == LAUNCH_S
    assert card.seconds(Operation(7e9, 0, 1, False)) == pytest.approx(0.1)
    assert card.seconds(Operation(0, 0, 1e12, True)) == pytest.approx(2.0)
    work = Work([Operation(7e9, 0, 1, False)], copied=6e8, copies=1)
    found = card.estimate(work)
    assert found.seconds == pytest.approx(0.2, rel=1e-3)
    assert found.features["dram"] == pytest.approx(0.35, rel=1e-3)
    assert found.features["store"] == 0
    assert set(card.estimate(Work()).features) == FEATURES


def _check(document: dict[str, object], sizes: set[float]) -> None:
    applications, rows = document["applications"], document["rows"]
    assert isinstance(applications, dict) and isinstance(rows, list)
    assert set(applications) == set(PIPELINES)
    assert [len(applications[name]) for name in PIPELINES] == [5, 6, 7, 4]
    kinds = {step["kind"]: set(step["devices"]) for app in applications.values() for step in app}
    assert len(kinds) == 16 + 4
    assert {(row["kind"], row["size_mb"]) for row in rows} == {
        (kind, size) for kind in kinds for size in sizes
    }
    for row in rows:
        devices_ = kinds[row["kind"]]
        assert (row["cpu_s"] is not None) == ("cpu" in devices_)
        assert (row["gpu_s"] is not None) == ("gpu" in devices_)
        assert row["cpu_memory_mib"] >= 0 and 0 < row["cpu_share"] <= 1
        if row["gpu_s"] is not None:
            assert min(row["gpu_s"]) > 0 and row["gpu_memory_mib"] > 0
            assert set(row["gpu_features"]) == FEATURES
            assert all(0 <= value <= 1 for value in row["gpu_features"].values())


def test_the_committed_profile_has_every_kind_and_size() -> None:
    document = json.loads(profile.PROFILES.read_text())
    _check(document, set(profile.SIZES_MB))
    gpu = document["gpu"]
    assert gpu["measured"] or "derived, not measured" in gpu["source"]


@pytest.mark.timeout(300)  # some 40 s of a core
def test_profile_measures_and_extrapolates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "COUNTED_MB", 2.0)
    monkeypatch.setattr(profile, "pinned", devices.one_thread)
    target = tmp_path / "profiles.json"
    assert (
        main(["profile", "--sizes-mb", "1,2,4", "--measured-mb", "2", "--json", str(target)]) == 0
    )
    document = json.loads(target.read_text())
    _check(document, {1.0, 2.0, 4.0})
    rows = {(row["kind"], row["size_mb"]): row for row in document["rows"]}
    one, two, four = (rows["gmm-background", size]["gpu_s"][0] for size in (1.0, 2.0, 4.0))
    assert four == pytest.approx(two + 2 * (two - one), abs=2e-6)
    assert rows["gmm-background", 4.0]["extrapolated"]
    assert rows["gmm-background", 4.0]["cpu_extrapolated"]
    assert document["cpu"]["measured_up_to_mb"] == 2
    assert document["gpu"]["model"] == CARDS[0].name or document["gpu"]["measured"]


def test_run_shows_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "video-synopsis", "--size-mb", "5"]) == 0
    shown = capsys.readouterr().out
    for step in profile.load("video-synopsis").steps:
        assert f"| {step} |" in shown
    assert "source_frames: 21" in shown


def test_errors_of_the_user_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "video-synopsis", "--input", str(tmp_path / "none.mp4")]) == 1
    assert "no video at" in capsys.readouterr().err
    with pytest.raises(NotFound, match="there are video-synopsis"):
        profile.load("cooking")
