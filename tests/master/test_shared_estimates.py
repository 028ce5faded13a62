"""The master's table of each user's steps, and when workers get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.gpu_use import USE_PARTS, GpuUsePart
from hrm.pipelines.core.model import Device, Row
from hrm.pipelines.master import estimates as module
from hrm.pipelines.master.estimates import EstimatesOfUsers
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.store import load_estimates
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw

ROW = Row("edges", 1, "P4")
USERS = {NodeName("w1"): "ann", NodeName("w2"): "ann", NodeName("w3"): "bob"}


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("hrm.pipelines.master.estimates.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tick(known: EstimatesOfUsers) -> dict[NodeName, bytes]:
    sent: dict[NodeName, bytes] = {}

    def send(worker: NodeName, message: pb.MasterPipelineMessage) -> None:
        sent[worker] = message.estimates

    known.ticked(USERS, lambda worker: known.to_send(USERS[worker]), send)
    return sent


def test_what_was_measured_of_a_pipeline_is_listed_by_step(tmp_path: Path, clock: Clock) -> None:
    known = EstimatesOfUsers(tmp_path)
    of_ann = known.of("ann")
    use = (GpuUsePart(0.5, 700.0, 0.5, 0.1),) * USE_PARTS
    of_ann.observe_run(Row("p/b", 5, "P4"), Device.GPU, 2.0, 100.0, 800.0)
    of_ann.observe_gpu_use(Row("p/b", 5, "P4"), use)
    of_ann.observe_run(Row("p/a", 1, "P4"), Device.CPU, 3.0)
    of_ann.observe_run(Row("pq/a", 1, "P4"), Device.CPU, 3.0)
    first, second = known.profiles("ann", "p")
    assert (first.row.kind, first.cpu_s, first.gpu_s, first.memory_mib) == ("p/a", 3.0, 0.0, 0.0)
    assert (first.size_above_mb, first.size_at_most_mb) == (20.0, 60.0)
    assert (second.size_above_mb, second.size_at_most_mb) == (400.0, 0.0)
    assert (second.gpu_s, second.gpu_use_runs) == (2.0, 1)
    assert (second.memory_mib, second.gpu_memory_mib) == pytest.approx((100.0, 800.0))
    assert pw.to_gpu_use(second.gpu_use) == use
    assert known.profiles("ann", "p/a") == [first]
    assert known.profiles("bob", "p") == []


def test_each_worker_gets_what_is_new_of_its_own_user(tmp_path: Path, clock: Clock) -> None:
    known = EstimatesOfUsers(tmp_path)
    known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    assert tick(known) == {}, "not before the period has passed"
    clock.now += module.SHARE_PERIOD_S
    sent = tick(known)
    assert set(sent) == {"w1", "w2"}, "of bob's steps nothing is known"
    received = Stdm(memory_mib=1000.0)
    load_estimates(sent[NodeName("w1")], received)
    assert received.run_s(ROW, Device.GPU) == pytest.approx(2.0)
    clock.now += module.SHARE_PERIOD_S
    assert tick(known) == {}, "they have it"
    known.of("ann").observe_run(ROW, Device.GPU, 4.0)
    clock.now += module.SHARE_PERIOD_S
    assert set(tick(known)) == {"w1", "w2"}


def test_a_table_that_is_too_large_is_not_sent(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SENT_BYTES_MAX", 100)
    known = EstimatesOfUsers(tmp_path)
    known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    clock.now += module.SHARE_PERIOD_S
    assert tick(known) == {}
