"""Invalid requests over gRPC: refused with the field and the reason, and nothing changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.v1 import (
    admin_pb2,
    application_pb2,
    common_pb2,
    node_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
)
from tests.master.test_services import (
    TIMEOUT_S,
    Running,
    attached,
    node,
    refused,
    registration,
    running,
)

NAN = math.nan
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def stub(master: Running) -> Any:
    return scheduler_pb2_grpc.SharedStateServiceStub(master.channel)


async def picture(master: Running) -> tuple[Any, ...]:
    """The cluster as an administrator sees it, without clocks."""
    cluster = await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
    listed = await master.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=TIMEOUT_S)
    free = [(u.unit.resource_unit_id, str(u.free)) for n in listed.nodes for u in n.resource_units]
    counts = (cluster.containers_pending, cluster.containers_waiting, cluster.containers_running)
    return (counts, str(cluster.free), cluster.lease.holder, cluster.lease.token, free)


async def joined(master: Running) -> Any:
    """A node's stream."""
    stream = master.nodes.Connect(timeout=TIMEOUT_S)
    await stream.write(node())
    await stream.read()
    return stream


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"expected_duration_s": NAN}, "expected_duration_s is nan"),
        ({"expected_duration_s": math.inf}, "expected_duration_s is inf"),
        ({"expected_duration_s": -1.0}, "expected_duration_s is -1.0"),
        ({"heap_mib": -1}, "heap_mib is -1"),
        ({"heap_mib": 513}, "more than the container's memory of 512 MiB"),
        ({"gpus": -1}, "gpus is -1"),
        ({"resource_profile_id": -1}, "resource_profile_id is -1"),
        ({"resources": {"vcores": -4, "memory_mib": 512}}, "resources.vcores is -4"),
        ({"resources": {"vcores": 1, "memory_mib": -512}}, "resources.memory_mib is -512"),
        ({"resources": {"vcores": 1, "memory_mib": 0}}, "resources.memory_mib is 0"),
        (
            {"resources": {"vcores": 1, "memory_mib": 1, "gpu_memory_mib": -1}},
            "gpu_memory_mib is -1",
        ),
    ],
)
async def test_containers_of_no_quantity(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    async with running(tmp_path) as master:
        stream = await joined(master)
        session = await attached(master)
        before = await picture(master)
        values = {"resources": {"vcores": 1, "memory_mib": 512}, **fields}
        bad = application_pb2.ContainerRequest(executor_id="1", **values)
        sent_message = application_pb2.RequestContainers(containers=[bad])
        with refused(INVALID, part):
            await session.write(application_pb2.ApplicationUpdate(request=sent_message))
            await session.read()
        assert await picture(master) == before
        stream.cancel()


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"mean_task_s": NAN}, "mean_task_s is nan"),
        ({"tasks_total": -1}, "tasks_total is -1"),
        ({"active_jobs": -1}, "active_jobs is -1"),
        ({"stages": [{"mean_task_s": -0.5}]}, "mean_task_s is -0.5"),
        ({"stages": [{"tasks_failed": -9}]}, "tasks_failed is -9"),
    ],
)
async def test_progress_of_no_quantity(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    async with running(tmp_path) as master:
        session = await attached(master)
        with refused(INVALID, part):
            update = application_pb2.ApplicationUpdate(progress=common_pb2.Progress(**fields))
            await session.write(update)
            await session.read()


async def test_gangs_and_epochs(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        with refused(INVALID, "gang_min is -1"):
            await master.applications.Register(registration(gang_min=-1), timeout=TIMEOUT_S)
        registered = await master.applications.Register(registration(), timeout=TIMEOUT_S)
        session = master.applications.Session(timeout=TIMEOUT_S)
        attach = application_pb2.AttachApplication(
            application_id=registered.application_id, epoch=registered.epoch - 1
        )
        with refused(grpc.StatusCode.ABORTED, "register again"):
            await session.write(application_pb2.ApplicationUpdate(attach=attach))
            await session.read()


def _unit(**fields: Any) -> node_pb2.ResourceUnit:
    values = {
        "resource_unit_id": "n1/cpu",
        "capacity": {"vcores": 4, "memory_mib": 4096},
        "run_limit": 4,
        **fields,
    }
    return node_pb2.ResourceUnit(**values)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"capacity": {"vcores": -4, "memory_mib": 4096}}, "n1/cpu.vcores is -4"),
        ({"capacity": {"vcores": 4, "memory_mib": -1}}, "n1/cpu.memory_mib is -1"),
        ({"run_limit": -4}, "run_limit is -4"),
        ({"cpus": [0, -1]}, "cpus is -1"),
        ({"gpu": {"index": 0, "memory_mib": -16384}}, "gpu.memory_mib is -16384"),
        ({"gpu": {"index": -1, "memory_mib": 1}}, "gpu.index is -1"),
    ],
)
async def test_units_of_no_quantity(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    async with running(tmp_path) as master:
        before = await picture(master)
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        with refused(INVALID, part):
            await stream.write(node(resource_units=[_unit(**fields)]))
            await stream.read()
        assert await picture(master) == before


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"usage": {"cpu_percent": NAN}}, "usage.cpu_percent is nan"),
        ({"usage": {"memory_used_mib": -1}}, "usage.memory_used_mib is -1"),
        ({"usage": {"load_1m": -0.1}}, "usage.load_1m is -0.1"),
        ({"usage": {"disk_used_mib": -1}}, "usage.disk_used_mib is -1"),
        ({"containers": [{"usage": {"disk_mib": -1}}]}, "usage.disk_mib is -1"),
        ({"containers": [{"usage": {"gpu_memory_mib": -1}}]}, "usage.gpu_memory_mib is -1"),
        ({"containers": [{"started_at_s": NAN}]}, "started_at_s is nan"),
        ({"containers": [{"usage": {"cpu_percent": -1.0}}]}, "usage.cpu_percent is -1.0"),
        ({"shortcuts": [{"name": "a b", "state": "ready"}]}, "shortcuts.name is 'a b'"),
        ({"shortcuts": [{"name": "a", "state": ""}]}, "shortcuts.state is ''"),
        ({"shortcuts": [{"name": "a", "state": "off", "used": -1}]}, "shortcuts.used is -1"),
        ({"containers": [{"resource_profile_id": -1}]}, "resource_profile_id is -1"),
        ({"containers": [{"resources": {"vcores": -1}}]}, "resources.vcores is -1"),
    ],
)
async def test_reports_of_no_quantity(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    whole = {
        "container_id": "a-x1",
        "application_id": "a",
        "executor_id": "1",
        "resources": {"vcores": 1, "memory_mib": 1},
        "state": common_pb2.CONTAINER_STATE_RUNNING,
    }
    async with running(tmp_path) as master:
        stream = await joined(master)
        before = await picture(master)
        fields = {**fields, "containers": [{**whole, **x} for x in fields.get("containers", ())]}
        report = node_pb2.NodeHeartbeat(**fields)
        with refused(INVALID, part):
            await stream.write(node_pb2.NodeMessage(sequence=2, heartbeat=report))
            await stream.read()
        assert await picture(master) == before


class Scheduler:
    """A scheduler by hand, subscribed as ``east``; its one job is an application of a stream."""

    def __init__(self, master: Running, subscription: Any, session: int) -> None:
        self.master = master
        self.subscription = subscription
        self.session = session
        self.application_id = ""

    @classmethod
    async def subscribe(cls, master: Running) -> Scheduler:
        subscription = stub(master).Subscribe(scheduler_pb2.SubscribeRequest(name="east"))
        hello = await subscription.read()
        return cls(master, subscription, hello.subscribed.session)

    async def job(self) -> Any:
        """Register applications until one is this scheduler's, and request its container."""
        for number in range(3):
            ask = registration(
                submission_key=f"key-{number}", declared_class=common_pb2.WORKLOAD_CLASS_STREAM
            )
            registered = await self.master.applications.Register(ask, timeout=TIMEOUT_S)
            get = admin_pb2.GetApplicationRequest(application_id=registered.application_id)
            shown = await self.master.admin.GetApplication(get, timeout=TIMEOUT_S)
            if shown.scheduler == "east":
                break
        assert shown.scheduler == "east"
        self.application_id = registered.application_id
        session = self.master.applications.Session(timeout=TIMEOUT_S)
        attach = application_pb2.AttachApplication(
            application_id=registered.application_id, epoch=registered.epoch
        )
        await session.write(application_pb2.ApplicationUpdate(attach=attach))
        await session.read()
        resources = common_pb2.Resources(vcores=1, memory_mib=10)
        asks = [application_pb2.ContainerRequest(executor_id="1", resources=resources)]
        sent_message = application_pb2.RequestContainers(containers=asks)
        await session.write(application_pb2.ApplicationUpdate(request=sent_message))
        while True:
            message = await self.subscription.read()
            if any(job.pending for job in message.change.jobs):
                return session

    async def acquire(self, **fields: Any) -> Any:
        values = {"application_id": self.application_id, "session": self.session, **fields}
        call = scheduler_pb2.AcquireLeaseRequest(scheduler="east", **values)
        return await stub(self.master).AcquireLease(call, timeout=TIMEOUT_S)

    async def release(self, token: int, **fields: Any) -> None:
        values = {"session": self.session, **fields}
        call = scheduler_pb2.ReleaseLeaseRequest(scheduler="east", token=token, **values)
        await stub(self.master).ReleaseLease(call, timeout=TIMEOUT_S)

    async def propose(self, unit_id: str, **fields: Any) -> Any:
        values = {"session": self.session, "application_id": self.application_id, **fields}
        claim = scheduler_pb2.UnitClaim(
            container_id=f"{self.application_id}-x1", resource_unit_id=unit_id
        )
        call = scheduler_pb2.ProposeRequest(scheduler="east", claims=[claim], **values)
        return await stub(self.master).Propose(call, timeout=TIMEOUT_S)


async def test_leases_and_claims_that_are_not_as_they_should_be(tmp_path: Path) -> None:
    async with running(tmp_path, schedulers=1) as master:
        stream = await joined(master)
        scheduler = await Scheduler.subscribe(master)
        with refused(grpc.StatusCode.ALREADY_EXISTS, "--name"):
            await stub(master).Subscribe(scheduler_pb2.SubscribeRequest(name="east")).read()
        application = await scheduler.job()
        before = await picture(master)
        with refused(grpc.StatusCode.NOT_FOUND, "app-nowhere waits for nothing at east"):
            await scheduler.acquire(application_id="app-nowhere")
        with refused(grpc.StatusCode.NOT_FOUND, "subscribe again"):
            await scheduler.acquire(session=scheduler.session + 1)
        with refused(INVALID, "application_id"):
            await scheduler.propose("n1/cpu", application_id="../etc")
        assert await picture(master) == before

        lease = await scheduler.acquire()
        with refused(grpc.StatusCode.NOT_FOUND, "subscribe again"):
            await scheduler.release(lease.token, session=scheduler.session - 1)
        await scheduler.release(lease.token)
        with refused(INVALID, f"does not hold the lease under token {lease.token}"):
            await scheduler.release(lease.token)
        with refused(INVALID, "under token -7"):
            await scheduler.release(-7)
        result = await scheduler.propose("n1/cpu", lease_token=lease.token)
        assert [x.reason for x in result.outcomes] == ["the stream's lease has ended"]

        lease = await scheduler.acquire()
        result = await scheduler.propose("n9/cpu", lease_token=lease.token)
        assert [x.decision for x in result.outcomes] == [scheduler_pb2.CLAIM_DECISION_ABORT]
        assert "the resource unit no longer exists" in result.outcomes[0].reason
        after = await picture(master)
        assert (after[:3], after[4]) == (before[:3], before[4])

        lease = await scheduler.acquire()
        result = await scheduler.propose("n1/cpu", lease_token=lease.token)
        assert [x.decision for x in result.outcomes] == [scheduler_pb2.CLAIM_DECISION_RUN]
        application.cancel()
        scheduler.subscription.cancel()
        stream.cancel()


async def test_a_scheduler_that_slept_through_a_restart_is_informed(tmp_path: Path) -> None:
    """Its session was the first of the old master, and the new one has a first session, too."""
    async with running(tmp_path, schedulers=1) as master:
        old = await Scheduler.subscribe(master)
        old.subscription.cancel()
    async with running(tmp_path, schedulers=1) as master:
        stream = await joined(master)
        new = await Scheduler.subscribe(master)
        application = await new.job()
        lease = await new.acquire()
        before = await picture(master)
        with refused(grpc.StatusCode.NOT_FOUND, "subscribe again"):
            await new.propose("n1/cpu", session=old.session, lease_token=lease.token)
        with refused(grpc.StatusCode.NOT_FOUND, "subscribe again"):
            await new.release(lease.token, session=old.session)
        assert await picture(master) == before
        application.cancel()
        new.subscription.cancel()
        stream.cancel()
