"""Every state of the AppMaster and of its containers against every event."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import pytest

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.appmaster.lifecycle import (
    APPMASTER,
    APPMASTER_CONTAINER,
    AppMasterState,
    ExecutorHappening,
)
from hrm.core.messages import appmaster as am
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.event_table import Ignored, Impossible
from hrm.core.vocabulary.model import ApplicationState

EVENTS: tuple[type[Any], ...] = get_args(am.Event)
TARGET = am.ProfileTarget(profile=0, count=3, vcores=1, heap_mib=512, memory_mib=896)
CONFIRM_S = 4.0

A, P = AppMasterState, am.Phase


def seen(phase: am.Phase, executor_id: str, **end: Any) -> am.ContainerSeen:
    return am.ContainerSeen(executor_id=executor_id, profile=0, phase=phase, node="n1", **end)


def opened(now: float, *containers: am.ContainerSeen, epoch: int = 1) -> am.SessionOpened:
    return am.SessionOpened(now=now, epoch=epoch, containers=containers, last_executor_number=0)


def core_in(state: AppMasterState) -> AppMasterCore:
    """With executor 1 that runs, 2 that was requested and 3 that is being stopped, at time 1."""
    core = AppMasterCore(limits=AppMasterLimits(failures_max=1, confirm_s=CONFIRM_S))
    core.handle(am.TargetsChanged(now=0.0, targets=(TARGET,)))
    core.handle(opened(0.0))
    core.handle(am.ContainerListed(now=0.5, container=seen(P.RUNNING, "1")))
    core.handle(am.ContainerListed(now=0.5, container=seen(P.RUNNING, "3")))
    core.handle(am.ExecutorsKilled(now=1.0, executor_ids=("3",)))
    if not state.attached:
        core.handle(am.SessionLost(now=1.0))
    if state.ended:
        core.handle(am.DriverFinished(now=1.0, state=ApplicationState.SUCCEEDED, message=""))
    assert core.life.state is state
    assert [core.containers[x].phase for x in "123"] == [P.RUNNING, P.REQUESTED, P.STOPPING]
    return core


def events_of(kind: type[Any]) -> list[am.Event]:
    """Some of each kind: harmless ones, and some that may end the application."""
    now = 2.0
    failed = seen(P.ENDED, "1", exit_code=1, blame=Blame.APPLICATION)
    each: dict[type[Any], list[am.Event]] = {
        am.TargetsChanged: [
            am.TargetsChanged(now=now, targets=()),
            am.TargetsChanged(now=now, targets=(TARGET,)),
            am.TargetsChanged(now=now, targets=(replace(TARGET, unknown_resources=("fpga",)),)),
        ],
        am.ExecutorsKilled: [am.ExecutorsKilled(now=now, executor_ids=("1", "2", "3", "9"))],
        am.ClassObserved: [am.ClassObserved(now=now, workload_class="BATCH", evidence="why")],
        am.ExclusionsChanged: [am.ExclusionsChanged(now=now, hosts=("h1",))],
        am.DriverFinished: [
            am.DriverFinished(now=now, state=state, message="")
            for state in ApplicationState
            if state.ended
        ],
        am.SessionOpened: [
            opened(now),
            opened(now, epoch=2),
            opened(now, *(seen(phase, x) for phase, x in zip(P, "1234", strict=True))),
            opened(now, failed),
        ],
        am.SessionLost: [am.SessionLost(now=now)],
        am.ContainerListed: [
            *(
                am.ContainerListed(now=now, container=seen(phase, x))
                for phase, x in itertools.product(P, "1239")
            ),
            am.ContainerListed(now=now, container=failed),
        ],
        am.ExecutorsRefused: [
            am.ExecutorsRefused(now=now, executor_ids=("1", "2", "3", "9"), profile=x, message="no")
            for x in (0, 7)
        ],
        am.ExecutorLimitSet: [am.ExecutorLimitSet(now=now, executors_max=1)],
        am.EndOrdered: [am.EndOrdered(now=now, message="killed")],
        am.AppMasterTicked: [am.AppMasterTicked(now=x) for x in (2.0, 2.0 + CONFIRM_S, 1e6)],
    }
    return each[kind]


@pytest.mark.parametrize(
    ("state", "kind"),
    list(itertools.product(A, EVENTS)),
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_each_event_in_each_state_does_what_the_table_states(
    state: AppMasterState, kind: type[Any]
) -> None:
    to = APPMASTER[state][kind]
    assert not isinstance(to, Impossible), "whatever Spark or a master sends may come at any time"
    reached = set()
    for event in events_of(kind):
        core = core_in(state)
        commands = core.handle(event)
        core.check()
        reached.add(core.life.state)
        if isinstance(to, Ignored):
            assert commands == []
            assert core.life.state is state
        else:
            assert core.life.state in to | _by_session(state, kind)
    assert isinstance(to, Ignored) or to <= reached | _not_in_these_events(state, kind)


def _by_session(state: AppMasterState, kind: type[Any]) -> frozenset[AppMasterState]:
    """A session that opens may report the end that is one too many: two moves by one event."""
    both = state is A.DETACHED and kind is am.SessionOpened
    return frozenset({A.FINISHED}) if both else frozenset()


def _not_in_these_events(state: AppMasterState, kind: type[Any]) -> frozenset[AppMasterState]:
    """A profile that has run is not refused permanently: ``test_a_refused_first_request``."""
    if kind is am.ExecutorsRefused and not state.ended:
        return frozenset({A.FINISHED if state.attached else A.FINISHING})
    return frozenset()


@pytest.mark.parametrize("attached", [False, True])
def test_a_refused_first_request_ends_it_in_either_state(attached: bool) -> None:
    core = AppMasterCore()
    core.handle(am.TargetsChanged(now=0.0, targets=(TARGET,)))
    if attached:
        core.handle(opened(0.0))
    core.handle(am.ExecutorsRefused(now=1.0, executor_ids=("1",), profile=0, message="no node"))
    assert core.life.state is (A.FINISHED if attached else A.FINISHING)


def happened(
    happening: ExecutorHappening, executor_id: str
) -> tuple[AppMasterCore, list[am.Event]]:
    """A core, and the events that make this happen to the executor."""
    core = core_in(A.ATTACHED)
    match happening:
        case ExecutorHappening.RELEASED:
            return core, [am.ExecutorsKilled(now=2.0, executor_ids=(executor_id,))]
        case ExecutorHappening.REFUSED:
            ids = (executor_id,)
            return core, [am.ExecutorsRefused(now=2.0, executor_ids=ids, profile=0, message="no")]
        case ExecutorHappening.UNLISTED:
            return core, [am.SessionLost(now=2.0), opened(2.0)]
        case ExecutorHappening.UNCONFIRMED:
            others = [seen(core.containers[x].phase, x) for x in "123" if x != executor_id]
            again: list[am.Event] = [am.SessionLost(now=2.0), opened(2.0, *others, epoch=2)]
            late: list[am.Event] = [
                am.AppMasterTicked(now=2.0 + CONFIRM_S * x / 8) for x in range(1, 9)
            ]
            return core, [*again, *late]
        case _:
            phase = P[happening.name.removeprefix("SEEN_")]
            return core, [am.ContainerListed(now=2.0, container=seen(phase, executor_id))]


@pytest.mark.parametrize(
    ("phase", "happening"),
    [(x, y) for x, y in itertools.product(P, ExecutorHappening) if x is not P.ENDED],
    ids=lambda x: x.value,
)
def test_each_happening_in_each_phase_does_what_the_table_states(
    phase: am.Phase, happening: ExecutorHappening
) -> None:
    executor_id = {P.RUNNING: "1", P.REQUESTED: "2", P.STOPPING: "3"}[phase]
    core, events = happened(happening, executor_id)
    for event in events:
        core.handle(event)
        core.check()
    kept = core.containers.get(executor_id)
    to = APPMASTER_CONTAINER[phase][happening]
    assert not isinstance(to, Impossible)
    expected: Iterable[am.Phase] = {phase} if isinstance(to, Ignored) else to
    assert (P.ENDED if kept is None else kept.phase) in expected


@pytest.mark.parametrize("happening", list(ExecutorHappening), ids=lambda x: x.value)
def test_what_has_ended_has_no_effect_but_to_be_adopted(happening: ExecutorHappening) -> None:
    core, _ = happened(happening, "1")
    core.handle(am.ContainerListed(now=1.5, container=seen(P.ENDED, "1")))
    _, events = happened(happening, "1")
    for event in events:
        commands = core.handle(event)
        core.check()
        assert not any(isinstance(x, am.ExecutorEnded) and x.executor_id == "1" for x in commands)
    listed = happening in (
        ExecutorHappening.SEEN_REQUESTED,
        ExecutorHappening.SEEN_RUNNING,
        ExecutorHappening.SEEN_STOPPING,
    )
    assert ("1" in core.containers) is listed
