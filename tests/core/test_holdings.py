"""The master's memory for applications: dropped at their end, counted, bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hrm.core.invariants import master_violations
from hrm.core.master.core import MasterCore
from hrm.core.master.holdings import Holdings, launch_bytes
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.submissions import SubmissionState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    NO_LAUNCH,
    ApplicationId,
    ApplicationState,
    LaunchContext,
    NodeName,
    Progress,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    StageProgress,
)
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.errors import LimitReached
from hrm.policies import load
from tests.core.test_submissions import ID, Master

MIB = 1 << 20


def master(**bounds: Any) -> MasterCore:
    return MasterCore(epoch=1, policies=[load("min-wait", 0)], bounds=Bounds(**bounds), now=0.0)


def launch(size: int = 100) -> LaunchContext:
    return LaunchContext(environment=(("K", "v" * (size - 1)),))


def register(
    core: MasterCore, number: int, *, size: int = 100, user: str = "u", again: str = ""
) -> str:
    """The id, or the refusal."""
    out = core.handle(
        e.ApplicationRegistered(
            now=float(number), call_id=number, application_id=ApplicationId(again),
            submission_key=f"k{number}", name="n", user=user, launch=launch(size),
        )
    )  # fmt: skip
    (result,) = (x for x in out if isinstance(x, c.Reply | c.Refuse))
    assert master_violations(core) == []
    if isinstance(result, c.Refuse):
        assert isinstance(result.error, LimitReached)
        return result.error.message
    assert isinstance(result.result, c.ApplicationAdmitted)
    return result.result.application_id


def finish(core: MasterCore, name: str, message: str = "") -> None:
    core.handle(
        e.ApplicationFinished(
            now=50.0, application_id=ApplicationId(name), state=ApplicationState.FAILED,
            message=message,
        )
    )  # fmt: skip
    assert master_violations(core) == []


def test_an_ended_application_keeps_what_is_shown_of_it_and_no_more() -> None:
    core = master()
    name = ApplicationId(register(core, 1, size=1000))
    progress = Progress(
        tasks_total=7, streaming_queries=("q",), stages=(StageProgress(stage_id=1, name="s"),)
    )
    core.handle(e.ProgressReported(now=2.0, application_id=name, progress=progress))
    assert core.master_state.holdings.live_bytes == 1000
    finish(core, name, "it broke")
    app = core.master_state.applications[name]
    assert app.launch is NO_LAUNCH
    assert core.master_state.holdings.live_bytes == 0
    assert app.progress == replace(progress, streaming_queries=(), stages=())
    assert app.record.message == "it broke"


def test_live_applications_hold_so_much_together() -> None:
    core = master(launches_held_mib=1)
    first = register(core, 1, size=MIB // 2)
    register(core, 2, size=MIB // 2)
    refused = register(core, 3, size=1)
    assert "launches_held_mib" in refused
    assert "1.0 MiB are held" in refused
    assert "k3" not in str(core.master_state.live)
    assert register(core, 1, size=MIB // 2, again=first) == first, "the same again is no more"
    assert "launches_held_mib" in register(core, 1, size=MIB // 2 + 1, again=first)
    finish(core, first)
    assert register(core, 3, size=MIB // 2).startswith("app-")


def test_a_user_has_so_many() -> None:
    core = master(applications_per_user=2)
    first = register(core, 1)
    register(core, 2)
    assert "2 applications of 'u' are live already (applications_per_user)" in register(core, 3)
    assert register(core, 4, user="another").startswith("app-")
    finish(core, first)
    assert register(core, 5).startswith("app-")


def test_the_oldest_ended_are_forgotten_where_they_hold_too_much() -> None:
    core = master(ended_applications_mib=1)
    names = [register(core, number) for number in range(1, 6)]
    for name in names:
        finish(core, name, "x" * (MIB // 3))
    out = core.handle(e.Ticked(now=51.0))
    forgotten = [x.application_id for x in out if isinstance(x, c.ForgetApplication)]
    assert forgotten == names[:3]
    assert list(core.master_state.applications) == names[3:]
    assert master_violations(core) == []


def test_what_a_master_recovers_is_counted_too() -> None:
    record = ApplicationRecord(
        application_id=ApplicationId("a"), submission_key="k", name="n", user="u",
        state=ApplicationState.FAILED, message="x" * 2 * MIB,
    )  # fmt: skip
    core = MasterCore(
        epoch=2, policies=[load("min-wait", 0)], bounds=Bounds(ended_applications_mib=1),
        records=[record], now=0.0,
    )  # fmt: skip
    assert master_violations(core) == []
    out = core.handle(e.Ticked(now=1.0))
    assert [x for x in out if isinstance(x, c.ForgetApplication)]


def test_a_cluster_has_so_many_nodes() -> None:
    core = master(nodes_limit=1)

    def joined(name: str) -> list[c.MasterCommand]:
        unit = ResourceUnit(
            unit_id=ResourceUnitId(f"{name}/cpu"), capacity=Resources(1, 1), run_limit=1
        )
        return core.handle(
            e.NodeRegistered(
                now=1.0, call_id=1, node=NodeName(name), identity=name, incarnation=name,
                sequence=1, host="h", endpoint="e", units=(unit,), containers=(), isolation="",
                spark_versions=(), platform="",
            )
        )  # fmt: skip

    assert any(isinstance(x, c.Reply) for x in joined("n1"))
    (refusal,) = (x for x in joined("n2") if isinstance(x, c.Refuse))
    assert "nodes_limit" in str(refusal.error)
    assert any(isinstance(x, c.Reply) for x in joined("n1")), "it is one of them"


def test_an_ended_submission_keeps_neither_its_configuration_nor_its_files() -> None:
    submitter = Master(driver="{}", files=("0" * 64,))
    submitter.run()
    assert submitter.stored[ID].driver == "{}"
    submitter.end(exit_code=3)
    assert submitter.state is SubmissionState.FAILED
    for kept in (submitter.record, submitter.stored[ID]):
        assert (kept.driver, kept.files) == ("", ())
    submitter.restart()
    assert submitter.state is SubmissionState.FAILED


@pytest.mark.parametrize("limit", [1, 3])
def test_the_sum_is_that_of_all_texts(limit: int) -> None:
    context = LaunchContext(
        driver_url="12", spark_version="3", environment=(("A", "bc"),), java_options=("x", "yz"),
        extra_class_path=("/",), driver="{}",
    )  # fmt: skip
    assert launch_bytes(context) == 12
    assert Holdings(Bounds(launches_held_mib=limit)).refusal(None, context) == ""
