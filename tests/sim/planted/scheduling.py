"""Bugs of schedulers, the negotiator, gangs, leases, policies and remote schedulers' state."""

from __future__ import annotations

import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.core.master import (
    admission,
    application_registry,
    gangs,
    gpu_shares,
    placement,
    relocation,
    returns,
)
from hrm.core.master.driver_places import DriverPlaces, Verdict
from hrm.core.master.gang_starts import GangStarts
from hrm.core.master.gpu_contest import GpuUser
from hrm.core.master.gpu_index import GpuIndex
from hrm.core.master.gpu_preemption import Lack, victims
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.places import KeptPlaces
from hrm.core.master.relocation import Relocation
from hrm.core.master.state import Application, Container, MasterState
from hrm.core.master.subscriptions import Subscriptions
from hrm.core.messages.claims import Claim, Entry, Outcome, Proposal
from hrm.core.messages.state_changes import UnitState
from hrm.core.queue import resource_unit
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling import backlog, negotiator, shared_state
from hrm.core.scheduling.backlog import Backlog, Job
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.negotiator import Negotiator, StreamLease
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Placement, Scheduler
from hrm.core.scheduling.session import SchedulerReply, SchedulerSession
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary import feasibility
from hrm.core.vocabulary.feasibility import Column, Vector, pooled_part
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerState,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey, RunTimeTable
from hrm.policies import placement_helpers
from hrm.policies.min_wait import MinWait

__all__ = ["BUGS"]

_missing = gangs.missing


def double_commit(patch: pytest.MonkeyPatch) -> None:
    """A proposal that arrives twice is committed twice: nothing asks what is in flight, nor what
    its job still waits for."""
    source = textwrap.dedent(inspect.getsource(PlacementCoordinator.proposed))
    for guard, instead in (
        (" or scheduler.in_flight is None:", ":"),
        ("tuple(x for x in proposal.claims if x.entry.container_id in pending)", "proposal.claims"),
    ):
        assert guard in source, guard
        source = source.replace(guard, instead)
    names = dict(vars(placement))
    exec(source, names)
    patch.setattr(PlacementCoordinator, "proposed", names["proposed"])


def stream_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Of a stream's first request the negotiator grants what fits."""

    def commit(self: Negotiator, proposal: Proposal, now: float) -> list[Outcome]:
        return self._count(self._commit_each(proposal.claims, now, frozenset()))

    patch.setattr(Negotiator, "_commit_stream", commit)


def stale_lease(patch: pytest.MonkeyPatch) -> None:
    """The fencing token of a stream's lease is not checked."""
    patch.setattr(StreamLease, "holds", lambda *_: True)


def gang_in_parts(patch: pytest.MonkeyPatch) -> None:
    """The negotiator grants the part of a gang that fits."""

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
    """A gang is refused permanently while a node is away."""
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


