"""The files of pipeline tasks on a node, and their owners.

Below ``<work_dir>/pipelines``, all of which is recreated when an agent starts::

    tasks/<task>.<attempt>/    the input, and what each subtask returned
    code/[<uid>-]<digest>/     modules that were sent with tasks
    scratch[/<uid>]/           working directories of workers
    worker-[<user>-]cpu-0.log  what functions print, one file for each core or GPU (and user)
    gone/                      what is being removed

Where workers run as their submitter (``run_as``), each leaf belongs to that user and is closed to
all others; what lies above belongs to the agent's user. So no user can put a link in the place of a
directory, and the agent writes into one only until it is handed over. What it reads later, a
result, it opens as a regular file of that user, without following links.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import stat
from pathlib import Path
from typing import IO

from hrm.agent.containers.container_dir import hand_over, remove_tree
from hrm.agent.run_as import Account
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

    ``account``: the owner, None: the agent's user. ``key``: with which the last subtask's worker
    proves the result (``proof``, in the format ``kind``).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spec: TaskSpec | None = None
        self.account: Account | None = None
        self.raw = False
        self.code = directory
        self.key = b""
        self.kind = ResultFormat.PICKLE
        self.proof = b""
        self.filled = False
        """All files are present, or were refused: from now on the directory may be its user's."""
        self.problem = ""
        """Why its input could not be stored."""
        self.refusal = ""
        """Why its user's tasks may not run here."""

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
        """Open the result, if it is a file that the task's user made here.

        Raises:
            OSError: it is not.
        """
        uid = os.geteuid() if self.account is None else self.account.uid
        here = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.fdopen(os.open(self.output(self.last).name, flags, dir_fd=here), "rb")
        finally:
            os.close(here)
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != uid:
            file.close()
            raise OSError("it is no file of the task's user")
        return file


class TaskDirs:
    """The directories of one agent. ``shared``: several users' workers run here."""

    def __init__(self, root: Path, *, shared: bool) -> None:
        self.root = root
        self._mode = 0o711 if shared else 0o700
        self._code: dict[Path, None] = {}
        """Directories of modules, the most recently used last."""
        self._numbers = itertools.count()
        self._removing: set[asyncio.Task[bool]] = set()

    def prepare(self) -> None:
        """Remove what an earlier agent left, and create empty directories."""
        remove_tree(self.root)
        for path in (self.root, *(self.root / name for name in ("tasks", "code", "scratch"))):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(self._mode)
        (self.root / "gone").mkdir(mode=0o700, exist_ok=True)

    def make(self, task_id: TaskId, attempt: int) -> TaskFiles:
        """A new placement, whose input is being received; closed to all but the agent."""
        directory = self.root / "tasks" / f"{task_id}.{attempt}"
        directory.mkdir(mode=0o700, exist_ok=True)
        return TaskFiles(directory)

    def fill(
        self, task: TaskFiles, order: pb.PlacePipelineTask, account: Account | None, used: set[Path]
    ) -> None:
        """All files are present: hand them over. ``used``: directories of code of other placements.

        Raises:
            OSError: the disk refuses it.
        """
        if not order.payload_bytes:
            task.input.write_bytes(b"")
        size = task.input.stat().st_size
        if size != order.payload_bytes:
            task.problem = f"{size} of the {order.payload_bytes} bytes of its input arrived"
        task.raw = order.raw
        task.account = account
        task.key = pw.check_key(order.result_key)
        task.code = self.code_of(pw.to_files(order.files), account, used)
        hand_over(task.directory, account)

    def code_of(
        self, files: dict[str, bytes], account: Account | None = None, used: set[Path] | None = None
    ) -> Path:
        """The directory of these modules, named after their content; created if missing.

        Users share none, even of the same content: what one may change must not run as another.
        """
        digest = hashlib.sha256()
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        owner = "" if account is None else f"{account.uid}-"
        directory = self.root / "code" / f"{owner}{digest.hexdigest()[:32]}"
        if not directory.is_dir():
            self._drop_old_code(used or set())
            part = self.root / "gone" / f"part-{next(self._numbers)}"
            part.mkdir(mode=0o700)
            for path, content in files.items():
                target = part / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            hand_over(part, account)
            part.rename(directory)
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
        """Move a directory away immediately, and remove it later: its user may have filled it."""
        gone = self.root / "gone" / str(next(self._numbers))
        try:
            directory.rename(gone)
        except OSError:
            return
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(remove_tree, gone))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        """Finish the removals that have begun, within a limit."""
        if self._removing:
            await asyncio.wait(self._removing, timeout=_REMOVE_LIMIT_S)
