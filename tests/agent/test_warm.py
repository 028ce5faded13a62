"""JVMs that wait: which executors they fit, how one becomes an executor, and that none is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.agent.containers.containers import ContainerSupervisor, Ended, StopOrder
from hrm.agent.isolation import Isolation, detect
from hrm.agent.machine import _offer
from hrm.agent.startup import warm
from hrm.agent.startup.warm import WarmJvm, WarmPool
from hrm.agent.startup.warm_profile import WarmProfile, profile_of
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerSpec,
    EndCause,
    LaunchContext,
    Resources,
    Shortcut,
)
from hrm.errors import LaunchFailed
from hrm.spark import build
from hrm.spark.archive import class_path
from hrm.spark.launch import (
    EXECUTOR_CLASS,
    PROCESSORS_OPTION,
    Java,
    Launch,
    executor_launch,
    find_java,
    find_spark,
)
from tests.agent.test_launch import SPARK, SPEC

LIMIT_S = 60.0
JARS = ":".join(class_path(str(SPARK.home)))
CONTEXT = LaunchContext(
    driver_url="spark://CoarseGrainedScheduler@127.0.0.1:1",
    spark_version="4.3.0",
    environment=(("_SPARK_AUTH_SECRET", "s3cret"), ("PYTHONHASHSEED", "0")),
    java_options=("-Dspark.driver.port=1", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
)
USUAL = replace(SPEC, resources=Resources(1, 1408), launch=CONTEXT)
FAKE_JAVA = """#!{python}
import json, os, pathlib, sys
if {broken}:
    sys.exit("no such heap")
if not sys.argv[-1].endswith("WarmExecutor"):
    print("cold", os.environ["_SPARK_AUTH_SECRET"], flush=True)
    sys.exit(0)
print("what it says as it starts", flush=True)
nice = os.nice(0)
pathlib.Path("warm.ready").touch()
text = sys.stdin.read()
if not text:
    sys.exit(0)
seen = {{"order": json.loads(text), "began": dict(os.environ), "cwd": os.getcwd(),
         "nice": nice}}
