"""``dqngpu-ddqn`` in use: the greatest value of a set network with frozen weights.

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
    Singles,
    observe,
)
from hrm.policies.shared_gpu.heuristics import GpuSharingView
from hrm.policies.shared_gpu.network import action_values, network_shapes

__all__ = ["LearnedGpuSharing", "StartProposal"]

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

    def propose(self, view: GpuSharingView) -> StartProposal:
        """The network's evaluation; at least one job must be waiting."""
        state = observe(view)
        q = action_values(self._weights, state)
        split, low, high = len(JOB_FIELDS), self._weights["low"], self._weights["high"]
        inside = _inside(state.jobs, low[:split], high[:split])
        inside += _inside(state.gpu, low[split:], high[split:])
        outside = 1.0 - inside / (state.jobs.size + state.gpu.size)
        action = int(np.argmax(np.where(np.isnan(q), -np.inf, q)))
        place = None if action == 0 else int(state.places[action - 1])
        return StartProposal(place, q[state.mask], outside)

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``. Without a guard, a value that is NaN is the worst."""
        return self.propose(view).place if view.fits.any() else None


def _inside(inputs: Singles, low: Singles, high: Singles) -> int:
    return int(np.count_nonzero((inputs >= low - _SLACK) & (inputs <= high + _SLACK)))
