"""The master's side of submissions in virtual time: what ``hrm.master.submissions`` does live.

It plays the AppMaster of the applications that hold drivers, and carries out what the core of
submissions decides: one command after the other, each only when what was to be written before it is
on the disk. It ends with the master's process; its successor begins with the records.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission.notices import (
    application_end,
    driver_event,
    driver_release,
    driver_request,
    holder_registration,
)
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import ApplicationId, LaunchContext
from hrm.core.vocabulary.ownership import MASTER
from hrm.errors import HrmError, LimitReached, NotFound
from hrm.sim import event_format
from hrm.sim.faults.plan import SubmissionPlan

if TYPE_CHECKING:
    from hrm.sim.actors.master import MasterProcess

__all__ = ["Submissions", "ownership_key", "plan_of"]

TICK_S = 0.5
_HOLDER_SESSION = 1_000_000


def plan_of(driver: str) -> str:
    """The name of the plan that a driver's document is about."""
    return str(json.loads(driver)["plan"])


def ownership_key(plan: SubmissionPlan) -> str:
    """The secret of its client and its drivers."""
    return f"secret of {plan.name}"


class Submissions:
    """The live side over one life of the master. ``over``: that life has ended.

    Invariants: nothing is carried out while ``_busy``; ``_writes`` are on their way to the disk
    then, and what is queued comes after them.
    """

    def __init__(self, master: MasterProcess) -> None:
        self.over = False
        self._master = master
        self._world = master.world
        self._clock = master.clock
        self._disk = master.disk
        records = list(self._disk.submissions.values())
        self.core = SubmissionsCore(self._world.plan.submission_bounds, records, master.now())
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._call_count = 0
        self._queue: deque[m.Command] = deque()
        self._writes: list[m.PersistSubmission | m.ForgetSubmission] = []
        self._busy = True

    def begin(self) -> None:
        """Hold again what was held, one after the other; only then is anything carried out."""
        self._world.oracle.submissions.master_began(self.core)
        self._hold_again(deque(entry.record for entry in self.core.live()))

    def crash(self) -> None:
        """What was being written may have got to the disk."""
        self.over = True
        kept = 0
        if self._writes and self._disk.full_until_s <= self._master.now():
            kept = self._world.submitters.chance.randint(0, len(self._writes))
        for command in self._writes[:kept]:
            self._disk.write_submission(command)

    def _hold_again(self, left: deque[m.SubmissionRecord]) -> None:
        if not left:
            self._busy = False
            self._clock.after(TICK_S, self._tick)
            self._pump()
            return
        record = left.popleft()

        def held(error: HrmError | None = None) -> None:
            if error is not None:
                message = f"the restarted master cannot go on with it: {error.message}"
                self._holder_ended(record.submission_id, message)
            self._hold_again(left)

        self._hold(record, held)

    # --- what is asked of it --------------------------------------------------------------------

    def submit(self, key: str, plan: SubmissionPlan, reply: Callable[[Any], None]) -> None:
        known = self.core.submitted_as(key)
        if known is not None:
            self._enter(known.record, reply)
            return
        if self._master.full is not None:
            reply(self._master.full)
            return
        try:
            self.core.admit()
        except LimitReached as error:
            reply(error)
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
        )
        self._hold(record, partial(self._held, record, reply))

    def _held(
        self,
        record: m.SubmissionRecord,
        reply: Callable[[Any], None],
        error: HrmError | None = None,
    ) -> None:
        if error is not None:
            reply(error)
            return
        known = self.core.submitted_as(record.key)
        if known is not None:  # the same call came twice, and both were on their way here
            end = m.EndHolder(
                submission_id=record.submission_id,
                state=m.SubmissionState.KILLED,
                message="submitted twice",
            )
            self._end_holder(end)
            self._enter(known.record, reply)
            return
        self._enter(record, reply)

    def _enter(self, record: m.SubmissionRecord, reply: Callable[[Any], None]) -> None:
        self._call(
            lambda call_id: m.Submitted(now=self._master.now(), call_id=call_id, record=record),
            reply,
        )

    def lease(
        self,
        submission_id: str,
        attempt: int,
        gone: bool,
        ownership_key: str,
        reply: Callable[[Any], None],
    ) -> None:
        """``reply`` gets ``GrantLease``, ``Committed`` or the error."""
        self._call(
            lambda call_id: m.LeaseAsked(
                now=self._master.now(), call_id=call_id, submission_id=submission_id,
                attempt=attempt, gone=gone, ownership_key=ownership_key,
            ),
            reply,
        )  # fmt: skip

    def kill(self, submission_id: str, reply: Callable[[Any], None]) -> None:
        if self._master.full is not None:
            reply(self._master.full)
            return
        self._call(
            lambda call_id: m.KillAsked(
                now=self._master.now(), call_id=call_id, submission_id=submission_id
            ),
            reply,
        )

    def refusal(self, submission_id: str, attempt: int) -> HrmError | None:
        """Why this driver may not have an application."""
        entry = self.core.entries.get(submission_id)
        if entry is None:
            return NotFound(f"no such submission: {submission_id}")
        record = entry.record
        if record.attempt != attempt or record.state is not m.SubmissionState.RUNNING:
            return NotFound(f"driver {attempt} of {submission_id} may not register")
        return None

    def registered(self, submission_id: str, attempt: int, application_id: str) -> None:
        self._feed(
            m.DriverLinked(
                now=self._master.now(), submission_id=submission_id, attempt=attempt,
                application_id=application_id,
            )
        )  # fmt: skip

    # --- what the holders hear ------------------------------------------------------------------

    def put(self, application_id: ApplicationId, notice: c.Notice) -> None:
        """What would be sent to an AppMaster is heard after what the core does now."""
        self._clock.after(0.0, self._heard, application_id, notice)

    def _heard(self, submission_id: str, notice: c.Notice) -> None:
        entry = self.core.entries.get(submission_id)
        if self.over or entry is None or entry.record.state.ended:
            return
        match notice:
            case c.ContainerChanged():
                core, now = self._master.core, self._master.now()
                assert core is not None
                event = driver_event(entry.record, notice.status, core.master_state, now)
                if event is not None:
                    self._feed(event)
            case c.RequestRefused():
                self._feed(
                    m.RefusedDriver(
                        now=self._master.now(), submission_id=submission_id,
                        attempt=int(notice.executor_ids[-1]), message=notice.message,
                    )
                )  # fmt: skip
            case c.EndApplication():
                self._holder_ended(submission_id, notice.message)

    def _holder_ended(self, submission_id: str, message: str) -> None:
        event = m.HolderEnded(now=self._master.now(), submission_id=submission_id, message=message)
        self._feed(event)

    # --- commands -------------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        if self.over:
            return
        world, what = self._world, event_format.of_event(event)
        try:
            commands = self.core.handle(event)
        except Exception as error:
            world.log.say("submissions", what)
            world.oracle.violated(f"the core of submissions raised {error!r}")
            return
        if commands or not isinstance(event, m.Ticked):
            world.log.say("submissions", what + event_format.of_commands(commands))
        world.oracle.submissions.after(self.core, event, commands)
        self._queue.extend(commands)
        self._clock.after(0.0, self._pump)

    def _call(self, make: Callable[[int], m.Event], reply: Callable[[Any], None]) -> None:
        self._call_count += 1
        self._calls[self._call_count] = reply
        self._feed(make(self._call_count))

    def _tick(self) -> None:
        if not self.over:
            self._feed(m.Ticked(now=self._master.now()))
            self._clock.after(TICK_S, self._tick)

    def _pump(self) -> None:
        """Carry out what may be: writes that follow each other together, the rest one by one."""
        while self._queue and not self._busy and not self.over:
            command = self._queue[0]
            if isinstance(command, m.PersistSubmission | m.ForgetSubmission):
                self._writes.append(command)
                self._queue.popleft()
                continue
            if self._writes:
                break
            self._queue.popleft()
            self._carry_out(command)
        if self._writes and not self._busy:
            self._busy = True
            took_s = self._disk.write_time_s(self._master.now())
            self._clock.after(took_s, self._written)

    def _written(self) -> None:
        if self.over:
            return
        if self._disk.full_until_s > self._master.now():
            self._clock.after(TICK_S, self._written)
            return
        for command in self._writes:
            self._disk.write_submission(command)
            if isinstance(command, m.PersistSubmission):
                self._world.oracle.submissions.written(command.record)
        self._writes.clear()
        self._busy = False
        self._pump()

    def _carry_out(self, command: m.Command) -> None:
        self._world.oracle.submissions.leaves(command, self._disk.submissions)
        now = self._master.now()
        match command:
            case m.RequestDriver():
                record = self.core.entries[command.submission_id].record
                self._master.submit(driver_request(record, command, now))
            case m.ReleaseDriver():
                self._master.submit(driver_release(command, now))
            case m.EndHolder():
                self._end_holder(command)
            case m.EndLinked():
                self._master.submit(application_end(command, now))
            case m.Committed():
                self._calls.pop(command.call_id)(command)
            case m.GrantLease():
                self._calls.pop(command.call_id)(command)
            case m.RefuseCall():
                self._calls.pop(command.call_id)(command.error)

    def _end_holder(self, command: m.EndHolder) -> None:
        self._master.ears.pop(ApplicationId(command.submission_id), None)
        self._master.submit(application_end(command, self._master.now()))

    def _hold(self, record: m.SubmissionRecord, then: Callable[..., None]) -> None:
        """Be the AppMaster of the driver's holder; ``then`` gets why not, if it is refused."""
        master, app_id = self._master, ApplicationId(record.submission_id)
        assert master.core is not None
        known = master.core.master_state.applications.get(app_id)
        if known is not None and known.record.state.ended:
            message = known.record.message or "the application that held its driver has ended"
            self._holder_ended(app_id, message)
            then()
            return
        master.ears[app_id] = self
        launch = LaunchContext(driver=record.driver)
        master.call(
            lambda call_id: holder_registration(
                record, launch, known=known is not None, call_id=call_id, now=master.now()
            ),
            partial(self._later, self._holder_registered, app_id, then),
        )

    def _later(self, action: Callable[..., None], *arguments: Any) -> None:
        """What waits for an answer goes on after whatever the master does now."""
        self._clock.after(0.0, self._now_unless_over, action, arguments)

    def _now_unless_over(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.over:
            action(*arguments)

    def _holder_registered(
        self, app_id: ApplicationId, then: Callable[..., None], answer: c.Reply | c.Refuse
    ) -> None:
        master = self._master
        if isinstance(answer, c.Refuse):
            master.ears.pop(app_id, None)
            then(answer.error)
            return
        assert master.core is not None
        epoch = master.core.epoch
        master.call(
            lambda call_id: e.ApplicationAttached(
                now=master.now(), call_id=call_id, application_id=app_id,
                session=_HOLDER_SESSION, epoch=epoch, owner=MASTER,
            ),
            partial(self._later, self._holder_attached, app_id, then),
        )  # fmt: skip

    def _holder_attached(
        self, app_id: ApplicationId, then: Callable[..., None], answer: c.Reply | c.Refuse
    ) -> None:
        if isinstance(answer, c.Refuse):
            self._master.ears.pop(app_id, None)
            then(answer.error)
            return
        admitted = answer.answer
        assert isinstance(admitted, c.ApplicationAdmitted)
        for status in admitted.containers:
            self._heard(app_id, c.ContainerChanged(status=status))
        then()
