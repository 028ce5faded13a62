"""Spark's Connect and Thrift servers as submitted drivers on a real cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from hrm.spark.launch import find_spark
from hrm.spark_servers import CONNECT_CLASS, THRIFT_CLASS
from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster, Submitted, command_of, executors_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

SETTINGS = (*("--driver-memory", "700m", "--conf", "spark.executor.instances=1"),)
CLIENT_NEEDS = ("pandas", "pyarrow", "grpc_status", "google.rpc", "zstandard")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def needs(jar: str) -> None:
    if not list((find_spark().home / "jars").glob(f"{jar}_*.jar")):
        pytest.skip(f"this Spark has no {jar}")


def serving(
    cluster: Cluster, eventually: Callable[..., Any], server: Submitted
) -> tuple[str, dict[str, Any]]:
    """The id of a server, and what is shown of it once it accepts connections."""

    def reached() -> dict[str, Any] | None:
        assert server.process.poll() is None, server.output()
        found = re.search(r"submitted (driver-\S+)", server.output())
        if found is None:
            return None
        shown = cluster.ask("submission", "show", found[1])
        if not shown["server_address"]:
            return None
        host, _, port = shown["server_address"].partition("://")[2].rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            return None
        return shown

    shown: dict[str, Any] = eventually(reached, 180.0, "the server accepts connections")
    return shown["submission_id"], shown


def ended(cluster: Cluster, submission_id: str, server: Submitted) -> None:
    killed = cluster.run("submission", "kill", submission_id, "--master", cluster.address)
    assert killed.returncode == 0, killed.stderr
    assert server.wait(60) != 0
    assert cluster.ask("submission", "show", submission_id)["server_address"] == ""


def test_a_connect_server_on_a_node(cluster: Cluster, eventually: Callable[..., Any]) -> None:
    needs("spark-connect")
    port = free_port()
    listens = ("--conf", f"spark.connect.grpc.binding.port={port}")
    of_spark = ("--class", CONNECT_CLASS, *SETTINGS, *listens, "spark-internal")
    server = cluster.submit(*of_spark, program="hrm submit")
    submission_id, shown = serving(cluster, eventually, server)
    assert shown["server_address"] == f"sc://127.0.0.1:{port}"
    assert f"at sc://127.0.0.1:{port}" in server.output()

    second = cluster.submit(
        "--deploy-mode", "cluster", "--class", CONNECT_CLASS, *SETTINGS, *listens
    )
    assert second.wait(120) != 0
    assert f"cannot listen at 127.0.0.1:{port} of this node" in second.output()
    assert "spark.connect.grpc.binding.port" in second.output()

    missing = [name for name in CLIENT_NEEDS if not is_there(name)]
    if not missing:
        client = subprocess.run(
            [sys.executable, str(APPS / "connect_client.py"), shown["server_address"]],
            env={**cluster.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, timeout=PATIENCE * 180, check=False,
        )  # fmt: skip
        assert client.stdout.splitlines()[-1:] == ["SUM 4950"], client.stderr
    ended(cluster, submission_id, server)
    if missing:
        pytest.skip(
            f"it listens; a query needs {', '.join(missing)} (pip install pyspark[connect])"
        )


def test_a_supervised_server_whose_application_fails_starts_again(
    cluster: Cluster, eventually: Callable[..., Any]
) -> None:
    needs("spark-connect")
    ends = (
        *("--conf", "spark.hrm.executor.maxFailures=1"),
        *("--conf", "spark.hrm.driver.failureGrace=2s"),
    )
    listens = ("--conf", f"spark.connect.grpc.binding.port={free_port()}")
    of_spark = ("--class", CONNECT_CLASS, *SETTINGS, *ends, *listens, "spark-internal")
    server = cluster.submit("--supervise", *of_spark, program="hrm submit")
    submission_id, shown = serving(cluster, eventually, server)
    (application_id,) = shown["application_ids"]

    def ours() -> list[psutil.Process]:
        found = executors_of(application_id)
        return [each for each in found if str(cluster.state) in command_of(each)]

    (executor,) = eventually(ours, 60.0, "its executor runs")
    executor.kill()

    def again() -> bool:
        found = cluster.ask("submission", "show", submission_id)
        return bool(found["attempt"] == 2 and len(found["application_ids"]) == 2)

    eventually(again, 180.0, "the next driver has an application of its own")
    ended(cluster, submission_id, server)


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_a_thrift_server_on_a_node(cluster: Cluster, eventually: Callable[..., Any]) -> None:
    needs("spark-hive-thriftserver")
    port = free_port()
    own = ("--hiveconf", f"hive.server2.thrift.port={port}")
    server = cluster.submit("--class", THRIFT_CLASS, *SETTINGS, *own, program="hrm submit")
    submission_id, shown = serving(cluster, eventually, server)
    assert shown["server_address"] == f"jdbc:hive2://127.0.0.1:{port}"
    beeline = find_spark().home / "bin" / "beeline"
    has_client = beeline.is_file() and any((find_spark().home / "jars").glob("hive-beeline-*.jar"))
    if has_client:
        query = "SELECT sum(id) AS total FROM range(0, 100, 1, 4)"
        quiet = ("--outputformat=csv2", "--silent=true", "--showHeader=false")
        client = subprocess.run(
            [str(beeline), "-u", shown["server_address"], "-n", "tester", *quiet, "-e", query],
            env={**cluster.environment}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE * 180, check=False,
        )  # fmt: skip
        assert client.stdout.split()[-1:] == ["4950"], client.stderr
    ended(cluster, submission_id, server)
    if not has_client:
        pytest.skip("it listens; a query needs Spark's bin/beeline, which is missing here")
