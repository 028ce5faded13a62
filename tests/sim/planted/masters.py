"""Bugs of masters across restarts: order of writes, trust in reports, submissions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master import node_registry
from hrm.core.master.application_registry import ApplicationRegistry
from hrm.core.master.class_guesses import ClassGuesses
from hrm.core.master.core import MasterCore
from hrm.core.master.epochs import Epochs
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission import submissions
from hrm.core.submission.driver_lease import DriverLease
from hrm.core.submission.hosting import Step, SubmissionHost
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary import ownership
from hrm.core.vocabulary.model import WorkloadClass
from hrm.core.vocabulary.wakefulness import Wakefulness
from hrm.errors import DiskFull

__all__ = ["BUGS"]


def written_too_late(patch: pytest.MonkeyPatch) -> None:
    """The record of a new application is written with the reply, not before it."""
    new = ApplicationRegistry._new

    def new_without_record(self: ApplicationRegistry, event: object, queue: object) -> object:
        app = new(self, event, queue)  # type: ignore[arg-type]
        self.master_state.out.pop()
        return app

    patch.setattr(ApplicationRegistry, "_new", new_without_record)


def next_driver_too_early(patch: pytest.MonkeyPatch) -> None:
    """The next driver does not wait for the last lease of a lost driver to end."""
    patch.setattr(SubmissionsCore, "_fence_ends_at_s", lambda *_: 0.0)


def lost_driver_taken_for_dead(patch: pytest.MonkeyPatch) -> None:
    """A node that no longer reports counts as one that has reported its driver's end."""
    ended = SubmissionsCore._driver_ended

    def seen(self: SubmissionsCore, event: m.DriverEnded) -> None:
        ended(self, replace(event, lost=False))

    patch.setattr(SubmissionsCore, "_driver_ended", seen)


def lease_for_former_drivers(patch: pytest.MonkeyPatch) -> None:
    """The number of a driver, which is the fence, is not checked."""

    def any_attempt(self: SubmissionsCore, event: Any, happening: m.SubmissionHappening) -> Any:
        entry = self.entries.get(event.submission_id)
        return entry if entry is not None and entry.life.takes(happening) else None

    patch.setattr(SubmissionsCore, "_current", any_attempt)


def lease_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Replies leave before what they depend on is on the disk."""
    replies = (m.Committed, m.GrantLease)
    patch.setattr(submissions, "_notification_rank", lambda each: 0 if type(each) in replies else 1)


def driver_not_missed(patch: pytest.MonkeyPatch) -> None:
    """A driver that does not report to a restarted master is awaited without end."""
    patch.setattr(SubmissionsCore, "_unconfirmed", lambda *_: None)


def two_of_one_key(patch: pytest.MonkeyPatch) -> None:
    """Submissions with one key do not wait for each other."""
    patch.setattr(SubmissionsCore, "_first_in_turn", lambda *_: {})


def turn_before_a_lease_is_over(patch: pytest.MonkeyPatch) -> None:
    """A submission that has ended is followed by the next of its key, though its driver was lost
    and may live."""
    first = SubmissionsCore._first_in_turn
    patch.setattr(
        SubmissionsCore, "_first_in_turn", lambda self, now: first(self, now + 1_000_000.0)
    )


def client_not_missed(patch: pytest.MonkeyPatch) -> None:
    """A driver that is tied to its client outlives it."""
    patch.setattr(SubmissionsCore, "_tie_lapsed", lambda *_: None)


def submitted_twice(patch: pytest.MonkeyPatch) -> None:
    """A client that repeats its call, because the reply was lost, gets a second driver."""
    patch.setattr(SubmissionsCore, "submitted_as", lambda *_: None)


def application_taken_by_its_id(patch: pytest.MonkeyPatch) -> None:
    """An application's id is enough to register and attach as it."""
    patch.setattr(ownership, "is_owner", lambda *_: True)


def node_taken_by_its_identity(patch: pytest.MonkeyPatch) -> None:
    """A node's name and identity, which others see, are enough to register as it."""
    patch.setattr(node_registry, "is_owner", lambda *_: True)


def runner_by_its_attempt(patch: pytest.MonkeyPatch) -> None:
    """Knowing a driver's number is enough to report it as gone."""
    patch.setattr(submissions, "is_owner", lambda *_: True)


def sleep_held_against_others(patch: pytest.MonkeyPatch) -> None:
    """A master that slept counts its sleep as others' silence."""
    patch.setattr(Wakefulness, "passed", lambda self, now: 0.0)
    patch.setattr(Wakefulness, "ticked", lambda self, now: 0.0)


