"""Files of tasks at a worker: what is taken for a result, what is removed, what is kept."""

from __future__ import annotations

import errno
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
    made = TaskDirs(tmp_path / "tasks", "n1")
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
    assert not list((dirs.root / "gone").iterdir()), "nor does a part of it stay"
    whole = dirs.code_of({"a.py": b"1", "b/c.py": b"2"})
    assert (whole / "b/c.py").read_bytes() == b"2"


async def test_a_task_whose_files_cannot_be_written_is_refused_with_path_and_reason(
    dirs: TaskDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(self: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (dirs.root / "t.1").write_text("a file is in the way")
    in_the_way = dirs.make(TaskId("t"), 1)
    assert in_the_way.refused and f"{dirs.root}/t.1: File exists" in in_the_way.problem
    dirs.add_input(in_the_way, 0, b"x")
    dirs.fill(in_the_way, pb.PlacePipelineTask(payload_bytes=1), set())
    assert "File exists" in in_the_way.problem, "the first reason counts"

    full = dirs.make(TaskId("t"), 2)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fill_disk)
        dirs.fill(full, pb.PlacePipelineTask(), set())
    assert full.refused and "No space left on device; free some space on n1" in full.problem
    assert f"{full.directory}" in full.problem

    impossible = dirs.make(TaskId("t"), 3)
    sources = [pb.SourceFile(path="a"), pb.SourceFile(path="a/b")]
    dirs.fill(impossible, pb.PlacePipelineTask(files=sources), set())
    assert impossible.refused and "is a file, and the directory of" in impossible.problem


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
