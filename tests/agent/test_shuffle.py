"""The agent's shuffle service: what it serves, keeps and removes, and how it dies."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.agent import shuffle
from hrm.agent.shuffle import SECRET_VARIABLE, ShuffleService
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    LaunchContext,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.spark.launch import Java, Launch, Spark

APP = ApplicationId("app-1")

# In place of the JVM: says READY, and records its orders.
STANDIN = """#!{python}
import sys
print("READY", flush=True)
with open({commands_file!r}, "a") as file:
    file.write("began\\n"), file.flush()
    for line in sys.stdin:
        file.write(line), file.flush()
        if line.startswith("know die"):
            sys.exit(3)
"""


def spec(application_id: str = APP, secret: str = "s3cret", wants: bool = True) -> ContainerSpec:
    launch = LaunchContext(
        environment=((SECRET_VARIABLE, secret),) if secret else (),
        java_options=("-Dspark.shuffle.service.enabled=true",) if wants else (),
    )
    return ContainerSpec(
        container_id=ContainerId(f"{application_id}-x1"),
        application_id=ApplicationId(application_id),
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(1, 1024),
        unit_id=ResourceUnitId("n1/cpu"),
        launch=launch,
    )


@pytest.fixture
def commands_file(tmp_path: Path) -> Path:
    return tmp_path / "heard"


@pytest.fixture
def service(tmp_path: Path, commands_file: Path) -> ShuffleService:
    command = tmp_path / "java"
    command.write_text(STANDIN.format(python=sys.executable, commands_file=str(commands_file)))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return ShuffleService(
        directory=tmp_path / "shuffle",
        port=7337,
        memory_mib=128,
        spark=Spark(home=tmp_path, version="4.3.0", python_path=()),
        java=Java(command=command, home=None, version="17"),
        jar=lambda home: f"{home}/plugin.jar",
    )


async def soon(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - a file is polled
            await asyncio.sleep(0.01)


def lines(commands_file: Path) -> list[str]:
    return commands_file.read_text().splitlines() if commands_file.exists() else []


async def test_it_is_sent_what_to_serve_and_again_after_it_died(
    service: ShuffleService, commands_file: Path
) -> None:
    running = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(20.0):
            await service.ready.wait()
        launch = service.prepare(spec(), Launch(argv=(), environment={"A": "b"}))
        await soon(lambda: lines(commands_file) == ["began", "know app-1 s3cret"])
        assert launch.environment["A"] == "b"
        assert os.path.isdir(launch.environment["SPARK_LOCAL_DIRS"])  # noqa: ASYNC240, PTH112
        service.prepare(spec("die"), Launch(argv=(), environment={}))
        await service.forget(ApplicationId("die"))
        await soon(lambda: lines(commands_file).count("began") == 2)
        await soon(lambda: lines(commands_file)[-1] == "know app-1 s3cret")
        await service.forget(APP)
        await soon(lambda: lines(commands_file)[-1] == "forget app-1")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not service.ready.is_set() or lines(commands_file)


def test_it_serves_what_asks_and_has_a_secret(service: ShuffleService) -> None:
    assert service.serves(spec())
    assert not service.serves(spec(wants=False))
    assert not service.serves(spec(secret=""))


async def test_files_stay_until_the_application_has_ended(service: ShuffleService) -> None:
    places = [
        Path(service.prepare(spec(name), Launch(argv=(), environment={})).environment[variable])
        for name, variable in ((APP, "SPARK_LOCAL_DIRS"), ("app-2", "SPARK_EXECUTOR_DIRS"))
    ]
    (places[0] / "shuffle_0_0_0.data").write_text("x")
    await service.forget(APP)
    assert not places[0].parent.exists()
    assert places[1].is_dir()
    await service.forget(ApplicationId("../shuffle"))
    await service.forget(ApplicationId(".."))
    assert places[1].is_dir(), "a name that leads elsewhere removes nothing"


async def test_directories_deeper_than_python_can_follow_are_removed(
    service: ShuffleService,
) -> None:
    launch = service.prepare(spec(), Launch(argv=(), environment={}))
    place = Path(launch.environment["SPARK_LOCAL_DIRS"])
    deep = f"mkdir -p {'d/' * 1500}"
    subprocess.run(["sh", "-c", deep], cwd=place, check=True)  # noqa: ASYNC221 - a moment
    await service.forget(APP)
    assert not place.parent.exists()


async def test_files_never_acknowledged_are_removed_in_time(
    service: ShuffleService,
) -> None:
    place = Path(
        service.prepare(spec(), Launch(argv=(), environment={})).environment["SPARK_LOCAL_DIRS"]
    ).parent
    now = time.time()
    os.utime(place, (now - 100, now - 100))
    await service.forget_old(200.0, set(), now)
    await service.forget_old(50.0, {APP}, now)
    assert place.is_dir(), "not yet, and not while its containers live"
    await service.forget_old(50.0, set(), now)
    assert not place.exists()


async def test_what_cannot_start_is_tried_again_and_harms_nothing(service: ShuffleService) -> None:
    service._java = replace(service._java, command=Path("/nonexistent/java"))
    running = asyncio.create_task(service.run())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(running), 1.0)
    assert not service.ready.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Undying:
    """A process that hangs in the kernel, as the event loop sees it."""

    stdin = None
    pid = 4711

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


async def test_one_that_even_a_kill_does_not_end_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shuffle, "_END_LIMIT_S", 0.05)
    process = Undying()
    async with asyncio.timeout(20.0):
        await shuffle._end(process)  # type: ignore[arg-type]
    assert process.kills == 1
