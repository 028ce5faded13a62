"""The simulator can fail: with a bug planted in the core, some seed of the first few finds it.

Each bug is one that a change could bring in. The same seeds find nothing in the core as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master import gangs, nodes
from hrm.core.master.applications import Applications
from hrm.core.master.core import MasterCore
from hrm.core.master.epochs import Epochs
from hrm.core.master.nodes import Nodes
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.reconciliation import NodeReconciler
from hrm.core.master.repartitioning import Repartitioning
from hrm.core.master.state import Application, Container, MasterState, Node
from hrm.core.master.subscriptions import Subscriptions
from hrm.core.master.wake_timers import WakeTimers
from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.claims import Claim, Entry, Outcome, Proposal
from hrm.core.messages.state_changes import UnitState
from hrm.core.node import core as node
from hrm.core.node import preemption
from hrm.core.node.auto_partitioning import UtilizationSample, sample_utilization
from hrm.core.node.core import NodeCore
from hrm.core.node.preemption import Eviction
from hrm.core.queue import resource_unit
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator, StreamLease
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, Placement, Scheduler
from hrm.core.scheduling.session import SchedulerAnswer, SchedulerSession
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.submission import submissions
from hrm.core.submission.driver_lease import DriverLease
from hrm.core.submission.hosting import Step, SubmissionHost
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary import feasibility, ownership
from hrm.core.vocabulary.model import (
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    ResourceUnit,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Hardware, Partitioning, partition
from hrm.core.vocabulary.wakefulness import Wakefulness
from hrm.policies.min_wait import MinWait
from hrm.runtime.master import MasterRuntime
from hrm.sim.faults.plan import Limits
from hrm.sim.run import run_seed

SEEDS = range(150)
LIMITS = (None, Limits(without=frozenset({"submissions"})))
"""One of the bugs is rare where the nodes are full of drivers."""


def double_commit(patch: pytest.MonkeyPatch) -> None:
    """A proposal that arrives twice is committed twice."""

    def proposed(self: PlacementCoordinator, proposal: Proposal, now: float) -> None:
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

    patch.setattr(PlacementCoordinator, "proposed", proposed)


def lost_release(patch: pytest.MonkeyPatch) -> None:
    """What a container held is not given back when it was released."""
    leave = MasterState._leave_unit

    def leave_unit(self: MasterState, container: Container) -> None:
        if container.end is None or container.end.cause is not EndCause.RELEASED:
            leave(self, container)

    patch.setattr(MasterState, "_leave_unit", leave_unit)


def release_unheard(patch: pytest.MonkeyPatch) -> None:
    """The node takes an order to stop for done, and does nothing."""
    patch.setattr(NodeCore, "_stop_running", lambda *_, **__: None)


def closed_with_who_waits(patch: pytest.MonkeyPatch) -> None:
    """A node that closes keeps who waits there, and nobody else may have them."""

    def close(self: NodeCore, event: e.NodeClosed) -> None:
        self.closed = event.why
        self._out.append(c.RegisterAgain(binding=None))

    patch.setattr(NodeCore, "_close", close)


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
    patch.setattr(NodeReconciler, "_stop_orphan", lambda *_: None)


def endless_orders(patch: pytest.MonkeyPatch) -> None:
    """Every report of a container that stops is answered with another order to stop."""
    apply = NodeReconciler.apply

    def apply_and_stop(
        self: NodeReconciler, node: Node, status: ContainerStatus, now: float
    ) -> None:
        apply(self, node, status, now)
        if status.state is ContainerState.STOPPING:
            self._stop_orphan(node, status.container_id)

    patch.setattr(NodeReconciler, "apply", apply_and_stop)


def written_too_late(patch: pytest.MonkeyPatch) -> None:
    """The record of a new application is written with the answer, not before it."""
    new = Applications._new

    def new_without_record(self: Applications, event: object) -> object:
        app = new(self, event)  # type: ignore[arg-type]
        self.master_state.out.pop()
        return app

    patch.setattr(Applications, "_new", new_without_record)


def gang_in_parts(patch: pytest.MonkeyPatch) -> None:
    """The negotiator grants of a gang what there is room for."""

    def commit(
        self: Negotiator, claims: tuple[Claim, ...], proposal: Proposal, now: float
    ) -> list[Outcome]:
        return [self._commit_claim(claim, now) for claim in claims]

    patch.setattr(Negotiator, "_commit_together", commit)
    patch.setattr(gangs, "missing", lambda app: min(1, _missing(app)))


def gang_that_waits(patch: pytest.MonkeyPatch) -> None:
    """Some of a gang may wait in the queue of a unit."""
    commit = Negotiator._commit_claim

    def may_wait(self: Negotiator, claim: Claim, now: float, *, must_run: bool = False) -> Outcome:
        return commit(self, claim, now)

    placement = Scheduler._placement

    def in_a_queue(self: Scheduler, job: Job, *about: Any) -> Placement:
        return replace(placement(self, job, *about), waiting_limit=self.bounds.waiting_limit)

    patch.setattr(Negotiator, "_commit_claim", may_wait)
    patch.setattr(Scheduler, "_placement", in_a_queue)


def gang_refused_for_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    """A gang is refused for ever while a node is away."""
    refusal = gangs.refusal

    def hasty(master_state: MasterState, app: Application, resources: Any) -> str:
        with pytest.MonkeyPatch.context() as there:
            live = {x: n for x, n in master_state.nodes.items() if n.state.value != "lost"}
            there.setattr(master_state, "nodes", live)
            return refusal(master_state, app, resources)

    patch.setattr(gangs, "refusal", hasty)


def locked_units_granted(patch: pytest.MonkeyPatch) -> None:
    """Batch commits pass a stream's lease."""
    patch.setattr(StreamLease, "locks", lambda *_: False)


