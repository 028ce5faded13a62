"""The life of submitted drivers: place, run, restart, end; never two of one submission at once.

A submission is an application that runs by itself: its driver is a container on a node. This module
decides when a driver is requested, what its end means, and when the next may start. Each driver has
a number, its *attempt*, which is the fence. How two drivers are kept from running at once, although
a node that is lost may well be alive::

    runner (on the node)                         this core
    requests a lease, for attempt k  ──────────► k is the current attempt, and not given up?
    starts the driver once it has it  ◄───────── granted, durable before the reply
    requests it again and again                  remembers when it granted last
    kills the driver ``lease_s`` after it        gives k up: from here on no lease for k, and no
    sent the last request that was granted       attempt k + 1 before ``lease_s`` and a margin
                                                 have passed since it granted last

The runner counts from its *request*, the core from its *reply*, which is later; so the
runner's time is over first, whatever the network does. Both only measure a length of time; the
margin is for clocks of unequal speed. An end that the node has reported, with all processes gone,
needs no wait; nor does a runner's report that it has killed its driver. A master that has just
started cannot know when the one before it granted last, and counts from its own start.

Only a supervised driver has such a limit: one that is never restarted runs on however long the
master is away, unless it has a serial key (below). A container in which no driver ever had a lease
may be replaced at once, ``driver_launches_max`` times in a row; one that only waited at a node that
went away as often as nodes go away, each time after a pause.

A submission may be *tied* to its client: a client that is killed, or whose machine is gone, no
longer renews the tie, and ``tie_s`` later the submission is killed. After its start a master waits
for the first sign for ``recovery_s`` at least, in which clients find it again. It may have a
*serial key*: then its driver is requested only when no earlier submission of that user and key can
have one, so a retry never runs beside what it repeats. Where the earlier driver was lost, that is
when its lease is over; such drivers have one, too, but a long one (``serial_lease_s``): a master
that is away for less ends none.

Source: leases as of Gray and Cheriton, "Leases: an efficient fault-tolerant mechanism" (SOSP 1989),
section 2; their use as a fence for restarts is HRM's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hrm.core.messages import submissions as m
from hrm.core.messages.submissions import SUBMISSION, SubmissionRecord
from hrm.core.messages.submissions import SubmissionHappening as H
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import DRIVER_PREFIX
from hrm.core.vocabulary.ownership import denied, is_owner
from hrm.core.vocabulary.wakefulness import Wakefulness
from hrm.errors import LimitReached, NotFound, NotOwner, StaleEpoch

__all__ = ["SubmissionEntry", "SubmissionsCore"]

APPLICATIONS_KEPT = 10
_LAUNCHED = (S.LAUNCHING, S.RUNNING)


@dataclass(slots=True)
class SubmissionEntry:
    """One submission.

    ``granted_at_s``: no lease was granted later; None: none ever was for this attempt.
    ``confirm_by_s``: known from an earlier master alone, and given up then without a report.
    ``tied_until_s``: killed then, unless its client renews the tie; None: it is not tied.
    """

    record: SubmissionRecord
    life: Lifecycle[S, H]
    node: str = ""
    granted_at_s: float | None = None
    confirm_by_s: float | None = None
    tied_until_s: float | None = None


class SubmissionsCore:
    """The state machine of the module's docstring. ``now`` must never run backwards."""

    def __init__(
        self,
        bounds: m.SubmissionBounds | None = None,
        records: Iterable[SubmissionRecord] = (),
        now: float = 0.0,
    ) -> None:
        self.bounds = bounds or m.SubmissionBounds()
        self.entries: dict[str, SubmissionEntry] = {}
        self._ended: deque[str] = deque()
        self._out: list[m.Command] = []
        self._count = 0
        self._awake = Wakefulness(self.bounds.tick_late_s, now)
        for record in records:
            self._recover(record, now)
        self._handlers: dict[type, Callable[[Any], None]] = {
            m.Submitted: self._submitted,
            m.DriverLaunched: self._launched,
            m.DriverEnded: self._driver_ended,
            m.DriverLinked: self._linked,
            m.RefusedDriver: self._refused,
            m.LeaseAsked: self._lease_asked,
            m.KillAsked: self._kill_asked,
            m.TieRenewed: self._tie_renewed,
            m.HolderEnded: self._holder_ended,
            m.SubmissionsTicked: self._ticked,
        }

    def handle(self, event: m.Event) -> list[m.Command]:
        """Take in one event; returns the commands that follow, in order."""
        self._woke(self._awake.passed(event.now))
        self._handlers[type(event)](event)
        out, self._out = list(dict.fromkeys(self._out)), []
        return sorted(out, key=_notification_rank)

    def live(self) -> list[SubmissionEntry]:
        return [x for x in self.entries.values() if not x.record.state.ended]

    def files(self) -> set[str]:
        """Hashes of the files that live submissions need."""
        return {name for entry in self.live() for name in entry.record.files}

    def new_id(self, now: float) -> str:
        """In the form of Spark Standalone."""
        at = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d%H%M%S")
        while True:
            self._count += 1
            submission_id = f"{DRIVER_PREFIX}{at}-{self._count:04d}"
            if submission_id not in self.entries:
                return submission_id

    def submitted_as(self, key: str) -> SubmissionEntry | None:
        """The submission of this attempt of this client."""
        return next((x for x in self.entries.values() if x.record.key == key), None)

    def check_owner(self, submission_id: str, ownership_key: str) -> None:
        """Check that this key may speak for the submission, if there is one.

        Raises:
            NotOwner: the submission has another key.
        """
        entry = self.entries.get(submission_id)
        if entry is not None and not is_owner(entry.record.ownership_key, ownership_key):
            raise denied(
                submission_id, "only its client and the nodes of its drivers have it; submit again"
            )

    def check_driver(self, submission_id: str, attempt: int, ownership_key: str) -> None:
        """Check that this driver may have an application.

        Raises:
            NotFound: no such submission, another driver has taken its place, or it is over.
            NotOwner: the submission has another key.
        """
        entry = self.entries.get(submission_id)
        if entry is None:
            raise NotFound(
                f"no such submission: {submission_id!r}; hrm submissions --all lists them"
            )
        self.check_owner(submission_id, ownership_key)
        record = entry.record
        if record.attempt != attempt or record.state is not S.RUNNING:
            raise NotFound(
                f"driver {attempt} of {submission_id} may not register: the submission is "
                f"{record.state.value}, its driver number {record.attempt}"
            )

    def admit(self) -> None:
        """Check that one more submission may come.

        Raises:
            LimitReached: ``submissions_limit`` are live already.
        """
        limit = self.bounds.submissions_limit
        if len(self.live()) >= limit:
            raise LimitReached(
                f"{limit} submissions are live already (submissions_limit); wait for one to end, "
                f"or raise it in hrm.toml [master]"
            )

    def _recover(self, record: SubmissionRecord, now: float) -> None:
        entry = self._enter(record, now)
        if record.state.ended:
            self._ended.append(record.submission_id)
            return
        if entry.tied_until_s is not None:
            entry.tied_until_s = now + max(record.tie_s, self.bounds.recovery_s)
        if not record.attempt:
            return  # it waits for its turn, and has no driver that could report
        if record.may_live:
            # The last master may have granted a lease in the moment before its end.
            entry.granted_at_s = now
        if record.state is S.WAITING_TO_RESTART:
            restart_at_s = max(record.restart_at_s, self._fence_ends_at_s(entry))
            entry.record = replace(record, restart_at_s=restart_at_s)
        else:
            entry.confirm_by_s = max(now + self.bounds.recovery_s, self._fence_ends_at_s(entry))

    def _enter(self, record: SubmissionRecord, now: float) -> SubmissionEntry:
        life = Lifecycle("submission", record.submission_id, SUBMISSION, record.state)
        entry = self.entries[record.submission_id] = SubmissionEntry(record, life)
        if record.tie_s and not record.state.ended:
            entry.tied_until_s = now + record.tie_s
        return entry

    def _submitted(self, event: m.Submitted) -> None:
        record = event.record
        known = self.submitted_as(record.key)
        if known is not None:  # a repeated call is answered when it is written, not before
            submission_id = known.record.submission_id
            self._out.append(m.Committed(call_id=event.call_id, submission_id=submission_id))
            return
        before = self._first_in_turn(event.now).get((record.user, record.serial_key))
        if before is not None:
            message = f"waits for {before.submission_id}, which has its key {record.serial_key!r}"
            record = replace(record, attempt=0, message=message)
        self._enter(record, event.now)
        self._out.append(m.PersistSubmission(record=record))
        if before is None:
            self._request(record)
        self._out.append(m.Committed(call_id=event.call_id, submission_id=record.submission_id))

    def _launched(self, event: m.DriverLaunched) -> None:
        entry = self._current(event, H.LAUNCHED)
        if entry is None:
            return
        entry.confirm_by_s = None
        entry.node = event.node
        if entry.record.state is S.SUBMITTED:
            why = f"its container runs on {event.node}"
            self._move(entry, H.LAUNCHED, S.LAUNCHING, event.now, why)
        else:
            self._out.append(m.Changed(submission_id=event.submission_id))

    def _lease_asked(self, event: m.LeaseAsked) -> None:
        try:
            self.check_owner(event.submission_id, event.ownership_key)
        except NotOwner as error:
            self._out.append(m.RefuseCall(call_id=event.call_id, error=error))
            return
        if event.gone:
            self._gone(event)
            return
        entry = self._current(event, H.LEASE_ASKED)
        if entry is None or _is_gone(entry.record):
            stale = StaleEpoch(
                f"driver {event.attempt} of {event.submission_id} may not run: "
                f"{self._why_not(event.submission_id)}"
            )
            self._out.append(m.RefuseCall(call_id=event.call_id, error=stale))
            return
        entry.granted_at_s = event.now
        if entry.confirm_by_s is not None:
            # It lives, and its node has not reported it yet: until then its leases are the sign.
            entry.confirm_by_s = self._fence_ends_at_s(entry)
        if entry.record.state is not S.RUNNING:
            changes = {"may_live": True, "started_at_s": event.now, "launches": 0, "message": ""}
            self._move(entry, H.LEASE_ASKED, S.RUNNING, event.now, "its driver runs", **changes)
        ends = entry.record.supervise or entry.record.serial_key
        lease_s = self._lease_s(entry.record) if ends else 0.0
        renew_s = self.bounds.renew_s
        self._out.append(m.GrantLease(call_id=event.call_id, lease_s=lease_s, renew_s=renew_s))

    def _gone(self, event: m.LeaseAsked) -> None:
        """The driver's runner has killed it, or seen its end."""
        entry = self._current(event, H.GONE)
        if entry is not None and entry.record.may_live:
            self._dead(entry, event.now)
        self._out.append(m.Committed(call_id=event.call_id, submission_id=event.submission_id))

    def _driver_ended(self, event: m.DriverEnded) -> None:
        by = H.DRIVER_LOST if event.lost else H.DRIVER_ENDED
        entry = self._current(event, by)
        if entry is None:
            return
        if entry.record.state is S.WAITING_TO_RESTART:  # its node is back, and has seen its end
            self._dead(entry, event.now)
            return
        self._driver_over(entry, by, event)

    def _driver_over(self, entry: SubmissionEntry, by: H, event: m.DriverEnded) -> None:
        """The driver of a submission that has not given it up runs no more, as far as is known."""
        record, state = entry.record, entry.record.state
        entry.confirm_by_s = None
        entry.node = entry.node if event.launched else ""
        if not event.lost:
            entry.granted_at_s = None
            entry.record = record = replace(record, may_live=False)
        exit_code = {"exit_code": event.exit_code}
        if state is S.KILLING:
            self._end(entry, by, S.KILLED, event.now, record.message, **exit_code)
        elif event.killed:
            self._end(entry, by, S.KILLED, event.now, "its application was killed", **exit_code)
        elif state is S.RUNNING:
            if event.exit_code == 0 and not event.lost:
                self._end(entry, by, S.FINISHED, event.now, "", **exit_code)
            else:
                self._failed(entry, by, event)
        elif event.waited and state is S.SUBMITTED:
            self._wait(entry, by, event.now, event.message)
        elif event.lost or not event.launched:
            self._launch_failed(entry, by, event)
        else:
            self._failed(entry, by, event)

    def _linked(self, event: m.DriverLinked) -> None:
        entry = self._current(event, H.LINKED)
        if entry is None or event.application_id in entry.record.application_ids:
            return
        ids = (*entry.record.application_ids, event.application_id)
        self._update(entry, application_ids=ids[-APPLICATIONS_KEPT:])

    def _refused(self, event: m.RefusedDriver) -> None:
        """No container was made, so none will be reported to end: a kill is done with this, too."""
        entry = self._current(event, H.REFUSED)
        if entry is None:
            return
        if entry.record.state is S.KILLING:
            self._end(entry, H.REFUSED, S.KILLED, event.now, entry.record.message)
        else:
            self._end(entry, H.REFUSED, S.FAILED, event.now, event.message)

    def _kill_asked(self, event: m.KillAsked) -> None:
        entry = self.entries.get(event.submission_id)
        if entry is None or not entry.life.takes(H.KILL_ASKED):
            error = NotFound(
                f"no such submission: {event.submission_id}; hrm submissions --all lists them"
                if entry is None
                else f"{event.submission_id} has ended already: {entry.record.state.value}"
            )
            self._out.append(m.RefuseCall(call_id=event.call_id, error=error))
            return
        self._kill(entry, H.KILL_ASKED, event.now, event.reason or "killed on request")
        self._out.append(m.Committed(call_id=event.call_id, submission_id=event.submission_id))

    def _kill(self, entry: SubmissionEntry, by: H, now: float, message: str) -> None:
        state = entry.record.state
        if state is S.WAITING_TO_RESTART or not entry.record.attempt:
            self._end(entry, by, S.KILLED, now, message)
        elif state is not S.KILLING:
            self._move(entry, by, S.KILLING, now, message, message=message)
            self._end_linked(entry, S.KILLED, message)
            self._release(entry, message)

    def _tie_renewed(self, event: m.TieRenewed) -> None:
        entry = self.entries.get(event.submission_id)
        try:
            if entry is None:
                raise NotFound(
                    f"no such submission: {event.submission_id}; hrm submissions --all lists them"
                )
            self.check_owner(event.submission_id, event.ownership_key)
        except (NotFound, NotOwner) as error:
            self._out.append(m.RefuseCall(call_id=event.call_id, error=error))
            return
        if entry.tied_until_s is not None:
            entry.tied_until_s = event.now + entry.record.tie_s
        self._out.append(m.Committed(call_id=event.call_id, submission_id=event.submission_id))

    def _first_in_turn(self, now: float) -> dict[tuple[str, str], SubmissionRecord]:
        """By user and serial key: the earliest submission that has, or may still have, a driver, or
        that waits for its turn with nothing before it."""
        first: dict[tuple[str, str], SubmissionRecord] = {}
        for entry in self.entries.values():
            record = entry.record
            is_over = record.state.ended and now >= record.fenced_until_s
            if record.serial_key and not is_over:
                first.setdefault((record.user, record.serial_key), record)
        return first

    def _holder_ended(self, event: m.HolderEnded) -> None:
        entry = self.entries.get(event.submission_id)
        if entry is not None and entry.life.takes(H.HOLDER_ENDED):
            self._end(entry, H.HOLDER_ENDED, S.KILLED, event.now, event.message)

    def _woke(self, slept_s: float) -> None:
        """The master slept for this long, and drivers have more time to report. What waits for the
        end of a lease waits no longer for that: leases end by real time."""
        for entry in self.live() if slept_s else ():
            if entry.confirm_by_s is not None:
                entry.confirm_by_s += slept_s
            if entry.tied_until_s is not None:
                entry.tied_until_s += slept_s

    def _ticked(self, event: m.SubmissionsTicked) -> None:
        self._woke(self._awake.ticked(event.now))
        for entry in self.live():
            record = entry.record
            if entry.tied_until_s is not None and event.now >= entry.tied_until_s:
                self._tie_lapsed(entry, event.now)
            elif record.state is S.WAITING_TO_RESTART and event.now >= record.restart_at_s:
                self._restart(entry, event.now)
            elif entry.confirm_by_s is not None and event.now >= entry.confirm_by_s:
                entry.confirm_by_s = None
                self._unconfirmed(entry, event.now)
        for record in self._first_in_turn(event.now).values():
            if not record.state.ended and not record.attempt:
                self._take_turn(self.entries[record.submission_id], event.now)
        for _ in range(len(self._ended) - self.bounds.ended_submissions_kept):
            submission_id = self._ended.popleft()
            del self.entries[submission_id]
            self._out.append(m.ForgetSubmission(submission_id=submission_id))

    def _tie_lapsed(self, entry: SubmissionEntry, now: float) -> None:
        entry.tied_until_s = None
        if entry.life.takes(H.TIE_LAPSED):
            message = (
                f"its client is gone: no sign of it for {entry.record.tie_s:.0f} s "
                f"(spark.hrm.submit.tied)"
            )
            self._kill(entry, H.TIE_LAPSED, now, message)

    def _take_turn(self, entry: SubmissionEntry, now: float) -> None:
        why = "nothing of its key is left before it"
        self._move(entry, H.TURN_CAME, S.SUBMITTED, now, why, attempt=1, message="")
        self._request(entry.record)

    def _unconfirmed(self, entry: SubmissionEntry, now: float) -> None:
        """This master got no report of the driver that the one before it knew."""
        record = entry.record
        if record.state in (S.SUBMITTED, S.LAUNCHING):
            # It waited to be placed, or was about to start; that is no failure of its own.
            self._wait(entry, H.UNCONFIRMED, now, "the master has restarted")
            return
        event = m.DriverEnded(
            now=now,
            submission_id=record.submission_id,
            attempt=record.attempt,
            exit_code=-1,
            message="the master has restarted, and nothing was received from its driver since",
            lost=True,
        )
        self._driver_over(entry, H.UNCONFIRMED, event)

    def _dead(self, entry: SubmissionEntry, now: float) -> None:
        """The last driver is dead for certain: what waits only for that waits no longer."""
        entry.granted_at_s = None
        if entry.record.may_live:
            restart_at_s = entry.record.restart_at_s
            if entry.record.state is S.WAITING_TO_RESTART:
                restart_at_s = min(restart_at_s, now + self._delay_s(entry, now))
            self._update(entry, may_live=False, restart_at_s=restart_at_s)

    def _failed(self, entry: SubmissionEntry, by: H, event: m.DriverEnded) -> None:
        """A driver that ran, or should have, has ended badly."""
        record, now = entry.record, event.now
        exit_code = {"exit_code": event.exit_code}
        if not record.supervise:
            self._end(entry, by, S.FAILED, now, event.message, **exit_code)
            return
        window_s, most = self.bounds.driver_restart_window_s, self.bounds.driver_restarts_max
        if len(self._recent(entry, now)) >= most:
            message = (
                f"its driver has failed {most + 1} times within {window_s:.0f} s "
                f"(driver_restarts_max, driver_restart_window_s); at last: {event.message}"
            )
            self._end(entry, by, S.FAILED, now, message, **exit_code)
            return
        self._wait(entry, by, now, event.message, **exit_code)

    def _launch_failed(self, entry: SubmissionEntry, by: H, event: m.DriverEnded) -> None:
        """A container is gone that was begun, and in which no driver has ever run."""
        launches, most = entry.record.launches + 1, self.bounds.driver_launches_max
        if launches >= most:
            message = (
                f"{launches} containers for its driver came to nothing (driver_launches_max); "
                f"the last: {event.message}"
            )
            self._end(entry, by, S.FAILED, event.now, message, exit_code=event.exit_code)
            return
        self._wait(entry, by, event.now, event.message, launches=launches)

    def _wait(
        self, entry: SubmissionEntry, by: H, now: float, message: str, **changes: Any
    ) -> None:
        restart_at_s = max(now + self._delay_s(entry, now), self._fence_ends_at_s(entry))
        self._end_linked(entry, S.FAILED, message, changes.get("exit_code", -1))
        self._release(entry, message)
        changes |= {"restart_at_s": restart_at_s, "message": message}
        self._move(entry, by, S.WAITING_TO_RESTART, now, message, **changes)

    def _restart(self, entry: SubmissionEntry, now: float) -> None:
        record = entry.record
        assert now >= self._fence_ends_at_s(entry), "the last driver may still run"
        entry.granted_at_s = None
        entry.node = ""
        restarts = self._recent(entry, now)
        if record.started_at_s:
            restarts = (*restarts, now)
        changes: dict[str, Any] = {"attempt": record.attempt + 1, "restarts": restarts}
        changes |= {"restart_at_s": 0.0, "may_live": False}
        self._move(entry, H.RESTART_DUE, S.SUBMITTED, now, "it is started again", **changes)
        self._request(entry.record)

    def _recent(self, entry: SubmissionEntry, now: float) -> tuple[float, ...]:
        window_s = self.bounds.driver_restart_window_s
        return tuple(x for x in entry.record.restarts if now - x < window_s)

    def _delay_s(self, entry: SubmissionEntry, now: float) -> float:
        doublings = min(len(self._recent(entry, now)) + entry.record.launches, 30)
        delay_s = self.bounds.driver_restart_delay_s * 2.0**doublings
        return min(delay_s, self.bounds.driver_restart_delay_max_s)

    def _fence_ends_at_s(self, entry: SubmissionEntry) -> float:
        """From here on no driver of the current attempt runs, if it gets no lease any more."""
        if entry.granted_at_s is None:
            return 0.0
        return entry.granted_at_s + self._lease_s(entry.record) + self.bounds.lease_margin_s

    def _lease_s(self, record: SubmissionRecord) -> float:
        serial = record.serial_key and not record.supervise
        return self.bounds.serial_lease_s if serial else self.bounds.driver_lease_s

    def _request(self, record: SubmissionRecord) -> None:
        self._out.append(
            m.RequestDriver(submission_id=record.submission_id, attempt=record.attempt)
        )

    def _release(self, entry: SubmissionEntry, reason: str) -> None:
        record = entry.record
        release = m.ReleaseDriver(
            submission_id=record.submission_id, attempt=record.attempt, reason=reason
        )
        self._out.append(release)

    def _end_linked(self, entry: SubmissionEntry, state: S, message: str, code: int = -1) -> None:
        """All of them: a driver may have started others. Those that have ended are left alone, but
        for the last of a driver that failed with exit code ``code``."""
        record = entry.record
        failed = record.attempt if state is S.FAILED and code > 0 else 0
        for application_id in record.application_ids:
            end = m.EndLinked(
                submission_id=record.submission_id,
                application_id=application_id,
                state=state,
                message=message,
                failed_attempt=failed if application_id == record.application_ids[-1] else 0,
            )
            self._out.append(end)

    def _end(
        self, entry: SubmissionEntry, by: H, state: S, now: float, message: str, **changes: Any
    ) -> None:
        changes |= {"message": message, "ended_at_s": now, "may_live": False, "restart_at_s": 0.0}
        changes |= {"driver": "", "files": ()}  # nothing is started of it any more
        if entry.record.serial_key:
            changes["fenced_until_s"] = self._fence_ends_at_s(entry)
        entry.tied_until_s = None
        self._move(entry, by, state, now, message or state.value, **changes)
        self._end_linked(entry, state, message, changes.get("exit_code", -1))
        submission_id = entry.record.submission_id
        self._ended.append(submission_id)
        self._out.append(m.EndHolder(submission_id=submission_id, state=state, message=message))

    def _move(
        self, entry: SubmissionEntry, by: H, to: S, now: float, why: str, **changes: Any
    ) -> None:
        entry.life.follow(by, to, now, why)
        self._update(entry, state=to, **changes)

    def _update(self, entry: SubmissionEntry, **changes: Any) -> None:
        entry.record = replace(entry.record, **changes)
        self._out.append(m.PersistSubmission(record=entry.record))
        self._out.append(m.Changed(submission_id=entry.record.submission_id))

    def _current(self, event: Any, happening: H) -> SubmissionEntry | None:
        """The submission whose current attempt this is about, if it has an effect."""
        entry = self.entries.get(event.submission_id)
        if entry is None or entry.record.attempt != event.attempt:
            return None
        return entry if entry.life.takes(happening) else None

    def _why_not(self, submission_id: str) -> str:
        entry = self.entries.get(submission_id)
        if entry is None:
            return "this master has no record of the submission"
        if entry.record.state.ended:
            return f"it is {entry.record.state.value}"
        if entry.record.state in (S.KILLING, S.WAITING_TO_RESTART):
            return f"it was abandoned ({entry.record.message})"
        if entry.record.state is S.RUNNING and not entry.record.may_live:
            return "its runner has reported its end"
        return f"driver {entry.record.attempt} has taken its place"


def _is_gone(record: SubmissionRecord) -> bool:
    """Has its runner reported the driver as gone? A late request of it must not delay the next
    attempt."""
    return record.state is S.RUNNING and not record.may_live


def _notification_rank(command: m.Command) -> int:
    """Watchers and callers are notified when all that they may then read is done."""
    if isinstance(command, m.Changed):
        return 1
    return 2 if isinstance(command, m.Committed | m.GrantLease | m.RefuseCall) else 0
