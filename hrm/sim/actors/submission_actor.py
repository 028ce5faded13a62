"""Submitted drivers at the simulated master: runs ``hrm.core.submission.hosting`` in virtual time,
on the simulated disk. It ends with the master's process; its successor begins with the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import hosted
from hrm.core.messages import submissions as m
from hrm.core.submission import hosting
from hrm.core.submission.hosting import SubmissionHost
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import ApplicationId, FirstExecutors
from hrm.errors import HrmError, NotFound
from hrm.runtime.master import MasterRuntime
from hrm.sim import event_format
from hrm.sim.faults.labels import labelled
from hrm.sim.faults.plan import SubmissionPlan

if TYPE_CHECKING:
    from hrm.sim.actors.master import MasterProcess

__all__ = ["SubmissionsActor", "ownership_key", "plan_of"]

TICK_S = 0.5


def plan_of(driver: str) -> str:
    """The name of the plan that a driver's document is about."""
    return str(json.loads(driver)["plan"])


def ownership_key(plan: SubmissionPlan) -> str:
    """The secret of its client and its drivers."""
    return f"secret of {plan.name}"


def first_executors(plan: SubmissionPlan) -> FirstExecutors | None:
    """What its driver needs to begin; None: it works without executors, too."""
    if math.isinf(plan.work_s):
        return None
    count = max(1, plan.gang_min)
    return FirstExecutors(count=count, resources=plan.executor, stated=plan.gang_min > 0)