def delta_missed(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler drops the last unit of a message."""
    put = Replica._put

    def put_most(self: Replica, images: tuple[UnitState, ...]) -> None:
        put(self, images[:-1] if len(images) > 1 and not images[-1].unit.pool else images)

    patch.setattr(Replica, "_put", put_most)


def change_not_sent(patch: pytest.MonkeyPatch) -> None:
    """The opening or closing of a unit is not sent to schedulers."""

    def set_open(self: SharedState, unit_id: Any, is_open: bool) -> None:
        self.open[self.rows[unit_id]] = is_open

    patch.setattr(SharedState, "set_open", set_open)


def jobs_of_a_lost_scheduler(patch: pytest.MonkeyPatch) -> None:
    """The jobs of a lost remote scheduler are given to no other."""
    lose = Subscriptions._lose

    def lose_jobs(self: Subscriptions, scheduler: Any, now: float) -> None:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self.placement, "hand_over", lambda *_: None)
            lose(self, scheduler, now)

    patch.setattr(Subscriptions, "_lose", lose_jobs)


def policy_that_ignores_the_view(patch: pytest.MonkeyPatch) -> None:
    """A policy chooses the first unit for every container."""

    def place(
        self: MinWait, view: ClusterView, placement: Placement, now: float
    ) -> list[int | None]:
        return [0] * len(placement.entries)

    patch.setattr(MinWait, "place", place)


def view_that_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """What a scheduler reserved tentatively in one round stays reserved in the next."""
    original_apply = ClusterView.apply

    def forget(self: ClusterView, row: int, entry: Entry, now: float) -> bool:
        ran = original_apply(self, row, entry, now)
        self._reduced.clear()
        return ran

    patch.setattr(ClusterView, "apply", forget)


def excluded_node_granted(patch: pytest.MonkeyPatch) -> None:
    """Exclusions of nodes are not checked."""
    patch.setattr(ClusterView, "avoid", lambda *_: None)
    patch.setattr(
        PlacementCoordinator, "_without_excluded", lambda self, proposal, claims, gang, now: claims
    )


def requirement_ignored(patch: pytest.MonkeyPatch) -> None:
    """What an application requires of nodes is checked neither by schedulers nor at the commit."""
    patch.setattr(ClusterView, "require", lambda *_: None)
    patch.setattr(Negotiator, "_of_suited_nodes", lambda self, proposal, _: (proposal, []))


def some_nodes_taken_for_all(patch: pytest.MonkeyPatch) -> None:
    """That nodes which meet a requirement have no capacity is taken for a lack of all nodes."""
    note = Exhaustion.note

    def note_for_all(
        self: Exhaustion,
        demand: Vector,
        requires: NodeRequirement | None = None,
        avoid: frozenset[NodeName] = frozenset(),
    ) -> None:
        note(self, demand, requires, avoid)
        if (demand, requires, avoid) in self.known:
            self.known[demand, None, frozenset()] = self.known[demand, requires, avoid]

    patch.setattr(Exhaustion, "note", note_for_all)


def data_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A container that finds no capacity near its data immediately goes elsewhere."""

    def at_once(self: Scheduler, job: Job, *about: Any) -> Any:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self, "strict_order", True)
            return place_near(self, job, *about)

    place_near = Scheduler._place_near
    patch.setattr(Scheduler, "_place_near", at_once)


