"""How far this worker's learned policy is trusted.

Operators set the mode at the master (``hrm policy set``), which keeps it and passes it on as a
numbered order, to each worker when it connects; a policy that fell back to shadow mode stays there
until it is ordered otherwise. A new worker begins in shadow mode.
"""

from __future__ import annotations

import secrets

import structlog

from hrm.pipelines.core.model import NodePolicy
from hrm.pipelines.core.node_messages import SubtaskTiming
from hrm.pipelines.policies.corun import GuardedNodePolicy
from hrm.policies.guard import GuardMode, GuardRegistry
from hrm.v1 import policy_pb2 as pb
from hrm.wire.guard_reports import GuardReports

__all__ = ["WorkerPolicies"]

_log = structlog.get_logger("hrm.pipelines.worker")


class WorkerPolicies:
    """The learned policies here: none, or the one that the agent's settings name."""

    def __init__(self, policy: NodePolicy) -> None:
        self._guarded = policy if isinstance(policy, GuardedNodePolicy) else None
        draw_key = secrets.token_bytes(32)  # slices of time are this worker's own to draw
        guards = GuardRegistry({}, keep=self._fell_back, draw_key=draw_key)
        if self._guarded is not None:
            guards.add(self._guarded.guard)
        self._reports = GuardReports(guards)

    def follow(self, order: pb.PolicyOrder) -> None:
        """Carry out the master's order, once.

        Raises:
            InvalidRequest: no such mode.
        """
        if self._reports.follow(order):
            _log.info("mode set", policy=order.policy, mode=order.mode)

    def ended(self, timing: SubtaskTiming, now: float) -> None:
        """A run is over: report it to the watchdog."""
        if self._guarded is not None:
            self._guarded.ended(timing, now)

    def report(self, now: float) -> list[pb.LearnedPolicy]:
        """All of them, for a master that has no state of this node yet."""
        self._reports.forget()
        return self.changed(now)

    def changed(self, now: float) -> list[pb.LearnedPolicy]:
        """Those with a change since the last call."""
        return self._reports.changed(now)

    def _fell_back(self, modes: dict[str, GuardMode]) -> None:
        _log.warning("the node policy was worse and fell back", policy=", ".join(modes))
