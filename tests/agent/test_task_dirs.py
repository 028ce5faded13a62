"""Files of pipeline tasks that belong to another user than the agent: attacks by that user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers.container_dir import hand_over
from hrm.agent.run_as import Account, may_switch
from hrm.pipelines.agent import task_dirs
from hrm.pipelines.agent.task_dirs import TaskDirs, TaskFiles
from hrm.pipelines.core.model import TaskId
from hrm.v1 import pipeline_pb2 as pb
from tests.core.pipeline.building import pipeline, subtask, task

as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


def account(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, groups=(entry.pw_gid,), home="/")


@pytest.fixture
def dirs(tmp_path: Path) -> TaskDirs:
    made = TaskDirs(tmp_path / "pipelines", shared=True)
    made.prepare()
    return made


def filled(dirs: TaskDirs, user: Account | None, number: int = 1) -> TaskFiles:
    files = dirs.make(TaskId("t"), number)
    files.input.write_bytes(b"x")
    sources = [pb.SourceFile(path="a/b.py", content=b"1")]
    order = pb.PlacePipelineTask(payload_bytes=1, files=sources, result_key=bytes(32))
    dirs.fill(files, order, user, set())
    files.spec = task("t", pipeline(subtask("last")))
    return files


def of(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_uid, about.st_mode & 0o777


@as_root
async def test_what_a_task_has_is_its_users_and_closed_to_others(dirs: TaskDirs) -> None:
    one, other = account("daemon"), account("bin")
    files, others, ours = filled(dirs, one), filled(dirs, other, 2), filled(dirs, None, 3)
    for path in (files.directory, files.code, files.code / "a"):
        assert of(path) == (one.uid, 0o700)
    for path in (files.input, files.code / "a/b.py"):
        assert of(path) == (one.uid, 0o600)
    assert len({files.code, others.code, ours.code}) == 3, "users share no code"
    assert of(others.code)[0] == other.uid and of(ours.directory) == (0, 0o700)
    for name in ("", "tasks", "code", "scratch"):
        assert of(dirs.root / name) == (0, 0o711)
    assert of(dirs.root / "gone") == (0, 0o700)


@as_root
@pytest.mark.parametrize(
    "trick", ["link", "own link", "hard link", "fifo", "directory", "other's", "link above"]
)
async def test_a_result_is_a_file_of_its_user_or_none(
    dirs: TaskDirs, tmp_path: Path, trick: str
) -> None:
    user = account("daemon")
    files = filled(dirs, user)
    secret = tmp_path / "secret"
    secret.write_bytes(b"the agent's")
    secret.chmod(0o600)
    result = files.output("last")
    result.write_bytes(b"good")
    hand_over(result, user)
    with files.open_result() as file:
        assert file.read() == b"good"
    result.unlink()
    if trick == "link":
        result.symlink_to(secret)
    elif trick == "own link":
        hand_over(secret, user)
        result.symlink_to(secret)
    elif trick == "hard link":
        os.link(secret, result)
    elif trick == "fifo":
        os.mkfifo(result)
    elif trick == "directory":
        result.mkdir()
    elif trick == "other's":
        result.write_bytes(b"of root")
    else:
        secret.rename(tmp_path / "last.out")
        files.directory.rename(tmp_path / "moved")
        files.directory.symlink_to(tmp_path)
    with pytest.raises(OSError):
        files.open_result()


@as_root
async def test_what_is_removed_is_gone_at_once_and_no_link_is_followed(
    dirs: TaskDirs, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    files = filled(dirs, account("daemon"))
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


async def test_old_code_is_dropped_for_new_but_not_under_a_task(
    dirs: TaskDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_dirs, "CODE_KEPT", 2)
    kept: list[Any] = [dirs.code_of({"a.py": b"%d" % n}, None, set()) for n in range(1)]
    for number in range(1, 5):
        dirs.code_of({"a.py": b"%d" % number}, None, set(kept))
    assert kept[0].exists()
    assert len(list((dirs.root / "code").iterdir())) <= 3
    await dirs.close()
