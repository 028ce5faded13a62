"""``hrm connect`` on a real cluster: one server, warm, closed to others, gone when idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from hrm.spark_servers import CONNECT_CLASS, CONNECT_TOKEN
from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster
from tests.integration.test_servers import (
    CLIENT_NEEDS,
    SETTINGS,
    ended,
    free_port,
    is_there,
    needs,
    serving,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

SMALL = (
    *("--conf", "spark.driver.memory=700m", "--conf", "spark.executor.memory=512m"),
    *("--conf", "spark.dynamicAllocation.maxExecutors=1"),
)
START_S = 240.0


def client(cluster: Cluster, variables: dict[str, str], *arguments: str) -> Any:
    """What a session at that server prints."""
    done = subprocess.run(
        [sys.executable, str(APPS / "connect_session.py"), *arguments],
        env={**cluster.environment, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=PATIENCE * 180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def refused(address: str, **headers: str) -> str:
    """Why the server refuses a call with these headers."""
    request = b"\x0a\x24" + str(uuid.uuid4()).encode() + b"\x12\x05\x0a\x03hrm"
    with grpc.insecure_channel(address.removeprefix("sc://")) as channel:
        method = "/spark.connect.SparkConnectService/ReleaseSession"
        call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=PATIENCE * 20, metadata=tuple(headers.items()))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    return str(caught.value.details())


def command_lines_with(text: str) -> list[list[str]]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if any(text in part for part in command):
            found.append(command)
    return found


def test_one_warm_server_for_commands_at_the_same_moment(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    needs("spark-connect")
    master = ("--master", cluster.address)
    options = (*SMALL, "--idle", "30m", *master)
    both = [
        cluster.start(tmp_path / f"{number}.log", "connect", *options, "--output", "json")
        for number in range(2)
    ]
    for number, process in enumerate(both):
        status = process.wait(PATIENCE * START_S)
        assert status == 0, (tmp_path / f"{number}.log").read_text()
    shown = json.loads(cluster.run("connect", *options, "--output", "json").stdout)
    submission_id = shown["submission_id"]
    logs = [(tmp_path / f"{number}.log").read_text() for number in range(2)]
    assert all(submission_id in log for log in logs)
    assert sum("submitted driver-" in log for log in logs) == 1
    assert shown["warm"] is True, shown
    assert shown["address"].startswith("sc://localhost:")

    exported = cluster.run("connect", *options, "--export", "--output", "json")
    variables = json.loads(exported.stdout)
    token = variables[CONNECT_TOKEN]
    assert refused(shown["address"]) == "No authentication token provided"
    assert refused(shown["address"], authorization="Bearer x") == "Invalid authentication token"
    assert command_lines_with(token) == []
    (properties,) = cluster.state.rglob(f"*{submission_id}*/**/spark.properties")
    assert token not in properties.read_text()

    if not all(map(is_there, CLIENT_NEEDS)):
        cluster.run("connect", *options, "--stop")
        pytest.skip("it is warm and closed; a query needs pip install pyspark[connect]")
    first = client(cluster, variables)
    assert first["total"] == 4950
    assert first["views"] == []
    assert not [name for name in first["settings"] if "rehearsal" in name or "token" in name]

    port = free_port()
    listens = ("--conf", f"spark.connect.grpc.binding.port={port}")
    of_spark = ("--class", CONNECT_CLASS, *SETTINGS, *listens, "spark-internal")
    cold = cluster.submit(*of_spark, program="hrm submit")
    cold_id, _ = serving(cluster, eventually, cold)
    begun = client(cluster, {"SPARK_REMOTE": f"sc://localhost:{port}"})
    warm = client(cluster, variables)
    assert warm["total"] == begun["total"]
    assert warm["session_s"] < begun["session_s"] / 2

    ended(cluster, cold_id, cold)
    stopped = cluster.run("connect", *options, "--stop")
    assert stopped.returncode == 0, stopped.stderr
    assert cluster.ask("submission", "show", submission_id)["server_address"] == ""


def test_a_server_lives_as_long_as_it_has_sessions(
    cluster: Cluster, eventually: Callable[..., Any]
) -> None:
    needs("spark-connect")
    options = (*SMALL, "--idle", "8s", "--master", cluster.address)
    started = cluster.run("connect", *options, "--export", "--output", "json", timeout_s=START_S)
    assert started.returncode == 0, started.stderr
    (submission,) = cluster.ask("submissions")["submissions"]
    if all(map(is_there, CLIENT_NEEDS)):
        session = client(cluster, json.loads(started.stdout), "16000")
        assert session["total"] == 4950

    def over() -> bool:
        found = cluster.ask("submission", "show", submission["submission_id"])
        return bool(found["state"] == "SUBMISSION_STATE_FINISHED")

    eventually(over, 120.0, "it ends by itself")
    log = cluster.run(
        "submission", "logs", submission["submission_id"], "--master", cluster.address
    )
    assert "the Connect server ends: it had no session for 8 s" in log.stdout
