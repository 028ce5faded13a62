"""A small pool of JVMs that have started before anybody wants them.

A warm JVM has done everything that executors do alike (see ``WarmExecutor.scala``) and waits to be
told whose executor it is. It is used once, by one application. What is fixed when a JVM starts must
therefore be what the application wants: heap, Java's options, jars, user. So the pool keeps JVMs of
the kind that was wanted last; executors that want anything else start as ever, and the report says
why. What may come late, comes through a pipe: the application's secret stands in no environment and
no file.

Each waits in a directory of its own, under a shim of its own, which ends it when the agent ends or
dies. When it is taken, the directory becomes the container's: it is renamed, and a link keeps the
paths valid that the JVM knows.

The memory of the pool is not offered to the cluster (``reserved_mib``), so that it is never taken
twice. It starts one JVM at a time, when nobody has asked for an executor for some seconds and the
machine has a core to spare, after a minute in any case; at a low priority where the agent is root.
It gives up after some failures in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from hrm.agent import shim
from hrm.agent.archives import Count
from hrm.agent.logs import STREAMS
from hrm.config import AgentSettings, hrm_home
from hrm.core.model import Shortcut
from hrm.errors import LaunchFailed
from hrm.spark import build
from hrm.spark.archive import argument_file, class_path
from hrm.spark.launch import ARGUMENT_FILE, EXECUTOR_CLASS, Launch, Spark

__all__ = ["Profile", "WarmJvm", "WarmPool", "profile_of", "reserved_mib"]

WARM_CLASS = "org.apache.spark.scheduler.cluster.hrm.WarmExecutor"
READY_FILE = "warm.ready"
MEMORY_MAX_MIB = 768
"""The most that a JVM in waiting may take."""

FAILURES_MAX = 3
CALM_S = 5.0
CALM_LIMIT_S = 60.0
_READY_LIMIT_S = 180.0
_END_LIMIT_S = 10.0
_ORDER_LIMIT_S = 10.0
_LOOK_PERIOD_S = 0.2
_LOG_BYTES_MAX = 1 << 20
_NOTE_MAX = 500
_LATE_VARIABLES = re.compile(
    r"_SPARK_AUTH_SECRET|SPARK_USER|SPARK_LOG_URL_(STDOUT|STDERR)|SPARK_EXECUTOR_\w+|PYTHON\w*|"
    r"PYSPARK_\w+|SPARK_LOCAL_DIRS|TMPDIR|HRM_CONTAINER_ID|HRM_DRIVER_PYTHON"
)
_FIXED_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|LANG|LC_ALL|LC_CTYPE|TZ|PATH|LD_LIBRARY_PATH|JAVA_HOME|SPARK_HOME|"
    r"CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
)
_LATE_PROPERTIES = re.compile(
    r"-D(spark\.(?:[\w.]+\.port|authenticate|decommission\.enabled|network\.timeout|"
    r"network\.crypto\.[\w.]+|rpc\.[\w.]+))=(.*)",
    re.DOTALL,
)
_FIXED_OPTIONS = re.compile(
    r"-Xm[sx]\d+m|-XX:\+IgnoreUnrecognizedVMOptions|--add-(modules|opens|exports)=\S+|"
    r"--enable-native-access=\S+|--sun-misc-unsafe-memory-access=allow|"
    r"-Djava\.net\.preferIPv6Addresses=(true|false)|-Djdk\.reflect\.useDirectMethodHandle=false|"
    r"-Dio\.netty\.[\w.]+=\w+"
)
_log = structlog.get_logger("hrm.agent.warm")


def machine_idle_s() -> float:
    """Seconds that this machine's cores have had nothing to do, all together, since it started."""
    return float(psutil.cpu_times().idle)