class SubmissionsActor:
    """Over one life of the master. ``over``: that life has ended.

    ``_writes`` wait for the disk, or are on their way to it while ``_busy``: the first ``_batch``.
    """

    def __init__(self, master: MasterProcess, life: MasterRuntime) -> None:
        self.over = False
        self._master = master
        self._world = master.world
        self._clock = master.clock
        self._disk = master.disk
        records = list(self._disk.submissions.values())
        self.core = SubmissionsCore(self._world.plan.submission_bounds, records, master.now())
        self._host = SubmissionHost(
            self.core, life.core.master_state, life.gate, lambda x: x.driver, self._checked
        )
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._call_count = 0
        self._writes: list[hosting.WriteSubmission] = []
        self._batch = 0
        self._busy = False

    def begin(self) -> None:
        self._world.oracle.submissions.master_began(self.core)
        self._run(lambda: self._host.begin(self._master.now()))
        self._clock.after(TICK_S, self._tick)

    def crash(self) -> None:
        """What was being written may have got to the disk."""
        self.over = True
        kept = 0
        if self._busy and self._disk.full_until_s <= self._master.now():
            kept = self._world.submitters.chance.randint(0, self._batch)
        for step in self._writes[:kept]:
            self._disk.write_submission(step.command)

    def submit(self, key: str, plan: SubmissionPlan, reply: Callable[[Any], None]) -> None:
        try:
            known = self._host.admit(key)
        except HrmError as error:
            reply(error)
            return
        if known is not None:
            self._submit(known, reply)
            return
        now = self._master.now()
        record = m.SubmissionRecord(
            submission_id=self.core.new_id(now),
            key=key,
            name=plan.name,
            user="somebody",
            driver=json.dumps({"plan": plan.name}),
            resources=plan.resources,
            stream=plan.stream,
            supervise=plan.supervise,
            submitted_at_s=now,
            ownership_key=ownership_key(plan),
            first_executors=first_executors(plan),
            tie_s=plan.tie_s,
            serial_key=plan.serial_key,
            requires=labelled(plan.labels),
        )
        self._submit(record, reply)

    def _submit(self, record: m.SubmissionRecord, reply: Callable[[Any], None]) -> None:
        self._call(lambda call_id: self._host.submit(call_id, record, self._master.now()), reply)

    def lease(
        self,
        submission_id: str,
        attempt: int,
        gone: bool,
        ownership_key: str,
        reply: Callable[[Any], None],
    ) -> None:
        """``reply`` gets ``GrantLease``, ``Committed`` or the error."""
        event = m.LeaseAsked(
            now=0.0, call_id=0, submission_id=submission_id, attempt=attempt, gone=gone,
            ownership_key=ownership_key,
        )  # fmt: skip
        self._ask(event, reply)

    def kill(self, submission_id: str, reply: Callable[[Any], None]) -> None:
        self._ask(m.KillAsked(now=0.0, call_id=0, submission_id=submission_id), reply)

    def renew_tie(self, plan: SubmissionPlan, submission_id: str) -> None:
        """A sign of the client of a submission."""
        event = m.TieRenewed(
            now=0.0, call_id=0, submission_id=submission_id, ownership_key=ownership_key(plan)
        )
        self._ask(event, lambda _reply: None)

    def _ask(
        self, event: m.LeaseAsked | m.KillAsked | m.TieRenewed, reply: Callable[[Any], None]
    ) -> None:
        now = self._master.now()
        self._call(lambda number: self._host.take(replace(event, now=now, call_id=number)), reply)

    def refusal(self, submission_id: str, attempt: int) -> HrmError | None:
        """Why this driver may not have an application."""
        entry = self.core.entries.get(submission_id)
        key = "" if entry is None else entry.record.ownership_key
        try:
            self.core.check_driver(submission_id, attempt, key)
        except NotFound as error:
            return error
        return None

    def registered(self, submission_id: str, attempt: int, application_id: str) -> None:
        linked = m.DriverLinked(
            now=self._master.now(), submission_id=submission_id, attempt=attempt,
            application_id=application_id,
        )  # fmt: skip
        self._take(linked)

    def put(self, application_id: ApplicationId, notice: c.Notice) -> None:
        """A notice to an AppMaster is delivered after the core's current event."""
        self._later(lambda: self._host.notice_received(application_id, notice, self._master.now()))

    def _call(
        self, begin: Callable[[int], list[hosting.Step]], reply: Callable[[Any], None]
    ) -> None:
        self._call_count += 1
        self._calls[self._call_count] = reply
        self._run(partial(begin, self._call_count))

    def _take(self, event: m.Event) -> None:
        self._run(lambda: self._host.take(event))

    def _tick(self) -> None:
        if not self.over:
            self._take(m.SubmissionsTicked(now=self._master.now()))
            self._clock.after(TICK_S, self._tick)

    def _checked(self, event: m.Event, commands: list[m.Command]) -> None:
        if commands or not isinstance(event, m.SubmissionsTicked):
            what = event_format.of_event(event) + event_format.of_commands(commands)
            self._world.log.emit("submissions", what)
        self._world.oracle.submissions.after(self.core, event, commands)

    def _later(self, begin: Callable[[], list[hosting.Step]]) -> None:
        """What waits for the master goes on after whatever the master does now."""
        self._clock.after(0.0, self._run, begin)

    def _run(self, begin: Callable[[], list[hosting.Step]]) -> None:
        if self.over:
            return
        try:
            steps = begin()
        except Exception as error:
            self._world.oracle.violated(f"the host of submissions raised {error!r}")
            return
        self._carry_out(steps)

    def _carry_out(self, steps: list[hosting.Step]) -> None:
        master, leaves = self._master, self._world.oracle.submissions.leaves
        for step in steps:
            if self.over:
                return
            match step:
                case hosting.WriteSubmission():
                    self._writes.append(step)
                    self._write()
                case hosted.SubmitToMaster():
                    assert step.because is not None, "each carries out a decision"
                    leaves(step.because, self._disk.submissions)
                    master.submit(replace(step.event, now=master.now()))
                case hosted.CallMaster():
                    self._call_master(step)
                case hosted.Listen():
                    master.listeners[step.application_id] = self
                case hosted.StopListening():
                    master.listeners.pop(step.application_id, None)
                case hosting.CompleteCall():
                    if not isinstance(step.result, HrmError):
                        leaves(step.result, self._disk.submissions)
                    self._calls.pop(step.call_id)(step.result)

    def _call_master(self, step: hosted.CallMaster) -> None:
        master = self._master

        def reply_received(reply: c.Reply | c.Refuse) -> None:
            self._later(partial(self._host.reply_received, step.number, reply, master.now()))

        master.call(
            lambda call_id: replace(step.event, now=master.now(), call_id=call_id), reply_received
        )

    def _write(self) -> None:
        if self._writes and not self._busy:
            self._busy = True
            self._batch = len(self._writes)
            self._clock.after(self._disk.write_time_s(self._master.now()), self._written)

    def _written(self) -> None:
        if self.over:
            return
        now = self._master.now()
        if self._disk.full_until_s > now:
            self._clock.after(TICK_S, self._written)
            return
        done, self._writes = self._writes[: self._batch], self._writes[self._batch :]
        self._busy = False
        for step in done:
            self._disk.write_submission(step.command)
            if isinstance(step.command, m.PersistSubmission):
                self._world.oracle.submissions.written(step.command.record)
        for step in done:
            self._run(partial(self._host.written, step.number, now))
        self._write()
