"""``python -m hrm.pipelines.worker.step_process WORKER``: runs steps of pipelines for a worker, one
after another.

The worker writes one line of JSON for each run, and reads one line back when the run is over. Both
pipes arrive as the standard input and output, and are moved away before any function runs: those
find an empty standard input, and what they print goes to the container's log. What they start
inherits neither pipe, and what they fork and let return ends there, for one process alone may go on
to the next run. Inputs and outputs are files, pickled with protocol 5; what the last subtask
returns has the format that its client requested, with a proof. A pipeline is imported at its first
run, and kept. The process ends with its worker, at the latest at the end of its orders.

The limit on memory is RLIMIT_DATA, set from what the process has at the start of the run, so the
function gets a MemoryError instead of being killed by the kernel. GPU versions have none, because
device drivers map far more than they use.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from hrm.pipelines.client.definition import Function, Pipeline
from hrm.pipelines.client.results import (
    NotPlain,
    Seal,
    encode,
    not_in_result_dir,
    not_written,
    result_name,
)
from hrm.pipelines.core.model import Device, ResultFormat
from hrm.pipelines.core.node_messages import RunOutcome

__all__ = ["Job", "main", "run_job"]

Job = dict[str, Any]
"""``run``: its number, which the reply repeats; ``reference``, ``subtask``, ``device``; ``inputs``:
paths of files; ``raw``: the input is bytes, not pickled; ``output``: the path to write;
``memory_limit_mib``: 0 for none; ``node``: the machine, for messages.

Of the last subtask also ``result_format``, ``result_key`` (hexadecimal, "" for none), ``task_id``
and ``placement``: what it returns is the task's result (see ``hrm.pipelines.client.results``); and
``result_dir``: the directory where that stays, instead of ``output``; "" for none."""

_MESSAGE_MAX = 2_000
_PR_SET_PDEATHSIG = 1
_MIB = 1 << 20


class _NotImportable(Exception):
    """The function cannot be found here."""


def main() -> int:
    """Serve until the orders end. The argument is the process id of the worker."""
    _end_with(int(sys.argv[1]))
    orders, replies = _own_pipes()
    for line in orders:
        job = json.loads(line)
        reply = run_job(job)
        _give_device_memory_back(failed=reply["outcome"] != RunOutcome.DONE.name)
        replies.write(json.dumps({"run": job["run"], **reply}) + "\n")
    return 0


def _own_pipes() -> tuple[BinaryIO, TextIO]:
    """Move the pipes of orders and replies where no function looks, and no process inherits them.

    One that is forked has nothing in their place: it could take the orders of later runs, and as
    long as it lives the worker would not notice that this process has ended.
    """
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def let_go() -> None:
        for pipe in (orders, replies):
            os.dup2(nothing, pipe.fileno(), inheritable=False)

    os.register_at_fork(after_in_child=let_go)
    return orders, replies


def _end_with(worker: int) -> None:
    """A killed worker takes its processes with it: nothing else would stop a running function."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        sys.exit(1)  # it was killed before that, and its first order may be in the pipe


def run_job(job: Job) -> dict[str, Any]:
    """Run one subtask; returns ``outcome``, ``message``, ``ran_s``, memory peaks in MiB."""
    started_s = time.perf_counter()
    ran_s: float | None = None
    outcome, message = RunOutcome.DONE, ""
    sealed: dict[str, Any] = {}
    _reset_peaks()
    try:
        with _without_forks():
            function = _function(job)
            inputs = [_read(Path(path), raw=job.get("raw", False)) for path in job["inputs"]]
        with _memory_limit(job["memory_limit_mib"]):
            started_s = time.perf_counter()
            with _without_forks():
                result = function(*inputs)
            ran_s = time.perf_counter() - started_s
            sealed = _write(job, result)
    except _NotImportable as error:
        outcome, message = RunOutcome.NOT_IMPORTABLE, str(error)
    except MemoryError:
        outcome = RunOutcome.OUT_OF_MEMORY
        message = f"it took more than its memory_mib of {job['memory_limit_mib']} MiB"
        if not job["memory_limit_mib"]:
            message = "the machine has no memory left for it"
    except BaseException as error:
        outcome = _outcome_of(error)
        message = _describe(error)
    if ran_s is None:
        ran_s = time.perf_counter() - started_s
    return {
        "outcome": outcome.name,
        # File names that are not UTF-8 contain lone surrogates, which no message can carry.
        "message": message[:_MESSAGE_MAX].encode("utf-8", "backslashreplace").decode(),
        "ran_s": ran_s,
        "memory_mib": _status_mib("VmHWM"),
        "gpu_memory_mib": _gpu_peak_mib(),
        **sealed,
    }


