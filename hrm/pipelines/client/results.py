"""How a task's result travels: as data where that is lossless, and never without a proof.

Reading a pickle executes code of its writer's choice, and a holder of the cluster's token may run a
node or the master. So two mechanisms protect the client:

**The proof.** A client makes a random key for each task. It is sent with the order, through the
master, only to the worker of the node that runs the task. The worker returns an HMAC-SHA256 over
the task's id, its placement, the format and the bytes; the client does not read a result before it
has verified that.

**The format.** JSON and Arrow are data: reading them executes nothing. With ``auto`` a worker uses
JSON for values that consist only of None, bool, int, float, str, list and dict, Arrow for tables
and batches of PyArrow, and a pickle for the rest, so that what comes back equals what was returned.
A client that requests ``json`` or ``arrow`` gets that or an error, and never reads a pickle.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import io
import json
import math
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from hrm.errors import HrmError, InvalidConfig, PermissionDenied
from hrm.pipelines.core.model import ResultFormat

__all__ = [
    "NotPlain",
    "Seal",
    "check_proof",
    "check_result_dir",
    "decode",
    "encode",
    "is_plain",
    "need_arrow",
    "not_in_result_dir",
    "not_written",
    "result_name",
]

PICKLE_PROTOCOL = 5
ARROW_MAJOR_MIN = 15
"""Older ones run code of a file's schema when they read it (CVE-2023-47248)."""
PLAIN_DEPTH_MAX = 64
"""How deep lists and dicts may be nested and still be JSON."""
PLAIN_ITEMS_MAX = 100_000
"""With ``auto``, a value with more items is pickled, for speed."""
JSON_ITEMS_MAX = 10_000_000
INTEGER_BITS_MAX = 4096
"""Python refuses to write decimal numbers of more than 4,300 digits."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DOMAIN = b"hrm pipeline result, version 1"
_JSON, _ARROW, _PICKLE = ResultFormat.JSON, ResultFormat.ARROW, ResultFormat.PICKLE


class NotPlain(TypeError):
    """What was returned cannot travel in the requested format; the message gives the reason."""


class Seal:
    """A file that passes on what is written to it, and computes the proof of it."""

    def __init__(self, file: IO[bytes], key: bytes, task_id: str, placement: int) -> None:
        self._file = file
        self._key = key
        self._about = (task_id, placement)
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        # Pickling passes large arrays as they are in memory, in any order and shape.
        self._digest.update(data.raw() if isinstance(data, pickle.PickleBuffer) else data)
        return self._file.write(data)

    def proof(self, kind: ResultFormat) -> bytes:
        """The proof of all that was written; empty without a key."""
        return _proof(self._key, *self._about, kind, self._digest) if self._key else b""


def result_name(task_id: str, placement: int) -> str:
    """The file of a result that stays in a directory."""
    return f"{task_id}.{placement}"


def _proof(
    key: bytes, task_id: str, placement: int, kind: ResultFormat, digest: hashlib._Hash
) -> bytes:
    parts = (_DOMAIN, task_id.encode(), str(placement).encode(), kind.value.encode())
    about = b"".join(len(one).to_bytes(8, "big") + one for one in parts)
    return hmac.digest(key, about + digest.digest(), "sha256")


def check_proof(
    data: bytes,
    proof: bytes,
    *,
    key: bytes,
    task_id: str,
    placement: int,
    kind: ResultFormat,
    node: str,
) -> None:
    """Check that a worker with the task's key returned this.

    Raises:
        PermissionDenied: it did not; nothing of ``data`` may be read.
    """
    if not proof:
        raise PermissionDenied(
            f"the result of task {task_id} from node {node} has no proof that a worker with the "
            f"task's key made it, so it was not read; is the agent of {node} or the master older "
            f"than this client? Update it, or take the node away: hrm node drain {node}"
        )
    wanted = _proof(key, task_id, placement, kind, hashlib.sha256(data))
    if not hmac.compare_digest(wanted, proof):
        raise PermissionDenied(
            f"the result of task {task_id} from node {node} is not what a worker with the task's "
            f"key returned, so it was not read: {node}, or something between here and there, "
            f"changed or made it up; take the node away (hrm node drain {node}), look at whose it "
            f"is, and submit the task again"
        )


# --- writing, in the worker -------------------------------------------------------------------


def check_result_dir(directory: str, name: str) -> None:
    """Check that a result of this name can be written to a directory that nodes share.

    Raises:
        OSError: it cannot; the message has the directory, the reason and what to do.
    """
    part = Path(directory, f"{name}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise not_in_result_dir(directory, error) from error
    with contextlib.suppress(OSError):
        part.unlink()


def not_in_result_dir(directory: str, error: OSError) -> OSError:
    """The error of a result that cannot be written to the directory that its task names."""
    if error.errno in _FULL:
        return OSError(f"result_dir {directory}: {error.strerror}; free some space there")
    return OSError(
        f"result_dir {directory}: {error.strerror or error}; share the directory with all nodes, "
        f"let the task's user write there, or leave result_dir out"
    )


def not_written(path: Path, error: OSError, node: str) -> OSError:
    """The error of a file that cannot be written below a worker's directory."""
    what = f"{error.filename or path}: {error.strerror or error}"
    return OSError(f"{what}; free some space on {node}" if error.errno in _FULL else what)