def device_memory_from_nowhere(patch: pytest.MonkeyPatch) -> None:
    """A GPU has twice its device memory after the node was partitioned again."""

    def too_much(
        name: NodeName, hardware: Hardware, binding: Partitioning
    ) -> tuple[ResourceUnit, ...]:
        units = partition(name, hardware, binding)
        return tuple(
            replace(x, capacity=replace(x.capacity, gpu_memory_mib=2 * x.capacity.gpu_memory_mib))
            for x in units
        )

    patch.setattr(node, "partition", too_much)


def cores_in_two_units(patch: pytest.MonkeyPatch) -> None:
    """Units that share their cores forget each other."""
    patch.setattr(UnitQueue, "join", lambda *_: None)


def cut_under_its_containers(patch: pytest.MonkeyPatch) -> None:
    """A node is partitioned again while containers run on what is taken away."""
    at_once = NodeCore._cut_if_free

    def cut_now(self: NodeCore) -> bool:
        draining = [queue for queue in self.units.values() if queue.unit.draining]
        with pytest.MonkeyPatch.context() as gone:
            for queue in draining:
                gone.setattr(queue, "running", {})
            return at_once(self)

    patch.setattr(NodeCore, "_cut_if_free", cut_now)


def draining_unit_granted(patch: pytest.MonkeyPatch) -> None:
    """A unit that is to be cut anew is open to claims."""
    add = SharedState.add

    def add_open(self: SharedState, name: NodeName, queue: UnitQueue) -> int:
        row = add(self, name, queue)
        self.open[row] = True
        return row

    patch.setattr(SharedState, "add", add_open)


def rebinding_answered_twice(patch: pytest.MonkeyPatch) -> None:
    """Who is answered is not forgotten."""
    answered = Repartitioning.answered

    def again(self: Repartitioning, event: e.RebindAnswered) -> None:
        kept = dict(self.pending)
        answered(self, event)
        self.pending = kept

    patch.setattr(Repartitioning, "answered", again)


def rebinding_never_answered(patch: pytest.MonkeyPatch) -> None:
    """Whose node does not answer waits for ever."""
    patch.setattr(Repartitioning, "tick", lambda *_: None)


