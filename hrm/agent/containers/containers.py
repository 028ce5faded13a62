"""Process operations of the agent: start, stop, adopt and clear away containers.

    start ──► prepare the directory ──► the isolation's group ──► a shim, or a warm JVM's shim
    stop  ──► the order, in the directory ──► SIGTERM; a shim that does not end in time is killed
    end   ──► the shim's pidfd is readable ──► record read, the group removed, ``on_end`` ──► files
              removed in the background (``FileRemoval``)
    adopt ──► at the agent's start: recorded shims that are alive are watched like its own, the
              ends of the others are reported

What a container is and how it ended is in its directory (``container_dir``), never only in memory,
so the agent may die at any moment. Where a step fails, no process is left, but a record is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from hrm import descriptors
from hrm.agent.containers import container_dir, shim, supervisor
from hrm.agent.containers.app_files import ApplicationFiles, unpacking
from hrm.agent.containers.container_dir import Ended, StopOrder, remove_tree
from hrm.agent.containers.removal import FileRemoval
from hrm.agent.containers.retention import ACKNOWLEDGED_FILE, Swept, sweep
from hrm.agent.containers.scratch import Scratch
from hrm.agent.isolation import DRIVERS, ContainerLimits, DeviceNumbers, Isolation
from hrm.agent.run_as import Account
from hrm.agent.startup.warm import WarmJvm, WarmPool
from hrm.core.vocabulary.model import ContainerSpec, is_driver
from hrm.errors import HrmError, LaunchFailed, Unsuitable
from hrm.spark.launch import Launch

__all__ = ["Adopted", "ContainerSupervisor", "Ended", "StopOrder"]

_FORCE_MARGIN_S = 20.0
_SHIM_GRACE_S = 5.0
_MAKE_WAY_LIMIT_S = 60.0
_SIGNALLED = frozenset({128 + signal.SIGTERM, 128 + signal.SIGKILL})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_log = structlog.get_logger("hrm.agent.containers")


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


class ContainerSupervisor:
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
        account_of: Callable[[str], Account | None] = lambda _user: None,
        warm: WarmPool | None = None,
        scratch: Scratch | None = None,
        files: ApplicationFiles | None = None,
        unpacked_bytes_max: int = 1 << 40,
    ) -> None:
        """``rebuild`` makes the driver of that name, for containers that an earlier run began.
        ``account_of``: the account for a user's containers, None: the agent's; it may refuse with
        LaunchFailed. ``warm``: JVMs that have started already, for containers that they fit.
        ``scratch``: where their scratch space is, in place of their own directories. ``files``:
        brings what containers need of their applications' files, of whose archives each may unpack
        ``unpacked_bytes_max``."""
        self.dir = work_dir / "containers"
        self._isolation = isolation
        self._drivers = {isolation.name: isolation}
        self._rebuild = rebuild
        self._log_bytes_max = log_bytes_max
        self._log_files_max = log_files_max
        self._on_end = on_end
        self._account_of = account_of
        self._warm = warm
        self._scratch = scratch or Scratch()
        self._files = files
        self._unpacked_bytes_max = unpacked_bytes_max
        self._running: dict[str, _Running] = {}
        self._starting: set[str] = set()
        places: dict[str, Callable[[str], None]] = {str(self.dir): self._clear}
        for place in self._scratch.places:
            places[str(place)] = functools.partial(_remove_at, place)
        self._removal = FileRemoval(places, self._record_acknowledgement)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        """Whether a container runs; one that has ended does not, whatever is left of its files."""
        return bool(self._running)

    def leaving(self) -> tuple[str, ...]:
        """Those that have ended, and whose files are being removed. From any thread."""
        return self._removal.names()

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
        closed: tuple[DeviceNumbers, ...] = (),
    ) -> float:
        """Start a container, pinned to ``cpus``, without access to the devices ``closed``; returns
        the start time.

        Raises:
            LaunchFailed: with the reason; nothing is left running.
        """
        limits = ContainerLimits(
            vcores=spec.resources.vcores,
            memory_mib=spec.resources.memory_mib,
            cpus=cpus,
            closed=closed,
        )
        self._starting.add(spec.container_id)
        try:
            return await self._start(spec, launch, limits)
        finally:
            self._starting.discard(spec.container_id)

    async def _start(self, spec: ContainerSpec, launch: Launch, limits: ContainerLimits) -> float:
        """In a warm JVM, if there is one that fits and it works."""
        await self._make_way(spec.container_id)
        jvm = self._reserve(spec, launch)
        if jvm is not None:
            try:
                return await self._begin(spec, launch, limits, jvm)
            except LaunchFailed as error:
                await asyncio.to_thread(jvm.end)
                assert self._warm is not None
                self._warm.not_used(jvm, error.message)
                # What moved there with the JVM, such as its early output, is not this container's.
                await self._make_way(spec.container_id)
                await asyncio.to_thread(remove_tree, self.work_dir(spec.container_id))
                _log.warning("a warm JVM was of no use", why=error.message)
        return await self._begin(spec, launch, limits, None)

    async def _make_way(self, container_id: str) -> None:
        """Nothing of an earlier container of that id is left, or will be removed later."""
        directory = self.work_dir(container_id)
        if not await self._removal.make_way(container_id, _MAKE_WAY_LIMIT_S):
            raise LaunchFailed(
                f"cannot start {container_id}: the files of an earlier container of this id cannot "
                f"be removed, or not within {_MAKE_WAY_LIMIT_S:g} s; see the agent's log"
            )
        try:
            await asyncio.to_thread(container_dir.drop_records, directory)
        except OSError as error:
            raise LaunchFailed(
                f"cannot start {container_id}: records of an earlier container of this id are left "
                f"in {directory}: {error.strerror}"
            ) from error

    def _reserve(self, spec: ContainerSpec, launch: Launch) -> WarmJvm | None:
        if self._warm is None:
            return None
        try:
            other_user = self._account_of(spec.user) is not None
        except LaunchFailed:
            return None  # the caller that starts the container reports it
        return self._warm.reserve(launch, spec.resources.memory_mib, other_user=other_user)

    async def _begin(
        self, spec: ContainerSpec, launch: Launch, limits: ContainerLimits, jvm: WarmJvm | None
    ) -> float:
        container_id = spec.container_id
        directory = self.work_dir(container_id)
        try:
            account = await asyncio.to_thread(self._account_of, spec.user)
            await self._bring_files(spec, directory)
            process = await asyncio.to_thread(
                self._spawn, directory, spec, account, launch, limits, jvm
            )
        except (OSError, LaunchFailed) as error:
            await self._not_started(container_id, directory, str(error))
            kind = Unsuitable if isinstance(error, Unsuitable) else LaunchFailed
            raise kind(f"cannot start {container_id}: {error}") from error
        assert process.stdout is not None
        pidfd = os.pidfd_open(process.pid)
        entry = _Running(process.pid, pidfd, process, self._isolation, asyncio.Event())
        report = await asyncio.to_thread(supervisor.read_report, process)
        if "error" in report:
            await asyncio.to_thread(supervisor.give_up, process)
            os.close(pidfd)
            problem = str(report["error"])
            await self._not_started(container_id, directory, problem)
            raise LaunchFailed(f"cannot start {container_id}: {problem}")
        self._watch(container_id, entry)
        return float(report["started_at_s"])

    async def _bring_files(self, spec: ContainerSpec, directory: Path) -> None:
        if not spec.launch.files:
            return
        if self._files is None:
            raise LaunchFailed("its application has files, and this agent brings none")
        home = await asyncio.to_thread(container_dir.empty_home, directory)
        await self._files.bring(spec.container_id, spec.launch.files, home)

    def _spawn(
        self,
        directory: Path,
        spec: ContainerSpec,
        account: Account | None,
        launch: Launch,
        limits: ContainerLimits,
        jvm: WarmJvm | None,
    ) -> subprocess.Popen[bytes]:
        if jvm is not None:
            jvm.move(directory)
            # Memory that it has touched stays on the agent's account, whatever group it joins.
            limits = replace(limits, memory_mib=limits.memory_mib - jvm.memory_mib)
        files = spec.launch.files
        home = container_dir.prepare(directory, account, launch.files, has_home=bool(files))
        container_dir.write_record(directory, spec, self._isolation.name)
        local = self._scratch_of(spec, directory, account, launch)
        joined = self._isolation.create(spec.container_id, limits)
        document = {
            "work_dir": str(directory),
            "cwd": str(home),
            "argv": unpacking(files, home, self._unpacked_bytes_max, launch.argv),
            "environment": {
                **launch.environment,
                **local,
                **(account.environment(home) if account else {}),
            },
            "account": account.for_shim() if account else None,
            "cgroup_files": [str(path) for path in joined],
            "log_bytes_max": self._log_bytes_max,
            "log_files_max": self._log_files_max,
            "grace_s": _SHIM_GRACE_S,
            "files_max": descriptors.for_children(),
        }
        if jvm is not None:
            return jvm.hand_over(document)
        return supervisor.start(directory, document)

    def _scratch_of(
        self, spec: ContainerSpec, directory: Path, account: Account | None, launch: Launch
    ) -> dict[str, str]:
        """Variables that name its scratch space. What the shuffle service keeps has its place."""
        if launch.environment.get("SPARK_LOCAL_DIRS") != str(directory / "local"):
            return {}
        return self._scratch.prepare(spec.container_id, account, launch.environment)

    async def _not_started(self, container_id: str, directory: Path, problem: str) -> None:
        try:
            await asyncio.to_thread(self._record_failure, container_id, directory, problem)
        except OSError as error:
            _log.warning("a failed start leaves no record", container=container_id, why=str(error))
        self._removal.begin(container_id)

    def _record_failure(self, container_id: str, directory: Path, problem: str) -> None:
        # A refused one has no directory yet; its end is recorded like any other.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._end_whole(container_id, directory, self._isolation)
        finally:
            if not (directory / shim.EXIT_FILE).exists():
                container_dir.write_end(directory, problem)

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
        ended = await self._end_of(container_id, entry.isolation)
        del self._running[container_id]
        entry.done.set()
        self._on_end(container_id, ended)

    async def _end_of(self, container_id: str, isolation: Isolation) -> Ended:
        """How it ended; from now on its files are removed. Whatever fails here, the core must get
        the end, or the capacity stays occupied."""
        directory = self.dir / container_id
        try:
            return await asyncio.to_thread(self._gather, container_id, directory, isolation)
        except Exception as error:
            _log.exception("cannot clear away a container", container=container_id)
            return Ended(started=True, exit_code=-1, problem=str(error))
        finally:
            self._removal.begin(container_id)

    def _gather(self, container_id: str, directory: Path, isolation: Isolation) -> Ended:
        """Read how a container ended, and remove what is left of it but its files."""
        try:
            self._kill_processes(container_id, directory)
            # The kernel's count goes with the group.
            return container_dir.read_end(directory, isolation.memory_kills(container_id))
        finally:
            self._remove_group(container_id, isolation)
            container_dir.keep_crash_reports(directory)

    def _end_whole(self, container_id: str, directory: Path, isolation: Isolation) -> None:
        """Remove what must not outlive a container, but its files: processes, group, secrets."""
        self._kill_processes(container_id, directory)
        self._remove_group(container_id, isolation)
        container_dir.keep_crash_reports(directory)

    def _kill_processes(self, container_id: str, directory: Path) -> None:
        if not (directory / shim.EXIT_FILE).exists():
            supervisor.kill_marked(container_id)  # only a dead shim leaves processes
        try:
            (directory / shim.SPEC_FILE).unlink(missing_ok=True)
        except OSError as error:  # on a disk that became read-only; the end is known all the same
            _log.warning("a container's secrets are left", container=container_id, why=str(error))

    def _remove_group(self, container_id: str, isolation: Isolation) -> None:
        if not isolation.remove(container_id):
            _log.error("a container's group cannot be removed", container=container_id)

    def _clear(self, container_id: str) -> None:
        if left := container_dir.clear(self.dir / container_id):
            raise OSError(f"cannot remove {', '.join(map(str, left))}")

    def give_up_start(self, container_id: str) -> None:
        """One that is starting is to stop: its start need not wait for its files."""
        if self._files is not None:
            self._files.stop(container_id)

    def stop(self, container_id: str, order: StopOrder, grace_s: float) -> None:
        """Order a container to end; ``on_end`` follows. Unknown ones are ignored."""
        entry = self._running.get(container_id)
        if entry is None:
            return
        try:
            container_dir.write_order(self.dir / container_id, order, grace_s)
        except OSError as error:
            _log.warning("cannot write the order to stop", container=container_id, why=str(error))
        supervisor.send_signal(entry.pidfd, signal.SIGTERM)
        self._later(self._force(container_id, entry, grace_s + _FORCE_MARGIN_S))

    async def _force(self, container_id: str, entry: _Running, limit_s: float) -> None:
        """A shim that does not end in time is killed, and its container with it."""
        try:
            async with asyncio.timeout(limit_s):
                await entry.done.wait()
        except TimeoutError:
            if container_id in self._running:
                _log.error("a supervisor does not end; killing it", container=container_id)
                supervisor.send_signal(entry.pidfd, signal.SIGKILL)

    async def drain(self, limit_s: float) -> bool:
        """Wait until no container runs, and the files of all are removed; False: not yet."""
        try:
            async with asyncio.timeout(limit_s):
                while self._running:
                    await next(iter(self._running.values())).done.wait()
                await self._removal.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop watching; containers that run continue."""
        if self._files is not None:
            self._files.close()
        for entry in self._running.values():
            asyncio.get_running_loop().remove_reader(entry.pidfd)
            with contextlib.suppress(OSError):
                os.close(entry.pidfd)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._removal.close()

    def acknowledge(self, container_id: str) -> None:
        """The master has recorded this end: a later run of the agent need not report it."""
        self._removal.acknowledge(container_id)

    def _record_acknowledgement(self, container_id: str) -> None:
        with contextlib.suppress(OSError, LaunchFailed):
            (self.work_dir(container_id) / ACKNOWLEDGED_FILE).touch(mode=0o600)

    async def adopt(self) -> list[Adopted]:
        """Find the containers of earlier runs of this agent; ended ones first.

        Blocks no longer than reading records and the removal of dead containers' groups take: files
        are removed in the background. Running ones are watched from now on, as if this agent had
        started them: not earlier, because an end reported before its start would be ignored, and
        its capacity lost. The caller reports the starts before it yields to the loop.
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
        for name in await asyncio.to_thread(self._scratch.names):
            if name not in living and name not in self._removal:
                self._removal.begin(name)  # an earlier run of the agent left it
        for container_id, entry in living.items():
            self._watch(container_id, entry)
        return sorted(found, key=lambda a: a.ended is None)

    async def _adopt(self, directory: Path, living: dict[str, _Running]) -> Adopted | None:
        container_id = directory.name
        try:
            spec, isolated_by = container_dir.read_record(directory)
            isolation = self._driver(isolated_by)
        except HrmError as error:
            _log.warning("a work directory is unreadable", path=str(directory), why=str(error))
            await self._not_started(container_id, directory, "its record cannot be read")
            self.acknowledge(container_id)
            return None
        process = container_dir.read_json(directory / shim.PROCESS_FILE)
        pidfd = supervisor.find(process)
        started_at_s = float(process.get("started_at_s", time.time()))
        if pidfd is not None:
            pid = int(process["shim_pid"])
            living[container_id] = _Running(pid, pidfd, None, isolation, asyncio.Event())
            order = container_dir.read_order(directory)
            return Adopted(spec=spec, started_at_s=started_at_s, ended=None, order=order)
        ended = await self._end_of(container_id, isolation)
        if process and not supervisor.is_of_this_boot(process):
            ended = _by_a_shutdown(spec, ended)
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
            self._is_in_use,
            keep_s=keep_s,
            bytes_max=bytes_max,
            now=now,
            remove=remove_tree,
            acknowledged=lambda x: self._removal.is_acknowledged(x, str(self.dir)),
        )

    def _is_in_use(self, container_id: str) -> bool:
        """From any thread."""
        return (
            container_id in self._running
            or container_id in self._starting
            or self._removal.is_removing(container_id, str(self.dir))
        )

    def retry_removals(self) -> None:
        """Try again to remove what could not be removed."""
        self._removal.retry()


def _remove_at(place: Path, container_id: str) -> None:
    if not remove_tree(place / container_id):
        raise OSError(f"cannot remove {place / container_id}")


def _by_a_shutdown(spec: ContainerSpec, ended: Ended) -> Ended:
    """The machine has been started again since. An executor that a signal ended was ended by the
    shutdown, which is no failure of its own. A driver stays one that was seen to end, so that its
    successor need not wait for it."""
    if ended.exit_code not in _SIGNALLED or is_driver(spec.application_id):
        return ended
    return replace(ended, problem="its machine was shut down")
