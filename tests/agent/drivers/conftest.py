"""A node's directories, runners of drivers in them, and a master that only replies.

"spark-submit" is a shell script.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

DATA = b"x = 1\n" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


class FakeMaster(submission_pb2_grpc.SubmissionServiceServicer):
    """Grants leases until it is ordered not to; has one file, and ``more``."""

    def __init__(self) -> None:
        self.lease_s = 0.0
        self.refuses = ""
        self.silent = False
        self.asked: list[pb.LeaseDriverRequest] = []
        self.fetched: list[int] = []
        self.settings: dict[str, bytes] = {}
        self.stalls = False
        self.more = b""
        self.over = threading.Event()
        self.tokens = b""
        self.tokens_take_s = 0.0
        self.port = 0

    def GetTokens(self, request: Any, context: Any) -> pb.GetTokensResponse:  # noqa: N802
        assert self.asked, "not before the lease"
        self.over.wait(self.tokens_take_s)
        if not self.tokens or request.ownership_key != "proof":
            context.abort(grpc.StatusCode.NOT_FOUND, "the tokens are gone")
        return pb.GetTokensResponse(tokens=self.tokens)

    def Lease(self, request: Any, context: Any) -> pb.LeaseDriverResponse:  # noqa: N802
        if self.silent:
            context.abort(grpc.StatusCode.UNAVAILABLE, "out of reach")
        self.asked.append(request)
        if self.refuses and not request.gone:
            context.abort(grpc.StatusCode.ABORTED, self.refuses)
        return pb.LeaseDriverResponse(lease_s=self.lease_s, renew_s=0.1)

    def GetFile(self, request: Any, context: Any) -> Iterator[pb.FilePiece]:  # noqa: N802
        if request.sha256 in self.settings:
            yield pb.FilePiece(data=self.settings[request.sha256])
            return
        self.fetched.append(request.offset)
        if request.sha256 == hashlib.sha256(self.more).hexdigest():
            yield pb.FilePiece(data=self.more[request.offset :])
            return
        if request.sha256 != DIGEST:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such file")
        if self.stalls:
            yield pb.FilePiece(data=DATA[:1])
            self.over.wait(60.0)
        yield pb.FilePiece(data=DATA[request.offset :])


class Node:
    """A node's directories, and runners in them."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.work_dir = directory / "work"
        (self.work_dir / "tmp").mkdir(parents=True)
        token = directory / "token"
        token.write_text("secret-of-the-tests\n")
        self.program = directory / "spark-submit"
        self.document: dict[str, Any] = {
            "submission_id": "driver-1", "attempt": 2, "name": "app", "master": f"127.0.0.1:{port}",
            "token_file": str(token), "tls_ca": "", "host": "127.0.0.1",
            "spark_submit": str(self.program),
            "cache_dir": str(directory / "cache"), "heap_mib": 512,
            "main_class": "a.B", "arguments": ["one", "two words"], "options": [],
            "conf": [["spark.x", "y z"], ["spark.driver.host", "the-client"]],
            "resources": [
                {"role": "main", "name": "a.jar", "sha256": DIGEST, "size": len(DATA), "uri": "",
                 "fragment": ""},
                {"role": "jar", "name": "", "sha256": "", "size": 0, "uri": "hdfs://h/b.jar",
                 "fragment": ""},
            ],
        }  # fmt: skip

    def start(self, script: str) -> subprocess.Popen[str]:
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)
        path = self.directory / "driver.json"
        path.write_text(json.dumps(self.document))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hrm.agent.drivers.driver_runner", str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            cwd=self.work_dir,
        )  # fmt: skip

    def run(self, script: str) -> tuple[int, str, str]:
        runner = self.start(script)
        out, err = runner.communicate(timeout=60)
        return runner.returncode, out, err


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    subject = FakeMaster()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(subject, server)
    subject.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield subject
    subject.over.set()
    server.stop(None).wait(10)


@pytest.fixture
def node(tmp_path: Path, master: FakeMaster) -> Node:
    return Node(tmp_path, master.port)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"
