"""The cases from other projects' tests say what they mean, before any of them is run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.queues.field_cases import App, Case, Group, Outcome, Size, cases

EACH = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)


def total(groups: list[Group]) -> Size:
    return Size(
        cores=sum(x.count * x.size.cores for x in groups),
        gib=sum(x.count * x.size.gib for x in groups),
        gpu_gib=sum(x.count * x.size.gpu_gib for x in groups),
    )


def all_running(apps: tuple[App, ...]) -> list[Group]:
    drivers = [Group(count=x.drivers, size=Size.of(1)) for x in apps]
    return [*drivers, *(group for app in apps for group in app.runs)]


def test_there_are_cases_of_three_projects() -> None:
    assert min(Counter(case.project for case in cases()).values()) >= 25
    assert len({case.name for case in cases()}) == len(cases())


@EACH
def test_a_reason_is_given_where_hrm_does_otherwise_and_only_there(case: Case) -> None:
    assert case.original.agrees(case.hrm) == (not case.why), case.name


@EACH
def test_what_runs_fits_the_cluster(case: Case) -> None:
    whole = total([Group(size=node.size) for node in case.nodes])
    used = total(all_running(case.apps))
    assert used.cores <= whole.cores and used.gib <= whole.gib and used.gpu_gib <= whole.gpu_gib


@EACH
def test_names_are_of_what_there_is(case: Case) -> None:
    apps = {app.name: app for app in case.apps}
    assert len(apps) == len(case.apps), "two applications of one name"
    leaves = {x for x in case.queues if not any(y.startswith(f"{x}.") for y in case.queues)}
    assert {app.queue for app in case.apps} <= leaves
    nodes = {node.name for node in case.nodes}
    labels = {label for node in case.nodes for label in node.labels}
    for app in case.apps:
        assert {group.node for group in (*app.runs, *app.waits)} <= {*nodes, ""}
        assert set(app.labels) <= labels
    assert {*case.ends, *case.finishes} <= set(apps)
    for outcome in (case.original, case.hrm):
        _check(outcome, apps)


def _check(outcome: Outcome, apps: dict[str, App]) -> None:
    for name, which in outcome.lost.items():
        most = apps[name].running
        if isinstance(which, tuple):
            assert all(1 <= number <= most for number in which)
        else:
            assert 0 < which <= most + apps[name].drivers
    for name, count in (outcome.started or {}).items():
        assert 0 < count <= sum(group.count for group in apps[name].waits)
