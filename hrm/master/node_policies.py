"""Learned policies of the nodes of pipelines: their reported state, and the modes users set.

Nodes report with their load. A mode is intent: an order with a number of its own, kept in
``node-policy-modes.json`` in the state directory and sent to every node immediately and on each
registration. A node follows an order once, so a fallback to shadow mode there lasts until the next.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from hrm.core.vocabulary.model import NodeName
from hrm.durable import write_durably
from hrm.errors import InvalidConfig
from hrm.policies.guard import GuardMode
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire

__all__ = ["NODE_MODES_FILE", "NodePolicies"]

NODE_MODES_FILE = "node-policy-modes.json"
_POLICIES_MAX = 16
"""Of one node; an agent has one."""

log = structlog.get_logger("master.policies")


class NodePolicies:
    """``send_order`` sends an order to the nodes that are connected."""

    def __init__(self, state_dir: Path, send_order: Callable[[pb.PolicyOrder], None]) -> None:
        """Raises:
        InvalidConfig: the file is damaged.
        """
        self._path = state_dir / NODE_MODES_FILE
        self._send_order = send_order
        self._reports: dict[NodeName, dict[str, pb.LearnedPolicy]] = {}
        self.orders = self._kept()
        """The latest of each policy."""

    def take_report(self, node: NodeName, policies: Iterable[pb.LearnedPolicy]) -> None:
        """Take in the report of ``node`` on its policies.

        Raises:
            InvalidRequest: a field is malformed.
        """
        for message in policies:
            report = policy_wire.to_report(message, node)
            known = self._reports.setdefault(node, {})
            if len(known) < _POLICIES_MAX or report.policy in known:
                known[report.policy] = report

    def left(self, node: NodeName) -> None:
        self._reports.pop(node, None)

    def all(self) -> list[pb.LearnedPolicy]:
        """By policy, then by node."""
        found = [one for reports in self._reports.values() for one in reports.values()]
        return sorted(found, key=lambda one: (one.policy, one.node))

    def set_mode(self, policy: str, mode: GuardMode) -> list[str]:
        """Keep the order and send it; returns the nodes that use ``policy``."""
        before = self.orders[policy].order if policy in self.orders else 0
        number = max(before + 1, int(1e3 * time.time()))
        order = policy_wire.order(policy, mode, number)
        self._keep(self.orders | {policy: order})
        self.orders[policy] = order
        self._send_order(order)
        return [one.node for one in self.all() if one.policy == policy]

    def _kept(self) -> dict[str, pb.PolicyOrder]:
        try:
            held = json.loads(self._path.read_text())
            return {
                str(name): policy_wire.order(str(name), GuardMode(one["mode"]), int(one["order"]))
                for name, one in held.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(
                f"{self._path} is damaged ({error}); remove it: nodes keep the modes they have"
            ) from error

    def _keep(self, orders: dict[str, pb.PolicyOrder]) -> None:
        """A failed write is logged, and does not keep the orders from the nodes."""
        held = {name: {"mode": one.mode, "order": one.order} for name, one in orders.items()}
        try:
            write_durably(self._path, (json.dumps(held) + "\n").encode())
        except OSError as error:
            log.warning(
                "cannot keep the modes of nodes' policies: disconnected nodes do not get them "
                "once the master has ended; free some space, and set them again",
                path=str(self._path), why=str(error),
            )  # fmt: skip
