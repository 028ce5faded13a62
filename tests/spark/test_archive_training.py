"""Which process trains, how often, and what is kept. Tests with a real Spark show the archives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from hrm.spark import archive_training
from hrm.spark.archive import KINDS, Archives, write_json
from hrm.spark.archive_training import TrainingFailed, train


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    """Of a Spark that has no compiler, so that no training can succeed."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "hadoop-client-api-3.5.0.jar"):
        (jars / name).touch()
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    return Archives(str(tmp_path / "archives"), str(java), str(tmp_path / "spark"))


def test_one_trains_and_the_others_are_notified_that_another_does(
    archives: Archives, tmp_path: Path
) -> None:
    Path(archives.directory).mkdir(parents=True)
    with (Path(archives.directory) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not train(archives, plugins=tmp_path / "plugins")
    assert not archives.state(), "no attempt of theirs"


def test_failures_are_counted_and_then_none_is_tried(archives: Archives, tmp_path: Path) -> None:
    for attempt in (1, 2):
        with pytest.raises(TrainingFailed, match="no scala-compiler jar"):
            train(archives, plugins=tmp_path / "plugins", attempts_max=2)
        assert (archives.state()["state"], archives.state()["attempts"]) == ("failed", attempt)
    with pytest.raises(TrainingFailed, match="failed 2 times, the last time: no scala-compiler"):
        train(archives, plugins=tmp_path / "plugins", attempts_max=2)
    assert archives.state()["attempts"] == 2
    assert "its training failed: no scala-compiler" in archives.problem("driver")


def test_what_a_killed_training_left_goes(archives: Archives, tmp_path: Path) -> None:
    left = Path(archives.directory) / "work-x"
    (left / "local").mkdir(parents=True)
    with pytest.raises(TrainingFailed):
        train(archives, plugins=tmp_path / "plugins")
    assert not left.exists()


def test_a_garbled_record_counts_for_nothing(archives: Archives, tmp_path: Path) -> None:
    Path(archives.directory).mkdir(parents=True)
    write_json(f"{archives.directory}/state.json", {"state": "failed", "attempts": "many"})
    with pytest.raises(TrainingFailed, match="no scala-compiler jar"):
        train(archives, plugins=tmp_path / "plugins")
    assert archives.state()["attempts"] == 1


def test_an_archive_that_another_removes_meanwhile_is_no_failure(
    archives: Archives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Archives, "problem", lambda _self, _kind: "")
    Path(archives.directory).mkdir(parents=True)
    gone = Path(archives.root) / "4.0.0-gone"
    gone.symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert train(archives, plugins=tmp_path / "plugins")


def test_a_directory_that_cannot_be_written_is_reported(archives: Archives, tmp_path: Path) -> None:
    Path(archives.root).write_text("a file in its place")
    with pytest.raises(TrainingFailed, match="cannot write"):
        train(archives, plugins=tmp_path / "plugins")


def test_archives_that_are_there_are_left_alone_and_the_oldest_go(
    archives: Archives, tmp_path: Path
) -> None:
    record: dict[str, object] = {"state": "ready"}
    Path(archives.directory).mkdir(parents=True)
    for kind in KINDS:
        path = Path(archives.path(kind))
        path.write_text(kind)
        record[kind] = [path.stat().st_size, path.stat().st_mtime_ns]
    write_json(f"{archives.directory}/state.json", record)
    others = [Path(archives.root) / f"4.0.0-{number}" for number in range(6)]
    for age, other in enumerate(others):
        other.mkdir()
        (other / "executor.jsa").touch()
        os.utime(other, (1000 - age, 1000 - age))
    assert train(archives, plugins=tmp_path / "plugins")
    kept = {path.name for path in Path(archives.root).iterdir()}
    newest = {other.name for other in others[: archive_training.KEPT_MAX - 1]}
    assert kept == newest | {Path(archives.directory).name}
    assert not archives.problem("driver")
