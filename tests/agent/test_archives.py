"""The agent trains archives, finds those of others, and reports problems."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hrm.agent.startup.class_archives import ArchiveKeeper
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import LaunchContext, Shortcut
from hrm.spark import build
from hrm.spark.archive import KINDS, Archives, write_json
from hrm.spark.launch import Java, Spark
from tests.agent.test_launch import SPEC

LIMIT_S = 60.0

AGENT = """
import asyncio, json, sys
from pathlib import Path
from hrm.agent.startup import class_archives as archives
from hrm.config import AgentSettings
from hrm.spark.launch import Java, Spark

async def main():
    settings, spark, java = sys.argv[1:]
    home, command = Path(spark), Path(java)
    archives._MEMORY_MIN_MIB = 0
    keeper = archives.ArchiveKeeper(
        AgentSettings.model_validate_json(settings),
        Spark(home=home, version="4.3.0", python_path=()),
        Java(command=command, home=command.parents[1], version="17"),
    )
    keeper.start()
    await asyncio.sleep(600)

asyncio.run(main())
"""
"""The part of an agent that trains archives."""


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Spark, Java]:
    """A Java that does nothing, and a Spark without a compiler: training cannot succeed."""
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "hadoop-client-api-3.5.0.jar"):
        (home / "jars" / name).touch()
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return (
        Spark(home=home, version="4.3.0", python_path=()),
        Java(command=java, home=java.parents[1], version="17"),
    )


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., AgentSettings]:
    def make(**more: object) -> AgentSettings:
        given = {"archive_dir": tmp_path / "archives", "class_archive": True, **more}
        return AgentSettings.model_validate(given)

    return make


def files(machine: tuple[Spark, Java], tmp_path: Path) -> Archives:
    spark, java = machine
    return Archives(str(tmp_path / "archives"), str(java.command), str(spark.home))


def make(archives: Archives) -> None:
    Path(archives.directory).mkdir(parents=True, exist_ok=True)
    record: dict[str, object] = {"state": "ready"}
    for kind in KINDS:
        path = Path(archives.path(kind))
        path.write_text(kind)
        record[kind] = [path.stat().st_size, path.stat().st_mtime_ns]
    write_json(f"{archives.directory}/state.json", record)


def spoil(archives: Archives) -> None:
    Path(archives.path("driver")).write_text("another one")


@asynccontextmanager
async def running(keeper: ArchiveKeeper) -> AsyncIterator[None]:
    keeper.start()
    try:
        yield
    finally:
        await keeper.close()


async def until(keeper: ArchiveKeeper, condition: Callable[[Shortcut], bool]) -> Shortcut:
    async with asyncio.timeout(LIMIT_S):
        while not condition(shown := keeper.report()[0]):  # noqa: ASYNC110 - it notifies nothing
            await asyncio.sleep(0.02)
    return shown


async def test_executors_use_an_archive_that_is_there(
    machine: tuple[Spark, Java], settings: Callable[..., AgentSettings], tmp_path: Path
) -> None:
    keeper = ArchiveKeeper(settings(), *machine)
    plain = replace(SPEC, launch=LaunchContext())
    assert keeper.choose(plain) == ""
    make(files(machine, tmp_path))
    async with running(keeper):
        shown = await until(keeper, lambda s: s.state == "ready")
    assert (shown.used, shown.missed, shown.why_missed) == (0, 1, "there is none yet")
    assert keeper.choose(plain) == files(machine, tmp_path).path("executor")
    zgc = replace(SPEC, launch=LaunchContext(java_options=("-XX:+UseZGC",)))
    own = replace(SPEC, launch=LaunchContext(extra_class_path=("/mine.jar",)))
    assert keeper.choose(zgc) == ""
    shown = keeper.report()[0]
    assert (shown.used, shown.missed) == (1, 2)
    assert "UseZGC" in shown.why_missed
    assert keeper.choose(own) == "", "what goes before Spark's jars costs the archive"
    assert "class path entries of its own" in keeper.report()[0].why_missed


async def test_a_training_that_fails_is_reported_and_has_an_end(
    machine: tuple[Spark, Java],
    settings: Callable[..., AgentSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hrm.agent.startup.class_archives._POLL_PERIOD_S", 0.01)
    monkeypatch.setattr("hrm.agent.startup.class_archives._MEMORY_MIN_MIB", 0)
    keeper = ArchiveKeeper(settings(archive_attempts=2), *machine)
    state = files(machine, tmp_path).state
    async with running(keeper):
        shown = await until(keeper, lambda s: s.state == "failed" and state().get("attempts") == 2)
        assert "no scala-compiler jar" in shown.note
    again = ArchiveKeeper(settings(archive_attempts=2), *machine)
    async with running(again):
        shown = await until(again, lambda s: s.state == "failed")
    assert shown.note.startswith("failed 2 times, the last time: ")
    assert state()["attempts"] == 2, "nobody tries a third time"


async def test_an_agent_waits_for_another_one_that_trains(
    machine: tuple[Spark, Java],
    settings: Callable[..., AgentSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hrm.agent.startup.class_archives._POLL_PERIOD_S", 0.01)
    archives = files(machine, tmp_path)
    make(archives)
    spoil(archives)
    keeper = ArchiveKeeper(settings(), *machine)
    with (Path(archives.directory) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with running(keeper):
            shown = await until(keeper, lambda s: s.state == "building")
            assert "another agent" in shown.note
            make(archives)
            await until(keeper, lambda s: s.state == "ready")


async def test_it_can_be_turned_off(
    machine: tuple[Spark, Java], settings: Callable[..., AgentSettings], tmp_path: Path
) -> None:
    make(files(machine, tmp_path))
    keeper = ArchiveKeeper(settings(class_archive=False), *machine)
    keeper.start()
    assert keeper.choose(SPEC) == ""
    assert [s.state for s in keeper.report()] == ["off", "off"]
    await keeper.close()


async def test_a_training_ends_with_its_agent(
    machine: tuple[Spark, Java],
    settings: Callable[..., AgentSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., object],
) -> None:
    monkeypatch.setattr("hrm.agent.startup.class_archives._MEMORY_MIN_MIB", 0)
    program = tmp_path / "python"
    started = tmp_path / "started"
    program.write_text(
        f"#!/bin/sh\necho $$ > {started}.part; mv {started}.part {started}\nexec sleep 600\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("hrm.agent.startup.class_archives.sys.executable", str(program))
    keeper = ArchiveKeeper(settings(), *machine)
    async with running(keeper):
        training = await when(lambda: begun(started))
    assert not psutil.pid_exists(training)


@pytest.fixture
def started(machine: tuple[Spark, Java], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rehearsal that does not end; its pid is in this file once it has begun."""
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    monkeypatch.setattr("hrm.agent.startup.class_archives._MEMORY_MIN_MIB", 0)
    started = tmp_path / "started"
    spark, _ = machine
    program = spark.home / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho $$ > {started}.part; mv {started}.part {started}\nexec sleep 600\n"
    )
    program.chmod(0o755)
    sources = build._read_sources(build.SOURCES)
    plugin = build._key(str(spark.home / "jars"), "spark-core_2.13-4.3.0.jar", sources)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / f"{plugin}.jar").touch()
    return started


