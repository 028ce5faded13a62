"""Every bound that the core keeps, by name.

The daemons fill them from ``hrm.config``, whose defaults are these: a setting that the core
also uses has its default here, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BOUNDS",
    "DEVICE_MEMORY_RISK",
    "GPU_WAITER_BOUNDS",
    "PASSES_MAX",
    "PREEMPTION_GRACE_S",
    "SCHEDULERS",
    "YIELD_GRACE_S",
    "YIELD_GRACE_S_MAX",
    "AutoBindingRules",
    "Bounds",
    "GpuWaiterBounds",
]

SCHEDULERS = 1
"""Schedulers in the master's process. Rounds of several never overlap there, so more cost more."""

PREEMPTION_GRACE_S = 15.0
"""Grace period of a batch container that is preempted for a stream."""

YIELD_GRACE_S = 10.0
"""Grace period of a yielding container, for whatever else waits at its unit: of a node that has no
other, or has not reported one."""

YIELD_GRACE_S_MAX = 3_600.0
"""The longest that an agent may have."""

PASSES_MAX = 64
"""How many later batch containers may start before a waiter: as many as may wait at a unit by
default, so that it binds only where run times are not what they were estimated to be."""


DEVICE_MEMORY_RISK = 0.01
"""The most that the probability may be that steps which share a GPU need more memory than there is
for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the master's core. Units last in each name; counts have none."""

    node_timeout_s: float = 15.0
    tick_late_s: float = 1.0
    application_grace_s: float = 30.0
    lease_timeout_s: float = 2.0
    lease_scope: Literal["global", "candidates"] = "global"
    proposal_timeout_s: float = 5.0
    scheduler_timeout_s: float = 15.0
    node_failures: int = 2
    node_failure_run_s: float = 60.0
    node_failure_window_s: float = 600.0
    node_failing_applications: int = 3
    node_exclusion_s: float = 60.0
    node_exclusion_max_s: float = 1800.0
    rebind_timeout_s: float = 4.0
    retry_delay_s: float = 0.05
    retry_delay_max_s: float = 2.0
    resend_delay_s: float = 3.0
    relocation_wait_s: float = 10.0
    relocation_period_s: float = 1.0
    gang_wait_s: float = 20.0
    gpu_preemption: bool = False
    gpu_preemption_grace_s: float = PREEMPTION_GRACE_S
    queue_preemption: bool = True
    queue_preemption_grace_s: float = PREEMPTION_GRACE_S
    queue_preemption_part: float = 0.1
    queue_reclaim_wait_s: float = 5.0
    queue_use_half_life_s: float = 3_600.0
    priority_period_s: float = 60.0
    priority_steps: int = 5
    priority_steps_per_user: int = 20
    priority_ageing_s: float = 1_800.0
    platform_wait_s: float = 3.0
    platform_moves: bool = True
    platform_move_after_s: float = 60.0
    queue_fairness_half_life_s: float = 600.0
    recovery_window_s: float = 10.0
    stop_grace_s: float = 5.0
    default_duration_s: float = 60.0
    wait_max_s: float = 600.0
    waiting_limit: int = 64
    waiting_bound: Literal["limit", "feedback"] = "limit"
    heartbeat_interval_s: float = 1.0
    applications_limit: int = 10_000
    containers_limit: int = 100_000
    applications_per_user: int = 10_000
    launches_held_mib: int = 1_024
    nodes_limit: int = 20_000
    ended_applications_kept: int = 1_000
    ended_applications_mib: int = 256
    ended_containers_kept: int = 200
    parked_proposals_limit: int = 1_024
    delays_kept: int = 1_000
    lost_nodes_kept: int = 1_000
    driver_share: float = 0.2
    run_times_kept: int = 10_000
    learned_classes_kept: int = 10_000
    class_guess_s: float = 60.0
    elastic_beta: float = 3e-4
    elastic_period_s: float = 5.0
    elastic_resizes_per_minute: int = 60

    @property
    def asleep_s(self) -> float:
        """After this time without a tick, the master slept; well below what it grants others."""
        least_s = min(self.node_timeout_s, self.application_grace_s, self.scheduler_timeout_s)
        return min(self.tick_late_s, least_s / 4)


BOUNDS = Bounds()
"""The defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBindingRules:
    """When a node changes a partial binding by itself.

    ``window``: measurements, all of one binding.
    """

    window: int = 30
    busy_percent: float = 90.0
    idle_percent: float = 50.0
    cores_min: int = 1
    pause_s: float = 300.0

    def __post_init__(self) -> None:
        assert 0 <= self.idle_percent < self.busy_percent
        assert min(self.window, self.cores_min) >= 1 and self.pause_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWaiterBounds:
    """How far profiles may change the order in which batch starts on a shared GPU.

    ``passes_max``: how many later ones may have started before one that may start itself.
    ``ageing_factor``: after how many times its own expected run time one that waits goes first.
    ``kept_max_s``: for how long one is kept back for which device memory is expected to lack.
    """

    passes_max: int = 8
    ageing_factor: float = 10.0
    kept_max_s: float = 120.0

    def __post_init__(self) -> None:
        assert 0 <= self.passes_max <= PASSES_MAX
        assert self.ageing_factor > 0 and self.kept_max_s > 0


GPU_WAITER_BOUNDS = GpuWaiterBounds()
"""The defaults."""
