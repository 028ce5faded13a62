"""Which errors of a session end each kind of client, at its start and later."""

from __future__ import annotations

import pytest

from hrm import errors
from hrm.core.vocabulary.retries import AGENT, APP_MASTER, SCHEDULER, RetryRule

PASSING: list[type[errors.HrmError]] = [
    errors.Unavailable,
    errors.DiskFull,
    errors.StaleEpoch,
    errors.LimitReached,
    errors.HrmError,
]
SETTINGS: list[type[errors.HrmError]] = [errors.PermissionDenied, errors.InvalidRequest]
RULES = {"agent": AGENT, "AppMaster": APP_MASTER, "scheduler": SCHEDULER}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_by_itself_ends_no_client_that_a_master_knows(
    rule: RetryRule, kind: type[errors.HrmError]
) -> None:
    assert rule.allows(kind("it will be back"), known=True)


@pytest.mark.parametrize("rule", [AGENT, SCHEDULER], ids=["agent", "scheduler"])
@pytest.mark.parametrize("kind", PASSING)
def test_daemons_wait_for_their_first_master(rule: RetryRule, kind: type[errors.HrmError]) -> None:
    assert rule.allows(kind("it will be back"), known=False)


@pytest.mark.parametrize("kind", [*PASSING, *SETTINGS, errors.NotFound])
def test_a_driver_that_no_master_has_accepted_ends_with_the_reason(
    kind: type[errors.HrmError],
) -> None:
    assert not APP_MASTER.allows(kind("not now"), known=False)


@pytest.mark.parametrize("rule", [AGENT, SCHEDULER], ids=["agent", "scheduler"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_wrong_setting_ends_a_daemon_at_its_start_if_a_master_says_so(
    rule: RetryRule, kind: type[errors.HrmError]
) -> None:
    error = kind("no")
    assert not rule.allows(error, known=False, certain=True)
    assert rule.allows(error, known=False, certain=False), "it may not have been a master"
    assert rule.allows(error, known=True, certain=True), "the next master may have a new token"


def test_a_name_that_belongs_to_another_ends_an_agent_at_any_time() -> None:
    error = errors.AlreadyExists("another agent has this name")
    assert not AGENT.allows(error, known=True)
    assert not AGENT.allows(error, known=False, certain=False)


def test_a_scheduler_whose_last_session_still_counts_waits_for_its_end() -> None:
    error = errors.AlreadyExists("another scheduler has this name")
    assert not SCHEDULER.allows(error, known=False, certain=False)
    assert SCHEDULER.allows(error, known=True)


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        (errors.NotFound, False),
        (errors.InvalidRequest, False),
        (errors.Unsatisfiable, False),
        (errors.PermissionDenied, True),
    ],
)
def test_what_ends_a_running_application(kind: type[errors.HrmError], again: bool) -> None:
    assert APP_MASTER.allows(kind("no"), known=True) is again
