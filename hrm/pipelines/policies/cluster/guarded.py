"""A learned cluster policy under ``hrm.policies.guard``: the checks of a placement.

The rules, in the order in which they are checked. Before the network is called: its features are
those of this HRM (else it is never called), the type of task is one it knows (where it knows
types), each of its steps has run here before, the number of nodes is about that of training (half
of the fewest to four times the most), and the nodes' reports are fresh. After it: every value is
finite and none is ten times greater than any in training, at most a tenth of its inputs lies
outside of the ranges of training, the members of an ensemble are not further apart than on 99.9 %
of training, and the chosen node may take the task and has reported lately.

Ranges are of one input at a time. States that are strange as a whole, though no single number is,
show in the members, here and there: of inputs that were drawn independently of each other, every
one in its own distribution, a seventh. So where ``APART_MOST`` of the last ``APART_OF`` decisions
were doubtful for this, all are, until it has passed. In training one in a thousand was, on clusters
like those of training that it has not seen up to one in fifty.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hrm.pipelines.core.model import Choice, ClusterPolicy, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.policies.cluster.features import Bools, completion_s, usable
from hrm.pipelines.policies.cluster.ldwp import LearnedPlacement, TaskProposal, explanation
from hrm.pipelines.policies.cluster.placement_log import PlacementLog
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation
from hrm.policies.model_files import Model

__all__ = ["GuardedClusterPolicy"]

Q_FACTOR = 10.0
OUTSIDE_MAX = 0.1
APART_MOST, APART_OF = 10, 200
HEARTBEATS_MAX = 3
NODES_LEAST, NODES_MOST = 0.5, 4.0


class _Question(NamedTuple):
    task: TaskSpec
    view: PipelineClusterView
    fits: Bools


class GuardedClusterPolicy:
    """A ``ClusterPolicy``: ``learned`` as far as ``mode`` trusts it, else ``heuristic``.

    ``learned`` is None where the features of ``model`` are not those of this HRM; the heuristic
    then decides everything, and the reason is reported.
    """

    def __init__(
        self,
        model: Model,
        learned: LearnedPlacement | None,
        heuristic: ClusterPolicy,
        *,
        clock_s: Callable[[], float],
        heartbeat_s: float = 1.0,
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds | None = None,
    ) -> None:
        self.name = model.kind
        self._learned = learned
        self._heuristic = heuristic
        self._heartbeat_s = heartbeat_s
        self._proposed: TaskProposal | None = None
        self._apart: deque[bool] = deque(maxlen=APART_OF)
        self.log = PlacementLog()
        """Decisions and their outcomes, of a policy whose states can be kept."""
        self.guard: PolicyGuard[_Question, int] = PolicyGuard(
            policy=model.kind,
            kind="cluster",
            heuristic=heuristic.name,
            model=str(model),
            schema=model.schema,
            learned=self._ask,
            fallback=self._fall_back,
            clock_s=clock_s,
            mode=mode,
            bounds=bounds,
        )

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        """See ``ClusterPolicy.choose``; ``why`` includes a fallback and its reason."""
        self._proposed = None
        question = _Question(task, view, fits)
        decided = self.guard.decide(task.task_id, question, view.now, user=task.user)
        proposed = self._proposed
        if proposed is not None and self._learned is not None and decided.decision >= 0:
            self._learned.placed(decided.decision, view)
            if proposed.state is not None:
                ideal_s = float(view.task_s[proposed.rows].min())
                self.log.placed(task.task_id, proposed.state, decided.decision, ideal_s, task.user)
        by = self.name if decided.learned else self.guard.heuristic
        return Choice(node=decided.decision, why=decided.why, placed_by=by, fallback=decided.doubt)

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """See ``ClusterPolicy.ended``."""
        self._heuristic.ended(task_id, now=now, response_s=response_s, ok=ok)
        self.log.ended(task_id, response_s=response_s, ok=ok)
        self.guard.ended(task_id, now=now, response_s=response_s, ok=ok)

    def _fall_back(self, question: _Question) -> Recommendation[int]:
        choice = self._heuristic.choose(*question)
        # What the heuristic expects of its choice is the watchdog's measure, if it is finite. Where
        # a step never ran here it is a guess, and measures nothing, for either side.
        view = question.view
        guessed = view.unmeasured_steps > 0
        expected_s = math.nan if guessed else float(completion_s(view)[choice.node])
        return Recommendation(choice.node, choice.why, expected_s)

    def _ask(self, question: _Question) -> Recommendation[int]:
        task, view, fits = question
        learned = self._checked(task, view, fits)
        proposal = learned.propose(task, view, fits)
        self._proposed = proposal
        trained = learned.trained
        if not np.isfinite(proposal.q).all():
            raise Doubt(Reason.NOT_FINITE, "a value is NaN or infinite")
        greatest = float(np.abs(proposal.q).max())
        if greatest > Q_FACTOR * trained.q_abs_max:
            raise Doubt(
                Reason.VALUE,
                f"a value of {greatest:.3g}, in training at most {trained.q_abs_max:.3g}",
            )
        if proposal.outside > OUTSIDE_MAX:
            raise Doubt(Reason.DISTRIBUTION, _outside_of_training(learned, proposal))
        self._check_members(proposal.spread, trained.spread_max)
        if not fits[proposal.row]:
            raise Doubt(Reason.INFEASIBLE, f"{view.names[proposal.row]} cannot take the task")
        self._fresh(float(view.report_age_s[proposal.row]), view.names[proposal.row])
        return Recommendation(proposal.row, explanation(learned, proposal, view))

    def _check_members(self, spread: float, spread_max: float) -> None:
        self._apart.append(spread > spread_max)
        if self._apart[-1]:
            raise Doubt(
                Reason.DISAGREEMENT,
                f"its members are {spread:.3g} apart on this, in training at most {spread_max:.3g}",
            )
        apart = sum(self._apart)
        if apart >= APART_MOST:
            raise Doubt(
                Reason.DISAGREEMENT,
                f"its members were too far apart on {apart} of the last {len(self._apart)} tasks; "
                f"it was trained on other clusters or loads",
            )

    def _checked(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> LearnedPlacement:
        """The learned policy, if this case is one that it was trained for."""
        if self._learned is None:
            raise Doubt(
                Reason.SCHEMA,
                f"{self.guard.model} was trained on features {self.guard.schema}, which this HRM "
                f"does not have; train one (hrm policy train)",
            )
        trained = self._learned.trained
        if trained.types is not None and task.pipeline.name not in trained.types:
            raise Doubt(Reason.UNKNOWN_TYPE, f"it has never seen {task.pipeline.name}")
        if view.unmeasured_steps:
            steps = len(task.pipeline.subtasks)
            raise Doubt(
                Reason.UNMEASURED,
                f"{view.unmeasured_steps} of its {steps} steps never ran here with inputs of this "
                f"size, so that their times are guesses",
            )
        nodes = int(np.count_nonzero(view.alive))
        least, most = NODES_LEAST * trained.nodes_min, NODES_MOST * trained.nodes_max
        if not least <= nodes <= most:
            raise Doubt(
                Reason.NODES,
                f"{nodes} nodes; it has learned with {trained.nodes_min} to {trained.nodes_max}",
            )
        ages = view.report_age_s[usable(view, fits)]
        self._fresh(float(np.median(ages)), "half of the nodes")
        return self._learned

    def _fresh(self, age_s: float, subject: str) -> None:
        limit_s = HEARTBEATS_MAX * self._heartbeat_s
        if not age_s <= limit_s:
            raise Doubt(
                Reason.STALE, f"{subject} last reported {age_s:.1f} s ago, over {limit_s:g} s"
            )


def _outside_of_training(learned: LearnedPlacement, proposal: TaskProposal) -> str:
    said = f"{proposal.outside:.0%} of the inputs are outside of what it has learned from"
    if strangest := learned.strangest(proposal):
        said += f", furthest: {strangest}"
    if proposal.state is not None:
        said += f"; hrm policy train {learned.name} --from-shadow FILE fits it to this cluster"
    return said
