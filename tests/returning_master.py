"""A master of submissions in a process of its own, which is killed and comes back.

It must not be in the test's process: a server there works for that process's clients, too, and
connects for them again (``hrm.rpc.sync_channel``).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

__all__ = ["ReturningMaster"]

LIMIT_S = 30.0
RENEW_S = 0.5


class ReturningMaster:
    """``calls``: the method of each call, and how long after the last start it came, in s."""

    def __init__(self) -> None:
        self.port = 0
        self.calls: list[tuple[str, float]] = []
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self, after_s: float = 0.0) -> None:
        """Start it, to open its port in ``after_s``."""
        calls: list[tuple[str, float]] = []
        self.calls = calls
        command = [sys.executable, "-m", __name__, str(self.port), str(after_s)]
        process = self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(process, calls), daemon=True).start()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def first(self, method: str) -> float:
        """How long after its start the first call of ``method`` came, in s; waits for it."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(name == method for name, _ in self.calls), LIMIT_S
            ), f"no {method} within {LIMIT_S} s: {self.calls}"
            return next(at_s for name, at_s in self.calls if name == method)

    def _read(self, process: subprocess.Popen[str], calls: list[tuple[str, float]]) -> None:
        assert process.stdout is not None
        began_s = 0.0
        with process.stdout as lines:
            for line in lines:
                name, at_s = line.split()
                with self._changed:
                    if name.isdecimal():
                        self.port, began_s = int(name), float(at_s)
                    else:
                        calls.append((name, float(at_s) - began_s))
                    self._changed.notify_all()

    def await_port(self) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: self.port, LIMIT_S)
            return self.port


def _say(what: str) -> None:
    print(what, time.time(), flush=True)


class _Service(submission_pb2_grpc.SubmissionServiceServicer):
    def Watch(self, request: Any, context: Any) -> Iterator[pb.Submission]:  # noqa: N802
        _say("Watch")
        yield pb.Submission(submission_id=request.submission_id)
        threading.Event().wait()

    def Get(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        return pb.Submission(submission_id=request.submission_id)

    def Tie(self, request: Any, context: Any) -> pb.TieSubmissionResponse:  # noqa: N802
        _say("Tie")
        return pb.TieSubmissionResponse()

    def Lease(self, request: Any, context: Any) -> pb.LeaseDriverResponse:  # noqa: N802
        _say("Lease")
        return pb.LeaseDriverResponse(lease_s=600.0, renew_s=RENEW_S)


def main(port: str, after_s: str) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(_Service(), server)
    time.sleep(float(after_s))
    opened = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    _say(str(opened))
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
