"""Files of tasks at a worker: what is taken for a result, what is removed, what is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hrm.pipelines.core.model import TaskId
from hrm.pipelines.worker import task_dirs
from hrm.pipelines.worker.task_dirs import TaskDirs, TaskFiles
from hrm.v1 import pipeline_pb2 as pb
from tests.core.pipeline.building import pipeline, subtask, task


@pytest.fixture
def dirs(tmp_path: Path) -> TaskDirs:
    made = TaskDirs(tmp_path / "tasks")
    made.prepare()
    return made


def filled(dirs: TaskDirs, number: int = 1) -> TaskFiles:
    files = dirs.make(TaskId("t"), number)
    files.input.write_bytes(b"x")
    sources = [pb.SourceFile(path="a/b.py", content=b"1")]
    order = pb.PlacePipelineTask(payload_bytes=1, files=sources, result_key=bytes(32))
    dirs.fill(files, order, set())
    files.spec = task("t", pipeline(subtask("last")))
    return files


async def test_placements_have_directories_of_their_own_and_share_code(dirs: TaskDirs) -> None:
    one, other = filled(dirs), filled(dirs, 2)
    assert one.directory != other.directory and one.code == other.code
    assert (one.code / "a/b.py").read_bytes() == b"1"
    for path in (dirs.root, one.directory, one.code):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trick", ["link", "fifo", "directory", "nothing"])
async def test_a_result_is_a_regular_file_or_none(
    dirs: TaskDirs, tmp_path: Path, trick: str
) -> None:
    files = filled(dirs)
    result = files.output("last")
    result.write_bytes(b"good")
    with files.open_result() as file:
        assert file.read() == b"good"
    result.unlink()
    (tmp_path / "other").write_bytes(b"another file")
    if trick == "link":
        result.symlink_to(tmp_path / "other")
    elif trick == "fifo":
        os.mkfifo(result)
    elif trick == "directory":
        result.mkdir()
    with pytest.raises(OSError):
        files.open_result()


async def test_what_is_removed_is_gone_at_once_and_no_link_is_followed(
    dirs: TaskDirs, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    files = filled(dirs)
    (files.directory / "away").symlink_to(tmp_path)
    deep = files.directory
    for _ in range(30):
        deep = deep / "deep"
        deep.mkdir()
    dirs.remove(files.directory)
    assert not files.directory.exists()
    await dirs.close()
    assert not list((dirs.root / "gone").iterdir())
    assert (tmp_path / "kept").read_bytes() == b"kept"


async def test_code_is_there_whole_or_not_at_all(dirs: TaskDirs) -> None:
    impossible = {"a.py": b"1", "a.py/b.py": b"2"}
    for _ in range(2):
        with pytest.raises(OSError):
            dirs.code_of(impossible)
    whole = dirs.code_of({"a.py": b"1", "b/c.py": b"2"})
    assert (whole / "b/c.py").read_bytes() == b"2"


async def test_old_code_is_dropped_for_new_but_not_what_is_in_use(
    dirs: TaskDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_dirs, "CODE_KEPT", 3)
    recent, in_use = dirs.code_of({"a.py": b"recent"}), dirs.code_of({"a.py": b"in use"})
    for number in range(1, 10):
        assert dirs.code_of({"a.py": b"recent"}) == recent, "it is used, so it stays"
        dirs.code_of({"a.py": b"%d" % number}, {in_use})
    kept = list((dirs.root / "code").iterdir())
    assert len(kept) == 3 and {recent, in_use} < set(kept)
    await dirs.close()
