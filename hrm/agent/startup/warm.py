"""A small pool of JVMs started ahead of demand.

A warm JVM has done everything that all executors have in common (see ``WarmExecutor.scala``) and
waits for its assignment; it is used once. What is fixed when a JVM starts must match the
application (``warm_profile``), so the pool keeps JVMs of the few most recently requested kinds.
Executors with other demands start as usual, and the report states why. Late settings come through a
pipe: the application's secret is in no environment variable and no file.

Each waits under a shim of its own, which ends it with the agent, in a directory of its own, which
is renamed to the container's when it is taken; a link keeps the paths that the JVM has opened.

The memory of the whole pool is not offered to the cluster (``reserved_mib``). The pool starts one
JVM at a time, after some seconds without requests for executors (``warm_delay_s``) and with a core
to spare, but after a minute in any case; at a low priority where the agent is root. With 0 seconds
it fills immediately, at the agent's priority. It gives up a kind after some failures in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import structlog

from hrm import descriptors
from hrm.agent.containers import shim, supervisor
from hrm.agent.containers.logs import STREAMS
from hrm.agent.startup.class_archives import Count
from hrm.agent.startup.warm_profile import WarmProfile, order_of, profile_of
from hrm.config import AgentSettings, hrm_home
from hrm.core.vocabulary.model import Shortcut
from hrm.errors import LaunchFailed
from hrm.spark import build
from hrm.spark.archive import argument_file, class_path
from hrm.spark.launch import ARGUMENT_FILE, Launch, Spark
from hrm.spark.node_conf import DIST_CLASSPATH, NO_CONF, NodeConf

__all__ = ["WarmJvm", "WarmPool", "reserved_mib"]

NAME = "warm-executors"
_NO_CONFS: Mapping[Path, NodeConf] = {}

WARM_CLASS = "org.apache.spark.scheduler.cluster.hrm.WarmExecutor"
READY_FILE = "warm.ready"
MEMORY_MAX_MIB = 768
"""The most that a waiting JVM may take."""

FAILURES_MAX = 3
IDLE_WAIT_MAX_S = 60.0
_NICE = 10
_READY_LIMIT_S = 600.0  # for the lowest priority of a busy node; alone it takes some 20 s
_END_LIMIT_S = 10.0
_ORDER_LIMIT_S = 10.0
_POLL_PERIOD_S = 0.2
_LOG_BYTES_MAX = 1 << 20
_NOTE_MAX = 500
_log = structlog.get_logger("hrm.agent.warm")


def machine_idle_s() -> float:
    """Seconds that this machine's cores have been idle, summed over them, since it started."""
    return float(psutil.cpu_times().idle)


def reserved_mib(settings: AgentSettings) -> int:
    """The part of the node's memory that is reserved for the pool."""
    return settings.warm_executors * settings.warm_kinds_max * MEMORY_MAX_MIB


