"""How many workers a workload wants: the policies, their guard, and packages."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.resizing import InForce, OnePerTask, WorkloadView
from hrm.pipelines.policies import resizing
from hrm.pipelines.policies.resizing.few_starts import WORK_S, FewStarts
from hrm.pipelines.policies.resizing.guarded import START_S, GuardedResizing
from hrm.policies.guard import GuardBounds, GuardMode, canary_place
from tests.policies.packages import install_package

VIEW = WorkloadView(tasks=10, running=2, workers=2, slots=4, workers_max=8, run_s=5.0)
APP = ApplicationId("pipelines-1-1-0001")


class Says:
    """A policy that returns or raises this."""

    def __init__(self, what: Any) -> None:
        self.name, self.what = "says", what

    def workers(self, _view: WorkloadView) -> Any:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def guarded(what: Any, mode: GuardMode = GuardMode.ON, **bounds: Any) -> GuardedResizing:
    return GuardedResizing(
        "says", Says(what), OnePerTask(), origin="here", clock_s=lambda: 0.0, mode=mode,
        bounds=GuardBounds(**{"blind_share": 1.0} | bounds),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "slots", "most", "wanted"),
    [(0, 1, 8, 0), (1, 4, 8, 1), (5, 4, 8, 2), (100, 1, 8, 8)],
)
def test_each_task_has_a_place(tasks: int, slots: int, most: int, wanted: int) -> None:
    view = replace(VIEW, tasks=tasks, slots=slots, workers_max=most)
    assert OnePerTask().workers(view) == wanted


@pytest.mark.parametrize(
    ("tasks", "run_s", "wanted"),
    [(0, 5.0, 0), (1, 0.01, 1), (4, WORK_S / 2, 2), (8, 1e6, 8), (8, math.nan, 8), (8, 0.0, 1)],
)
def test_few_starts_gives_each_worker_some_work(tasks: int, run_s: float, wanted: int) -> None:
    view = replace(VIEW, tasks=tasks, run_s=run_s, slots=1)
    assert FewStarts().workers(view) == wanted


# --- the guard --------------------------------------------------------------------------------


def test_a_candidate_in_shadow_decides_nothing_and_is_recorded() -> None:
    both = guarded(1, GuardMode.SHADOW)
    assert both.workers(APP, VIEW, 0.0) == 3
    (record,) = both.guard.status(0.0).records
    assert (record.same, record.learned) == (False, "1 workers for 10 tasks")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (0, "value-out-of-range"),
        (-1, "value-out-of-range"),
        (9, "value-out-of-range"),
        (1.5, "wrong-shape"),
        (None, "wrong-shape"),
        (ValueError("no idea"), "fault"),
    ],
)
def test_what_may_not_be_wanted_is_not_wanted(said: Any, reason: str) -> None:
    both = guarded(said)
    assert both.workers(APP, VIEW, 0.0) == 3
    assert both.guard.status(0.0).fallbacks == {reason: 1}


def test_none_is_wanted_of_what_has_no_task() -> None:
    assert guarded(0).workers(APP, replace(VIEW, tasks=0), 0.0) == 0
    both = guarded(1)
    assert both.workers(APP, replace(VIEW, tasks=0), 0.0) == 0, "it would never end"
    assert both.guard.status(0.0).fallbacks == {"value-out-of-range": 1}


def test_of_a_canary_a_workload_has_one_policy_all_the_time() -> None:
    both, share = guarded(1, GuardMode.CANARY_50), GuardMode.CANARY_50.share
    for number in range(40):
        app = ApplicationId(f"app-{number}")
        wanted = 1 if canary_place(app) < share else 3
        assert [both.workers(app, VIEW, float(x)) for x in range(3)] == [wanted] * 3


def test_one_whose_tasks_wait_for_workers_goes_back_to_the_shadow() -> None:
    apps = [ApplicationId(f"app-{number}") for number in range(40)]
    both = guarded(1, GuardMode.CANARY_50, watch_tasks=40)
    by_candidate = {x for x in apps if canary_place(x) < GuardMode.CANARY_50.share}
    for second in range(60):
        for app in apps:
            both.workers(app, VIEW, float(second))
            task = TaskId(f"{app}-{second}")
            both.submitted(app, task, VIEW)
            ideal_s = VIEW.run_s + START_S
            took_s = 3 * ideal_s if app in by_candidate else ideal_s
            both.ended(task, now=float(second), response_s=took_s, ok=True)
    status = both.guard.status(60.0)
    assert status.mode is GuardMode.SHADOW and status.rolled_back_at is not None
    assert both.workers(next(iter(by_candidate)), VIEW, 61.0) == 3


# --- by name ------------------------------------------------------------------------------------


def test_alone_it_decides() -> None:
    alone = resizing.with_candidate("few-starts", "", clock_s=lambda: 0.0)
    assert isinstance(alone, InForce) and isinstance(alone.policy, FewStarts)


def test_an_unknown_one_is_refused_with_the_known_ones() -> None:
    for setting, names in (
        ("pipeline_resize_policy", ("most", "")),
        ("pipeline_resize_candidate", ("one-per-task", "most")),
    ):
        with pytest.raises(InvalidConfig, match=f"'most'; set {setting} .*few-starts, one-per"):
            resizing.with_candidate(*names, clock_s=lambda: 0.0)


def test_none_is_tried_next_to_itself() -> None:
    with pytest.raises(InvalidConfig, match="in force already; remove it"):
        resizing.with_candidate("few-starts", "few-starts", clock_s=lambda: 0.0)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    names: list[str] = []

    def put(source: str) -> None:
        points = {"half": "halves:Half"}
        install_package(tmp_path, monkeypatch, "halves", source, points, resizing.GROUP)
        names.append("halves")

    yield put
    for name in names:
        sys.modules.pop(name, None)


def test_one_of_a_package_is_tried_out(install: Callable[[str], None]) -> None:
    install(
        "class Half:\n"
        "    name = 'half'\n"
        "    def workers(self, view):\n"
        "        return max(min(1, view.tasks), view.enough // 2)\n"
    )
    both = resizing.with_candidate("one-per-task", "half", clock_s=lambda: 0.0)
    assert isinstance(both, GuardedResizing)
    both.guard.set_mode(GuardMode.ON)
    wanted = {both.workers(ApplicationId(f"app-{x}"), VIEW, 0.0) for x in range(40)}
    assert wanted == {1, 3}, "of 90 % until there is something to compare it with"
    assert "halves:Half of halves 1.0" in both.guard.model


def test_a_candidate_that_does_not_load_keeps_none_from_starting(
    install: Callable[[str], None],
) -> None:
    install("raise RuntimeError('the disk is full')")
    both = resizing.with_candidate("one-per-task", "half", clock_s=lambda: 0.0)
    assert isinstance(both, GuardedResizing)
    both.guard.set_mode(GuardMode.ON)
    assert both.workers(APP, VIEW, 0.0) == 3
    assert "the disk is full" in both.guard.status(0.0).last
    with pytest.raises(InvalidConfig, match="the disk is full; mend or reinstall"):
        resizing.with_candidate("half", "", clock_s=lambda: 0.0)
