"""The master as the requester of drivers: carries out what the core of submissions decides.

A driver's container is requested, placed, queued, started and watched like any other. It belongs to
an application that has the submission's id, its *holder*, and the master itself acts as its
AppMaster: registers it, attaches to it, receives its container's notices. What passes between the
two cores is translated here: submissions have drivers and attempts, the master's core has
applications and containers.

Commands of one submission are carried out in order, each only when what was to be written before it
is on the disk; those of other submissions do not wait for that. After a restart nothing is carried
out before all holders are held again.

The live master and the simulator carry out the ``Step``s that every input returns, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from hrm.core.master.state import MasterState
from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.hosted import CallMaster, Listen, StopListening, SubmitToMaster
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.ends import StartEvidence, end_rule
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    LaunchContext,
    WorkloadClass,
)
from hrm.core.vocabulary.ownership import MASTER
from hrm.errors import HrmError, LimitReached, Unavailable

__all__ = [
    "CompleteCall",
    "NotifyWatchers",
    "Step",
    "SubmissionHost",
    "WriteSubmission",
    "driver_event",
    "holder_registration",
]

COMMANDS_MAX = 100_000
"""That wait for the disk, of all submissions."""
_HOLDER_SESSION = 1
"""Nothing else attaches to a holder."""
_Write: TypeAlias = m.PersistSubmission | m.ForgetSubmission
_CallResult: TypeAlias = m.Committed | m.GrantLease | HrmError
_APPLICATION_STATE = {
    m.SubmissionState.FINISHED: ApplicationState.SUCCEEDED,
    m.SubmissionState.FAILED: ApplicationState.FAILED,
    m.SubmissionState.KILLED: ApplicationState.KILLED,
}


@dataclass(frozen=True, slots=True)
class WriteSubmission:
    """Write it down; then ``SubmissionHost.written`` with ``number``."""

    number: int
    command: _Write


@dataclass(frozen=True, slots=True)
class CompleteCall:
    """The answer to a call, or the error that refuses it."""

    call_id: int
    result: _CallResult


@dataclass(frozen=True, slots=True)
class NotifyWatchers:
    submission_id: str


Step: TypeAlias = (
    WriteSubmission
    | SubmitToMaster
    | CallMaster
    | Listen
    | StopListening
    | CompleteCall
    | NotifyWatchers
)


@dataclass(frozen=True, slots=True)
class _Holding:
    """A holder about to be held. ``call_id``: of the call that submits it; 0: after a restart."""

    record: m.SubmissionRecord
    call_id: int
    attaches: bool = False


class SubmissionHost:
    """Around one ``SubmissionsCore``, as long as one master's core.

    Args:
        core: decides.
        master_state: of the same master; read, never changed.
        gate: of the same master: while its disk is full nothing is submitted, and none is killed.
        document: the driver's document for its node, from its record.
        watch: called with each event and the commands that the core returned.
    """

    def __init__(
        self,
        core: SubmissionsCore,
        master_state: MasterState,
        gate: WriteGate,
        document: Callable[[m.SubmissionRecord], str],
        watch: Callable[[m.Event, list[m.Command]], None] = lambda _event, _commands: None,
    ) -> None:
        self.core = core
        self._master_state = master_state
        self._gate = gate
        self._document = document
        self._watch = watch
        self._out: list[Step] = []
        self._queues: dict[str, deque[m.Command]] = {}
        """Of each submission: what is still to be carried out."""
        self._queued = 0
        self._writing: dict[int, str] = {}
        """Of each write that is not on the disk yet: its submission."""
        self._waits: dict[str, int] = {}
        """Of each submission with such writes: how many."""
        self._holding: dict[int, _Holding] = {}
        self._number = 0
        self._to_hold: deque[m.SubmissionRecord] | None = deque()
        """What a master that has just started has to hold again; None: that is done."""

    def begin(self, now: float) -> list[Step]:
        """Hold again what was held, one after the other; only then is anything carried out."""
        for entry in self.core.entries.values():
            self._fail_again(entry.record, now)
        self._to_hold = deque(entry.record for entry in self.core.live())
        self._hold_next(now)
        return self._flush()

    def admit(self, key: str) -> m.SubmissionRecord | None:
        """What was submitted under this key; None: nothing, and something may be.

        Raises:
            DiskFull: it could not be written.
            LimitReached: too many are live.
        """
        known = self.core.submitted_as(key)
        if known is not None:
            return known.record
        if self._gate.full is not None:
            raise self._gate.full
        self.core.admit()
        return None

    def submit(self, call_id: int, record: m.SubmissionRecord, now: float) -> list[Step]:
        """A new submission, or one that is known by its key."""
        try:
            known = self.admit(record.key)
        except HrmError as error:
            self._out.append(CompleteCall(call_id, error))
        else:
            if known is not None:
                self._feed(m.Submitted(now=now, call_id=call_id, record=known))
            else:
                self._hold(_Holding(record, call_id), now)
        return self._flush()

    def take(self, event: m.Event) -> list[Step]:
        """An event for the core of submissions.

        Raises:
            LimitReached: too many commands wait for the disk already.
        """
        if isinstance(event, m.KillAsked) and self._gate.full is not None:
            self._out.append(CompleteCall(event.call_id, self._gate.full))
        else:
            self._feed(event)
        return self._flush()

    def notice_received(self, submission_id: str, notice: c.Notice, now: float) -> list[Step]:
        """A notice about a holder or its container."""
        self._take_notice(submission_id, notice, now)
        return self._flush()

    def reply_received(self, number: int, reply: c.Reply | c.Refuse, now: float) -> list[Step]:
        """The master's core has replied to a ``CallMaster``.

        Raises:
            Unavailable: no reply came in time while holders were held again; the master cannot go
                on.
        """
        holding = self._holding.pop(number)
        if isinstance(reply, c.Refuse):
            if isinstance(reply.error, Unavailable) and not holding.call_id:
                raise reply.error
            self._out.append(StopListening(ApplicationId(holding.record.submission_id)))
            self._held(holding, reply.error, now)
        elif not holding.attaches:
            app_id = ApplicationId(holding.record.submission_id)
            attach = e.ApplicationAttached(
                now=now, call_id=0, application_id=app_id, session=_HOLDER_SESSION,
                epoch=self._master_state.epoch, owner=MASTER,
            )  # fmt: skip
            self._call(replace(holding, attaches=True), attach)
        else:
            assert isinstance(reply.result, c.ApplicationAdmitted)
            self._catch_up(holding.record.submission_id, reply.result, now)
            self._held(holding, None, now)
        return self._flush()

    def written(self, number: int, now: float) -> list[Step]:
        """A ``WriteSubmission`` is on the disk."""
        submission_id = self._writing.pop(number)
        self._waits[submission_id] -= 1
        if not self._waits[submission_id]:
            del self._waits[submission_id]
        self._work(submission_id, now)
        return self._flush()

    def _hold(self, holding: _Holding, now: float) -> None:
        """Be the AppMaster of the application that holds the driver's container."""
        record = holding.record
        app_id = ApplicationId(record.submission_id)
        known = self._master_state.applications.get(app_id)
        if known is not None and known.record.state.ended:
            message = known.record.message or "the application that held its driver has ended"
            self._feed(m.HolderEnded(now=now, submission_id=app_id, message=message))
            self._held(holding, None, now)
            return
        self._out.append(Listen(app_id))
        spark = record.requires.spark if record.requires is not None else ""
        launch = LaunchContext(driver=self._document(record), spark_version=spark)
        self._call(holding, holder_registration(record, launch, known=known is not None, now=now))

    def _call(
        self, holding: _Holding, event: e.ApplicationRegistered | e.ApplicationAttached
    ) -> None:
        self._number += 1
        self._holding[self._number] = holding
        self._out.append(
            CallMaster(ApplicationId(holding.record.submission_id), event, self._number)
        )

    def _held(self, holding: _Holding, error: HrmError | None, now: float) -> None:
        record = holding.record
        if not holding.call_id:
            if error is not None:
                message = f"the restarted master cannot continue it: {error.message}"
                ended = m.HolderEnded(now=now, submission_id=record.submission_id, message=message)
                self._feed(ended)
            self._hold_next(now)
            return
        if error is not None:
            self._out.append(CompleteCall(holding.call_id, error))
            return
        known = self.core.submitted_as(record.key)
        if known is not None:  # the same call came twice, and both were on their way here
            state, message = m.SubmissionState.KILLED, "submitted twice"
            end = m.EndHolder(submission_id=record.submission_id, state=state, message=message)
            self._carry_out(end, now)
            record = known.record
        self._feed(m.Submitted(now=now, call_id=holding.call_id, record=record))

    def _hold_next(self, now: float) -> None:
        if self._to_hold:
            self._hold(_Holding(self._to_hold.popleft(), 0), now)
        elif self._to_hold is not None:
            self._to_hold = None
            for submission_id in list(self._queues):
                self._work(submission_id, now)

    def _catch_up(self, submission_id: str, admitted: c.ApplicationAdmitted, now: float) -> None:
        """What became of the driver's containers before this machine listened."""
        state = self._master_state
        for container in state.applications[ApplicationId(submission_id)].ended:
            self._take_notice(
                submission_id, c.ContainerChanged(status=state.status(container)), now
            )
        for status in admitted.containers:
            self._take_notice(submission_id, c.ContainerChanged(status=status), now)

    def _take_notice(self, submission_id: str, notice: c.Notice, now: float) -> None:
        entry = self.core.entries.get(submission_id)
        if entry is None or entry.record.state.ended:
            return
        match notice:
            case c.ContainerChanged():
                event = driver_event(entry.record, notice.status, self._master_state, now)
                if event is not None:
                    self._feed(event)
            case c.RequestRefused():
                self._feed(
                    m.RefusedDriver(
                        now=now, submission_id=submission_id,
                        attempt=int(notice.executor_ids[-1]), message=notice.message,
                    )
                )  # fmt: skip
            case c.EndApplication():
                message = notice.message
                self._feed(m.HolderEnded(now=now, submission_id=submission_id, message=message))

    def _feed(self, event: m.Event) -> None:
        commands = self.core.handle(event)
        self._watch(event, commands)
        if self._queued + len(commands) > COMMANDS_MAX:
            raise LimitReached(f"{COMMANDS_MAX} commands of submissions wait for the disk")
        concerned: dict[str, None] = {}
        for command in commands:
            submission_id = _submission_of(command) or _submission_of(event)
            self._queues.setdefault(submission_id, deque()).append(command)
            self._queued += 1
            concerned[submission_id] = None
        for submission_id in concerned:
            self._work(submission_id, event.now)

    def _work(self, submission_id: str, now: float) -> None:
        """Carry out what may be: writes at once, the rest when no write is left before it."""
        if self._to_hold is not None:
            return
        queue = self._queues.get(submission_id)
        while queue:
            command = queue[0]
            if isinstance(command, _Write):
                self._number += 1
                self._writing[self._number] = submission_id
                self._waits[submission_id] = self._waits.get(submission_id, 0) + 1
                self._out.append(WriteSubmission(self._number, command))
            elif submission_id in self._waits:
                return
            else:
                self._carry_out(command, now)
            queue.popleft()
            self._queued -= 1
        self._queues.pop(submission_id, None)

    def _carry_out(self, command: m.Command, now: float) -> None:
        out = self._out
        match command:
            case m.RequestDriver():
                record = self.core.entries[command.submission_id].record
                request = ContainerRequest(
                    executor_id=str(command.attempt),
                    resource_profile_id=0,
                    resources=record.resources,
                    heap_mib=record.heap_mib,
                )
                app_id = ApplicationId(command.submission_id)
                asked = e.ContainersRequested(now=now, application_id=app_id, requests=(request,))
                out.append(SubmitToMaster(asked, command))
            case m.ReleaseDriver():
                released = e.ContainersReleased(
                    now=now,
                    application_id=ApplicationId(command.submission_id),
                    executor_ids=(str(command.attempt),),
                    reason=command.reason,
                )
                out.append(SubmitToMaster(released, command))
            case m.EndHolder():
                out.append(StopListening(ApplicationId(command.submission_id)))
                message = command.message or command.state.value
                self._end_application(command.submission_id, command, message, now)
            case m.EndLinked():
                self._end_linked(command, now)
            case m.Changed():
                out.append(NotifyWatchers(command.submission_id))
            case m.Committed() | m.GrantLease():
                out.append(CompleteCall(command.call_id, command))
            case m.RefuseCall():
                out.append(CompleteCall(command.call_id, command.error))

    def _end_application(
        self, application_id: str, because: m.EndHolder | m.EndLinked, message: str, now: float
    ) -> None:
        event = e.ApplicationFinished(
            now=now,
            application_id=ApplicationId(application_id),
            state=_APPLICATION_STATE[because.state],
            message=message,
        )
        self._out.append(SubmitToMaster(event, because))

    def _end_linked(self, end: m.EndLinked, now: float) -> None:
        if not end.failed_attempt:
            self._end_application(end.application_id, end, end.message, now)
            return
        event = e.DriverFailed(
            now=now,
            application_id=ApplicationId(end.application_id),
            attempt=end.failed_attempt,
            message=_of_driver(end.message),
        )
        self._out.append(SubmitToMaster(event, end))

    def _fail_again(self, record: m.SubmissionRecord, now: float) -> None:
        """A master that ended between its two writes has recorded the end of the driver alone."""
        if record.state is m.SubmissionState.FAILED and record.exit_code > 0:
            for application_id in record.application_ids[-1:]:
                end = m.EndLinked(
                    submission_id=record.submission_id,
                    application_id=application_id,
                    state=record.state,
                    message=record.message,
                    failed_attempt=record.attempt,
                )
                self._end_linked(end, now)

    def _flush(self) -> list[Step]:
        out, self._out = self._out, []
        return out


