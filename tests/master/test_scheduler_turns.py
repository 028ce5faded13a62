"""The live interpreter: schedulers in the master take turns, each from its look to its commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.master.interpreter import Interpreter
from hrm.master.store import Store
from hrm.policies.min_wait import MinWait

SCHEDULERS = 3
TASKS = 4
LIMIT_S = 10.0
NODE = NodeName("n1")


async def _attached(master: Interpreter, key: str) -> ApplicationId:
    admitted = await master.call(
        lambda call_id: e.ApplicationRegistered(
            now=master.now(), call_id=call_id, application_id=ApplicationId(""),
            submission_key=key, name=key, user="ada", declared_class=WorkloadClass.BATCH,
        )
    )  # fmt: skip
    assert isinstance(admitted, c.ApplicationAdmitted)
    app = admitted.application_id
    await master.call(
        lambda call_id: e.ApplicationAttached(
            now=master.now(), call_id=call_id, application_id=app, session=1, epoch=admitted.epoch
        )
    )
    return app


async def _rounds(path: Path) -> tuple[list[str], int]:
    """Which schedulers looked and committed when all were woken at once, in order; and how many
    containers were granted."""
    store = Store(path)
    core = MasterCore(store.next_epoch(), [MinWait(index) for index in range(SCHEDULERS)])
    master = Interpreter(core, store)
    unit = ResourceUnit(
        unit_id=ResourceUnitId(f"{NODE}/cpu"), capacity=Resources(16, 65_536), run_limit=16
    )
    seen: list[str] = []
    handle = core.handle

    def watched(event: e.MasterEvent) -> list[c.MasterCommand]:
        if isinstance(event, e.SchedulerWoken) and core.placement.schedulers[event.scheduler].jobs:
            seen.append(f"{event.scheduler} looks")
        elif isinstance(event, e.ClaimsProposed):
            seen.append(f"{event.proposal.scheduler} commits")
        return handle(event)

    try:
        await master.call(
            lambda call_id: e.NodeRegistered(
                now=master.now(), call_id=call_id, node=NODE, identity=NODE, incarnation="1",
                sequence=1, host="127.0.0.1", endpoint="127.0.0.1:1", units=(unit,),
            )
        )  # fmt: skip
        apps = [await _attached(master, f"key-{number}") for number in range(SCHEDULERS)]
        core.handle = watched  # type: ignore[method-assign]
        request = Resources(1, 1024)
        requests = tuple(
            ContainerRequest(executor_id=str(x), resource_profile_id=0, resources=request)
            for x in range(TASKS)
        )
        for app in apps:
            now = master.now()
            event = e.ContainersRequested(now=now, application_id=app, requests=requests)
            master.submit(event)
        async with asyncio.timeout(LIMIT_S):
            schedulers = core.placement.schedulers.values()
            while any(each.jobs for each in schedulers):  # noqa: ASYNC110 - the core notifies nothing
                await asyncio.sleep(0)
        assert not master.stopped.done()
        return seen, core.negotiator.committed
    finally:
        store.close()


def test_no_scheduler_checks_before_the_one_before_it_has_committed(tmp_path: Path) -> None:
    seen, granted = asyncio.run(_rounds(tmp_path / "hrm.sqlite"))

    names = [f"scheduler-{number}" for number in range(1, SCHEDULERS + 1)]
    assert seen == [f"{name} {does}" for name in names for does in ("looks", "commits")]
    assert granted == SCHEDULERS * TASKS
