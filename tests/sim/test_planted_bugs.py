"""The simulator can fail: with a bug planted in the core, some seed of the first few finds it.

Each bug is one that a change could bring in. The same seeds find nothing in the core as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hrm.core import feasibility, node, resource_unit
from hrm.core.applications import Applications
from hrm.core.ledger import Container, Ledger, Node
from hrm.core.model import ContainerState, ContainerStatus, EndCause
from hrm.core.negotiator import Proposal, StreamLease
from hrm.core.node import NodeCore
from hrm.core.nodes import Nodes
from hrm.core.placing import Placing
from hrm.sim.run import run_seed

SEEDS = range(150)


def double_commit(patch: pytest.MonkeyPatch) -> None:
    """A proposal that arrives twice is committed twice."""

    def proposed(self: Placing, proposal: Proposal, now: float) -> None:
        scheduler = self.schedulers[proposal.scheduler]
        outcomes = self.negotiator.commit(proposal, now)
        if outcomes is None:
            return
        scheduler.in_flight = None
        job = scheduler.jobs.get(proposal.application_id)
        if job is not None:
            self._settle(scheduler, job, outcomes, now)
        self.negotiator.lease.release(scheduler.name, proposal.lease_token)
        self.lease_free(now)
        self._sleep(scheduler)

    patch.setattr(Placing, "proposed", proposed)


def lost_release(patch: pytest.MonkeyPatch) -> None:
    """What a container held is not given back when it was released."""
    leave = Ledger._leave_unit

    def leave_unit(self: Ledger, container: Container) -> None:
        if container.end is None or container.end.cause is not EndCause.RELEASED:
            leave(self, container)

    patch.setattr(Ledger, "_leave_unit", leave_unit)


def release_unheard(patch: pytest.MonkeyPatch) -> None:
    """The node takes an order to stop for done, and does nothing."""
    patch.setattr(NodeCore, "_stop_running", lambda *_: None)


def stale_lease(patch: pytest.MonkeyPatch) -> None:
    """The fencing token of a stream's lease is not looked at."""
    patch.setattr(StreamLease, "holds", lambda *_: True)


def start_rule_too_wide(patch: pytest.MonkeyPatch) -> None:
    """The node starts one vcore more than its unit has."""

    def fits(demand: feasibility.Vector, offer: feasibility.Vector) -> bool:
        return demand[0] <= offer[0] + 1 and all(
            need <= have for need, have in zip(demand[1:], offer[1:], strict=True)
        )

    patch.setattr(resource_unit, "fits", fits)


def start_rule_too_narrow(patch: pytest.MonkeyPatch) -> None:
    """Nothing starts that would fill its unit to the last vcore."""

    def fits(demand: feasibility.Vector, offer: feasibility.Vector) -> bool:
        return demand[0] < offer[0] and all(
            need <= have for need, have in zip(demand[1:], offer[1:], strict=True)
        )

    patch.setattr(resource_unit, "fits", fits)


def grant_to_a_dead_node(patch: pytest.MonkeyPatch) -> None:
    """A lost node's units stay in the table."""
    lose = Nodes._lose

    def lose_but_keep(self: Nodes, node: Node, now: float, why: str) -> None:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(Nodes, "_close_rows", lambda *_: None)
            lose(self, node, now, why)

    patch.setattr(Nodes, "_lose", lose_but_keep)


def dead_node_undetected(patch: pytest.MonkeyPatch) -> None:
    """Nobody notices that a node is silent."""
    patch.setattr(Nodes, "tick", lambda *_: None)


def old_epoch_honoured(patch: pytest.MonkeyPatch) -> None:
    """A node obeys a master that has been replaced."""
    patch.setattr(NodeCore, "_accepts", lambda *_: True)


def tombstones_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An order that arrives again after the end starts the container again."""
    patch.setattr(node, "TOMBSTONES", 0)
    patch.setattr(Nodes, "_stop_stranger", lambda *_: None)


def endless_orders(patch: pytest.MonkeyPatch) -> None:
    """Every report of a container that stops is answered with another order to stop."""
    apply = Nodes._apply

    def apply_and_stop(self: Nodes, node: Node, status: ContainerStatus, now: float) -> None:
        apply(self, node, status, now)
        if status.state is ContainerState.STOPPING:
            self._stop_stranger(node, status.container_id)

    patch.setattr(Nodes, "_apply", apply_and_stop)


def written_too_late(patch: pytest.MonkeyPatch) -> None:
    """The record of a new application is written with the answer, not before it."""
    new = Applications._new

    def new_without_record(self: Applications, event: object) -> object:
        app = new(self, event)  # type: ignore[arg-type]
        self.ledger.out.pop()
        return app

    patch.setattr(Applications, "_new", new_without_record)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    double_commit,
    lost_release,
    release_unheard,
    stale_lease,
    start_rule_too_wide,
    start_rule_too_narrow,
    grant_to_a_dead_node,
    dead_node_undetected,
    old_epoch_honoured,
    tombstones_forgotten,
    endless_orders,
    written_too_late,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = next((seed for seed in SEEDS if run_seed(seed).violations), None)
    assert found is not None, f"{len(SEEDS)} seeds found nothing: {bug.__doc__}"
    monkeypatch.undo()
    assert run_seed(found).violations == ()
