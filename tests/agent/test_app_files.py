"""Files that executors need before they start: fetched once, copied to each, given up on an order.

The master is a function; containers are shells.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.agent.containers.app_files import ApplicationFiles
from hrm.agent.containers.containers import ContainerSupervisor, Ended
from hrm.agent.isolation import Isolation
from hrm.agent.run_as import Account, may_switch
from hrm.core.vocabulary.model import ContainerSpec, LaunchContext, LaunchFile
from hrm.errors import LaunchFailed, NotFound, Unavailable
from hrm.spark.launch import Launch
from tests.agent.conftest import until
from tests.agent.test_containers import spec_of


def packed(**files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


class Store:
    """The master's files, and what is asked of it."""

    def __init__(self, *contents: bytes) -> None:
        self.files = {hashlib.sha256(data).hexdigest(): data for data in contents}
        self.asked: list[str] = []
        self.stalled = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.away = False

    def fetch(self, digest: str, offset: int) -> Iterator[bytes]:
        self.asked.append(digest)
        if self.away:
            self.stalled.set()
            raise Unavailable("the master is away")
        if digest not in self.files:
            raise NotFound(f"the master has no file {digest}; submit again")
        yield self.files[digest][offset : offset + 1]
        self.stalled.set()
        assert self.may_go_on.wait(20)
        yield self.files[digest][offset + 1 :]


def file_of(data: bytes, name: str, archive: str = "") -> LaunchFile:
    digest = hashlib.sha256(data).hexdigest()
    return LaunchFile(sha256=digest, size_bytes=len(data), name=name, archive=archive)


def spec(container_id: str, *files: LaunchFile) -> ContainerSpec:
    return replace(spec_of(container_id), launch=LaunchContext(files=files))


def shell(script: str) -> Launch:
    return Launch(argv=("/bin/sh", "-c", script), environment={"PATH": os.environ["PATH"]})


class Node:
    def __init__(self, directory: Path, store: Store, account: Account | None = None) -> None:
        self.ends: defaultdict[str, asyncio.Queue[Ended]] = defaultdict(asyncio.Queue)
        self.cache = directory / "files" / str(os.geteuid())
        self.files = ApplicationFiles(directory / "files", store.fetch)
        self.containers = ContainerSupervisor(
            directory,
            Isolation(),
            rebuild=lambda _name: Isolation(),
            log_bytes_max=65536,
            log_files_max=1,
            on_end=lambda name, ended: self.ends[name].put_nowait(ended),
            account_of=lambda _user: account,
            files=self.files,
            unpacked_bytes_max=1 << 20,
        )

    async def output(self, container: ContainerSpec, script: str) -> tuple[str, Ended]:
        """What a container with this script prints."""
        await self.containers.start(container, shell(script))
        async with asyncio.timeout(20):
            ended = await self.ends[container.container_id].get()
        log = self.containers.work_dir(container.container_id) / "stdout"
        return log.read_text(), ended


@pytest.fixture
async def node_of(tmp_path: Path) -> AsyncIterator[Callable[[Store], Node]]:
    nodes: list[Node] = []

    def make(store: Store) -> Node:
        nodes.append(Node(tmp_path, store))
        return nodes[-1]

    yield make
    for node in nodes:
        await node.containers.drain(20)
        await node.containers.close()


NodeOf = Callable[[Store], Node]


async def test_files_are_in_the_working_directory_before_the_command(node_of: NodeOf) -> None:
    agent, environment = b"a jar", packed(tool="#!/bin/sh\necho from the archive\n")
    node = node_of(Store(agent, environment))
    files = (file_of(agent, "agent.jar"), file_of(environment, "env", "environment.tar.gz"))
    out, ended = await node.output(spec("c1", *files), "cat agent.jar; echo; ./env/tool; ls -A")
    assert ended.exit_code == 0
    assert out.splitlines() == ["a jar", "from the archive", ".archives", "agent.jar", "env"]
    assert await node.containers.drain(20)
    left = {path.name for path in node.containers.work_dir("c1").iterdir()}
    assert "work" not in left, "what the container had goes with it"


