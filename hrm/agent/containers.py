"""The agent's hands: start, stop, adopt and clear away containers.

Each container has a directory, ``<work_dir>/containers/<id>/``, that says all there is to know of
it, so that an agent which starts after a crash of its predecessor continues where that one
stopped:

    container.json   what it is (never its secrets), and the driver that isolates it
    process.json     the shim's pid and start time (see ``hrm.agent.shim``)
    stop.json        the order to stop, with cause and reason
    exit.json        how the command ended
    acknowledged     the master knows of the end; only the logs are of interest now
    stdout, stderr   with their older parts, kept as ``hrm.agent.retention`` says
    local/, tmp/     Spark's scratch space

At the end all is removed but the logs and the records above: what a container fetched or wrote
where it stood, too.

The directory belongs to the agent's user, and the command runs in it. Where a container runs as
somebody else (``run_as``), it runs in ``work/``; that, ``local/``, ``tmp/``, its logs and the files
that it was given belong to that user and are closed to all others. The rest it can neither read
nor replace.

The end of a shim is noticed through its pidfd, which works for processes that are not our children
and never confuses two processes that had one number.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import structlog
from google.protobuf import json_format

from hrm import wire
from hrm.agent import shim
from hrm.agent.driver import APPLICATION_DIR, without_secrets
from hrm.agent.isolation import DRIVERS, Device, Isolation, Limits
from hrm.agent.last_words import last_words, read_tail
from hrm.agent.logs import STREAMS
from hrm.agent.retention import ACKNOWLEDGED_FILE, Swept, sweep
from hrm.agent.run_as import Account
from hrm.agent.warm import WarmJvm, WarmPool
from hrm.core.model import ApplicationId, ContainerSpec, EndCause, LaunchContext, is_driver
from hrm.errors import HrmError, LaunchFailed
from hrm.spark.launch import Launch
from hrm.v1 import common_pb2

__all__ = ["Adopted", "Containers", "Ended", "StopOrder"]

RECORD_FILE = "container.json"
HOME_DIR = "work"
_SCRATCH = ("local", "tmp")
_KEPT = {RECORD_FILE, ACKNOWLEDGED_FILE, "shim.log"} | {
    *(shim.PROCESS_FILE, shim.STOP_FILE, shim.EXIT_FILE),
}
_CRASH_REPORT = "hs_err_pid*.log"
_START_LIMIT_S = 30.0
_FORCE_MARGIN_S = 20.0
_REMOVE_LIMIT_S = 60.0
_REMAINS_LIMIT_S = 5.0
_REMAINS_PERIOD_S = 0.05
_SHIM_GRACE_S = 5.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_log = structlog.get_logger("hrm.agent.containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Why a container was told to stop, and whether it may finish what it does."""

    cause: EndCause
    reason: str
    decommission: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All about the end of a container. ``exit_code`` is -1 where there is none."""

    started: bool
    exit_code: int
    signal: int
    ended_at_s: float
    memory_kills: int
    order: StopOrder | None
    last_words: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A container of an earlier run of this agent; ``ended`` is None while it runs, ``order`` the
    latest order to stop it."""

    spec: ContainerSpec
    started_at_s: float
    ended: Ended | None
    order: StopOrder | None = None


@dataclass(slots=True)
class _Running:
    shim_pid: int
    pidfd: int
    process: subprocess.Popen[bytes] | None
    isolation: Isolation
    done: asyncio.Event


