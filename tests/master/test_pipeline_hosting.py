"""What the master's core replies to pipelines, where it is busy or its disk is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.hosted import CallMaster
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import Unavailable
from hrm.pipelines.master import hosting
from hrm.pipelines.master.hosting import WorkloadHost

APP = ApplicationId("pipelines-20260101000000-1-0001")
LIMIT_S = 10.0
ADMITTED = c.ApplicationAdmitted(application_id=APP, epoch=2, containers=(), last_executor_number=0)


class BusyMaster:
    """Refuses the first calls."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls = 0
        self.application_outboxes: dict[str, Any] = {}

    async def call(self, event_of: Callable[[int], Any]) -> c.CallResult:
        event_of(0)
        self.calls += 1
        if self.calls <= self.refusals:
            raise Unavailable("the disk is full")
        return ADMITTED


async def reply_to(master: BusyMaster, event: Any) -> c.Reply | c.Refuse:
    """What the core of pipelines gets."""
    replied: asyncio.Future[c.Reply | c.Refuse] = asyncio.get_running_loop().create_future()

    def received(_: ApplicationId, reply: c.Reply | c.Refuse, __: float) -> list[Any]:
        replied.set_result(reply)
        return []

    workloads = SimpleNamespace(reply_received=received)
    host = WorkloadHost(master, workloads, lambda *_: "token", lambda _: None)  # type: ignore[arg-type]
    host.carry_out(lambda: [CallMaster(APP, event)])
    return await asyncio.wait_for(replied, LIMIT_S)


def registered(application_id: str) -> e.ApplicationRegistered:
    """Of a workload; with an id: an earlier master has admitted it."""
    return e.ApplicationRegistered(
        now=0.0, call_id=0, application_id=ApplicationId(application_id), submission_key="key",
        name="flow", user="somebody",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_ASK_AGAIN_S", 0.0)


async def test_what_an_earlier_master_has_accepted_is_asked_for_again() -> None:
    master = BusyMaster(3)
    reply = await reply_to(master, registered(APP))
    assert isinstance(reply, c.Reply) and reply.result is ADMITTED
    assert master.calls == 4


async def test_not_without_end() -> None:
    master = BusyMaster(10**6)
    reply = await reply_to(master, registered(APP))
    assert isinstance(reply, c.Refuse)
    assert master.calls == hosting._ASKED_MAX


async def test_a_new_one_is_refused_at_once() -> None:
    master = BusyMaster(1)
    reply = await reply_to(master, registered(""))
    assert isinstance(reply, c.Refuse) and isinstance(reply.error, Unavailable)
    assert master.calls == 1
