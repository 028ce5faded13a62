"""Results as their clients get them: the value itself, or the file in which it stays.

A large result need not pass the master. Where the client names a directory that nodes share with
it (``Client(result_dir=...)``), the last step's process writes there, and what comes back is a
``ResultFile``, read when its value is wanted, on any machine that has the directory: also by a
step of the next pipeline, whose input it may be. The proof is checked before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hrm.errors import HrmError, NotFound
from hrm.pipelines.client.results import check_proof, decode, result_name
from hrm.pipelines.client.tickets import Ticket
from hrm.pipelines.core.model import ResultFormat
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pipeline_wire

__all__ = ["ResultFile", "result_file", "value_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """A result that stays where its task put it. ``size``: in bytes; ``node``: where it was made.

    The file is its reader's: nothing of HRM removes it. A placement whose worker died before its
    end was known may leave one, too; ``path`` is that of the placement that counts."""

    path: Path
    size: int
    node: str
    kind: ResultFormat
    wanted: ResultFormat = field(repr=False)
    task_id: str = field(repr=False)
    placement: int = field(repr=False)
    proof: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def load(self) -> Any:
        """The value.

        Raises:
            NotFound: the file is not here.
            PermissionDenied: a worker with the task's key did not write this, or it is a pickle and
                data was requested.
            HrmError: it cannot be read.
        """
        try:
            data = self.path.read_bytes() if self.path.is_file() else None
        except OSError as error:
            raise HrmError(f"the result {self.path} cannot be read: {error.strerror}") from error
        if data is None:
            raise NotFound(
                f"there is no file {self.path}: it has been removed, or {self.path.parent} "
                f"here is not the directory that node {self.node} wrote to; mount it here, or read "
                f"the result where it is mounted"
            )
        check_proof(
            data, self.proof, key=self.key, task_id=self.task_id, placement=self.placement,
            kind=self.kind, node=self.node,
        )  # fmt: skip
        return decode(data, self.kind, wanted=self.wanted, task_id=self.task_id)


def result_file(ticket: Ticket, end: pb.PipelineTaskEnd) -> ResultFile:
    """Where the result of a task stays.

    Raises:
        HrmError: its client named no directory.
    """
    if not ticket.result_dir:
        raise HrmError(
            f"the result of task {ticket.task_id} is said to be in a directory, and its client "
            f"named none: the ticket is damaged, or {end.node} made that up"
        )
    return ResultFile(
        path=Path(ticket.result_dir, result_name(ticket.task_id, end.placement)),
        size=end.result_bytes,
        node=end.node,
        kind=pipeline_wire.to_result_format(end.result_format),
        wanted=ResultFormat(ticket.result_format),
        task_id=ticket.task_id,
        placement=end.placement,
        proof=end.proof,
        key=bytes.fromhex(ticket.result_key),
    )


def value_of(ticket: Ticket, end: pb.PipelineTaskEnd, data: bytes) -> Any:
    """The value of a result that the master has sent, if its worker has proved that it is one.

    Raises:
        PermissionDenied: there is no valid proof, or it is not of the requested format.
    """
    kind = pipeline_wire.to_result_format(end.result_format)
    check_proof(
        data,
        end.proof,
        key=bytes.fromhex(ticket.result_key),
        task_id=ticket.task_id,
        placement=end.placement,
        kind=kind,
        node=end.node,
    )
    wanted = ResultFormat(ticket.result_format)
    return decode(data, kind, wanted=wanted, task_id=ticket.task_id)