class Containers:
    """The containers' processes and directories. ``on_end`` is called in the event loop."""

    def __init__(
        self,
        work_dir: Path,
        isolation: Isolation,
        *,
        rebuild: Callable[[str], Isolation],
        log_bytes_max: int,
        log_files_max: int,
        on_end: Callable[[str, Ended], None],
        environment: Mapping[str, str] | None = None,
        account_of: Callable[[str], Account | None] = lambda _user: None,
        warm: WarmPool | None = None,
    ) -> None:
        """``rebuild`` makes the driver of that name, for containers that an earlier run began.
        ``environment``: what every container gets beside its own variables. ``account_of``: as
        whom the containers of a user run, None: as the agent; it may refuse with LaunchFailed.
        ``warm``: JVMs that have started already, for containers that they fit."""
        self.dir = work_dir / "containers"
        self._isolation = isolation
        self._drivers = {isolation.name: isolation}
        self._rebuild = rebuild
        self._log_bytes_max = log_bytes_max
        self._log_files_max = log_files_max
        self._on_end = on_end
        self._environment = dict(environment or {})
        self._account_of = account_of
        self._warm = warm
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def work_dir(self, container_id: str) -> Path:
        """The directory of a container.

        Raises:
            LaunchFailed: the id cannot name one.
        """
        if not _ID.fullmatch(container_id):
            raise LaunchFailed(f"{container_id!r} cannot name a work directory")
        return self.dir / container_id

    def isolation_of(self, container_id: str) -> Isolation:
        entry = self._running.get(container_id)
        return self._isolation if entry is None else entry.isolation

    def shim_pid(self, container_id: str) -> int | None:
        entry = self._running.get(container_id)
        return None if entry is None else entry.shim_pid

    async def start(
        self,
        spec: ContainerSpec,
        launch: Launch,
        cpus: tuple[int, ...] = (),
        closed: tuple[Device, ...] = (),
    ) -> float:
        """Start a container, held on ``cpus``, kept from the devices ``closed``; answers when it
        started.

        Raises:
            LaunchFailed: with the reason; nothing is left running.
        """
        limits = Limits(
            vcores=spec.resources.vcores,
            memory_mib=spec.resources.memory_mib,
            cpus=cpus,
            closed=closed,
        )
        jvm = self._reserve(spec, launch)
        if jvm is not None:
            try:
                return await self._begin(spec, launch, limits, jvm)
            except LaunchFailed as error:
                await asyncio.to_thread(jvm.end)
                assert self._warm is not None
                self._warm.useless(error.message)
                # What has moved there with it is not this container's: its first words, above all.
                await asyncio.to_thread(remove_tree, self.work_dir(spec.container_id))
                _log.warning("a warm JVM was of no use", why=error.message)
        return await self._begin(spec, launch, limits, None)

    def _reserve(self, spec: ContainerSpec, launch: Launch) -> WarmJvm | None:
        if self._warm is None:
            return None
        try:
            other_user = self._account_of(spec.user) is not None
        except LaunchFailed:
            return None  # said where the container is started
        return self._warm.reserve(launch, spec.resources.memory_mib, other_user=other_user)

    async def _begin(
        self, spec: ContainerSpec, launch: Launch, limits: Limits, jvm: WarmJvm | None
    ) -> float:
        container_id = spec.container_id
        directory = self.work_dir(container_id)
        try:
            process = await asyncio.to_thread(self._spawn, directory, spec, launch, limits, jvm)
        except (OSError, LaunchFailed) as error:
            await asyncio.to_thread(self._not_started, container_id, directory, str(error))
            raise LaunchFailed(f"cannot start {container_id}: {error}") from error
        assert process.stdout is not None
        pidfd = os.pidfd_open(process.pid)
        entry = _Running(process.pid, pidfd, process, self._isolation, asyncio.Event())
        report = await asyncio.to_thread(_read_report, process)
        if "error" in report:
            await asyncio.to_thread(_give_up, process)
            os.close(pidfd)
            problem = str(report["error"])
            await asyncio.to_thread(self._not_started, container_id, directory, problem)
            raise LaunchFailed(f"cannot start {container_id}: {problem}")
        self._watch(container_id, entry)
        return float(report["started_at_s"])

    def _spawn(
        self,
        directory: Path,
        spec: ContainerSpec,
        launch: Launch,
        limits: Limits,
        jvm: WarmJvm | None,
    ) -> subprocess.Popen[bytes]:
        account = self._account_of(spec.user)
        if jvm is not None:
            jvm.move(directory)
            # Memory that it has touched stays on the agent's account, whatever group it joins.
            limits = replace(limits, memory_mib=limits.memory_mib - jvm.memory_mib)
        _open_up(directory, account)
        stale = (shim.PROCESS_FILE, shim.STOP_FILE, shim.EXIT_FILE, ACKNOWLEDGED_FILE)
        for name in stale:
            (directory / name).unlink(missing_ok=True)
        home = directory if account is None else directory / HOME_DIR
        for name in _SCRATCH if account is None else (*_SCRATCH, HOME_DIR):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
            _hand_over(directory / name, account)
        for name, text in launch.files.items():
            _write_private(directory / name, text)
            _hand_over(directory / name, account)
        told = LaunchContext(
            decommissions=spec.launch.decommissions, driver=without_secrets(spec.launch.driver)
        )
        bare = replace(spec, launch=told)
        record = {
            "isolation": self._isolation.name,
            "spec": json_format.MessageToDict(wire.from_spec(bare)),
        }
        shim.write_json(directory / RECORD_FILE, record)
        joined = self._isolation.create(spec.container_id, limits)
        document = {
            "work_dir": str(directory),
            "cwd": str(home),
            "argv": list(launch.argv),
            "environment": {
                **self._environment,
                **launch.environment,
                **(account.environment(home) if account else {}),
            },
            "account": account.for_shim() if account else None,
            "cgroup_files": [str(path) for path in joined],
            "log_bytes_max": self._log_bytes_max,
            "log_files_max": self._log_files_max,
            "grace_s": _SHIM_GRACE_S,
        }
        if jvm is not None:
            return jvm.hand_over(document)
        shim.write_json(directory / shim.SPEC_FILE, document)
        with (directory / "shim.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", shim.__file__, str(directory / shim.SPEC_FILE)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            )

    def _not_started(self, container_id: str, directory: Path, problem: str) -> None:
        # One that was refused has no directory yet, and its end is on record like any other.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clear(container_id, directory, self._isolation)
        if not (directory / shim.EXIT_FILE).exists():
            _write_exit(directory, problem)

    def _watch(self, container_id: str, entry: _Running) -> None:
        self._running[container_id] = entry
        asyncio.get_running_loop().add_reader(entry.pidfd, self._shim_ended, container_id)

    def _shim_ended(self, container_id: str) -> None:
        entry = self._running[container_id]
        asyncio.get_running_loop().remove_reader(entry.pidfd)
        os.close(entry.pidfd)
        if entry.process is not None:
            entry.process.wait()  # it has ended: this only reaps
        self._later(self._collect(container_id, entry))

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, container_id: str, entry: _Running) -> None:
        directory = self.dir / container_id
        try:
            ended = await asyncio.to_thread(self._gather, container_id, directory, entry.isolation)
        except Exception as error:
            # Whatever went wrong here, the core must hear of the end, or its room stays taken.
            _log.exception("cannot clear away a container", container=container_id)
            ended = Ended(
                started=True,
                exit_code=-1,
                signal=0,
                ended_at_s=time.time(),
                memory_kills=0,
                order=None,
                last_words="",
                problem=str(error),
            )
        del self._running[container_id]
        entry.done.set()
        self._on_end(container_id, ended)

    def _gather(self, container_id: str, directory: Path, isolation: Isolation) -> Ended:
        """Read how a container ended, and clear away what it held."""
        memory_kills = isolation.memory_kills(container_id)
        self._clear(container_id, directory, isolation)
        exited = _read(directory / shim.EXIT_FILE)
        order = _read(directory / shim.STOP_FILE)
        problem = "" if exited else "its supervisor died without a record"
        ended = Ended(
            started=(directory / shim.PROCESS_FILE).exists(),
            exit_code=int(exited.get("exit_code", -1)),
            signal=int(exited.get("signal", 0)),
            ended_at_s=float(exited.get("ended_at_s", time.time())),
            memory_kills=memory_kills,
            order=_order(order),
            last_words=_last_words(container_id, directory),
            problem=str(exited.get("error", problem)),
        )
        if not exited:
            _write_exit(directory, problem)
        return ended

    def _clear(self, container_id: str, directory: Path, isolation: Isolation) -> None:
        """Remove what outlives no container: processes, group, files, secrets."""
        (directory / shim.SPEC_FILE).unlink(missing_ok=True)
        if not (directory / shim.EXIT_FILE).exists():
            _kill_marked(container_id)  # only a dead shim leaves processes
        if not isolation.remove(container_id):
            _log.error("a container's group cannot be removed", container=container_id)
        _remove_all_but_records(directory)

    def stop(self, container_id: str, order: StopOrder, grace_s: float) -> None:
        """Tell a container to end; ``on_end`` follows. Unknown ones are left alone."""
        entry = self._running.get(container_id)
        if entry is None:
            return
        document = {
            "grace_s": grace_s,
            "cause": order.cause.value,
            "reason": order.reason,
            "decommission": order.decommission,
        }
        try:
            shim.write_json(self.dir / container_id / shim.STOP_FILE, document)
        except OSError as error:
            _log.warning("cannot write the order to stop", container=container_id, why=str(error))
        _signal(entry.pidfd, signal.SIGTERM)
        self._later(self._force(container_id, entry, grace_s + _FORCE_MARGIN_S))

    async def _force(self, container_id: str, entry: _Running, limit_s: float) -> None:
        """A shim that does not end in time is killed, and its container with it."""
        try:
            async with asyncio.timeout(limit_s):
                await entry.done.wait()
        except TimeoutError:
            if container_id in self._running:
                _log.error("a supervisor does not end; killing it", container=container_id)
                _signal(entry.pidfd, signal.SIGKILL)

    async def drain(self, limit_s: float) -> bool:
        """Wait until no container runs; False: some still do."""
        try:
            async with asyncio.timeout(limit_s):
                while self._running:
                    await next(iter(self._running.values())).done.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Let go of everything; what runs, runs on."""
        for entry in self._running.values():
            asyncio.get_running_loop().remove_reader(entry.pidfd)
            with contextlib.suppress(OSError):
                os.close(entry.pidfd)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def acknowledge(self, container_id: str) -> None:
        """The master has written this end down: a later run need not report it."""
        with contextlib.suppress(OSError, LaunchFailed):
            (self.work_dir(container_id) / ACKNOWLEDGED_FILE).touch(mode=0o600)

    async def adopt(self) -> list[Adopted]:
        """Find what earlier runs of this agent left; ended containers first.

        Blocks no longer than file-system time and the removal of dead containers' groups. Those
        that run are watched from now on, as if this agent had started them: only now, because an
        end that is told before its beginning would be forgotten, and its room with it. The caller
        tells the beginnings before it lets the loop go on.
        """
        self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[Adopted] = []
        living: dict[str, _Running] = {}
        for directory in sorted(self.dir.iterdir()):
            if not directory.is_dir() or not _ID.fullmatch(directory.name):
                continue
            if (directory / ACKNOWLEDGED_FILE).exists():
                continue
            adopted = await self._adopt(directory, living)
            if adopted is not None:
                found.append(adopted)
        await asyncio.to_thread(self._clear_groups, {a.spec.container_id for a in found})
        for container_id, entry in living.items():
            self._watch(container_id, entry)
        return sorted(found, key=lambda a: a.ended is None)

    async def _adopt(self, directory: Path, living: dict[str, _Running]) -> Adopted | None:
        container_id = directory.name
        record = _read(directory / RECORD_FILE)
        try:
            isolation = self._driver(str(record.get("isolation", "none")))
            message = json_format.ParseDict(record["spec"], common_pb2.ContainerSpec())
            spec = wire.to_spec(message)
        except (KeyError, HrmError, json_format.ParseError) as error:
            _log.warning("a work directory is unreadable", path=str(directory), why=str(error))
            await asyncio.to_thread(self._clear, container_id, directory, self._isolation)
            self.acknowledge(container_id)
            return None
        process = _read(directory / shim.PROCESS_FILE)
        pidfd = _living(process)
        started_at_s = float(process.get("started_at_s", time.time()))
        if pidfd is not None:
            pid = int(process["shim_pid"])
            living[container_id] = _Running(pid, pidfd, None, isolation, asyncio.Event())
            order = _order(_read(directory / shim.STOP_FILE))
            return Adopted(spec=spec, started_at_s=started_at_s, ended=None, order=order)
        ended = await asyncio.to_thread(self._gather, container_id, directory, isolation)
        return Adopted(spec=spec, started_at_s=started_at_s, ended=ended)

    def _driver(self, name: str) -> Isolation:
        if name not in DRIVERS:
            raise LaunchFailed(f"no isolation driver {name!r}")
        if name not in self._drivers:
            self._drivers[name] = self._rebuild(name)
        return self._drivers[name]

    def _clear_groups(self, known: set[str]) -> None:
        for driver in self._drivers.values():
            for container_id in driver.existing():
                if container_id not in known:
                    _log.info("removing a leftover group", container=container_id)
                    driver.remove(container_id)

    def forget_old(self, keep_s: float, now: float, bytes_max: int = 1 << 62) -> Swept:
        """Remove directories of containers that ended ``keep_s`` ago, and the oldest of those that
        have ended while all together have more than ``bytes_max``."""
        return sweep(
            self.dir,
            self._running.__contains__,
            keep_s=keep_s,
            bytes_max=bytes_max,
            now=now,
            remove=remove_tree,
        )


def _open_up(directory: Path, account: Account | None) -> None:
    """Make a container's directory. Another user may pass through it, and no more than that."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:
        directory.chmod(0o711)
        directory.parent.chmod(0o711)


