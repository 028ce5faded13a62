"""Learned policies that run on nodes: their reported state, and the modes users set.

Those of workers of pipelines (``WORKERS``) are reported with their load, those of agents
(``AGENTS``) with heartbeats. A mode is intent: an order with a number of its own, kept in a file of
the state directory and sent to all of them immediately and on each registration, so that one is
accepted while none runs. Each follows an order once: a fallback to shadow mode there lasts until
the next.

A worker lives for seconds after its last task, and its counters with it. What those have counted
that left is summed up here, until the master ends. One that comes back counts by itself again.
What a worker counts is its user's word, and the sums are everybody's: it has decided at most
``_DECISIONS_PER_S`` since its application began. An agent may have run for long before this master.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import structlog

from hrm.core.vocabulary.model import NodeName
from hrm.durable import write_durably
from hrm.errors import InvalidConfig
from hrm.pipelines.policies.corun import HEURISTIC, LEARNED
from hrm.policies.guard import GuardMode
from hrm.policies.shared_gpu.guarded import MODEL_KIND
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire

__all__ = [
    "AGENTS",
    "AGENT_MODES_FILE",
    "NODE_MODES_FILE",
    "WORKERS",
    "NodePolicies",
    "PolicyHosts",
]

NODE_MODES_FILE = "node-policy-modes.json"
AGENT_MODES_FILE = "agent-policy-modes.json"
_POLICIES_MAX = 16
"""Of one node; an agent has one."""
_LEFT_MAX = 1_000
"""Workers that have left and may come back; what older ones counted is added up for good."""
_COUNTERS = ("asked", "learned", "shadowed", "proposed", "agreed")
_COUNT_MAX = 2**63 - 1
_DECISIONS_PER_S = 1_000
"""More than a worker gets to: a decision looks at all of its state, and starts processes."""
_CLOCKS_S = 10.0
"""By which clocks may differ, and what a worker may have decided before it is known here."""

log = structlog.get_logger("master.policies")


class PolicyHosts(NamedTuple):
    """What runs policies that are reported here.

    Attributes:
        kind: what their policies decide.
        learned: the policies that HRM has for them; ``heuristic`` decides where these do not.
        modes_file: where ordered modes are kept.
        name: of one of them, for people; ``setting``: what has it use a policy.
    """

    kind: str
    learned: frozenset[str]
    heuristic: str
    modes_file: str
    name: str
    setting: str


WORKERS = PolicyHosts(
    "node", LEARNED, HEURISTIC, NODE_MODES_FILE, "worker", "on agents with pipeline_policy = {}"
)
AGENTS = PolicyHosts(
    "shared-gpu",
    frozenset({MODEL_KIND}),
    LookAhead.name,
    AGENT_MODES_FILE,
    "agent",
    "with gpu_waiters = dqngpu:learned",
)


class NodePolicies:
    """``send_order`` sends an order to the nodes that are connected; ``age_s``: how long a node can
    have been there, seconds. ``hosts``: which ones these are."""

    def __init__(
        self,
        state_dir: Path,
        send_order: Callable[[pb.PolicyOrder], None],
        age_s: Callable[[NodeName], float],
        hosts: PolicyHosts = WORKERS,
    ) -> None:
        """Raises:
        InvalidConfig: the file is damaged.
        """
        self._path = state_dir / hosts.modes_file
        self._hosts = hosts
        self._send_order = send_order
        self._age_s = age_s
        self._reports: dict[NodeName, dict[str, pb.LearnedPolicy]] = {}
        self._left: dict[NodeName, dict[str, pb.LearnedPolicy]] = {}
        """The last reports of workers that have left, the first to leave first."""
        self._sums: dict[str, pb.LearnedPolicy] = {}
        """By policy, of those that left before these."""
        self.orders = self._kept()
        """The latest of each policy."""

    def take_report(self, node: NodeName, policies: Iterable[pb.LearnedPolicy]) -> None:
        """Take in the report of ``node`` on its policies.

        Raises:
            InvalidRequest: a field is malformed.
        """
        asked_max = int(min(_COUNT_MAX, _DECISIONS_PER_S * (self._age_s(node) + _CLOCKS_S)))
        for message in policies:
            report = policy_wire.to_report(message, node, asked_max, self._hosts.kind)
            self._left.get(node, {}).pop(report.policy, None)
            known = self._reports.setdefault(node, {})
            if len(known) < _POLICIES_MAX or report.policy in known:
                known[report.policy] = report

    def left(self, node: NodeName) -> None:
        """A worker has ended, or its stream is down. Others' counters are kept as they are: a
        worker's user may report what it wants, but a policy that HRM has is of few names."""
        reports = self._reports.pop(node, {})
        kept = {name: one for name, one in reports.items() if name in self._hosts.learned}
        if not kept:
            return
        self._left[node] = kept
        if len(self._left) > _LEFT_MAX:
            for name, one in self._left.pop(next(iter(self._left))).items():
                _add(self._sums.setdefault(name, pb.LearnedPolicy()), one)

    def all(self) -> list[pb.LearnedPolicy]:
        """By policy, then by node."""
        found = [one for reports in self._reports.values() for one in reports.values()]
        return sorted(found, key=lambda one: (one.policy, one.node))

    def summary(self, policy: str) -> pb.LearnedPolicy | None:
        """A policy that HRM has: the mode that is ordered, and what workers have counted that are
        gone; None: HRM has none of this name."""
        if policy not in self._hosts.learned:
            return None
        order, gone = (
            self.orders.get(policy),
            [x[policy] for x in self._left.values() if policy in x],
        )
        latest = policy_wire.learned_policy()
        for one in (*reversed(gone), self._sums.get(policy, latest)):
            _name_as(latest, one)
        summary = policy_wire.learned_policy(
            policy=policy,
            kind=self._hosts.kind,
            heuristic=latest.heuristic or self._hosts.heuristic,
            model=latest.model or "-",
            schema=latest.schema,
            mode=GuardMode.SHADOW.value if order is None else order.mode,
        )
        for one in (*([self._sums[policy]] if policy in self._sums else []), *gone):
            _add(summary, one)
        name = self._hosts.name
        if any(one.policy == policy for one in self.all()):
            summary.last = f"counted by {name}s that have ended; those that run report their own"
        else:
            where = self._hosts.setting.format(policy)
            summary.last = (
                f"no {name} uses it now; those that start later will, in this mode, {where}"
            )
        return summary

    def summaries(self) -> list[pb.LearnedPolicy]:
        """Those with counters of workers that are gone, or ordered while no worker uses them."""
        ordered = self.orders.keys() - {one.policy for one in self.all()}
        found = (self.summary(policy) for policy in sorted(self._hosts.learned))
        return [x for x in found if x is not None and (x.asked or x.policy in ordered)]

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


def _add(total: pb.LearnedPolicy, one: pb.LearnedPolicy) -> None:
    """Add what one has counted. What a worker reports is its user's word: sums stay in bounds."""
    for name in _COUNTERS:
        counted = getattr(total, name) + getattr(one, name)
        setattr(total, name, min(counted, _COUNT_MAX))
    for reason, many in one.fallbacks.items():  # of ``Reason``, as ``to_report`` has them
        total.fallbacks[reason] = min(total.fallbacks[reason] + many, _COUNT_MAX)
    _name_as(total, one)


def _name_as(total: pb.LearnedPolicy, one: pb.LearnedPolicy) -> None:
    """Take from ``one`` the names that ``total`` lacks."""
    for name in ("heuristic", "model", "schema"):
        setattr(total, name, getattr(total, name) or getattr(one, name))
