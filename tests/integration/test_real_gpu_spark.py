"""Spark's executors on a real GPU: PyTorch in their Python workers, on a cluster of ``hrm up``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.integration.test_gpus import A_GPU_EACH, states
from tests.real_gpu import Card, card_or_skip, computes
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

WAIT_S = 120.0
SHARE_MIB = 8192
HELD_MIB = 1000
CONTEXT_MAX_MIB = 1_500
"""More than PyTorch's CUDA context takes of any card."""


@pytest.fixture(scope="module", params=["auto", "off"])
def mps(request: pytest.FixtureRequest) -> str:
    """Through CUDA MPS where the driver offers it, as it ships; and time slicing."""
    return str(request.param)


@pytest.fixture(scope="module")
def gpu(
    mps: str, tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools
) -> Iterator[Cluster]:
    card_or_skip()
    if why := computes():
        pytest.skip(why)
    pytest.importorskip("pyspark")
    # MPS makes sockets below it, whose paths must be short.
    subject = Cluster(tmp_path_factory.mktemp("s"), _tools)
    subject.environment |= {"HRM_AGENT_MPS": mps, "HRM_AGENT_USAGE_INTERVAL_S": "0.25"}
    subject.up("--nodes", "1", "--cores", "4", "--memory", "12g")
    yield subject
    subject.down()


@pytest.fixture
def card() -> Card:
    return card_or_skip()


def saw(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in re.findall(r"^SAW (.*)$", output, re.MULTILINE)]


def submit(gpu: Cluster, executors: int, *arguments: object) -> Any:
    return gpu.submit(
        *A_GPU_EACH,
        "--conf", f"spark.hrm.executor.gpu.memory={SHARE_MIB}m",
        "--conf", f"spark.executor.instances={executors}",
        "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "--conf", "spark.executor.memoryOverhead=2g",
        str(APPS / "torch_tasks.py"), *map(str, arguments),
    )  # fmt: skip


def test_executors_share_the_gpu_and_their_python_workers_are_counted(
    gpu: Cluster, card: Card, mps: str, tmp_path: Path,
    eventually: Callable[..., Any], figure: Callable[[str, object], None],
) -> None:  # fmt: skip
    go = tmp_path / "go"
    app = submit(gpu, 3, "hold", 3, HELD_MIB, go)

    def all_hold() -> bool:
        assert app.process.poll() is None, app.output()
        return all((tmp_path / f"go.{index}.0").exists() for index in range(3))

    eventually(all_hold, WAIT_S, lambda: app.output()[-3000:])

    def used() -> list[int] | None:
        shown = gpu.application("torch-hold")
        assert shown is not None
        found = [int(x["usage"].get("gpu_memory_mib", 0)) for x in shown["containers"]]
        return found if len(found) == 3 and min(found) >= HELD_MIB else None

    seen_mib = eventually(used, WAIT_S, "each container is seen to hold what its task holds")
    assert max(seen_mib) <= HELD_MIB + CONTEXT_MAX_MIB
    figure(f"contexts_mib_mps_{mps}", [x - HELD_MIB for x in seen_mib])
    shown = gpu.application("torch-hold")
    assert shown is not None
    assert {x["resource_unit_id"] for x in shown["containers"]} == {"node-1/gpu0"}
    go.touch()
    assert app.wait() == 0, app.output()
    found = saw(app.output())
    assert len({x["executor"] for x in found}) == 3, "each executor had one task"
    for each in found:
        assert each["error"] < 1e-9 and each["held_mib"] == HELD_MIB
        assert (each["devices"], each["uuid"], each["addresses"]) == (1, card.uuid, ["0"])
        assert each["share_mib"] == str(SHARE_MIB)
    eventually(lambda: card.used_mib() < 2_000, WAIT_S, "the device memory is free again")


def test_a_task_that_takes_more_than_the_share_costs_no_other_executor_anything(
    gpu: Cluster, card: Card, mps: str, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """MPS has its allocation fail; without, the node ends its executor. It succeeds once it takes
    less; the other two have run on."""
    go = tmp_path / "go"
    app = submit(gpu, 3, "greedy", 3, SHARE_MIB + 2_000, go)

    def tried_again() -> bool:
        assert app.process.poll() is None, app.output()
        return (tmp_path / "go.0.1").exists()

    eventually(tried_again, WAIT_S, lambda: app.output()[-3000:])
    go.touch()
    assert app.wait() == 0, app.output()
    found = {x["index"]: x for x in saw(app.output())}
    assert {index: x["attempt"] for index, x in found.items()} == {0: 1, 1: 0, 2: 0}
    shown = gpu.application("torch-greedy")
    assert shown is not None
    causes = [x["end"]["cause"].removeprefix("END_CAUSE_") for x in shown["containers"]]
    limited = causes.count("GPU_MEMORY_LIMIT")
    remarks = gpu.ask("node", "show", "node-1")["remarks"]
    if any(x.startswith("MPS: on GPU 0") for x in remarks):
        assert limited == 0 and "OutOfMemoryError" in app.output(), causes
    else:
        assert limited == 1 and "of device memory" in app.output(), causes


def test_a_stage_on_the_gpu_gets_executors_of_its_own(gpu: Cluster, card: Card) -> None:
    app = gpu.submit(
        "--conf", "spark.dynamicAllocation.enabled=true",
        "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "--conf", "spark.dynamicAllocation.minExecutors=0",
        "--conf", "spark.dynamicAllocation.maxExecutors=2",
        "--conf", "spark.executor.memoryOverhead=2g",
        "--conf", f"spark.hrm.executor.gpu.memory={SHARE_MIB}m",
        str(APPS / "torch_tasks.py"), "stages",
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    squares, *found = saw(app.output())
    assert squares == {"squares": sum(x * x for x in range(100))}
    assert len(found) == 2
    for each in found:
        assert each["error"] < 1e-9
        assert (each["uuid"], each["share_mib"]) == (card.uuid, str(SHARE_MIB))
    shown = gpu.application("torch-stages")
    assert shown is not None
    on_gpu = [x for x in shown["containers"] if x["resource_unit_id"] == "node-1/gpu0"]
    by_profile = [x for x in shown["containers"] if x["resource_profile_id"] != 0]
    assert by_profile and all(x in on_gpu for x in by_profile)
    assert any(x["resource_profile_id"] == 0 for x in shown["containers"])


def test_inference_in_a_query(gpu: Cluster, card: Card) -> None:
    app = submit(gpu, 2, "pandas")
    assert app.wait() == 0, app.output()
    (found,) = saw(app.output())
    assert found["total"] == pytest.approx(sum(2.0 * x + 3.0 for x in range(1000)))
    assert states(gpu.application("torch-pandas") or {"containers": []})
