"""What a node has learned of its subtasks, kept across restarts of its agent.

The estimates are kept in ``pipeline-estimates.npz`` in the work directory, written at most once a
minute while they change, and when the agent ends. With a damaged file, or one of other metrics, the
node starts from scratch, and a warning says so.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from hrm.durable import write_durably
from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun.store import dump_estimates, load_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm

__all__ = ["ESTIMATES_FILE", "EstimatesFile"]

ESTIMATES_FILE = "pipeline-estimates.npz"
SAVE_PERIOD_S = 60.0
_log = structlog.get_logger("hrm.agent.pipelines")


class EstimatesFile:
    """The file of ``estimates``, which begin with its contents."""

    def __init__(self, work_dir: Path, estimates: Stdm) -> None:
        self._path = work_dir / ESTIMATES_FILE
        self._estimates = estimates
        self._saved = 0
        """``Stdm.changes`` at the latest save."""
        self._saved_s = time.monotonic()
        self._writing: asyncio.Task[None] | None = None
        if not self._path.exists():
            return
        try:
            load_estimates(self._path, estimates)
        except InvalidRequest as error:
            _log.warning("estimates of a former agent cannot be used", why=error.message)
        else:
            _log.info("estimates of a former agent are here", rows=len(estimates.entries))
        self._saved = estimates.changes

    def save_if_due(self) -> None:
        """Begin to write, if there is something new and the latest save is long enough ago."""
        writing = self._writing is not None and not self._writing.done()
        now_s = time.monotonic()
        if writing or now_s - self._saved_s < SAVE_PERIOD_S or self._is_saved:
            return
        self._saved_s = now_s
        self._writing = asyncio.create_task(self._save())

    async def close(self) -> None:
        """Write what is new."""
        if self._writing is not None:
            await self._writing
        if not self._is_saved:
            await self._save()

    @property
    def _is_saved(self) -> bool:
        return self._saved == self._estimates.changes

    async def _save(self) -> None:
        """Write a snapshot; the disk may be slow."""
        changes = self._estimates.changes
        content = dump_estimates(self._estimates)
        try:
            await asyncio.to_thread(write_durably, self._path, content)
        except OSError as error:
            _log.warning("estimates cannot be kept", file=str(self._path), why=str(error))
        else:
            self._saved = changes
