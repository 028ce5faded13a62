"""Logs stay for their time and their size; those of a running container stay in any case."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hrm.agent.containers import retention
from hrm.agent.containers.container_dir import remove_tree
from hrm.agent.containers.retention import sweep

NOW = 1_000_000.0
LOG_BYTES = 1_000


def container(
    root: Path, name: str, *, ended_ago_s: float | None, acknowledged: bool = True
) -> Path:
    """A container's directory with one log; None: it runs."""
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "stderr").write_bytes(b"x" * LOG_BYTES)
    if ended_ago_s is not None:
        record = directory / "exit.json"
        record.touch()
        os.utime(record, (NOW - ended_ago_s, NOW - ended_ago_s))
    if acknowledged:
        (directory / "acknowledged").touch()
    return directory


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def swept(root: Path, *running: str, keep_s: float = 3600.0, logs: float = 1e6) -> retention.Swept:
    return sweep(
        root,
        running.__contains__,
        keep_s=keep_s,
        bytes_max=int(logs * LOG_BYTES),
        now=NOW,
        remove=remove_tree,
    )


def test_age_removes_those_that_ended_long_ago(tmp_path: Path) -> None:
    container(tmp_path, "old", ended_ago_s=3601.0)
    container(tmp_path, "young", ended_ago_s=3599.0)
    container(tmp_path, "running", ended_ago_s=None)
    assert swept(tmp_path).old == 1
    assert left(tmp_path) == ["running", "young"]


def test_size_removes_those_that_ended_first_until_the_rest_fits(tmp_path: Path) -> None:
    for name, ago_s in (("b", 300.0), ("a", 200.0), ("d", 400.0), ("c", 100.0)):
        container(tmp_path, name, ended_ago_s=ago_s)
    done = swept(tmp_path, logs=2)
    assert (done.old, done.too_much, done.bytes_left) == (0, 2, 2 * LOG_BYTES)
    assert left(tmp_path) == ["a", "c"]
    assert swept(tmp_path, logs=2).too_much == 0, "as much as is allowed stays"


def test_a_running_container_counts_and_stays(tmp_path: Path) -> None:
    container(tmp_path, "running", ended_ago_s=None)
    container(tmp_path, "again", ended_ago_s=9000.0)  # with the record of an earlier life
    container(tmp_path, "ended", ended_ago_s=10.0)
    swept(tmp_path, "again", "running", logs=0)
    assert left(tmp_path) == ["again", "running"]


def test_an_end_that_the_master_has_not_acknowledged_stays_on_record(tmp_path: Path) -> None:
    directory = container(tmp_path, "c", ended_ago_s=10.0, acknowledged=False)
    (directory / "stdout.d" / "deep").mkdir(parents=True)
    assert swept(tmp_path, logs=0).too_much == 1
    assert left(directory) == ["exit.json", "stdout.d"], "what is no file holds up nothing"
    assert swept(tmp_path, logs=0).too_much == 0


def test_an_end_that_the_master_has_not_acknowledged_outlives_its_age(tmp_path: Path) -> None:
    """The master is unreachable for longer than logs are kept."""
    directory = container(tmp_path, "c", ended_ago_s=9000.0, acknowledged=False)
    assert swept(tmp_path).old == 1
    assert left(directory) == ["exit.json"], "its logs go at their age"
    assert swept(tmp_path) == retention.Swept(), "and there is no more to do"
    (directory / "acknowledged").touch()
    assert swept(tmp_path).old == 1
    assert left(tmp_path) == []


def test_ends_that_nothing_is_notified_of_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNACKNOWLEDGED_MAX", 2)
    for name, ago_s in (("b", 30.0), ("a", 20.0), ("d", 9000.0), ("c", 10.0)):
        container(tmp_path, name, ended_ago_s=ago_s, acknowledged=False)
    container(tmp_path, "heard", ended_ago_s=40.0)
    assert swept(tmp_path).unacknowledged == 2
    assert left(tmp_path) == ["a", "c", "heard"]


def test_those_that_must_stay_do_not_keep_others_from_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "REMOVED_MAX", 2)
    for number in range(4):
        container(tmp_path, f"c{number}", ended_ago_s=9900.0, acknowledged=False)
    container(tmp_path, "heard", ended_ago_s=9000.0)
    counts = [swept(tmp_path).old for _ in range(4)]
    assert counts == [2, 2, 1, 0]
    assert left(tmp_path) == ["c0", "c1", "c2", "c3"]


def test_one_sweep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REMOVED_MAX", 2)
    for number in range(5):
        container(tmp_path, f"c{number}", ended_ago_s=9000.0 - number)
    counts = [swept(tmp_path).old for _ in range(4)]
    assert counts == [2, 2, 1, 0]


def test_one_that_left_no_record_of_its_end_goes_when_it_is_old(tmp_path: Path) -> None:
    directory = container(tmp_path, "a", ended_ago_s=None)
    os.utime(directory / "acknowledged", (NOW - 3_601.0, NOW - 3_601.0))
    assert swept(tmp_path).old == 1
    assert left(tmp_path) == []


def test_what_started_since_the_scan_is_left_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        container(tmp_path, name, ended_ago_s=3_601.0)
    started: set[str] = set()

    def remove(directory: Path) -> None:
        remove_tree(directory)
        started.add("b")

    done = sweep(
        tmp_path, started.__contains__, keep_s=3_600.0, bytes_max=10**9, now=NOW, remove=remove
    )
    assert done.old == 1
    assert left(tmp_path) == ["b"]
