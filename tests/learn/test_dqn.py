"""The agent: the same networks as in use, targets by hand, updates, transfer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hrm.core.vocabulary.model import NodeName  # noqa: E402
from hrm.learn.dqn import DqnAgent, Hyper, Replay, Transition  # noqa: E402
from hrm.learn.q_networks import FlatQNetwork, QNetwork  # noqa: E402
from hrm.learn.rewards import Rewards  # noqa: E402
from hrm.pipelines.core.model import PipelineClusterView, TaskId  # noqa: E402
from hrm.pipelines.policies.cluster.features import Layout  # noqa: E402
from hrm.pipelines.policies.cluster.heuristics import Ect  # noqa: E402
from hrm.pipelines.policies.cluster.networks import mlp_q  # noqa: E402
from tests.policies.cluster.views import all_fit, arranged, task_of, view_of  # noqa: E402


def _nodes(view: PipelineClusterView) -> list[tuple[NodeName, str]]:
    return list(zip(view.names, view.platform, strict=True))


def network_of(view: PipelineClusterView, history: int = 1) -> FlatQNetwork:
    return FlatQNetwork(
        Layout("paper", history=history), _nodes(view), torch.Generator().manual_seed(0)
    )


def agent(network: QNetwork, mode: Any = "delta", **options: Any) -> DqnAgent:
    hyper = options.pop("hyper", Hyper())
    return DqnAgent(network, Rewards(mode), hyper, np.random.default_rng(0), **options)


def _arrays(network: QNetwork) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in network.weights.items()}


def test_the_network_has_the_values_that_numpy_finds() -> None:
    view = view_of(5)
    flat = network_of(view)
    marks = np.array([True, False, True, True, False])
    seen = flat.observe(task_of(), view, marks)
    found = flat.values(flat.weights, [seen]).detach().numpy()[0]
    assert found[marks] == pytest.approx(mlp_q(_arrays(flat), seen.x)[marks], abs=1e-5)
    assert np.isneginf(found[~marks]).all()


@pytest.mark.parametrize(
    ("mask", "double", "wanted"),
    [
        ((1, 1, 1), False, 2.5), ((1, 0, 1), False, 2.1), ((1, 1, 0), False, 2.5),
        ((1, 1, 1), True, 2.1), ((1, 0, 1), True, 2.1), ((1, 1, 0), True, 2.5),
    ],
)  # fmt: skip
def test_targets_are_those_by_hand(double: bool, mask: tuple[int, ...], wanted: float) -> None:
    """Reward 0.5, discount 0.8; double uses the value of the action that the other one prefers."""

    class Given(FlatQNetwork):
        def values(self, weights: Any, states: Any) -> Any:
            mine = (0.9, 1.8, 2.2) if weights is self.weights else (1.0, 2.5, 2.0)
            masked = [q if m else -np.inf for q, m in zip(mine, mask, strict=True)]
            return torch.tensor([masked] * len(states))

    view = view_of(3)
    network = Given(Layout("paper"), _nodes(view), torch.Generator())
    state = network.observe(task_of(), view, all_fit(view))
    some = agent(network, hyper=Hyper(double=double))
    batch = [Transition(state, 0, 0.5, state, 0.8), Transition(state, 1, 0.5, None, 0.0)]
    assert some.targets(batch).tolist() == pytest.approx([wanted, 0.5])


class Scalar(FlatQNetwork):
    """Q is one number."""

    def __init__(self) -> None:
        super().__init__(Layout("paper"), _nodes(view_of(1)), torch.Generator())
        self.weights = {"w": torch.tensor([1.6], requires_grad=True)}

    def values(self, weights: Any, states: Any) -> Any:
        return weights["w"].expand(len(states), 1)


def _one_step(**options: Any) -> tuple[float, float]:
    network = Scalar()
    view = view_of(1)
    state = network.observe(task_of(), view, all_fit(view))
    some = agent(network, hyper=Hyper(**options))
    loss = some.step([Transition(state, 0, 2.5, None, 0.0)], torch.tensor([2.5]), some._optimizer)
    return loss, float(network.weights["w"].detach())


def test_one_step_by_hand() -> None:
    """y 2.5, Q 1.6: error 0.9, Huber 0.405; the paper's squared error halved has its gradient."""
    assert _one_step(huber=True) == pytest.approx((0.405, 1.69))
    assert _one_step(huber=False) == pytest.approx((0.405, 1.69))
    assert _one_step(huber=True, clip=0.5)[1] == pytest.approx(1.65)