def reply_before_its_changes(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler acts on a reply before the changes that were sent before it."""
    reply_received = SchedulerSession.reply_received

    def at_once(self: SchedulerSession, reply: SchedulerReply | None, now: float) -> None:
        reply_received(self, None if reply is None else replace(reply, sequence=0), now)

    patch.setattr(SchedulerSession, "reply_received", at_once)


def place_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The request that follows a preemption is like any other."""
    patch.setattr(KeptPlaces, "take", lambda *_: NO_UNIT)


def place_not_kept_at_the_unit(patch: pytest.MonkeyPatch) -> None:
    """The replacement of a preempted container waits wherever its policy put it."""
    patch.setattr(Negotiator, "_commit_with_place", lambda *_: None)


def gpu_shares_of_each_scheduler(patch: pytest.MonkeyPatch) -> None:
    """Each scheduler shares out GPUs among its own jobs alone."""
    kinds = FairGpuParts._kinds

    def of_each(self: FairGpuParts, now: float) -> list[list[GpuUser]]:
        by_scheduler: dict[tuple[int, str], list[GpuUser]] = {}
        for index, users in enumerate(kinds(self, now)):
            for user in users:
                name = self._master_state.applications[user.application_id].scheduler
                by_scheduler.setdefault((index, name), []).append(user)
        return list(by_scheduler.values())

    patch.setattr(FairGpuParts, "_kinds", of_each)


def gpus_counted_by_request(patch: pytest.MonkeyPatch) -> None:
    """A container that starts or waits counts among those that wait for a place, until it ends."""
    changed = GpuIndex.changed

    def at_request_and_end(self: GpuIndex, container: Container) -> None:
        if container.state in (ContainerState.PENDING, ContainerState.ENDED):
            changed(self, container)

    patch.setattr(GpuIndex, "changed", at_request_and_end)


def newcomer_without_gpus(patch: pytest.MonkeyPatch) -> None:
    """What an application queued for GPUs while it was alone starts before what comes later."""
    patch.setattr(FairGpuParts, "rebalance", lambda *_: None)


def gpus_taken_below_a_share(patch: pytest.MonkeyPatch) -> None:
    """For a newcomer all containers of the others are preempted, not those above their share."""

    def any_of_them(
        master_state: MasterState,
        lacks: Sequence[Lack],
        running: Sequence[Container],
        above_mib: dict[ApplicationId, int],
        kept_mib: dict[ApplicationId, int],
        closed: Collection[ResourceUnitId],
        coming_mib: int,
        could_start: Callable[[ApplicationId, Sequence[Container]], bool],
    ) -> Iterator[tuple[Lack, list[Container]]]:
        some = [lack._replace(containers=len(running)) for lack in lacks]
        any_mib = dict.fromkeys(above_mib, 1 << 40)
        kept = kept_mib | any_mib
        return victims(master_state, some, running, any_mib, kept, closed, 0, could_start)

    patch.setattr(gpu_shares, "victims", any_of_them)


def stream_queued_behind_streams(patch: pytest.MonkeyPatch) -> None:
    """A stream may wait in the queue of any unit that is large enough."""
    patch.setattr(ClusterView, "streams_leave", lambda self, demand: np.ones_like(self.open))
    patch.setattr(placement_helpers, "leaves", lambda *_: True)
    patch.setattr(negotiator, "leaves", lambda *_: True)


def stream_that_stops_batch(patch: pytest.MonkeyPatch) -> None:
    """What was batch when it was queued stays there as a stream, whatever other streams hold."""
    patch.setattr(Relocation, "_return_streams", lambda *_: None)


def drivers_fill_the_cluster(patch: pytest.MonkeyPatch) -> None:
    """Whatever drivers hold, and leave to executors, another may start."""

    def verdict(self: DriverPlaces, *_: Any) -> Verdict:
        return Verdict("", np.ones_like(self._state.open))

    patch.setattr(DriverPlaces, "verdict", verdict)


def driver_of_a_late_proposal(patch: pytest.MonkeyPatch) -> None:
    """What drivers hold is not checked again when a driver's place is committed."""
    patch.setattr(PlacementCoordinator, "_may_start", lambda *_: True)


def end_of_drivers_awaited(patch: pytest.MonkeyPatch) -> None:
    """Containers wait at units for the end of drivers, as for that of executors."""
    is_stream = property(lambda entry: entry.workload_class is WorkloadClass.STREAM)
    patch.setattr(Entry, "has_no_end", is_stream)


def queued_where_cores_are_shared(patch: pytest.MonkeyPatch) -> None:
    """Batch queues at units whose cores other units may take."""
    add = SharedState.add

    def unmarked(self: SharedState, node: NodeName, queue: UnitQueue) -> int:
        row = add(self, node, queue)
        self.shares[:] = False
        return row

    patch.setattr(SharedState, "add", unmarked)
    patch.setattr(Negotiator, "may_wait", lambda *_: "")


def run_times_added_up(patch: pytest.MonkeyPatch) -> None:
    """The run times of all containers are learned as one."""
    learned = RunTimeTable.learned

    def added(self: RunTimeTable, key: RunTimeKey, durations_s: list[float]) -> RunTime:
        known = self.rows.get(key)
        before_s = 0.0 if known is None else known.mean_s
        return replace(learned(self, key, durations_s), mean_s=before_s + sum(durations_s))

    patch.setattr(RunTimeTable, "learned", added)


def job_in_the_cohort_of_before(patch: pytest.MonkeyPatch) -> None:
    """A job that backs off for longer stays among those that back off for as long as it did."""
    place = Backlog.place

    def stay(self: Backlog, job: Job, at_s: float | None = None) -> None:
        cohort = job.cohort
        if cohort is None or not job.delay_s:
            place(self, job, at_s)
        else:
            cohort.place(job, job.not_before_s if at_s is None else at_s)

    patch.setattr(Backlog, "place", stay)


def job_that_is_never_due(patch: pytest.MonkeyPatch) -> None:
    """The index of a backlog keeps a job whose own time has come among those to come."""

    def shared_alone(self: Any, now: float) -> Job | None:
        first: Job | None = self._shared.first() if self.level_s <= now else None
        return first

    patch.setattr(backlog._Cohort, "first_ready", shared_alone)


def freed_unit_overlooked(patch: pytest.MonkeyPatch) -> None:
    """What no unit could take counts as exhausted though a unit has changed since."""
    patch.setattr(Exhaustion, "_has_chance", lambda *_: False)


def earlier_requests_count(patch: pytest.MonkeyPatch) -> None:
    """A job that finds nothing holds back those that request what it once did."""
    choose = Scheduler.choose

    def as_ever(self: Scheduler, job: Job, *about: Any) -> Proposal:
        proposal = choose(self, job, *about)
        if job.lacks:
            job.lacks = dict.fromkeys(job.demands, 0.0)
        return proposal

    patch.setattr(Scheduler, "choose", as_ever)


def gangs_of_all_sizes_alike(patch: pytest.MonkeyPatch) -> None:
    """A gang or a stream that finds nothing holds back those that want fewer at once."""
    rules = Backlog._rules

    def alike(self: Backlog, job: Job) -> Any:
        each = rules(self, job)
        no_sizes: frozenset[Any] = frozenset()
        return each._replace(group=each.group and (0, no_sizes, no_sizes))

    patch.setattr(Backlog, "_rules", alike)


def gangs_behind_any_smaller(patch: pytest.MonkeyPatch) -> None:
    """A gang that finds nothing where it may go holds back larger ones, wherever those may go."""

    def wants_more(others: Any, rules: Any) -> bool:
        more, fewer = others.group, rules.group
        return more is not None and fewer is not None and bool(more[0] >= fewer[0])

    patch.setattr(backlog, "_wants_more", wants_more)


def exclusions_of_all_alike(patch: pytest.MonkeyPatch) -> None:
    """A job that may not go to some nodes holds back those that may."""
    rules = Backlog._rules

    def alike(self: Backlog, job: Job) -> Any:
        return rules(self, job)._replace(excluded=frozenset())

    patch.setattr(Backlog, "_rules", alike)


def gang_of_one_size(patch: pytest.MonkeyPatch) -> None:
    """Whatever an application requests while its gang waits counts as if all of it were so."""

    def alike(_state: Any, app: Application, coming: Any) -> Any:
        return defaultdict(lambda: app.gang_min)

    names = dict(vars(gangs), _members=alike)
    source, guard = inspect.getsource(gangs.refusal), "demand not in members"
    assert guard in source
    exec(source.replace(guard, "False"), names)
    patch.setattr(gangs, "refusal", names["refusal"])


def several_gpus_as_one(patch: pytest.MonkeyPatch) -> None:
    """How many GPUs a request is for is forgotten once it is known how much memory they have."""

    def of_one(master_state: MasterState, request: Any) -> Any:
        resolved = resolve(master_state, request)
        return replace(resolved, resources=replace(resolved.resources, gpus=1))

    resolve = admission.resolve
    patch.setattr(application_registry, "resolve", of_one)
    patch.setattr(gangs, "resolve", of_one)


def gpus_of_any_number(patch: pytest.MonkeyPatch) -> None:
    """A container goes wherever there is enough device memory, over however many GPUs."""

    def meant_for(demand: Vector, _gpus: int, gpu_only: bool) -> bool:
        return bool(demand[Column.GPU_MEMORY_MIB]) or not gpu_only

    def rows(self: SharedState, demand: Vector) -> Any:
        return np.ones_like(self.open) if demand[Column.GPU_MEMORY_MIB] else ~self.gpu_only

    for module in (feasibility, relocation, resource_unit, shared_state):
        patch.setattr(module, "serves", meant_for)
    patch.setattr(SharedState, "serving", rows)


def end_of_streams_awaited_in_order(patch: pytest.MonkeyPatch) -> None:
    """In strict order nothing passes what waits for a stream or a driver to end."""
    patch.setattr(Scheduler, "_waits_for_endless", lambda *_: False)


def gpu_granted_twice(patch: pytest.MonkeyPatch) -> None:
    """What a batch container that runs holds of a GPU counts as free, at the master and its node:
    their accounts agree with each other, and the GPU has two owners."""
    run, taken, run_if_free = UnitQueue.run, SharedState.taken, UnitQueue.run_if_free

    def counted(entry: Entry) -> Entry:
        uses_gpu = entry.demand[Column.GPU_MEMORY_MIB] and not entry.has_no_end
        return entry._replace(demand=pooled_part(entry.demand)) if uses_gpu else entry

    def run_counted(self: UnitQueue, entry: Entry, now: float) -> Entry:
        return run(self, counted(entry), now)

    def run_if_fits(self: UnitQueue, entry: Entry, now: float) -> bool:
        if counted(entry) is entry:
            return run_if_free(self, entry, now)
        known = entry.container_id in self
        if known or not self.could_hold(entry.demand):
            return False
        if not self.runs_at_once(entry.demand, entry.workload_class):
            return False
        run_counted(self, entry, now)
        return True

    def taken_counted(self: SharedState, rows: list[int], demand: Vector, *, no_end: bool) -> None:
        uses_gpu = demand[Column.GPU_MEMORY_MIB] and not no_end
        taken(self, rows, pooled_part(demand) if uses_gpu else demand, no_end=no_end)

    patch.setattr(UnitQueue, "run", run_counted)
    patch.setattr(UnitQueue, "run_if_free", run_if_fits)
    patch.setattr(SharedState, "taken", taken_counted)


def units_of_one_node_are_one(patch: pytest.MonkeyPatch) -> None:
    """What waits at a unit is moved to other nodes, and never to another unit of its own."""
    return_waiting = returns.return_waiting

    def to_others(state: MasterState, container: Container, reason: str, now: float) -> None:
        if not reason.startswith(f"{container.node}/"):
            return_waiting(state, container, reason, now)

    patch.setattr(relocation, "return_waiting", to_others)


def gang_settled_by_its_grant(patch: pytest.MonkeyPatch) -> None:
    """A gang is forgotten once it has been granted, whether all of it start or not."""

    def granted(_: MasterState, app: Application) -> None:
        if not _missing(app):
            app.gang_min = 0

    patch.setattr(gangs, "granted", granted)


def half_a_gang_kept(patch: pytest.MonkeyPatch) -> None:
    """What runs of a gang keeps its capacity, however long the rest finds no place."""
    patch.setattr(GangStarts, "_give_back", lambda *_: None)


def stream_waits_for_kept_batch(patch: pytest.MonkeyPatch) -> None:
    """A stream's first containers may wait where batch is not preempted for them."""
    add = SharedState.add

    def add_one(self: SharedState, *about: Any) -> int:
        row = add(self, *about)
        self.preempts[row] = True
        return row

    patch.setattr(SharedState, "add", add_one)


def batch_in_line_counts_for_streams(patch: pytest.MonkeyPatch) -> None:
    """No stream waits where as much waits already as batch may."""
    may_wait = Negotiator.may_wait

    def bounded(self: Negotiator, queue: UnitQueue, entry: Entry, now: float) -> str:
        if queue.waiting_count >= self.bounds.waiting_limit:
            return "others wait there already"
        return may_wait(self, queue, entry, now)

    patch.setattr(Negotiator, "may_wait", bounded)


def stream_left_with_kept_batch(patch: pytest.MonkeyPatch) -> None:
    """A stream that waits for batch which is not preempted stays, though it is elsewhere."""
    patch.setattr(Relocation, "_preempting", lambda *_: None)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    stream_in_parts,
    batch_in_line_counts_for_streams,
    stream_left_with_kept_batch,
    gang_settled_by_its_grant,
    half_a_gang_kept,
    stream_waits_for_kept_batch,
    double_commit,
    stale_lease,
    gang_in_parts,
    gang_that_waits,
    gang_refused_for_a_lost_node,
    locked_units_granted,
    delta_missed,
    change_not_sent,
    jobs_of_a_lost_scheduler,
    policy_that_ignores_the_view,
    view_that_is_not_renewed,
    excluded_node_granted,
    requirement_ignored,
    some_nodes_taken_for_all,
    data_not_waited_for,
    reply_before_its_changes,
    place_forgotten,
    place_not_kept_at_the_unit,
    gpu_shares_of_each_scheduler,
    gpus_counted_by_request,
    newcomer_without_gpus,
    gpus_taken_below_a_share,
    stream_queued_behind_streams,
    stream_that_stops_batch,
    drivers_fill_the_cluster,
    driver_of_a_late_proposal,
    end_of_drivers_awaited,
    queued_where_cores_are_shared,
    run_times_added_up,
    job_in_the_cohort_of_before,
    job_that_is_never_due,
    freed_unit_overlooked,
    earlier_requests_count,
    gangs_of_all_sizes_alike,
    gangs_behind_any_smaller,
    exclusions_of_all_alike,
    gang_of_one_size,
    several_gpus_as_one,
    gpus_of_any_number,
    gpu_granted_twice,
    end_of_streams_awaited_in_order,
    units_of_one_node_are_one,
]
