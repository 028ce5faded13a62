"""The guards of a daemon as its master knows them: what has changed is reported, and ordered modes
are followed.

An order is numbered, and sent again on each connection; it is carried out once, or a policy that
has fallen back by itself would be moved up by the next connection.
"""

from __future__ import annotations

from hrm.policies.guard import GuardRegistry, mode_of
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire

__all__ = ["GuardReports"]


class GuardReports:
    """``orders``: by policy, the number of the latest order that was carried out."""

    def __init__(self, guards: GuardRegistry, orders: dict[str, int] | None = None) -> None:
        self._guards = guards
        self._reported: dict[str, pb.LearnedPolicy] = {}
        self.orders = dict(orders or {})

    def follow(self, order: pb.PolicyOrder) -> bool:
        """Carry out the master's order, once; was it?

        Raises:
            InvalidRequest: no such mode.
        """
        mode = mode_of(order.mode)
        if order.policy not in self._guards or self.orders.get(order.policy) == order.order:
            return False
        self.orders[order.policy] = order.order
        self._guards.set_mode(order.policy, mode)
        return True

    def forget(self) -> None:
        """The next report has all of them: its master has none yet."""
        self._reported = {}

    def changed(self, now: float) -> list[pb.LearnedPolicy]:
        """Those with a change since the last call."""
        states = [policy_wire.from_status(status, now) for status in self._guards.statuses(now)]
        new = [state for state in states if self._reported.get(state.policy) != state]
        self._reported = {state.policy: state for state in states}
        return new
