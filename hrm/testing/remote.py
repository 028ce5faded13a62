"""A scheduler of another process, in virtual time: beside a ``VirtualCluster``, with its network.

It does what ``hrm scheduler`` does: takes in messages in order, chooses on its replica, asks for
the lease, proposes, and takes an answer in only after the messages sent before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, PlacementPolicy, Scheduler
from hrm.core.vocabulary.model import WorkloadClass
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import VirtualCluster

__all__ = ["VirtualScheduler"]

_SESSIONS = itertools.count(1)


class VirtualScheduler:
    """``hangs``: it takes messages in and says nothing more. ``dropped``: the master ended it."""

    def __init__(
        self, cluster: VirtualCluster, name: str, policy: PlacementPolicy | None = None
    ) -> None:
        self.cluster = cluster
        self.session = next(_SESSIONS)
        self.scheduler = Scheduler(name, policy or MinWait(), cluster.bounds)
        self.replica = Replica(self.scheduler)
        self._view = self.replica.state.view()
        self.hangs = False
        self.dropped = False
        self._busy = False
        cluster.remote[name, self.session] = self
        call_id = cluster.next_call()
        event = e.SchedulerConnected(
            now=cluster.now, call_id=call_id, scheduler=name, session=self.session
        )
        cluster.tell_master(event)
        answer = cluster.answers[call_id]
        if isinstance(answer, c.Refuse):
            raise answer.error

    @property
    def name(self) -> str:
        return self.scheduler.name

    def receive(self, message: StateChanged) -> None:
        """A message arrived."""
        self.replica.apply(message)
        self._soon()

    def break_off(self) -> None:
        """Its process dies; the master sees the stream break."""
        self.hangs = True
        event = e.SchedulerDisconnected(
            now=self.cluster.now, scheduler=self.name, session=self.session
        )
        self.cluster.tell_master(event)

    def _soon(self) -> None:
        self.cluster.at(self.cluster.now, self._round)

    def _round(self) -> None:
        now = self.cluster.now
        if self.hangs or self.dropped or self._busy:
            return
        job = self.scheduler.next_job(now)
        if job is None:
            at_s = self.scheduler.next_time_s()
            if at_s is not None:
                self.cluster.at(at_s, self._round)
            return
        self._busy = True
        if job.workload_class is WorkloadClass.BATCH:
            self._propose(job, None)
            return
        call_id = self.cluster.next_call()
        application_id = job.application_id

        def answered(answer: c.Reply | c.Refuse) -> None:
            granted = answer.answer if isinstance(answer, c.Reply) else None
            job = self.scheduler.jobs.get(application_id)
            if isinstance(granted, c.LeaseGranted) and job is not None:
                assert self.replica.sequence >= granted.sequence
                self._propose(job, granted)
            else:
                self._busy = False
                self.cluster.at(self.cluster.now + 0.05, self._round)

        self._call(
            call_id,
            e.LeaseRequested(
                now=now,
                call_id=call_id,
                scheduler=self.name,
                session=self.session,
                application_id=application_id,
            ),
            answered,
        )

    def _propose(self, job: Job, lease: c.LeaseGranted | None) -> None:
        view = self._view
        view.renew()
        view.keep_open(lease.units if lease else None)
        token = lease.token if lease else 0
        proposal = self.scheduler.choose(job, view, token, self.cluster.now)
        call_id = self.cluster.next_call()

        def answered(answer: c.Reply | c.Refuse) -> None:
            self._busy = False
            settled = answer.answer if isinstance(answer, c.Reply) else None
            left = self.scheduler.jobs.get(job.application_id)
            if isinstance(settled, c.ClaimsSettled) and left is not None:
                assert self.replica.sequence >= settled.sequence
                self.scheduler.settle(left, list(settled.outcomes), self.cluster.now)
            self._soon()

        event = e.ClaimsProposed(
            now=self.cluster.now,
            proposal=proposal,
            call_id=call_id,
            session=self.session,
            problem=job.policy_fault,
        )
        self._call(call_id, event, answered)

    def _call(
        self, call_id: int, event: e.MasterEvent, answered: Callable[[c.Reply | c.Refuse], None]
    ) -> None:
        self.cluster.callbacks[call_id] = answered
        self.cluster.at(
            self.cluster.now + self.cluster.network_delay_s,
            lambda: self.cluster.tell_master(replace(event, now=self.cluster.now)),
        )