def _write_private(path: Path, text: str) -> None:
    """A new file that is closed to others from its first byte on: it may hold a secret."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _hand_over(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
        path.chmod(0o700 if path.is_dir() else 0o600)


def _remove_all_but_records(directory: Path) -> None:
    for place in (HOME_DIR, APPLICATION_DIR, f"{HOME_DIR}/{APPLICATION_DIR}"):
        with contextlib.suppress(OSError):
            _keep_crash_reports(directory / place, directory)
    with contextlib.suppress(OSError):
        for path in list(directory.iterdir()):
            log = path.name.split(".")[0] in STREAMS or path.match(_CRASH_REPORT)
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind):
                remove_tree(path)
            elif not stat.S_ISREG(kind) or not (log or path.name in _KEPT):
                with contextlib.suppress(OSError):
                    path.unlink()


def _keep_crash_reports(place: Path, directory: Path) -> None:
    """Java leaves them where it ran. No link is followed: this may be root, in a user's directory.

    Raises:
        OSError: there is no such place, or a file in it cannot be moved.
    """
    here = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in fnmatch.filter(os.listdir(here), _CRASH_REPORT):  # noqa: PTH208
            if stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                os.rename(name, directory / name, src_dir_fd=here)
    finally:
        os.close(here)


def remove_tree(path: Path) -> None:
    """Remove a directory with all below it, which a container may have made as deep as it liked:
    deeper than Python can follow. Follows no link; what is not there is no error."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        command = ["rm", "-rf", "--", str(path)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, timeout=_REMOVE_LIMIT_S, stdin=subprocess.DEVNULL)


