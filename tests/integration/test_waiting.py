"""What a user sees who has to wait: the reason, at the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_client_that_waits_in_a_full_cluster_prints_why(
    cluster: Cluster,
    tmp_path: Path,
    running_app: Callable[..., dict[str, Any]],
    eventually: Callable[..., Any],
) -> None:
    holder = cluster.submit(
        "--conf", "spark.executor.instances=4", str(APPS / "total.py"), "8", "600"
    )
    running_app("total", 4, 180.0)
    waiter = cluster.submit(
        *("--conf", "spark.executor.instances=1", "--conf", "spark.hrm.class=batch"),
        *(str(APPS / "elastic.py"), "1", "0"),
    )
    says = re.compile(r"^HRM: (app-\S+) waits: (.+); see hrm app why")

    def printed() -> list[str]:
        return [line for line in waiter.output().splitlines() if says.match(line)]

    eventually(printed, 90.0, "the reason is printed")
    line = printed()[0]
    assert re.search(r"it requests 1 vcore, 896 MiB, and 0 vcores, \d+ MiB of 2 vcores", line)
    assert "Initial job has not accepted any resources" not in waiter.output(), "before Spark"
    for app in (holder, waiter):
        app.process.kill()