def reserved_mib(settings: AgentSettings) -> int:
    """What the pool may take of the node's memory, and nobody else gets."""
    return settings.warm_executors * MEMORY_MAX_MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is fixed when a JVM starts. ``arguments``: the text of its file of arguments."""

    java: str
    arguments: str
    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


def profile_of(launch: Launch, jars: str) -> Profile | str:
    """Which warm JVM could be this executor; text: none, and why. ``jars``: Spark's class path."""
    if EXECUTOR_CLASS not in launch.argv:
        return "it is no executor"
    if set(launch.files) != {ARGUMENT_FILE}:
        return "it has a file of resources"
    arguments = launch.files[ARGUMENT_FILE]
    if not arguments.endswith(argument_file(["-cp", jars])):
        return "it has class path entries of its own"
    fixed = []
    for option in launch.argv[1 : launch.argv.index(EXECUTOR_CLASS)]:
        if option.startswith(("@", "-Djava.io.tmpdir=")) or _LATE_PROPERTIES.fullmatch(option):
            continue
        if not _FIXED_OPTIONS.fullmatch(option):
            return f"it has the Java option {option.partition('=')[0]}"
        fixed.append(option)
    environment = []
    for name, value in sorted(launch.environment.items()):
        if _FIXED_VARIABLES.fullmatch(name):
            environment.append((name, value))
        elif not _LATE_VARIABLES.fullmatch(name):
            return f"it has the environment variable {name}"
    return Profile(
        java=launch.argv[0],
        arguments=arguments,
        options=tuple(fixed),
        environment=tuple(environment),
    )


def order_of(document: dict[str, Any]) -> dict[str, Any]:
    """What the shim of a warm JVM is told, from what any other shim would have been told."""
    argv = list(document["argv"])
    first = argv.index(EXECUTOR_CLASS)
    late = (_LATE_PROPERTIES.fullmatch(option) for option in argv[:first])
    line = {
        "environment": document["environment"],
        "properties": {match[1]: match[2] for match in late if match},
        "arguments": argv[first + 1 :],
    }
    kept = ("work_dir", "cgroup_files", "log_bytes_max", "log_files_max", "grace_s")
    return {**{name: document[name] for name in kept}, "input": json.dumps(line)}


class WarmJvm:
    """One JVM in waiting, with its shim and its directory."""

    def __init__(self, path: Path, profile: Profile, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.profile = profile
        self.memory_mib = 0
        self._process = process

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        return (self.path / READY_FILE).exists()

    def weigh(self) -> int:
        """What it takes, MiB; what of it is its own, and no file's, is noted."""
        used = own = 0
        for pid in shim.descendants(self._process.pid):
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(pid).memory_info()
                used += memory.rss
                own += memory.rss - memory.shared
        self.memory_mib = (own >> 20) + 1
        return used >> 20

    def move(self, directory: Path) -> None:
        """Its directory becomes ``directory``; the JVM goes on to use the old name.

        Raises:
            LaunchFailed: something is there already.
        """
        try:
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.rename(directory)
            self.path.symlink_to(directory)
        except OSError as error:
            raise LaunchFailed(f"cannot move {self.path}: {error.strerror}") from error
        (directory / READY_FILE).unlink(missing_ok=True)

    def hand_over(self, document: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Tell it whose executor it is; its shim, which reports like any other.

        Raises:
            LaunchFailed: it has ended, or does not listen.
        """
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                _write_in_time(pipe.fileno(), json.dumps(order_of(document)).encode() + b"\n")
        except TimeoutError as error:
            limit = f"{_ORDER_LIMIT_S:g} s"
            raise LaunchFailed(f"the warm JVM has not heard its order within {limit}") from error
        except OSError as error:
            raise LaunchFailed(f"the warm JVM has ended: {error.strerror}") from error
        return self._process

    def end(self) -> None:
        """End it; blocks for seconds at most. Its shim ends it when its input ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        for _ in range(2):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)
                break
            self._process.kill()  # the kernel kills the JVM with its shim
        if self.path.is_symlink():  # its directory is the container's now, its words are not
            for name in STREAMS:
                (self.path / name).unlink(missing_ok=True)
            self.path.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)