def delta_missed(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler drops the last unit of a message."""
    put = Replica._put

    def put_most(self: Replica, images: tuple[UnitState, ...]) -> None:
        put(self, images[:-1] if len(images) > 1 and not images[-1].unit.pool else images)

    patch.setattr(Replica, "_put", put_most)


def change_not_told(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a unit opens or closes."""

    def set_open(self: SharedState, unit_id: Any, is_open: bool) -> None:
        self.open[self.rows[unit_id]] = is_open

    patch.setattr(SharedState, "set_open", set_open)


def jobs_of_a_lost_scheduler(patch: pytest.MonkeyPatch) -> None:
    """What a remote scheduler leaves behind is given to nobody."""
    lose = Subscriptions._lose

    def lose_jobs(self: Subscriptions, scheduler: Any, now: float) -> None:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self.placement, "hand_over", lambda *_: None)
            lose(self, scheduler, now)

    patch.setattr(Subscriptions, "_lose", lose_jobs)


def policy_that_does_not_look(patch: pytest.MonkeyPatch) -> None:
    """A policy answers the first unit for everybody."""

    def place(
        self: MinWait, view: ClusterView, placement: Placement, now: float
    ) -> list[int | None]:
        return [0] * len(placement.entries)

    patch.setattr(MinWait, "place", place)


def streams_make_way(patch: pytest.MonkeyPatch) -> None:
    """Streams take streams' room as well."""
    victims = preemption._victims

    def anybody(room: Any, unit: UnitQueue, waiter: Any, owners: Any, now: float) -> Any:
        kept = {queue: dict(queue.running) for queue in room.pool}
        for queue, running in kept.items():
            for entry in running.values():
                batch = entry._replace(workload_class=WorkloadClass.BATCH)
                queue.running[entry.container_id] = batch
        chosen = victims(room, unit, waiter, owners, now)
        for queue, running in kept.items():
            queue.running.update(running)
        return chosen

    patch.setattr(preemption, "_victims", anybody)


def too_many_make_way(patch: pytest.MonkeyPatch) -> None:
    """All batch containers of a unit go where one would be enough."""
    evictions = preemption.evictions

    def all_of_them(queue: UnitQueue, ending: Any, owners: Any, now: float) -> list[Eviction]:
        chosen = evictions(queue, ending, owners, now)
        others = [
            Eviction(x.container_id, chosen[-1].waiter)
            for x in queue.running.values()
            if chosen
            and x.workload_class is WorkloadClass.BATCH
            and x.container_id not in ending
            and all(x.container_id != eviction.victim for eviction in chosen)
        ]
        return chosen + others

    patch.setattr(node, "evictions", all_of_them)


def view_that_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """What a scheduler spent of its view in one round is spent in the next as well."""
    spent = ClusterView.apply

    def forget(self: ClusterView, row: int, entry: Entry, now: float) -> bool:
        ran = spent(self, row, entry, now)
        self._spent.clear()
        return ran

    patch.setattr(ClusterView, "apply", forget)


def drain_that_holds_up_a_stream(patch: pytest.MonkeyPatch) -> None:
    """A node drains units by its own will, whoever is there."""

    def blind(*about: Any) -> UtilizationSample:
        return replace(sample_utilization(*about), stream=False)

    patch.setattr(node, "sample_utilization", blind)


def excluded_node_granted(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at which nodes are excluded."""
    patch.setattr(ClusterView, "avoid", lambda *_: None)
    patch.setattr(PlacementCoordinator, "_spared", lambda self, proposal, claims, gang, now: claims)


def data_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Who finds no room near its data goes elsewhere at once."""

    def at_once(self: Scheduler, job: Job, *about: Any) -> Any:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self, "strict_order", True)
            return place_near(self, job, *about)

    place_near = Scheduler._place_near
    patch.setattr(Scheduler, "_place_near", at_once)


