"""A real AppMaster process between a fake driver and a fake master: failures of each connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest

from hrm import certificates
from hrm.v1 import application_pb2, common_pb2
from tests.hostile_text import HOSTILE, unseen
from tests.spark.fake_driver import FakeDriver, fake_driver, progress, target, until_registered
from tests.spark.fake_master import FakeMaster, fake_master, until

pytestmark = pytest.mark.timeout(60)

FAST = "appmaster.RECONNECT_DELAY_MAX_S = 0.5"


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[FakeMaster]:
    async with fake_master(tmp_path, start_executors=False) as running:
        yield running


def reported(master: FakeMaster) -> int:
    """Tasks that the latest report counts; -1: there was none."""
    reports = [u.progress for _, u in master.updates if u.HasField("progress")]
    return reports[-1].tasks_completed if reports else -1


async def report(master: FakeMaster) -> None:
    before = reported(master)
    await until(lambda: reported(master) > before, 10, "progress")


async def sessions(master: FakeMaster, count: int) -> None:
    await until(lambda: master.sessions == count, 10, f"session {count}")


@contextlib.asynccontextmanager
async def busy(driver: FakeDriver, interval_s: float) -> AsyncIterator[None]:
    """Posts progress all the time."""

    async def post() -> None:
        for number in range(1, 100_000):
            driver.send(progress(number))
            await asyncio.sleep(interval_s)

    posting = asyncio.create_task(post())
    try:
        yield
    finally:
        posting.cancel()


@pytest.mark.parametrize("interval_s", [0.01, 0.05, 0.3])
async def test_a_busy_application_outlives_broken_sessions(
    master: FakeMaster, tmp_path: Path, interval_s: float
) -> None:
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        async with busy(driver, interval_s):
            for session in range(2, 6):
                await report(master)
                master.break_session()
                await sessions(master, session)
        assert driver.calls_of("failed") == []
        driver.finish()
        assert await driver.end() == 0
    assert master.finished is not None
    assert master.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED
    assert master.problems == []


async def test_it_has_followed_the_master_that_admitted_it_before_a_session_opens(
    master: FakeMaster, tmp_path: Path
) -> None:
    """A master with an empty store, whose epoch is the same number, must not take the application
    for one of its own."""
    master.sessions_refused = 1
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        first, second = master.registrations
        assert (first.application_id, first.followed_epoch) == ("", 0)
        assert (second.application_id, second.followed_epoch) == (master.application_id, 1)
        driver.finish()
        assert await driver.end() == 0


async def test_times_of_tasks_are_reported_once(master: FakeMaster, tmp_path: Path) -> None:
    """A new session gets the latest counts again, not the times that the one before had."""

    def heard() -> list[str]:
        reports = [u.progress for _, u in master.updates if u.HasField("progress")]
        return [each.executor_id for report in reports for each in report.executor_tasks]

    tasks = {"stage": "map", "tasks": 1, "run_s": 1.5, "input_bytes": 0}
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        driver.send(progress(1) | {"executor_tasks": [tasks | {"executor_id": "1"}]})
        await until(lambda: reported(master) == 1, 10, "progress")
        count = len(master.updates)
        master.break_session()
        await sessions(master, 2)
        await until(
            lambda: any(u.HasField("progress") for _, u in master.updates[count:]), 10, "again"
        )
        driver.send(progress(2) | {"executor_tasks": [tasks | {"executor_id": "2"}]})
        await until(lambda: reported(master) == 2, 10, "progress")
        assert heard() == ["1", "2"]
        driver.finish()
        assert await driver.end() == 0


async def test_a_busy_application_outlives_a_master_that_starts_again(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with fake_master(tmp_path, start_executors=False) as first:
            driver = await stack.enter_async_context(fake_driver(first, tmp_path, setup=FAST))
            driver.send(target(1))
            await until_registered(driver)
            await stack.enter_async_context(busy(driver, 0.05))
            await until(lambda: reported(first) > 0, 10, "progress")
        port = int(first.address.rpartition(":")[2])
        async with fake_master(tmp_path, port, start_executors=False, epoch=2) as second:
            await until(lambda: reported(second) > 0, 20, "progress to the new master")
            assert driver.calls_of("failed") == []
            driver.finish()
            assert await driver.end() == 0
        assert second.finished is not None
        assert second.problems == []


async def test_the_driver_knows_how_long_the_reason_of_an_end_may_take(
    master: FakeMaster, tmp_path: Path
) -> None:
    """The time after which a node is lost; 0 while there is no master."""
    understands = ["nodeTimeout"]
    async with fake_driver(master, tmp_path, setup=FAST, understands=understands) as driver:
        driver.send(target(1))
        await until(lambda: driver.calls_of("nodeTimeout"), 20, "informed")
        master.abort_session()
        await until(lambda: len(driver.calls_of("nodeTimeout")) == 3, 20, "informed again")
        times = [time for _, time in driver.calls_of("nodeTimeout")]
        assert times == ["15000", "0", "15000"]


async def test_a_plugin_of_before_an_upgrade_is_called_nothing_that_it_lacks(
    master: FakeMaster, tmp_path: Path
) -> None:
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        master.abort_session()
        await sessions(master, 2)
        await until(lambda: len(driver.calls_of("registered")) == 2, 10, "attached again")
        assert driver.calls_of("nodeTimeout") == []
        driver.finish()
        assert await driver.end() == 0


async def test_an_application_outlives_a_limit_that_its_session_meets(
    master: FakeMaster, tmp_path: Path
) -> None:
    """Many that reconnect to a restarted master at once reach its limits for one address."""
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        await sessions(master, 1)
        master.notices.put_nowait(grpc.StatusCode.RESOURCE_EXHAUSTED)
        await sessions(master, 2)


async def test_what_a_master_reports_reaches_the_driver_as_text_that_is_seen(
    master: FakeMaster, tmp_path: Path
) -> None:
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        end = application_pb2.EndApplication(
            state=common_pb2.APPLICATION_STATE_KILLED, message=HOSTILE + "x" * 10_000
        )
        master.notices.put_nowait(application_pb2.ApplicationNotice(end=end))
        await until(lambda: driver.calls_of("failed") != [], 10, "its end")
        ((_, message, *_rest),) = driver.calls_of("failed")
        assert unseen(message) == []
        assert len(message) < 5_000
        assert "x1b[2J" in message


async def test_settings_without_effect_are_named_once(master: FakeMaster, tmp_path: Path) -> None:
    wrong = ["spark.executor.logs.rolling.maxSize", "spark.hrm.gang.mim"]
    settings = ["spark.executor.memory", "spark.hrm.gang.min", *wrong]
    async with fake_driver(master, tmp_path, settings=settings) as driver:
        driver.send(target(1))
        await until_registered(driver)
        driver.finish()
        assert await driver.end() == 0
    warning = "HRM: warning: spark.executor.logs.rolling.maxSize has no effect here: nodes rotate"
    printed = (tmp_path / "appmaster.log").read_text()
    assert printed.startswith(warning)
    mistyped = "HRM: warning: spark.hrm.gang.mim is no setting of HRM, and has no effect; "
    assert f"{mistyped}did you mean spark.hrm.gang.min?" in printed
    assert printed.count("warning") == len(wrong)
    known = master.application_id
    async with fake_driver(master, tmp_path, settings=settings, application_id=known) as driver:
        driver.send(target(1))
        await until_registered(driver)
        driver.finish()
        assert await driver.end() == 0
    assert "warning" not in (tmp_path / "appmaster.log").read_text(), "its successor is silent"


async def test_a_long_session_does_not_count_as_time_without_a_master(
    master: FakeMaster, tmp_path: Path
) -> None:
    async with fake_driver(master, tmp_path, setup=FAST, master_timeout_ms=1500) as driver:
        driver.send(target(1))
        await until_registered(driver)
        attached_at_s = time.monotonic()
        await until(lambda: time.monotonic() > attached_at_s + 1.6)
        master.abort_session()
        await until(lambda: master.sessions == 2, 10, "the second session")
        assert driver.calls_of("failed") == []


async def test_a_master_that_reads_nothing_gets_a_new_session_not_a_longer_queue(
    master: FakeMaster, tmp_path: Path
) -> None:
    master.unresponsive = True
    setup = f"{FAST}; appmaster.UPDATES_MAX = 5"
    async with fake_driver(master, tmp_path, setup=setup) as driver:
        driver.send(target(0))
        await until_registered(driver)
        for _ in range(40):  # each some 20 kB: more than fits in what gRPC sends ahead
            driver.send(target(500), target(0))
        driver.send(target(2))
        await until(lambda: master.ended_sessions == 1, 20, "the session is given up")
        master.unresponsive = False
        master.may_listen.set()
        await until(lambda: len(master.live()) == 2, 20, "what is wanted now")
        assert master.sessions >= 2
        assert driver.calls_of("failed") == []
        driver.finish()
        assert await driver.end() == 0
    assert master.finished is not None


async def test_an_application_that_ends_without_a_master_sends_its_final_update_to_the_next(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with fake_master(tmp_path, start_executors=False) as first:
            driver = await stack.enter_async_context(fake_driver(first, tmp_path, setup=FAST))
            driver.send(target(1))
            await until_registered(driver)
        driver.finish()
        await until(lambda: driver.calls_of("detached"), 5, "the driver may go, and soon")
        assert driver.process.stdin is not None
        driver.process.stdin.close()  # the driver's end
        port = int(first.address.rpartition(":")[2])
        async with fake_master(tmp_path, port, start_executors=False, epoch=2) as second:
            assert await driver.end() == 0
        assert second.finished is not None
        assert second.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED
        assert driver.calls_of("failed") == []


async def test_a_final_update_that_nothing_receives_is_given_up_in_time(tmp_path: Path) -> None:
    setup = f"{FAST}; appmaster.FINAL_UPDATE_MAX_S = 1.0"
    async with contextlib.AsyncExitStack() as stack:
        async with fake_master(tmp_path, start_executors=False) as master:
            driver = await stack.enter_async_context(fake_driver(master, tmp_path, setup=setup))
            driver.send(target(1))
            await until_registered(driver)
        driver.finish()
        await until(lambda: driver.calls_of("detached"), 10, "the driver may go")
        assert await driver.end(5) == 0


async def test_an_application_that_the_master_has_forgotten_needs_no_final_update(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with fake_master(tmp_path, start_executors=False) as first:
            driver = await stack.enter_async_context(fake_driver(first, tmp_path, setup=FAST))
            driver.send(target(1))
            await until_registered(driver)
        driver.finish()
        await until(lambda: driver.calls_of("detached"), 10, "the driver may go")
        port = int(first.address.rpartition(":")[2])
        async with fake_master(tmp_path, port, application_id="app-other") as second:
            assert await driver.end() == 0
        assert second.finished is None
        assert second.sessions == 0
        assert driver.calls_of("failed") == []


async def test_a_driver_that_is_gone_is_reported_and_leaves_nothing(
    master: FakeMaster, tmp_path: Path
) -> None:
    async with fake_driver(master, tmp_path) as driver:
        driver.send(target(1))
        await until_registered(driver)
        assert driver.process.stdin is not None
        driver.process.stdin.close()
        await until(lambda: master.finished is not None, 10, "the master hears of it")
        assert await driver.end(10) == 0
    assert master.finished is not None
    assert master.finished.state == common_pb2.APPLICATION_STATE_FAILED
    assert "the driver is gone" in master.finished.message


async def test_every_registration_and_session_proves_its_application(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_submission = tmp_path / "ownership-key"
    of_submission.write_text("s" * 64)
    monkeypatch.setenv("HRM_SUBMISSION_OWNERSHIP_KEY_FILE", str(of_submission))
    async with fake_driver(master, tmp_path, setup=FAST) as driver:
        driver.send(target(1))
        await until_registered(driver)
        master.break_session()
        await sessions(master, 2)
        process = psutil.Process(driver.process.pid)
        assert "k" * 64 not in str((process.cmdline(), process.environ())), "others see these"
        driver.finish()
        assert await driver.end() == 0
    assert [x.ownership_key for x in master.registrations] == ["k" * 64] * 2
    assert [x.ownership_key for x in master.attaches] == ["k" * 64] * 2
    assert {x.submission_ownership_key for x in master.registrations} == {"s" * 64}


@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED", "KILLED"])
async def test_the_master_hears_how_the_driver_says_that_it_ended(
    master: FakeMaster, tmp_path: Path, end: str
) -> None:
    async with fake_driver(master, tmp_path) as driver:
        driver.send(target(1))
        await until_registered(driver)
        driver.finish(end)
        assert await driver.end() == 0
    assert master.finished is not None
    assert master.finished.state == common_pb2.ApplicationState.Value(f"APPLICATION_STATE_{end}")


@pytest.mark.parametrize("code", [0, 3, None])
async def test_in_cluster_mode_the_exit_status_states_how_it_ended(
    master: FakeMaster, tmp_path: Path, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_file = tmp_path / "exit-code"
    monkeypatch.setenv("HRM_DRIVER_EXIT_FILE", str(exit_file))
    setup = "appmaster.EXIT_FILE_TIMEOUT_S = 1.0"
    async with fake_driver(master, tmp_path, setup=setup) as driver:
        driver.send(target(1))
        await until_registered(driver)
        assert driver.process.stdin is not None
        driver.process.stdin.close()
        if code is not None:
            exit_file.write_text(str(code))
        await until(lambda: master.finished is not None, 10, "the master hears of it")
        assert await driver.end(10) == 0
    assert master.finished is not None
    succeeded = master.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED
    assert succeeded == (code == 0)
    expected = {0: "", 3: "its driver exited with code 3", None: "the driver is gone"}
    assert expected[code] in master.finished.message


async def test_a_master_that_is_not_the_authority_s_is_reported_to_the_driver_at_once(
    tmp_path: Path,
) -> None:
    certificates.make(tmp_path / "theirs", [])
    authority = {"tls_ca": str(tmp_path / "theirs" / "ca.pem")}
    async with (
        fake_master(tmp_path) as master,
        fake_driver(master, tmp_path, **authority) as driver,
    ):
        driver.send(target(1))
        await until(lambda: driver.calls_of("failed"), 20, "failed")
        ((_, message),) = driver.calls_of("failed")
        assert f"{master.address} speaks no TLS" in message
        assert master.registrations == []


async def test_a_fault_of_its_own_ends_the_process_so_that_it_is_started_again(
    master: FakeMaster, tmp_path: Path
) -> None:
    setup = "appmaster.app_wire.attach = None"
    async with fake_driver(master, tmp_path, setup=setup) as driver:
        driver.send(target(1))
        assert await driver.end(10) == 1
    assert "TypeError" in (tmp_path / "appmaster.log").read_text()
