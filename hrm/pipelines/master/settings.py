"""From the master's settings to what pipelines there need."""

from __future__ import annotations

import time

from hrm.config import MasterSettings
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.errors import InvalidConfig, NotFound
from hrm.master.policy_service import cluster_policy
from hrm.pipelines.core.model import ClusterPolicy
from hrm.pipelines.core.resizing import Resizing
from hrm.pipelines.policies.resizing import with_candidate
from hrm.pipelines.policies.resizing.guarded import GuardedResizing
from hrm.policies.guard import GuardRegistry

__all__ = ["bounds_of_workloads", "pipeline_policy", "resizing"]


def pipeline_policy(settings: MasterSettings, guards: GuardRegistry, *, seed: int) -> ClusterPolicy:
    """The cluster policy of the settings; a learned one is registered with ``guards``.

    Raises:
        InvalidConfig: there is no policy of that name, or its model is missing or damaged.
    """
    try:
        return cluster_policy(
            settings.pipeline_policy,
            guards=guards,
            state_dir=settings.state_dir,
            heartbeat_s=settings.heartbeat_interval_s,
            seed=seed,
        )
    except NotFound as error:
        raise InvalidConfig(f"pipeline_policy: {error.message}") from error


def resizing(settings: MasterSettings, guards: GuardRegistry) -> Resizing:
    """What says how many workers a workload wants; a candidate is registered with ``guards``.

    Raises:
        InvalidConfig: there is no policy of a name, or it is that of a policy of another kind.
    """
    found = with_candidate(
        settings.pipeline_resize_policy,
        settings.pipeline_resize_candidate,
        clock_s=time.thread_time,
    )
    if isinstance(found, GuardedResizing):
        guards.add(found.guard)
    return found


def bounds_of_workloads(settings: MasterSettings) -> WorkloadBounds:
    """The bounds that are settings have the settings' values."""
    return WorkloadBounds(
        workers_max=settings.pipeline_workers_max,
        worker_idle_s=settings.pipeline_worker_idle_s,
        stream_idle_s=settings.pipeline_stream_idle_s,
        worker_cores=settings.pipeline_worker_cores,
        worker_memory_mib=settings.pipeline_worker_memory_mib,
    )
