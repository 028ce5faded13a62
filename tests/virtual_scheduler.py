"""A scheduler of another process, in virtual time: next to a ``VirtualCluster``, on its network.

It runs the machine that ``hrm scheduler`` runs (``hrm.core.scheduling.session``).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.scheduling.scheduler import PlacementPolicy, Scheduler
from hrm.core.scheduling.session import SchedulerCall, SchedulerSession
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import VirtualCluster

__all__ = ["VirtualScheduler"]

_SESSIONS = itertools.count(1)


class VirtualScheduler:
    """``hangs``: it accepts messages and sends nothing more. ``dropped``: the master ended it."""

    def __init__(
        self, cluster: VirtualCluster, name: str, policy: PlacementPolicy | None = None
    ) -> None:
        self.cluster = cluster
        self.session = next(_SESSIONS)
        self.scheduler = Scheduler(name, policy or MinWait(), cluster.bounds)
        self.core = SchedulerSession(self.scheduler, self.session)
        self.replica = self.core.replica
        self.hangs = False
        self.dropped = False
        cluster.remote[name, self.session] = self
        call_id = cluster.next_call()
        event = e.SchedulerConnected(
            now=cluster.now, call_id=call_id, scheduler=name, session=self.session
        )
        cluster.submit_to_master(event)
        result = cluster.replies[call_id]
        if isinstance(result, c.Refuse):
            raise result.error

    @property
    def name(self) -> str:
        return self.scheduler.name

    def receive(self, message: StateChanged) -> None:
        """A message arrived."""
        self.core.changed(message, self.cluster.now)
        self._soon()

    def break_off(self) -> None:
        """Its process dies; the master notices the broken stream."""
        self.hangs = True
        event = e.SchedulerDisconnected(
            now=self.cluster.now, scheduler=self.name, session=self.session
        )
        self.cluster.submit_to_master(event)

    def _soon(self) -> None:
        self.cluster.at(self.cluster.now, self._step)

    def _step(self) -> None:
        if self.hangs or self.dropped:
            return
        now = self.cluster.now
        call = self.core.step(now)
        if call is not None:
            self._call(call)
            return
        due_s = self.core.due_s()
        if due_s is not None:
            self.cluster.at(max(now, due_s), self._step)

    def _call(self, call: SchedulerCall) -> None:
        call_id = self.cluster.next_call()
        event = replace(call, call_id=call_id)

        def reply_received(reply: c.Reply | c.Refuse) -> None:
            result = reply.result if isinstance(reply, c.Reply) else None
            taken = result if isinstance(result, c.LeaseGranted | c.ClaimsSettled) else None
            self.core.reply_received(taken, self.cluster.now)
            self._soon()

        self.cluster.callbacks[call_id] = reply_received
        self.cluster.at(
            self.cluster.now + self.cluster.network_delay_s,
            lambda: self.cluster.submit_to_master(replace(event, now=self.cluster.now)),
        )
