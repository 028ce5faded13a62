"""Run times of a real Spark's tasks, by the platform of the nodes where they ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FAR = "127.0.0.2"


def are_observed(cluster: Cluster, platforms: set[str], times: int) -> bool:
    """Has the one application that has run been observed so often on each?"""
    kinds = cluster.ask("affinity")["kinds"]
    counts = {x["platform"]: x["observations"] for kind in kinds for x in kind["platforms"]}
    return counts.keys() == platforms and min(counts.values()) > times - 0.5


def test_a_platform_on_which_tasks_take_longer_is_found(
    tmp_path: Path, _tools: SparkTools, go: Path, eventually: Callable[..., Any]
) -> None:
    cluster = Cluster(tmp_path, _tools)
    cluster.environment["HRM_AGENT_PLATFORM"] = "new"
    cluster.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    old = cluster.start(
        tmp_path / "old.log",
        *("agent", "--name", "far", "--master", cluster.address, "--run-as", "off"),
        *("--cores", "2", "--memory-mib", "3072", "--work-dir", str(tmp_path / "far")),
        *("--host", FAR, "--platform", "old"),
    )
    try:
        eventually(lambda: len(cluster.ask("nodes")["nodes"]) == 2, 30.0, "both are there")
        nothing = cluster.run("affinity", "--master", cluster.address)
        assert nothing.stdout == ""
        assert "nothing is learned yet" in nothing.stderr
        app = cluster.submit(
            *("--conf", "spark.executor.instances=2", "--conf", "spark.executor.cores=2"),
            *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
            *(str(APPS / "measured.py"), FAR, str(go)),
        )
        eventually(
            lambda: are_observed(cluster, {"new", "old"}, 2),
            120.0,
            "both platforms are observed twice",
        )
        go.touch()
        assert app.wait() == 0, app.output()

        found = cluster.ask("affinity")
        assert found["platforms"] == ["new", "old"]
        (kind,) = found["kinds"]
        assert (kind["queue"], kind["name"]) == ("root.default", "measured #")
        new, slow = kind["platforms"]
        assert new["relative"] == 1.0
        assert 1.5 < slow["relative"] < 6.0
        assert new["egocentric"] > 1 > slow["egocentric"]
        (itself,) = kind["co_runners"]
        assert itself["name"] == "measured #"
        shown = cluster.run("affinity", "--queue", "default", "--master", cluster.address)
        assert "measured #" in shown.stdout, shown
    finally:
        old.terminate()
        old.wait(30)
        cluster.down()
