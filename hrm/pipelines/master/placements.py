"""The master's log of placements on disk, for ``hrm policy train ldwp-set --from-shadow``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from hrm.durable import write_durably
from hrm.pipelines.core.model import ClusterPolicy
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy

__all__ = ["LOG_FILE", "KeptPlacements"]

log = structlog.get_logger("master.pipelines")

LOG_FILE = "policies/{policy}.placements.npz"
"""In the state directory."""
_SAVE_PERIOD_S = 60.0


class KeptPlacements:
    """Writes the log of a guarded policy, whole, at most once a minute while it changes."""

    def __init__(self, policy: ClusterPolicy, state_dir: Path) -> None:
        self._log = policy.log if isinstance(policy, GuardedClusterPolicy) else None
        self._path = state_dir / LOG_FILE.format(policy=policy.name)
        self._saved = 0
        self._saved_s = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    def save_if_due(self) -> None:
        """Begin to write what is new."""
        if self._log is None or self._log.changes == self._saved:
            return
        writing = self._writing is not None and not self._writing.done()
        if not writing and time.monotonic() - self._saved_s >= _SAVE_PERIOD_S:
            self._saved_s = time.monotonic()
            self._writing = asyncio.create_task(self._save(self._log.dump(), self._log.changes))

    async def _save(self, content: bytes, changes: int) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(write_durably, self._path, content)
        except OSError as error:
            log.warning("placements cannot be kept", why=str(error))
            return
        self._saved = changes
