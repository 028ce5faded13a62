"""Files of pipeline tasks that belong to another user than the agent: attacks by that user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers.container_dir import hand_over
from hrm.agent.run_as import Account, may_switch
from hrm.pipelines.agent import work_places as pipeline_places
from hrm.pipelines.agent.work_places import Placed, Places
from hrm.pipelines.core.model import TaskId
from hrm.v1 import pipeline_pb2 as pb
from tests.core.pipeline.building import pipeline, subtask, task

as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


def account(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, groups=(entry.pw_gid,), home="/")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "pipelines", shared=True)
    made.prepare()
    return made


def filled(places: Places, user: Account | None, number: int = 1) -> Placed:
    placed = places.make(TaskId("t"), number)
    placed.input.write_bytes(b"x")
    files = [pb.SourceFile(path="a/b.py", content=b"1")]
    order = pb.PlacePipelineTask(payload_bytes=1, files=files, result_key=bytes(32))
    places.fill(placed, order, user, set())
    placed.spec = task("t", pipeline(subtask("last")))
    return placed


def of(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_uid, about.st_mode & 0o777


@as_root
async def test_what_a_task_has_is_its_users_and_closed_to_others(places: Places) -> None:
    one, other = account("daemon"), account("bin")
    placed, others, ours = filled(places, one), filled(places, other, 2), filled(places, None, 3)
    for path in (placed.directory, placed.code, placed.code / "a"):
        assert of(path) == (one.uid, 0o700)
    for path in (placed.input, placed.code / "a/b.py"):
        assert of(path) == (one.uid, 0o600)
    assert len({placed.code, others.code, ours.code}) == 3, "users share no code"
    assert of(others.code)[0] == other.uid and of(ours.directory) == (0, 0o700)
    for name in ("", "tasks", "code", "scratch"):
        assert of(places.root / name) == (0, 0o711)
    assert of(places.root / "gone") == (0, 0o700)


@as_root
@pytest.mark.parametrize(
    "trick", ["link", "own link", "hard link", "fifo", "directory", "other's", "link above"]
)
async def test_a_result_is_a_file_of_its_user_or_none(
    places: Places, tmp_path: Path, trick: str
) -> None:
    user = account("daemon")
    placed = filled(places, user)
    secret = tmp_path / "secret"
    secret.write_bytes(b"the agent's")
    secret.chmod(0o600)
    result = placed.output("last")
    result.write_bytes(b"good")
    hand_over(result, user)
    with placed.open_result() as file:
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
        placed.directory.rename(tmp_path / "moved")
        placed.directory.symlink_to(tmp_path)
    with pytest.raises(OSError):
        placed.open_result()


@as_root
async def test_what_is_removed_is_gone_at_once_and_no_link_is_followed(
    places: Places, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    placed = filled(places, account("daemon"))
    (placed.directory / "away").symlink_to(tmp_path)
    deep = placed.directory
    for _ in range(30):
        deep = deep / "deep"
        deep.mkdir()
    places.remove(placed.directory)
    assert not placed.directory.exists()
    await places.close()
    assert not list((places.root / "gone").iterdir())
    assert (tmp_path / "kept").read_bytes() == b"kept"


async def test_old_code_is_dropped_for_new_but_not_under_a_task(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_places, "CODE_KEPT", 2)
    kept: list[Any] = [places.code_of({"a.py": b"%d" % n}, None, set()) for n in range(1)]
    for number in range(1, 5):
        places.code_of({"a.py": b"%d" % number}, None, set(kept))
    assert kept[0].exists()
    assert len(list((places.root / "code").iterdir())) <= 3
    await places.close()