def encode(value: Any, wanted: ResultFormat, to: Seal | IO[bytes]) -> ResultFormat:
    """Write ``value`` in the ``wanted`` format; returns the one that was used.

    Raises:
        NotPlain: the format cannot hold the value.
        Exception: what pickling the value raises.
    """
    if wanted is ResultFormat.AUTO:
        wanted = _best(value)
    if wanted is _JSON:
        why = _why_not_plain(value)
        if why:
            raise NotPlain(f"result_format is json, and {why}")
        to.write(json.dumps(value, allow_nan=False).encode())
    elif wanted is _ARROW:
        _write_arrow(value, to)
    else:
        pickle.dump(value, to, protocol=PICKLE_PROTOCOL)
    return wanted


def _best(value: Any) -> ResultFormat:
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and type(value) in (arrow.Table, arrow.RecordBatch):
        return _ARROW
    return _PICKLE if _why_not_plain(value, PLAIN_ITEMS_MAX) else _JSON


def is_plain(value: Any) -> bool:
    """Would JSON return an equal value of equal types?"""
    return not _why_not_plain(value)


def _why_not_plain(value: Any, items_max: int = JSON_ITEMS_MAX) -> str:
    """Why JSON would not return an equal value of equal types; "" if it would."""
    waiting: list[tuple[Any, str, int]] = [(value, "what it returned", 0)]
    seen = 0
    while waiting:
        one, where, depth = waiting.pop()
        seen += 1
        kind = type(one)
        if depth > PLAIN_DEPTH_MAX or seen > items_max:
            return f"{where} is too large for it"
        if kind is list:
            waiting += [(each, f"{where}[{n}]", depth + 1) for n, each in enumerate(one)]
        elif kind is dict:
            for key, each in one.items():
                if type(key) is not str:
                    return f"a key of {where} is {_named(key)}, not str"
                waiting.append((each, f"{where}[{key[:40]!r}]", depth + 1))
        elif kind is float and not math.isfinite(one):
            return f"{where} is {one}, which JSON does not have"
        elif kind is int and one.bit_length() > INTEGER_BITS_MAX:
            return f"{where} is a number of {one.bit_length()} bits"
        elif one is not None and kind not in (bool, int, float, str):
            return (
                f"{where} is {_named(one)}: return None, bool, int, float, str, list and dict, or "
                f"choose result_format arrow or pickle"
            )
    return ""


