"""Cluster deploy mode on a real cluster: drivers on nodes, restarts, the ends they come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def helpers(tmp_path: Path) -> tuple[str, str]:
    """A module for ``--py-files`` and a file for ``--files``."""
    module, data = tmp_path / "helper.py", tmp_path / "data.txt"
    module.write_text("def square(x):\n    return x * x\n")
    data.write_text("from a file\n")
    return str(module), str(data)


def test_a_python_application_runs_with_its_driver_on_a_node(
    cluster: Cluster, helpers: tuple[str, str], eventually: Callable[..., Any]
) -> None:
    module, data = helpers
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--name", "in-cluster", "--driver-memory", "600m"),
        *("--conf", "spark.executor.instances=1", "--conf", "spark.test.words=two words = 2"),
        *("--py-files", module, "--files", data),
        *(str(APPS / "cluster_mode.py"), "stop", "data.txt"),
    )
    assert app.wait(180) == 0, app.output()
    assert "FINISHED" in app.output()
    (found,) = cluster.ask("submissions", "--all")["submissions"]
    submission_id = found["submission_id"]
    log = cluster.run(
        "submission", "logs", submission_id, "--stream", "stdout", "--master", cluster.address
    )
    assert "SUM 328350 from a file" in log.stdout
    assert "CONF two words = 2 app" in log.stdout