async def test_a_node_fetches_each_file_once(node_of: NodeOf) -> None:
    store = Store(b"a jar")
    node = node_of(store)
    starts = [node.output(spec(f"c{n}", file_of(b"a jar", "x")), "cat x") for n in range(5)]
    assert [out for out, _ in await asyncio.gather(*starts)] == ["a jar"] * 5
    assert len(store.asked) == 1
    assert [path.name for path in node.cache.iterdir()] == list(store.files)


async def test_what_a_container_writes_is_its_own(node_of: NodeOf) -> None:
    store = Store(b"a jar")
    node = node_of(store)
    await node.output(spec("c1", file_of(b"a jar", "x")), "echo changed > x")
    out, _ = await node.output(spec("c2", file_of(b"a jar", "x")), "cat x")
    assert out == "a jar"


async def test_a_copy_that_has_rotted_is_fetched_again(node_of: NodeOf) -> None:
    store = Store(b"a jar")
    node = node_of(store)
    await node.output(spec("c1", file_of(b"a jar", "x")), "true")
    (node.cache / next(iter(store.files))).write_bytes(b"rotten")
    out, _ = await node.output(spec("c2", file_of(b"a jar", "x")), "cat x")
    assert (out, len(store.asked)) == ("a jar", 2)


async def test_a_file_that_the_master_lacks_is_the_reason_of_the_end(node_of: NodeOf) -> None:
    node = node_of(Store())
    with pytest.raises(LaunchFailed, match=r"cannot start c1: .*the master has no file"):
        await node.containers.start(spec("c1", file_of(b"gone", "x")), shell("true"))


async def test_an_archive_that_is_refused_ends_the_container(node_of: NodeOf) -> None:
    bad = packed(**{"../outside": "x"})
    node = node_of(Store(bad))
    _, ended = await node.output(spec("c1", file_of(bad, "bad", "bad.tgz")), "echo started")
    assert ended.exit_code == 1
    assert "cannot unpack" in ended.last_words


@pytest.mark.parametrize("away", [False, True])
async def test_an_order_to_stop_ends_a_fetch(node_of: NodeOf, away: bool) -> None:
    store = Store(b"a large jar")
    store.away = away
    store.may_go_on.clear()
    node = node_of(store)
    large = file_of(b"a large jar", "x")
    starts = [
        asyncio.create_task(node.containers.start(spec(name, large), shell("true")))
        for name in ("c1", "c2")  # the second waits for the first one's fetch
    ]
    await asyncio.to_thread(store.stalled.wait, 20)
    await until(lambda: len(node.files._bringing) == len(starts))
    for name in ("c2", "c1"):
        node.containers.give_up_start(name)
        store.may_go_on.set() if name == "c1" else None
    async with asyncio.timeout(10):
        for start in starts:
            with pytest.raises(LaunchFailed, match="ordered to stop"):
                await start
    assert not any(node.cache.iterdir())


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


@pytest.mark.skipif(not may_switch(), reason="only root can become another user")
async def test_a_container_of_another_user_owns_its_files(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")  # the tests' may be closed to others
    account = Account(name="other", uid=4711, gid=4711, groups=(4711,), home="/")
    agent, environment = b"a jar", packed(tool="#!/bin/sh\necho from the archive\n")
    node = Node(open_dir, Store(agent, environment), account)
    files = (file_of(agent, "agent.jar"), file_of(environment, "env", "environment.tar.gz"))
    script = "id -u; stat -c '%u %a' agent.jar env env/tool; ./env/tool; echo more >> agent.jar"
    out, ended = await node.output(spec("c1", *files), script)
    assert ended.exit_code == 0, ended.last_words
    assert out.splitlines() == ["4711", "4711 600", "4711 700", "4711 755", "from the archive"]
    assert [path.stat().st_uid for path in node.cache.iterdir()] == [0, 0]
    assert node.cache.stat().st_mode & 0o777 == 0o700
    await node.containers.close()
