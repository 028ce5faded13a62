"""What must hold of submissions: one driver at a time, no end undone, nothing reported too early.

The record of what runs is kept from the drivers' processes, never from the state under test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from hrm.core.messages import submissions as m
from hrm.core.messages.submissions import SubmissionRecord
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.submission.submissions import SubmissionsCore

__all__ = ["SubmissionChecks"]

_TICKS_S = 1.5
"""A restart that is due happens with the next tick, or the one after it."""


class SubmissionChecks:
    """``running``: the driver of each submission that lives, and its machine. One that sleeps
    (``_asleep``) does nothing, so another may run; it is dead before it does anything again.

    ``_durable``: the last record of each that was written. ``_latest``: the last that any master
    had in its state; what was never written may be gone with its master.
    """

    def __init__(
        self, violated: Callable[[str], None], awake_s: Callable[[float, float], float]
    ) -> None:
        """``awake_s``: how much of a time the master was awake."""
        self.running: dict[str, tuple[int, str]] = {}
        self.checks = 0
        self._violated = violated
        self._awake_s = awake_s
        self._began: defaultdict[str, list[int]] = defaultdict(list)
        self._exits: dict[tuple[str, int], int | None] = {}
        self._durable: dict[str, SubmissionRecord] = {}
        self._latest: dict[str, SubmissionRecord] = {}
        self._reported: set[str] = set()
        self._asked: dict[int, m.Event] = {}
        self._wait_since_s: dict[str, float] = {}
        self._signed_s: dict[str, float] = {}
        """When the present master got the last sign of the client of each that is tied."""
        self._unheard: set[str] = set()
        """Those from an earlier master, of whose clients the present one has had no sign yet."""
        self._asleep: set[tuple[str, int]] = set()

    def master_began(self, core: SubmissionsCore) -> None:
        """Whatever was reported to a client, and whatever was written, survives."""
        self._asked.clear()
        self._wait_since_s.clear()
        self._signed_s.clear()
        self._unheard = set(core.entries)
        for submission_id in sorted(self._reported):
            if submission_id not in core.entries:
                self._violated(f"{submission_id} was reported, and the next master forgot it")
        self._latest = {x: entry.record for x, entry in core.entries.items()}
        for submission_id, written in self._durable.items():
            record = self._latest.get(submission_id)
            if record is None:
                self._violated(f"{submission_id} was written down, and the next master forgot it")
            else:
                self._goes_on(written, record)

    def after(self, core: SubmissionsCore, event: m.Event, commands: Iterable[m.Command]) -> None:
        """Checked after every event of the core."""
        self.checks += 1
        call_id = getattr(event, "call_id", 0)
        if call_id:
            self._asked[call_id] = event
        for submission_id, entry in core.entries.items():
            before, record = self._latest.get(submission_id), entry.record
            if entry.life.state is not record.state:
                self._violated(f"{submission_id} is {entry.life.state} and {record.state} at once")
            if before is not None and before is not record:
                self._goes_on(before, record)
            self._latest[submission_id] = record
            self._waits(core.bounds, record, event)
            self._tied(core.bounds, record, event)
        for command in commands:
            self._decided(core, command)

    def _goes_on(self, before: SubmissionRecord, record: SubmissionRecord) -> None:
        """An end is an end, and attempts only ever go up."""
        name = record.submission_id
        if before.state.ended and record != before:
            self._violated(f"{name} was {before.state.value}, and is {record.state.value}")
        if before.state is S.KILLING and record.state not in (S.KILLING, S.KILLED):
            self._violated(f"{name} was being killed, and is {record.state.value}")
        if record.attempt not in (before.attempt, before.attempt + 1):
            self._violated(f"{name} goes from driver {before.attempt} to {record.attempt}")
        if record.attempt > before.attempt and not record.supervise and self._began[name]:
            self._violated(f"{name} is not supervised, has run, and is started again")

    def _waits(self, bounds: m.SubmissionBounds, record: SubmissionRecord, event: m.Event) -> None:
        """One that waits is started again within the longest delay and the last lease."""
        name = record.submission_id
        if record.state is not S.WAITING_TO_RESTART:
            self._wait_since_s.pop(name, None)
            return
        since_s = self._wait_since_s.setdefault(name, event.now)
        lease_s = max(bounds.driver_lease_s, bounds.serial_lease_s if record.serial_key else 0.0)
        most_s = max(bounds.driver_restart_delay_max_s, lease_s + bounds.lease_margin_s)
        waited_s = self._awake_s(since_s, event.now)
        if isinstance(event, m.SubmissionsTicked) and waited_s > most_s + _TICKS_S:
            self._violated(f"{name} has waited {waited_s:.1f} s for its next driver")

    def _tied(self, bounds: m.SubmissionBounds, record: SubmissionRecord, event: m.Event) -> None:
        """What is tied to a client lives no longer than it may without a sign of that."""
        name = record.submission_id
        if isinstance(event, m.TieRenewed) and event.submission_id == name:
            self._signed_s[name] = event.now
            self._unheard.discard(name)
        since_s = self._signed_s.setdefault(name, event.now)
        if not record.tie_s or record.state.ended or record.state is S.KILLING:
            return
        silent_s = self._awake_s(since_s, event.now)
        most_s = max(record.tie_s, bounds.recovery_s if name in self._unheard else 0.0)
        if isinstance(event, m.SubmissionsTicked) and silent_s > most_s + _TICKS_S:
            self._violated(f"{name} goes on {silent_s:.1f} s after the last sign of its client")

    def _decided(self, core: SubmissionsCore, command: m.Command) -> None:
        match command:
            case m.RequestDriver():
                submission_id, name = command.submission_id, _driver(command)
                record = core.entries[submission_id].record
                if record.state.ended or record.attempt != command.attempt:
                    self._violated(f"{name} is asked for too late")
                if self._runs(submission_id):
                    number, where = self.running[submission_id]
                    self._violated(f"{name} is asked for while number {number} runs on {where}")
            case m.GrantLease():
                asked = self._lease_asked(command)
                record = core.entries[asked.submission_id].record
                if record.state is not S.RUNNING or record.attempt != asked.attempt:
                    self._violated(
                        f"{_driver(asked)} has a lease, though it is {record.state.value}, its "
                        f"driver number {record.attempt}"
                    )

    def _lease_asked(self, command: m.GrantLease) -> m.LeaseAsked:
        asked = self._asked[command.call_id]
        assert isinstance(asked, m.LeaseAsked)
        return asked

    def written(self, record: SubmissionRecord) -> None:
        """A record is on the disk."""
        self._durable[record.submission_id] = record

    def leaves(self, command: m.Command, durable: Mapping[str, SubmissionRecord]) -> None:
        """What leaves the master rests on what a crash cannot undo."""
        match command:
            case m.Committed():
                asked = self._asked.get(command.call_id)
                record = durable.get(command.submission_id)
                if isinstance(asked, m.LeaseAsked):
                    return
                if record is None:
                    self._violated(f"{command.submission_id} was reported before it was durable")
                self._reported.add(command.submission_id)
                if isinstance(asked, m.KillAsked) and (
                    record is not None and record.state not in (S.KILLING, S.KILLED)
                ):
                    self._violated(
                        f"{command.submission_id} is reported as killed, and on the disk it is "
                        f"{record.state.value}"
                    )
            case m.RequestDriver():
                record = durable.get(command.submission_id)
                if record is None or record.attempt < command.attempt:
                    self._violated(f"{_driver(command)} is asked for before that is durable")
            case m.GrantLease():
                granted = self._lease_asked(command)
                record = durable.get(granted.submission_id)
                if record is None or not (record.may_live or record.state.ended):
                    self._violated(f"{_driver(granted)} may run before that is durable")

    def driver_began(
        self, submission_id: str, attempt: int, machine: str, *, supervised: bool
    ) -> None:
        """Its process runs from now on."""
        name = f"driver {attempt} of {submission_id}"
        for other in sorted(self.running):
            if (
                other != submission_id
                and self._runs(other)
                and self._same_key(other, submission_id)
            ):
                self._violated(f"{name} starts while that of {other} runs, which has the same key")
        if self._runs(submission_id):
            number, where = self.running[submission_id]
            self._violated(f"{name} starts on {machine} while number {number} runs on {where}")
        if attempt in self._began[submission_id]:
            self._violated(f"{name} starts on {machine}, and has run before")
        if self._began[submission_id] and not supervised:
            self._violated(f"{name} starts, though the submission is not supervised and has run")
        self._began[submission_id].append(attempt)
        self.running[submission_id] = (attempt, machine)

    def _same_key(self, one: str, other: str) -> bool:
        records = [self._latest.get(name) for name in (one, other)]
        keys = [("", "") if x is None else (x.user, x.serial_key) for x in records]
        return bool(keys[0][1]) and keys[0] == keys[1]

    def _runs(self, submission_id: str) -> bool:
        """Does a driver of it run, and not sleep?"""
        attempt, _ = self.running.get(submission_id, (0, ""))
        return bool(attempt) and (submission_id, attempt) not in self._asleep

    def driver_sleeps(self, submission_id: str, attempt: int) -> None:
        self._asleep.add((submission_id, attempt))

    def driver_wakes(self, submission_id: str, attempt: int) -> None:
        """Whatever has outlived its lease has been killed by now."""
        if (submission_id, attempt) not in self._asleep:
            return
        self._asleep.remove((submission_id, attempt))
        number, where = self.running.get(submission_id, (attempt, ""))
        if number != attempt and (submission_id, attempt) not in self._exits:
            self._violated(
                f"driver {attempt} of {submission_id} goes on after its sleep while number "
                f"{number} runs on {where}"
            )

    def driver_ended(self, submission_id: str, attempt: int, exit_code: int | None) -> None:
        """``exit_code``: None where it could not be seen."""
        if self.running.get(submission_id, (0, ""))[0] == attempt:
            del self.running[submission_id]
        self._exits[submission_id, attempt] = exit_code

    def running_words(self) -> list[str]:
        return [f"driver {n} of {x} runs on {where}" for x, (n, where) in self.running.items()]

    def state_of(self, submission_id: str) -> str:
        record = self._latest.get(submission_id)
        return "" if record is None else record.state.value

    def check_outcome(
        self,
        record: SubmissionRecord,
        bounds: m.SubmissionBounds,
        *,
        kill_asked: bool,
        kill_acknowledged: bool,
        refused: bool,
    ) -> None:
        """It has ended as its last driver has, or as was requested."""
        name, state = record.submission_id, record.state
        code = self._exits.get((name, record.attempt))
        if kill_acknowledged and state is not S.KILLED:
            self._violated(f"{name} was killed, and is {state.value}")
        if state is S.KILLED and not kill_asked:
            self._violated(f"{name} is killed without a request: {record.message}")
        if state is S.FINISHED and (code != 0 or record.exit_code != 0):
            self._violated(f"{name} has finished, its driver ended with {code}")
        if state is not S.FAILED:
            return
        if record.exit_code == 0:
            self._violated(f"{name} has failed, and its exit code is 0")
        if record.exit_code >= 0 and code is not None and record.exit_code != code:
            self._violated(f"{name} has failed with {record.exit_code}, its driver with {code}")
        tries = min(bounds.driver_restarts_max + 1, bounds.driver_launches_max)
        if record.supervise and not refused and record.attempt < tries:
            self._violated(
                f"{name} is supervised, and was given up after {record.attempt} drivers: "
                f"{record.message}"
            )


def _driver(what: m.RequestDriver | m.LeaseAsked) -> str:
    return f"driver {what.attempt} of {what.submission_id}"
