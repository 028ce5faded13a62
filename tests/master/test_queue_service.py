"""Queues over gRPC: made, changed, removed and shown by a real master; and after its restart."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from hrm import rpc
from hrm.config import QueueConfig
from hrm.core.tenancy.affinities import kind_of
from hrm.core.tenancy.queue_rules import rule_from
from hrm.core.tenancy.queue_spec import spec_from
from hrm.errors import InvalidConfig
from hrm.master import user_groups
from hrm.master.user_groups import UserGroups, groups_of
from hrm.v1 import admin_pb2, common_pb2, queues_pb2_grpc, submission_pb2
from hrm.v1 import queues_pb2 as pb
from tests.master.submitting import stub, submission
from tests.master.test_services import TIMEOUT_S, Running, node, refused, registration, running

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


async def change(master: Running, **fields: Any) -> pb.ChangeQueuesResponse:
    request = pb.ChangeQueuesRequest(**fields)
    response: pb.ChangeQueuesResponse
    response = await master.queues.ChangeQueues(request, timeout=TIMEOUT_S)
    return response


async def create(master: Running, name: str, part: str = "") -> None:
    quota = pb.QueueQuota(cores=part, memory=part, gpu_memory=part)
    stated = pb.QueueStated(name=name, guaranteed=quota if part else None)
    await change(master, queues=[stated], create=True)


async def listed(master: Running, **fields: Any) -> dict[str, pb.Queue]:
    request = pb.ListQueuesRequest(**fields)
    response = await master.queues.ListQueues(request, timeout=TIMEOUT_S)
    return {queue.name: queue for queue in response.queues}


async def register(master: Running, **fields: Any) -> str:
    response = await master.applications.Register(registration(**fields), timeout=TIMEOUT_S)
    return str(response.application_id)


async def queue_of(master: Running, application_id: str) -> str:
    request = admin_pb2.GetApplicationRequest(application_id=application_id)
    found = await master.admin.GetApplication(request, timeout=TIMEOUT_S)
    return str(found.queue)


async def test_queues_are_made_and_are_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        assert set(await listed(master)) == {"root", "root.default"}
        await create(master, "root.etl.nightly", "40%")
        limited = pb.QueueStated(name="nightly", max_running=3)
        await change(master, queues=[limited])
        await create(master, "root.gone")
        await change(master, removed=["root.gone"])
    async with running(tmp_path) as master:
        found = await listed(master)
        assert list(found) == ["root", "root.default", "root.etl", "root.etl.nightly"]
        assert found["root.etl.nightly"].stated.max_running == 3
        assert found["root.etl.nightly"].stated.guaranteed.cores == "40%"
        assert found["root.etl.nightly"].is_leaf
        assert not found["root.etl"].is_leaf


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        stated = pb.QueueStated(name="root.a")
        await change(master, queues=[stated], create=True, dry_run=True)
        assert "root.a" not in await listed(master)


async def test_what_cannot_be_is_refused_and_leaves_all_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        await create(master, "root.etl", "60%")
        with refused(INVALID, "guaranteed 110% of its cores together, more than all of it"):
            await create(master, "root.ml", "50%")
        with refused(grpc.StatusCode.ALREADY_EXISTS, "root.etl is there; hrm queue set changes it"):
            await create(master, "root.etl")
        with refused(NOT_FOUND, "no queue root.elt; did you mean root.etl"):
            await change(master, removed=["root.elt"])
        with refused(INVALID, "root.default cannot be removed"):
            await change(master, removed=["root.default"])
        with refused(INVALID, "the queue 'root.A' has the part 'A'"):
            await create(master, "root.A")
        assert set(await listed(master)) == {"root", "root.default", "root.etl"}


async def test_a_queue_with_applications_is_not_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        await create(master, "root.etl")
        name = await register(master, queue="etl", submission_key="k1")
        assert await queue_of(master, name) == "root.etl"
        with refused(INVALID, f"root.etl has 1 live applications, as {name}; wait for their end"):
            await change(master, removed=["etl"])
        with refused(INVALID, "queues below it can be made once they have ended"):
            await create(master, "root.etl.more")
        with refused(NOT_FOUND, "there is no queue 'nowhere'; there are"):
            await register(master, queue="nowhere", submission_key="k2")


async def test_who_may_not_submit_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        closed = pb.QueueStated(name="root.ops", submitters=pb.QueueNames(names=["eve"]))
        await change(master, queues=[closed], create=True)
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"bo may not submit to root\.ops; name another"
        ):
            await register(master, queue="ops", user="bo")
        assert await queue_of(master, await register(master, queue="ops", user="eve")) == "root.ops"


async def test_applications_are_listed_by_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        await create(master, "root.etl.a")
        await create(master, "root.etl.b")
        names = [
            await register(master, queue=queue, submission_key=queue or "none")
            for queue in ("root.etl.a", "b", "")
        ]

        async def of(queue: str) -> list[str]:
            request = admin_pb2.ListApplicationsRequest(queue=queue)
            response = await master.admin.ListApplications(request, timeout=TIMEOUT_S)
            return [app.application_id for app in response.applications]

        assert await of("etl") == names[:2]
        assert await of("root.etl.b") == names[1:2]
        assert await of("root") == names
        with refused(NOT_FOUND, "there is no queue root.etx; did you mean root.etl"):
            await of("root.etx")


def stated(**queues: dict[str, Any]) -> QueueConfig:
    return QueueConfig(tuple(spec_from(f"root.{x}", fields) for x, fields in queues.items()))


async def test_the_file_counts_again_at_the_next_start(tmp_path: Path) -> None:
    in_file = stated(etl={"guaranteed": "30%"})
    async with running(tmp_path, queues=in_file) as master:
        await create(master, "root.ml", "20%")
        quota = pb.QueueQuota(cores="10%", memory="10%", gpu_memory="10%")
        response = await change(master, queues=[pb.QueueStated(name="etl", guaranteed=quota)])
        assert list(response.in_file) == ["root.etl"]
        found = await listed(master)
        assert (found["root.etl"].in_file, found["root.ml"].in_file) == (True, False)
        assert found["root.etl"].stated.guaranteed.cores == "10%"
    async with running(tmp_path, queues=in_file) as master:
        found = await listed(master)
        assert found["root.etl"].stated.guaranteed.cores == "30%"
        assert found["root.ml"].stated.guaranteed.cores == "20%"
    async with running(tmp_path) as master:
        assert "root.etl" in await listed(master), "out of the file, it stays until it is removed"
    with pytest.raises(InvalidConfig, match=r"guaranteed 110% .* stand in the master's store"):
        async with running(tmp_path, queues=stated(other={"guaranteed": "60%"})):
            pass


async def test_what_the_file_replaces_is_logged_by_queue(tmp_path: Path) -> None:
    in_file = stated(etl={"guaranteed": "30%"}, ml={"weight": 2})
    async with running(tmp_path, queues=in_file) as master:
        await create(master, "root.mine", "20%")
        await change(master, queues=[pb.QueueStated(name="etl", max_running=3)])
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, queues=in_file) as master:
            found = await listed(master)
            assert not found["root.etl"].stated.HasField("max_running"), "all of it is replaced"
    replaced = [x for x in logs if x["event"] == "hrm.toml replaces what was stored of a queue"]
    assert [(x["queue"], x["was"], x["now"]) for x in replaced] == [
        ("root.etl", '{"guaranteed": "30%", "max_running": 3}', '{"guaranteed": "30%"}')
    ]
    async with running(tmp_path) as master:
        found = await listed(master)
        assert found["root.ml"].stated.weight == 2.0, "it is no longer in the file"


async def test_rules_place_by_the_groups_of_the_masters_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_groups, "groups_of", lambda user: ("staff", "etl") * (user == "ana"))
    rules = (rule_from({"group": "*", "queue": "root.{group}"}),)
    config = QueueConfig(stated(etl={}).specs, rules)
    async with running(tmp_path, queues=config) as master:
        ana = await register(master, user="ana", submission_key="1")
        bo = await register(master, user="bo", submission_key="2")
        assert await queue_of(master, ana) == "root.etl"
        assert await queue_of(master, bo) == "root.default"


async def submitted(master: Running, key: str, user: str = "u", **conf: str) -> str:
    settings = [
        submission_pb2.SparkSetting(key=f"spark.hrm.{name}", value=value)
        for name, value in conf.items()
    ]
    sent = await stub(master).Submit(submission(key, user=user, conf=settings), timeout=TIMEOUT_S)
    return str(sent.submission_id)


async def test_a_submitted_driver_goes_where_its_application_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_groups, "groups_of", lambda user: ("ops",) * (user == "ana"))
    rules = tuple(
        rule_from(rule)
        for rule in ({"tag": "nightly", "queue": "etl"}, {"group": "ops", "queue": "ops"})
    )
    config = QueueConfig(stated(etl={}, ops={}, ml={}).specs, rules)
    async with running(tmp_path, queues=config) as master:
        drivers = {
            "root.ml": await submitted(master, "k1", queue="ml", tags="nightly", priority="3"),
            "root.etl": await submitted(master, "k2", user="ana", tags="x, nightly"),
            "root.ops": await submitted(master, "k3", user="ana"),
            "root.default": await submitted(master, "k4"),
        }
        for queue, driver in drivers.items():
            assert await queue_of(master, driver) == queue
        with refused(NOT_FOUND, "there is no queue 'nowhere'"):
            await submitted(master, "k5", queue="nowhere")
        with refused(INVALID, "spark.hrm.priority is 'high'; give a whole number"):
            await submitted(master, "k6", priority="high")
    async with running(tmp_path) as master:
        for queue, driver in drivers.items():
            assert await queue_of(master, driver) == queue, "as the store has it"


async def test_lists_come_in_pages_and_in_the_order_of_the_tree(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        for name in ("root.b.x", "root.b-c", "root.a"):
            await create(master, name)
        names: list[str] = []
        token = ""
        while True:
            request = pb.ListQueuesRequest(page_size=2, page_token=token)
            response = await master.queues.ListQueues(request, timeout=TIMEOUT_S)
            names += [queue.name for queue in response.queues]
            token = response.next_page_token
            if not token:
                break
        assert names == ["root", "root.a", "root.b", "root.b.x", "root.b-c", "root.default"]
        assert list(await listed(master, name="b")) == ["root.b", "root.b.x"]
        with refused(INVALID, "waiting_limit is -1"):
            await listed(master, waiting_limit=-1)
        with refused(INVALID, "page_token is no token"):
            await listed(master, page_token="x")


async def test_how_queues_were_served_is_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        await create(master, "root.a")
        response = await master.queues.ListQueues(pb.ListQueuesRequest(), timeout=TIMEOUT_S)
        assert response.fairness == pb.QueueFairness(half_life_s=600)
        assert not any(queue.HasField("observed") for queue in response.queues)


async def test_what_would_become_of_executors_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        resources = common_pb2.Resources(vcores=2, memory_mib=1024)

        async def what_if(**fields: Any) -> pb.WhatIfResponse:
            request = pb.WhatIfRequest(
                **{"queue": "default", "executors": 3, "resources": resources, **fields}
            )
            response: pb.WhatIfResponse
            response = await master.queues.WhatIf(request, timeout=TIMEOUT_S)
            return response

        stream = master.nodes.Connect()
        await stream.write(node())
        await stream.read()
        found = await what_if()
        assert (found.at_once, found.by_preemption, found.later) == (2, 0, 1)
        assert found.why
        with refused(NOT_FOUND, "there is no queue 'nowhere'"):
            await what_if(queue="nowhere")
        with refused(INVALID, "executors is 0; it must be from 1 to 10000"):
            await what_if(executors=0)
        with refused(INVALID, "resources.vcores"):
            await what_if(resources=common_pb2.Resources(memory_mib=1))
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "64"):
            await what_if(resources=common_pb2.Resources(vcores=64, memory_mib=1))
        stream.cancel()


async def test_what_is_learned_is_listed_by_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        for queue in ("root.etl.a", "root.ml"):
            await create(master, queue)
        learned = master.interpreter.core.master_state.affinities
        other = kind_of("root.ml", "train")
        for queue, name, platform, run_s in [
            ("root.etl.a", "night 1", "old", 4.0), ("root.etl.a", "night 2", "new", 2.0),
            ("root.ml", "train", "old", 5.0), ("root.ml", "train", "new", 5.0),
        ]:  # fmt: skip
            for _ in range(3):
                learned.observe(queue, name, "map", platform, 1, run_s, 0.5, {other: 0.5})

        async def found(**fields: Any) -> pb.ListAffinitiesResponse:
            request = pb.ListAffinitiesRequest(**fields)
            response: pb.ListAffinitiesResponse
            response = await master.queues.ListAffinities(request, timeout=TIMEOUT_S)
            return response

        whole = await found()
        assert [(x.queue, x.name) for x in whole.kinds] == [
            ("root.etl.a", "night #"), ("root.ml", "train")
        ]  # fmt: skip
        new, old = whole.kinds[0].platforms
        assert (new.platform, old.platform) == ("new", "old")
        assert old.relative == pytest.approx(2.0)
        assert (new.egocentric, old.egocentric) == pytest.approx((2.0, 0.5))
        assert new.reciprocal > 1 > old.reciprocal
        assert old.observations == pytest.approx(3)
        (company,) = whole.kinds[0].co_runners
        assert (company.queue, company.name) == ("root.ml", "train")
        assert company.least < company.factor < company.most
        assert [x.name for x in (await found(queue="etl")).kinds] == ["night #"]
        first = await found(page_size=1)
        assert first.next_page_token
        second = await found(page_size=1, page_token=first.next_page_token)
        assert [x.name for x in second.kinds] == ["train"]
        # Among all kinds, whichever are on the page.
        assert second.kinds[0] == whole.kinds[1]
        with refused(NOT_FOUND, "there is no queue nowhere"):
            await found(queue="nowhere")
        with refused(INVALID, "co_runners_limit is -1"):
            await found(co_runners_limit=-1)


async def test_a_change_of_a_queue_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        with refused(NOT_FOUND, "that there are; hrm queue create makes one"):
            await change(master, queues=[pb.QueueStated(name="root.etl", weight=2)])


async def test_the_token_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as master, rpc.channel(master.address, "wrong" * 5) as channel:
        stub: Any = queues_pb2_grpc.QueueServiceStub(channel)
        with refused(grpc.StatusCode.UNAUTHENTICATED, "HRM_TOKEN_FILE"):
            await stub.ListQueues(pb.ListQueuesRequest(), timeout=TIMEOUT_S)


def test_groups_are_those_of_the_machine() -> None:
    root = groups_of("root")
    assert root[0] == grp.getgrgid(0).gr_name
    assert len(root) == len(set(os.getgrouplist("root", 0)))
    assert groups_of("no such user of this machine") == groups_of("a\0b") == ()


async def test_groups_are_looked_up_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(user: str) -> tuple[str, ...]:
        asked.append(user)
        return ("g",)

    monkeypatch.setattr(user_groups, "groups_of", look_up)
    groups = UserGroups(is_asked=True)
    assert [await groups.of("ana"), await groups.of("ana")] == [("g",), ("g",)]
    assert await UserGroups(is_asked=False).of("bo") == ()
    assert asked == ["ana"]
