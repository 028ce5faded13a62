"""The agent's side of class-data archives: starts their training, decides which executor uses one.

Nothing waits for an archive. Training runs as a process of its own at the lowest priority, when the
machine has memory to spare, and ends with the agent, to which a pipe binds it. While another agent
of this machine is training, this one polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from hrm import descriptors
from hrm.config import AgentSettings, hrm_home
from hrm.core.vocabulary.model import ContainerSpec, Shortcut
from hrm.errors import HrmError
from hrm.spark.archive import KINDS, Archives, obstacle
from hrm.spark.archive_training import BUSY
from hrm.spark.launch import Java, Spark

__all__ = ["ArchiveKeeper", "Count"]

_POLL_PERIOD_S = 2.0
_MEMORY_MIN_MIB = 2048
_END_LIMIT_S = 10.0
_END_MARGIN_S = 60.0
_NOTE_MAX = 500
_log = structlog.get_logger("hrm.agent.archives")


@dataclass(slots=True)
class Count:
    """How often something was used, how often not, and why not the last time."""

    used: int = 0
    missed: int = 0
    why_missed: str = ""

    def missing(self, why: str) -> None:
        self.missed += 1
        self.why_missed = why[:_NOTE_MAX]


class ArchiveKeeper:
    """The archives of this node's Spark and Java. One event loop; ``choose`` costs file stats."""

    def __init__(
        self,
        settings: AgentSettings,
        spark: Spark,
        java: Java,
        *,
        turn: asyncio.Lock | None = None,
        is_default: bool = True,
    ) -> None:
        """``turn``: shared with those that must not train at the same time. ``is_default``: it is
        for the node's default Spark; the archives of others are reported with their version."""
        self._settings = settings
        self._turn = turn or asyncio.Lock()
        self._suffix = "" if is_default else f"-{spark.version}"
        root = settings.archive_dir.expanduser()
        self._archives = Archives(str(root), str(java.command), str(spark.home))
        self._count = Count()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._state, self._note = ("waiting", "") if settings.class_archive else ("off", "")

    def start(self) -> None:
        """Start training, if there are no archives and no other agent is training."""
        if self._settings.class_archive and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """End a training that this agent began."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def choose(self, spec: ContainerSpec, *, other_user: bool = False) -> str:
        """The archive for this executor; empty: none, for a reason in the report. ``other_user``:
        it does not run as the agent's."""
        if not self._settings.class_archive:
            return ""
        why = self._archives.problem("executor")
        why = why or obstacle(spec.launch.java_options, spec.heap_mib or spec.resources.memory_mib)
        if not why and spec.launch.extra_class_path:
            why = "class path entries of its own, which go before Spark's"
        path = self._archives.path("executor")
        if not why and other_user and not _public(Path(path)):
            why = f"its user cannot read {path}"
        if why:
            self._count.missing(why)
            return ""
        self._count.used += 1
        return path

    def report(self) -> tuple[Shortcut, ...]:
        """For ``hrm node show``."""
        executor = Shortcut(
            name=f"executor-archive{self._suffix}",
            state=self._state,
            note=self._note[:_NOTE_MAX],
            used=self._count.used,
            missed=self._count.missed,
            why_missed=self._count.why_missed,
        )
        return executor, Shortcut(name=f"driver-archive{self._suffix}", state=self._state)

    async def _keep(self) -> None:
        try:
            while not await self._ready():
                if await asyncio.to_thread(self._archives.training):
                    self._set_state("building", "another agent of this machine makes it")
                elif (free := psutil.virtual_memory().available >> 20) < _MEMORY_MIN_MIB:
                    self._set_state(
                        "waiting", f"{free} MiB are free; {_MEMORY_MIN_MIB} MiB are needed"
                    )
                else:
                    async with self._turn:
                        if not await self._train():
                            return
                await asyncio.sleep(_POLL_PERIOD_S)
        except (OSError, HrmError) as error:
            self._set_state("failed", str(error))

    async def _ready(self) -> bool:
        problems = [await asyncio.to_thread(self._archives.problem, kind) for kind in KINDS]
        if any(problems):
            return False
        self._set_state("ready", self._archives.directory)
        return True

    def _set_state(self, state: str, note: str) -> None:
        if state != self._state:
            _log.info("class-data archive", state=state, note=note)
        self._state, self._note = state, note

    async def _train(self) -> bool:
        """Train in a process of its own; False: do not try again."""
        self._set_state("building", "")
        settings = self._settings
        input_end, held_end = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "hrm.spark.archive_training",
                "--root", self._archives.root, "--java", self._archives.java,
                "--spark-home", self._archives.spark_home,
                "--plugins", str(hrm_home() / "plugins"),
                "--limit-s", str(settings.archive_limit_s),
                "--attempts", str(settings.archive_attempts),
                "--held-by-input",
                stdin=input_end,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            descriptors.give_back(self._process.pid)
            try:
                async with asyncio.timeout(settings.archive_limit_s + _END_MARGIN_S):
                    output, _ = await self._process.communicate()
            except TimeoutError:
                output = b'{"problem": "it did not end in time"}'
                await self._end_training()  # before ``_problem`` reads its status
        finally:
            os.close(held_end)
            os.close(input_end)
            await self._end_training()
        if self._process.returncode in (0, BUSY):
            return True
        problem = _problem(output, self._process.returncode)
        self._set_state("failed", problem)
        attempts = self._archives.state().get("attempts", 0)
        return isinstance(attempts, int) and 0 < attempts < settings.archive_attempts

    async def _end_training(self) -> None:
        """By a signal first, since it ends its own processes, then by force."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_LIMIT_S):
                    await process.wait()
                    return


def _public(path: Path) -> bool:
    """Whether all users can read the file. Java starts slower with an unreadable one."""
    try:
        passable = all(place.stat().st_mode & 0o001 for place in path.parents)
        return passable and bool(path.stat().st_mode & 0o004)
    except OSError:
        return False


def _problem(output: bytes, status: int | None) -> str:
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        return str(json.loads(output.splitlines()[-1])["problem"])
    return f"the training ended with status {status}"
