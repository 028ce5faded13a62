"""The master's limit of an application's executors, as its AppMaster keeps to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.messages import commands as c
from hrm.core.messages.appmaster import (
    AppMasterTicked,
    ExecutorLimitSet,
    KeepExecutors,
    Phase,
    SessionLost,
)
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import Resources
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.test_application_master import (
    asked,
    changed,
    ended,
    opened,
    released,
    running,
    seen,
    target,
    want,
)


def limit(now: float, executors_max: int | None) -> ExecutorLimitSet:
    return ExecutorLimitSet(now=now, executors_max=executors_max)


def test_what_runs_beyond_the_limit_is_for_spark_to_end() -> None:
    core = running(4)

    commands = core.handle(limit(1, 2))

    assert commands == [KeepExecutors(executors_max=2)], "none is released"
    core.handle(changed(2, ended("4", 0, Blame.NONE)))
    core.handle(changed(2, ended("3", 0, Blame.NONE)))
    assert core.wake_at_s() is None, "there are as many as there may be"
    assert asked(core.handle(AppMasterTicked(now=60))) == []
    assert asked(core.handle(limit(61, 3))) == ["5"], "it may have one more"
    assert asked(core.handle(limit(62, None))) == ["6"]


def test_what_waits_beyond_the_limit_is_cancelled_and_a_greater_target_changes_nothing() -> None:
    core = running(1)
    core.handle(want(1, target(3)))

    assert released(core.handle(limit(2, 2))) == ["3"], "the youngest first"
    assert asked(core.handle(want(3, target(9)))) == []
    assert released(core.handle(want(4, target(1)))) == ["2"], "Spark may want fewer still"


def test_it_is_for_the_default_profile_alone() -> None:
    core = running(1)
    core.handle(limit(1, 1))
    assert asked(core.handle(want(2, target(4), target(2, profile=1)))) == ["2", "3"]


@pytest.mark.parametrize(("of_next", "wanted"), [(None, ["3", "4"]), (3, ["3"])])
def test_a_new_session_begins_with_what_its_master_says(
    of_next: int | None, wanted: list[str]
) -> None:
    core = running(2)
    core.handle(limit(1, 2))
    core.handle(want(2, target(4)))
    core.handle(SessionLost(now=3))

    runs = (seen("1", Phase.RUNNING), seen("2", Phase.RUNNING))
    commands = core.handle(replace(opened(4, *runs), executors_max=of_next))

    assert asked(commands) == wanted


def test_a_driver_of_an_older_plugin_is_not_limited() -> None:
    core = running(2)
    core.limits_executors = False
    assert core.handle(limit(1, 1)) == []
    assert asked(core.handle(want(2, target(3)))) == ["3"]


def test_the_master_says_it_once_and_again_to_whoever_attaches() -> None:
    cluster = VirtualCluster([unit("n0", 4)])
    app = cluster.submit(2, Resources(1, 10))
    cluster.settle()
    state = cluster.master.master_state

    for executors_max in (1, 1, None):
        state.limit_executors(state.applications[app], executors_max)

    notices = [x.notice for x in state.out if isinstance(x, c.NotifyApplication)]
    assert notices == [c.ExecutorLimit(executors_max=1), c.ExecutorLimit(executors_max=None)]


def test_a_core_without_a_session_keeps_the_limit() -> None:
    core = AppMasterCore()
    core.handle(want(0, target(2)))
    core.handle(limit(0, 1))
    assert core.executors_max == 1
    assert asked(core.handle(opened(1))) == ["1", "2"], "its master says nothing of one"
