"""Reports of nodes wait for schedulers, but not for long."""

from __future__ import annotations

import asyncio

import pytest

from hrm.master.report_throttle import REPORTS_AT_ONCE, ReportThrottle

TIMEOUT_S = 10.0


async def test_a_report_waits_for_nothing_where_no_scheduler_has_work() -> None:
    turn = ReportThrottle().of_report()

    with pytest.raises(StopIteration):
        turn.send(None)


async def test_a_report_waits_while_a_scheduler_has_work_and_no_longer() -> None:
    turns = ReportThrottle()
    turns.step_due()
    turns.step_due()
    order: list[str] = []

    async def report(name: str) -> None:
        await turns.of_report()
        order.append(name)

    async def work() -> None:
        order.append("step")
        turns.step_done()

    tasks = (report("first"), report("second"), work(), work())
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)

    assert order == ["step", "step", "first", "second"]


async def test_reports_are_let_in_in_time_where_schedulers_always_have_work() -> None:
    turns = ReportThrottle()
    turns.step_due()
    reports = [turns.of_report() for _ in range(3 * REPORTS_AT_ONCE)]

    await asyncio.wait_for(asyncio.gather(*reports), TIMEOUT_S)


async def test_a_node_that_goes_away_while_it_waits_delays_nothing() -> None:
    turns = ReportThrottle()
    turns.step_due()
    gone, here = (asyncio.create_task(turns.of_report()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    turns.step_done()

    await asyncio.wait_for(here, TIMEOUT_S)
    assert gone.cancelled()
