"""Where the log of a driver is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import NotFound
from hrm.master.log_sources import LogSources
from hrm.v1 import admin_pb2
from hrm.v1 import submission_pb2 as pb
from tests.master.submitting import ENDED, RUNNING, Agent, agent, lease, state_of, stub, submission
from tests.master.test_services import TIMEOUT_S, Running, refused, registration, running


async def two_drivers(master: Running, one: Agent) -> tuple[str, list[str]]:
    """A submission whose first driver fails and whose second succeeds, and their applications."""
    sent = await stub(master).Submit(submission(supervise=True))
    applications = []
    for attempt, code in ((1, 7), (2, 0)):
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        await stub(master).Lease(lease(sent.submission_id, attempt))
        known = await master.applications.Register(
            registration(
                submission_key=f"key-{attempt}",
                submission_id=sent.submission_id,
                submission_attempt=attempt,
            )
        )
        applications.append(known.application_id)
        await one.report_state(spec, ENDED, code)
    await state_of(master, sent.submission_id, pb.SUBMISSION_STATE_FINISHED)
    return sent.submission_id, applications


async def containers_of_logs(master: Running, *asked: tuple[str, str]) -> list[str]:
    sources = LogSources(master.interpreter)
    return [(await sources.find(ApplicationId(app), executor))[0] for app, executor in asked]


async def test_drivers_logs_are_found_while_they_are_known_and_when_all_is_forgotten(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, driver_restart_delay_s=0.1) as master, agent(master) as one:
        driver, (first, second) = await two_drivers(master, one)
        asked = (
            (first, "driver"), (second, "driver"), (second, "driver/1"),
            (driver, "driver"), (driver, "driver/1"), (driver, "1"),
        )  # fmt: skip
        found = [f"{driver}-x{attempt}" for attempt in (1, 2, 1, 2, 1, 1)]
        assert await containers_of_logs(master, *asked) == found
        with pytest.raises(NotFound, match="has no driver 3 that ran on a node"):
            await containers_of_logs(master, (second, "driver/3"))
        known = master.interpreter.core.master_state.applications
        async with asyncio.timeout(TIMEOUT_S):  # their ends follow that of the submission
            while not all(x.record.state.ended for x in known.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    forgetful = {"ended_applications_kept": 0, "ended_submissions_kept": 0}
    async with running(tmp_path, **forgetful) as master, agent(master):
        master.interpreter.submit(e.Ticked(now=master.interpreter.now()))
        known = master.interpreter.core.master_state.applications
        everything = pb.ListSubmissionsRequest(include_ended=True)
        assert not {ApplicationId(x) for x in (driver, first, second)} & known.keys()
        async with asyncio.timeout(TIMEOUT_S):
            while (await stub(master).List(everything)).submissions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await containers_of_logs(master, *asked) == found
        request = admin_pb2.ReadLogsRequest(application_id=first, executor_id="driver")
        # No server is at the endpoint of this node: the test is that it is called at all.
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "the agent of n1"):
            await master.admin.ReadLogs(request, timeout=TIMEOUT_S).read()
        with pytest.raises(NotFound, match="driver-nobody has no driver that ran"):
            await containers_of_logs(master, ("driver-nobody", "driver"))


async def test_a_driver_that_ran_where_it_was_submitted_has_its_log_there(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        known = await master.applications.Register(registration(driver_host="laptop.example"))
        with pytest.raises(NotFound, match=r"ran where it was submitted, on laptop\.example"):
            await containers_of_logs(master, (known.application_id, "driver"))
        kill = admin_pb2.KillApplicationRequest(application_id=known.application_id)
        await master.admin.KillApplication(kill, timeout=TIMEOUT_S)
    async with running(tmp_path, ended_applications_kept=0) as master:
        master.interpreter.submit(e.Ticked(now=master.interpreter.now()))
        with pytest.raises(NotFound, match="ran where it was submitted, and on no node"):
            await containers_of_logs(master, (known.application_id, "driver"))
        with pytest.raises(NotFound, match="no such application"):
            await containers_of_logs(master, ("app-of-nobody", "driver"))