pathlib.Path(os.environ["SPARK_LOCAL_DIRS"], "block").write_text("x")
print(json.dumps(seen), flush=True)
"""


def fake_java(directory: Path, *, broken: bool = False) -> Java:
    command = directory / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(FAKE_JAVA.format(python=sys.executable, broken=broken))
    command.chmod(0o755)
    return Java(command=command, home=command.parents[1], version="17")


def launch_of(spec: ContainerSpec, java: Java, work_dir: Path) -> Launch:
    return executor_launch(spec, spark=SPARK, java=java, host="127.0.0.1", work_dir=work_dir)


JAVA = Java(command=Path("/jdk/bin/java"), home=Path("/jdk"), version="17.0.1")


def with_context(**changes: Any) -> ContainerSpec:
    return replace(USUAL, launch=replace(CONTEXT, **changes))


def test_two_applications_of_one_heap_can_use_one_jvm() -> None:
    other = with_context(
        environment=(
            ("_SPARK_AUTH_SECRET", "another"),
            ("PYTHONPATH", "/lib"),
            ("SPARK_USER", "u"),
        ),
        java_options=(
            "-Dspark.driver.port=2",
            "-Dspark.network.crypto.enabled=true",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
        ),
    )
    profiles = [profile_of(launch_of(s, JAVA, Path("/w")), JARS) for s in (USUAL, other)]
    assert isinstance(profiles[0], WarmProfile)
    assert profiles[0] == profiles[1]
    assert "s3cret" not in repr(profiles[0])
    limited = with_context(java_options=(*CONTEXT.java_options, PROCESSORS_OPTION))
    other_kind = profile_of(launch_of(limited, JAVA, Path("/w")), JARS)
    assert isinstance(other_kind, WarmProfile), other_kind
    assert other_kind != profiles[0], "a JVM counts its cores once"
    larger = replace(USUAL, heap_mib=1025)
    assert profile_of(launch_of(larger, JAVA, Path("/w")), JARS) != profiles[0]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (with_context(java_options=("-Dmine=1",)), "the Java option -Dmine"),
        (with_context(java_options=("-XX:+UseZGC",)), "the Java option -XX:+UseZGC"),
        (with_context(java_options=("-Dlog4j2.configurationFile=x",)), "-Dlog4j2"),
        (with_context(java_options=("-Dspark.ssl.enabled=true",)), "-Dspark.ssl.enabled"),
        (with_context(java_options=("-javaagent:/x.jar",)), "the Java option -javaagent"),
        (
            with_context(java_options=("-Dspark.executor.userClassPathFirst=true",)),
            "userClassPathFirst",
        ),
        (
            with_context(java_options=("-Dspark.hadoop.hadoop.security.authentication=kerberos",)),
            "it uses Kerberos",
        ),
        (with_context(extra_class_path=("/my.jar",)), "class path entries of its own"),
        (with_context(environment=(("LD_PRELOAD", "/x.so"),)), "environment variable LD_PRELOAD"),
        (with_context(environment=(("HADOOP_HOME", "/h"),)), "environment variable HADOOP_HOME"),
    ],
)
def test_unusual_executors_fit_none(spec: ContainerSpec, why: str) -> None:
    found_profile = profile_of(launch_of(spec, JAVA, Path("/w")), JARS)
    assert isinstance(found_profile, str)
    assert why in found_profile


def test_what_has_a_file_of_resources_or_is_no_executor_fits_none() -> None:
    launch = launch_of(USUAL, JAVA, Path("/w"))
    more = replace(launch, files={**launch.files, "resources.json": "[]"})
    assert profile_of(more, JARS) == "it has a file of resources"
    assert profile_of(replace(launch, argv=("sh",)), JARS) == "it is no executor"


def test_memory_of_the_pool_with_all_its_kinds_is_not_offered() -> None:
    offered = [
        _offer(settings).memory_mib
        for settings in (
            AgentSettings(memory_mib=8192),
            AgentSettings(memory_mib=8192, warm_executors=1),
            AgentSettings(memory_mib=8192, warm_executors=2),
            AgentSettings(memory_mib=8192, warm_executors=2, warm_kinds_max=1),
        )
    ]
    assert [8192 - mib for mib in offered] == [x * warm.MEMORY_MAX_MIB for x in (0, 2, 4, 2)]


class Node:
    """Containers with a pool, like an agent's."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 1,
        kinds: int = 2,
        broken: bool = False,
        delay_s: float = 0.0,
        idle_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.java = fake_java(directory, broken=broken)
        settings = AgentSettings(
            work_dir=directory / "agent",
            warm_executors=size,
            warm_kinds_max=kinds,
            warm_delay_s=delay_s,
        )
        self.dir = directory / "agent"
        self.pool = WarmPool(settings, [SPARK], plugin=lambda _: "/plugin.jar", idle_s=idle_s)
        self.ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()
        self.containers = ContainerSupervisor(
            self.dir,
            Isolation(),
            rebuild=lambda name: detect(name, "unused", vcores=1).driver,
            log_bytes_max=65536,
            log_files_max=2,
            on_end=lambda name, ended: self.ends.put_nowait((name, ended)),
            warm=self.pool,
        )
        self.pool.start()

    async def run(self, name: str, spec: ContainerSpec = USUAL) -> str:
        """One executor to its end; returns what it wrote."""
        directory = self.containers.work_dir(name)
        launch = launch_of(spec, self.java, directory)
        await self.containers.start(replace(spec, container_id=ContainerId(name)), launch)
        async with asyncio.timeout(LIMIT_S):
            ended_name, ended = await self.ends.get()
        assert (ended_name, ended.exit_code) == (name, 0), ended
        return (directory / "stdout").read_text()

    @property
    def shown(self) -> Shortcut:
        """The pool as a whole."""
        return self.pool.report()[0]

    @property
    def kinds(self) -> dict[str, Shortcut]:
        """Each kind, the most recently requested first."""
        return {kind.name: kind for kind in self.pool.report()[1:]}

    async def until(self, state: str, kind: str = "warm-executors") -> None:
        async with asyncio.timeout(LIMIT_S):
            while (kind, state) not in self.states():  # noqa: ASYNC110 - it notifies nothing
                await asyncio.sleep(0.02)

    def states(self) -> list[tuple[str, str]]:
        return [(shortcut.name, shortcut.state) for shortcut in self.pool.report()]

    async def close(self) -> None:
        for name in list(self.containers._running):
            self.containers.stop(name, StopOrder(cause=EndCause.KILLED, reason="over"), 0.0)
        await self.containers.drain(20)
        await self.pool.close()
        await self.containers.close()

    def jvms(self) -> list[int]:
        """Processes of the pool, their shims included."""
        mark = f"{self.dir}/warm/"
        processes = psutil.process_iter(["cmdline"])
        return [p.pid for p in processes if any(mark in x for x in p.info["cmdline"] or ())]

    async def kill_jvms(self) -> None:
        pids = self.jvms()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the JVM dies with its shim
                os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            while any(jvm.alive for x in self.pool._kinds.values() for jvm in x.ready):  # noqa: ASYNC110 - it notifies nothing
                await asyncio.sleep(0.02)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.close()
    assert not node.jvms(), "none is left behind"


