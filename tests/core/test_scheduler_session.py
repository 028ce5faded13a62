"""The machine of a remote scheduler: its calls of the master, and when a reply takes effect."""

from __future__ import annotations

import pytest

from hrm.core.messages.claims import Decision, Outcome
from hrm.core.messages.commands import ClaimsSettled, LeaseGranted
from hrm.core.messages.events import ClaimsProposed, LeaseRequested, LeaseReturned
from hrm.core.messages.state_changes import JobImage, StateChanged, UnitState
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.scheduling.session import CALL_TIMEOUT_S, SchedulerSession
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import Unavailable
from hrm.policies.min_wait import MinWait

APP = ApplicationId("app")
AHEAD_S = 1000.0
"""How far the master's clock is ahead."""
UNIT = UnitState(
    unit=ResourceUnit(
        unit_id=ResourceUnitId("n1/cpu"), capacity=Resources(vcores=2, memory_mib=4096), run_limit=8
    ),
    node=NodeName("n1"),
    is_open=True,
    waiting_limit=4,
)


def subscribed() -> SchedulerSession:
    return SchedulerSession(Scheduler("outside", MinWait(), Bounds()), 7)


def job(sequence: int, workload_class: WorkloadClass, pending: int = 1) -> StateChanged:
    request = ContainerRequest(
        executor_id="1", resource_profile_id=0, resources=Resources(vcores=1, memory_mib=512)
    )
    waiting = tuple((ContainerId(f"app-x{n}"), request, AHEAD_S) for n in range(pending))
    image = JobImage(application_id=APP, workload_class=workload_class, pending=waiting)
    return StateChanged(sequence=sequence, now=AHEAD_S, units=(UNIT,), jobs=(image,))


def granted(call: ClaimsProposed, sequence: int) -> ClaimsSettled:
    outcomes = tuple(Outcome(claim, Decision.RUN, "") for claim in call.proposal.claims)
    return ClaimsSettled(outcomes=outcomes, sequence=sequence)


def test_batch_is_proposed_at_once_and_settled_after_the_changes_before_the_reply() -> None:
    session = subscribed()
    assert session.step(0.0) is None
    session.changed(job(1, WorkloadClass.BATCH), 0.0)
    call = session.step(0.0)
    assert isinstance(call, ClaimsProposed)
    assert call.session == 7
    assert [claim.unit_id for claim in call.proposal.claims] == ["n1/cpu"]
    assert session.step(0.0) is None, "one call at a time"
    assert session.due_s() is None
    session.reply_received(granted(call, sequence=2), 0.5)
    assert session.step(0.5) is None, "message 2 is still on its way"
    assert session.scheduler.jobs[APP].pending
    session.changed(StateChanged(sequence=2, now=AHEAD_S + 1.0), 1.0)
    assert session.step(1.0) is None
    assert session.idle
    assert not session.scheduler.jobs.get(APP) or not session.scheduler.jobs[APP].pending


def test_a_stream_is_proposed_under_the_lease_and_on_the_state_that_came_with_it() -> None:
    session = subscribed()
    session.changed(job(1, WorkloadClass.STREAM), 0.0)
    call = session.step(0.0)
    assert isinstance(call, LeaseRequested)
    assert call.application_id == APP
    lease = LeaseGranted(token=5, expires_in_s=2.0, sequence=2, units=None)
    session.reply_received(lease, 0.1)
    assert session.step(0.1) is None
    session.changed(StateChanged(sequence=2, now=AHEAD_S, units=(UNIT,)), 0.2)
    proposed = session.step(0.2)
    assert isinstance(proposed, ClaimsProposed)
    assert proposed.proposal.lease_token == 5


def test_the_lease_goes_back_when_its_job_has_gone() -> None:
    session = subscribed()
    session.changed(job(1, WorkloadClass.STREAM), 0.0)
    assert isinstance(session.step(0.0), LeaseRequested)
    session.changed(job(2, WorkloadClass.STREAM, pending=0), 0.1)
    session.reply_received(LeaseGranted(token=5, expires_in_s=2.0, sequence=2, units=None), 0.2)
    returned = session.step(0.2)
    assert isinstance(returned, LeaseReturned)
    assert returned.token == 5
    session.reply_received(None, 0.3)
    assert session.idle
    assert session.step(0.3) is None


@pytest.mark.parametrize("workload_class", WorkloadClass)
def test_a_job_whose_call_fails_backs_off_and_is_tried_again(
    workload_class: WorkloadClass,
) -> None:
    session = subscribed()
    session.changed(job(1, workload_class), 0.0)
    first = session.step(0.0)
    assert first is not None
    session.reply_received(None, 1.0)
    assert session.step(1.0) is None
    due_s = session.due_s()
    assert due_s is not None
    assert 1.0 < due_s <= 1.0 + Bounds().retry_delay_max_s
    assert type(session.step(due_s)) is type(first)


def test_what_is_due_is_tried_then_however_clocks_differ() -> None:
    for n in range(200):
        session = subscribed()
        now = 1_000.1 * n / 7
        session.changed(job(1, WorkloadClass.BATCH), now)
        assert session.step(now) is not None
        session.reply_received(None, now)
        due_s = session.due_s()
        assert due_s is not None
        assert due_s > now
        assert session.step(due_s) is not None


def test_the_session_ends_when_the_changes_before_a_reply_do_not_come() -> None:
    session = subscribed()
    session.changed(job(1, WorkloadClass.BATCH), 0.0)
    call = session.step(0.0)
    assert isinstance(call, ClaimsProposed)
    session.reply_received(granted(call, sequence=9), 3.0)
    assert session.due_s() == 3.0 + CALL_TIMEOUT_S
    assert session.step(2.9 + CALL_TIMEOUT_S) is None
    with pytest.raises(Unavailable, match="changes do not arrive"):
        session.step(3.0 + CALL_TIMEOUT_S)
