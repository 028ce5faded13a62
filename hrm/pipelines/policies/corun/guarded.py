"""A learned node policy under ``hrm.policies.guard``: the checks of a dispatch.

The rules, in the order in which they are checked. Before the policy is called: its model fits this
HRM (else it is never called), the node was sampled lately, every estimate of a ready subtask is a
number, and at most a tenth of them lies outside of what was measured on this node. After it: all
starts together fit.

As a canary the two policies, which share one set of cores and GPUs, take turns in time: its key is
the node's name and the number of the slice of ``SLICE_S``, so nodes switch at different times.

Ended runs are compared subtask by subtask: the time since it was ready over the heuristic's
estimate when it became ready, including everything ahead of it; those that were started in one
slice count as one, by their mean. Starts by the core itself count for neither policy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    CO_RUN_FEATURES,
    Device,
    Estimates,
    NodePolicy,
    NodeView,
    ReadySubtask,
    Row,
    StartDecision,
    SubtaskKey,
)
from hrm.pipelines.core.node_messages import RunOutcome, SubtaskTiming
from hrm.pipelines.core.node_resources import shared_out_s
from hrm.pipelines.policies.corun.metrics import METRICS
from hrm.pipelines.policies.corun.scores import CoRunScore
from hrm.pipelines.policies.corun.tentative import Tentative
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation

__all__ = ["BUDGET_S", "SCHEMA", "SLICE_S", "FiniteScore", "GuardedNodePolicy"]

BUDGET_S = 0.010
"""Per call, which decides on all that is ready, like the master on a burst of tasks."""
BOUNDS = GuardBounds(budget_s=BUDGET_S, pending_max=10_000)
SLICE_S = 30.0
START_S = 0.1
"""Overhead of a start besides the function: without it the ratios of short ones are noise."""
OUTSIDE_MAX = 0.1
SAMPLES_MISSED_MAX = 3
SCHEMA = hashlib.sha256(repr((METRICS, CO_RUN_FEATURES)).encode()).hexdigest()[:16]
"""Hash of what a node policy learns from: metrics and features, in their order."""
_FAILED = (RunOutcome.OUT_OF_MEMORY, RunOutcome.OUT_OF_GPU_MEMORY, RunOutcome.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Starts in the order in which they fit; in another order they are the same decision."""

    starts: tuple[StartDecision, ...] = field(compare=False)
    what: frozenset[StartDecision]


class FiniteScore:
    """A co-run score that raises ``Doubt`` instead of returning a value that is not finite."""

    def __init__(self, score: CoRunScore) -> None:
        self.name = score.name
        self._score = score

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        """See ``CoRunScore``.

        Raises:
            Doubt: the score is not finite.
        """
        value = self._score.score(row, co_runners, estimates)
        if not math.isfinite(value):
            raise Doubt(Reason.NOT_FINITE, f"the co-run score of {row.kind} is {value}")
        return value


