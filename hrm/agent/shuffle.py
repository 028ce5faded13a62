"""An optional shuffle service on the node: shuffle files outlive the executors that wrote them.

The service is Spark's own (``spark.shuffle.service.enabled``), started by the agent where
``shuffle_service`` is set, one on each host for all applications. Where Standalone has one secret
for all, here each application has its own, which the service receives when an executor starts on
the node (``HrmShuffleService``): no application can read another's files. An application without
``spark.authenticate`` is not served; its driver reports that at its start.

Files are kept under ``shuffle/`` of the work directory, or on each disk of ``work_dirs``, as
``<application>/<container>``, and removed when the master reports the
application's end; without such a report, after ``work_keep_s``.

The service reads with the agent's permissions and follows links, so an agent that is root and whose
containers run as other users refuses to start with it.

Limits: a service that died is restarted, and keeps what was registered. It dies with its agent, and
secrets are never written to disk: for earlier applications the next agent's service works only once
they start another executor on the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from hrm.agent.containers.container_dir import remove_tree
from hrm.agent.containers.scratch import local_dirs
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.model import ApplicationId, ContainerSpec
from hrm.errors import InvalidConfig, LaunchFailed
from hrm.spark.build import BuildError, plugin_jar
from hrm.spark.launch import Java, Launch, Spark

__all__ = ["ShuffleService"]

SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # nosec B105 # noqa: S105 - the name, not the secret
_MAIN_CLASS = "org.apache.spark.deploy.HrmShuffleService"
_DELAY_S = 0.5
_DELAY_MAX_S = 30.0
_SETTLED_S = 60.0
_START_LIMIT_S = 60.0
_END_LIMIT_S = 5.0
_REGISTRY_FILE = "registeredExecutors"

_log = structlog.get_logger("hrm.agent.shuffle")


class ShuffleService:
    """One service, kept alive from ``run`` to its cancellation.

    Attributes:
        ready: set while a service responds.
    """

    def __init__(
        self,
        *,
        directory: Path,
        port: int,
        memory_mib: int,
        spark: Spark,
        java: Java,
        jar: Callable[[str], str] = plugin_jar,
        places: Sequence[Path] = (),
    ) -> None:
        """``directory``: its own, with its log; ``places``: for the files, one a disk; none: in
        ``directory``."""
        self._directory = directory
        self._places = tuple(places) or (directory,)
        self._port = port
        self._memory_mib = memory_mib
        self._spark = spark
        self._java = java
        self._jar = jar
        self._secrets: dict[ApplicationId, str] = {}
        self._process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Start it, and again whenever it ends, after growing pauses."""
        backoff = Backoff(_DELAY_S, _DELAY_MAX_S, random.random)
        while True:
            began_s = time.monotonic()
            try:
                problem = await self._live()
            except (BuildError, OSError, InvalidConfig) as error:
                problem = str(error)
            self.ready.clear()
            if time.monotonic() - began_s > _SETTLED_S:
                backoff.succeeded()
            pause_s = backoff.pause_s()
            _log.warning("the shuffle service is down", why=problem, again_in_s=pause_s)
            await asyncio.sleep(pause_s)

    def serves(self, spec: ContainerSpec) -> bool:
        """Does this executor's application request the service, and may it have it?"""
        wanted = spec.launch.shuffle_service and _names_a_place(spec.application_id)
        return wanted and bool(_secret_of(spec))

    def prepare(self, spec: ContainerSpec, launch: Launch) -> Launch:
        """Register the application; returns the launch with directories for files that stay."""
        self._secrets[spec.application_id] = _secret_of(spec)
        self._send_command("know", spec.application_id, self._secrets[spec.application_id])
        made, problem = [], ""
        for place in self._places:
            directory = place.resolve() / spec.application_id / spec.container_id
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:  # a disk that fails is left out
                problem = f"{directory}: {error.strerror}"
            else:
                made.append(directory)
        if not made:
            raise LaunchFailed(f"no directory for shuffle files can be made: {problem}")
        return replace(launch, environment={**launch.environment, **local_dirs(made)})

    async def forget(self, application_id: ApplicationId) -> None:
        """Remove an ended application's files, maybe very many, in a thread."""
        if self._secrets.pop(application_id, None) is not None:
            self._send_command("forget", application_id)
        if _names_a_place(application_id):
            for place in self._places:
                await asyncio.to_thread(remove_tree, place / application_id)

    async def forget_old(self, keep_s: float, live: set[ApplicationId], now: float) -> None:
        """Remove the files of applications without any sign of life for ``keep_s``."""
        for application_id in await asyncio.to_thread(self._older_than, now - keep_s):
            if application_id not in live:
                await self.forget(application_id)

    def _older_than(self, oldest_s: float) -> list[ApplicationId]:
        latest: dict[str, float] = {}
        for place in self._places:
            with contextlib.suppress(OSError):
                for entry in sorted(place.iterdir()):
                    if entry.is_dir() and _names_a_place(entry.name):
                        changed_s = entry.stat().st_mtime
                        latest[entry.name] = max(changed_s, latest.get(entry.name, changed_s))
        return [ApplicationId(name) for name, at_s in latest.items() if at_s < oldest_s]

    async def _live(self) -> str:
        """One run of the service; returns why it ended."""
        jar = await asyncio.to_thread(self._jar, str(self._spark.home))
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / "service.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(jar),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
        self._process = process
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_START_LIMIT_S):
                first_line = await process.stdout.readline()
            if first_line.strip() != b"READY":
                where = self._directory / "service.log"
                return f"it did not start on port {self._port}; see {where}"
            for application_id, secret in self._secrets.items():
                self._send_command("know", application_id, secret)
            self.ready.set()
            _log.info("the shuffle service is up", port=self._port, pid=process.pid)
            return f"it ended with exit code {await process.wait()}"
        except TimeoutError:
            return f"it has not started within {_START_LIMIT_S:.0f} s"
        finally:
            self._process = None
            await _end(process)

    def _send_command(self, *words: str) -> None:
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with contextlib.suppress(ConnectionError):
                process.stdin.write((" ".join(words) + "\n").encode())

    def _command(self, jar: str) -> tuple[str, ...]:
        served = dict.fromkeys(path.resolve() for path in (self._directory, *self._places))
        settings = {
            "spark.shuffle.service.port": str(self._port),
            # It serves no files from elsewhere, and keeps its database of executors in the first.
            "spark.local.dir": ",".join(map(str, served)),
        }
        return (
            str(self._java.command),
            f"-Xmx{self._memory_mib}m",
            *("-cp", f"{jar}:{self._spark.home / 'jars'}/*"),
            *("--add-opens=java.base/java.nio=ALL-UNNAMED",),
            *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",),
            *(f"-D{name}={value}" for name, value in settings.items()),
            _MAIN_CLASS,
        )


def _names_a_place(application_id: str) -> bool:
    """May files of this application lie in a directory of its name, and nowhere else?"""
    plain = Path(application_id).name == application_id and application_id != ".."
    return plain and not application_id.startswith(_REGISTRY_FILE)


def _secret_of(spec: ContainerSpec) -> str:
    return dict(spec.launch.environment).get(SECRET_VARIABLE, "")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it by closing its input; kill it if that fails. One that even SIGKILL cannot end (it
    hangs in the kernel) is abandoned, and delays neither its successor nor the agent."""
    if process.stdin is not None:
        process.stdin.close()
    for last_try in (False, True):
        if last_try:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT_S):
                await process.wait()
            return
    _log.error("the shuffle service survives SIGKILL; letting go of it", pid=process.pid)
