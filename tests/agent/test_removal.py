"""Removal of files of ended containers: one disk that hangs or fails, and all others."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm.agent.containers import container_dir, removal
from hrm.agent.containers.removal import FileRemoval
from tests.agent.conftest import until


class Disk:
    """Removals there hang until ``may_go``, and fail while ``fails``."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.fails = False
        self.removed: list[str] = []

    def remove(self, container_id: str) -> None:
        assert self.may_go.wait(60)
        if self.fails:
            raise OSError(errno.EIO, "the disk has failed")
        self.removed.append(container_id)


class Node:
    """Two disks, and what has been recorded as acknowledged."""

    def __init__(self) -> None:
        self.own, self.other = Disk(), Disk()
        self.recorded: list[str] = []
        places = {"own": self.own.remove, "other": self.other.remove}
        self.removal = FileRemoval(places, self.recorded.append)

    async def settle(self) -> None:
        async with asyncio.timeout(20):
            await self.removal.wait()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    for disk in (node.own, node.other):
        disk.may_go.set()


async def test_a_disk_that_hangs_holds_up_no_other(node: Node) -> None:
    node.other.may_go.clear()
    names = [f"c{number}" for number in range(9)]
    for name in names:
        node.removal.begin(name)
        node.removal.acknowledge(name)
    await until(lambda: not any(node.removal.is_removing(name, "own") for name in names))
    assert node.own.removed == names
    assert node.other.removed == []
    assert node.removal.names() == tuple(names)
    assert node.removal.is_removing("c0", "other")
    assert node.removal.is_acknowledged("c0", "own"), "its logs may go"
    assert not node.removal.is_acknowledged("c0", "other")
    assert node.recorded == [], "the next agent is to finish it"
    node.other.may_go.set()
    await node.settle()
    assert sorted(node.recorded) == names


async def test_what_failed_is_tried_again_there_and_only_there(node: Node) -> None:
    node.other.fails = True
    node.removal.begin("c1")
    node.removal.acknowledge("c1")
    await node.settle()
    assert (node.own.removed, node.recorded) == (["c1"], [])
    node.removal.retry()
    await node.settle()
    assert node.recorded == []
    node.other.fails = False
    node.removal.retry()
    await node.settle()
    assert node.own.removed == node.other.removed == node.recorded == ["c1"]
    node.removal.retry()
    assert node.removal.names() == ()


async def test_a_retry_is_bounded_and_takes_the_longest_failed_first(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "RETRIED_MAX", 2)
    node.own.fails = node.other.fails = True
    for name in ("c1", "c2", "c3"):
        node.removal.begin(name)
    await node.settle()
    node.removal.retry()
    assert node.removal.names() == ("c1", "c2")
    await node.settle()
    node.removal.retry()
    assert node.removal.names()[0] == "c3"
    await node.settle()


async def test_a_start_tries_again_what_failed_before(node: Node) -> None:
    node.own.fails = True
    node.removal.begin("c1")
    await node.settle()
    assert not await node.removal.make_way("c1", 20)
    node.own.fails = False
    assert await node.removal.make_way("c1", 20)
    assert await node.removal.make_way("unknown", 20)


async def test_a_start_waits_no_longer_than_it_may(node: Node) -> None:
    node.own.may_go.clear()
    node.removal.begin("c1")
    assert not await node.removal.make_way("c1", 0.01)


async def test_as_many_wait_for_a_disk_that_hangs_as_are_allowed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "QUEUE_MAX", 3)
    node.other.may_go.clear()
    for number in range(20):
        node.removal.begin(f"c{number}")
    await until(lambda: len(node.removal.names()) <= 4)  # one is being removed, three wait
    node.other.may_go.set()
    await node.settle()
    assert len(node.other.removed) <= 4
    while len(node.other.removed) < 20:
        node.removal.retry()
        await node.settle()
    assert sorted(node.other.removed) == sorted(f"c{number}" for number in range(20))


def test_a_removal_that_hangs_does_not_keep_the_process() -> None:
    """However it ends: an agent that cannot end is not started again by its supervisor."""
    script = (
        "import asyncio, threading\n"
        "from hrm.agent.containers.removal import FileRemoval\n"
        "async def main():\n"
        "    begun = threading.Event()\n"
        "    def hang(_):\n"
        "        begun.set(); threading.Event().wait()\n"
        "    FileRemoval({'disk': hang}, print).begin('c1')\n"
        "    await asyncio.to_thread(begun.wait, 20)\n"
        "    raise OSError('of the agent')\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], timeout=60, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "of the agent" in ended.stderr


def as_nobody(work: str, directory: Path) -> int:
    """Run ``work(directory)`` as another user, where this is root; its exit status."""
    script = "import os, sys\nfrom pathlib import Path\n"
    if os.geteuid() == 0:
        os.chown(directory, 65534, 65534)
        script += "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    script += "from hrm.agent.containers.container_dir import remove_tree\n"
    script += f"directory = Path({str(directory)!r})\n{work}"
    # HRM is imported before the user changes: its directory may be closed to others.
    script = "import hrm.agent.containers.container_dir\n" + script
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    return ended.returncode


@pytest.fixture
def open_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    yield directory
    container_dir.remove_tree(directory)


def test_a_link_in_place_of_a_directory_goes_and_what_it_names_stays(open_directory: Path) -> None:
    work = (
        "(directory / 'data').mkdir()\n"
        "(directory / 'data/secret').write_text('x')\n"
        "(directory / 'data/secret').chmod(0o400)\n"
        "(directory / 'link').symlink_to(directory / 'data')\n"
        "sys.exit(not remove_tree(directory / 'link'))\n"
    )
    assert as_nobody(work, open_directory) == 0
    assert not (open_directory / "link").is_symlink()
    assert stat.S_IMODE((open_directory / "data/secret").stat().st_mode) == 0o400


def test_an_agent_that_is_not_root_removes_what_its_containers_have_closed(
    open_directory: Path,
) -> None:
    """As Go's module cache is: directories that cannot be written."""
    work = (
        "(directory / 'closed/inner').mkdir(parents=True)\n"
        "(directory / 'closed/inner/file').write_text('x')\n"
        "(directory / 'closed/inner').chmod(0o555)\n"
        "(directory / 'closed').chmod(0o555)\n"
        "sys.exit(not remove_tree(directory / 'closed'))\n"
    )
    assert as_nobody(work, open_directory) == 0
    assert not (open_directory / "closed").exists()


def test_a_command_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a system call on a disk that hangs."""
    monkeypatch.setattr(container_dir, "_REMOVE_LIMIT_S", 0.01)
    monkeypatch.setattr(container_dir, "_KILL_LIMIT_S", 0.01)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _process: None)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen.__init__

    def noted(self: subprocess.Popen[bytes], *args: object, **kwargs: object) -> None:
        started.append(self)
        popen(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    container_dir._run(["sleep", "600"])
    monkeypatch.undo()
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()
