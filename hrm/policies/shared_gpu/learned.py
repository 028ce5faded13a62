"""``dqngpu-ddqn`` in use: a set network with frozen weights, and the heuristic that it improves on.

The action of the greatest value is taken where it exceeds that of the heuristic's own action by the
model's ``margin``, else the latter: small differences are the network's error, not a gain. There is
another margin for where slowdowns of pairs are known, by which the heuristic decides, too. Both
were chosen in training, on sets of jobs for validation.

``hrm.learn.dqngpu`` trains it, and ``guarded`` checks what it proposes before it counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hrm.errors import InvalidConfig
from hrm.policies.model_files import Model
from hrm.policies.shared_gpu.features import (
    GPU_FIELDS,
    JOB_FIELDS,
    SHARING_SCHEMA,
    SharingState,
    Singles,
    observe,
)
from hrm.policies.shared_gpu.heuristics import FastestTogether, GpuSharingView
from hrm.policies.shared_gpu.network import action_values, network_shapes

__all__ = ["BASE", "LearnedGpuSharing", "StartProposal", "action_of", "improved"]

BASE = FastestTogether()
"""The heuristic that rollouts continue with in training: the longest of those that fit, where
slowdowns are not known."""

_SLACK = 0.01
"""How far beyond the percentiles of training an input still counts as inside."""


class StartProposal(NamedTuple):
    """``place``: in the view's ``waiting``; None: to wait. ``q``: of the legal actions.
    ``outside``: the share of its inputs, 0..1, that are outside of the ranges of training."""

    place: int | None
    q: Singles
    outside: float


class LearnedGpuSharing:
    """A ``GpuSharingPolicy``: see the module."""

    name = "dqngpu-ddqn"

    def __init__(self, model: Model) -> None:
        """Raises InvalidConfig: ``model`` is for other features, another network, or damaged."""
        if model.schema != SHARING_SCHEMA:
            raise InvalidConfig(
                f"model {model} was trained on other features ({model.schema}) than this HRM has "
                f"({SHARING_SCHEMA}); train a new one: python -m hrm.learn.dqngpu"
            )
        inputs = len(JOB_FIELDS) + len(GPU_FIELDS)
        shapes = {**network_shapes(), "low": (inputs,), "high": (inputs,)}
        self._weights = model.shaped(shapes)
        greatest = model.meta.get("q_abs_max")
        if not isinstance(greatest, float) or not 0.0 < greatest < np.inf:
            raise InvalidConfig(
                f"model {model} does not say how great values were in training (q_abs_max); train "
                f"a new one: python -m hrm.learn.dqngpu"
            )
        self.model = model
        self.q_abs_max = greatest
        self._margin, self._margin_known = (
            _margin_of(model, name) for name in ("margin", "margin_known")
        )

    def propose(self, view: GpuSharingView) -> StartProposal:
        """The network's evaluation; at least one job must be waiting."""
        state = observe(view)
        q = action_values(self._weights, state)
        split, low, high = len(JOB_FIELDS), self._weights["low"], self._weights["high"]
        inside = _inside(state.jobs, low[:split], high[:split])
        inside += _inside(state.gpu, low[split:], high[split:])
        outside = 1.0 - inside / (state.jobs.size + state.gpu.size)
        margin = self._margin if view.pace is None else self._margin_known
        action = improved(q, action_of(BASE.choose(view), view, state), margin)
        place = None if action == 0 else int(state.places[action - 1])
        return StartProposal(place, q[state.mask], outside)

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``. Without a guard, a value that is NaN is the worst."""
        return self.propose(view).place if view.fits.any() else None


def _margin_of(model: Model, name: str) -> float:
    margin = model.meta.get(name)
    if not isinstance(margin, float) or not 0.0 <= margin < np.inf:
        raise InvalidConfig(
            f"model {model} does not say by how much a value has to be better ({name}); train "
            f"a new one: python -m hrm.learn.dqngpu"
        )
    return margin


def action_of(place: int | None, view: GpuSharingView, state: SharingState) -> int:
    """The action of ``state`` that starts the waiting job at ``place``, by its row; None: to wait.
    A job of a kind that has no row is as good as to wait."""
    if place is None:
        return 0
    profile = view.waiting[place].profile
    rows = (row for row, held in enumerate(state.places) if view.waiting[held].profile is profile)
    return 1 + next(rows, -1)


def improved(q: Singles, base: int, margin: float) -> int:
    """The best action, if it is better than ``base`` by more than ``margin``, else ``base``."""
    best = int(np.argmax(np.where(np.isnan(q), -np.inf, q)))
    return best if not q[best] - q[base] <= margin else base


def _inside(inputs: Singles, low: Singles, high: Singles) -> int:
    return int(np.count_nonzero((inputs >= low - _SLACK) & (inputs <= high + _SLACK)))
