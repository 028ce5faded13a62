"""Spark executors on GPUs: on declared ones, which need no device."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ONE_GPU = {"HRM_AGENT_GPUS": json.dumps([{"memory_mib": 16384, "numa": 0, "name": "test"}])}
A_GPU_EACH = (
    "--conf", "spark.executor.resource.gpu.amount=1",
    "--conf", "spark.task.resource.gpu.amount=1",
)  # fmt: skip
WAIT_S = 90.0


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("gpus"), _tools)
    subject.environment |= ONE_GPU
    subject.up("--nodes", "1", "--cores", "4", "--memory", "5g")
    yield subject
    subject.down()


def states(app: dict[str, Any]) -> dict[str, str]:
    return {
        x["executor_id"]: x["state"].removeprefix("CONTAINER_STATE_") for x in app["containers"]
    }


def saw(output: str) -> list[list[str]]:
    return [line.split() for line in re.findall(r"^SAW (.*)$", output, re.MULTILINE)]


def test_a_declared_gpu_is_shown_as_one(gpus: Cluster) -> None:
    shown = gpus.run("nodes", "--master", gpus.address, timeout_s=30.0)
    assert "declared" in shown.stdout
    units = gpus.ask("nodes")["nodes"][0]["resource_units"]
    assert [bool(x["unit"].get("gpu", {}).get("declared")) for x in units] == [False, True]
    status = gpus.ask("status")
    assert (status["capacity"]["vcores"], status["capacity"]["gpu_memory_mib"]) == ("4", "16384")


def test_two_executors_share_a_gpu_and_a_third_waits_for_one_to_end(
    gpus: Cluster, eventually: Callable[..., Any]
) -> None:
    app = gpus.submit(
        *A_GPU_EACH,
        "--conf", "spark.hrm.executor.gpu.memory=8g",
        "--conf", "spark.executor.instances=3",
        "--conf", "spark.scheduler.minRegisteredResourcesRatio=0.6",
        str(APPS / "gpus.py"), "4", "4",
    )  # fmt: skip

    def two_and_one() -> dict[str, Any] | None:
        shown = gpus.application("gpus")
        found = sorted(states(shown).values()) if shown else []
        return shown if found == ["PENDING", "RUNNING", "RUNNING"] else None

    # Units of a node with GPUs share its cores, and have no queue of batch then.
    shown = eventually(two_and_one, WAIT_S, "two run, one waits at its scheduler")
    running = [x for x in shown["containers"] if x["state"].endswith("RUNNING")]
    assert {x["resource_unit_id"] for x in running} == {"node-1/gpu0"}
    assert gpus.ask("status")["free"].get("gpu_memory_mib", "0") == "0"
    assert app.wait() == 0, app.output()
    seen = saw(app.output())
    assert len(seen) == 4
    assert {tuple(line[:3]) for line in seen} == {("0", "0", "8192")}
    assert len({line[3] for line in seen}) == 2, "both executors had tasks"


def test_a_gpu_without_a_number_is_a_whole_one(gpus: Cluster) -> None:
    app = gpus.submit(
        *A_GPU_EACH, "--conf", "spark.executor.instances=1", str(APPS / "gpus.py"), "1", "0"
    )
    assert app.wait() == 0, app.output()
    assert saw(app.output())[0][:3] == ["0", "0", "16384"]


def test_what_no_gpu_can_give_is_refused_at_once(gpus: Cluster) -> None:
    too_much = gpus.submit(
        *A_GPU_EACH, "--conf", "spark.hrm.executor.gpu.memory=20g", str(APPS / "gpus.py"), "1", "0"
    )
    assert too_much.wait(60.0) != 0
    assert "the largest GPU, of node-1, is GPU 0, test, 16384 MiB" in too_much.output()
    two = gpus.submit(
        "--conf", "spark.executor.resource.gpu.amount=2",
        "--conf", "spark.task.resource.gpu.amount=2",
        str(APPS / "gpus.py"), "1", "0",
    )  # fmt: skip
    assert two.wait(60.0) != 0
    assert "no node offers 2 GPUs in one resource unit, only 1" in two.output()


def test_a_stage_gets_executors_of_its_own_profile(gpus: Cluster) -> None:
    app = gpus.submit(
        "--conf", "spark.dynamicAllocation.enabled=true",
        "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "--conf", "spark.dynamicAllocation.minExecutors=0",
        "--conf", "spark.dynamicAllocation.maxExecutors=2",
        "--conf", "spark.hrm.executor.gpu.memory=4g",
        str(APPS / "gpus.py"), "2", "1", "profile",
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    assert {tuple(line[:3]) for line in saw(app.output())} == {("0", "0", "4096")}
    shown = gpus.application("gpus")
    assert shown is not None
    on_gpu = [x for x in shown["containers"] if x["resource_unit_id"] == "node-1/gpu0"]
    assert on_gpu and all(x["resource_profile_id"] != 0 for x in on_gpu)


def test_a_node_is_repartitioned_while_it_runs(
    gpus: Cluster, eventually: Callable[..., Any]
) -> None:
    eventually(lambda: gpus.free_vcores() == 4, WAIT_S, "nothing runs")
    refused = gpus.run("node", "bind", "node-1", "--mode", "partial", "--bound-cores", "4",
                       "--master", gpus.address)  # fmt: skip
    assert refused.returncode != 0
    assert "fewer than the 1 kept for CPU jobs" in refused.stderr
    response = gpus.ask("node", "bind", "node-1", "--mode", "partial", "--bound-cores", "3")
    assert "node-1 is bound: partial, 3 cores a GPU" in response["message"]

    def vcores() -> list[str]:
        units = gpus.ask("nodes")["nodes"][0]["resource_units"]
        return [x["unit"]["capacity"]["vcores"] for x in units]

    eventually(lambda: vcores() == ["1", "3"], WAIT_S, "the master knows the new units")
    app = gpus.submit(
        *A_GPU_EACH, "--conf", "spark.executor.instances=1", str(APPS / "gpus.py"), "1", "0"
    )
    assert app.wait() == 0, app.output()