def _read(path: Path) -> dict[str, Any]:
    """A JSON file; empty where there is none, or it is none."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write_exit(directory: Path, problem: str) -> None:
    """In place of a shim that could not: every ended container has the record."""
    document = {"exit_code": -1, "ended_at_s": time.time(), "error": problem}
    with contextlib.suppress(OSError):
        shim.write_json(directory / shim.EXIT_FILE, document)


def _order(document: dict[str, Any]) -> StopOrder | None:
    try:
        return StopOrder(
            cause=EndCause(document["cause"]),
            reason=str(document["reason"]),
            decommission=bool(document.get("decommission")),
        )
    except (KeyError, ValueError):
        return None


def _read_report(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The shim's one line: the running command's pids, or ``error``."""
    assert process.stdout is not None
    with process.stdout as pipe:
        ready, _, _ = select.select([pipe], [], [], _START_LIMIT_S)
        if not ready:
            return {"error": f"its supervisor did not answer within {_START_LIMIT_S:.0f} s"}
        line = pipe.readline()
    try:
        document = json.loads(line)
    except ValueError:
        return {"error": "its supervisor died at its start; see shim.log in the work directory"}
    return document if isinstance(document, dict) else {"error": "a garbled report"}


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """See a shim that did not start to its end; one that even SIGKILL cannot end (it hangs in the
    kernel) is left to it: its container has failed either way."""
    for last_try in (False, True):
        if last_try:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_REMAINS_LIMIT_S)
            return
    _log.error("a supervisor survives SIGKILL; letting go of it", pid=process.pid)


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, number)


def _living(process: dict[str, Any]) -> int | None:
    """A pidfd of the recorded shim, if that very process lives."""
    if process.get("boot_id") != shim.boot_id():
        return None
    try:
        pidfd = os.pidfd_open(int(process["shim_pid"]))
    except (OSError, KeyError, ValueError):
        return None
    # Compared after opening: from here on the number cannot change hands unnoticed.
    if shim.start_ticks(int(process["shim_pid"])) != process.get("shim_start_ticks"):
        os.close(pidfd)
        return None
    return pidfd


def _last_words(container_id: str, directory: Path) -> str:
    out, err = (directory / name for name in STREAMS)
    spoken = read_tail(out) if is_driver(ApplicationId(container_id)) else ""
    return last_words(read_tail(err), spoken)


def _kill_marked(container_id: str) -> None:
    """Kill every process that carries the container's mark in its environment."""
    deadline = time.monotonic() + _REMAINS_LIMIT_S
    while time.monotonic() < deadline:
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("HRM_CONTAINER_ID") == container_id:
                    marked.append(process)
        if not marked:
            return
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_REMAINS_PERIOD_S)
