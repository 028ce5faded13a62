"""Whatever a driver states of its training, its application goes on."""

from __future__ import annotations

from typing import Any

import pytest

from hrm.core.messages import events as e
from hrm.core.vocabulary.model import Resources
from hrm.testing.virtual import VirtualCluster, unit
from hrm.wire import applications
from hrm.wire import appmaster as appmaster_wire

WHOLE = (-1, 2**63, -(2**63))
ANY = ("NaN", "Infinity", "-Infinity", -1.0, 2.0**63, 1e308)
"""As the plugin writes them."""
STATED = [
    *((name, value) for name in ("epoch", "epochs") for value in WHOLE),
    *((name, value) for name in ("loss", "accuracy", "seconds") for value in ANY),
]


@pytest.mark.parametrize(("name", "value"), STATED)
@pytest.mark.parametrize("is_first", [True, False])
def test_no_report_of_a_training_ends_its_application(
    name: str, value: Any, is_first: bool
) -> None:
    """From the driver's own words to the master: what cannot be does not count, and that is all."""
    counts = ("active_jobs", "active_stages", "completed_stages", "tasks_total", "tasks_running",
              "tasks_completed", "tasks_failed", "mean_task_s")  # fmt: skip
    report: dict[str, Any] = {**dict.fromkeys(counts, 0), "streaming_queries": [], "stages": []}
    cluster = VirtualCluster([unit("n0", 4)])
    app = cluster.submit(2, Resources(1, 10))
    cluster.settle()

    def tell(**stated: Any) -> None:
        epoch = {"loss": 0.5, "accuracy": 0.5, "seconds": 1.0, "epochs": 50, **stated}
        update = appmaster_wire.progress({**report, "training": [epoch]})
        event = applications.to_event(update, app, cluster.now)
        assert isinstance(event, e.ProgressReported)
        cluster.submit_to_master(event)
        cluster.settle()

    for number in range(0 if is_first else 9):
        tell(epoch=number)
    tell(**{"epoch": 9, name: value})
    line = cluster.master.elastic.line(cluster.app(app))
    refused = "its latest report of its training does not count: "
    unusual = name == "loss" and isinstance(value, float)
    assert line.startswith(refused + name) is not unusual, "any finite loss may be"
    assert unusual or ": report" in line or ": state" in line, "what to do instead"
    tell(epoch=10)
    assert not cluster.app(app).life.state.ended
    assert "does not count" not in cluster.master.elastic.line(cluster.app(app))
    cluster.advance(300.0)
