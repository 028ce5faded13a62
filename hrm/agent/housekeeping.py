"""What an agent removes periodically: what ended containers left, shuffle files of ended
applications, and files of applications that no driver here needs."""

from __future__ import annotations

import asyncio
import time

import structlog

from hrm.agent.containers import file_cache
from hrm.agent.containers.containers import ContainerSupervisor
from hrm.agent.drivers.driver_process import files_dir, files_of
from hrm.agent.shuffle import ShuffleService
from hrm.config import AgentSettings
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import ApplicationId, ContainerState

__all__ = ["Housekeeping"]

_PERIOD_S = 60.0
_log = structlog.get_logger("hrm.agent")


class Housekeeping:
    """A failing disk is logged, and the removal tried again the next time."""

    def __init__(
        self,
        settings: AgentSettings,
        containers: ContainerSupervisor,
        core: NodeCore,
        shuffle: ShuffleService | None,
    ) -> None:
        self._settings = settings
        self._containers = containers
        self._core = core
        self._shuffle = shuffle
        self._removing: set[asyncio.Task[None]] = set()

    def delete_shuffle_files(self, application_id: ApplicationId) -> None:
        """The application has ended: remove what it left with the shuffle service, in the
        background."""
        if self._shuffle is not None:
            removing = asyncio.create_task(self._shuffle.forget(application_id))
            self._removing.add(removing)
            removing.add_done_callback(self._removing.discard)

    async def run(self) -> None:
        """Runs until cancelled."""
        keep_s = self._settings.work_keep_s
        period_s = min(_PERIOD_S, max(1.0, keep_s))
        while True:
            self._containers.retry_removals()
            await self._clear_containers(keep_s)
            if self._shuffle is not None:
                live = {x.spec.application_id for x in self._core.containers.values()}
                await self._shuffle.forget_old(keep_s, live, time.time())
            await self._clear_files(keep_s)
            await asyncio.sleep(period_s)

    async def _clear_containers(self, keep_s: float) -> None:
        bytes_max = self._settings.logs_mib_max << 20
        try:
            swept = await asyncio.to_thread(
                self._containers.forget_old, keep_s, time.time(), bytes_max
            )
        except OSError as error:
            _log.warning("cannot remove old work directories", why=str(error))
            return
        if swept.old or swept.too_much:
            _log.info("removed logs", old=swept.old, too_much=swept.too_much)
        if swept.unacknowledged:
            _log.warning("dropped ends that no master has acknowledged", ends=swept.unacknowledged)

    async def _clear_files(self, keep_s: float) -> None:
        """Remove files of applications that nothing here needs, as far as they are too many."""
        used: frozenset[str] = frozenset()
        for known in self._core.containers.values():
            if known.life.state is not ContainerState.ENDED:
                launch = known.spec.launch
                used |= files_of(launch.driver) | {file.sha256 for file in launch.files}
        try:
            swept = await asyncio.to_thread(
                file_cache.sweep,
                files_dir(self._settings),
                used=used,
                keep_s=keep_s,
                bytes_max=self._settings.files_mib_max << 20,
                now=time.time(),
            )
        except OSError as error:
            _log.warning("cannot clear away files of applications", why=str(error))
            return
        if swept.old or swept.too_much or swept.foreign:
            _log.info(
                "removed files of applications",
                old=swept.old, too_much=swept.too_much, foreign=swept.foreign,
            )  # fmt: skip