class WarmJvm:
    """A waiting JVM, with its shim and its directory."""

    def __init__(self, path: Path, profile: WarmProfile, process: subprocess.Popen[bytes]) -> None:
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

    def measure_memory(self) -> int:
        """The memory in use, MiB; ``memory_mib`` becomes the part that is not shared with files."""
        used = own = 0
        for pid in shim.descendants(self._process.pid):
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(pid).memory_info()
                used += memory.rss
                own += memory.rss - memory.shared
        self.memory_mib = (own >> 20) + 1
        return used >> 20

    def move(self, directory: Path) -> None:
        """Rename its directory to ``directory``; the JVM continues to use the old name.

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
        """Assign it to an executor; returns its shim, which reports like any other.

        Raises:
            LaunchFailed: it has ended, or does not read its order.
        """
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                _write_in_time(pipe.fileno(), json.dumps(order_of(document)).encode() + b"\n")
        except TimeoutError as error:
            limit = f"{_ORDER_LIMIT_S:g} s"
            raise LaunchFailed(f"the warm JVM has not read its order within {limit}") from error
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
        if self.path.is_symlink():  # its directory is the container's now, its log is not
            for name in STREAMS:
                (self.path / name).unlink(missing_ok=True)
            self.path.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)


@dataclass(slots=True)
class _Kind:
    """JVMs of one profile, and their counts."""

    profile: WarmProfile
    ready: list[WarmJvm] = field(default_factory=list)
    count: Count = field(default_factory=Count)
    failures: int = 0
    note: str = ""

    @property
    def given_up(self) -> bool:
        return self.failures >= FAILURES_MAX


class WarmPool:
    """``warm_executors`` JVMs of each of the ``warm_kinds_max`` most recently requested kinds. One
    event loop.

    Invariants: ``_kinds`` has at most ``warm_kinds_max`` kinds, the most recent one at its end.
    Every waiting JVM is in one of them or in ``_leaving``, and all of them together are never more
    than ``reserved_mib`` counts: only ``_keep`` starts one, and ends those in ``_leaving`` before.
    """

    def __init__(
        self,
        settings: AgentSettings,
        sparks: Sequence[Spark],
        confs: Mapping[Path, NodeConf] = _NO_CONFS,
        plugin: Callable[[Path], str] | None = None,
        idle_s: Callable[[], float] = machine_idle_s,
    ) -> None:
        """``confs``: the configuration directories of each Spark, by its home, part of every
        executor's class path. ``plugin``: finds the jar with ``WarmExecutor`` for the Spark in this
        directory; by default it is built. ``idle_s``: seconds that cores have been idle since the
        machine started."""
        self._size = settings.warm_executors
        self._kinds_max = settings.warm_kinds_max
        self._dir = settings.work_dir.absolute() / "warm"
        self._jars = {
            str(x.home): ":".join(
                [*class_path(str(x.home)), *confs.get(x.home, NO_CONF).class_path({})]
            )
            for x in sparks
        }
        self._plugin = plugin or (lambda home: _built(home, confs.get(home, NO_CONF)))
        self._count = Count()
        self._kinds: dict[WarmProfile, _Kind] = {}
        self._leaving: list[WarmJvm] = []
        self._building: _Kind | None = None
        self._asked_at_s = 0.0
        self._delay_s = settings.warm_delay_s
        self._idle_s = idle_s
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Remove what an earlier run left, and keep the pool from now on."""
        if not self._size or self._task is not None:
            return
        # Shims of an earlier run have ended with it. Links of running containers stay.
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._dir.iterdir():
            if not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
        self._forget_links()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def _forget_links(self) -> None:
        for path in self._dir.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()

    async def close(self) -> None:
        """End every JVM that has not been taken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for kind in self._kinds.values():
            self._leaving += kind.ready
            kind.ready = []
        await self._end_leaving()

    def reserve(self, launch: Launch, memory_mib: int, *, other_user: bool) -> WarmJvm | None:
        """The JVM that becomes this executor, taken from the pool; None: start one as usual."""
        if not self._size:
            return None
        jars = self._jars.get(launch.environment.get("SPARK_HOME", ""), "")
        profile = "it runs as another user" if other_user else profile_of(launch, jars)
        if isinstance(profile, str):
            self._count.missing(profile)
            return None
        self._asked_at_s = time.monotonic()
        kind = self._want(profile)
        self._kick.set()
        for jvm in kind.ready:
            if jvm.alive and jvm.memory_mib < memory_mib:
                kind.ready.remove(jvm)
                self._count.used += 1
                kind.count.used += 1
                return jvm
        for count in (self._count, kind.count):
            count.missing("none of its kind was ready")
        return None

    def _want(self, profile: WarmProfile) -> _Kind:
        """The kind of this profile, now the most recent; a kind that it replaces leaves."""
        kind = self._kinds.pop(profile, None) or _Kind(profile)
        self._kinds[profile] = kind
        while len(self._kinds) > self._kinds_max:
            oldest = self._kinds.pop(next(iter(self._kinds)))
            self._leaving += oldest.ready
        return kind

    def not_used(self, jvm: WarmJvm, why: str) -> None:
        """A reserved JVM could not be used: count a miss instead of a use."""
        kind = self._kinds.get(jvm.profile)
        for count in (self._count, kind.count) if kind is not None else (self._count,):
            count.used -= 1
            count.missing(why)

    def report(self) -> tuple[Shortcut, ...]:
        """For ``hrm node show``: the pool, in the state of its most recent kind, and each of its
        kinds, the most recent first."""
        kinds = list(reversed(self._kinds.values()))
        ready = sum(len(kind.ready) for kind in kinds)
        state, note = "waiting", "the first executor determines the kind"
        if not self._size:
            state, note = "off", ""
        elif kinds:
            many = f"{len(kinds)} of at most {self._kinds_max} kinds"
            note = f"{many}, {ready} of {len(kinds) * self._size} ready"
            state, note = self._state(kinds[0]), kinds[0].note or note
        shown = [_shortcut(NAME, state, note, self._count)]
        for number, kind in enumerate(kinds):
            heap = f"{kind.profile.heap_mib}m"
            before = sum(kind.profile.heap_mib == x.profile.heap_mib for x in kinds[:number])
            name = f"{NAME}-{heap}-{before + 1}" if before else f"{NAME}-{heap}"
            note = kind.note or f"{len(kind.ready)} of {self._size} ready"
            shown.append(_shortcut(name, self._state(kind), note, kind.count))
        return tuple(shown)

    def _state(self, kind: _Kind) -> str:
        if kind.given_up:
            return "failed"
        if kind.ready:
            return "ready"
        return "building" if kind is self._building else "waiting"

    async def _keep(self) -> None:
        while True:
            await self._kick.wait()
            self._kick.clear()
            await self._end_leaving()
            self._building = self._next()
            if self._building is None:
                continue
            self._kick.set()
            await self._wait_for_idle_core()
            await self._end_leaving()
            self._building = kind = self._next()  # meanwhile others may have been requested
            if kind is None:
                continue
            try:
                jvm = await self._warm_up(kind.profile)
            except (LaunchFailed, OSError) as error:
                kind.failures += 1
                kind.note = str(error)
                _log.warning("no warm JVM", why=kind.note, failures=kind.failures)
            else:
                kind.failures, kind.note = 0, ""
                kept = self._kinds.get(kind.profile)
                (kept.ready if kept is not None else self._leaving).append(jvm)
            finally:
                self._building = None

    def _next(self) -> _Kind | None:
        """The kind to start the next JVM of: of those that lack one, the most recent."""
        for kind in reversed(self._kinds.values()):
            if len(kind.ready) < self._size and not kind.given_up:
                return kind
        return None

    async def _end_leaving(self) -> None:
        """End JVMs of kinds that are no longer kept, and clean up after those that have ended."""
        for kind in self._kinds.values():
            self._leaving += [jvm for jvm in kind.ready if not jvm.alive]
            kind.ready = [jvm for jvm in kind.ready if jvm.alive]
        while self._leaving:
            jvm = self._leaving[0]
            await asyncio.to_thread(jvm.end)
            self._leaving.remove(jvm)

    async def _wait_for_idle_core(self) -> None:
        """Yield to the node's work: let requested executors start first, and wait for an idle core,
        within a limit."""
        idle_cores = min(1.0, (psutil.cpu_count() or 1) / 2)
        latest = time.monotonic() + IDLE_WAIT_MAX_S
        idle = self._delay_s == 0.0
        while (now := time.monotonic()) < latest:
            wait_s = self._asked_at_s + self._delay_s - now
            if idle and wait_s <= 0:
                return
            before_s = self._idle_s()
            await asyncio.sleep(min(max(wait_s, self._delay_s), latest - now))
            idle = self._idle_s() - before_s >= idle_cores * (time.monotonic() - now)

    async def _warm_up(self, profile: WarmProfile) -> WarmJvm:
        """Start one and wait until it is ready.

        Raises:
            LaunchFailed: it ended, took too long, or takes too much memory.
        """
        await asyncio.to_thread(self._forget_links)
        plugin = await asyncio.to_thread(self._plugin, Path(_spark_home(profile)))
        spawning = asyncio.create_task(asyncio.to_thread(self._spawn, profile, plugin))
        try:
            jvm = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: the process that it starts would have no owner.
            with contextlib.suppress(OSError):
                await asyncio.to_thread((await spawning).end)
            raise
        try:
            deadline = time.monotonic() + _READY_LIMIT_S
            while not jvm.ready:
                if not jvm.alive:
                    raise LaunchFailed(f"it ended as it started: {_last_line(jvm.path)}")
                if time.monotonic() > deadline:
                    raise LaunchFailed(f"it was not ready within {_READY_LIMIT_S:.0f} s")
                await asyncio.sleep(_POLL_PERIOD_S)
            used_mib = await asyncio.to_thread(jvm.measure_memory)
            if used_mib > MEMORY_MAX_MIB:
                raise LaunchFailed(
                    f"it takes {used_mib} MiB; at most {MEMORY_MAX_MIB} are set aside"
                )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(jvm.end))
            raise
        return jvm

    def _spawn(self, profile: WarmProfile, plugin: str) -> WarmJvm:
        path = self._dir / uuid.uuid4().hex[:12]
        for directory in (path, path / "local", path / "tmp"):
            directory.mkdir(mode=0o700, parents=True)
        jars = self._jars[_spark_home(profile)]
        plain = argument_file(["-cp", jars])
        arguments = profile.arguments.removesuffix(plain)
        arguments += argument_file(["-cp", f"{jars}:{plugin}"])
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
            "files_max": descriptors.for_children(),
            "waits": True,
            "nice": _NICE if self._delay_s else 0,
        }  # fmt: skip
        return WarmJvm(path, profile, supervisor.start(path, document, stdin=subprocess.PIPE))


def _shortcut(name: str, state: str, note: str, count: Count) -> Shortcut:
    return Shortcut(
        name=name,
        state=state,
        note=note[:_NOTE_MAX],
        used=count.used,
        missed=count.missed,
        why_missed=count.why_missed,
    )


def _write_in_time(pipe: int, data: bytes) -> None:
    """Raises:
    TimeoutError: not all was taken within ``_ORDER_LIMIT_S``.
    OSError: the reader is gone.
    """
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    deadline = time.monotonic() + _ORDER_LIMIT_S
    while data:
        if not poll.poll(1e3 * max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        data = data[os.write(pipe, data) :]


def _spark_home(profile: WarmProfile) -> str:
    return dict(profile.environment)["SPARK_HOME"]


def _built(spark_home: Path, conf: NodeConf) -> str:
    try:
        return build.plugin_jar(
            str(spark_home),
            cache=str(hrm_home() / "plugins"),
            dist=conf.variables.get(DIST_CLASSPATH, ""),
        )
    except build.BuildError as error:
        raise LaunchFailed(str(error)) from error


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (path / "stderr").read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return "nothing"