def test_the_replay_keeps_the_latest() -> None:
    replay: Replay[Transition] = Replay(3)
    for number in range(5):
        replay.add(Transition(None, number, 0.0, None, 0.0))  # type: ignore[arg-type]
    assert sorted(t.action for t in replay.held) == [2, 3, 4]
    drawn = replay.sample(500, np.random.default_rng(0))
    assert {t.action for t in drawn} == {2, 3, 4}


def _choose(some: DqnAgent, view: PipelineClusterView, number: int = 0) -> int:
    return some.choose(task_of(number), view, all_fit(view)).node


def test_a_choice_closes_the_transition_of_the_last_one() -> None:
    some = agent(network_of(view_of(4)), "smdp", learning=False)
    first, second = view_of(4, now=0.0), view_of(4, 1, now=1.2)
    row = _choose(some, first)
    some.ended(TaskId("x"), now=1.0, response_s=1.0, ok=True)
    assert some.replay.held == []
    _choose(some, second, 1)
    (transition,) = some.replay.held
    assert (transition.action, transition.reward) == (row, 1.0)
    assert transition.discount == pytest.approx(0.9802, abs=1e-4)
    assert transition.after is not None
    some.finish(5.0)
    assert some.replay.held[-1].after is None
    assert some.replay.held[-1].discount == 0.0
    some.begin()
    _choose(some, first)
    assert len(some.replay.held) == 2


def test_a_slowdown_is_credited_when_the_task_has_ended() -> None:
    some = agent(network_of(view_of(4)), "slowdown", learning=False)
    view = view_of(4)
    row = _choose(some, view, 7)
    _choose(some, view, 8)
    ideal = float(view.task_s.min())
    some.ended(TaskId("task-7"), now=9.0, response_s=2 * ideal, ok=True)
    some.ended(TaskId("unknown"), now=9.0, response_s=1.0, ok=True)
    (transition,) = some.replay.held
    assert transition.action == row
    assert transition.reward == pytest.approx(-np.log(2))
    assert transition.discount == 0.0


def test_a_teacher_decides_but_for_random_actions() -> None:
    some = agent(network_of(view_of(200, 1)), "slowdown", teacher=Ect(), learning=False)
    some.begin((0.0, 0.0, 0))
    view = view_of(200, 1)
    row = Ect().choose(task_of(), view, all_fit(view)).node
    assert {_choose(some, view, n) for n in range(5)} == {row}
    some.begin((0.5, 0.5, 0))
    assert len({_choose(some, view, n) for n in range(60)}) > 10


def test_nodes_that_are_new_move_the_weights_and_empty_the_replay() -> None:
    view = view_of(4)
    network = network_of(view, history=2)
    some = agent(network, learning=False)
    for number in range(6):
        _choose(some, view, number)
    assert len(some.replay.held) == 5
    fewer = arranged(view, [2, 0])
    _choose(some, fewer, 6)
    assert len(some.replay.held) == 6  # they are masked, nothing changes
    assert network.nodes == list(zip(view.names, view.platform, strict=True))
    before = _arrays(network)
    more = view_of(6, 2)
    _choose(some, more, 7)
    after = _arrays(network)
    assert some.replay.held == []
    assert some.epsilon() == pytest.approx(0.2, abs=0.001)
    assert after["w3"].shape == (128, 6)
    assert np.array_equal(after["w3"][:, :4], before["w3"])
    assert np.array_equal(after["b1"], before["b1"])
    some.hyper = Hyper(learn_after=1, batch=2)
    some.learning = True
    for number in range(8, 20):
        _choose(some, more, number)
    assert not np.array_equal(_arrays(network)["w3"], after["w3"])


def test_no_unit_dies_and_no_weight_is_nan_at_the_papers_learning_rate() -> None:
    view = view_of(11)
    some = agent(network_of(view), "smdp")
    some.rewards.kappa = 0.5
    rng = np.random.default_rng(0)
    for number in range(600):
        _choose(some, view_of(11, number % 50, now=float(number)), number)
        for _ in range(rng.poisson(1.0)):
            some.ended(TaskId("x"), now=float(number), response_s=1.0, ok=True)
    weights = _arrays(some.network)
    assert all(np.isfinite(array).all() for array in weights.values())
    x = np.stack([t.state.x for t in some.replay.held])
    alive = (x @ weights["w1"] + weights["b1"] > 0).any(axis=0).mean()
    # Squared errors of rewards five times as large kill nine units in ten.
    assert alive > 0.8
