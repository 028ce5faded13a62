"""Clients that wait for a master that is away find it again soon after it is back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm import rpc
from hrm.agent.drivers import driver_runner
from hrm.errors import HrmError
from hrm.spark import submit
from hrm.v1 import submission_pb2_grpc
from tests.returning_master import ReturningMaster

AWAY_S = 10.0
"""Long enough for gRPC's pauses between attempts to connect to have reached their longest."""
SOON_S = 4.0
TIE_S = 5.0
ID = "driver-20260101000000-0001"


@pytest.fixture
def master() -> Iterator[ReturningMaster]:
    subject = ReturningMaster()
    subject.await_port()
    yield subject
    subject.kill()


def test_a_tied_submission_gives_its_signs_again_soon_after_the_master_is_back(
    master: ReturningMaster, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-tests\n")
    token.chmod(0o600)

    def watch() -> None:
        with contextlib.suppress(HrmError, ValueError):  # its channel is closed at the end
            list(client.watch(ID))

    with submit.connect(f"127.0.0.1:{master.port}", token, None) as (client, _):
        threading.Thread(target=watch, daemon=True).start()
        with client.tied(ID, TIE_S):
            assert master.first("Watch") <= master.first("Tie")
            master.kill()
            master.start(AWAY_S)
            assert master.first("Tie") < SOON_S
            assert master.first("Watch") < SOON_S


def test_the_lease_of_a_driver_is_renewed_soon_after_the_master_is_back(
    master: ReturningMaster,
) -> None:
    target = f"127.0.0.1:{master.port}"
    with rpc.sync_channel(target, "secret-of-the-tests") as channel:
        stub = submission_pb2_grpc.SubmissionServiceStub(channel)
        lease = driver_runner.Lease(stub, target, ID, 1, "k" * 64)
        lease.take()
        holding = threading.Thread(target=lease.hold, daemon=True)
        holding.start()
        master.kill()
        master.start(AWAY_S)
        assert master.first("Lease") < SOON_S
        lease.let_go()
        holding.join(10.0)
