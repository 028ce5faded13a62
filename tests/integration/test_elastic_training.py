"""An application that trains a model, on a cluster that others wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("narrow"), _tools)
    subject.up("--nodes", "1", "--cores", "3", "--memory", "4g")
    yield subject
    subject.down()


def test_what_learns_no_more_gives_up_executors_and_loses_nothing(
    narrow: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    training = narrow.submit(
        "--conf", "spark.executor.instances=3", str(APPS / "training.py"), str(tmp_path)
    )
    eventually(lambda: running(narrow, "training") == 3, 90.0, "it has the cluster")
    other = narrow.submit("--conf", "spark.executor.instances=2", str(APPS / "total.py"), "20", "1")
    app = eventually(lambda: limited(narrow, 1), 120.0, "it has converged, and may have one")
    assert app["training"]["accuracy"] > 0.9
    why = narrow.ask("app", "why", app["application_id"])
    assert any("it may have 1 of the 3 executors" in line for line in why["details"])
    shown = narrow.run("app", "show", app["application_id"], "--master", narrow.address).stdout
    assert re.search(r"training +epoch \d+: loss .* accuracy .*1 executors at most", shown)
    eventually(lambda: running(narrow, "training") == 1, 60.0, "Spark has ended the others")
    assert other.wait() == 0, other.output()

    eventually(lambda: running(narrow, "training") == 3, 120.0, "what nobody wants is back")
    app = narrow.application("training")
    assert app is not None
    ends = [x["end"] for x in app["containers"] if x.get("end")]
    assert {x["cause"] for x in ends} == {"END_CAUSE_EXITED"}, "by themselves"
    assert {x.get("exit_code", 0) for x in ends} == {0}
    (tmp_path / "finish").touch()
    assert training.wait() == 0, training.output()
    found = re.search(r"LINE (\S+) (\S+) AFTER (\d+)", training.output())
    assert found is not None
    assert [float(found[1]), float(found[2])] == pytest.approx(fitted(int(found[3])), abs=0.0011)


def fitted(epochs: int) -> list[float]:
    """The line that ``training.py`` has after so many epochs, in one process."""
    points = [(x / 200, 3 * x / 200 + 1) for x in range(200)]
    slope = offset = 0.0
    for _ in range(epochs):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= sum(off * x for off, x in errors) / 200
        offset -= sum(off for off, _ in errors) / 200
    return [slope, offset]


def running(cluster: Cluster, name: str) -> int:
    app = cluster.application(name)
    return int(app["containers_running"]) if app is not None else 0


def limited(cluster: Cluster, executors: int) -> dict[str, Any] | None:
    app = cluster.application("training")
    return app if app is not None and app.get("executors_max") == executors else None
