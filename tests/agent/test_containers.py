"""Process operations of an agent, tested without a whole agent."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from hrm.agent.containers import container_dir, shim, supervisor
from hrm.agent.containers.containers import Adopted, ContainerSupervisor, Ended, StopOrder
from hrm.agent.containers.retention import ACKNOWLEDGED_FILE
from hrm.agent.drivers.driver_process import files_of
from hrm.agent.isolation import ContainerLimits, GroupIsolation, Isolation, detect
from hrm.agent.machine import ending
from hrm.core.vocabulary.model import ContainerId, ContainerSpec, EndCause, LaunchContext
from hrm.errors import LaunchFailed
from hrm.spark.launch import Launch
from tests.agent.test_launch import SPEC

FOREVER = "exec sleep 600"
ENDED = Ended(started=True, exit_code=0)


def spec_of(container_id: str) -> ContainerSpec:
    return replace(SPEC, container_id=ContainerId(container_id))


def shell(script: str) -> Launch:
    return Launch(argv=("sh", "-c", script), environment={"PATH": os.environ["PATH"]})


class Hands:
    """``ContainerSupervisor`` with their ends in a queue."""

    def __init__(self, directory: Path, isolation: Isolation | None = None) -> None:
        self.ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()
        self.containers = ContainerSupervisor(
            directory,
            isolation or Isolation(),
            rebuild=lambda name: detect(name, "unused", vcores=1).driver,
            log_bytes_max=4096,
            log_files_max=2,
            on_end=lambda name, ended: self.ends.put_nowait((name, ended)),
        )

    async def end(self) -> tuple[str, Ended]:
        async with asyncio.timeout(20):
            return await self.ends.get()


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    hands = Hands(tmp_path)
    yield hands
    for name in list(hands.containers._running):
        hands.containers.stop(name, StopOrder(cause=EndCause.KILLED, reason="over"), 0.0)
    assert await hands.containers.drain(20)
    await hands.containers.close()


async def test_old_directories_are_removed(hands: Hands, tmp_path: Path) -> None:
    await hands.containers.start(spec_of("c1"), shell("true"))
    await hands.end()
    await hands.containers.start(spec_of("c2"), shell(FOREVER))
    ended_at_s = (tmp_path / "containers/c1/exit.json").stat().st_mtime
    assert hands.containers.forget_old(60, ended_at_s + 59).old == 0
    assert hands.containers.forget_old(60, ended_at_s + 61).old == 0, "the master must hear of it"
    hands.containers.acknowledge("c1")
    assert hands.containers.forget_old(60, ended_at_s + 61).old == 1
    assert [path.name for path in hands.containers.dir.iterdir()] == ["c2"]


async def test_the_next_does_not_wait_until_files_are_cleared_away(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is known while they are; that the master knows of it is recorded after that, so an
    agent that is killed in between leaves the rest to the next one."""
    may_clear = threading.Event()
    clear = container_dir.clear

    def slow(directory: Path) -> list[Path]:
        assert may_clear.wait(20)
        return clear(directory)

    monkeypatch.setattr(container_dir, "clear", slow)
    await hands.containers.start(spec_of("c1"), shell("echo x > large"))
    try:
        assert await hands.end() == ("c1", ENDED)
        directory = hands.containers.dir / "c1"
        hands.containers.acknowledge("c1")
        assert not (directory / ACKNOWLEDGED_FILE).exists()
        assert not await hands.containers.drain(0.05)
        assert hands.containers.forget_old(0, time.time() + 60).old == 0
        assert any(directory.rglob("large"))
        monkeypatch.setattr(container_dir, "clear", clear)
        heir = Hands(tmp_path).containers
        (adopted,) = await heir.adopt()
        assert adopted.ended is not None
        assert await heir.drain(20) and not any(directory.rglob("large"))
    finally:
        may_clear.set()
    assert await hands.containers.drain(20)
    assert (directory / ACKNOWLEDGED_FILE).exists()
    assert hands.containers.forget_old(0, time.time() + 60).old == 1


