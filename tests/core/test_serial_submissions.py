"""Submissions that are tied to their client, and those of which one runs at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hrm.core.messages import submissions as m
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import Resources
from hrm.errors import NotFound, NotOwner

BOUNDS = m.SubmissionBounds(driver_lease_s=30.0, serial_lease_s=120.0, lease_margin_s=5.0)


def record(name: str, **changes: object) -> m.SubmissionRecord:
    plain = m.SubmissionRecord(
        submission_id=name, key=f"call-of-{name}", name="app", user="ada", driver="{}",
        resources=Resources(1, 1024),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


class Master:
    """A core, its clock, what it has written, and whose driver it has requested."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = SubmissionsCore(BOUNDS)
        self.stored: dict[str, m.SubmissionRecord] = {}
        self.requested: list[str] = []

    def feed(self, event: m.Event) -> list[m.Command]:
        commands = self.core.handle(event)
        for command in commands:
            if isinstance(command, m.PersistSubmission):
                self.stored[command.record.submission_id] = command.record
            elif isinstance(command, m.RequestDriver):
                self.requested.append(command.submission_id)
        return commands

    def submit(self, name: str, **changes: object) -> None:
        event = m.Submitted(now=self.now, call_id=1, record=record(name, **changes))
        self.feed(event)

    def run(self, name: str) -> None:
        """Its driver starts, with a lease."""
        launched = m.DriverLaunched(now=self.now, submission_id=name, attempt=1, node="n1")
        self.feed(launched)
        self.feed(m.LeaseAsked(now=self.now, call_id=1, submission_id=name, attempt=1))

    def end(self, name: str, *, lost: bool = False, exit_code: int = 0) -> None:
        ended = m.DriverEnded(
            now=self.now, submission_id=name, attempt=1, exit_code=exit_code, message="over",
            lost=lost,
        )  # fmt: skip
        self.feed(ended)

    def kill(self, name: str) -> None:
        self.feed(m.KillAsked(now=self.now, call_id=1, submission_id=name))

    def sign(self, name: str, key: str = "") -> m.Command:
        event = m.TieRenewed(now=self.now, call_id=1, submission_id=name, ownership_key=key)
        return self.feed(event)[-1]

    def later(self, seconds: float, signs_of: Iterable[str] = ()) -> None:
        until_s = self.now + seconds
        while self.now < until_s:
            self.now = min(until_s, self.now + 0.5)
            for name in signs_of:
                self.sign(name)
            self.feed(m.SubmissionsTicked(now=self.now))

    def restart(self) -> None:
        self.core = SubmissionsCore(BOUNDS, self.stored.values(), self.now)

    def state(self, name: str) -> S:
        return self.core.entries[name].record.state

    def message(self, name: str) -> str:
        return self.core.entries[name].record.message


def test_a_driver_whose_client_is_gone_is_killed_with_the_reason() -> None:
    master = Master()
    master.submit("d1", tie_s=60.0)
    master.run("d1")
    master.later(300.0, signs_of=["d1"])
    assert master.state("d1") is S.RUNNING
    master.later(59.0)
    assert master.state("d1") is S.RUNNING
    master.later(1.5)
    assert master.state("d1") is S.KILLING
    assert "no sign of it for 60 s (spark.hrm.submit.tied)" in master.message("d1")
    master.end("d1", exit_code=143)
    assert master.state("d1") is S.KILLED


@pytest.mark.parametrize("supervise", [True, False])
def test_one_that_is_not_tied_outlives_its_client(supervise: bool) -> None:
    master = Master()
    master.submit("d1", supervise=supervise)
    master.run("d1")
    for _ in range(20):
        master.later(25.0)
        master.feed(m.LeaseAsked(now=master.now, call_id=1, submission_id="d1", attempt=1))
    assert master.state("d1") is S.RUNNING


def test_one_that_waits_for_a_place_is_killed_with_its_client_too() -> None:
    master = Master()
    master.submit("d1", tie_s=10.0)
    master.later(11.0)
    assert master.state("d1") is S.KILLING


def test_after_a_restart_of_the_master_the_client_has_its_whole_time_again() -> None:
    master = Master()
    master.submit("d1", tie_s=60.0)
    master.run("d1")
    master.now += 500.0  # no master was there
    master.restart()
    master.run("d1")
    master.later(59.0)
    assert master.state("d1") is S.RUNNING
    master.later(1.5)
    assert master.state("d1") is S.KILLING