class GuardedNodePolicy:
    """A ``NodePolicy``: ``learned`` as far as its mode trusts it, else ``heuristic``.

    Args:
        schema: of the model that ``learned`` uses; if it is not this HRM's, ``learned`` is never
            called, and the reason is reported.
        outside: the share of the estimates of these rows, 0..1, that lies outside of what was
            measured.
        sampled_at_s: when the node was last sampled; None: not yet.
    """

    def __init__(
        self,
        learned: NodePolicy,
        heuristic: NodePolicy,
        *,
        node: str,
        model: str,
        clock_s: Callable[[], float],
        outside: Callable[[Iterable[Row]], float],
        sampled_at_s: Callable[[], float | None],
        sample_period_s: float = 1.0,
        schema: str = SCHEMA,
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds | None = None,
    ) -> None:
        self.name = learned.name
        self._learned = learned
        self._heuristic = heuristic
        self._node = node
        self._outside = outside
        self._sampled_at_s = sampled_at_s
        self._stale_s = SAMPLES_MISSED_MAX * sample_period_s
        self._expected: dict[SubtaskKey, tuple[float, float]] = {}
        """For each ready subtask: since when, and its expected time from then on."""
        self.guard: PolicyGuard[NodeView, _Plan] = PolicyGuard(
            policy=learned.name,
            kind="node",
            heuristic=heuristic.name,
            model=model,
            schema=schema,
            learned=self._ask,
            fallback=lambda view: _recommendation(heuristic.dispatch(view)),
            clock_s=clock_s,
            mode=mode,
            bounds=BOUNDS if bounds is None else bounds,
        )

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        """See ``NodePolicy``; each start names the policy that chose it. Neither is called while
        the node is full."""
        self._expect(view)
        if not view.idle_cores and all(
            len(gpu.running) >= CAPS.co_runners_max for gpu in view.gpus
        ):
            return []
        key = f"{self._node}/{int(view.now // SLICE_S)}"
        decided, _ = self.guard.recommendation(key, view, view.now)
        by = self.name if decided.learned else self._heuristic.name
        starts = []
        for start in decided.decision.starts:
            _, expected_s = self._expected[start.key]
            self.guard.expect(_name(start.key), expected_s, drawn=decided.drawn, unit=key)
            starts.append(start._replace(placed_by=by, fallback=decided.doubt))
        return starts

    def ended(self, timing: SubtaskTiming, now: float) -> None:
        """A run is over. A fault of its own function does not count against the policy that chose
        its device, and a refused start counts for neither once the node has made another itself."""
        key = _name(timing.key)
        if timing.placed_by not in (self.name, self._heuristic.name):
            self.guard.forget(key)
            return
        done = timing.outcome is RunOutcome.DONE
        if done or timing.outcome in _FAILED:
            response_s = timing.waited_s + timing.ran_s
            self.guard.ended(key, now=now, response_s=response_s, ok=done)
        else:
            self.guard.forget(key)

    def _expect(self, view: NodeView) -> None:
        """What became ready since the last call is expected to end with all that is here now, and
        not before its own time has passed."""
        known, self._expected = self._expected, {}
        backlog_s = math.nan
        for one in view.ready:
            before = known.get(one.key)
            if before is None or before[0] != one.since:
                if math.isnan(backlog_s):
                    backlog_s = _backlog_s(view)
                own_s = min(view.estimates.run_s(one.row, device) for device in one.devices)
                before = (one.since, view.now - one.since + START_S + max(own_s, backlog_s))
            self._expected[one.key] = before

    def _ask(self, view: NodeView) -> Recommendation[_Plan]:
        self._check(view)
        starts = self._learned.dispatch(view)
        free = Tentative(view, CAPS)
        ready = {one.key: one for one in view.ready}
        for start in starts:
            one = ready.get(start.key)
            if one is None or not free.fits(one, start.device, start.number):
                raise Doubt(Reason.INFEASIBLE, f"no capacity left for {_describe_start(start)}")
            free.take(one, start.device, start.number)
        return _recommendation(starts)

    def _check(self, view: NodeView) -> None:
        if self.guard.schema != SCHEMA:
            raise Doubt(
                Reason.SCHEMA,
                f"{self.guard.model} was trained on metrics {self.guard.schema}, which this HRM "
                f"does not have; train a new one",
            )
        sampled_at_s = self._sampled_at_s()
        age_s = 0.0 if sampled_at_s is None else view.now - sampled_at_s
        if not age_s <= self._stale_s:
            raise Doubt(
                Reason.STALE, f"the node was sampled {age_s:.1f} s ago, over {self._stale_s:g} s"
            )
        rows = {one.row: one for one in view.ready}
        for row, one in rows.items():
            if not _is_sound(row, one, view.estimates):
                raise Doubt(Reason.NOT_FINITE, f"an estimate of {row.kind} is no number")
        outside = self._outside(rows)
        if outside > OUTSIDE_MAX:
            raise Doubt(
                Reason.DISTRIBUTION,
                f"{outside:.0%} of what it goes by is outside of what was measured on this node",
            )


def _is_sound(row: Row, one: ReadySubtask, estimates: Estimates) -> bool:
    numbers = [estimates.run_s(row, device) for device in one.devices]
    numbers += [estimates.memory_mib(row), estimates.gpu_memory_mib(row)]
    return (
        all(math.isfinite(number) for number in numbers)
        and not math.isnan(estimates.speedup(row))
        and bool(np.isfinite(estimates.gpu_features(row)).all())
    )


def _backlog_s(view: NodeView) -> float:
    """Until all that is ready or running here is done, divided optimally."""
    run_s, never = view.estimates.run_s, math.inf
    work = [(left_s, never) for left_s in view.core_remaining_s]
    work += [(never, gpu.remaining_s) for gpu in view.gpus]
    for one in view.ready:
        on_core, on_gpu = (
            run_s(one.row, device) if device in one.devices else never
            for device in (Device.CPU, Device.GPU)
        )
        work.append((on_core, on_gpu))
    return shared_out_s(work, len(view.core_remaining_s), len(view.gpus))


def _recommendation(starts: Sequence[StartDecision]) -> Recommendation[_Plan]:
    described = ", ".join(map(_describe_start, starts)) or "nothing"
    return Recommendation(_Plan(tuple(starts), frozenset(starts)), described)


def _describe_start(start: StartDecision) -> str:
    return f"{_name(start.key)} on {start.device.value} {start.number}"


def _name(key: SubtaskKey) -> str:
    return f"{key.task_id}/{key.subtask}"
