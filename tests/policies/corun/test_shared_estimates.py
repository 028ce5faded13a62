"""One table for all nodes: what another has measured counts as one's own."""

from __future__ import annotations

import io

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.estimate_entry import OWN_RUNS
from hrm.pipelines.policies.corun.metrics import COLUMN, scaled_speedup
from hrm.pipelines.policies.corun.scores import Sensitivity
from hrm.pipelines.policies.corun.store import (
    dump_estimates,
    dump_within,
    load_estimates,
    merge_estimates,
)

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


def test_a_node_goes_by_its_own_runs_once_it_has_enough_whatever_others_say() -> None:
    there, slow = stdm(), stdm()
    for runs in range(1, 2 * OWN_RUNS):
        slow.observe_run(EDGES, Device.CPU, 10.0)
        for _ in range(3):
            there.observe_run(EDGES, Device.CPU, 1.0)
        merge_estimates(dump_estimates(there), slow, AS_FAST)
        believed_s = slow.run_s(EDGES, Device.CPU)
        assert believed_s == pytest.approx(1.0 if runs < OWN_RUNS else 10.0)


def test_what_a_node_has_is_not_replaced_by_as_many_observations_of_others() -> None:
    there, here = stdm(), stdm()
    for _ in range(30):
        here.observe_run(EDGES, Device.GPU, 10.0)
        there.observe_run(EDGES, Device.GPU, 1.0)
    there.observe_cells(EDGES, {"sm": 0.2})
    here.observe_cells(EDGES, {"sm": 0.9})
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.run_s(EDGES, Device.GPU) == pytest.approx(10.0)
    assert here.gpu_features(EDGES)[0] == pytest.approx(0.9)


def test_the_larger_peak_counts() -> None:
    there, here = stdm(), stdm()
    here.observe_run(EDGES, Device.GPU, 1.0, 900.0)
    for memory_mib in (100.0, 200.0):
        there.observe_run(EDGES, Device.GPU, 1.0, memory_mib)
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.memory_mib(EDGES) == pytest.approx(900.0)
    merge_estimates(dump_estimates(here), there, AS_FAST)
    assert there.memory_mib(EDGES) == pytest.approx(900.0)


def test_the_speedup_is_that_of_this_nodes_times() -> None:
    there, here = stdm(), stdm()
    for _ in range(2):
        there.observe_run(EDGES, Device.GPU, 2.0)
        there.observe_run(EDGES, Device.CPU, 6.0)
    here.observe_run(EDGES, Device.GPU, 2.0)
    slow = {Device.CPU: 0.5, Device.GPU: 1.0}
    merge_estimates(dump_estimates(there), here, slow)
    known = here.entries[EDGES].values[COLUMN["speedup"]]
    assert known == pytest.approx(scaled_speedup(6.0))


def test_rows_and_pairs_that_have_changed_are_all_that_is_in_a_change() -> None:
    there, here, later = stdm(), stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0)
    there.observe_run(FACES, Device.GPU, 2.0)
    there.observe_run(FACES, Device.GPU, 3.0, co_runners=(EDGES,))
    mark, before = there.changes, dump_estimates(there)
    there.observe_run(EDGES, Device.GPU, 3.0, co_runners=(FACES,))
    change = dump_estimates(there, since=mark)
    merge_estimates(change, later, AS_FAST)
    assert list(later.entries) == [EDGES]
    assert list(later.pair_effects.sums()) == [(EDGES, FACES)]
    for content in (before, change):
        merge_estimates(content, here, AS_FAST)
    assert here.pair_effects.sums() == there.pair_effects.sums()
    assert here.slowdowns.observed == 2


def test_a_change_without_co_runs_leaves_what_is_known_of_them() -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0)
    there.observe_run(EDGES, Device.GPU, 3.0, co_runners=(FACES,))
    merge_estimates(dump_estimates(there), here, AS_FAST)
    mark = there.changes
    there.observe_run(FACES, Device.GPU, 2.0)
    merge_estimates(dump_estimates(there, since=mark), here, AS_FAST)
    assert here.slowdowns.observed == 1
    assert list(here.pair_effects.sums()) == [(EDGES, FACES)]
    assert set(here.entries) == {EDGES, FACES}


def test_a_message_is_bounded_by_leaving_out_what_was_observed_longest_ago() -> None:
    there = stdm()
    rows = [Row(f"step {number}", 1, "P4") for number in range(500)]
    for number, row in enumerate(rows):
        there.observe_run(row, Device.GPU, 1.0 + number / 7)
    whole, is_all = dump_within(there, 1 << 20)
    here = stdm()
    merge_estimates(whole, here, AS_FAST)
    assert is_all and list(here.entries) == rows
    content, is_all = dump_within(there, len(whole) // 2)
    assert not is_all and len(content) <= len(whole) // 2
    here = stdm()
    merge_estimates(content, here, AS_FAST)
    assert here.entries and list(here.entries) == rows[-len(here.entries) :]
    assert dump_within(there, 100) == (b"", False)
    assert dump_within(there, 100, since=there.changes) == (b"", True)


def test_what_was_declared_and_never_ran_does_not_fill_messages() -> None:
    there = stdm()
    for number in range(2000):
        kind = f"never ran {number}"
        there.declare(Row(kind, 1, "P4"), SubtaskSpec(name="a", kind=kind, devices=BOTH))
    there.observe_run(EDGES, Device.GPU, 2.0)
    content, is_all = dump_within(there, 4_000)
    assert is_all and content
    kept = stdm()
    load_estimates(dump_estimates(there), kept)
    assert len(kept.devices) == 2002, "a file keeps them"


@pytest.mark.parametrize("pairs", [[[0, 9]], [[-1, 0]], [[0]]])
def test_pairs_of_rows_that_are_not_there_are_refused(pairs: list[list[int]]) -> None:
    there, here = stdm(), stdm()
    there.observe_run(EDGES, Device.GPU, 2.0)
    there.observe_run(EDGES, Device.GPU, 3.0, co_runners=(FACES,))
    arrays = dict(np.load(io.BytesIO(dump_estimates(there))))
    damaged = io.BytesIO()
    np.savez(damaged, **(arrays | {"pairs": np.array(pairs)}))
    with pytest.raises(InvalidRequest, match="are not two of its 2 rows"):
        merge_estimates(damaged.getvalue(), here, AS_FAST)
    assert not here.entries and not here.pair_effects.sums()


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
