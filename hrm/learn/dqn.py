"""A cluster policy that learns from the outcomes of its choices: the DQN of LDWP (section 4.2).

``DqnAgent`` is a ``ClusterPolicy``, so whatever can run a policy can train one. A choice opens a
transition; the next choice closes it, or, with rewards of kind ``slowdown``, the end of the task.
One step of learning follows each decision, never inside it in a real cluster: this class is for
simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hrm.learn.environment import TaskDecision, ideal_s
from hrm.learn.q_networks import QNetwork, State, Tensors
from hrm.learn.rewards import Rewards, epsilon_at
from hrm.pipelines.core.model import Choice, ClusterPolicy, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.policies.cluster.features import Bools

__all__ = ["DqnAgent", "Hyper", "Replay", "Transition"]

PENDING_MAX = 100_000

T = TypeVar("T")


class Hyper(NamedTuple):
    """Parameters of learning; defaults are the paper's where it names them (lr, batch)."""

    lr: float = 0.1
    batch: int = 20
    replay: int = 10_000
    learn_after: int = 200
    target_every: int = 100
    double: bool = True
    huber: bool = True
    clip: float = 10.0
    """Greatest norm of the gradient; inf: none."""
    epsilon: tuple[float, float, int] = (1.0, 0.05, 1_000)
    """First, last, decisions between them."""
    epsilon_moved: tuple[float, float, int] = (0.2, 0.05, 200)
    """The same after a transfer to other nodes."""


class Transition(NamedTuple):
    """``discount`` 0: nothing follows; ``after`` is then ignored."""

    state: State
    action: int
    reward: float
    after: State | None
    discount: float


class Replay(Generic[T]):
    """The last ``size`` transitions, drawn from uniformly."""

    def __init__(self, size: int) -> None:
        self.held: list[T] = []
        self._size = size
        self._next = 0

    def add(self, transition: T) -> None:
        if len(self.held) < self._size:
            self.held.append(transition)
        else:
            self.held[self._next] = transition
            self._next = (self._next + 1) % self._size

    def sample(self, count: int, rng: np.random.Generator) -> list[T]:
        return [self.held[number] for number in rng.integers(len(self.held), size=count)]

    def clear(self) -> None:
        self.held.clear()
        self._next = 0