async def test_one_that_is_being_started_as_the_pool_closes_ends_with_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, go_on, spawn = threading.Event(), threading.Event(), node.pool._spawn

    def slowly(profile: WarmProfile, plugin: str) -> WarmJvm:
        starting.set()
        assert go_on.wait(LIMIT_S)
        return spawn(profile, plugin)

    monkeypatch.setattr(node.pool, "_spawn", slowly)
    await node.run("c1")
    assert await asyncio.to_thread(starting.wait, LIMIT_S)
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    await node.pool.close()
    assert go_on.is_set()
    assert not node.jvms()
    assert not list((node.dir / "warm").iterdir())


async def test_the_second_executor_of_a_kind_is_one_that_waited(node: Node) -> None:
    assert await node.run("c1") == "cold s3cret\n"
    assert "none of its kind" in node.shown.why_missed
    await node.until("ready")
    seen = json.loads(await node.run("c2"))
    order = seen["order"]
    assert order["environment"]["_SPARK_AUTH_SECRET"] == "s3cret"
    assert order["environment"]["SPARK_LOCAL_DIRS"] == str(node.dir / "containers/c2/local")
    assert order["properties"] == {"spark.driver.port": "1"}
    assert order["arguments"][:2] == ["--driver-url", CONTEXT.driver_url]
    assert seen["cwd"] == str(node.dir / "containers/c2"), (
        "its directory has become the container's"
    )
    began = seen["began"]["SPARK_LOCAL_DIRS"]
    assert began.startswith(str(node.dir / "warm")), "and paths that it knew lead there"
    assert "s3cret" not in json.dumps(seen["began"]), "nothing of it was there at the start"
    assert node.shown.used == 1
    await node.until("ready")
    third = json.loads(await node.run("c3"))
    assert third["began"]["SPARK_LOCAL_DIRS"] != began, "each is used once"


async def test_none_is_started_while_the_machine_is_busy(tmp_path: Path) -> None:
    asked = 0

    def idle_s() -> float:
        nonlocal asked
        asked += 1
        return time.monotonic() * 1024 if asked > 20 else 0.0

    node = Node(tmp_path, delay_s=0.01, idle_s=idle_s)
    await node.run("c1")
    async with asyncio.timeout(LIMIT_S):
        while asked < 20:
            assert not node.jvms()
            await asyncio.sleep(0)
    await node.until("ready")
    await node.close()


async def test_a_machine_that_is_never_idle_gets_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "IDLE_WAIT_MAX_S", 0.1)
    node = Node(tmp_path, delay_s=0.01, idle_s=lambda: 0.0)
    await node.run("c1")
    await node.until("ready")
    await node.close()


def never_idle() -> float:
    raise AssertionError("a pool that is made at once does not look for an idle core")


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_pool_without_delay_is_made_at_once_at_the_agents_priority(
    tmp_path: Path, *, at_once: bool
) -> None:
    node = Node(
        tmp_path,
        delay_s=0.0 if at_once else 0.01,
        idle_s=never_idle if at_once else lambda: 1024 * time.monotonic(),
    )
    await node.run("c1")
    await node.until("ready")
    seen = json.loads(await node.run("c2"))
    gently = 0 if at_once or os.geteuid() != 0 else 10
    assert seen["nice"] == min(19, os.nice(0) + gently)
    await node.close()