def next_driver_too_early(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits until the last lease of a driver that is lost has ended."""
    patch.setattr(SubmissionsCore, "_fence_ends_at_s", lambda *_: 0.0)


def lost_driver_taken_for_dead(patch: pytest.MonkeyPatch) -> None:
    """A node that is not heard of any more counts as one that has reported its driver's end."""
    ended = SubmissionsCore._driver_ended

    def seen(self: SubmissionsCore, event: m.DriverEnded) -> None:
        ended(self, replace(event, lost=False))

    patch.setattr(SubmissionsCore, "_driver_ended", seen)


def lease_for_former_drivers(patch: pytest.MonkeyPatch) -> None:
    """The number of a driver, which is the fence, is not looked at."""

    def any_attempt(self: SubmissionsCore, event: Any, happening: m.SubmissionHappening) -> Any:
        entry = self.entries.get(event.submission_id)
        return entry if entry is not None and entry.life.takes(happening) else None

    patch.setattr(SubmissionsCore, "_current", any_attempt)


def lease_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Answers leave before what they rest on is on the disk."""
    answers = (m.Committed, m.GrantLease)
    patch.setattr(submissions, "_who_hears_last", lambda each: 0 if type(each) in answers else 1)


def driver_not_missed(patch: pytest.MonkeyPatch) -> None:
    """A driver of which a restarted master hears nothing is waited for for ever."""
    patch.setattr(SubmissionsCore, "_unconfirmed", lambda *_: None)


def submitted_twice(patch: pytest.MonkeyPatch) -> None:
    """Who asks again, because the answer was lost, gets a second driver."""
    patch.setattr(SubmissionsCore, "submitted_as", lambda *_: None)


def application_taken_by_its_id(patch: pytest.MonkeyPatch) -> None:
    """An application's id is enough to register and attach as it."""
    patch.setattr(ownership, "is_owner", lambda *_: True)


def node_taken_by_its_identity(patch: pytest.MonkeyPatch) -> None:
    """A node's name and identity, which others see, are enough to be it."""
    patch.setattr(nodes, "is_owner", lambda *_: True)


def runner_by_its_attempt(patch: pytest.MonkeyPatch) -> None:
    """Knowing a driver's number is enough to say that it is gone."""
    patch.setattr(submissions, "is_owner", lambda *_: True)


def sleep_held_against_others(patch: pytest.MonkeyPatch) -> None:
    """A master that slept takes the others' silence for what it looks like."""
    patch.setattr(Wakefulness, "passed", lambda self, now: 0.0)
    patch.setattr(Wakefulness, "ticked", lambda self, now: 0.0)


def sleep_held_against_nodes(patch: pytest.MonkeyPatch) -> None:
    """After a sleep all others have a fresh limit, and nodes have none."""
    patch.setattr(Nodes, "woke", lambda *_: None)


def admitted_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """An AppMaster hears that it is admitted before that is on the disk."""
    patch.setattr(WriteGate, "_is_intent", lambda *_: False)


def behind_its_nodes(patch: pytest.MonkeyPatch) -> None:
    """A master with the epoch of an emptied store stays there; nodes do not obey it."""
    patch.setattr(Epochs, "admits", lambda *_: True)


def unknown_applications_ended(patch: pytest.MonkeyPatch) -> None:
    """A master whose store was emptied stops what it does not know at once."""
    woke = MasterCore.handle

    def knows_all(self: MasterCore, event: Any) -> Any:
        self.master_state.forgot_until_s = 0.0
        return woke(self, event)

    patch.setattr(MasterCore, "handle", knows_all)


def dead_agents_units(patch: pytest.MonkeyPatch) -> None:
    """The units that a dead agent registered, after its successor had, stay in the table."""
    revive = Nodes._revive

    def adopt(self: Nodes, event: e.NodeReported) -> None:
        node = self.master_state.nodes.get(event.node)
        known = node is not None and event.incarnation in node.incarnations
        if node is not None and known and not node.connected:
            node.incarnation, node.sequence = event.incarnation, event.sequence - 1
            node.connected = True
        revive(self, event)

    patch.setattr(Nodes, "_revive", adopt)


def answer_before_its_changes(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler believes an answer before the changes that were sent before it."""
    answered = SchedulerSession.answered

    def at_once(self: SchedulerSession, answer: SchedulerAnswer | None, now: float) -> None:
        answered(self, None if answer is None else replace(answer, sequence=0), now)

    patch.setattr(SchedulerSession, "answered", at_once)


def lease_that_does_not_run_out(patch: pytest.MonkeyPatch) -> None:
    """A runner goes by refusals alone: its driver outlives a lease that no master renews."""
    granted = DriverLease.granted

    def for_ever(self: DriverLease, number: int, **terms: Any) -> None:
        granted(self, number, **terms)
        self._ends_at_s = math.inf

    patch.setattr(DriverLease, "granted", for_ever)


def command_overtakes_its_write(patch: pytest.MonkeyPatch) -> None:
    """What a submission's record says leaves the master before the record is on the disk."""
    work = SubmissionHost._work

    def at_once(self: SubmissionHost, submission_id: str, now: float) -> None:
        self._waits.clear()
        work(self, submission_id, now)
        self._waits.clear()

    def written(self: SubmissionHost, number: int, now: float) -> list[Step]:
        at_once(self, self._writing.pop(number), now)
        return self._flush()

    patch.setattr(SubmissionHost, "_work", at_once)
    patch.setattr(SubmissionHost, "written", written)


def holder_not_held_again(patch: pytest.MonkeyPatch) -> None:
    """A restarted master does not listen to the holders of drivers."""

    def begin(self: SubmissionHost, now: float) -> list[Step]:
        self._to_hold = None
        return []

    patch.setattr(SubmissionHost, "begin", begin)


def one_timer_of_all(patch: pytest.MonkeyPatch) -> None:
    """A scheduler's wake takes the place of those of all others."""
    set_one = WakeTimers.set

    def set_alone(self: WakeTimers, scheduler: str, at_s: float) -> None:
        self._at_s.clear()
        set_one(self, scheduler, at_s)

    patch.setattr(WakeTimers, "set", set_alone)


def dead_master_takes_in(patch: pytest.MonkeyPatch) -> None:
    """What was on its way to a master that died reaches it, and leads to commands."""

    def submit(self: MasterRuntime, event: e.MasterEvent) -> None:
        self.carry_out(event, self.decide(event))

    patch.setattr(MasterRuntime, "submit", submit)


_missing = gangs.missing

BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    double_commit,
    lost_release,
    release_unheard,
    closed_with_who_waits,
    stale_lease,
    start_rule_too_wide,
    start_rule_too_narrow,
    grant_to_a_dead_node,
    dead_node_undetected,
    old_epoch_honoured,
    tombstones_forgotten,
    endless_orders,
    written_too_late,
    gang_in_parts,
    gang_that_waits,
    gang_refused_for_a_lost_node,
    locked_units_granted,
    device_memory_from_nowhere,
    cores_in_two_units,
    cut_under_its_containers,
    draining_unit_granted,
    rebinding_answered_twice,
    rebinding_never_answered,
    delta_missed,
    change_not_told,
    jobs_of_a_lost_scheduler,
    policy_that_does_not_look,
    streams_make_way,
    too_many_make_way,
    view_that_is_not_renewed,
    drain_that_holds_up_a_stream,
    excluded_node_granted,
    data_not_waited_for,
    next_driver_too_early,
    lost_driver_taken_for_dead,
    lease_for_former_drivers,
    lease_before_it_is_written,
    driver_not_missed,
    submitted_twice,
    application_taken_by_its_id,
    node_taken_by_its_identity,
    runner_by_its_attempt,
    sleep_held_against_others,
    sleep_held_against_nodes,
    admitted_before_it_is_written,
    behind_its_nodes,
    unknown_applications_ended,
    dead_agents_units,
    answer_before_its_changes,
    lease_that_does_not_run_out,
    command_overtakes_its_write,
    holder_not_held_again,
    one_timer_of_all,
    dead_master_takes_in,
]


CAUGHT_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    stale_lease: 73,
    old_epoch_honoured: 146,
    drain_that_holds_up_a_stream: 52,
    excluded_node_granted: 44,
    next_driver_too_early: 75,
    lost_driver_taken_for_dead: 75,
    behind_its_nodes: 40,
    dead_agents_units: 5913,
    lease_that_does_not_run_out: 75,
}
"""The seed that has found a rare one; the sweep is for when it does not any more."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    first = [(CAUGHT_BY[bug], None)] if bug in CAUGHT_BY else []
    sweep = ((seed, limits) for limits in LIMITS for seed in SEEDS)
    tried = itertools.chain(first, sweep)
    found = next((each for each in tried if run_seed(*each).violations), None)
    assert found is not None, f"{len(SEEDS)} seeds found nothing: {bug.__doc__}"
    monkeypatch.undo()
    assert run_seed(*found).violations == ()
