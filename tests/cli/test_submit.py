"""``hrm submit``, ``submissions`` and ``submission``: what is shown, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from hrm.cli.app import app
from hrm.v1 import admin_pb2_grpc, node_pb2, submission_pb2_grpc
from hrm.v1 import submission_pb2 as pb

ID = "driver-20260101000000-0001"


class FakeMaster(
    submission_pb2_grpc.SubmissionServiceServicer, admin_pb2_grpc.AdminServiceServicer
):
    """One submission, which goes through prepared states."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = [{"state": pb.SUBMISSION_STATE_FINISHED}]
        self.requests: list[Any] = []
        self.log = b""

    def _one(self, **fields: Any) -> pb.Submission:
        values = {"submission_id": ID, "name": "a [b]", "user": "ada", "attempt": 1, **fields}
        return pb.Submission(**values)

    def FindFiles(self, request: Any, context: Any) -> pb.FindFilesResponse:  # noqa: N802
        known = [x.size_bytes for x in request.files if x.sha256]
        return pb.FindFilesResponse(offsets=known)

    def Submit(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.requests.append(request)
        return self._one(state=pb.SUBMISSION_STATE_SUBMITTED)

    def Watch(self, request: Any, context: Any) -> Iterator[pb.Submission]:  # noqa: N802
        for fields in self.states:
            yield self._one(**fields)

    def Get(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        if request.submission_id != ID:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such submission: {request.submission_id}")
        return self._one(**self.states[-1])

    def List(self, request: Any, context: Any) -> pb.ListSubmissionsResponse:  # noqa: N802
        every = [self._one(**self.states[-1])] if request.include_ended else []
        return pb.ListSubmissionsResponse(submissions=every)

    def Kill(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.requests.append(request)
        return self._one(state=pb.SUBMISSION_STATE_KILLING)

    def ReadLogs(self, request: Any, context: Any) -> Iterator[node_pb2.LogChunk]:  # noqa: N802
        self.requests.append(request)
        if request.application_id == "mistyped":
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                "no such application: 'mistyped'; hrm apps --all lists them",
            )
        yield node_pb2.LogChunk(data=self.log)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    subject = FakeMaster()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(subject, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(subject, server)
    subject.port = server.add_insecure_port("127.0.0.1:0")  # type: ignore[attr-defined]
    server.start()
    yield subject
    server.stop(None).wait(10)


@pytest.fixture
def run(master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    token = tmp_path / "token"
    token.write_text("secret-of-the-tests\n")
    token.chmod(0o600)
    monkeypatch.setenv("HRM_TOKEN_FILE", str(token))
    monkeypatch.setenv("HRM_MASTER", f"127.0.0.1:{master.port}")  # type: ignore[attr-defined]

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return run


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "app.py"
    path.write_text("print(1)\n")
    return str(path)


def test_a_driver_that_succeeds(run: Any, master: FakeMaster, program: str) -> None:
    running = {"state": pb.SUBMISSION_STATE_RUNNING, "node": "n1", "application_ids": ["app-1"]}
    master.states = [{"state": pb.SUBMISSION_STATE_SUBMITTED}, running, *master.states]
    done = run("submit", "--conf", "spark.x=1", "--name", "n", program, "--name", "not ours")
    assert done.exit_code == 0, done.output
    assert f"{ID} RUNNING on n1, application app-1" in done.stderr
    (request,) = master.requests
    assert list(request.driver.arguments) == ["--name", "not ours"]
    assert request.driver.name == "n"
    assert {x.key: x.value for x in request.driver.conf}["spark.x"] == "1"


def test_a_launcher_that_cannot_follow_is_a_warning(
    run: Any, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SPARK_LAUNCHER_PORT", "1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    done = run("submit", program)
    assert done.exit_code == 0, done.output
    assert "HRM: warning: the launcher of this program cannot follow it" in done.stderr


def test_a_server_shows_what_to_connect_to(run: Any, master: FakeMaster) -> None:
    address = "sc://10.0.0.1:15002"
    running = {"state": pb.SUBMISSION_STATE_RUNNING, "node": "n1", "server_address": address}
    master.states = [running]
    shown = run("submission", "show", ID)
    assert "CONNECT TO" in shown.stdout
    assert address in shown.stdout
    assert json.loads(run("submission", "show", ID, "-o", "json").stdout)["server_address"] == (
        address
    )
    master.states = [running, {"state": pb.SUBMISSION_STATE_FINISHED}]
    done = run("submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    assert done.exit_code == 0, done.output
    assert f"{ID} RUNNING on n1 at {address}" in done.stderr
    (request,) = master.requests
    assert [x.uri for x in request.driver.resources] == ["spark-internal"]
    assert "CONNECT TO" not in run("submission", "show", ID).stdout


def test_a_driver_that_fails_shows_its_last_words(
    run: Any, master: FakeMaster, program: str
) -> None:
    failed = {"state": pb.SUBMISSION_STATE_FAILED, "exit_code": 7, "message": "exited with code 7"}
    master.states = [{**failed, "node": "n1", "attempt": 3}]
    informs = b"26/11/21 21:43:19 INFO SparkContext: stopped\n\tat org.apache.spark.X(X.scala:1)\n"
    master.log = b"early\n" + b"line\n" * 30 + b"the last [word]\n" + informs * 30
    done = run("submit", program)
    assert done.exit_code == 7
    assert "exited with code 7" in done.stderr
    assert "the last [word]" in done.stderr
    assert "early" not in done.stderr
    assert "SparkContext" not in done.stderr
    assert "X.scala" not in done.stderr
    assert [(x.executor_id, x.stream) for x in master.requests[1:]] == [
        ("3", "stderr"), ("3", "stdout"),
    ]  # fmt: skip


def test_one_that_does_not_wait_gets_the_id(run: Any, program: str) -> None:
    done = run("submit", "--conf", "spark.hrm.submit.waitAppCompletion=false", program)
    assert (done.exit_code, done.stdout) == (0, f"{ID}\n")


def test_status_and_kill(run: Any, master: FakeMaster) -> None:
    assert run("submit", "--status", ID).stdout == f"{ID} FINISHED\n"
    master.states = [{"state": pb.SUBMISSION_STATE_KILLED, "message": "killed on request"}]
    done = run("submit", "--kill", ID)
    assert done.stdout == f"{ID} KILLING\n{ID} KILLED: killed on request\n"
    unknown = run("submit", "--status", "driver-2")
    assert unknown.exit_code == 1
    assert "no such submission: driver-2" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--deploy-mode", "client", "a.py"], "hrm spark-submit"),
        (["--master", "spark://h:7077", "a.py"], "is no HRM master"),
        (["/no/such.py"], "does not exist here"),
        (["--what"], "--what needs a value"),
        (["--master", "hrm://7480", "a.py"], "is no address of a master (a port alone)"),
    ],
)
def test_what_cannot_be_is_one_line(run: Any, arguments: list[str], expected: str) -> None:
    done = run("submit", *arguments)
    assert done.exit_code == 2, "as for wrong arguments of any other command"
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_is_of_the_command_itself(run: Any) -> None:
    assert "--supervise" in run("submit", "--help").stdout
    asked, nothing = run("submit", "-h"), run("submit")
    assert (asked.exit_code, nothing.exit_code, nothing.stdout) == (0, 2, "")
    assert nothing.stderr.startswith(asked.stdout)


def test_submissions_are_listed_and_shown(run: Any, master: FakeMaster) -> None:
    nothing = run("submissions")
    assert "no submissions; hrm submissions --all shows ended ones" in nothing.stderr
    assert nothing.stdout == ""
    table = run("submissions", "--all").stdout
    assert ID in table
    assert "a [b]" in table
    assert "FINISHED" in table
    shown = json.loads(run("submission", "show", ID, "--output", "json").stdout)
    assert (shown["submission_id"], shown["exit_code"]) == (ID, 0)
    assert "KILLING" in run("submission", "kill", ID, "--reason", "enough").stdout
    assert master.requests[-1].reason == "enough"


def test_the_log_is_that_of_the_latest_driver(run: Any, master: FakeMaster) -> None:
    master.states = [{"state": pb.SUBMISSION_STATE_RUNNING, "attempt": 4}]
    master.log = b"hello\n"
    assert run("submission", "logs", ID).stdout == "hello\n"
    assert (master.requests[-1].application_id, master.requests[-1].executor_id) == (ID, "driver")
    run("submission", "logs", ID, "--attempt", "2", "--stream", "stdout")
    assert (master.requests[-1].executor_id, master.requests[-1].stream) == ("driver/2", "stdout")


def test_the_log_of_an_unknown_id_is_refused_as_that_of_a_submission(run: Any) -> None:
    refused = run("submission", "logs", "mistyped")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "error: no such submission: mistyped; hrm submissions --all lists them\n"
    )


def test_a_log_is_asked_for_whether_or_not_the_master_knows_the_submission_still(
    run: Any, master: FakeMaster
) -> None:
    """Its journal may have it."""
    master.log = b"what it said\n"
    assert run("submission", "show", "driver-forgotten").exit_code == 1
    assert run("submission", "logs", "driver-forgotten").stdout == "what it said\n"
