"""How far this node's learned policy is trusted, kept across restarts of the agent.

Operators set the mode at the master (``hrm policy set``), which passes it on as a numbered order,
followed once: a policy that fell back to shadow mode stays there until an operator sets a mode
again. The mode is kept in ``pipeline-policy.json`` in the work directory; with a damaged file the
policy stays in shadow mode whatever was ordered before.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import structlog

from hrm.durable import write_durably
from hrm.pipelines.core.model import NodePolicy
from hrm.pipelines.core.node_messages import SubtaskTiming
from hrm.pipelines.policies.corun import GuardedNodePolicy
from hrm.policies.guard import GuardMode, GuardRegistry, mode_of
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire

__all__ = ["POLICY_FILE", "AgentPolicies"]

POLICY_FILE = "pipeline-policy.json"
_log = structlog.get_logger("hrm.agent.pipelines")


class AgentPolicies:
    """The learned policies of this node: none, or the one that its settings name."""

    def __init__(self, work_dir: Path, policy: NodePolicy) -> None:
        self._path = work_dir / POLICY_FILE
        self._guarded = policy if isinstance(policy, GuardedNodePolicy) else None
        self._orders: dict[str, int] = {}
        self._too_old = 0
        """Orders up to this number, the master's milliseconds, may have been followed before."""
        self._reported: dict[str, pb.LearnedPolicy] = {}
        self._guards = GuardRegistry(self._kept(), keep=self._fell_back)
        if self._guarded is not None:
            self._guards.add(self._guarded.guard)

    def follow(self, order: pb.PolicyOrder) -> None:
        """Carry out the master's order, once.

        Raises:
            InvalidRequest: no such mode.
        """
        mode = mode_of(order.mode)
        if self._guarded is None or self._guarded.name != order.policy:
            return
        if self._orders.get(order.policy) == order.order:
            return
        self._orders[order.policy] = order.order
        if order.order <= self._too_old:
            _log.warning(
                "an order from before the damage is not followed; repeat it: hrm policy set",
                policy=order.policy,
                mode=mode.value,
            )
            return
        self._guards.set_mode(order.policy, mode)
        self._keep(self._guards.modes)
        _log.info("mode set", policy=order.policy, mode=mode.value)

    def ended(self, timing: SubtaskTiming, now: float) -> None:
        """A run is over: report it to the watchdog."""
        if self._guarded is not None:
            self._guarded.ended(timing, now)

    def report(self, now: float) -> list[pb.LearnedPolicy]:
        """All of them, for a master that has no state of this node yet."""
        self._reported = {}
        return self.changed(now)

    def changed(self, now: float) -> list[pb.LearnedPolicy]:
        """Those with a change since the last call."""
        states = [policy_wire.from_status(status, now) for status in self._guards.statuses(now)]
        new = [state for state in states if self._reported.get(state.policy) != state]
        self._reported = {state.policy: state for state in states}
        return new

    def _kept(self) -> dict[str, GuardMode]:
        try:
            held = json.loads(self._path.read_text())
            modes = {str(name): GuardMode(one["mode"]) for name, one in held.items()}
            self._orders = {str(name): int(one["order"]) for name, one in held.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning(
                "modes of learned policies cannot be read; they begin in their shadow",
                file=str(self._path),
                why=repr(error),
            )
            self._too_old = int(1e3 * time.time())
            return {}
        return modes

    def _fell_back(self, modes: dict[str, GuardMode]) -> None:
        assert self._guarded is not None
        _log.warning("the node policy was worse and fell back", policy=self._guarded.name)
        self._keep(modes)

    def _keep(self, modes: dict[str, GuardMode]) -> None:
        """Write all or nothing. A full disk must not keep a policy from falling back."""
        held = {
            name: {"mode": mode.value, "order": self._orders.get(name, 0)}
            for name, mode in modes.items()
        }
        try:
            write_durably(self._path, f"{json.dumps(held)}\n".encode())
        except OSError as error:
            _log.warning("modes of learned policies cannot be kept", why=str(error))
