"""A share of this machine's GPUs, for programs that are not pipeline subtasks: Spark executors.

The agent admits them under the rules of its own subtasks (memory after admission, utilisation,
co-runners), so GPU operators of batch and of streams and tasks of pipelines share a card without
overfilling it. The agent's socket is named by ``HRM_AGENT_SOCKET``, which it sets for every
container; access to the socket is the only permission required.

Source: HRM paper, section 3.2 (GPU operations of several tasks closely packed on one device).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from hrm import errors
from hrm.core.vocabulary.model import WorkloadClass
from hrm.v1.pipeline_pb2_grpc import GpuServiceStub
from hrm.wire import pipelines as pipeline_wire

__all__ = ["SOCKET_VARIABLE", "GpuShare", "LocalGpus"]

SOCKET_VARIABLE = "HRM_AGENT_SOCKET"
REPLY_LIMIT_S = 10.0
"""Seconds beyond the wait within which an agent reports that no share was free."""
_NO_WAIT_S = 1e-3


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A granted share. ``declared``: there is no such device; the work has to run on the CPU."""

    index: int
    uuid: str
    declared: bool


class LocalGpus:
    """The agent of this machine. ``socket`` None: from the environment; without it, no agent."""

    def __init__(self, socket: str | None = None) -> None:
        self.socket = socket or os.environ.get(SOCKET_VARIABLE, "")
        self._channel = grpc.insecure_channel(f"unix:{self.socket}") if self.socket else None

    @property
    def there(self) -> bool:
        return self._channel is not None

    @contextmanager
    def share(
        self,
        kind: str,
        *,
        gpu_memory_mib: int = 0,
        size_mb: float = 0.0,
        workload: WorkloadClass = WorkloadClass.BATCH,
        wait_s: float = 600.0,
    ) -> Iterator[GpuShare]:
        """Hold a share for the length of a ``with``; wait for it for at most ``wait_s``.

        Raises:
            Unavailable: no agent here, or no share free within ``wait_s``.
            Unsatisfiable: no GPU of this node can ever hold it.
        """
        if self._channel is None:
            raise errors.Unavailable(
                f"no agent of HRM on this machine ({SOCKET_VARIABLE} is not set), so no GPU can "
                f"be requested; run this on a cluster of HRM, or give the step a CPU version"
            )
        limit_s = max(wait_s, _NO_WAIT_S)  # 0 would mean no limit
        request = pipeline_wire.from_claim(kind, gpu_memory_mib, size_mb, workload, limit_s)
        call = GpuServiceStub(self._channel).Acquire(request)
        # A deadline of the call would end the share, too. The agent limits the wait; the timer only
        # covers an agent that hangs.
        limit = threading.Timer(wait_s + REPLY_LIMIT_S, call.cancel)
        limit.daemon = True
        limit.start()
        try:
            try:
                grant = next(iter(call))
            except StopIteration:
                raise errors.Unavailable("the agent ended the call; try again") from None
            except grpc.RpcError as error:
                raise _error(error, kind, wait_s) from error
            finally:
                limit.cancel()
            yield GpuShare(grant.index, grant.uuid, grant.declared)
        finally:
            call.cancel()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()


def _error(error: grpc.RpcError, kind: str, wait_s: float) -> errors.HrmError:
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return errors.Unsatisfiable(details or "")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(
            f"no GPU of this node had capacity for {kind} within {wait_s:g} s; wait longer, or "
            f"give the step a CPU version"
        )
    if code is grpc.StatusCode.CANCELLED:
        return errors.Unavailable(
            f"this node's agent did not respond to {kind} within {wait_s + REPLY_LIMIT_S:g} s; "
            f"look at its log, or restart it"
        )
    return errors.Unavailable(f"this node's agent gave no GPU to {kind}: {details}")
