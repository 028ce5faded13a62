"""From a request to a grant: the master's schedulers, the negotiator, and what happens between.

A scheduler is woken, reads a snapshot, and proposes (``ProposeClaims``); the proposal comes back as
``ClaimsProposed`` and is committed in order of arrival. Between the two others may commit: that is
the optimism. A stream's scheduler first takes the lease, which parks the commits of batch.

Source: HRM paper, sections 4.3.1 (stream), 4.3.2 (batch), 4.3.3 (algorithms 2 and 3).
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core import commands as c
from hrm.core.feasibility import could_hold, demand_vector
from hrm.core.ledger import Application, Container, Ledger
from hrm.core.model import (
    ContainerRequest,
    ContainerState,
    NodeState,
    Resources,
    WorkloadClass,
)
from hrm.core.negotiator import Decision, Negotiator, Outcome, Proposal
from hrm.core.scheduler import Job, Scheduler

__all__ = ["Placing"]

_NODES_NAMED = 5


class Placing:
    """Invariant: a scheduler with jobs has been woken, waits for the lease, or is in flight."""

    def __init__(self, ledger: Ledger, negotiator: Negotiator, schedulers: list[Scheduler]) -> None:
        self.ledger = ledger
        self.negotiator = negotiator
        self.schedulers = {scheduler.name: scheduler for scheduler in schedulers}
        self._next = 0

    def choose_scheduler(self) -> str:
        """The next scheduler in turn: applications stay with theirs."""
        names = list(self.schedulers)
        name = names[self._next % len(names)]
        self._next += 1
        return name

    def refusal(self, resources: Resources) -> str:
        """Why no node could ever serve this; empty if one could, or if none is known yet."""
        demand = demand_vector(resources)
        units = [(unit, node) for node in self.ledger.nodes.values() for unit in node.units]
        if any(could_hold(demand, unit) for unit, _ in units):
            return ""
        asks = f"an executor asks for {resources}"
        if resources.gpu_memory_mib:
            units = [(unit, node) for unit, node in units if unit.gpu is not None]
            if not units:
                return f"{asks}, but {self._no_gpu()}"
            gpu, node = max(
                ((unit.gpu, node) for unit, node in units if unit.gpu is not None),
                key=lambda found: found[0].memory_mib,
            )
            if gpu.memory_mib < resources.gpu_memory_mib:
                return (
                    f"{asks}, but the largest GPU, of {node.name}, is {gpu}; lower "
                    f"spark.hrm.executor.gpu.memory"
                )
        else:
            units = [(unit, node) for unit, node in units if not unit.gpu_only]
            if not units and self.ledger.nodes:
                return (
                    f"{asks} and no GPU, but every core of the cluster is bound to a GPU; keep "
                    f"some with hrm node bind (--reserve), or ask for a GPU"
                )
        if not units:
            return ""
        unit, node = max(units, key=lambda x: (x[0].capacity.vcores, x[0].capacity.memory_mib))
        return (
            f"{asks}, but the largest node, {node.name}, has {unit.capacity} at {unit.unit_id}; "
            f"lower spark.executor.cores or spark.executor.memory "
            f"(with its overhead), or add a larger node"
        )

    def resolve(self, request: ContainerRequest) -> ContainerRequest:
        """A whole GPU in numbers: as much device memory as the largest GPU has, so that the
        container is alone on whichever it gets. Unchanged where no GPU is known."""
        if not request.gpus or request.resources.gpu_memory_mib:
            return request
        gpus = (unit.gpu for node in self.ledger.nodes.values() for unit in node.units)
        whole_mib = max((gpu.memory_mib for gpu in gpus if gpu is not None), default=0)
        resources = replace(request.resources, gpu_memory_mib=whole_mib)
        return replace(request, resources=resources)

    def gpu_refusal(self, request: ContainerRequest) -> str:
        """Why a request for GPUs cannot be served at all; empty if nothing speaks against it."""
        if request.gpus > 1:
            return (
                f"an executor asks for {request.gpus} GPUs; HRM serves one an executor: set "
                f"spark.executor.resource.gpu.amount to 1 and ask for more executors"
            )
        if request.gpus and not request.resources.gpu_memory_mib and not self.ledger.recovering:
            return f"an executor asks for a GPU, but {self._no_gpu()}"
        return ""

    def _no_gpu(self) -> str:
        nodes = [node for node in self.ledger.nodes.values() if node.state is not NodeState.LOST]
        if not nodes:
            return "no node is alive, so no GPU is known; start an agent on a machine with one"
        there = ", ".join(
            f"{node.name} ({' and '.join(str(unit.capacity) for unit in node.units)})"
            for node in nodes[:_NODES_NAMED]
        )
        more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
        return (
            f"no node of the cluster has one: there are {there}{more}; start an agent on a "
            f"machine with a GPU, or unset spark.executor.resource.gpu.amount"
        )

    def request(self, app: Application, request: ContainerRequest, now: float) -> None:
        """Book a new container and give it to the application's scheduler."""
        container = self.ledger.new_container(app, request, now)
        if not (self.ledger.recovering and app.recovered):
            self.hand_over(app, container, now)

    def hand_over(self, app: Application, container: Container, now: float) -> None:
        """Let a PENDING container be scheduled."""
        container.request = self.resolve(container.request)
        scheduler = self.schedulers[app.scheduler]
        scheduler.add(
            app.application_id,
            app.record.workload_class,
            container.container_id,
            container.request,
            now,
        )
        self.wake(scheduler, now)

    def withdraw(self, container: Container) -> None:
        app = self.ledger.applications[container.application_id]
        self.schedulers[app.scheduler].withdraw(app.application_id, container.container_id)

    def reclassify(self, app: Application, now: float) -> None:
        job = self.schedulers[app.scheduler].jobs.get(app.application_id)
        if job is not None:
            job.workload_class = app.record.workload_class
            job.not_before_s = now
            self.wake(self.schedulers[app.scheduler], now)

    def room_appeared(self, now: float) -> None:
        """Something ended or came: whoever waits for room may try at once."""
        for scheduler in self.schedulers.values():
            if scheduler.jobs:
                scheduler.room_appeared()
                self.wake(scheduler, now)

    def wake(self, scheduler: Scheduler, at_s: float) -> None:
        """See to it that the scheduler is woken at ``at_s`` or before."""
        if scheduler.in_flight is not None:
            return
        if scheduler.wake_at_s is None or at_s < scheduler.wake_at_s:
            scheduler.wake_at_s = at_s
            self.ledger.out.append(c.WakeScheduler(scheduler=scheduler.name, at_s=at_s))

    def woken(self, name: str, now: float) -> None:
        """One round of one scheduler, up to its proposal."""
        scheduler = self.schedulers.get(name)
        if scheduler is None or scheduler.in_flight is not None:
            return
        scheduler.wake_at_s = None
        job = scheduler.next_job(now)
        if job is None or job.workload_class is WorkloadClass.BATCH:
            self.negotiator.lease.withdraw(scheduler.name)
        if job is None:
            self._sleep(scheduler)
            return
        token = 0
        if job.workload_class is WorkloadClass.STREAM:
            granted = self.negotiator.lease.acquire(scheduler.name, now)
            if granted is None:
                self.wake(scheduler, self.negotiator.lease.expires_at_s)
                return
            token = granted
        scheduler.in_flight = (job.application_id, now)
        proposal = scheduler.choose(job, self.ledger.state.view(), token, now)
        self.ledger.out.append(c.ProposeClaims(proposal=proposal))

    def proposed(self, proposal: Proposal, now: float) -> None:
        """Commit a proposal, or park it behind a stream's lease."""
        scheduler = self.schedulers.get(proposal.scheduler)
        if scheduler is None or scheduler.in_flight is None:
            return
        job = scheduler.jobs.get(proposal.application_id)
        pending = {} if job is None else job.pending
        wanted = tuple(x for x in proposal.claims if x.entry.container_id in pending)
        proposal = replace(proposal, claims=wanted)
        outcomes = self.negotiator.commit(proposal, now)
        if outcomes is None:
            return
        scheduler.in_flight = None
        if job is not None:
            self._settle(scheduler, job, outcomes, now)
        if proposal.workload_class is WorkloadClass.STREAM:
            self.negotiator.lease.release(scheduler.name, proposal.lease_token)
            self._lease_free(now)
        self._sleep(scheduler)

    def tick(self, now: float) -> None:
        """End leases and proposals whose time is over."""
        if self.negotiator.lease.expire(now) or self.negotiator.lease.holder is None:
            self._lease_free(now)
        for scheduler in self.schedulers.values():
            if scheduler.in_flight is None:
                if scheduler.jobs and scheduler.wake_at_s is None:
                    self.wake(scheduler, now)
            elif now - scheduler.in_flight[1] > self.ledger.bounds.proposal_timeout_s:
                scheduler.in_flight = None
                self.wake(scheduler, now)

    def _settle(self, scheduler: Scheduler, job: Job, outcomes: list[Outcome], now: float) -> None:
        app = self.ledger.applications[job.application_id]
        granted = scheduler.settle(job, outcomes, now)
        app.refusal = job.last_refusal
        for outcome in granted:
            container = app.containers[outcome.claim.entry.container_id]
            row = self.ledger.state.rows[outcome.claim.unit_id]
            node = self.ledger.nodes[self.ledger.state.node(row)]
            container.unit_id = outcome.claim.unit_id
            container.node = node.name
            container.assigned_at_s = now
            container.sent_at_s = now
            how = "room at once" if outcome.decision is Decision.RUN else "queued at the unit"
            container.life.move(ContainerState.ASSIGNED, now, how)
            node.containers[container.container_id] = container
            self.ledger.send(node, c.AssignContainer(spec=self.ledger.spec(container)))
            self.ledger.tell(container)

    def _lease_free(self, now: float) -> None:
        """First the batch commits that waited, then the next stream."""
        for proposal in self.negotiator.unpark():
            self.proposed(proposal, now)
        waiting = self.negotiator.lease.waiting
        if waiting:
            self.wake(self.schedulers[waiting[0]], now)

    def _sleep(self, scheduler: Scheduler) -> None:
        at_s = scheduler.next_time_s()
        if at_s is not None:
            self.wake(scheduler, at_s)