class DqnAgent:
    """Acts epsilon-greedily and learns; or follows a ``teacher`` and only records.

    Args:
        teacher: the policy that decides instead of the network, except for random actions.
        learning: False: no step of learning after decisions.
    """

    def __init__(
        self,
        network: QNetwork,
        rewards: Rewards,
        hyper: Hyper,
        rng: np.random.Generator,
        *,
        teacher: ClusterPolicy | None = None,
        learning: bool = True,
    ) -> None:
        self.name = network.kind
        self.network = network
        self.rewards = rewards
        self.hyper = hyper
        self.replay: Replay[Transition] = Replay(hyper.replay)
        self.teacher = teacher
        self.learning = learning
        self.decisions = 0
        self.traces = 0
        """The number of training traces begun, which selects the next one."""
        self.loss = float("nan")
        self.nodes_seen: tuple[int, int] = (1 << 30, 0)
        self._epsilon = hyper.epsilon
        self._since = 0
        self._rng = rng
        self._updates = 0
        self._open: tuple[State, int] | None = None
        self._placed: dict[TaskId, tuple[State, int, float]] = {}
        self._renew()

    def begin(self, epsilon: tuple[float, float, int] | None = None) -> None:
        """Begin a new history: open transitions of the old one are dropped."""
        self.rewards.begin()
        self.network.begin()
        self._open = None
        self._placed.clear()
        if epsilon is not None:
            self._epsilon, self._since = epsilon, 0

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        """See ``ClusterPolicy.choose``."""
        if self.network.follow(view):
            self._moved()
        state = self.network.observe(task, view, fits)
        self._close(view.now, state)
        action = self._act(state, task, view, fits)
        self.network.acted(state, action)
        alive = int(np.count_nonzero(view.alive))
        self.nodes_seen = min(self.nodes_seen[0], alive), max(self.nodes_seen[1], alive)
        self._open = (state, action)
        if self.rewards.mode == "slowdown":
            self._placed[task.task_id] = (state, action, ideal_s(TaskDecision(task, view, fits)))
            if len(self._placed) > PENDING_MAX:
                del self._placed[next(iter(self._placed))]
        self.decisions += 1
        self._since += 1
        if self.learning and len(self.replay.held) >= self.hyper.learn_after:
            self.learn()
        row = int(state.rows[action])
        return Choice(node=row, why=f"{view.names[row]}: chosen by a agent")

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """See ``ClusterPolicy.ended``."""
        self.rewards.ended(now, ok=ok)
        if task_id in self._placed:
            state, action, ideal = self._placed.pop(task_id)
            reward = self.rewards.of_task(response_s, ideal, ok=ok)
            self.replay.add(Transition(state, action, reward, None, 0.0))

    def finish(self, now: float) -> None:
        """The run has really ended, and was not truncated: nothing follows its last transition."""
        interval = None if self.rewards.mode == "slowdown" else self.rewards.interval(now)
        if interval is not None and self._open is not None:
            self.replay.add(Transition(*self._open, interval[0], None, 0.0))
        self._open = None

    def learn(self) -> None:
        """One step of gradient descent on a batch of the replay."""
        batch = self.replay.sample(self.hyper.batch, self._rng)
        self.loss = self.step(batch, self.targets(batch), self._optimizer)
        self._updates += 1
        if self._updates % self.hyper.target_every == 0:
            self.copy_to_target()

    def targets(self, batch: Sequence[Transition]) -> Tensor:
        """Shape (batch,): what Q(s, a) should have been; if ``double``, after van Hasselt et al.
        (2016)."""
        wanted = torch.tensor([t.reward for t in batch], dtype=torch.float32)
        going = [
            n
            for n, t in enumerate(batch)
            if t.discount > 0.0 and t.after is not None and self.network.mask(t.after).any()
        ]
        if not going:
            return wanted
        after = [batch[number].after for number in going]
        with torch.no_grad():
            frozen = self.network.values(self._target, after)
            selector = (
                self.network.values(self.network.weights, after) if self.hyper.double else frozen
            )
            best = frozen.gather(1, selector.argmax(1, keepdim=True)).squeeze(1)
        wanted[going] += torch.tensor([batch[n].discount for n in going]) * best
        return wanted

    def step(
        self, batch: Sequence[Transition], wanted: Tensor, optimizer: torch.optim.Optimizer
    ) -> float:
        """Move Q(s, a) of ``batch`` towards ``wanted``; returns the loss before."""
        q = self.network.values(self.network.weights, [t.state for t in batch])
        chosen = q.gather(1, torch.tensor([[t.action] for t in batch])).squeeze(1)
        loss_of = torch.nn.functional.huber_loss if self.hyper.huber else _squared
        loss = loss_of(chosen, wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.network.weights.values()), self.hyper.clip)
        optimizer.step()
        return float(loss.detach())

    def copy_to_target(self) -> None:
        """Copy the learning network to the target network."""
        self._target: Tensors = {n: w.detach().clone() for n, w in self.network.weights.items()}

    def epsilon(self) -> float:
        """The present share of random actions."""
        return epsilon_at(self._since, *self._epsilon)

    def _act(self, state: State, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> int:
        mask = self.network.mask(state)
        if self._rng.random() < self.epsilon():
            return int(self._rng.choice(np.flatnonzero(mask)))
        if self.teacher is not None:
            row = self.teacher.choose(task, view, fits).node
            return int(np.flatnonzero(state.rows == row)[0])
        with torch.no_grad():
            return int(self.network.values(self.network.weights, [state])[0].argmax())

    def _close(self, now: float, state: State) -> None:
        if self.rewards.mode == "slowdown":
            return
        interval = self.rewards.interval(now)
        if interval is not None and self._open is not None:
            reward, discount = interval
            self.replay.add(Transition(*self._open, reward, state, discount))

    def _moved(self) -> None:
        """The network has other inputs now: what is in the replay has another shape."""
        self.replay.clear()
        self._open = None
        self._placed.clear()
        self._epsilon, self._since = self.hyper.epsilon_moved, 0
        self._renew()

    def _renew(self) -> None:
        self._optimizer = torch.optim.SGD(list(self.network.weights.values()), lr=self.hyper.lr)
        self.copy_to_target()


def _squared(chosen: Tensor, wanted: Tensor) -> Tensor:
    return 0.5 * torch.nn.functional.mse_loss(chosen, wanted)
