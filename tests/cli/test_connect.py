"""``hrm connect``: one warm Connect server for a user and a set of options, and how it is shown."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from hrm.cli import connect_server
from hrm.cli.app import app
from hrm.cli.connect_server import ConnectOptions, WarmConnectServer, remote, spark_version
from hrm.cli.server_record import ServerRecord, ServerRecordFile, kind_of
from hrm.errors import InvalidConfig
from hrm.spark import submit
from hrm.v1 import admin_pb2, admin_pb2_grpc, node_pb2, submission_pb2_grpc
from hrm.v1 import submission_pb2 as pb

TOKEN_SETTING = "spark.hrm.driverEnv.SPARK_CONNECT_AUTHENTICATE_TOKEN"
WARM = b"26/01/01 INFO x\nHRM: the Connect server is warm after 2.1 s\n"
FIRST, SECOND = (f"driver-20260101000000-{number:04d}" for number in (1, 2))


class FakeMaster(
    submission_pb2_grpc.SubmissionServiceServicer, admin_pb2_grpc.AdminServiceServicer
):
    """Submissions that run at once, at the Connect server of the fixture."""

    def __init__(self) -> None:
        self.requests: list[pb.SubmitRequest] = []
        self.live: dict[str, dict[str, Any]] = {}
        self.killed: list[str] = []
        self.address = ""
        self.log = WARM
        self.versions = ["4.3.0"]
        self.state: dict[str, Any] = {"state": pb.SUBMISSION_STATE_RUNNING, "node": "n1"}

    def driver(self, number: int) -> pb.DriverSpec:
        return self.requests[number].driver

    def conf(self, number: int) -> dict[str, str]:
        return {each.key: each.value for each in self.driver(number).conf}

    def _one(self, submission_id: str) -> pb.Submission:
        served = {"server_address": self.address, "attempt": 1, "started_at_s": time.time()}
        return pb.Submission(submission_id=submission_id, **{**served, **self.live[submission_id]})

    def FindFiles(self, request: Any, context: Any) -> pb.FindFilesResponse:  # noqa: N802
        return pb.FindFilesResponse(offsets=[x.size_bytes for x in request.files if x.sha256])

    def Submit(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.requests.append(request)
        submission_id = f"driver-20260101000000-{len(self.requests):04d}"
        self.live[submission_id] = dict(self.state)
        return self._one(submission_id)

    def Get(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        if request.submission_id not in self.live:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such submission")
        return self._one(request.submission_id)

    def Kill(self, request: Any, context: Any) -> pb.Submission:  # noqa: N802
        self.killed.append(request.submission_id)
        self.live[request.submission_id] = {"state": pb.SUBMISSION_STATE_KILLED}
        return self._one(request.submission_id)

    def ListNodes(self, request: Any, context: Any) -> admin_pb2.ListNodesResponse:  # noqa: N802
        nodes = [admin_pb2.Node(name="n1", spark_versions=self.versions)]
        return admin_pb2.ListNodesResponse(nodes=nodes)

    def ReadLogs(self, request: Any, context: Any) -> Iterator[node_pb2.LogChunk]:  # noqa: N802
        assert (request.stream, request.executor_id) == ("stderr", "1")
        yield node_pb2.LogChunk(data=self.log)

    def ExplainApplication(self, request: Any, context: Any) -> Any:  # noqa: N802
        return admin_pb2.Explanation(summary="it waits for 4 vcores, and 2 are free")


class FakeConnect(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic as it runs
    """Accepts the release of a session, with the right token."""

    def __init__(self, master: FakeMaster) -> None:
        self.master = master
        self.calls = 0
        self.token: str | None = None

    def service(self, details: Any) -> Any:
        if details.method != "/spark.connect.SparkConnectService/ReleaseSession":
            return None
        return grpc.unary_unary_rpc_method_handler(self._release)

    def _release(self, _request: bytes, context: Any) -> bytes:
        self.calls += 1
        given = dict(context.invocation_metadata()).get("authorization")
        if given != f"Bearer {self.token or self.master.conf(-1)[TOKEN_SETTING]}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid authentication token")
        return b""


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    subject = FakeMaster()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(subject, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(subject, server)
    subject.connect = FakeConnect(subject)  # type: ignore[attr-defined]
    server.add_generic_rpc_handlers((subject.connect,))  # type: ignore[attr-defined]
    port = server.add_insecure_port("127.0.0.1:0")
    subject.port = port  # type: ignore[attr-defined]
    subject.address = f"sc://127.0.0.1:{port}"
    server.start()
    yield subject
    server.stop(None).wait(10)


@pytest.fixture
def run(master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    token = tmp_path / "token"
    token.write_text("secret-of-the-tests\n")
    token.chmod(0o600)
    monkeypatch.setenv("HRM_TOKEN_FILE", str(token))
    monkeypatch.setenv("HRM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HRM_MASTER", f"127.0.0.1:{master.port}")  # type: ignore[attr-defined]
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.delenv("HRM_ALLOW_CLEAR_TEXT", raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["connect", *arguments])

    return run


def records(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home" / "connect").glob("*.json"))


def test_the_first_command_starts_a_server(run: Any, master: FakeMaster, tmp_path: Path) -> None:
    done = run("--conf", "spark.executor.cores=2")
    assert done.exit_code == 0, done.output
    port = master.address.rpartition(":")[2]
    assert f"sc://localhost:{port}" in done.stdout
    assert FIRST in done.stdout
    assert "warm after 2.1 s" in done.stdout
    driver, conf = master.driver(0), master.conf(0)
    assert driver.supervise
    assert driver.main_class.endswith("SparkConnectServer")
    assert driver.serial_key.startswith("hrm-connect-")
    wanted = {
        "spark.executor.cores": "2",
        "spark.hrm.connect.idle": "4h",
        "spark.driver.memory": "1g",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.hrm.submit.spark.version": "4.3.0",
    }
    assert {name: conf[name] for name in wanted} == wanted
    assert int(conf["spark.connect.grpc.binding.port"]) in connect_server.PORTS


def test_its_token_is_in_a_private_file_and_in_exports_alone(
    run: Any, master: FakeMaster, tmp_path: Path
) -> None:
    shown, as_json = run(), run("--output", "json")
    token = master.conf(0)[TOKEN_SETTING]
    assert len(token) > 40
    assert token not in shown.output + as_json.output
    assert token not in " ".join(master.driver(0).arguments)
    assert json.loads(as_json.stdout)["warm"] is True
    (path,) = records(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["token"] == token

    exported = run("--export")
    assert exported.stdout.splitlines() == [
        f"export SPARK_REMOTE={master.address.replace('127.0.0.1', 'localhost')}",
        f"export SPARK_CONNECT_AUTHENTICATE_TOKEN={token}",
    ]
    variables = json.loads(run("--export", "--output", "json").stdout)
    assert variables["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == token


def test_one_server_for_one_set_of_options(run: Any, master: FakeMaster) -> None:
    for _ in range(2):
        assert FIRST in run().stdout
    assert SECOND in run("--idle", "1h").stdout
    assert len(master.requests) == 2
    assert master.driver(0).serial_key != master.driver(1).serial_key
    assert master.conf(0)[TOKEN_SETTING] != master.conf(1)[TOKEN_SETTING]


def test_commands_at_the_same_moment_get_one_server(
    run: Any, master: FakeMaster, tmp_path: Path
) -> None:
    target = f"127.0.0.1:{master.port}"  # type: ignore[attr-defined]
    wanted = ConnectOptions(target=target, conf={}, version="4.3.0")
    gate = threading.Barrier(4)

    def one(_: int) -> ServerRecord:
        file = ServerRecordFile(tmp_path / "records", "kind")
        with submit.connect(target, tmp_path / "token", None) as (client, _channel):
            gate.wait(10)
            return connect_server.find_or_start(client, wanted, file, {}, lambda _: None)

    with futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(4)))
    assert len(master.requests) == 1
    assert {each.submission_id for each in found} == {FIRST}
    assert {each.token for each in found} == {master.conf(0)[TOKEN_SETTING]}


def test_a_server_that_has_ended_is_replaced(run: Any, master: FakeMaster) -> None:
    run()
    master.live[FIRST]["state"] = pb.SUBMISSION_STATE_FINISHED
    assert SECOND in run().stdout
    del master.live[SECOND]  # as one that the master has forgotten
    assert "driver-20260101000000-0003" in run().stdout


def test_a_server_started_elsewhere_is_not_taken(
    run: Any, master: FakeMaster, tmp_path: Path
) -> None:
    master.live["driver-20251231000000-0009"] = {"state": pb.SUBMISSION_STATE_RUNNING}
    waits = "waits for driver-20251231000000-0009, which has its key 'hrm-connect-x'"
    master.state = {"state": pb.SUBMISSION_STATE_SUBMITTED, "attempt": 0, "message": waits}
    done = run()
    assert done.exit_code == 1
    assert "driver-20251231000000-0009 is your Connect server" in done.stderr
    assert master.killed == [FIRST]
    assert records(tmp_path) == []


def test_a_command_that_was_interrupted_after_its_submission_is_continued(
    run: Any, master: FakeMaster, tmp_path: Path
) -> None:
    run()
    (path,) = records(tmp_path)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "submission_id": "", "attempt": 0, "warmth": ""}))
    waits = f"waits for {FIRST}, which has its key 'hrm-connect-x'"
    master.state = {"state": pb.SUBMISSION_STATE_SUBMITTED, "attempt": 0, "message": waits}
    master.connect.token = record["token"]  # type: ignore[attr-defined]
    assert FIRST in run().stdout
    assert master.killed == [SECOND]
    assert json.loads(path.read_text()) == record


def test_a_refused_submission_leaves_no_record(run: Any, tmp_path: Path) -> None:
    done = run("--conf", "spark.driver.cores=none")
    assert done.exit_code == 1
    assert "spark.driver.cores is 'none'" in done.stderr
    assert records(tmp_path) == []


def test_a_rehearsal_that_failed_is_shown(run: Any, master: FakeMaster) -> None:
    master.log = b"HRM: the Connect server is not warm: the rehearsal took too long\n"
    done = run("--output", "json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["warm"] is False
    assert shown["rehearsal"] == "not warm: the rehearsal took too long"


def test_a_log_that_has_gone_on_does_not_hold_the_command(run: Any, master: FakeMaster) -> None:
    master.log = b"26/01/01 INFO of a server that has served for days\n"
    master.state["started_at_s"] = time.time() - connect_server.OUTCOME_LIMIT_S - 1
    done = run("--timeout", "5", "--output", "json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert (shown["warm"], shown["rehearsal"][:2]) == (False, "up")


def test_a_driver_that_starts_again_is_awaited_again(run: Any, master: FakeMaster) -> None:
    run()
    master.log = b""
    assert run("--timeout", "0.3").exit_code == 0  # this driver's rehearsal is known
    master.live[FIRST]["attempt"] = 2
    done = run("--timeout", "0.3")
    assert done.exit_code == 1
    assert "no warm server yet" in done.stderr


def test_what_waits_says_why(run: Any, master: FakeMaster) -> None:
    master.state = {"state": pb.SUBMISSION_STATE_SUBMITTED, "node": ""}
    done = run("--timeout", "0.2")
    assert done.exit_code == 1
    assert f"{FIRST} SUBMITTED" in done.stderr
    assert "it waits for 4 vcores, and 2 are free" in done.stderr
    assert f"hrm app why {FIRST}" in done.stderr


def test_a_server_that_fails_ends_the_wait(run: Any, master: FakeMaster) -> None:
    master.state = {"state": pb.SUBMISSION_STATE_FAILED, "message": "ClassNotFoundException"}
    done = run()
    assert done.exit_code == 1
    assert f"{FIRST} is FAILED: ClassNotFoundException" in done.stderr
    assert f"hrm submission logs {FIRST}" in done.stderr


def test_a_taken_port_is_changed_unless_it_was_asked_for(run: Any, master: FakeMaster) -> None:
    taken = "the server cannot listen at 127.0.0.1:15002 of this node: Address already in use"
    master.state = {"state": pb.SUBMISSION_STATE_WAITING_TO_RESTART, "message": taken}
    done = run()
    assert done.exit_code == 1
    assert len(master.requests) == connect_server.PORTS_TRIED_MAX
    assert len({each.driver.serial_key for each in master.requests}) == 1
    assert master.killed == [FIRST, SECOND]
    done = run("--conf", "spark.connect.grpc.binding.port=15002")
    assert "cannot listen at 127.0.0.1:15002" in done.stderr
    assert len(master.requests) == connect_server.PORTS_TRIED_MAX + 1


def test_stop_ends_it(run: Any, master: FakeMaster, tmp_path: Path) -> None:
    assert "no Connect server with these options" in run("--stop").stderr
    run()
    done = run("--stop")
    assert (done.exit_code, master.killed) == (0, [FIRST])
    assert "KILLED" in done.stdout
    assert records(tmp_path) == []
    assert len(master.requests) == 1


def test_another_token_at_its_port_is_an_error(run: Any, master: FakeMaster) -> None:
    master.connect.token = "another"  # type: ignore[attr-defined]
    done = run()
    assert done.exit_code == 1
    assert "requires another token" in done.stderr
    assert master.connect.calls == 1  # type: ignore[attr-defined]


def test_a_spark_without_tokens_listens_on_loopback_and_says_so(
    run: Any, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_ALLOW_CLEAR_TEXT", "true")
    master.versions = ["3.5.6"]
    done = run()
    assert done.exit_code == 0, done.output
    assert "Spark 3.5.6 cannot require a token" in done.stderr
    assert master.conf(0)["spark.connect.grpc.binding.address"] == "127.0.0.1"


def test_with_clear_text_allowed_it_listens_at_its_node(
    run: Any, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_ALLOW_CLEAR_TEXT", "true")
    assert run().exit_code == 0
    assert "spark.connect.grpc.binding.address" not in master.conf(0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--idle", "600"], "give a time such as 4h"),
        (["--conf", "spark.x"], "write --conf NAME=VALUE"),
        (["--conf", "spark.connect.authenticate.token=x"], "is set by hrm connect itself"),
        (["--conf", f"{TOKEN_SETTING}=x"], "is set by hrm connect itself"),
        (["--conf", "spark.hrm.submit.key=x"], "is set by hrm connect itself"),
    ],
)
def test_what_the_command_sets_itself_is_refused(
    run: Any, master: FakeMaster, arguments: list[str], complaint: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 1
    assert complaint in done.stderr
    assert master.requests == []


def test_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    monkeypatch.delenv("HRM_MASTER", raising=False)
    monkeypatch.delenv("HRM_TOKEN_FILE", raising=False)
    done = CliRunner().invoke(app, ["connect"])
    assert done.exit_code == 1
    assert "no cluster of yours runs here" in done.stderr


def served(address: str, *, loopback: bool) -> WarmConnectServer:
    record = ServerRecord(token="a+b", submission_id=FIRST, loopback=loopback)
    return WarmConnectServer(submission=pb.Submission(server_address=address), record=record)


def test_addresses_of_other_machines() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    variables, remark = remote(served("sc://192.0.2.7:20001", loopback=True))
    assert variables["SPARK_REMOTE"] == "sc://localhost:20001"
    assert "ssh -N -L 20001:localhost:20001 192.0.2.7" in remark
    variables, remark = remote(served("sc://192.0.2.7:20001", loopback=False))
    assert (variables, remark) == (
        {"SPARK_REMOTE": "sc://192.0.2.7:20001/;authorization=Bearer%20a%2Bb"}, "",
    )  # fmt: skip
    variables, remark = remote(served("sc://[2001:db8::7]:20001", loopback=False))
    assert variables["SPARK_REMOTE"].startswith("sc://[2001:db8::7]:20001/;")


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([], ""),
        ([[]], ""),
        ([["3.5.6"]], "3.5.6"),
        ([["3.5.6"], ["3.5.6"], ["4.0.1", "3.5.6"]], "4.0.1"),
        ([["4.0.1"], ["4.3.0"], ["4.3.0"]], "4.3.0"),
    ],
)
def test_the_spark_that_it_runs(nodes: list[list[str]], chosen: str) -> None:
    assert spark_version(nodes) == chosen


def test_a_lock_that_is_held_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm.cli.server_record.LOCK_LIMIT_S", 0.2)
    file = ServerRecordFile(tmp_path, "kind")
    with (
        file.locked(),
        pytest.raises(Exception, match="another hrm connect has been at work"),
        ServerRecordFile(tmp_path, "kind").locked(),
    ):
        pytest.fail("two have the lock")


def test_a_record_that_is_none(tmp_path: Path) -> None:
    file = ServerRecordFile(tmp_path, "kind")
    file.path.write_text("{}")
    with pytest.raises(InvalidConfig, match="remove it"):
        file.read()
    assert kind_of("a:1", {"x": "1", "y": "2"}) == kind_of("a:1", {"y": "2", "x": "1"})
    assert kind_of("a:1", {}) != kind_of("b:1", {})
