"""What the master has learned of each user's steps: one table for all of the user's workers.

Run times, memory, profiles and co-runs are learned from all workers of a user, by kind of step,
size of input and model of GPU. Clusters place tasks by them. A new worker begins with the whole
table; afterwards each is sent, at most every ``SHARE_PERIOD_S``, the rows and pairs that have
changed since it was last sent any, so that no worker profiles what another has measured. Users
share none: the names of steps are theirs. The table is kept over restarts; a file that is damaged
is left out with a warning.

What this may take is bounded. A tick visits a twentieth of the workers, and those that have the
same are sent one message, made once. A message has at most ``SENT_BYTES_MAX``: beyond that, the
rows that were observed last. A worker that has not taken its last message is sent no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog

from hrm.core.vocabulary.model import NodeName
from hrm.durable import write_durably
from hrm.errors import InvalidRequest
from hrm.pipelines.master.streams import WorkerStream
from hrm.pipelines.policies.corun.store import dump_estimates, dump_within, load_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipeline_stream
from hrm.wire import pipelines as pw

__all__ = ["EstimatesOfUsers"]

USERS_MAX = 256
"""Beyond these, what is known of whoever was used longest ago is in its file alone."""
SENT_BYTES_MAX = 1 << 20
SHARE_PERIOD_S = 10.0
_TICKS_TO_SHARE = 20
_VISITED_MIN = 16
"""Workers that a tick may visit in any case."""
_WHOLE_KEPT_S = 1.0
"""A whole table is made once for all workers that register within this time."""
_SAVE_PERIOD_S = 60.0
_MEMORY_MIB = 65_536.0
"""The scale of a node's memory in estimates."""
log = structlog.get_logger("master.pipelines")


@dataclass(frozen=True, slots=True)
class _Has:
    """What a worker has: ``known`` as it was when its ``changes`` was ``mark``."""

    known: Stdm
    mark: int
    visited_s: float


@dataclass(frozen=True, slots=True)
class _Whole:
    """The content for workers that register, as of ``mark``, made at ``at_s``."""

    mark: int
    at_s: float
    content: bytes


class EstimatesOfUsers:
    """In ``directory``, one file each. Used on the loop alone, but for the writes.

    ``user_of``: the user of a worker; None: it has ended. ``clock_s``: any that does not go back.
    """

    def __init__(
        self,
        directory: Path,
        user_of: Callable[[NodeName], str | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._directory = directory
        self._user_of = user_of
        self._known: dict[str, Stdm] = {}
        self._saved: dict[str, int] = {}
        """``Stdm.changes`` at the latest save."""
        self._whole: dict[str, _Whole] = {}
        self._has: dict[NodeName, _Has] = {}
        """Of each worker that has registered; the one that was visited longest ago comes first."""
        self._shortened: set[str] = set()
        """Users whose latest message was too large; each is warned of once."""
        self._saved_s = self._clock_s()
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
            self._whole.pop(user, None)
        self._known[user] = known
        return known

    def whole(self, worker: NodeName) -> bytes:
        """What ``worker``, which registers, begins with; empty: nothing is known."""
        user = self._user_of(worker)
        if user is None:
            return b""
        known, now, whole = self.of(user), self._clock_s(), self._whole.get(user)
        if whole is None or (whole.mark != known.changes and now - whole.at_s >= _WHOLE_KEPT_S):
            content = self._content(user, known, -1)
            whole = self._whole[user] = _Whole(known.changes, now, content)
        self._has.pop(worker, None)
        self._has[worker] = _Has(known, whole.mark, now)
        return whole.content

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
                quantiles_s={
                    device: (spread.quantile_s(0.9), spread.quantile_s(0.99))
                    for device, spread in entry.spreads.items()
                },
                peak=known.gpu_memory_peak(row),
                out_of_gpu_memory=0 if entry.peak is None else entry.peak.out_of_memory,
            )
            for row, entry in sorted(known.entries.items(), key=lambda item: item[0])
            if row.kind == name or row.kind.startswith(of_pipeline)
        ]

    def ticked(self, streams: Mapping[NodeName, WorkerStream]) -> None:
        """Time has passed: begin to write what is new, at most once a minute, and send the workers
        of ``streams`` whose turn it is what they do not have."""
        self._save_if_due()
        for worker in [worker for worker in self._has if worker not in streams]:
            del self._has[worker]
        now, sent = self._clock_s(), dict[tuple[str, int], pb.MasterPipelineMessage | None]()
        visits = max(_VISITED_MIN, math.ceil(len(self._has) / _TICKS_TO_SHARE))
        for worker, has in list(islice(self._has.items(), visits)):
            if now - has.visited_s < SHARE_PERIOD_S:
                break
            user = self._user_of(worker)
            known = has.known if user is None else self.of(user)
            mark = has.mark if known is has.known else -1
            if user is not None and mark != known.changes:
                if (user, mark) not in sent:
                    content = self._content(user, known, mark)
                    sent[user, mark] = pipeline_stream.learned(content) if content else None
                message = sent[user, mark]
                if message is None or streams[worker].offer(message):
                    mark = known.changes
            del self._has[worker]
            self._has[worker] = _Has(known, mark, now)

    def _content(self, user: str, known: Stdm, since: int) -> bytes:
        content, is_all = dump_within(known, SENT_BYTES_MAX, since)
        if not is_all and user not in self._shortened:
            self._shortened.add(user)
            log.warning(
                "estimates are too many to send; workers get those of the latest runs",
                user=user,
                rows=len(known.entries),
                bytes_max=SENT_BYTES_MAX,
            )
        return content

    def _save_if_due(self) -> None:
        writing = self._writing is not None and not self._writing.done()
        if not writing and self._clock_s() - self._saved_s >= _SAVE_PERIOD_S:
            self._saved_s = self._clock_s()
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
            self._whole.pop(user, None)
            self._shortened.discard(user)

    def _path(self, user: str) -> Path:
        return self._directory / f"{hashlib.sha256(user.encode()).hexdigest()[:32]}.npz"
