"""What becomes of a submitted driver's application when the driver itself fails.

Its context may have been stopped as a success before, as Spark does when a program exits, so the
application's own report and the end of its driver may say different things, in either order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.hosted import SubmitToMaster
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.submission.hosting import SubmissionHost
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import ApplicationId, ApplicationState, Resources
from hrm.testing.virtual import VirtualCluster, unit

ID = "driver-20260101000000-0001"
WHY = "its driver exited with code 3: RuntimeError: no input"


def record(**changes: object) -> m.SubmissionRecord:
    plain = m.SubmissionRecord(
        submission_id=ID, key="k", name="app", user="u", driver="{}", resources=Resources(1, 1024)
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def ended(submissions: SubmissionsCore, **fields: object) -> list[m.EndLinked]:
    plain = m.DriverEnded(
        now=1.0, submission_id=ID, attempt=1, exit_code=3,
        message="exited with code 3: RuntimeError: no input",
    )  # fmt: skip
    commands = submissions.handle(replace(plain, **fields))  # type: ignore[arg-type]
    return [command for command in commands if isinstance(command, m.EndLinked)]


def running(*application_ids: str, supervise: bool = False) -> SubmissionsCore:
    of = record(
        state=S.RUNNING, may_live=True, application_ids=application_ids, supervise=supervise
    )
    return SubmissionsCore(m.SubmissionBounds(), [of], 0.0)


def registered(cluster: VirtualCluster, attempt: int = 1) -> ApplicationId:
    app_id = ApplicationId(f"app-{attempt}")
    cluster.submit_to_master(
        e.ApplicationRegistered(
            now=cluster.now,
            call_id=cluster.next_call(),
            new_id=app_id,
            application_id=ApplicationId(""),
            submission_key=app_id,
            name="app",
            user="u",
            submission_id=ID,
            submission_attempt=attempt,
        )
    )
    return app_id


def stopped(cluster: VirtualCluster, app_id: ApplicationId) -> None:
    cluster.finish(app_id)


def failed(cluster: VirtualCluster, app_id: ApplicationId) -> None:
    event = e.DriverFailed(now=cluster.now, application_id=app_id, attempt=1, message=WHY)
    cluster.submit_to_master(event)


@pytest.mark.parametrize("facts", [(stopped, failed), (failed, stopped), (stopped, failed, failed)])
def test_the_failure_of_the_driver_counts_whenever_its_application_reports_a_success(
    facts: tuple[Callable[[VirtualCluster, ApplicationId], None], ...],
) -> None:
    cluster = VirtualCluster(schedulers=1)
    cluster.add_node(unit("n1", 4))
    app_id = registered(cluster)
    for fact in facts:
        fact(cluster, app_id)
    cluster.restart_master()  # it is written down
    app = cluster.app(app_id)
    assert (app.record.state, app.record.message) == (ApplicationState.FAILED, WHY)


def test_what_an_earlier_driver_made_and_what_was_killed_stay_as_they_are() -> None:
    cluster = VirtualCluster(schedulers=1)
    cluster.add_node(unit("n1", 4))
    earlier, killed = registered(cluster, attempt=2), registered(cluster)
    cluster.finish(earlier)
    cluster.finish(killed, ApplicationState.KILLED)
    for app_id in (earlier, killed):
        failed(cluster, app_id)
    assert cluster.app(earlier).record.state is ApplicationState.SUCCEEDED
    assert cluster.app(killed).record.state is ApplicationState.KILLED


@pytest.mark.parametrize("supervise", [False, True])
def test_of_several_applications_the_last_is_the_one_that_its_driver_took_along(
    supervise: bool,
) -> None:
    links = ended(running("app-1", "app-2", supervise=supervise))
    assert [(x.application_id, x.failed_attempt) for x in links] == [("app-1", 0), ("app-2", 1)]


@pytest.mark.parametrize(
    "fields",
    [{"exit_code": 0}, {"exit_code": -1, "lost": True}, {"killed": True}],
    ids=["success", "lost", "killed"],
)
def test_a_driver_that_was_not_seen_to_fail_changes_no_result(fields: dict[str, object]) -> None:
    assert [x.failed_attempt for x in ended(running("app-1"), **fields)] == [0]


def test_a_master_that_ended_after_it_had_written_the_one_fact_writes_the_other() -> None:
    cluster = VirtualCluster(schedulers=1)
    cluster.add_node(unit("n1", 4))
    app_id = registered(cluster)
    cluster.finish(app_id)
    over = record(
        state=S.FAILED, exit_code=3, message="exited with code 3: RuntimeError: no input",
        application_ids=(app_id,),
    )  # fmt: skip
    core = cluster.master
    submissions = SubmissionsCore(m.SubmissionBounds(), [over], 0.0)
    host = SubmissionHost(submissions, core.master_state, WriteGate(core), str)
    for step in host.begin(cluster.now):
        assert isinstance(step, SubmitToMaster)
        cluster.submit_to_master(step.event)
    assert cluster.app(app_id).record.message == WHY
