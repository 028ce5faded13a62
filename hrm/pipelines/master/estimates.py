"""What the master has learned of each user's steps: one table for all of the user's workers.

Run times, memory, profiles and co-runs are learned from all workers of a user, by kind of step,
size of input and model of GPU. Clusters place tasks by them; a new worker begins with them, and the
others are sent what has changed at most every ``SHARE_PERIOD_S``, so that no worker profiles what
another has measured. Users share none: the names of steps are theirs. The table is kept over
restarts; a file that is damaged is left out with a warning.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from hrm.core.vocabulary.model import NodeName
from hrm.durable import write_durably
from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun.store import dump_estimates, load_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipeline_stream
from hrm.wire import pipelines as pw

__all__ = ["EstimatesOfUsers"]

USERS_MAX = 256
"""Beyond these, what is known of whoever was used longest ago is in its file alone."""
SENT_BYTES_MAX = 1 << 20
SHARE_PERIOD_S = 10.0
_SAVE_PERIOD_S = 60.0
_MEMORY_MIB = 65_536.0
"""The scale of a node's memory in estimates."""
log = structlog.get_logger("master.pipelines")


class EstimatesOfUsers:
    """In ``directory``, one file each. Used on the loop alone, but for the writes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Stdm] = {}
        self._saved: dict[str, int] = {}
        """``Stdm.changes`` at the latest save."""
        self._dumps: dict[str, tuple[int, bytes]] = {}
        """Of each user, ``Stdm.changes`` and the content at the latest dump."""
        self._sent: dict[NodeName, bytes] = {}
        """To each worker, what it was sent last."""
        self._shared_s = self._saved_s = time.monotonic()
        self._writing: asyncio.Task[None] | None = None
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def of(self, user: str) -> Stdm:
        """The estimates of this user; they change with what is observed."""
        known = self._known.pop(user, None)
        if known is None:
            known = Stdm(memory_mib=_MEMORY_MIB, fits_pairs=False)
            path = self._path(user)
            if path.exists():
                try:
                    load_estimates(path, known)
                except InvalidRequest as error:
                    log.warning("estimates cannot be used", user=user, why=error.message)
            self._saved[user] = known.changes
        self._known[user] = known
        return known

    def profiles(self, user: str, name: str) -> list[pb.PipelineProfile]:
        """What was measured of the pipeline ``name``, or of that kind of step, by kind, size and
        model."""
        known = self.of(user)
        of_pipeline = f"{name}/"
        return [
            pw.from_profile(
                row,
                run_s={device: mean_s for device, (mean_s, _) in entry.runs.items()},
                memory_mib=known.measured_mib(row, "memory"),
                gpu_memory_mib=known.measured_mib(row, "gpu_memory"),
                gpu_use=known.gpu_use(row),
                gpu_use_runs=0 if entry.gpu_use is None else entry.gpu_use.runs,
            )
            for row, entry in sorted(known.entries.items(), key=lambda item: item[0])
            if row.kind == name or row.kind.startswith(of_pipeline)
        ]

    def to_send(self, user: str) -> bytes:
        """For a worker; empty: nothing is known, or it is too much."""
        known = self.of(user)
        changes, content = self._dumps.get(user, (-1, b""))
        if changes != known.changes:
            content = dump_estimates(known) if known.entries else b""
            content = content if len(content) <= SENT_BYTES_MAX else b""
            self._dumps[user] = known.changes, content
        return content

    def ticked(
        self,
        workers: Iterable[NodeName],
        content_for: Callable[[NodeName], bytes],
        send: Callable[[NodeName, pb.MasterPipelineMessage], None],
    ) -> None:
        """Time has passed: begin to write what is new, at most once a minute, and send ``workers``
        what each does not have, ``content_for`` it, at most every ``SHARE_PERIOD_S``."""
        self._save_if_due()
        if time.monotonic() - self._shared_s < SHARE_PERIOD_S:
            return
        self._shared_s = time.monotonic()
        before, self._sent = self._sent, {}
        for worker in workers:
            content = self._sent[worker] = content_for(worker)
            if content and content is not before.get(worker):
                send(worker, pipeline_stream.learned(content))

    def _save_if_due(self) -> None:
        writing = self._writing is not None and not self._writing.done()
        if not writing and time.monotonic() - self._saved_s >= _SAVE_PERIOD_S:
            self._saved_s = time.monotonic()
            self._writing = asyncio.create_task(self._save())

    async def _save(self) -> None:
        for user, known in list(self._known.items()):
            changes = known.changes
            if changes == self._saved.get(user):
                continue
            try:
                await asyncio.to_thread(write_durably, self._path(user), dump_estimates(known))
            except OSError as error:
                log.warning("estimates cannot be kept", user=user, why=str(error))
                continue
            self._saved[user] = changes
        while len(self._known) > USERS_MAX:
            user = next(iter(self._known))
            del self._known[user]
            self._saved.pop(user, None)
            self._dumps.pop(user, None)

    def _path(self, user: str) -> Path:
        return self._directory / f"{hashlib.sha256(user.encode()).hexdigest()[:32]}.npz"