async def test_removals_that_hang_hold_up_neither_starts_nor_ends_nor_the_next_agent(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that has failed, with more of them than the event loop has threads."""
    names = [f"c{number}" for number in range((os.cpu_count() or 1) + 6)]
    may_clear = threading.Event()

    def hang(_directory: Path) -> list[Path]:
        may_clear.wait(60)
        return []

    monkeypatch.setattr(container_dir, "clear", hang)
    try:
        for name in names:
            await hands.containers.start(spec_of(name), shell("true"))
            assert await hands.end() == (name, ENDED)
        assert not hands.containers.running
        assert sorted(hands.containers.leaving()) == sorted(names)
        async with asyncio.timeout(20):
            assert len(await Hands(tmp_path).containers.adopt()) == len(names)
    finally:
        may_clear.set()


async def test_files_that_cannot_be_removed_are_left_to_the_next_agent(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, seen = container_dir.clear, list[Path]()

    def failing(directory: Path) -> list[Path]:
        seen.append(directory)
        raise OSError(errno.EIO, "the disk has failed")

    monkeypatch.setattr(container_dir, "clear", failing)
    await hands.containers.start(spec_of("c1"), shell("echo x > large"))
    await hands.end()
    assert await hands.containers.drain(20) and len(seen) == 1
    hands.containers.acknowledge("c1")
    monkeypatch.setattr(container_dir, "clear", clear)
    heir = Hands(tmp_path).containers
    assert len(await heir.adopt()) == 1
    heir.acknowledge("c1")
    assert await heir.drain(20)
    assert not (heir.dir / "c1/large").exists()
    assert await Hands(tmp_path).containers.adopt() == []


async def test_what_a_removal_left_is_tried_again_and_then_kept_as_long_as_others(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(container_dir, "clear", lambda directory: [directory])
        await hands.containers.start(spec_of("c1"), shell("echo x > large"))
        await hands.end()
        assert await hands.containers.drain(20)
    assert hands.containers.forget_old(0, time.time() + 60).old == 0, "the master must hear of it"
    assert (hands.containers.dir / "c1/large").exists()
    hands.containers.acknowledge("c1")
    hands.containers.retry_removals()
    assert await hands.containers.drain(20)
    assert not (hands.containers.dir / "c1/large").exists()
    assert hands.containers.forget_old(0, time.time() + 60).old == 1
    assert not (hands.containers.dir / "c1").exists()


async def test_on_a_disk_that_became_read_only_the_end_is_known_all_the_same(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There even a file that is not there cannot be unlinked."""

    def fails(_path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    await hands.containers.start(spec_of("c1"), shell("exit 3"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fails)
        name, ended = await hands.end()
    assert (name, ended.exit_code, ended.problem) == ("c1", 3, "")


async def test_a_container_whose_end_cannot_be_read_does_not_stop_the_next_agent(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hands.containers.start(spec_of("c1"), shell("true"))
    await hands.end()

    def fails(*_: object) -> Ended:
        raise OSError(errno.EIO, "the disk has failed")

    monkeypatch.setattr(container_dir, "read_end", fails)
    heir = Hands(tmp_path).containers
    (adopted,) = await heir.adopt()
    assert adopted.ended is not None
    assert "the disk has failed" in adopted.ended.problem
    assert await heir.drain(20)


async def test_a_directory_that_tells_nothing_is_removed_with_the_others(tmp_path: Path) -> None:
    """The agent was killed before it wrote what the container was to be."""
    (tmp_path / "containers/c1").mkdir(parents=True)
    agent = Hands(tmp_path).containers
    assert await agent.adopt() == []
    assert await agent.drain(20)
    assert agent.forget_old(0, time.time() + 60).old == 1
    assert not (tmp_path / "containers/c1").exists()


def test_on_a_failed_disk_nothing_counts_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_path: Path) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    assert container_dir.remove_tree(tmp_path / "absent")
    for name in ("stdout", "block"):
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(Path, "stat", lambda path, *, follow_symlinks=True: fails(path))
    monkeypatch.setattr(Path, "lstat", fails)
    assert not container_dir.remove_tree(tmp_path / "absent")
    assert container_dir.clear(tmp_path) == [tmp_path / "block"]
    monkeypatch.undo()
    assert (tmp_path / "stdout").exists(), "a log stays"


@pytest.mark.parametrize("left", ["local", "a-file"])
async def test_what_is_left_of_a_removal_counts_as_not_removed(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """As on a disk that is read-only: the commands that remove report nothing."""
    monkeypatch.setattr(container_dir, "remove_tree", lambda _path: False)
    monkeypatch.setattr(Path, "unlink", lambda _path, missing_ok=False: None)
    await hands.containers.start(
        spec_of("c1"), shell("rmdir local tmp; mkdir -p local; echo x > a-file")
    )
    await hands.end()
    hands.containers.acknowledge("c1")
    assert await hands.containers.drain(20)
    assert (hands.containers.dir / "c1" / left).exists()
    assert not (hands.containers.dir / "c1" / ACKNOWLEDGED_FILE).exists()
    monkeypatch.undo()
    heir = Hands(tmp_path).containers
    assert len(await heir.adopt()) == 1
    heir.acknowledge("c1")
    assert await heir.drain(20)
    assert not (heir.dir / "c1" / left).exists()
    assert (heir.dir / "c1" / ACKNOWLEDGED_FILE).exists()


async def test_a_container_waits_for_the_removal_of_an_earlier_one_of_its_id(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent died before it had written the record; the master sends the container again."""
    (tmp_path / "containers/c1/work").mkdir(parents=True)
    may_clear, clear = threading.Event(), container_dir.clear

    def slow(directory: Path) -> list[Path]:
        assert may_clear.wait(20)
        return clear(directory)

    monkeypatch.setattr(container_dir, "clear", slow)
    assert await hands.containers.adopt() == []
    starting = asyncio.create_task(
        hands.containers.start(spec_of("c1"), shell(f"echo x > local/block; {FOREVER}"))
    )
    try:
        await asyncio.wait([starting], timeout=0.05)
        assert hands.containers.leaving() == ("c1",)
        assert not hands.containers.running
        monkeypatch.setattr("hrm.agent.containers.containers._MAKE_WAY_LIMIT_S", 0.0)
        with pytest.raises(LaunchFailed, match="an earlier container of this id"):
            await hands.containers.start(spec_of("c1"), shell("true"))
    finally:
        may_clear.set()
    await starting
    directory = tmp_path / "containers/c1"
    assert not (directory / ACKNOWLEDGED_FILE).exists(), "the end of the earlier one is known"
    (adopted,) = await Hands(tmp_path).containers.adopt()
    assert adopted.ended is None


async def test_files_are_removed_whatever_becomes_of_the_report(tmp_path: Path) -> None:
    hands = Hands(tmp_path)

    def fails(_name: str, _ended: Ended) -> None:
        hands.ends.put_nowait((_name, _ended))
        raise RuntimeError("the core has failed")

    hands.containers._on_end = fails
    await hands.containers.start(spec_of("c1"), shell("echo x > large"))
    await hands.end()
    assert await hands.containers.drain(20)
    assert not (hands.containers.dir / "c1/large").exists()


class _CountedKills(Isolation):
    """As a cgroup: the count of processes that the kernel ended goes with the group."""

    def __init__(self) -> None:
        self.removed: set[str] = set()

    def memory_kills(self, container_id: str) -> int:
        return 0 if container_id in self.removed else 1

    def remove(self, container_id: str) -> bool:
        self.removed.add(container_id)
        return True


@pytest.mark.parametrize("of_the_shim", [False, True], ids=["its-process", "its-shim"])
async def test_the_next_agent_knows_of_the_kernels_kills(tmp_path: Path, of_the_shim: bool) -> None:
    isolation = _CountedKills()
    hands = Hands(tmp_path, isolation)
    await hands.containers.start(spec_of("c1"), shell(FOREVER if of_the_shim else "kill -9 $$"))
    if of_the_shim:
        os.kill(hands.containers.shim_pid("c1") or 0, signal.SIGKILL)
    _, ended = await hands.end()
    assert ended.memory_kills == 1
    assert await hands.containers.drain(20)
    (adopted,) = await Hands(tmp_path, isolation).containers.adopt()
    assert adopted.ended is not None
    assert ending(adopted.ended, None, adopted.spec).cause is EndCause.MEMORY_LIMIT


async def test_what_a_container_wrote_goes_with_it(hands: Hands, tmp_path: Path) -> None:
    deep = f"mkdir -p {'d/' * 1500}"
    script = f"echo kept; echo x > jar; echo x > local/block; echo x > hs_err_pid1.log; {deep};"
    script += "mkdir stdout.d hs_err_pid2.log; echo x > stdout.d/part; ln -s / stderr.d"
    await hands.containers.start(spec_of("c1"), shell(script))
    _, ended = await hands.end()
    assert ended.exit_code == 0, ended.last_words
    assert await hands.containers.drain(20)
    left = {path.name for path in (tmp_path / "containers/c1").iterdir()}
    logs = {"stdout", "stderr", "shim.log", "hs_err_pid1.log"}
    assert left == logs | {"container.json", "process.json", "exit.json"}


async def test_crash_reports_are_kept_wherever_java_ran(hands: Hands, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "hs_err_pid9.log").write_text("of somebody else")
    script = (
        "mkdir app work; echo a > app/hs_err_pid1.log; echo b > work/hs_err_pid2.log;"
        f"ln -s {other} work/app; ln -s {other}/hs_err_pid9.log app/hs_err_pid3.log"
    )
    await hands.containers.start(spec_of("c1"), shell(script))
    await hands.end()
    reports = {path.name for path in (tmp_path / "containers/c1").glob("hs_err*")}
    assert reports == {"hs_err_pid1.log", "hs_err_pid2.log"}
    assert (other / "hs_err_pid9.log").exists(), "no link is followed"


async def test_a_failed_start_is_an_end_on_record(hands: Hands, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="cannot execute nothing: No such file"):
        await hands.containers.start(spec_of("c1"), Launch(argv=("nothing",), environment={}))
    (adopted,) = await Hands(tmp_path).containers.adopt()
    assert adopted.ended is not None
    end = ending(adopted.ended, adopted.ended.order, adopted.spec)
    assert end.cause is EndCause.LAUNCH_FAILED
    assert end.message == "cannot execute nothing: No such file or directory"


async def test_the_record_has_no_secret(hands: Hands, tmp_path: Path) -> None:
    await hands.containers.start(SPEC, shell(FOREVER))
    record = (tmp_path / "containers" / SPEC.container_id / "container.json").read_text()
    assert "s3cret" not in record
    assert json.loads(record)["spec"]["containerId"] == SPEC.container_id


async def test_an_adopted_driver_is_known_by_the_files_that_it_needs(
    hands: Hands, tmp_path: Path
) -> None:
    needed = "a" * 64
    document = {"conf": [["spark.password", "s3cret"]], "resources": [{"sha256": needed}]}
    launch = LaunchContext(driver=json.dumps(document))
    await hands.containers.start(replace(spec_of("c1"), launch=launch), shell(FOREVER))
    (adopted,) = await Hands(tmp_path).containers.adopt()
    assert files_of(adopted.spec.launch.driver) == {needed}
    assert "s3cret" not in (tmp_path / "containers/c1/container.json").read_text()


async def test_files_of_a_launch_are_private_from_the_start(hands: Hands, tmp_path: Path) -> None:
    command = replace(shell(FOREVER), files={"token": "s3cret"})
    before = os.umask(0)
    try:
        await hands.containers.start(spec_of("c1"), command)
    finally:
        os.umask(before)
    path = tmp_path / "containers/c1/token"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("s3cret", 0o600)


async def test_an_order_to_stop_outlives_the_agent(hands: Hands, tmp_path: Path) -> None:
    await hands.containers.start(spec_of("c1"), shell(FOREVER))
    order = StopOrder(cause=EndCause.RELEASED, reason="idle")
    hands.containers.stop("c1", order, 5.0)
    await hands.end()
    (adopted,) = await Hands(tmp_path).containers.adopt()
    assert adopted.ended is not None
    assert adopted.ended.order == order


async def test_an_end_during_the_adoption_is_reported_after_its_beginning(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hands.containers.start(spec_of("c1"), shell(FOREVER))
    heir = Hands(tmp_path)

    def slow_clear(_known: set[str]) -> None:
        """The container ends while the adoption of others is in progress."""
        process = json.loads((tmp_path / "containers/c1/process.json").read_text())
        os.kill(process["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not (tmp_path / "containers/c1/exit.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    monkeypatch.setattr(heir.containers, "_clear_groups", slow_clear)
    (adopted,) = await heir.containers.adopt()
    assert adopted.ended is None, "it ran when it was found"
    assert heir.ends.empty(), "nobody hears of an end before the beginning has been told"
    assert (await heir.end())[0] == "c1"
    await heir.containers.close()


async def test_what_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    broken = tmp_path / "containers" / "c1"
    broken.mkdir(parents=True)
    (broken / "container.json").write_text("{")
    (broken / "spec.json").write_text("a secret that no shim came to read")
    (tmp_path / "containers" / "not a container").mkdir()
    assert await Hands(tmp_path).containers.adopt() == []
    assert not (broken / "spec.json").exists()


async def test_a_pid_of_another_process_is_not_adopted(tmp_path: Path) -> None:
    """The recorded number belongs to a process that started at another time."""
    hands = Hands(tmp_path)
    await hands.containers.start(spec_of("c1"), shell("exit 3"))
    await hands.end()
    assert await hands.containers.drain(20)
    path = tmp_path / "containers/c1/process.json"
    (tmp_path / "containers/c1/exit.json").unlink()
    document = json.loads(path.read_text())
    for change in (
        {"shim_pid": os.getpid()},
        {
            "shim_pid": os.getpid(),
            "shim_start_ticks": shim.start_ticks(os.getpid()),
            "boot_id": "another boot",
        },
    ):
        shim.write_json(path, document | change)
        found: list[Adopted] = await Hands(tmp_path).containers.adopt()
        assert found[0].ended is not None


@pytest.mark.parametrize(
    ("boot_id", "code", "cause"),
    [
        ("another boot", 143, EndCause.LOST),
        ("another boot", 137, EndCause.LOST),
        ("another boot", 1, EndCause.EXITED),
        ("", 143, EndCause.EXITED),
    ],
    ids=["ended", "killed", "failed before", "no reboot"],
)
async def test_an_executor_that_a_reboot_ended_has_not_failed(
    tmp_path: Path, boot_id: str, code: int, cause: EndCause
) -> None:
    """Its supervisor has written what the shutdown's signal led to; its agent was gone by then."""
    hands = Hands(tmp_path)
    await hands.containers.start(spec_of("c1"), shell(f"exit {code}"))
    await hands.end()
    assert await hands.containers.drain(20)
    path = tmp_path / "containers/c1/process.json"
    document = json.loads(path.read_text())
    shim.write_json(path, document | ({"boot_id": boot_id} if boot_id else {}))
    (adopted,) = await Hands(tmp_path).containers.adopt()
    assert adopted.ended is not None
    end = ending(adopted.ended, adopted.order, adopted.spec)
    assert (end.cause, end.exit_code) == (cause, -1 if cause is EndCause.LOST else code)


async def test_a_group_nothing_knows_is_emptied_and_removed(tmp_path: Path) -> None:
    driver = detect("auto", f"test-{uuid.uuid4().hex[:12]}", vcores=1).driver
    files = driver.create("lost", ContainerLimits(vcores=1, memory_mib=64))
    if not isinstance(driver, GroupIsolation):
        pytest.skip("no cgroups on this machine")
    process = await asyncio.to_thread(join, files)
    try:
        assert driver.members("lost") == {process.pid}
        assert await Hands(tmp_path, driver).containers.adopt() == []
        assert driver.existing() == ()
        assert process.wait(20) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
        driver.remove("lost")
        driver.close()


def join(files: tuple[Path, ...]) -> subprocess.Popen[bytes]:
    """A process that has joined the groups and waits."""
    code = "import sys\nfor p in sys.argv[1:]: open(p, 'w').write('0')\nprint(flush=True)\ninput()"
    command = [sys.executable, "-I", "-S", "-c", code, *map(str, files)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


@pytest.mark.parametrize(
    ("ended", "cause", "words"),
    [
        (ENDED, EndCause.EXITED, "exited with code 0"),
        (replace(ENDED, exit_code=1, last_words="boom"), EndCause.EXITED, "code 1: boom"),
        (replace(ENDED, exit_code=52), EndCause.EXITED, "raise spark.executor.memory"),
        (replace(ENDED, exit_code=137, memory_kills=1), EndCause.MEMORY_LIMIT, "its 1408 MiB"),
        (replace(ENDED, exit_code=137), EndCause.EXITED, "SIGKILL from outside of HRM"),
        (replace(ENDED, exit_code=0, memory_kills=1), EndCause.EXITED, "exited with code 0"),
        (replace(ENDED, exit_code=-1, problem="gone"), EndCause.LOST, "gone"),
        (
            replace(ENDED, order=StopOrder(cause=EndCause.PREEMPTED, reason="for a stream")),
            EndCause.PREEMPTED,
            "for a stream",
        ),
    ],
)
def test_what_an_end_is_called(ended: Ended, cause: EndCause, words: str) -> None:
    end = ending(ended, ended.order, SPEC)
    assert end.cause is cause
    assert words in end.message


class Undying(subprocess.Popen[bytes]):
    """A process that hangs in the kernel, as far as its parent can observe."""

    def kill(self) -> None:
        pass


def test_a_supervisor_that_does_not_die_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_REMAINS_LIMIT_S", 0.1)
    process = Undying(["sleep", "600"])
    try:
        with structlog.testing.capture_logs() as logs:
            supervisor.give_up(process)
        assert process.returncode is None
        assert [entry["pid"] for entry in logs] == [process.pid]
    finally:
        super(Undying, process).kill()
        process.wait(10)


def test_a_supervisor_that_failed_is_seen_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_REMAINS_LIMIT_S", 0.2)
    hanging = subprocess.Popen(["sleep", "600"])
    supervisor.give_up(hanging)
    assert hanging.returncode == -signal.SIGKILL
    over = subprocess.Popen(["true"])
    supervisor.give_up(over)
    assert over.returncode == 0


@pytest.mark.parametrize("bad", ["..", "a/b", "", ".hidden", "x" * 300])
async def test_an_id_cannot_leave_the_work_directory(hands: Hands, bad: str) -> None:
    with pytest.raises(LaunchFailed, match="cannot name a work directory"):
        await hands.containers.start(spec_of(bad), shell("true"))
