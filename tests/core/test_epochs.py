"""A master whose epoch is behind those of its agents raises it, if it has just started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.master.core import MasterCore
from hrm.core.master.epochs import EPOCH_STEP_MAX
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.application_ids import application_id_of, epoch_of
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    Followed,
    NodeName,
    NodeState,
    WorkloadClass,
    container_id_of,
)
from hrm.errors import HrmError, LimitReached, NotFound, StaleEpoch, Unavailable
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import SMALL, unit

BOUNDS = Bounds()
APP = ApplicationId("app-20260101000000-7-0001")


def master(
    epoch: int = 1, watch: list[object] | None = None, bounds: Bounds = BOUNDS
) -> MasterCore:
    return MasterCore(
        epoch, [MinWait()], bounds, epoch_id="mine", watch=None if watch is None else watch.append
    )


def node(
    name: str = "n1", now: float = 1.0, followed: Followed | None = None, *names: str
) -> e.NodeRegistered:
    containers = tuple(
        ContainerStatus(
            container_id=container_id_of(APP, x), application_id=APP, executor_id=x,
            resource_profile_id=0, workload_class=WorkloadClass.BATCH, resources=SMALL,
            state=ContainerState.RUNNING, node=NodeName(name), unit_id=unit(name).unit_id,
        )
        for x in names
    )  # fmt: skip
    return e.NodeRegistered(
        now=now, call_id=1, node=NodeName(name), identity=name, incarnation=name, sequence=1,
        host=name, endpoint="", units=(unit(name),), containers=containers, followed=followed,
    )  # fmt: skip


def registered(now: float, followed: Followed | None = None) -> e.ApplicationRegistered:
    return e.ApplicationRegistered(
        now=now, call_id=2, application_id=APP, submission_key="k", name="app", user="u",
        followed=followed, proven=True,
    )  # fmt: skip


def refusal(commands: list[c.MasterCommand]) -> HrmError:
    (refused,) = [x for x in commands if isinstance(x, c.Refuse)]
    return refused.error


def raised(commands: list[c.MasterCommand]) -> list[int]:
    return [x.epoch for x in commands if isinstance(x, c.RaiseEpoch)]


def test_a_master_with_an_emptied_store_goes_beyond_what_its_nodes_have_followed() -> None:
    moves: list[object] = []
    core = master(watch=moves)
    out = core.handle(node(followed=Followed(7, "another")))
    assert (raised(out), type(refusal(out))) == ([8], Unavailable)
    assert "n1 has followed epoch 7, and this master has 1" in refusal(out).message
    assert core.epoch == 1, "it is not on the disk yet"
    assert raised(core.handle(node("n2", 1.1, Followed(7, "another")))) == [], "once is enough"
    core.handle(e.EpochRaised(now=1.2, epoch=8))
    assert core.epoch == 8
    assert any("from 1 to 8" in str(move) for move in moves)
    core.handle(node(now=1.3, followed=Followed(7, "another")))
    assert core.master_state.nodes[NodeName("n1")].state is NodeState.ALIVE


@pytest.mark.parametrize("make", [registered, lambda now, followed: e.SchedulerConnected(
    now=now, call_id=3, scheduler="s", session=1, followed=followed)])  # fmt: skip
def test_appmasters_and_schedulers_report_it_as_well(make: object) -> None:
    out = master().handle(make(1.0, Followed(7, "another")))  # type: ignore[operator]
    assert (raised(out), type(refusal(out))) == ([8], Unavailable)


def test_of_two_masters_that_count_alike_none_is_taken_for_the_other() -> None:
    core = master(epoch=7)
    assert raised(core.handle(node(followed=Followed(7, "another")))) == [8]
    assert raised(core.handle(node("n2", 1.0, Followed(7, "mine")))) == []
    assert NodeName("n2") in core.master_state.nodes, "that is a stream which broke, no more"
    assert raised(core.handle(node("n3", 1.0, Followed(6, "another")))) == []
    assert NodeName("n3") in core.master_state.nodes


def test_a_master_that_serves_does_not_overtake_its_successor() -> None:
    core = master(epoch=6)
    core.handle(node())
    late_s = BOUNDS.recovery_window_s + 1.0
    out = core.handle(node("n2", late_s, Followed(7, "another")))
    assert (raised(out), type(refusal(out))) == ([], StaleEpoch)
    assert NodeName("n2") not in core.master_state.nodes, "it never was alive here"
    assert core.epoch == 6


def test_sleep_does_not_prolong_the_time_in_which_it_may_go_beyond() -> None:
    core = master(epoch=6)
    core.handle(node())
    core.handle(e.Ticked(now=1_000.0))
    assert raised(core.handle(node("n2", 1_000.1, Followed(7, "another")))) == []


def test_a_master_that_nothing_follows_goes_beyond_however_late_they_come() -> None:
    core = master()
    core.handle(e.Ticked(now=1_000.0))
    assert raised(core.handle(node("n2", 1_000.1, Followed(7, "another")))) == [8]


def test_there_is_a_limit_to_what_it_accepts() -> None:
    out = master().handle(node(followed=Followed(2 + EPOCH_STEP_MAX, "another")))
    assert (raised(out), type(refusal(out))) == ([], StaleEpoch)


def test_why_an_application_waits_names_the_node_that_refuses() -> None:
    core = master(epoch=6)
    core.handle(node())
    new = e.ApplicationRegistered(
        now=2.0, call_id=3, application_id=ApplicationId(""), submission_key="k", name="a", user="u"
    )
    core.handle(new)
    (app,) = core.master_state.applications.values()
    late_s = BOUNDS.recovery_window_s + 1.0
    core.handle(node("n2", late_s, Followed(7, "another")))
    _, details = explain(core.master_state, app, late_s)
    assert any("n2 has followed epoch 7, and this master has 6" in line for line in details)
    core.handle(node("n2", late_s + 1.0))
    _, details = explain(core.master_state, app, late_s)
    assert not any("n2" in line for line in details), "its agent was restarted"


def test_an_application_that_the_store_has_forgotten_goes_on() -> None:
    core = master()
    core.handle(e.EpochRaised(now=1.0, epoch=8))
    out = core.handle(node("n1", 1.5, None, "1", "2"))
    stops = [x for x in out if isinstance(x, c.SendToNode)]
    assert stops == [], "nobody knows what they are, and nobody ends them"
    out = core.handle(registered(2.0, Followed(7, "another")))
    (reply,) = [x for x in out if isinstance(x, c.Reply)]
    assert isinstance(reply.result, c.ApplicationAdmitted)
    assert reply.result.application_id == APP
    assert any(isinstance(x, c.PersistApplication) for x in out)
    attached = e.ApplicationAttached(now=2.1, call_id=4, application_id=APP, session=1, epoch=8)
    core.handle(attached)
    report = e.NodeReported(
        now=3.0, node=NodeName("n1"), incarnation="n1", sequence=2,
        containers=node("n1", 1.5, None, "1", "2").containers,
    )  # fmt: skip
    core.handle(report)
    app = core.master_state.applications[APP]
    assert [x.state for x in app.containers.values()] == [ContainerState.RUNNING] * 2


def test_what_runs_on_a_node_that_fell_silent_is_claimed_as_well() -> None:
    core = master()
    core.handle(e.EpochRaised(now=1.0, epoch=8))
    core.handle(node("n1", 1.5, None, "1"))
    core.handle(registered(2.0, Followed(7, "another")))
    assert list(core.master_state.applications[APP].containers) == [container_id_of(APP, "1")]
    assert core.master_state.nodes[NodeName("n1")].containers


def test_what_ran_on_a_node_that_is_lost_is_known_to_be_lost() -> None:
    core = master()
    core.handle(e.EpochRaised(now=1.0, epoch=8))
    core.handle(node("n1", 1.5, None, "1"))
    now = 1.5
    while core.master_state.nodes[NodeName("n1")].state is not NodeState.LOST:
        now += 0.25
        core.handle(e.Ticked(now=now))
    core.handle(registered(now + 0.1, Followed(7, "another")))
    (ended,) = core.master_state.applications[APP].ended
    assert ended.end is not None
    assert ended.end.cause is EndCause.NODE_LOST


def test_an_appmaster_whose_session_broke_has_not_reported_yet_what_it_wants_again() -> None:
    core = master()
    core.handle(node())
    core.handle(e.EpochRaised(now=1.0, epoch=8))
    core.handle(registered(2.0))
    attached = e.ApplicationAttached(now=2.1, call_id=4, application_id=APP, session=1, epoch=8)
    core.handle(attached)
    core.handle(e.ApplicationDetached(now=2.2, application_id=APP, session=1))
    now = 2.2
    while now < 2.2 + 2 * BOUNDS.recovery_window_s:
        now += 0.25
        core.handle(e.Ticked(now=now))
    core.handle(replace(attached, now=now, session=2))
    request = ContainerRequest(executor_id="3", resource_profile_id=0, resources=SMALL)
    core.handle(e.ContainersRequested(now=now, application_id=APP, requests=(request,), again=True))
    app = core.master_state.applications[APP]
    assert not app.containers, "it may run where nobody looks"
    assert [x.request.executor_id for x in app.ended] == ["3"]


def test_what_is_asked_for_again_does_not_run_twice() -> None:
    """It may also run on a node that the store has forgotten and that has not returned."""
    core = master()
    core.handle(node())
    core.handle(e.EpochRaised(now=1.0, epoch=8))
    core.handle(registered(2.0))
    core.handle(e.ApplicationAttached(now=2.1, call_id=4, application_id=APP, session=1, epoch=8))
    request = ContainerRequest(executor_id="3", resource_profile_id=0, resources=SMALL)
    core.handle(e.ContainersRequested(now=2.2, application_id=APP, requests=(request,), again=True))
    (container,) = core.master_state.applications[APP].containers.values()
    assert container.held
    now = 2.2
    while not core.master_state.applications[APP].ended:
        now += 0.25
        core.handle(e.Ticked(now=now))
        assert now < 30.0
    assert container.state is ContainerState.ENDED


def test_after_its_time_what_nothing_claims_is_stopped_and_nothing_is_taken_back() -> None:
    core = master()
    core.handle(node())
    now = 0.0
    while now < BOUNDS.application_grace_s + 1.0:
        now += 0.25
        core.handle(e.Ticked(now=now))
        if now % 5 == 0:
            report = e.NodeReported(
                now=now, node=NodeName("n1"), incarnation="n1", sequence=int(now) + 2, containers=()
            )
            core.handle(report)
    containers = node("n1", 1.5, None, "1").containers
    report = e.NodeReported(
        now=now, node=NodeName("n1"), incarnation="n1", sequence=1_000, containers=containers
    )
    (stop,) = [x.message for x in core.handle(report) if isinstance(x, c.SendToNode)]
    assert isinstance(stop, c.StopContainer)
    assert isinstance(refusal(core.handle(registered(now))), NotFound)


def test_the_driver_of_a_forgotten_submission_is_not_taken_back() -> None:
    """It has no lease from this master, which could not know how many of it there are."""
    core = master(epoch=8)
    event = replace(registered(1.0), submission_id="driver-1", submission_attempt=1)
    assert isinstance(refusal(core.handle(event)), NotFound)
    holder = replace(registered(1.0), application_id=ApplicationId("driver-1"))
    assert isinstance(refusal(core.handle(holder)), NotFound)


@pytest.mark.parametrize("kept", [100, 0])
def test_an_application_that_has_ended_stays_so(kept: int) -> None:
    core = master(epoch=8, bounds=replace(BOUNDS, ended_applications_kept=kept))
    core.handle(registered(1.0))
    core.handle(
        e.ApplicationFinished(
            now=2.0, application_id=APP, state=ApplicationState.SUCCEEDED, message=""
        )
    )
    core.handle(e.Ticked(now=2.5))
    assert (APP in core.master_state.applications) is bool(kept)
    assert isinstance(refusal(core.handle(registered(3.0))), NotFound)


@pytest.mark.parametrize(
    "name",
    [
        "app-20260101000000-8-0001", "app-20260101000000-9-0001", "mine-1", "app-1",
        "app-20260101000000-07-0001", "app-20260101000000-7-00001", "app-20260101000000-7-1",
        "app-20260101000000-7-0001-x", "app-20260101000000-7-0001\n", "app-20260101000000-0-0001",
        "app-2026010100000-7-0001", "driver-20260101000000-7-0001",
    ],
)  # fmt: skip
def test_only_an_id_that_an_earlier_master_may_have_made_is_taken_back(name: str) -> None:
    core = master(epoch=8)
    event = replace(registered(1.0), application_id=ApplicationId(name))
    assert isinstance(refusal(core.handle(event)), NotFound)
    assert not core.master_state.applications


def test_what_is_taken_back_is_proven_and_within_the_limits_of_its_user() -> None:
    core = master(epoch=8, bounds=replace(BOUNDS, applications_per_user=2))
    assert isinstance(refusal(core.handle(replace(registered(1.0), proven=False))), NotFound)
    for number in range(1, 4):
        name = ApplicationId(f"app-20260101000000-7-000{number}")
        event = replace(registered(1.0), application_id=name, submission_key=name)
        out = core.handle(event)
    assert isinstance(refusal(out), LimitReached)
    assert len(core.master_state.applications) == 2


def test_the_ids_of_new_applications_are_read_as_they_are_made() -> None:
    for epoch, number in ((1, 1), (7, 9_999), (12_345, 10_000)):
        assert epoch_of(application_id_of(1e9, epoch, number)) == epoch
