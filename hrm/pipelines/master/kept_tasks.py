"""Tasks of pipelines in the master's store, so that its death loses none.

A task's record is written before its client gets to know its id, and again with its end before
anybody gets to know that. Inputs and results are files (``result_files``), and so are the modules
that were sent along, one file for all tasks that have the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import structlog
from google.protobuf.message import DecodeError

from hrm.core.vocabulary.model import ApplicationId
from hrm.durable import write_durably
from hrm.errors import HrmError, LimitReached
from hrm.master.store import Store
from hrm.pipelines.core.model import TaskId, TaskSpec
from hrm.pipelines.core.task_record import TaskRecord, keep_timing
from hrm.pipelines.core.workload import WorkerSize, WorkloadKey
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import codec, pipeline_stream
from hrm.wire import pipelines as pw
from hrm.wire.requirements import to_labels

__all__ = ["Code", "KeptTasks"]

log = structlog.get_logger("master.pipelines")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Code:
    """What is sent with a task besides its input. Tasks of the same code share one; ``digest``
    names its file."""

    raw: bool
    files: dict[str, bytes]
    digest: str


class KeptTasks:
    """The records of one master's store, and the files of modules in ``directory``.

    ``live``: of each task that has not ended.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self.live: dict[TaskId, pb.StoredPipelineTask] = {}
        self._shared: WeakValueDictionary[str, Code] = WeakValueDictionary()
        """Those that are on the disk."""
        self._writing: dict[str, asyncio.Task[Code]] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    # --- modules --------------------------------------------------------------------------------

    async def code_of(self, raw: bool, files: dict[str, bytes]) -> Code:
        """The shared one of this content, on the disk.

        Raises:
            LimitReached: the disk is full.
        """
        digest = hashlib.sha256(b"raw" if raw else b"")
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        name = digest.hexdigest()
        known = self._shared.get(name)
        if known is not None:
            return known
        writing = self._writing.get(name)
        if writing is None:
            writing = asyncio.create_task(self._write_code(Code(raw, files, name)))
            self._writing[name] = writing
            writing.add_done_callback(lambda _: self._writing.pop(name, None))
        try:
            return await asyncio.shield(writing)
        except OSError as error:
            raise LimitReached(
                f"modules cannot be written to {self._directory}: {error.strerror}; free some "
                f"space on the master"
            ) from error

    async def _write_code(self, code: Code) -> Code:
        message = pipeline_stream.kept_code(code.files.items(), raw=code.raw)
        path = self._directory / code.digest
        await asyncio.to_thread(write_durably, path, message.SerializeToString())
        self._shared[code.digest] = code
        return code

    def _read_code(self, digest: str) -> Code | None:
        known = self._shared.get(digest)
        if known is not None:
            return known
        try:
            message = pb.PipelineCode.FromString((self._directory / digest).read_bytes())
            code = Code(message.raw, pw.to_files(message.files), digest)
        except (OSError, DecodeError, HrmError) as error:
            log.warning("modules of a task cannot be read", code=digest, why=str(error))
            return None
        self._shared[digest] = code
        return code

    def drop_unused(self) -> None:
        """Remove the files of modules that no live task has. Blocks for as long as that takes."""
        if self._writing:
            return  # not what is being written; next time
        used = {task.code for task in self.live.values()} | set(self._shared.keys())
        for path in self._directory.iterdir():
            if path.name not in used:
                path.unlink(missing_ok=True)

    # --- records --------------------------------------------------------------------------------

    async def keep(
        self,
        task: TaskSpec,
        application_id: ApplicationId,
        key: WorkloadKey,
        code: Code,
        *,
        result_key: bytes,
        owner: str,
    ) -> None:
        """Returns when the record is on the disk."""
        request = {
            "raw": code.raw,
            "result_key": result_key,
            "queue": key.queue,
            "node_labels": key.labels,
        }
        stored = self.live[task.task_id] = pipeline_stream.kept_task(
            task,
            request,
            code=code.digest,
            application_id=application_id,
            vcores=key.size.vcores,
            memory_mib=key.size.memory_mib,
            gpu_memory_mib=key.size.gpu_memory_mib,
            scope=key.scope,
            owner=owner,
        )
        await asyncio.shield(self._store.put_pipeline_task(stored))

    def drop(self, task_id: TaskId) -> None:
        """It is not accepted."""
        if self.live.pop(task_id, None) is not None:
            self._store.forget_pipeline_task(task_id)

    def has(self, task_id: TaskId) -> bool:
        """Whether it is kept, and has not ended."""
        return task_id in self.live

    def ended(self, task_id: TaskId, end: pb.PipelineTaskEnd) -> asyncio.Future[None] | None:
        """It has ended so; the future is done when that is on the disk. None: it was never kept."""
        stored = self.live.pop(task_id, None)
        if stored is None:
            return None
        stored.end.CopyFrom(end)
        stored.request.ClearField("result_key")
        return self._store.put_pipeline_task(stored)

    def forget(self, task_ids: Iterable[TaskId]) -> None:
        for task_id in task_ids:
            self._store.forget_pipeline_task(task_id)

    def recovered(self) -> Iterator[tuple[pb.StoredPipelineTask, TaskSpec, TaskRecord | None]]:
        """All tasks that an earlier master has kept; those that have ended with their record.

        Raises:
            HrmError: a record is damaged.
        """
        tasks = ended = dropped = 0
        for stored in self._store.pipeline_tasks():
            task_id = pw.to_task_id(stored.request.task_id)
            spec = pw.to_task(
                stored.request, task_id, size_mb=stored.request.size_mb,
                submitted_at_s=stored.submitted_at_s,
            )  # fmt: skip
            record = None
            if stored.HasField("end"):
                record = TaskRecord(
                    spec,
                    attempt=stored.end.attempt,
                    outcome=pw.to_outcome(stored.end.outcome),
                    message=stored.end.message,
                )
                for one in stored.end.timings:
                    keep_timing(record, pw.to_timing(one, task_id))
                lost = len(stored.end.timings) - len(record.timings)
                if lost:
                    kept = [pw.from_timing(x, stored.end.node) for x in record.timings]
                    del stored.end.timings[:]
                    stored.end.timings.extend(kept)
                ended, dropped = ended + 1, dropped + lost
            tasks += 1
            yield stored, spec, record
        if tasks:
            log.info(
                "pipeline tasks are taken over",
                tasks=tasks, ended=ended, runs_dropped=dropped,
            )  # fmt: skip

    def take_up(self, stored: pb.StoredPipelineTask) -> Code | None:
        """It is live again; returns its modules, None if they are lost."""
        self.live[TaskId(stored.request.task_id)] = stored
        return self._read_code(stored.code)

    @staticmethod
    def key_of(stored: pb.StoredPipelineTask, spec: TaskSpec) -> WorkloadKey:
        """Of the workload that it belongs to."""
        size = WorkerSize(stored.vcores, stored.memory_mib, stored.gpu_memory_mib)
        queue = codec.to_text(stored.request.queue, "queue")
        labels = tuple(sorted(to_labels(stored.request.node_labels)))
        return WorkloadKey(
            spec.user, queue, spec.workload_class, spec.pipeline.name, stored.scope, size, labels
        )