def test_a_restarted_master_waits_for_the_first_sign_as_long_as_clients_take_to_find_it() -> None:
    master = Master()
    recovery_s = m.SubmissionBounds().recovery_s
    for name in ("d1", "d2"):
        master.submit(name, tie_s=5.0)
        master.run(name)
    master.now += 20.0
    master.restart()
    for name in ("d1", "d2"):
        master.run(name)
    master.later(recovery_s - 1.0)
    assert (master.state("d1"), master.state("d2")) == (S.RUNNING, S.RUNNING)
    master.later(1.5, signs_of=["d1"])
    assert (master.state("d1"), master.state("d2")) == (S.RUNNING, S.KILLING)
    master.later(5.0)  # the first sign is there: from here on its own time counts
    assert master.state("d1") is S.KILLING


def test_the_sleep_of_a_master_is_not_held_against_clients() -> None:
    master = Master()
    master.submit("d1", tie_s=60.0)
    master.run("d1")
    master.later(30.0)
    master.now += 500.0
    master.later(20.0)
    assert master.state("d1") is S.RUNNING


def test_only_its_client_renews_a_tie() -> None:
    master = Master()
    key = "k" * 32
    master.submit("d1", tie_s=60.0, ownership_key=key)
    foreign, unknown = master.sign("d1", "x" * 32), master.sign("d2", key)
    assert isinstance(foreign, m.RefuseCall) and isinstance(foreign.error, NotOwner)
    assert isinstance(unknown, m.RefuseCall) and isinstance(unknown.error, NotFound)
    assert isinstance(master.sign("d1", key), m.Committed)


def test_of_submissions_with_one_key_one_runs_at_a_time_in_order() -> None:
    master = Master()
    for name in ("d1", "d2", "d3"):
        master.submit(name, serial_key="nightly")
    master.submit("d4", serial_key="weekly")
    master.submit("d5", serial_key="nightly", user="bob")
    assert master.requested == ["d1", "d4", "d5"]
    assert master.message("d2") == "waits for d1, which has its key 'nightly'"
    master.run("d1")
    master.later(50.0)
    master.end("d1", exit_code=1)
    master.later(1.0)
    assert master.requested[3:] == ["d2"]
    assert master.message("d2") == ""
    master.run("d2")
    master.end("d2")
    master.later(1.0)
    assert master.requested[4:] == ["d3"]


def test_a_retry_waits_until_the_killed_driver_has_ended() -> None:
    master = Master()
    master.submit("d1", serial_key="nightly")
    master.run("d1")
    master.kill("d1")
    master.submit("d2", serial_key="nightly")
    master.later(20.0)
    assert master.requested == ["d1"]
    master.end("d1", exit_code=137)
    master.later(1.0)
    assert master.requested == ["d1", "d2"]


def test_a_retry_does_not_wait_for_what_is_refused_while_it_is_killed() -> None:
    master = Master()
    master.submit("d1", serial_key="nightly", tie_s=10.0)
    master.submit("d2", serial_key="nightly")
    master.later(11.0)
    assert master.state("d1") is S.KILLING
    master.feed(m.RefusedDriver(now=master.now, submission_id="d1", attempt=1, message="no node"))
    assert master.state("d1") is S.KILLED
    assert master.message("d1").startswith("its client is gone")
    master.later(1.0)
    assert master.requested == ["d1", "d2"]


def test_a_retry_waits_for_the_lease_of_a_driver_that_was_lost() -> None:
    master = Master()
    master.submit("d1", serial_key="nightly")
    master.run("d1")
    lease = master.feed(m.LeaseAsked(now=master.now, call_id=1, submission_id="d1", attempt=1))
    assert isinstance(lease[-1], m.GrantLease) and lease[-1].lease_s == BOUNDS.serial_lease_s
    master.end("d1", lost=True, exit_code=-1)
    assert master.state("d1") is S.FAILED
    master.submit("d2", serial_key="nightly")
    master.later(100.0)
    master.restart()
    master.later(24.0)
    assert master.requested == ["d1"]
    master.later(2.0)
    assert master.requested == ["d1", "d2"]


def test_one_that_waits_for_its_turn_outlives_masters_and_can_be_killed() -> None:
    master = Master()
    for name in ("d1", "d2", "d3"):
        master.submit(name, serial_key="nightly")
    master.run("d1")
    master.restart()
    master.run("d1")
    master.later(300.0)
    assert [master.state(x) for x in ("d1", "d2")] == [S.RUNNING, S.SUBMITTED]
    master.kill("d2")
    assert master.state("d2") is S.KILLED
    master.end("d1")
    master.later(1.0)
    assert master.requested == ["d1", "d3"]


def test_a_supervised_one_keeps_its_turn_while_it_restarts() -> None:
    master = Master()
    master.submit("d1", serial_key="nightly", supervise=True)
    master.submit("d2", serial_key="nightly")
    master.run("d1")
    master.end("d1", exit_code=1)
    master.later(60.0)
    assert master.requested == ["d1", "d1"]
