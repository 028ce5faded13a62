"""The client of cluster deploy mode: transfer of files, and a master that is unreachable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.errors import InvalidRequest, StaleEpoch, Unavailable
from hrm.spark import submit
from hrm.spark.submit import LocalFile, SubmissionClient, driver_spec
from hrm.spark.submit_options import Options, parse
from hrm.spark_servers import CONNECT_CLASS
from hrm.v1 import submission_pb2 as pb

DATA = b"0123456789"


class Away(grpc.RpcError):
    """gRPC's error for a master that is unreachable."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"


class Stale(Away):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED


class Master:
    """Accepts a file piece by piece, and is unreachable at some calls. Its own clock: ``now``."""

    def __init__(self) -> None:
        self.taken = b""
        self.calls = 0
        self.away: Callable[[int], bool] = lambda call: False
        self.piece_s = 0.0
        self.stale = False
        self.now = 1000.0

    def _called(self) -> None:
        self.calls += 1
        if self.away(self.calls):
            raise Away

    def FindFiles(self, request: Any, timeout: float) -> pb.FindFilesResponse:  # noqa: N802
        self._called()
        return pb.FindFilesResponse(offsets=[len(self.taken) for x in request.files if x.sha256])

    def PutPiece(self, request: Any, timeout: float) -> pb.PutPieceResponse:  # noqa: N802
        self.now += self.piece_s
        self._called()
        if self.stale:
            raise Stale
        assert request.offset == len(self.taken)
        self.taken += request.data
        return pb.PutPieceResponse(offset=len(self.taken))

    def Submit(self, request: Any, timeout: float) -> pb.Submission:  # noqa: N802
        return pb.Submission(submission_id="driver-1")

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Master:
    subject = Master()
    monkeypatch.setattr(submit, "time", subject)
    monkeypatch.setattr(submit, "PIECE_BYTES", 2)
    return subject


def send(master: Master, path: Path) -> None:
    client = SubmissionClient(master, "127.0.0.1:1", lambda _: None)
    client.submit(pb.DriverSpec(), {path.name: LocalFile.at(path, "the file")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


def test_a_file_goes_on_after_a_master_that_was_away_for_a_while(
    master: Master, path: Path
) -> None:
    master.away = lambda call: 4 <= call <= 24  # two calls for sizes and hashes, one piece
    send(master, path)
    assert master.taken == DATA
    assert 10.0 <= master.now - 1000.0 <= submit.UPLOAD_RETRY_LIMIT_S


def test_a_file_that_takes_long_goes_on_as_well(master: Master, path: Path) -> None:
    master.piece_s = submit.UPLOAD_RETRY_LIMIT_S
    master.away = lambda call: call == 5
    send(master, path)
    assert master.taken == DATA


def test_a_master_that_stays_away_ends_it(master: Master, path: Path) -> None:
    master.away = lambda call: call > 3
    with pytest.raises(Unavailable):
        send(master, path)
    waited_s = master.now - 1000.0
    assert submit.UPLOAD_RETRY_LIMIT_S <= waited_s <= submit.UPLOAD_RETRY_LIMIT_S + 2.0


def test_a_file_that_grows_no_further_ends_it(master: Master, path: Path) -> None:
    """Such as one that another client sends at the same time, without end."""
    master.stale = True
    with pytest.raises(StaleEpoch):
        send(master, path)
    assert master.now - 1000.0 <= submit.UPLOAD_RETRY_LIMIT_S + 2.0


@pytest.mark.parametrize("at_call", [1, 2, 3])
def test_a_file_that_disappears_meanwhile_is_reported_by_its_name(
    master: Master, path: Path, at_call: int
) -> None:
    def vanish(call: int) -> bool:
        if call == at_call:
            path.unlink()
        return False

    master.away = vanish
    with pytest.raises(InvalidRequest, match=f"{path} .*submit again"):
        send(master, path)


def test_home_of_nobody_is_a_file_that_does_not_exist() -> None:
    with pytest.raises(InvalidRequest, match="does not exist here"):
        driver_spec(Options(main="~nobody-of-this-name/app.py"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "name the application"),
        (["spark-internal"], "name it with --class"),
        (["notes.txt"], "neither a Python file"),
        (["spark-shell"], "cannot run spark-shell"),
        (["--conf", "spark.driver.resource.gpu.amount=1", "a.py"], "drivers on nodes get no gpu"),
        (["--class", CONNECT_CLASS, "job.jar"], "the Spark Connect server has no application file"),
        (["--class", CONNECT_CLASS, "spark-internal", "job.jar"], "name jars with --jars"),
        (["--class", CONNECT_CLASS, "--conf", "spark.connect.grpc.binding.port=0"], "from 1 to"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_sent(
    given: list[str], expected: str
) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        driver_spec(parse(given, {}))


def test_a_class_of_sparks_own_jars_needs_no_file() -> None:
    spec, files = driver_spec(parse(["--class", "org.example.Own", "spark-internal", "a"], {}))
    assert [(x.role, x.uri) for x in spec.resources] == [(pb.RESOURCE_ROLE_MAIN, "spark-internal")]
    assert (files, list(spec.arguments), spec.name) == ({}, ["a"], "org.example.Own")


def test_the_user_is_the_accounts_or_the_one_that_spark_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app.py"
    app.touch()
    monkeypatch.setenv("LOGNAME", "account")
    monkeypatch.delenv("SPARK_USER", raising=False)
    assert driver_spec(parse([str(app)], {}))[0].user == "account"
    monkeypatch.setenv("SPARK_USER", "ada")
    assert driver_spec(parse([str(app)], {}))[0].user == "ada"