def begun(started: Path) -> int:
    """The pid of a rehearsal that has begun, returned once; 0: not yet."""
    if not started.exists():
        return 0
    pid = int(started.read_text())
    started.unlink()
    return pid


async def when(condition: Callable[[], int]) -> int:
    async with asyncio.timeout(LIMIT_S):
        while not (met := condition()):  # noqa: ASYNC110 - another process meets it
            await asyncio.sleep(0.02)
    return met


def agent_of(settings: AgentSettings, machine: tuple[Spark, Java]) -> subprocess.Popen[bytes]:
    spark, java = machine
    places = (str(spark.home), str(java.command))
    return subprocess.Popen([sys.executable, "-c", AGENT, settings.model_dump_json(), *places])


def half_made(archives: Archives) -> list[Path]:
    return list(Path(archives.directory).glob("work-*"))


async def test_a_training_does_not_outlive_an_agent_that_is_killed(
    machine: tuple[Spark, Java],
    settings: Callable[..., AgentSettings],
    tmp_path: Path,
    started: Path,
) -> None:
    archives = files(machine, tmp_path)
    given = settings(archive_attempts=1)
    agent = agent_of(given, machine)
    try:
        rehearsal = await when(lambda: begun(started))
        assert archives.training()
        assert archives.state()["attempts"] == 1, "it could take the machine down with it"
    finally:
        agent.kill()
        agent.wait()
    await when(lambda: not archives.training())
    await when(lambda: not psutil.pid_exists(rehearsal))
    assert not archives.state(), "nobody's failure"
    assert not half_made(archives)
    keeper = ArchiveKeeper(given, *machine)
    async with running(keeper):
        rehearsal = await when(lambda: begun(started))
    assert not psutil.pid_exists(rehearsal)
    assert not archives.state(), "nor is the end of an agent that is told to"


async def test_a_training_that_takes_too_long_has_failed(
    machine: tuple[Spark, Java],
    settings: Callable[..., AgentSettings],
    tmp_path: Path,
    started: Path,
) -> None:
    keeper = ArchiveKeeper(settings(archive_attempts=1), *machine)
    async with running(keeper):
        rehearsal = await when(lambda: begun(started))
        await keeper._end_training()
        await until(keeper, lambda s: s.state == "failed")
    assert not psutil.pid_exists(rehearsal)
    assert files(machine, tmp_path).state()["attempts"] == 1
