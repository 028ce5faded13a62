"""The networks in numpy: sizes, symmetry, bounds, and transfer by name."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import PipelineClusterView
from hrm.pipelines.policies.cluster.features import Layout
from hrm.pipelines.policies.cluster.ldwp import Ldwp, LdwpSet, TaskProposal
from hrm.pipelines.policies.cluster.networks import MEMBERS, mlp_shapes, set_q, set_shapes, transfer
from hrm.pipelines.policies.cluster.scale_free import observe_set
from tests.policies.cluster.views import all_fit, arranged, mlp_model, set_model, task_of, view_of


def _numbers(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


@pytest.mark.parametrize(("nodes", "numbers"), [(8, 46_984), (9, 48_649), (11, 51_979)])
def test_the_papers_network_has_the_papers_size(nodes: int, numbers: int) -> None:
    assert _numbers(mlp_shapes(Layout("paper"), nodes)) == numbers


def test_the_members_of_the_set_network_have_the_size_that_was_planned() -> None:
    assert _numbers(set_shapes()) == MEMBERS * 18_305


def _proposed(view: PipelineClusterView, fits: object = None) -> TaskProposal:
    marks = all_fit(view) if fits is None else np.asarray(fits)
    return LdwpSet(set_model()).propose(task_of(), view, marks)


def test_permuting_the_nodes_permutes_their_values() -> None:
    view = view_of(40, 2)
    order = np.random.default_rng(0).permutation(40)
    straight, permuted = _proposed(view), _proposed(arranged(view, order))
    assert permuted.q == pytest.approx(straight.q[order], abs=1e-5)
    assert order[permuted.row] == straight.row


def test_masked_nodes_are_left_out_of_the_pools_too() -> None:
    view = view_of(20, 3)
    fits = np.arange(20) % 3 > 0
    alone = _proposed(arranged(view, np.flatnonzero(fits)))
    among = _proposed(view, fits)
    # The number of nodes that live is an input; the value of the others' rows is none.
    masked = arranged(view, np.arange(20))
    masked.cpu[~fits], masked.expected_wait_s[~fits] = 1.0, 1e6
    assert np.array_equal(_proposed(masked, fits).q, among.q)
    assert alone.q.shape == among.q.shape
    assert set(among.rows) == set(np.flatnonzero(fits))


@pytest.mark.parametrize("nodes", [1, 2, 11, 1_000, 10_000])
def test_values_are_finite_for_any_number_of_nodes(nodes: int) -> None:
    view = view_of(nodes, 1)
    assert np.isfinite(_proposed(view).q).all()
    state = observe_set(task_of(), view, all_fit(view))
    repeated = np.tile(state.nodes, (1 + nodes // len(state.rows), 1))
    assert np.isfinite(set_q(set_model().arrays, repeated, state.task)).all()


def test_the_papers_network_has_its_nodes_by_name() -> None:
    view = view_of(11, 4)
    order = np.random.default_rng(1).permutation(11)
    policy = Ldwp(mlp_model(11))
    straight = policy.propose(task_of(), view, all_fit(view))
    other = policy.propose(task_of(), arranged(view, order), all_fit(view))
    by_name = dict(zip(np.array(view.names)[straight.rows], straight.q, strict=True))
    assert other.q == pytest.approx(
        [by_name[view.names[order[row]]] for row in other.rows], abs=1e-6
    )


A, B, C, D = ((NodeName(name), platform) for name, platform in ("ax", "by", "cx", "dy"))


def _marked(layout: Layout, nodes: int) -> dict[str, np.ndarray]:
    """Weights of which each row of w1 and each column of w3 holds its own number."""
    inputs = layout.inputs(nodes)
    return {
        "w1": np.repeat(np.arange(inputs, dtype=np.float32)[:, None], 256, axis=1),
        "b1": np.ones(256, dtype=np.float32),
        "w2": np.ones((256, 128), dtype=np.float32),
        "b2": np.ones(128, dtype=np.float32),
        "w3": np.repeat(np.arange(nodes, dtype=np.float32)[None], 128, axis=0),
        "b3": np.arange(nodes, dtype=np.float32),
    }


def test_transfer_copies_by_name() -> None:
    layout = Layout("paper")
    moved = transfer(_marked(layout, 3), layout, [A, B, C], [A, C, D])
    rows = moved["w1"][:, 0]
    assert list(rows[:8]) == list(range(8))
    assert list(rows[8:14]) == list(range(14, 20))
    # d is of b's platform, but b is gone: the mean of a and c.
    assert list(rows[14:20]) == [(2 + n + 14 + n) / 2 for n in range(6)]
    assert list(moved["b3"]) == [0, 2, 1]
    assert list(moved["w3"][5]) == [0, 2, 1]
    assert moved["w1"].shape == (20, 256)


def test_a_new_node_begins_as_one_of_its_platform() -> None:
    layout = Layout("paper")
    moved = transfer(_marked(layout, 3), layout, [A, B, C], [A, B, C, D])
    assert list(moved["w1"][20:26, 0]) == list(range(8, 14))
    assert list(moved["b3"]) == [0, 1, 2, 1]


def test_transfer_repeats_for_every_observation_of_the_history() -> None:
    layout = Layout("paper", history=2)
    moved = transfer(_marked(layout, 3), layout, [A, B, C], [C, A])["w1"][:, 0]
    first = [0, 1, *range(14, 20), *range(2, 8)]
    actions = [22, 20]
    assert list(moved) == [*first, *actions, *(23 + n for n in first)]


def test_unchanged_nodes_change_nothing() -> None:
    layout = Layout("paper", history=3)
    weights = mlp_model(3, layout).arrays
    held = {name: weights[name] for name in mlp_shapes(layout, 3)}
    moved = transfer(held, layout, [A, B, C], [A, B, C])
    assert all(np.array_equal(moved[name], array) for name, array in held.items())
