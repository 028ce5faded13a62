"""The files of tasks at a worker, below ``tasks`` of its container's directory::

<task>.<attempt>/    the input, and what each step returned
code/<digest>/       modules that were sent with tasks
gone/                what is being removed
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shutil
import stat
from pathlib import Path
from typing import IO

from hrm.errors import InvalidRequest
from hrm.pipelines.client.results import not_written
from hrm.pipelines.core.model import ResultFormat, TaskId, TaskSpec
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw

__all__ = ["Attempt", "TaskDirs", "TaskFiles"]

CODE_KEPT = 100
"""Versions of code that stay although no task here uses them."""
_REMOVE_LIMIT_S = 60.0

Attempt = tuple[TaskId, int]


class TaskFiles:
    """The files of a placement: ``directory`` has the input and the outputs, ``code`` its modules.

    ``key``: with which the last step's process proves the result (``proof``, in the format
    ``kind``). ``in_dir_bytes``: its size, where it stays in the directory that the task names.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spec: TaskSpec | None = None
        self.raw = False
        self.code = directory
        self.key = b""
        self.kind = ResultFormat.PICKLE
        self.proof = b""
        self.in_dir_bytes: int | None = None
        self.filled = False
        """All files are present, or were refused."""
        self.problem = ""
        """Why it cannot begin here."""
        self.refused = False
        """Is that so because this machine cannot hold its files?"""

    def refuse(self, why: str) -> None:
        """It cannot begin on this machine; the first reason counts."""
        self.problem, self.refused = self.problem if self.refused else why, True

    @property
    def input(self) -> Path:
        return self.directory / "input"

    def output(self, subtask: str) -> Path:
        return self.directory / f"{subtask}.out"

    @property
    def last(self) -> str:
        """The subtask whose result is the task's."""
        assert self.spec is not None
        return self.spec.pipeline.subtasks[-1].name

    def open_result(self) -> IO[bytes]:
        """Open the result.

        Raises:
            OSError: it is no regular file.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(self.output(self.last), flags), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError("it is no file")
        return file


class TaskDirs:
    """The directories of one worker."""

    def __init__(self, root: Path, node: str) -> None:
        """``node``: the machine, for messages."""
        self.root = root
        self._node = node
        self._code: dict[Path, None] = {}
        """Directories of modules, the most recently used last."""
        self._numbers = itertools.count()
        self._removing: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """Create them."""
        for path in (self.root, self.root / "code", self.root / "gone"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, task_id: TaskId, attempt: int) -> TaskFiles:
        """A new placement, whose input is being received; refused if the disk refuses it."""
        task = TaskFiles(self.root / f"{task_id}.{attempt}")
        try:
            task.directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            task.refuse(self._why(task.directory, error))
        return task

    def add_input(self, task: TaskFiles, offset: int, data: bytes) -> None:
        """A piece of its input, in order; the task is refused if the disk refuses it."""
        if task.refused:
            return
        try:
            with task.input.open("ab" if offset else "wb") as file:
                file.write(data)
        except OSError as error:
            task.refuse(self._why(task.input, error))

    def fill(self, task: TaskFiles, order: pb.PlacePipelineTask, used: set[Path]) -> None:
        """All files are present. ``used``: directories of code of other placements.

        The task is refused if the disk refuses it, or its files cannot be such.
        """
        task.filled = True
        if task.refused:
            return
        try:
            self._fill(task, order, used)
        except OSError as error:
            task.refuse(self._why(task.directory, error))
        except InvalidRequest as error:
            task.refuse(error.message)

    def _why(self, path: Path, error: OSError) -> str:
        return f"its files cannot be written: {not_written(path, error, self._node)}"

    def _fill(self, task: TaskFiles, order: pb.PlacePipelineTask, used: set[Path]) -> None:
        if not order.payload_bytes:
            task.input.write_bytes(b"")
        size = task.input.stat().st_size
        if size != order.payload_bytes:
            task.problem = f"{size} of the {order.payload_bytes} bytes of its input arrived"
        task.raw = order.raw
        task.key = pw.check_key(order.result_key)
        task.code = self.code_of(pw.to_files(order.files), used)

    def code_of(self, files: dict[str, bytes], used: set[Path] | None = None) -> Path:
        """The directory of these modules, named after their content; created if missing.

        Raises:
            OSError: the disk refuses it; nothing of it stays.
        """
        digest = hashlib.sha256()
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        directory = self.root / "code" / digest.hexdigest()[:32]
        if not directory.is_dir():
            self._drop_old_code(used or set())
            part = self.root / "gone" / f"part-{next(self._numbers)}"
            try:
                part.mkdir(mode=0o700)
                for path, content in files.items():
                    target = part / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
                part.rename(directory)
            except OSError:
                shutil.rmtree(part, ignore_errors=True)
                raise
        self._code.pop(directory, None)
        self._code[directory] = None  # now the most recent
        return directory

    def _drop_old_code(self, used: set[Path]) -> None:
        for directory in [one for one in self._code if one not in used]:
            if len(self._code) < CODE_KEPT:
                return
            del self._code[directory]
            self.remove(directory)

    def remove(self, directory: Path) -> None:
        """Move a directory away immediately, and remove it later: it may be large."""
        gone = self.root / "gone" / str(next(self._numbers))
        try:
            directory.rename(gone)
        except OSError:
            return
        task = asyncio.get_running_loop().create_task(
            asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True)
        )
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        """Finish the removals that have begun, within a limit."""
        if self._removing:
            await asyncio.wait(self._removing, timeout=_REMOVE_LIMIT_S)
