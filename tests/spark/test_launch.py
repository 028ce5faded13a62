"""What an executor's environment takes from the application and what from its node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.core.vocabulary.model import ContainerSpec, LaunchContext
from hrm.errors import LaunchFailed
from hrm.spark.launch import Java, Spark, executor_launch
from tests.agent.test_launch import SPEC


def spec_with(**environment: str) -> ContainerSpec:
    """An executor whose application sets these variables."""
    launch_context = LaunchContext(
        driver_url="spark://x@127.0.0.1:1",
        spark_version="4.3.0",
        environment=tuple(environment.items()),
    )
    return replace(SPEC, launch=launch_context)


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    (tmp_path / "jars").mkdir()
    return Spark(home=tmp_path, version="4.3.0", python_path=())


@pytest.mark.parametrize(
    ("node", "application", "expected"),
    [
        ("/node/lib", "/app/lib", "/app/lib:/node/lib"),
        ("/node/lib", "", "/node/lib"),
        ("", "/app/lib", "/app/lib"),
        ("", "", None),
    ],
)
def test_library_paths_of_application_and_node(
    monkeypatch: pytest.MonkeyPatch, spark: Spark, node: str, application: str, expected: str | None
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if node:
        monkeypatch.setenv("LD_LIBRARY_PATH", node)
    spec = spec_with(LD_LIBRARY_PATH=application) if application else spec_with()
    launch = executor_launch(
        spec,
        spark=spark,
        java=Java(command=Path("/jdk/bin/java"), home=None, version="17"),
        host="h",
        work_dir=Path("/work"),
    )
    assert launch.environment.get("LD_LIBRARY_PATH") == expected


@pytest.mark.parametrize("like", [True, False])
def test_a_python_that_is_not_the_drivers_is_refused_with_both_versions(
    spark: Spark, like: bool
) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    spec = spec_with(HRM_DRIVER_PYTHON=here if like else "3.7")

    def launch() -> object:
        return executor_launch(
            spec,
            spark=spark,
            java=Java(command=Path("/jdk/bin/java"), home=None, version="17"),
            host="h",
            work_dir=Path("/work"),
        )

    if like:
        assert launch()
        return
    with pytest.raises(LaunchFailed, match=rf"runs Python 3\.7, and this node has Python {here}"):
        launch()
