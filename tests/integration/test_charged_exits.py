"""Exits of executors that are not the fault of the tasks on them, and those that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import APPS, Cluster, Submitted

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SUM = 499500
NO_DIRECTORY, NO_HEARTBEAT, OUT_OF_DISK = 53, 56, 54


def exits(cluster: Cluster, directory: Path, *more: str, codes: tuple[int, ...]) -> Submitted:
    """A job for each code; the first failure of a task would end it."""
    return cluster.submit(
        *("--conf", "spark.task.maxFailures=1", "--conf", "spark.executor.instances=1", *more),
        *(str(APPS / "exits.py"), str(directory), *map(str, codes)),
    )


def test_no_task_is_charged_with_an_exit_that_is_not_its_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    """No local directory could be made; the driver could not be reached by heartbeat. Nor does the
    application have too many failed executors."""
    codes = (NO_DIRECTORY, NO_HEARTBEAT)
    app = exits(cluster, tmp_path, "--conf", "spark.hrm.executor.maxFailures=1", codes=codes)
    assert app.wait() == 0, app.output()[-4000:]
    for code in codes:
        assert f"TOTAL {SUM} AFTER {code}" in app.output()
    shown = cluster.application("exits")
    assert shown is not None
    ends = [c["end"].get("exit_code", 0) for c in shown["containers"]]
    assert ends[:2] == list(codes)
    assert len(ends) == 3, "one replacement for each"


def test_any_other_exit_is_charged(cluster: Cluster, tmp_path: Path) -> None:
    app = exits(cluster, tmp_path, codes=(OUT_OF_DISK,))
    assert app.wait() != 0
    assert "failed 1 times" in app.output(), app.output()[-4000:]
