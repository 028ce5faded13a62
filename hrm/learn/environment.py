"""The environment that a cluster policy is trained in: successive decisions and their outcomes.

A trainer drives anything with ``reset`` and ``step``: HRM's simulator of pipelines, a queueing
system of a few lines, a replay. A seed determines a history, as independent of the decisions as
possible: a policy learns on ``TRAINING``, is selected on ``VALIDATION`` and measured on ``TEST``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import ClusterPolicy, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.policies.cluster.features import Bools

__all__ = [
    "TEST",
    "TRAINING",
    "VALIDATION",
    "Environment",
    "EpisodeStep",
    "EpisodeSummary",
    "EpisodeTaskEnded",
    "TaskDecision",
    "drive",
    "evaluate",
    "ideal_s",
    "load",
    "options_of",
]

TRAINING = range(100)
VALIDATION = range(100, 120)
TEST = range(1000, 1020)


class TaskDecision(NamedTuple):
    """The head of the queue, the cluster, and (nodes,) which may take it; at least one may."""

    task: TaskSpec
    view: PipelineClusterView
    fits: Bools


class EpisodeTaskEnded(NamedTuple):
    """A task that ended at ``at`` seconds, ``response_s`` after it was submitted."""

    task_id: TaskId
    at: float
    response_s: float
    ok: bool


class EpisodeStep(NamedTuple):
    """What happened between two decisions.

    ``decision`` is None when the trace is over. That is a truncation, after which more tasks would
    have arrived, unless ``terminal``.
    """

    decision: TaskDecision | None
    ended: tuple[EpisodeTaskEnded, ...]
    terminal: bool = False


class Environment(Protocol):
    """A cluster with arriving tasks, stopped at every decision."""

    def reset(self, seed: int) -> TaskDecision: ...

    def step(self, node: int) -> EpisodeStep:
        """Place the task of the last decision on row ``node`` of its view, and continue.

        -1: the task stays at the head of the queue and is presented again, with another view, after
        the next event in the cluster.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """Results of tasks: response times (seconds) and slow-downs, response over the ideal."""

    tasks: int
    failed: int
    response_mean_s: float
    response_p50_s: float
    response_p95_s: float
    slowdown: float
    """Mean of response / ideal."""
    log_slowdown: float
    """Mean of ln(response / ideal): the negated sum of the rewards of kind ``slowdown``."""
    tasks_per_min: float


def ideal_s(decision: TaskDecision) -> float:
    """Seconds of the task alone on the fastest feasible node; NaN if no node's time is known."""
    times = decision.view.task_s[decision.fits]
    known = times[np.isfinite(times)]
    return float(known.min()) if len(known) else float("nan")


def drive(
    environment: Environment, policy: ClusterPolicy, seed: int
) -> tuple[list[tuple[EpisodeTaskEnded, float]], bool]:
    """Let ``policy`` decide a whole trace: (end, ideal time) of each task, and
    ``EpisodeStep.terminal``."""
    decision: TaskDecision | None = environment.reset(seed)
    ideal: dict[TaskId, float] = {}
    found: list[tuple[EpisodeTaskEnded, float]] = []
    while decision is not None:
        # A waiting task is presented again; its first ideal time is the reference.
        ideal.setdefault(decision.task.task_id, ideal_s(decision))
        step = environment.step(policy.choose(*decision).node)
        for end in step.ended:
            policy.ended(end.task_id, now=end.at, response_s=end.response_s, ok=end.ok)
            found.append((end, ideal.pop(end.task_id, float("nan"))))
        decision = step.decision
    return found, step.terminal


def evaluate(
    environment: Environment, make: Callable[[], ClusterPolicy], seeds: Iterable[int]
) -> EpisodeSummary:
    """Run ``seeds``, each with a policy of its own from ``make``, and summarize the tasks' times.

    Raises:
        InvalidConfig: no task ended, so there is nothing to summarize.
    """
    responses: list[float] = []
    slowdowns: list[float] = []
    failed, minutes = 0, 0.0
    for seed in seeds:
        found, _ = drive(environment, make(), seed)
        good = [(end, ideal) for end, ideal in found if end.ok]
        failed += len(found) - len(good)
        responses += [end.response_s for end, _ in good]
        slowdowns += [np.log(end.response_s / ideal) for end, ideal in good if ideal > 0.0]
        minutes += (max(end.at for end, _ in good) if good else 0.0) / 60.0
    if not responses or not slowdowns:
        raise InvalidConfig("no task ended in the environment; make its traces longer")
    p50, p95 = np.percentile(responses, (50, 95))
    return EpisodeSummary(
        tasks=len(responses),
        failed=failed,
        response_mean_s=float(np.mean(responses)),
        response_p50_s=float(p50),
        response_p95_s=float(p95),
        slowdown=float(np.mean(np.exp(slowdowns))),
        log_slowdown=float(np.mean(slowdowns)),
        tasks_per_min=len(responses) / minutes,
    )


def options_of(text: str) -> dict[str, str]:
    """``a=1,b=x`` as a dictionary; empty text has none.

    Raises:
        InvalidConfig: a part has no ``=``.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any("=" not in part for part in parts):
        raise InvalidConfig(f"options {text!r}: write name=value, separated by commas")
    return {name.strip(): value.strip() for name, _, value in (p.partition("=") for p in parts)}


def load(reference: str, options: str = "") -> Environment:
    """The environment that ``module:factory`` makes of ``options``, which are text.

    Raises:
        InvalidConfig: there is no such factory, or it does not make one.
    """
    module, _, name = reference.partition(":")
    try:
        made: Environment = getattr(importlib.import_module(module), name)(**options_of(options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidConfig(
            f"environment {reference!r} with options {options!r} cannot be made "
            f"({type(error).__name__}: {error}); name one as module:factory"
        ) from error
    if not callable(getattr(made, "reset", None)) or not callable(getattr(made, "step", None)):
        raise InvalidConfig(f"environment {reference!r} gave {made!r}, without reset or step")
    return made
