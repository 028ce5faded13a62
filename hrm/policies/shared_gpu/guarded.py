"""A learned policy for a shared GPU under ``hrm.policies.guard``: the checks of one start.

In order: it has a model that fits this HRM (else it is never called); every value is finite and
none is ten times greater than any in training; at most a tenth of its inputs lies outside of the
ranges of training; the job that it names fits, and an idle GPU is not left idle. Where one fails,
packed SJF, or another heuristic, decides on the same view.

As a canary the two take turns on the GPU in time, for they share one queue: the key is the GPU's
name and the number of the slice of ``SLICE_TICKS``. What is compared afterwards is how much slower
each job ran than alone, and whether it ran out of memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation
from hrm.policies.model_files import Model
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy, GpuSharingView, PackedByLength
from hrm.policies.shared_gpu.learned import LearnedGpuSharing

__all__ = ["MODEL_KIND", "GuardedGpuSharing"]

MODEL_KIND = LearnedGpuSharing.name

BOUNDS = GuardBounds(budget_s=0.001, watch_factor=1.05, pending_max=10_000)
SLICE_TICKS = 60
SLICE_S = 600.0
"""Of a view whose ticks are its own."""
Q_FACTOR = 10.0
OUTSIDE_MAX = 0.1


class GuardedGpuSharing:
    """A ``GpuSharingPolicy``: ``learned`` as far as its mode trusts it, else ``heuristic``.

    Args:
        model: None: there is none, for the reason ``missing``.
        learned: None where the features of ``model`` are not those of this HRM.
        gpu: the name of the GPU.
        tick_s: seconds of a tick, for what the guard keeps of times.
    """

    def __init__(
        self,
        model: Model | None,
        learned: LearnedGpuSharing | None,
        *,
        gpu: str,
        clock_s: Callable[[], float],
        tick_s: float = 10.0,
        heuristic: GpuSharingPolicy | None = None,
        mode: GuardMode = GuardMode.SHADOW,
        missing: str = "no model; train one: python -m hrm.learn.dqngpu",
    ) -> None:
        self.name = MODEL_KIND
        self._learned = learned
        self._missing = missing if model is None else ""
        self._heuristic = PackedByLength() if heuristic is None else heuristic
        self._gpu = gpu
        self._tick_s = tick_s
        self._now_s: float | None = None
        self.guard: PolicyGuard[GpuSharingView, int | None] = PolicyGuard(
            policy=self.name,
            kind="shared-gpu",
            heuristic=self._heuristic.name,
            model="none" if model is None else str(model),
            schema="" if model is None else model.schema,
            learned=self._ask,
            fallback=lambda view: _described(view, self._heuristic.choose(view)),
            clock_s=clock_s,
            mode=mode,
            bounds=BOUNDS,
        )

    def at(self, now_s: float, tick_s: float) -> None:
        """Where ticks differ from one view to the next, and begin anywhere: the time of the next
        view and the length of its ticks, seconds."""
        self._now_s, self._tick_s = now_s, tick_s

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``. Neither is called where nothing fits."""
        if not view.fits.any():
            return None
        now, part = view.now * self._tick_s, view.now // SLICE_TICKS
        if self._now_s is not None:
            now, part = self._now_s, int(self._now_s // SLICE_S)
        key = f"{self._gpu}/{part}"
        decided, _ = self.guard.recommendation(key, view, now)
        place = decided.decision
        if place is not None:
            one = view.waiting[place]
            expected_s = len(one.profile) * self._tick_s
            name = self._name(one.key)
            self.guard.expect(name, expected_s, drawn=decided.drawn, unit=key)
        return place

    def ended(self, job: int, *, now: float, ran_s: float, ok: bool) -> None:
        """The job with this key has ended; not ``ok``: it ran out of memory."""
        self.guard.ended(self._name(job), now=now, response_s=ran_s, ok=ok)

    def _name(self, job: int) -> str:
        return f"{self._gpu}/job-{job}"

    def _ask(self, view: GpuSharingView) -> Recommendation[int | None]:
        if self._missing:
            raise Doubt(Reason.NOT_LOADED, self._missing)
        if self._learned is None:
            raise Doubt(
                Reason.SCHEMA,
                f"{self.guard.model} was trained on features {self.guard.schema}, which this HRM "
                f"does not have; train a new one",
            )
        place, q, outside = self._learned.propose(view)
        if not np.isfinite(q).all():
            raise Doubt(Reason.NOT_FINITE, "a value of an action is no number")
        greatest = float(np.abs(q).max())
        if greatest > Q_FACTOR * self._learned.q_abs_max:
            raise Doubt(
                Reason.VALUE,
                f"a value of {greatest:.1f}; the greatest in training was "
                f"{self._learned.q_abs_max:.1f}",
            )
        if outside > OUTSIDE_MAX:
            raise Doubt(
                Reason.DISTRIBUTION,
                f"{outside:.0%} of its inputs are outside of the ranges of training",
            )
        if place is None and not view.running:
            raise Doubt(Reason.INFEASIBLE, "it would leave an idle GPU idle")
        if place is not None and not view.fits[place]:
            raise Doubt(Reason.INFEASIBLE, f"job {view.waiting[place].key} does not fit")
        return _described(view, place)


def _described(view: GpuSharingView, place: int | None) -> Recommendation[int | None]:
    why = "nothing more for now" if place is None else f"job {view.waiting[place].key}"
    return Recommendation(place, why)