async def test_its_logs_have_the_bounds_of_a_container(node: Node) -> None:
    await node.run("c1")
    await node.until("ready")
    lines = "".join(f"line-{number:06}\n" for number in range(10_000))
    await node.run("c2", with_context(environment=(("PYTHON_SAYS", lines),)))
    logs = sorted(path.name for path in (node.dir / "containers/c2").glob("stdout*"))
    assert logs[:2] == ["stdout", "stdout.1"]
    assert all((node.dir / "containers/c2" / name).stat().st_size <= 65536 for name in logs)
    assert node.shown.used == 1


async def test_no_secret_stands_in_a_file(node: Node) -> None:
    await node.run("c1")
    await node.until("ready")
    await node.run("c2")
    logs = ("stdout",)
    for path in node.dir.rglob("*"):
        if path.is_file() and path.name not in logs:
            assert "s3cret" not in path.read_text(errors="replace"), path


LARGER, LARGEST = replace(USUAL, heap_mib=1100), replace(USUAL, heap_mib=1200)


async def test_applications_of_two_heaps_do_not_push_each_other_out(node: Node) -> None:
    assert await node.run("c1") == "cold s3cret\n"
    assert await node.run("c2", LARGER) == "cold s3cret\n"
    await node.until("ready", "warm-executors-1024m")
    await node.until("ready", "warm-executors-1100m")
    assert node.shown.note == "2 of at most 2 kinds, 2 of 2 ready"
    for number, spec in enumerate((USUAL, LARGER)):
        assert "order" in json.loads(await node.run(f"c{number + 3}", spec)), "each has its own"
    assert list(node.kinds) == ["warm-executors-1100m", "warm-executors-1024m"]
    assert [(x.used, x.missed) for x in node.kinds.values()] == [(1, 1), (1, 1)]
    assert (node.shown.used, node.shown.missed) == (2, 2)


async def test_the_kind_that_nothing_has_wanted_for_longest_frees_capacity(node: Node) -> None:
    await node.run("c1")
    await node.run("c2", LARGER)
    await node.until("ready", "warm-executors-1024m")
    await node.until("ready", "warm-executors-1100m")
    assert "order" in json.loads(await node.run("c3")), "so the other is the one to go"
    larger = [pid for pid in node.jvms() if "-Xmx1100m" in psutil.Process(pid).cmdline()]
    assert len(larger) == 1
    assert await node.run("c4", LARGEST) == "cold s3cret\n"
    assert list(node.kinds) == ["warm-executors-1200m", "warm-executors-1024m"]
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(larger[0]):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)
    await node.until("ready")
    await node.until("ready", "warm-executors-1024m")
    assert len(node.jvms()) == 4, "two JVMs and their shims: never more than is set aside"
    assert await node.run("c5", LARGER) == "cold s3cret\n"


async def test_with_one_kind_another_replaces_the_first(tmp_path: Path) -> None:
    node = Node(tmp_path, kinds=1)
    await node.run("c1")
    await node.until("ready")
    (first, *_) = node.jvms()
    assert await node.run("c2", LARGER) == "cold s3cret\n"
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(first):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)
    await node.until("ready")
    assert list(node.kinds) == ["warm-executors-1100m"]
    assert "order" in json.loads(await node.run("c3", LARGER))
    await node.close()


async def test_two_kinds_of_one_heap_have_two_names(node: Node) -> None:
    await node.run("c1")
    headless = "--add-opens=java.base/java.net=ALL-UNNAMED"
    await node.run("c2", with_context(java_options=(headless,)))
    assert sorted(node.kinds) == ["warm-executors-1024m", "warm-executors-1024m-2"]


async def test_a_kind_that_is_given_up_keeps_no_other_from_its_jvms(
    node: Node, tmp_path: Path
) -> None:
    await node.run("c1")
    broken = fake_java(tmp_path / "broken", broken=True)
    node.pool.reserve(launch_of(LARGER, broken, tmp_path / "c"), 1408, other_user=False)
    await node.until("failed", "warm-executors-1100m")
    assert "no such heap" in node.kinds["warm-executors-1100m"].note
    await node.until("ready", "warm-executors-1024m")