def sleep_held_against_nodes(patch: pytest.MonkeyPatch) -> None:
    """After a sleep all others have a fresh limit, and nodes have none."""
    patch.setattr(NodeRegistry, "woke", lambda *_: None)


def admitted_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """An AppMaster is notified of its admission before that is on the disk."""
    patch.setattr(WriteGate, "_is_intent", lambda *_: False)


def callers_wait_for_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A master that is paused releases none of the callers that wait for its disk."""

    def pause(self: WriteGate, error: DiskFull) -> tuple[c.Refuse, ...]:
        self.full = error
        return ()

    patch.setattr(WriteGate, "pause", pause)


def begun_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A paused master accepts calls that it cannot write."""
    patch.setattr(WriteGate, "refusal", lambda *_: None)


def paused_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A master that was paused once refuses what needs its disk from then on."""
    patch.setattr(WriteGate, "resume", lambda *_: None)


def behind_its_nodes(patch: pytest.MonkeyPatch) -> None:
    """A master with the epoch of an emptied store stays there; nodes do not obey it."""
    patch.setattr(Epochs, "admits", lambda *_: True)


def unknown_applications_ended(patch: pytest.MonkeyPatch) -> None:
    """A master whose store was emptied immediately stops what it does not know."""
    woke = MasterCore.handle

    def knows_all(self: MasterCore, event: Any) -> Any:
        self.master_state.forgot_until_s = 0.0
        return woke(self, event)

    patch.setattr(MasterCore, "handle", knows_all)


def lease_that_does_not_run_out(patch: pytest.MonkeyPatch) -> None:
    """A runner ends only on refusals: its driver outlives a lease that no master renews."""
    granted = DriverLease.granted

    def for_ever(self: DriverLease, number: int, **terms: Any) -> None:
        granted(self, number, **terms)
        self._ends_at_s = math.inf

    patch.setattr(DriverLease, "granted", for_ever)


def command_overtakes_its_write(patch: pytest.MonkeyPatch) -> None:
    """What depends on a submission's record leaves the master before it is on the disk."""
    work = SubmissionHost._work

    def at_once(self: SubmissionHost, submission_id: str, now: float) -> None:
        self._waits.clear()
        work(self, submission_id, now)
        self._waits.clear()

    def written(self: SubmissionHost, number: int, now: float) -> list[Step]:
        at_once(self, self._writing.pop(number), now)
        return self._flush()

    patch.setattr(SubmissionHost, "_work", at_once)
    patch.setattr(SubmissionHost, "written", written)


def holder_not_held_again(patch: pytest.MonkeyPatch) -> None:
    """A restarted master does not subscribe to the holders of drivers."""

    def begin(self: SubmissionHost, now: float) -> list[Step]:
        self._to_hold = None
        return []

    patch.setattr(SubmissionHost, "begin", begin)


def guess_never_settled(patch: pytest.MonkeyPatch) -> None:
    """An application that was guessed to be a stream stays one without any evidence."""
    patch.setattr(ClassGuesses, "due", lambda *_: [])


def guess_over_a_declaration(patch: pytest.MonkeyPatch) -> None:
    """What the last run turned out to be counts more than the class that is declared."""
    first_class = ClassGuesses.first_class

    def guess(
        self: ClassGuesses, event: e.ApplicationRegistered
    ) -> tuple[WorkloadClass, str, bool]:
        return first_class(self, replace(event, declared_class=None))

    patch.setattr(ClassGuesses, "first_class", guess)


def nothing_learned(patch: pytest.MonkeyPatch) -> None:
    """The next run of a stream begins as batch, as if there had been none before."""
    patch.setattr(ClassGuesses, "learn", lambda *_: None)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    written_too_late,
    next_driver_too_early,
    lost_driver_taken_for_dead,
    lease_for_former_drivers,
    two_of_one_key,
    turn_before_a_lease_is_over,
    client_not_missed,
    lease_before_it_is_written,
    driver_not_missed,
    submitted_twice,
    application_taken_by_its_id,
    node_taken_by_its_identity,
    runner_by_its_attempt,
    sleep_held_against_others,
    sleep_held_against_nodes,
    admitted_before_it_is_written,
    callers_wait_for_a_full_disk,
    begun_on_a_full_disk,
    paused_for_ever,
    behind_its_nodes,
    unknown_applications_ended,
    lease_that_does_not_run_out,
    command_overtakes_its_write,
    holder_not_held_again,
    guess_never_settled,
    guess_over_a_declaration,
    nothing_learned,
]
