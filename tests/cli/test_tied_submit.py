"""A driver that is tied to ``hrm submit``: the command as a process, and signals that end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.errors import InvalidRequest
from hrm.spark import submit
from hrm.spark.submit_options import Options
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

ID = "driver-20260101000000-0001"
LIMIT_S = 60.0
REVOKED = "the token t1 of ana was revoked; an administrator makes another: hrm token create"


class Master(submission_pb2_grpc.SubmissionServiceServicer):
    """One submission, which runs until it is killed."""

    def __init__(self) -> None:
        self.port = 0
        self.submitted: pb.SubmitRequest | None = None
        self.killed: list[str] = []
        self.signs: list[str] = []
        self.refused = False
        self.watched, self.signed, self.over = (threading.Event() for _ in range(3))

    def FindFiles(self, request: Any, context: Any) -> pb.FindFilesResponse:  # noqa: N802
        return pb.FindFilesResponse(offsets=[x.size_bytes for x in request.files if x.sha256])

    def Submit(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.submitted = request
        return pb.Submission(submission_id=ID, state=pb.SUBMISSION_STATE_SUBMITTED)

    def Watch(self, request: Any, context: Any) -> Iterator[pb.Submission]:  # noqa: N802
        yield pb.Submission(submission_id=ID, state=pb.SUBMISSION_STATE_RUNNING, node="n1")
        self.watched.set()
        self.over.wait(LIMIT_S)
        if self.refused:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, REVOKED)

    def Tie(self, request: Any, context: Any) -> pb.TieSubmissionResponse:  # noqa: N802
        self.signs.append(request.ownership_key)
        self.signed.set()
        return pb.TieSubmissionResponse()

    def Kill(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.killed.append(request.reason)
        self.over.set()
        return pb.Submission(submission_id=ID, state=pb.SUBMISSION_STATE_KILLING)


@pytest.fixture
def master() -> Iterator[Master]:
    subject = Master()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(subject, server)
    subject.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield subject
    subject.over.set()
    server.stop(None).wait(10)


@pytest.fixture
def command(master: Master, tmp_path: Path) -> Iterator[Any]:
    """Starts ``hrm submit`` with these settings; it is ended at the end."""
    token = tmp_path / "token"
    token.write_text("secret-of-the-tests\n")
    token.chmod(0o600)
    program = tmp_path / "app.py"
    program.write_text("print(1)\n")
    environment = {
        **os.environ, "HRM_TOKEN_FILE": str(token), "HRM_MASTER": f"127.0.0.1:{master.port}",
    }  # fmt: skip
    started: list[subprocess.Popen[str]] = []

    def start(*settings: str) -> subprocess.Popen[str]:
        conf = [part for setting in settings for part in ("--conf", setting)]
        process = subprocess.Popen(
            [sys.executable, "-m", "hrm.cli", "submit", *conf, str(program)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert master.watched.wait(LIMIT_S)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_the_command_kills_the_driver_that_is_tied_to_it(
    command: Any, master: Master, number: signal.Signals
) -> None:
    process = command("spark.hrm.submit.tied=true")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert master.killed == [f"its client was ended by {number.name} (spark.hrm.submit.tied)"]
    assert f"{ID} is killed, since {number.name} ended this command" in errors


def test_a_driver_that_is_not_tied_goes_on(command: Any, master: Master) -> None:
    process = command("spark.hrm.submit.key=nightly")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGTERM
    assert (master.killed, master.signs) == ([], [])
    assert master.submitted is not None
    assert (master.submitted.driver.tie_s, master.submitted.driver.serial_key) == (0.0, "nightly")


def test_its_signs_reach_the_master_with_the_key_of_the_submission(
    command: Any, master: Master
) -> None:
    command("spark.hrm.submit.tied=2s")  # a master would refuse so short a time
    assert master.signed.wait(LIMIT_S)
    assert master.submitted is not None
    assert master.submitted.driver.tie_s == 2.0
    assert set(master.signs) == {master.submitted.ownership_key}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, 0.0),
        ({"spark.hrm.submit.tied": "false"}, 0.0),
        ({"spark.hrm.submit.tied": "TRUE"}, 60.0),
        ({"spark.hrm.submit.tied": "90"}, 90.0),
        ({"spark.hrm.submit.tied": "2m"}, 120.0),
        ({"spark.hrm.submit.tied": "soon"}, "write true, false or a time such as 2m"),
        (
            {
                "spark.hrm.submit.tied": "true",
                "spark.hrm.submit.waitAppCompletion": "false",
            },
            "leave one of the two out",
        ),
    ],
)
def test_times_of_a_tie(conf: dict[str, str], expected: float | str, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text("")
    options = Options(conf=conf, main=str(program))
    if isinstance(expected, str):
        with pytest.raises(InvalidRequest, match=expected):
            submit.driver_spec(options)
    else:
        assert submit.driver_spec(options)[0].tie_s == expected


@pytest.mark.parametrize(
    ("settings", "fate"),
    [
        ([], "is not ended by this"),
        (["spark.hrm.submit.tied=true"], "is killed when the time of spark.hrm.submit.tied has"),
    ],
)
def test_a_command_whose_token_is_revoked_ends_and_says_what_becomes_of_the_driver(
    command: Any, master: Master, settings: list[str], fate: str
) -> None:
    master.refused = True
    process = command(*settings)
    master.over.set()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 77
    assert f"error: {REVOKED}" in errors
    assert f"{ID} {fate}" in errors
    assert f"hrm submit --master hrm://127.0.0.1:{master.port} --status {ID}" in errors
    assert "still waiting" not in errors