def _named(value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _write_arrow(value: Any, to: Seal | IO[bytes]) -> None:
    pa = need_arrow("on the node")
    name, table = _as_table(pa, value)
    to.write(name.encode() + b"\n")
    buffer = pa.BufferOutputStream()
    if name == "tensor":
        pa.ipc.write_tensor(table, buffer)
    else:
        with pa.ipc.new_stream(buffer, table.schema) as stream:
            stream.write(table)
    to.write(memoryview(buffer.getvalue()))


def _as_table(pa: ModuleType, value: Any) -> tuple[str, Any]:
    """The kind of ``value``, and a table, a batch or a tensor that holds it."""
    try:
        if isinstance(value, pa.Table):
            return "table", value
        if isinstance(value, pa.RecordBatch):
            return "batch", value
        if isinstance(value, pa.ChunkedArray):
            return "chunked", pa.table({"": value})
        if isinstance(value, pa.Array):
            return "array", pa.record_batch([value], names=[""])
        pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
        if pandas is not None and isinstance(value, pandas.DataFrame):
            return "frame", pa.Table.from_pandas(value)
        if numpy is not None and type(value) is numpy.ndarray:
            return "tensor", pa.Tensor.from_numpy(numpy.ascontiguousarray(value))
    except (pa.ArrowException, TypeError) as error:
        raise NotPlain(
            f"result_format is arrow, which cannot hold this {_named(value)}: {error}"
        ) from error
    raise NotPlain(
        f"result_format is arrow, and it returned {_named(value)}: return a pyarrow Table, "
        f"RecordBatch or Array, a pandas DataFrame or a numpy array, or choose another format"
    )


# --- reading, in the client -------------------------------------------------------------------


def need_arrow(where: str) -> ModuleType:
    """Import PyArrow.

    Raises:
        InvalidConfig: it is missing ``where`` this runs, or too old to read with safely.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise InvalidConfig(
            f"result_format arrow needs pyarrow {where}: pip install 'pyarrow>={ARROW_MAJOR_MIN}', "
            f"or choose result_format json"
        ) from error
    if int(pyarrow.__version__.partition(".")[0]) < ARROW_MAJOR_MIN:
        raise InvalidConfig(
            f"pyarrow {pyarrow.__version__} {where} may run code that comes with data: pip install "
            f"'pyarrow>={ARROW_MAJOR_MIN}', or choose result_format json"
        )
    module: ModuleType = pyarrow
    return module


def decode(data: bytes, kind: ResultFormat, *, wanted: ResultFormat, task_id: str) -> Any:
    """The value of a result whose proof has been verified.

    Raises:
        PermissionDenied: it is a pickle, and the client requested data.
        InvalidConfig: it requires PyArrow, which is missing.
        HrmError: it is not a value of this format.
    """
    if kind is not wanted and wanted is not ResultFormat.AUTO:
        raise PermissionDenied(
            f"the result of task {task_id} came as {kind.value}, and {wanted.value} was requested, "
            f"so it was not read; submit it with result_format {kind.value} or auto if you trust "
            f"the nodes"
        )
    try:
        if kind is _JSON:
            return json.loads(data)
        if kind is _ARROW:
            return _read_arrow(need_arrow("here"), data)
    except (ValueError, RecursionError, UnicodeError, KeyError, OSError, ImportError) as error:
        raise HrmError(
            f"the result of task {task_id} is no {kind.value}: {type(error).__name__}: {error}"
        ) from error
    if kind is not _PICKLE:
        raise HrmError(f"the result of task {task_id} does not state its format")
    return pickle.load(io.BytesIO(data))  # nosec B301 # noqa: S301 - proved by its key


def _read_arrow(pa: ModuleType, data: bytes) -> Any:
    name, _, content = data.partition(b"\n")
    if name == b"tensor":
        return pa.ipc.read_tensor(pa.BufferReader(content)).to_numpy().copy()
    with pa.ipc.open_stream(content) as stream:
        if name in (b"batch", b"array"):
            batch = stream.read_next_batch()
            batch.validate(full=True)
            return batch if name == b"batch" else batch.column(0)
        table = stream.read_all()
    table.validate(full=True)
    if name == b"chunked":
        return table.column(0)
    if name == b"frame":
        return table.to_pandas()
    if name != b"table":
        raise ValueError(f"it begins with {bytes(name[:20])!r}")
    return table
