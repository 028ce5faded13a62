"""Fair shares of GPUs among batch applications, whichever schedulers place them.

Each scheduler sees its own jobs only; two that each give their job what is free give one
application all of it. So the parts are computed here, over all jobs and what their applications
hold, for every round (``Job.gpu_part``), and once more when its claims arrive: then others may have
been faster.

An application that wants GPUs alone gets all that it requests, and queues for more at units. Once
another wants some, too, free ones go to the one that holds least (``hrm.core.master.max_min``). A
place in a unit's queue is a share of the future: none may have more containers queued than it lacks
to its share of all GPUs, and what is queued beyond that, as by an application that was alone when
it queued, is taken back.

With ``gpu_preemption`` one that holds less than its share, and waits, does not wait for containers
to end: see ``hrm.core.master.gpu_preemption``. Without it nothing that runs is ended.

Limits: gangs and streams are placed whole, and count as what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hrm.core.master.gpu_preemption import Lack, victims
from hrm.core.master.max_min import Contender, fair_parts
from hrm.core.master.returns import may_return, return_waiting
from hrm.core.master.state import Container, MasterState
from hrm.core.messages.claims import GpuPart, Proposal
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    EndCause,
    NodeName,
    WorkloadClass,
)

__all__ = ["FairGpuParts"]


class FairGpuParts:
    """Parts of GPUs, for the jobs of ``schedulers``."""

    def __init__(self, master_state: MasterState, schedulers: Mapping[str, Scheduler]) -> None:
        self._master_state = master_state
        self._schedulers = schedulers
        self._view: ClusterView | None = None
        self._next_run_s = 0.0
        self._preempted_s: dict[ContainerId, float] = {}

    def update(self, jobs: Mapping[ApplicationId, Job], now: float) -> list[Job]:
        """Set ``gpu_part`` of these jobs, which use GPUs; returns those for which it has changed,
        in order of arrival."""
        if not jobs:
            return []
        parts = self._parts(now)
        changed = []
        for job in jobs.values():
            part = parts.get(job.application_id) if _is_bound(job) else None
            if part != job.gpu_part:
                job.gpu_part = part
                changed.append(job)
        return sorted(changed, key=lambda job: job.arrival)

    def within(self, proposal: Proposal, job: Job, now: float) -> Proposal:
        """The proposal with no more claims for GPUs than its job may have now."""
        if not _is_bound(job):
            return proposal
        gpus = [x for x in proposal.claims if x.entry.demand[Column.GPU_MEMORY_MIB]]
        could_start = job.gpu_part is not None and job.gpu_part.starts
        declined = job.gpus_declined + 1 if could_start and not gpus else 0
        self._schedulers[proposal.scheduler].backlog.declined(job, declined)
        if not gpus:
            return proposal
        part = self._parts(now).get(job.application_id)
        if part is None:
            return proposal
        dropped = set(gpus[part.starts or part.queues :])
        if dropped:
            kept = tuple(x for x in proposal.claims if x not in dropped)
            proposal = replace(proposal, claims=kept)
        return replace(proposal, gpus_queue=not part.starts)

    def tick(self, now: float) -> None:
        """Take back from time to time what is queued where it should not be."""
        if now >= self._next_run_s:
            self._next_run_s = now + self._master_state.bounds.relocation_period_s
            self.rebalance(now)
            if self._master_state.bounds.gpu_preemption and not self._master_state.recovering:
                self._preempt(now)

    def rebalance(self, now: float) -> None:
        """Take back what is queued beyond a fair share, and what could start elsewhere now and is
        due to, while several applications want GPUs."""
        if self._master_state.recovering or len(self._master_state.gpus.uses) < 2:
            return
        uses = self._uses()
        if not any(use.queued for use in uses) or not _contested(uses):
            return
        reason = "another application has fewer GPUs and waits for one"
        free_mib, startable = self._free(uses, now)
        starts = fair_parts(free_mib, _users(uses, startable))
        for use, share, many in zip(uses, _shares(uses, free_mib), starts, strict=True):
            allowed = max(0, share - use.running)
            due = max(0, many - use.pending)
            for container in use.queued[max(0, min(allowed, len(use.queued) - due)) :]:
                if may_return(self._master_state, container, now, just_queued=True):
                    return_waiting(self._master_state, container, reason, now)

    def _preempt(self, now: float) -> None:
        """Preempt for applications that hold less than their share, and wait."""
        master_state = self._master_state
        uses = self._uses()
        if len(uses) < 2 or not any(use.waiting for use in uses):
            return
        free_mib, startable = self._free(uses, now)
        resend_s = master_state.bounds.resend_delay_s
        recent = {x: at_s for x, at_s in self._preempted_s.items() if now - at_s < resend_s}
        self._preempted_s = recent
        lacks, above, running, coming_mib = list[Lack](), dict[ApplicationId, int](), [], 0
        for use, share, many in zip(uses, _shares(uses, free_mib), startable, strict=True):
            app = master_state.applications[use.application_id]
            live = [x for x in app.containers.values() if x.request.resources.gpu_memory_mib]
            going = [
                x for x in live if x.state is ContainerState.STOPPING or x.container_id in recent
            ]
            coming_mib += sum(x.request.resources.gpu_memory_mib for x in going)
            lacking = min(share - use.running, use.waiting) - many
            if lacking > 0 and not use.declines:
                avoided = master_state.exclusions.avoided(use.application_id, now)
                queued_at = frozenset(x.unit_id for x in use.queued)
                lacks.append(Lack(use.demand, lacking, avoided, queued_at))
            elif use.running - len(going) > share and app.record.gang_min < 2:
                above[use.application_id] = use.running - len(going) - share
                running += [x for x in live if x.state is ContainerState.RUNNING and x not in going]
        for index, lack in enumerate(lacks):
            coming = min(lack.containers, coming_mib // _mib(lack.demand))
            coming_mib -= coming * _mib(lack.demand)
            lacks[index] = lack._replace(containers=lack.containers - coming)
        for container in victims(master_state, lacks, running, above):
            self._preempted_s[container.container_id] = now
            assert container.node is not None
            master_state.send_stop(
                master_state.nodes[container.node],
                container,
                EndCause.PREEMPTED,
                "another application has less than its fair share of the GPUs, and waits",
                now,
                grace_s=master_state.bounds.gpu_preemption_grace_s,
                decommission=True,
            )

    def _parts(self, now: float) -> dict[ApplicationId, GpuPart]:
        """Of each application that waits for GPUs; empty where no more than one wants any."""
        uses = self._uses()
        if not _contested(uses):
            return {}
        free_mib, startable = self._free(uses, now)
        users = _users(uses, startable)
        willing = [
            user._replace(most=0) if use.declines else user
            for use, user in zip(uses, users, strict=True)
        ]
        starts = fair_parts(free_mib, willing)
        left_mib = free_mib - sum(n * x.size_mib for n, x in zip(starts, users, strict=True))
        parts = {}
        for use, user, many, share in zip(
            uses, users, starts, _shares(uses, free_mib), strict=True
        ):
            if use.job is None:
                continue
            if use.declines:
                many = min(user.most, left_mib // user.size_mib)
            queues = 0 if user.most else max(0, share - use.running - len(use.queued))
            parts[use.job.application_id] = GpuPart(min(many, use.pending), queues)
        return parts

    def _uses(self) -> list[_Use]:
        """Of each batch application with live containers that use GPUs."""
        master_state, uses = self._master_state, []
        for application_id, held in master_state.gpus.uses.items():
            app = master_state.applications[application_id]
            if app.record.workload_class is not WorkloadClass.BATCH:
                continue
            scheduler = self._schedulers.get(app.scheduler)
            job = scheduler.jobs.get(application_id) if scheduler is not None else None
            if job is not None and (not job.gpu_pending or job.policy_fault):
                job = None
            queued = [app.containers[x] for x in held.queued]
            running = held.live - held.pending - len(queued)
            uses.append(_Use(application_id, job, held.mib // held.live, running, queued))
        return uses

    def _free(self, uses: list[_Use], now: float) -> tuple[int, list[int]]:
        """The device memory that could be taken now, and how many of each could start in it."""
        counts: dict[tuple[Vector, frozenset[NodeName]], int] = {}
        startable = []
        for use in uses:
            if not use.waiting:
                startable.append(0)
                continue
            avoided = self._master_state.exclusions.avoided(use.application_id, now)
            key = (use.demand, avoided)
            if key not in counts:
                counts[key] = self._startable(*key)
            count, gang = min(use.waiting, counts[key]), use.job.gang if use.job is not None else 0
            startable.append(0 if count < min(gang, use.pending) else count)
        free_mib = max(
            (count * use.size_mib for use, count in zip(uses, startable, strict=True)),
            default=0,
        )
        return free_mib, startable

    def _startable(self, demand: Vector, avoided: frozenset[NodeName]) -> int:
        if self._view is None:
            self._view = ClusterView(self._master_state.state)
        else:
            self._view.renew()
        if avoided:
            self._view.avoid(avoided)
        self._view.open_to(demand)
        return self._view.startable_count(demand)


class _Use(NamedTuple):
    """One application's: ``running`` containers of ``size_mib`` each, on average, and those that
    wait at units, in order of request. ``job``: what waits for a place; None: nothing does."""

    application_id: ApplicationId
    job: Job | None
    size_mib: int
    running: int
    queued: list[Container]

    @property
    def declines(self) -> bool:
        """Does its policy leave what it could have? Once may be for an older state."""
        return self.job is not None and self.job.gpus_declined > 1

    @property
    def pending(self) -> int:
        return self.job.gpu_pending if self.job is not None else 0

    @property
    def waiting(self) -> int:
        return len(self.queued) + self.pending

    @property
    def demand(self) -> Vector:
        """One container's, as if all were like the smallest that waits for a place."""
        if self.job is None:
            return demand_vector(self.queued[0].request.resources)
        return min((x for x in self.job.demands if x[Column.GPU_MEMORY_MIB]), key=_mib)


def _users(uses: list[_Use], startable: list[int]) -> list[Contender]:
    return [
        Contender(use.running * use.size_mib, use.size_mib, count)
        for use, count in zip(uses, startable, strict=True)
    ]


def _contested(uses: list[_Use]) -> bool:
    """Do several applications want more than they have?"""
    return sum(use.waiting > 0 for use in uses) > 1


def _shares(uses: list[_Use], free_mib: int) -> list[int]:
    """How many containers each would run if all GPUs were shared out from the start."""
    total_mib = free_mib + sum(use.running * use.size_mib for use in uses)
    return fair_parts(
        total_mib, [Contender(0, use.size_mib, use.running + use.waiting) for use in uses]
    )


def _is_bound(job: Job) -> bool:
    """Streams and gangs are placed whole."""
    return bool(job.gpu_pending) and not job.gang and job.workload_class is WorkloadClass.BATCH


def _mib(demand: Vector) -> int:
    return demand[Column.GPU_MEMORY_MIB]