def _of_driver(message: str) -> str:
    """Of an application: the end of its driver, which nodes report as "exited with code 3"."""
    return f"its driver {message}" if message.startswith("exited ") else message


def _submission_of(what: m.Command | m.Event) -> str:
    """The submission that it is about; empty: none is named."""
    if isinstance(what, m.PersistSubmission | m.Submitted):
        return what.record.submission_id
    return getattr(what, "submission_id", "")


def holder_registration(
    record: m.SubmissionRecord, launch: LaunchContext, *, known: bool, now: float, call_id: int = 0
) -> e.ApplicationRegistered:
    """Of the application that holds the driver's containers; ``known``: it was there before."""
    app_id = ApplicationId(record.submission_id)
    return e.ApplicationRegistered(
        now=now,
        call_id=call_id,
        application_id=app_id if known else ApplicationId(""),
        new_id=app_id,
        submission_key=app_id,
        name=f"{record.name} (driver)",
        user=record.user,
        queue=record.queue,
        tags=record.tags,
        groups=record.groups,
        priority=record.priority,
        declared_class=WorkloadClass.STREAM if record.stream else WorkloadClass.BATCH,
        launch=launch,
        owner=MASTER,
        first_executors=record.first_executors,
        requires=record.requires,
    )


def driver_event(
    record: m.SubmissionRecord, status: ContainerStatus, master_state: MasterState, now: float
) -> m.DriverLaunched | m.DriverEnded | None:
    """The event, or None where the container neither runs nor has ended.

    ``lost``: the driver was not seen to end, so it may live. ``killed``: the application that this
    very driver had made was killed. ``waited``: its node is not known to have begun to start it;
    had it a lease by then, the submission's state shows it.
    """
    submission_id, attempt = record.submission_id, int(status.executor_id)
    if status.state is ContainerState.RUNNING:
        return m.DriverLaunched(
            now=now, submission_id=submission_id, attempt=attempt, node=status.node
        )
    if status.state is not ContainerState.ENDED or status.end is None:
        return None
    end = status.end
    linked = ApplicationId("".join(record.application_ids[-1:]))
    app = master_state.applications.get(linked)
    killed = (
        app is not None
        and app.record.state is ApplicationState.KILLED
        and app.record.submission_attempt == attempt
    )
    started, rule = status.started_at_s > 0, end_rule(end)
    return m.DriverEnded(
        now=now,
        submission_id=submission_id,
        attempt=attempt,
        exit_code=end.exit_code,
        message=end.message or end.cause.value,
        lost=rule.unseen,
        killed=killed,
        launched=started and rule.start is not StartEvidence.FAILED,
        waited=not started and rule.start is StartEvidence.UNKNOWN and end.exit_code < 0,
    )
