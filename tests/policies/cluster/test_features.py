"""Layout of the paper's observation, scales, and the selection of candidates."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.pipelines.policies.cluster.features import (
    CANDIDATES_MAX,
    NODE_FIELDS,
    TASK_FIELDS,
    TYPES,
    FlatEncoder,
    Layout,
    completion_s,
    node_features,
    size_feature,
    task_features,
)
from hrm.pipelines.policies.cluster.scale_free import MOST, NODE_INPUTS, TASK_INPUTS, observe_set
from tests.policies.cluster.views import all_fit, arranged, task_of, view_of


def _paper(history: int = 1) -> Layout:
    return Layout("paper", history=history)


@pytest.mark.parametrize(("nodes", "one", "four"), [(8, 50, 224), (9, 56, 251), (11, 68, 305)])
def test_the_papers_dimensions(nodes: int, one: int, four: int) -> None:
    assert (_paper().inputs(nodes), _paper(4).inputs(nodes)) == (one, four)


def test_the_papers_order_of_numbers() -> None:
    view = view_of(11)
    state = FlatEncoder(_paper(), view.names).observe(task_of(), view, all_fit(view))
    assert state.x[0] == np.float32(TYPES.index("video-synopsis") / 4)
    assert state.x[1] == np.float32(size_feature(60.0))
    assert state.x[2] == view.cpu[0]
    assert state.x[67] == view.received[10]
    assert list(state.x[8:14]) == [
        getattr(view, name)[1]
        for name in ("cpu", "gpu", "memory", "gpu_memory", "sent", "received")
    ]


def test_size_is_logarithmic_and_bounded() -> None:
    sizes = [size_feature(size) for size in (0, 180, 200, 220, 400, 1e9)]
    assert sizes == pytest.approx([0, 0.867289, 0.884775, 0.900600, 1, 1.5], abs=1e-6)


def test_history_is_padded_on_the_left_and_holds_what_was_done() -> None:
    views = [view_of(3, seed) for seed in range(3)]
    encoder = FlatEncoder(_paper(3), views[0].names)
    width = _paper().inputs(3)
    first = encoder.observe(task_of(), views[0], all_fit(views[0])).x
    assert not first[: 2 * (width + 3)].any()
    newest = first[-width:]
    encoder.acted(2)
    encoder.observe(task_of(), views[1], all_fit(views[1]))
    encoder.acted(0)
    x = encoder.observe(task_of(), views[2], all_fit(views[2])).x
    assert np.array_equal(x[:width], newest)
    assert list(x[width : width + 3]) == [0, 0, 1]
    assert list(x[2 * width + 3 : 2 * width + 6]) == [1, 0, 0]
    encoder.forget()
    assert not encoder.observe(task_of(), views[2], all_fit(views[2])).x[: 2 * (width + 3)].any()


def test_history_follows_nodes_by_name() -> None:
    view = view_of(3)
    encoder = FlatEncoder(_paper(2), view.names)
    encoder.observe(task_of(), view, all_fit(view))
    encoder.acted(2)
    moved = encoder.renamed([NodeName("n2"), NodeName("new"), NodeName("n0")])
    after = view_of(3, 1, names=moved.names)
    x = moved.observe(task_of(), after, all_fit(after)).x
    assert list(x[2:8:5]) == [view.cpu[2], view.received[2]]
    assert not x[8:14].any()
    assert list(x[20:23]) == [1, 0, 0]


def test_nodes_that_the_view_lacks_are_zero_and_masked() -> None:
    view = view_of(4)
    encoder = FlatEncoder(_paper(), view.names)
    some = arranged(view, [3, 1])
    state = encoder.observe(task_of(), some, all_fit(some))
    assert list(state.mask) == [False, True, False, True]
    assert list(state.rows) == [-1, 1, -1, 0]
    assert not state.x[2:8].any()
    assert state.x[20] == view.cpu[3]


def test_features_have_the_fields_that_they_report() -> None:
    view = view_of(5)
    features = node_features(view, np.arange(5))
    assert features.shape == (5, len(NODE_FIELDS))
    assert np.array_equal(features[:, NODE_FIELDS.index("gpu_memory")], view.gpu_memory)
    wait = np.log1p(view.expected_wait_s) / np.log1p(600.0)
    assert features[:, NODE_FIELDS.index("expected_wait")] == pytest.approx(wait, rel=1e-5)
    task = task_of(size_mb=400.0, workload_class=WorkloadClass.STREAM)
    values = dict(zip(TASK_FIELDS, task_features(task, view, TYPES, 64), strict=True))
    assert [values[f"type_{n}"] for n in range(4)] == [0, 0, 0, 1]
    assert (values["size"], values["stream"], values["nodes"]) == pytest.approx((1, 1, 1))
    assert values["cores"] == pytest.approx(1 / 16)


def test_features_stay_small_whatever_is_in_the_view() -> None:
    huge = np.full(3, 1e9, dtype=np.float32)
    view = view_of(3, running=huge, expected_wait_s=huge, task_s=huge, gpus=huge, cpu_speed=huge,
                   waiting_batch=huge, free_memory_mib=huge, queue_length=10**9)  # fmt: skip
    state = observe_set(task_of(size_mb=1e12), view, all_fit(view))
    assert np.abs(state.nodes).max() <= MOST
    assert np.abs(state.task).max() <= MOST


def test_at_most_64_nodes_are_candidates_and_the_earliest_is_one() -> None:
    view = view_of(1000, 5)
    fits = all_fit(view)
    fits[::3] = False
    state = observe_set(task_of(), view, fits)
    assert len(state.rows) == CANDIDATES_MAX
    assert fits[state.rows].all()
    assert list(state.rows) == sorted(state.rows)
    done_s = np.where(fits, completion_s(view), np.inf)
    assert set(state.rows) == set(np.argsort(done_s)[:CANDIDATES_MAX])


def test_nodes_that_can_never_run_the_task_are_no_candidates_unless_all_are() -> None:
    view = view_of(3, task_s=np.array([np.inf, 3, np.inf], dtype=np.float32))
    assert list(observe_set(task_of(), view, all_fit(view)).rows) == [1]
    never = dataclasses.replace(view, task_s=np.full(3, np.inf, dtype=np.float32))
    assert list(observe_set(task_of(), never, all_fit(view)).rows) == [0, 1, 2]


def test_the_schema_distinguishes_layouts() -> None:
    layouts = [_paper(), _paper(4), Layout(), Layout(types=("a", "b"))]
    assert len({layout.schema() for layout in layouts}) == 4


@pytest.mark.parametrize("factor", [1 / 64, 64.0])
def test_what_ldwp_set_sees_has_no_unit_of_time(factor: float) -> None:
    view = view_of(7, 3)
    longer = dataclasses.replace(
        view,
        expected_wait_s=view.expected_wait_s * np.float32(factor),
        task_s=view.task_s * np.float32(factor),
        report_age_s=view.report_age_s * np.float32(factor),
        arrival_rate_per_s=view.arrival_rate_per_s / factor,
    )
    before = observe_set(task_of(), view, all_fit(view))
    after = observe_set(task_of(), longer, all_fit(view))
    assert after.nodes == pytest.approx(before.nodes, abs=1e-4)
    assert after.task == pytest.approx(before.task, abs=1e-4)


def test_what_ldwp_set_sees_counts_by_units_and_names_no_pipeline() -> None:
    view = view_of(4, 1)
    twice = dataclasses.replace(
        view,
        **{
            name: getattr(view, name) * np.float32(2)
            for name in ("cores", "free_cores", "gpus", "running", "waiting_batch")
        },
        waiting_stream=view.waiting_stream * np.float32(2),
    )
    before = observe_set(task_of(), view, all_fit(view))
    after = observe_set(task_of(pipeline="speech"), twice, all_fit(view))
    alike = [place for place, name in enumerate(NODE_INPUTS) if name != "units"]
    assert after.nodes[:, alike] == pytest.approx(before.nodes[:, alike], abs=1e-5)
    free = [place for place, name in enumerate(TASK_INPUTS) if name not in ("offered", "queue")]
    assert after.task[free] == pytest.approx(before.task[free], abs=1e-5)


def test_a_number_that_is_none_stays_none() -> None:
    nan = np.full(4, np.nan, dtype=np.float32)
    for name in ("cpu", "expected_wait_s", "report_age_s"):
        view = view_of(4, 0, **{name: nan})
        state = observe_set(task_of(), view, all_fit(view))
        assert np.isnan(state.nodes).any(), name
