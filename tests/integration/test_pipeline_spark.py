"""Operators of Spark on their executors' parts of one GPU: a batch query with a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 1_000
SQUARES = 285  # of 0 to 9
WAIT_S = 240.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("pipelines"), _tools)
    subject.environment |= {
        "HRM_AGENT_GPUS": json.dumps([{"memory_mib": 8192, "name": "test"}]),
    }
    subject.up("--nodes", "1", "--cores", "4", "--memory", "5g")
    yield subject
    subject.down()


def test_a_batch_query_and_a_stream_share_the_gpu(node: Cluster, tmp_path: Path) -> None:
    app = node.submit(
        "--conf", "spark.executor.instances=2",
        "--conf", "spark.executor.resource.gpu.amount=1",
        "--conf", "spark.hrm.executor.gpu.memory=3500m",
        str(APPS / "detecting.py"), str(ROWS), str(tmp_path / "checkpoint"),
    )  # fmt: skip
    assert app.wait(WAIT_S) == 0, app.output()
    batch = re.search(r"^BATCH (\d+) (\d+)$", app.output(), re.MULTILINE)
    stream = re.search(r"^STREAM (\d+) (\d+)$", app.output(), re.MULTILINE)
    assert batch and stream, app.output()
    assert (int(batch[1]), int(batch[2])) == (ROWS, SQUARES * ROWS // 10)
    assert int(stream[1]) > 0 and int(stream[2]) == 0


def test_an_executor_without_a_gpu_states_what_a_step_for_a_gpu_alone_needs(
    node: Cluster, tmp_path: Path
) -> None:
    app = node.submit(
        str(APPS / "detecting.py"), "10", str(tmp_path / "checkpoint"), master="local[1]"
    )
    assert app.wait(WAIT_S) != 0
    assert "this executor has no part of a GPU; request one: --conf" in app.output()
