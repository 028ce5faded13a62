"""When a user hears why nothing of an application runs, and how often."""

from __future__ import annotations

from hrm.spark.wait_reason import FIRST_S, PAUSE_S, WaitReporter

FULL = "1 executor waits for a place (1 vcores) since {} s: no resource unit has that much free now"


def test_the_master_is_asked_once_nothing_has_run_for_a_while() -> None:
    reporter = WaitReporter()
    assert not reporter.asks(100.0, waits=True)
    assert not reporter.asks(99.9 + FIRST_S, waits=True)
    assert reporter.asks(100.0 + FIRST_S, waits=True)
    assert not reporter.asks(101.0 + FIRST_S, waits=True)
    assert reporter.asks(100.0 + FIRST_S + PAUSE_S, waits=True)


def test_an_executor_that_runs_ends_the_wait_and_the_pause_holds_all_the_same() -> None:
    reporter = WaitReporter()
    reporter.asks(0.0, waits=True)
    assert not reporter.asks(4.0, waits=False)
    assert not reporter.asks(6.0, waits=True), "it waits again"
    assert reporter.asks(6.0 + FIRST_S, waits=True)
    assert not reporter.asks(12.0, waits=False)
    reporter.asks(13.0, waits=True)
    assert not reporter.asks(30.0, waits=True)
    assert reporter.asks(6.0 + FIRST_S + PAUSE_S, waits=True)


def test_a_reason_is_printed_again_only_where_it_has_changed() -> None:
    reporter = WaitReporter()
    line = reporter.line("app-1", FULL.format("5.1"))
    assert line == f"HRM: app-1 waits: {FULL.format('5.1')}; see hrm app why app-1"
    assert reporter.line("app-1", FULL.format("35.2")) == ""
    queued = "executor 1 waits at node-1/0 with 0 before it; it requests 1 vcores"
    line = reporter.line("app-1", "0 of 1 containers run", ["it is of class batch", queued])
    assert line == f"HRM: app-1 waits: 0 of 1 containers run: {queued}; see hrm app why app-1"
    assert reporter.line("app-1", "no node is alive") != ""
    assert reporter.line("app-1", FULL.format("95.2")) != ""