@contextlib.contextmanager
def _without_forks() -> Iterator[None]:
    """What the code within has forked, and let return or raise, ends here: its result is not the
    run's, and it has no part in what follows."""
    own, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        status = code if isinstance(code, int) else int(code is not None)
        raise
    finally:
        if os.getpid() != own:
            os._exit(status & 0xFF)


def _function(job: Job) -> Function:
    reference, name, device = job["reference"], job["subtask"], Device(job["device"])
    module_name, _, attribute = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise _NotImportable(
            f"{reference} failed with {type(error).__name__}: {error}; install it on the node, "
            f"name its directory in pipeline_path, or send its file along"
        ) from error
    if not isinstance(found, Pipeline):
        raise _NotImportable(f"{reference} is a {type(found).__name__}, not a Pipeline")
    step = found.steps.get(name)
    if step is None or device not in step.versions:
        has = ", ".join(found.steps) if step is None else f"{name} without a {device.value} version"
        raise _NotImportable(f"{reference} here is another one than was submitted; it has {has}")
    return step.versions[device]


def _read(path: Path, *, raw: bool) -> Any:
    if raw:
        return path.read_bytes()
    with path.open("rb") as file:
        return pickle.load(file)  # nosec B301 # noqa: S301 - its functions are the submitter's, too


def _write(job: Job, result: Any) -> dict[str, Any]:
    """Write what a subtask returned; of the last one, returns the report to the client."""
    last, directory = "result_format" in job, job.get("result_dir", "")
    path = Path(job["output"])
    if directory:
        path = Path(directory, result_name(job["task_id"], job["placement"]))
    part = path.with_name(f"{path.name}.part")
    wanted = ResultFormat(job["result_format"]) if last else ResultFormat.PICKLE
    key = bytes.fromhex(job.get("result_key", ""))
    try:
        with part.open("wb") as file:
            seal = Seal(file, key, job.get("task_id", ""), job.get("placement", 0))
            kind = encode(result, wanted, seal)
            if directory:
                file.flush()
                os.fsync(file.fileno())
        part.rename(path)
    except OSError as error:
        _drop(part)
        if directory:
            raise not_in_result_dir(directory, error) from error
        raise not_written(path, error, job["node"]) from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        _drop(part)
        if isinstance(error, NotPlain):
            raise
        raise TypeError(f"what it returned does not pickle: {error}") from error
    except BaseException:
        _drop(part)
        raise
    if not last:
        return {}
    said = {"result_format": kind.value, "proof": seal.proof(kind).hex()}
    return said | ({"in_dir_bytes": path.stat().st_size} if directory else {})


def _drop(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink()


@contextlib.contextmanager
def _memory_limit(limit_mib: int) -> Iterator[None]:
    if not limit_mib:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _status_mib("VmData") * _MIB + limit_mib * _MIB
    resource.setrlimit(resource.RLIMIT_DATA, (int(ceiling), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status_mib(field: str) -> float:
    with Path("/proc/self/status").open() as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _reset_peaks() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _gpu_peak_mib() -> float:
    """What torch reserved on the device, and what it costs to use the device at all: the CUDA
    context, loaded kernels, workspaces of libraries. 0 where torch did not use it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    from hrm.agent.gpu.readings import process_bytes

    outside = max(0, process_bytes(os.getpid()) - torch.cuda.memory_reserved())
    return float(torch.cuda.max_memory_reserved() + outside) / _MIB


def _give_device_memory_back(*, failed: bool) -> None:
    """While a worker waits for its next run, other runs can have the memory that torch keeps from
    the last one. What modules hold, such as a network, stays."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    if failed:
        gc.collect()  # the error's frames hold what the function held
    with contextlib.suppress(RuntimeError):  # a fault has ended the context
        torch.cuda.empty_cache()


def _outcome_of(error: BaseException) -> RunOutcome:
    on_device = type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error)
    return RunOutcome.OUT_OF_GPU_MEMORY if on_device else RunOutcome.RAISED


def _describe(error: BaseException) -> str:
    """The error, and where in the user's code it was raised; all of it goes to the log."""
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{where}"


if __name__ == "__main__":
    sys.exit(main())