async def test_a_jvm_that_died_in_waiting_costs_a_cold_start_and_no_more(node: Node) -> None:
    await node.run("c1")
    await node.until("ready")
    await node.kill_jvms()
    assert await node.run("c2") == "cold s3cret\n"
    assert node.shown.used == 0
    await node.until("ready")


async def test_a_jvm_that_dies_as_it_is_taken_leaves_no_word(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run("c1")
    await node.until("ready")
    await node.kill_jvms()
    with monkeypatch.context() as patched:
        patched.setattr(warm.WarmJvm, "alive", True)  # as it was a moment ago
        assert await node.run("c2") == "cold s3cret\n"
    assert node.shown.used == 0
    assert "the warm JVM has ended" in node.shown.why_missed


def test_a_supervisor_that_does_not_listen_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_ORDER_LIMIT_S", 0.2)
    path = tmp_path / "jvm"
    path.mkdir()
    unresponsive = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, bufsize=0)
    profile = WarmProfile(java="java", arguments="", options=(), environment=())
    jvm = WarmJvm(path, profile, unresponsive)
    document = {
        "argv": ["java", EXECUTOR_CLASS, "x" * (1 << 20)], "environment": {},
        "work_dir": str(path), "cgroup_files": [], "log_bytes_max": 1, "log_files_max": 1,
        "grace_s": 0.0,
    }  # fmt: skip
    try:
        with pytest.raises(LaunchFailed, match="has not read its order within"):
            jvm.hand_over(document)
    finally:
        unresponsive.kill()
        unresponsive.wait(LIMIT_S)


async def test_jvms_that_do_not_start_are_given_up(tmp_path: Path) -> None:
    node = Node(tmp_path, broken=True)
    try:
        node.pool.reserve(launch_of(USUAL, node.java, tmp_path / "c"), 1408, other_user=False)
        await node.until("failed")
        assert "no such heap" in node.shown.note
        assert not node.jvms()
        (kind,) = node.pool._kinds.values()
        assert kind.failures == warm.FAILURES_MAX
    finally:
        await node.close()


async def test_a_container_of_another_user_starts_as_ever(node: Node, tmp_path: Path) -> None:
    launch = launch_of(USUAL, node.java, tmp_path / "c")
    assert node.pool.reserve(launch, 1408, other_user=True) is None
    assert node.shown.why_missed == "it runs as another user"


async def test_off_by_default(tmp_path: Path) -> None:
    node = Node(tmp_path, size=0)
    await node.run("c1")
    shown = node.shown
    assert (shown.state, shown.used, shown.missed) == ("off", 0, 0)
    await node.close()


AGENT_THAT_IS_KILLED = """
import asyncio, sys
from pathlib import Path
from tests.agent.test_warm import Node
async def main():
    node = Node(Path(sys.argv[1]))
    await node.run("c1")
    await node.until("ready")
    print(" ".join(map(str, node.jvms())), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_jvms_end_with_an_agent_that_is_killed(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT_THAT_IS_KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        try:
            assert agent.stdout is not None
            pids = [int(pid) for pid in agent.stdout.readline().split()]
            assert len(pids) == 2, "a shim and its JVM"
        finally:
            agent.kill()
    eventually(lambda: not any(map(psutil.pid_exists, pids)), LIMIT_S, "both have ended")


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_rehearsal_that_does_not_link_is_not_ready(tmp_path: Path) -> None:
    """Java raises an Error for it, not an exception: the rest of the JVM would continue."""
    spark = find_spark()
    jars = [jar for jar in class_path(str(spark.home)) if "/spark-sql" not in jar]
    jars.append(build.plugin_jar(str(spark.home)))
    modules = ("lang", "lang.invoke", "nio", "util")
    done = subprocess.run(
        [
            str(find_java().command), "-Xmx512m",
            *(f"--add-opens=java.base/java.{module}=ALL-UNNAMED" for module in modules),
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "-cp", ":".join(jars), warm.WARM_CLASS,
        ],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "NoClassDefFoundError" in done.stderr
    assert done.returncode == 1, done.stderr[-2000:]
    assert not (tmp_path / warm.READY_FILE).exists()
