"""The host of submissions: what is carried out, in what order, and what waits for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.hosted import CallMaster, Listen, StopListening, SubmitToMaster
from hrm.core.submission.hosting import CompleteCall, Step, SubmissionHost, WriteSubmission
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerState,
    Resources,
)
from hrm.errors import DiskFull, LimitReached, Unavailable
from hrm.testing.virtual import VirtualCluster, unit

SomeStep = TypeVar("SomeStep")
IDS = ("driver-1", "driver-2")


def record(submission_id: str = IDS[0], key: str = "") -> m.SubmissionRecord:
    return m.SubmissionRecord(
        submission_id=submission_id, key=key or f"key of {submission_id}", name="app", user="u",
        driver="{}", resources=Resources(1, 1024),
    )  # fmt: skip


def only(steps: Sequence[Step], kind: type[SomeStep]) -> SomeStep:
    (found,) = [step for step in steps if isinstance(step, kind)]
    return found


class Master:
    """A host on the core of a virtual cluster, which replies to its calls when ordered to."""

    def __init__(self, *records: m.SubmissionRecord) -> None:
        self.cluster = VirtualCluster(schedulers=1)
        self.cluster.add_node(unit("n1", 4))
        self.events: list[m.Event] = []
        core = self.cluster.master
        self.gate = WriteGate(core)
        submissions = SubmissionsCore(m.SubmissionBounds(), records)
        self.host = SubmissionHost(submissions, core.master_state, self.gate, str, self.saw)
        if not records:
            assert self.host.begin(0.0) == []

    def saw(self, event: m.Event, _commands: list[m.Command]) -> None:
        self.events.append(event)

    def call(self, step: CallMaster) -> c.Reply | c.Refuse:
        call_id = self.cluster.next_call()
        event = replace(step.event, call_id=call_id, now=self.cluster.now)
        self.cluster.submit_to_master(event)
        return self.cluster.replies[call_id]

    def result(self, steps: Sequence[Step]) -> list[Step]:
        step = only(steps, CallMaster)
        return self.host.reply_received(step.number, self.call(step), self.cluster.now)

    def hold(self, call_id: int, new: m.SubmissionRecord) -> list[Step]:
        """Submit, and reply to the calls of the holder; returns the next steps."""
        return self.result(self.result(self.host.submit(call_id, new, self.cluster.now)))

    def write(self, steps: Sequence[Step]) -> list[Step]:
        return self.host.written(only(steps, WriteSubmission).number, self.cluster.now)

    def lease(self, call_id: int, submission_id: str) -> list[Step]:
        asked = m.LeaseAsked(
            now=self.cluster.now, call_id=call_id, submission_id=submission_id, attempt=1
        )
        return self.host.take(asked)


def test_a_driver_is_asked_for_when_its_holder_is_held_and_its_record_written() -> None:
    master = Master()
    first = master.host.submit(7, record(), 0.0)
    assert isinstance(first[0], Listen)
    assert isinstance(only(first, CallMaster).event, e.ApplicationRegistered)
    second = master.result(first)
    assert isinstance(only(second, CallMaster).event, e.ApplicationAttached)
    held = master.result(second)
    assert [type(step) for step in held] == [WriteSubmission]
    done = master.write(held)
    assert isinstance(only(done, SubmitToMaster).event, e.ContainersRequested)
    result = only(done, CompleteCall)
    assert result.call_id == 7
    assert isinstance(result.result, m.Committed)


def test_a_submission_does_not_wait_for_the_writes_of_another() -> None:
    master = Master()
    master.write(master.hold(1, record(IDS[0])))
    stuck = master.hold(2, record(IDS[1]))
    granted = master.lease(3, IDS[0])
    assert [type(step) for step in granted] == [WriteSubmission], "the first lease is written"
    lease = only(master.write(granted), CompleteCall)
    assert isinstance(lease.result, m.GrantLease)
    renewed = only(master.lease(4, IDS[0]), CompleteCall)
    assert isinstance(renewed.result, m.GrantLease)
    assert master.lease(5, IDS[1]) == [], "its own record is not on the disk"
    replies = [x.call_id for x in master.write(stuck) if isinstance(x, CompleteCall)]
    assert replies == [2], "and then comes the write that the lease needs"


def test_a_holder_that_is_refused_is_the_reply() -> None:
    master = Master()
    begun = master.host.submit(7, record(), 0.0)
    refusal = c.Refuse(call_id=0, error=LimitReached("too many applications"))
    steps = master.host.reply_received(only(begun, CallMaster).number, refusal, 0.0)
    assert steps == [StopListening(ApplicationId(IDS[0])), CompleteCall(7, refusal.error)]
    assert master.host.core.entries == {}


def test_on_a_full_disk_what_is_known_is_found_and_all_else_is_refused() -> None:
    master = Master()
    master.write(master.hold(1, record()))
    full = DiskFull("full")
    master.gate.pause(full)
    known = only(master.host.submit(2, replace(record(), submission_id=IDS[1]), 0.0), CompleteCall)
    assert isinstance(known.result, m.Committed)
    assert known.result.submission_id == IDS[0]
    assert master.host.submit(3, record(IDS[1]), 0.0) == [CompleteCall(3, full)]
    killed = m.KillAsked(now=0.0, call_id=4, submission_id=IDS[0])
    assert master.host.take(killed) == [CompleteCall(4, full)]
    master.gate.resume()
    assert isinstance(only(master.host.take(killed), WriteSubmission), WriteSubmission)


def test_a_driver_that_is_refused_while_its_kill_is_written_is_killed() -> None:
    """What the kill releases was never there, so the refusal is the last that is heard of it."""
    master = Master()
    asked = master.write(master.hold(1, replace(record(), resources=Resources(8, 1024))))
    request = only(asked, SubmitToMaster).event
    killing = master.host.take(m.KillAsked(now=0.0, call_id=2, submission_id=IDS[0]))
    master.cluster.submit_to_master(request)
    refused = master.cluster.notices[IDS[0]][-1]
    assert isinstance(refused, c.RequestRefused)
    assert master.host.notice_received(IDS[0], refused, 0.0) == []
    killed = master.write(killing)
    steps = [*killed, *master.write(killed)]
    for step in steps:
        if isinstance(step, SubmitToMaster):
            master.cluster.submit_to_master(step.event)
    assert [x.call_id for x in steps if isinstance(x, CompleteCall)] == [2]
    assert master.host.core.entries[IDS[0]].record.state is m.SubmissionState.KILLED
    app = master.cluster.app(ApplicationId(IDS[0]))
    assert app.record.state is ApplicationState.KILLED


def test_one_key_makes_one_submission_though_its_calls_overtake_each_other() -> None:
    master = Master()
    first = master.host.submit(1, record(IDS[0], key="k"), 0.0)
    second = master.host.submit(2, record(IDS[1], key="k"), 0.0)
    entered = master.result(master.result(first))
    twice = master.result(master.result(second))
    assert StopListening(ApplicationId(IDS[1])) in twice
    ended = only(twice, SubmitToMaster).event
    assert isinstance(ended, e.ApplicationFinished)
    assert ended.application_id == IDS[1]
    replies = [x for x in (*master.write(entered), *twice) if isinstance(x, CompleteCall)]
    assert {x.result.submission_id for x in replies if isinstance(x.result, m.Committed)} == {
        IDS[0]
    }
    assert list(master.host.core.entries) == [IDS[0]]


def launched(submission_id: str) -> m.SubmissionRecord:
    return replace(record(submission_id), state=m.SubmissionState.LAUNCHING, attempt=1)


def test_after_a_restart_nothing_is_carried_out_before_all_holders_are_held() -> None:
    master = Master(*map(launched, IDS))
    begun = master.host.begin(0.0)
    assert only(begun, CallMaster).application_id == IDS[0], "one after the other"
    kill = m.KillAsked(now=0.0, call_id=9, submission_id=IDS[0])
    assert master.host.take(kill) == []
    first_held = master.result(master.result(begun))
    assert only(first_held, CallMaster).application_id == IDS[1]
    all_held = master.result(master.result(first_held))
    assert isinstance(only(all_held, WriteSubmission).command, m.PersistSubmission)


def test_a_submission_whose_holder_is_refused_after_a_restart_ends_alone() -> None:
    master = Master(*map(launched, IDS))
    begun = master.host.begin(0.0)
    refusal = c.Refuse(call_id=0, error=LimitReached("too many applications"))
    steps = master.host.reply_received(only(begun, CallMaster).number, refusal, 0.0)
    assert StopListening(ApplicationId(IDS[0])) in steps
    assert only(steps, CallMaster).application_id == IDS[1]
    assert master.host.core.entries[IDS[0]].record.state.ended
    assert not master.host.core.entries[IDS[1]].record.state.ended


def test_a_master_whose_core_does_not_reply_after_a_restart_cannot_go_on() -> None:
    master = Master(launched(IDS[0]))
    begun = master.host.begin(0.0)
    refusal = c.Refuse(call_id=0, error=Unavailable("too busy"))
    with pytest.raises(Unavailable):
        master.host.reply_received(only(begun, CallMaster).number, refusal, 0.0)


def test_what_became_of_the_driver_before_it_listened_is_looked_up() -> None:
    master = Master(launched(IDS[0]))
    begun = master.host.begin(0.0)
    attached = master.result(begun)
    app = ApplicationId(IDS[0])
    request = ContainerRequest(executor_id="1", resource_profile_id=0, resources=Resources(1, 64))
    master.cluster.submit_to_master(
        e.ContainersRequested(now=master.cluster.now, application_id=app, requests=(request,))
    )
    master.cluster.advance(2.0)
    assert {x.state for x in master.cluster.app(app).containers.values()} == {
        ContainerState.RUNNING
    }
    master.result(attached)
    assert [(x.node, x.attempt) for x in master.events if isinstance(x, m.DriverLaunched)] == [
        ("n1", 1)
    ]
