"""One table for all nodes: what another has measured counts as one's own."""

from __future__ import annotations

import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.scores import Sensitivity
from hrm.pipelines.policies.corun.store import dump_estimates, merge_estimates

EDGES, FACES = Row("edges", 1, "P4"), Row("faces", 2, "P4")
BOTH = frozenset(Device)
AS_FAST = dict.fromkeys(Device, 1.0)


def stdm() -> Stdm:
    made = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    for row in (EDGES, FACES):
        made.declare(row, SubtaskSpec(name="a", kind=row.kind, devices=BOTH))
    return made


def test_what_another_node_has_measured_needs_no_profile_here() -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0, 100.0, 800.0)
    there.observe_run(EDGES, Device.CPU, 6.0, 100.0)
    there.observe_cells(EDGES, {"sm": 0.7})
    assert here.measured_cells(EDGES) == 0
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.measured_cells(EDGES) == there.measured_cells(EDGES) >= 4
    assert here.run_s(EDGES, Device.GPU) == pytest.approx(2.0)
    assert here.speedup(EDGES) == pytest.approx(3.0)
    assert here.gpu_memory_mib(EDGES) == pytest.approx(800.0)
    assert here.gpu_features(EDGES)[0] == pytest.approx(0.7)


def test_of_each_time_the_one_of_more_runs_counts() -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0)
    for _ in range(3):
        here.observe_run(EDGES, Device.GPU, 5.0)
        there.observe_run(FACES, Device.GPU, 7.0)
    here.observe_run(FACES, Device.GPU, 1.0)
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.run_s(EDGES, Device.GPU) == pytest.approx(5.0)
    assert here.run_s(FACES, Device.GPU) == pytest.approx(7.0)


def test_a_slow_node_takes_longer_than_the_shared_table_has_it() -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0)
    there.observe_run(EDGES, Device.CPU, 6.0)
    merge_estimates(dump_estimates(there), here, {Device.CPU: 0.5, Device.GPU: 2.0})
    assert here.run_s(EDGES, Device.CPU) == pytest.approx(12.0)
    assert here.run_s(EDGES, Device.GPU) == pytest.approx(1.0)


def test_the_same_table_again_changes_nothing() -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0, 100.0, 800.0)
    content = dump_estimates(there)
    merge_estimates(content, here, AS_FAST)
    changes = here.changes
    merge_estimates(content, here, AS_FAST)
    assert here.changes == changes


def test_what_pairs_suffer_is_shared() -> None:
    there, here = stdm(), stdm()
    for row in (EDGES, FACES):
        there.observe_run(row, Device.GPU, 1.0)
    for _ in range(5):
        there.observe_run(EDGES, Device.GPU, 2.5, co_runners=(FACES,))
    score = Sensitivity()
    before = score.own(EDGES, [FACES], here)
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert score.own(EDGES, [FACES], here) > before + 0.8
    assert here.slowdowns.observed == there.slowdowns.observed == 5


def test_a_damaged_table_is_refused_and_changes_nothing() -> None:
    here = stdm()
    here.observe_run(EDGES, Device.GPU, 2.0)
    before = dump_estimates(here)
    for content in (b"", b"nonsense", before[:-30]):
        with pytest.raises(InvalidRequest, match="holds no estimates"):
            merge_estimates(content, here, AS_FAST)
    assert dump_estimates(here) == before
