"""Policies of both stages by name, as a simulated run needs them.

Learned cluster policies run under their guard, whose clock stands still here: a decision over its
budget would make a run depend on the machine. A node policy may carry a co-run score
(``iawp:cosine``, ``iawp:overload``, ``iawp:sensitivity``), ``:guarded`` and ``:gain=G``;
``iawp:oracle`` knows the slow-downs of the world, so it is only a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hrm.pipelines.core.model import ClusterPolicy, Estimates, LearningEstimates, NodePolicy, Row
from hrm.pipelines.policies import cluster as cluster_policies
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.sim.interference import InterferenceWorld
from hrm.pipelines.sim.run import Policies
from hrm.pipelines.sim.scenario import Scenario, WorkerNode
from hrm.pipelines.sim.worker import REPORT_S
from hrm.policies.guard import GuardMode

__all__ = ["policies"]


def policies(
    cluster: str,
    node: str,
    scenario: Scenario,
    *,
    policy: ClusterPolicy | None = None,
    weights: Path | None = None,
    known: bool = True,
    shared: bool = True,
) -> Policies:
    """The two policies of these names for one run.

    Args:
        policy: instead of the one called ``cluster``.
        weights: a directory of models in addition to those that ship.
        known: estimates begin with some history.
        shared: nodes learn from each other, through the manager.

    Raises:
        InvalidConfig: there is no policy of such a name.
        NotFound: a learned policy has no model.
    """
    if policy is None:
        policy = cluster_policies.load(
            cluster,
            rng=np.random.default_rng([scenario.seed, 0xC1]),
            state_dir=weights,
            mode=GuardMode.ON,
            heartbeat_s=REPORT_S,
            clock_s=lambda: 0.0,
        )
    truth = scenario.truth
    sharing = GpuSharing.MPS if scenario.world.endswith("-mps") else GpuSharing.TIME_SLICING
    name, options = corun.parse(node, (*corun.SCORES, _Oracle.name))
    # Of the scores this one alone asks for them, and to fit them takes most of a run's time.
    by_pairs = name in corun.LEARNED and options.get("score", corun.DEFAULT_SCORE) == "sensitivity"
    gpu_memory = {one.type.gpu_model: one.type.gpu_memory_mib for one in scenario.all_workers}

    if options.get("score") == _Oracle.name:
        options["score"] = _Oracle(truth)

    def node_policy(worker: WorkerNode) -> NodePolicy:
        rng = np.random.default_rng([scenario.seed, 0xD2, *str(worker.name).encode()])
        return corun.load(name, rng=rng, **options)

    def estimates() -> LearningEstimates:
        return corun.Stdm(
            memory_mib=max(one.type.memory_mib for one in scenario.all_workers),
            gpu_memory_mib={model: float(mib) for model, mib in gpu_memory.items()},
            sharing=sharing,
            fits_pairs=by_pairs,
        )

    return Policies(
        cluster_name=cluster,
        node_name=node,
        cluster=policy,
        node=node_policy,
        estimates=estimates,
        known=known,
        shared=shared,
    )


class _Oracle:
    """A ``CoRunScore``: the time that all on a GPU lose together when one more joins, in units of a
    run."""

    name = "oracle"

    def __init__(self, truth: InterferenceWorld) -> None:
        self._truth = truth

    def score(self, row: Row, co_runners: Sequence[Row], estimates: Estimates) -> float:
        if not co_runners:
            return 0.0
        others = tuple(other.kind for other in co_runners)
        after = self._truth.slowdowns(row.gpu_model, (row.kind, *others))
        return sum(after) - sum(self._truth.slowdowns(row.gpu_model, others)) - 1.0
