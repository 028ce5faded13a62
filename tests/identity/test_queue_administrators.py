"""Who may change a queue, submit to it, and end what is in it: over gRPC, with tokens of users."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.identity.roles import AccessRole
from hrm.v1 import admin_pb2, common_pb2, events_pb2, events_pb2_grpc, identity_pb2, queues_pb2
from tests.identity.calls import identities
from tests.identity.test_own_and_others import DENIED, People, kill, registered
from tests.master.test_services import TIMEOUT_S, Running, refused, running


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with running(tmp_path) as master, AsyncExitStack() as stack:
        yield People(master, stack)


async def test_administrators_of_a_queue_rule_in_it_and_below_it_alone(people: People) -> None:
    operator = await people.one("olga", AccessRole.OPERATOR)
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)

    async def change(who: Running, *names: str, create: bool = True, **fields: Any) -> None:
        stated = [queues_pb2.QueueStated(name=name, **fields) for name in names]
        ask = queues_pb2.ChangeQueuesRequest(queues=stated, create=create)
        await who.queues.ChangeQueues(ask, timeout=TIMEOUT_S)

    await change(operator, "root.team", administrators={"names": ["bob"]})
    await change(operator, "root.other")
    await change(bob, "root.team.job")
    for name in ("root.team", "root.other", "root.other.job"):
        with refused(DENIED, "user bob administers no queue above"):
            await change(bob, name, create=name == "root.other.job")
    with refused(DENIED, "user ada administers no queue above root.team.job"):
        await change(ada, "root.team.job", create=False)

    inside = await registered(ada, submission_key="in", queue="root.team.job")
    outside = await registered(ada, submission_key="out", queue="root.other")
    await bob.admin.KillApplication(kill(inside), timeout=TIMEOUT_S)
    with refused(DENIED, "belongs to ada"):
        await bob.admin.KillApplication(kill(outside), timeout=TIMEOUT_S)


async def test_owners_and_administrators_of_a_queue_change_priorities(people: People) -> None:
    operator = await people.one("olga", AccessRole.OPERATOR)
    ada = await people.one("ada", AccessRole.SUBMITTER)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    eve = await people.one("eve", AccessRole.SUBMITTER)
    team = queues_pb2.QueueStated(
        name="root.team", order="classes", administrators={"names": ["bob"]}
    )
    ask = queues_pb2.ChangeQueuesRequest(queues=[team], create=True)
    await operator.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
    app = await registered(ada, submission_key="in", queue="root.team", priority=3)

    async def change(who: Running, steps: int) -> Any:
        request = admin_pb2.ChangePriorityRequest(application_id=app, steps=steps)
        return await who.admin.ChangePriority(request, timeout=TIMEOUT_S)

    raised = await change(ada, 1)
    assert raised.priority_class == common_pb2.PRIORITY_CLASS_URGENT
    assert raised.priority_tenths == 40
    with refused(DENIED, "belongs to ada"):
        await change(eve, 1)
    assert (await change(bob, -1)).priority_tenths == 30
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "steps is 0"):
        await change(ada, 0)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "priority_steps"):
        await change(operator, 5)

    request = events_pb2.WatchEventsRequest(application_id=app)
    events = events_pb2_grpc.EventServiceStub(people.master.channel)
    found = [
        x async for page in events.WatchEvents(request, timeout=TIMEOUT_S) for x in page.events
    ]
    assert [(x.to_state, x.actor) for x in found if "priority" in x.to_state] == [
        ("priority changed", "user ada"),
        ("priority changed", "user bob"),
    ]
    assert "3.0 (normal) becomes 4.0 (urgent)" in found[-2].reason

    listed = await eve.admin.ListApplications(admin_pb2.ListApplicationsRequest())
    assert [x.priority_tenths for x in listed.applications] == [30], "all see the order"
    entries = (await identities(people.master).ReadAudit(identity_pb2.ReadAuditRequest())).entries
    changes = [x for x in entries if x.method == "AdminService/ChangePriority"]
    assert [x.what for x in changes][:2] == [f"{app}, steps=1", f"{app}, steps=1"]


async def test_the_audit_log_has_what_a_change_states_of_queues(people: People) -> None:
    quota = queues_pb2.QueueQuota(cores="25%", memory="64g")
    etl = queues_pb2.QueueStated(
        name="root.etl", guaranteed=quota, max_running=0, weight=2.5, preemptible=False,
        submitters={"names": ["ada", "bob"]}, administrators={"names": []},
    )  # fmt: skip
    team = queues_pb2.QueueStated(name="root.team")
    for ask in (
        queues_pb2.ChangeQueuesRequest(queues=[etl, team], create=True),
        queues_pb2.ChangeQueuesRequest(queues=[etl], unset=["order", "maximum"]),
        queues_pb2.ChangeQueuesRequest(removed=["root.team"]),
    ):
        await people.master.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
    entries = (await identities(people.master).ReadAudit(identity_pb2.ReadAuditRequest())).entries
    stated = (
        "root.etl (guaranteed=(cores=25% memory=64g) weight=2.5 max_running=0 preemptible=false "
        "submitters=ada/bob administrators=())"
    )
    assert [x.what for x in entries if x.method == "QueueService/ChangeQueues"] == [
        f"{stated}, root.team",
        f"{stated}, unset=order, unset=maximum",
        "removed=root.team",
    ]


async def test_who_may_not_submit_to_a_queue_is_denied(people: People) -> None:
    stated = [queues_pb2.QueueStated(name="root.team", submitters={"names": ["ada"]})]
    ask = queues_pb2.ChangeQueuesRequest(queues=stated, create=True)
    await people.master.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
    bob = await people.one("bob", AccessRole.SUBMITTER)
    ada = await people.one("ada", AccessRole.SUBMITTER)
    with refused(DENIED, "bob may not submit to root.team"):
        await registered(bob, queue="root.team")
    assert await registered(ada, queue="root.team")


async def test_how_long_tasks_take_is_for_operators_and_who_administers_the_queue(
    people: People,
) -> None:
    """Others see how platforms compare, as they see names."""
    operator = await people.one("olga", AccessRole.OPERATOR)
    stated = [
        queues_pb2.QueueStated(name="root.team", administrators={"names": ["bob"]}),
        queues_pb2.QueueStated(name="root.other"),
    ]
    ask = queues_pb2.ChangeQueuesRequest(queues=stated, create=True)
    await operator.queues.ChangeQueues(ask, timeout=TIMEOUT_S)
    learned = people.master.interpreter.core.master_state.affinities
    for queue in ("root.other", "root.team"):
        for platform, run_s in (("new", 1.0), ("old", 2.0)):
            learned.observe(queue, "etl", "map", platform, 1, run_s, 0.0, {})

    async def seen(who: Running) -> dict[str, tuple[bool, float]]:
        request = queues_pb2.ListAffinitiesRequest()
        kinds = (await who.queues.ListAffinities(request, timeout=TIMEOUT_S)).kinds
        for kind in kinds:
            assert kind.platforms[1].relative == pytest.approx(2.0)
            assert bool(kind.platforms[1].tasks_per_hour) is not kind.hidden
        return {kind.queue: (kind.hidden, round(kind.platforms[1].run_s, 6)) for kind in kinds}

    shown, hidden = (False, 2.0), (True, 0.0)
    assert await seen(operator) == {"root.team": shown, "root.other": shown}
    bob = await people.one("bob", AccessRole.SUBMITTER)
    assert await seen(bob) == {"root.team": shown, "root.other": hidden}
    viewer = await people.one("vera", AccessRole.VIEWER)
    assert await seen(viewer) == {"root.team": hidden, "root.other": hidden}