class WarmPool:
    """``settings.warm_executors`` JVMs of the kind that was wanted last. One event loop."""

    def __init__(
        self,
        settings: AgentSettings,
        spark: Spark,
        plugin: Callable[[], str] | None = None,
        calm_s: float = CALM_S,
        idle_s: Callable[[], float] = machine_idle_s,
    ) -> None:
        """``plugin``: finds the jar with ``WarmExecutor``; built where it is not given.
        ``calm_s``: time without another executor, and with a core to spare, before a JVM is
        started. ``idle_s``: seconds that cores have had nothing to do, ever."""
        self._size = settings.warm_executors
        self._dir = settings.work_dir.absolute() / "warm"
        self._jars = ":".join(class_path(str(spark.home)))
        self._plugin = plugin or (lambda: _built(spark))
        self._count = Count()
        self._wanted: Profile | None = None
        self._ready: list[WarmJvm] = []
        self._failures = 0
        self._note = ""
        self._building = False
        self._asked_at_s = 0.0
        self._calm_s = calm_s
        self._idle_s = idle_s
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Clear away what an earlier run left, and keep the pool from now on."""
        if self._size and self._task is None:
            self._clear()
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def _clear(self) -> None:
        """Shims of an earlier run have ended with it. Links of running containers stay."""
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._dir.iterdir():
            if not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
        self._forget_links()

    def _forget_links(self) -> None:
        for path in self._dir.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()

    async def close(self) -> None:
        """End every JVM that nobody has taken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._drop(self._ready)

    def reserve(self, launch: Launch, memory_mib: int, *, other_user: bool) -> WarmJvm | None:
        """The JVM that is to be this executor, taken from the pool; None: start one as ever."""
        if not self._size:
            return None
        profile = "it runs as another user" if other_user else profile_of(launch, self._jars)
        if isinstance(profile, str):
            self._count.missing(profile)
            return None
        self._asked_at_s = time.monotonic()
        if profile != self._wanted:
            self._wanted, self._failures = profile, 0
        self._kick.set()
        for jvm in self._ready:
            if jvm.profile == profile and jvm.alive and jvm.memory_mib < memory_mib:
                self._ready.remove(jvm)
                self._count.used += 1
                return jvm
        self._count.missing("none of its kind was ready")
        return None

    def useless(self, why: str) -> None:
        """The JVM that was reserved last could not be used: it was no use, but a miss."""
        self._count.used -= 1
        self._count.missing(why)

    def report(self) -> Shortcut:
        """For ``hrm node show``."""
        state, note = "waiting", self._note or "the first executor shows what kind is wanted"
        if not self._size:
            state, note = "off", ""
        elif self._failures >= FAILURES_MAX:
            state = "failed"
        elif self._ready:
            state, note = "ready", f"{len(self._ready)} of {self._size} ready"
        elif self._building:
            state, note = "building", self._note
        return Shortcut(
            name="warm-executors",
            state=state,
            note=note[:_NOTE_MAX],
            used=self._count.used,
            missed=self._count.missed,
            why_missed=self._count.why_missed,
        )

    async def _keep(self) -> None:
        while True:
            await self._kick.wait()
            self._kick.clear()
            await self._drop([j for j in self._ready if j.profile != self._wanted or not j.alive])
            wanted = self._wanted
            if wanted is None or len(self._ready) >= self._size or self._failures >= FAILURES_MAX:
                continue
            self._kick.set()
            self._building = True
            try:
                await self._calm()
                jvm = await self._warm_up(wanted)
                self._ready.append(jvm)
                self._failures, self._note = 0, ""
            except (LaunchFailed, OSError) as error:
                self._failures += 1
                self._note = str(error)
                _log.warning("no warm JVM", why=self._note, failures=self._failures)
            finally:
                self._building = False

    async def _calm(self) -> None:
        """Be in nobody's way: let the executors that have just been asked for start, and wait for
        an idle core, within a limit."""
        spare = min(1.0, (psutil.cpu_count() or 1) / 2)
        latest = time.monotonic() + CALM_LIMIT_S
        idle = self._calm_s == 0.0
        while (now := time.monotonic()) < latest:
            wait_s = self._asked_at_s + self._calm_s - now
            if idle and wait_s <= 0:
                return
            before_s = self._idle_s()
            await asyncio.sleep(min(max(wait_s, self._calm_s), latest - now))
            idle = self._idle_s() - before_s >= spare * (time.monotonic() - now)

    async def _drop(self, jvms: list[WarmJvm]) -> None:
        for jvm in tuple(jvms):
            with contextlib.suppress(ValueError):
                self._ready.remove(jvm)
            await asyncio.to_thread(jvm.end)

    async def _warm_up(self, profile: Profile) -> WarmJvm:
        """Start one and wait until it is ready.

        Raises:
            LaunchFailed: it ended, took too long, or takes too much memory.
        """
        await asyncio.to_thread(self._forget_links)
        plugin = await asyncio.to_thread(self._plugin)
        spawning = asyncio.create_task(asyncio.to_thread(self._spawn, profile, plugin))
        try:
            jvm = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            # A thread cannot be called back: what it starts would be nobody's.
            with contextlib.suppress(OSError):
                await asyncio.to_thread((await spawning).end)
            raise
        try:
            deadline = time.monotonic() + _READY_LIMIT_S
            while not jvm.ready:
                if not jvm.alive:
                    raise LaunchFailed(f"it ended as it started: {_said(jvm.path)}")
                if time.monotonic() > deadline:
                    raise LaunchFailed(f"it was not ready within {_READY_LIMIT_S:.0f} s")
                await asyncio.sleep(_LOOK_PERIOD_S)
            used_mib = await asyncio.to_thread(jvm.weigh)
            if used_mib > MEMORY_MAX_MIB:
                raise LaunchFailed(
                    f"it takes {used_mib} MiB; at most {MEMORY_MAX_MIB} are set aside"
                )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(jvm.end))
            raise
        return jvm

    def _spawn(self, profile: Profile, plugin: str) -> WarmJvm:
        path = self._dir / uuid.uuid4().hex[:12]
        for directory in (path, path / "local", path / "tmp"):
            directory.mkdir(mode=0o700, parents=True)
        plain = argument_file(["-cp", self._jars])
        arguments = profile.arguments.removesuffix(plain)
        arguments += argument_file(["-cp", f"{self._jars}:{plugin}"])
        (path / ARGUMENT_FILE).write_text(arguments)
        directories = {"SPARK_LOCAL_DIRS": path / "local", "SPARK_EXECUTOR_DIRS": path / "local"}
        document = {
            "work_dir": str(path),
            "cwd": str(path),
            "argv": [
                profile.java, f"@{path / ARGUMENT_FILE}", f"-Djava.io.tmpdir={path / 'tmp'}",
                *profile.options, WARM_CLASS,
            ],
            "environment": {
                **dict(profile.environment),
                **{name: str(value) for name, value in directories.items()},
            },
            "cgroup_files": [],
            "log_bytes_max": _LOG_BYTES_MAX,
            "log_files_max": 1,
            "grace_s": 0.0,
            "waits": True,
        }  # fmt: skip
        shim.write_json(path / shim.SPEC_FILE, document)
        with (path / "shim.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", shim.__file__, str(path / shim.SPEC_FILE)],
                bufsize=0,  # or a pipe that breaks would be written to once more
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            )
        return WarmJvm(path, profile, process)


def _write_in_time(pipe: int, data: bytes) -> None:
    """Raises:
    TimeoutError: not all was taken within ``_ORDER_LIMIT_S``.
    OSError: nobody can read it any more.
    """
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    deadline = time.monotonic() + _ORDER_LIMIT_S
    while data:
        if not poll.poll(1e3 * max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        data = data[os.write(pipe, data) :]


def _built(spark: Spark) -> str:
    try:
        return build.plugin_jar(str(spark.home), cache=str(hrm_home() / "plugins"))
    except build.BuildError as error:
        raise LaunchFailed(str(error)) from error


def _said(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (path / "stderr").read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return "nothing"
