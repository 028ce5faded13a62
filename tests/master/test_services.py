"""The master over real gRPC: what its clients may do, and its replies to errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hrm import rpc
from hrm.config import MasterSettings, QueueConfig
from hrm.errors import InvalidConfig, Unavailable
from hrm.master import daemon
from hrm.master.interpreter import Interpreter
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    queues_pb2_grpc,
)

NO_MODE: Any = 9
TIMEOUT_S = 10.0


class Running:
    """A master in this process, its address and token."""

    def __init__(
        self,
        settings: MasterSettings,
        address: str,
        serving: asyncio.Task[int],
        interpreter: Interpreter,
    ) -> None:
        self.settings = settings
        self.address = address
        self.serving = serving
        self.interpreter = interpreter
        self.token = rpc.read_token(settings.token_file)
        self.channel = rpc.channel(address, self.token)

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminServiceStub(self.channel)

    @property
    def applications(self) -> Any:
        return application_pb2_grpc.ApplicationServiceStub(self.channel)

    @property
    def queues(self) -> Any:
        return queues_pb2_grpc.QueueServiceStub(self.channel)

    @property
    def nodes(self) -> Any:
        return node_pb2_grpc.NodeServiceStub(self.channel)


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Running]:
    """``queues``: a ``QueueConfig``, as ``hrm.toml`` may state; the others are settings."""
    queues = settings.pop("queues", QueueConfig())
    configured = MasterSettings(
        port=0, state_dir=directory / "master", token_file=directory / "token", **settings
    )
    made: list[Interpreter] = []

    class Kept(Interpreter):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon, "Interpreter", Kept)
        serving = asyncio.create_task(daemon.run(configured, queues))
        await _serving(serving, configured.state_dir / "address")
    address = (configured.state_dir / "address").read_text().strip()
    master = Running(configured, address, serving, made[0])
    try:
        yield master
    finally:
        await master.channel.close(None)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _written(address_file: Path) -> bool:
    return address_file.exists() and address_file.read_text().endswith("\n")


async def _serving(serving: asyncio.Task[int], address_file: Path) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not _written(address_file):
            await asyncio.sleep(0.01)
            if serving.done():
                serving.result()


@contextmanager
def refused(code: grpc.StatusCode, part: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value.details()
    assert part in (caught.value.details() or "")


def registration(**fields: Any) -> application_pb2.RegisterApplicationRequest:
    values = {"submission_key": "key-1", "name": "app", "user": "somebody", **fields}
    return application_pb2.RegisterApplicationRequest(**values)


def node(name: str = "n1", identity: str = "i1", **fields: Any) -> node_pb2.NodeMessage:
    unit = node_pb2.ResourceUnit(
        resource_unit_id=f"{name}/cpu",
        capacity=common_pb2.Resources(vcores=4, memory_mib=4096),
        run_limit=4,
    )
    values: dict[str, Any] = {
        "name": name,
        "identity": identity,
        "incarnation": f"{identity}-1",
        "endpoint": "127.0.0.1:1",
        "resource_units": [unit],
        **fields,
    }
    return node_pb2.NodeMessage(sequence=1, register=node_pb2.RegisterNode(**values))


async def attached(master: Running) -> Any:
    """The session of an application that has registered and attached."""
    registered = await master.applications.Register(registration(), timeout=TIMEOUT_S)
    session = await attach(master, registered)
    received = await session.read()
    assert received.WhichOneof("notice") == "attached"
    return session


async def attach(master: Running, registered: Any) -> Any:
    """A session of this application, of which nothing has been read."""
    session = master.applications.Session(timeout=TIMEOUT_S)
    message = application_pb2.AttachApplication(
        application_id=registered.application_id, epoch=registered.epoch
    )
    await session.write(application_pb2.ApplicationUpdate(attach=message))
    return session


async def request_containers(
    master: Running, *requests: application_pb2.ContainerRequest
) -> application_pb2.ApplicationNotice:
    """Register, attach, request; returns the first notice after the attachment."""
    session = await attached(master)
    ask = application_pb2.RequestContainers(containers=requests)
    await session.write(application_pb2.ApplicationUpdate(request=ask))
    notice: application_pb2.ApplicationNotice = await session.read()
    session.cancel()
    return notice


def asking_for(executors: int) -> application_pb2.ApplicationUpdate:
    resources = common_pb2.Resources(vcores=1, memory_mib=512)
    messages = [
        application_pb2.ContainerRequest(executor_id=str(number), resources=resources)
        for number in range(1, executors + 1)
    ]
    return application_pb2.ApplicationUpdate(
        request=application_pb2.RequestContainers(containers=messages)
    )


def running_now(spec: common_pb2.ContainerSpec, sequence: int) -> node_pb2.NodeMessage:
    """Node n1's report of a container that it has started."""
    status = common_pb2.ContainerStatus(
        container_id=spec.container_id,
        application_id=spec.application_id,
        executor_id=spec.executor_id,
        workload_class=spec.workload_class,
        resources=spec.resources,
        state=common_pb2.CONTAINER_STATE_RUNNING,
        node="n1",
        resource_unit_id=spec.resource_unit_id,
    )
    return node_pb2.NodeMessage(sequence=sequence, container=status)


async def test_every_rpc_asks_for_the_token(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        for token in ("", "wrong", master.token + "x"):
            async with rpc.channel(master.address, token) as channel:
                calls = [
                    admin_pb2_grpc.AdminServiceStub(channel).GetCluster(
                        admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S
                    ),
                    application_pb2_grpc.ApplicationServiceStub(channel).Register(
                        registration(), timeout=TIMEOUT_S
                    ),
                    health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
                    ),
                ]
                for call in calls:
                    with refused(grpc.StatusCode.UNAUTHENTICATED, "HRM_TOKEN_FILE"):
                        await call
                stream = node_pb2_grpc.NodeServiceStub(channel).Connect(timeout=TIMEOUT_S)
                with refused(grpc.StatusCode.UNAUTHENTICATED, "token"):
                    await stream.read()


async def test_stock_clients_find_health_and_reflection(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        health = health_pb2_grpc.HealthStub(master.channel)
        for service in ("", "hrm.v1.AdminService", "hrm.v1.NodeService"):
            request = health_pb2.HealthCheckRequest(service=service)
            received = await health.Check(request, timeout=TIMEOUT_S)
            assert received.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(master.channel)
        stream = reflection.ServerReflectionInfo(timeout=TIMEOUT_S)
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await stream.read()
        stream.cancel()
        names = {service.name for service in listed.list_services_response.service}
        assert {"hrm.v1.AdminService", "hrm.v1.ApplicationService"} <= names


async def test_an_application_gets_its_container_on_a_node(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        registered = await stream.read()
        assert registered.WhichOneof("message") == "registered"
        session = await attached(master)
        await session.write(asking_for(1))
        assign = await stream.read()
        assert assign.epoch == registered.epoch
        await stream.write(running_now(assign.assign, sequence=2))
        notice = await session.read()
        assert notice.container.state == common_pb2.CONTAINER_STATE_RUNNING
        assert notice.container.container_id == assign.assign.container_id
        assert notice.container.node == "n1"
        session.cancel()
        stream.cancel()


async def test_what_changes_at_once_is_reported_in_one_notice(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        session = await attached(master)
        await session.write(asking_for(4))
        release = application_pb2.ReleaseContainers(executor_ids=["1", "2", "3", "4"])
        await session.write(application_pb2.ApplicationUpdate(release=release))
        notice = await session.read()
        session.cancel()

    assert notice.WhichOneof("notice") == "changed"
    changed = notice.changed.containers
    assert [status.executor_id for status in changed] == ["1", "2", "3", "4"]
    assert {status.state for status in changed} == {common_pb2.CONTAINER_STATE_ENDED}


async def test_an_impossible_request_is_refused_naming_the_largest_node(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        huge = application_pb2.ContainerRequest(
            executor_id="1", resources=common_pb2.Resources(vcores=64, memory_mib=512)
        )
        notice = await request_containers(master, huge)
        assert "the largest node, n1, has 4 vcores" in notice.refused.message
        stream.cancel()


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"vcores": 0, "memory_mib": 512}, "resources.vcores is 0"),
        ({"vcores": -1, "memory_mib": 512}, "resources.vcores is -1"),
        ({"vcores": 1, "memory_mib": 2**60}, "resources.memory_mib"),
        ({"vcores": 1, "memory_mib": 1, "gpu_memory_mib": -5}, "gpu_memory_mib is -5"),
    ],
)
async def test_quantities_out_of_range_are_named(
    tmp_path: Path, fields: dict[str, int], part: str
) -> None:
    async with running(tmp_path) as master:
        request = application_pb2.ContainerRequest(
            executor_id="1", resources=common_pb2.Resources(**fields)
        )
        with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
            await request_containers(master, request)
        cluster = await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        assert cluster.containers_pending == 0


async def test_nan_durations_and_odd_names_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        resources = common_pb2.Resources(vcores=1, memory_mib=512)
        nan = application_pb2.ContainerRequest(
            executor_id="1", resources=resources, expected_duration_s=float("nan")
        )
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "expected_duration_s is nan"):
            await request_containers(master, nan)
        path = application_pb2.ContainerRequest(executor_id="../../etc", resources=resources)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "executor_id"):
            await request_containers(master, path)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "submission_key"):
            await master.applications.Register(registration(submission_key=""), timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "declared_class is 77"):
            await master.applications.Register(registration(declared_class=77), timeout=TIMEOUT_S)


async def test_bytes_that_are_no_protobuf_are_refused_and_harm_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        raw = master.channel.unary_unary(
            "/hrm.v1.ApplicationService/Register",
            request_serializer=lambda data: data,
            response_deserializer=lambda data: data,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(b"\xff\xff\xff this is no message", timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "malformed" in (caught.value.details() or "")
        cluster = await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        assert cluster.applications_live == 0


async def test_streams_must_begin_as_they_should(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        session = master.applications.Session(timeout=TIMEOUT_S)
        beat = application_pb2.ApplicationUpdate(heartbeat=application_pb2.ApplicationHeartbeat())
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "`attach`"):
            await session.write(beat)
            await session.read()
        session = master.applications.Session(timeout=TIMEOUT_S)
        attach = application_pb2.AttachApplication(application_id="app-nowhere", epoch=1)
        with refused(grpc.StatusCode.ABORTED, "register again"):
            await session.write(application_pb2.ApplicationUpdate(attach=attach))
            await session.read()
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "`register`"):
            await stream.write(node_pb2.NodeMessage(heartbeat=node_pb2.NodeHeartbeat()))
            await stream.read()


async def test_nodes_with_bad_units_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        good = node().register.resource_units[0]
        foreign = node_pb2.ResourceUnit()
        foreign.CopyFrom(good)
        foreign.resource_unit_id = "another/cpu"
        pooled = node_pb2.ResourceUnit()
        pooled.CopyFrom(good)
        pooled.resource_unit_id, pooled.pool = "n1/gpu0", "n1/cpu"
        larger = node_pb2.ResourceUnit()
        larger.CopyFrom(pooled)
        larger.capacity.vcores += 1
        for units, part in (
            ([pooled, good], "must come before it"),
            ([good, larger], "be of its size"),
            ([], "at least one"),
            ([good, good], "one id"),
            ([foreign], "must be named n1/"),
        ):
            stream = master.nodes.Connect(timeout=TIMEOUT_S)
            with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
                await stream.write(node(resource_units=units))
                await stream.read()


async def test_a_binding_travels_to_the_node_and_its_reply_back(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        for accepted, code in ((True, None), (False, grpc.StatusCode.INVALID_ARGUMENT)):
            sent_message = admin_pb2.BindNodeRequest(
                name="n1", mode="BINDING_MODE_EVEN", reserve_cores=0
            )
            call = master.admin.BindNode(sent_message, timeout=TIMEOUT_S)
            order = await stream.read()
            assert order.rebind.mode == node_pb2.BINDING_MODE_EVEN
            assert order.rebind.HasField("reserve_cores")
            assert not order.rebind.HasField("bound_cores")
            received = node_pb2.RebindingAnswer(
                request_id=order.rebind.request_id, accepted=accepted, message="so be it"
            )
            await stream.write(node_pb2.NodeMessage(sequence=2, rebinding=received))
            if code is None:
                assert (await call).message == "so be it"
            else:
                with refused(code, "so be it"):
                    await call
        for request, part in (
            (admin_pb2.BindNodeRequest(name="n1", mode=NO_MODE), "mode is 9"),
            (admin_pb2.BindNodeRequest(name="n1", bound_cores=0), "bound_cores is 0"),
            (admin_pb2.BindNodeRequest(name="n1", reserve_cores=-1), "reserve_cores is -1"),
            (admin_pb2.BindNodeRequest(), "name is ''"),
        ):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
                await master.admin.BindNode(request, timeout=TIMEOUT_S)
        stream.cancel()


async def test_an_agent_that_registers_twice_is_informed(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        first = master.nodes.Connect(timeout=TIMEOUT_S)
        await first.write(node(identity="i1"))
        await first.read()
        second = master.nodes.Connect(timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.ALREADY_EXISTS, "--name"):
            await second.write(node(identity="i2"))
            await second.read()
        listed = await master.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=TIMEOUT_S)
        assert [each.state for each in listed.nodes] == [common_pb2.NODE_STATE_ALIVE]
        first.cancel()


async def test_admin_calls_name_what_is_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        get = admin_pb2.GetApplicationRequest(application_id="app-none")
        with refused(grpc.StatusCode.NOT_FOUND, "hrm apps --all"):
            await master.admin.GetApplication(get, timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.NOT_FOUND, "hrm nodes"):
            await master.admin.DrainNodes(
                admin_pb2.DrainNodesRequest(names=["nowhere"]), timeout=TIMEOUT_S
            )
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "limit is -3"):
            await master.admin.ListApplications(
                admin_pb2.ListApplicationsRequest(limit=-3), timeout=TIMEOUT_S
            )


async def test_a_restarted_master_knows_its_applications(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        registered = await master.applications.Register(registration(), timeout=TIMEOUT_S)
        again = await master.applications.Register(registration(), timeout=TIMEOUT_S)
        assert again.application_id == registered.application_id, "one key, one application"
    async with running(tmp_path) as master:
        get = admin_pb2.GetApplicationRequest(application_id=registered.application_id)
        app = await master.admin.GetApplication(get, timeout=TIMEOUT_S)
        assert app.state == common_pb2.APPLICATION_STATE_DETACHED
        back = await master.applications.Register(
            registration(application_id=registered.application_id), timeout=TIMEOUT_S
        )
        assert back.epoch == registered.epoch + 1


async def test_the_latest_containers_of_an_application_and_how_many_there_are(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as master:
        session = await attached(master)
        await session.write(asking_for(5))
        release = application_pb2.ReleaseContainers(executor_ids=["1", "2", "3"])
        await session.write(application_pb2.ApplicationUpdate(release=release))
        await session.read()
        (app,) = master.interpreter.core.master_state.applications
        get = admin_pb2.GetApplicationRequest(application_id=app)
        whole = await master.admin.GetApplication(get, timeout=TIMEOUT_S)
        assert (len(whole.containers), whole.containers_total) == (5, 5)
        get.containers_limit = 2
        some = await master.admin.GetApplication(get, timeout=TIMEOUT_S)
        assert [x.executor_id for x in some.containers] == ["4", "5"]
        assert some.containers_total == 5
        get.containers_limit = -1
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "limit is -1"):
            await master.admin.GetApplication(get, timeout=TIMEOUT_S)
        session.cancel()


async def test_the_next_master_knows_how_many_tasks_an_ended_application_had(
    tmp_path: Path,
) -> None:
    counted = common_pb2.Progress(tasks_total=5, tasks_completed=4, tasks_failed=1)
    async with running(tmp_path) as master:
        session = await attached(master)
        progress = common_pb2.Progress(active_jobs=2)
        progress.MergeFrom(counted)
        await session.write(application_pb2.ApplicationUpdate(progress=progress))
        succeeded = common_pb2.APPLICATION_STATE_SUCCEEDED
        finished = application_pb2.ApplicationFinished(state=succeeded)
        await session.write(application_pb2.ApplicationUpdate(finished=finished))
        await session.read()
    async with running(tmp_path) as master:
        every = admin_pb2.ListApplicationsRequest(include_ended=True)
        (app,) = (await master.admin.ListApplications(every, timeout=TIMEOUT_S)).applications
        assert app.state == succeeded
        assert app.progress == counted


async def test_a_drained_node_is_drained_for_the_next_master_too(tmp_path: Path) -> None:
    async def registered(master: Running) -> Any:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        return stream

    async def drained(master: Running, undo: bool) -> int:
        call = admin_pb2.DrainNodesRequest(names=["n1"], undo=undo)
        received = await master.admin.DrainNodes(call, timeout=TIMEOUT_S)
        return sum(each.state == common_pb2.NODE_STATE_DRAINING for each in received.nodes)

    async with running(tmp_path) as master:
        stream = await registered(master)
        assert await drained(master, undo=False) == 1
        stream.cancel()
    async with running(tmp_path) as master:
        stream = await registered(master)
        cluster = await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        assert (cluster.nodes_alive, cluster.nodes_draining) == (0, 1)
        session = await attached(master)
        await session.write(asking_for(1))
        assert await drained(master, undo=True) == 0
        assert (await stream.read()).WhichOneof("message") == "assign"
        session.cancel()
        stream.cancel()
    async with running(tmp_path) as master:
        assert not master.interpreter.core.nodes.drains.drained
        with refused(grpc.StatusCode.NOT_FOUND, "no such node: n1"):
            await drained(master, undo=True)


async def test_a_port_in_use_and_a_shared_directory_are_clear(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        port = int(master.address.rpartition(":")[2])
        other = MasterSettings(
            port=port, state_dir=tmp_path / "other", token_file=tmp_path / "token"
        )
        with pytest.raises(Unavailable, match="--port"):
            await daemon.run(other)
        same = MasterSettings(
            port=0, state_dir=master.settings.state_dir, token_file=tmp_path / "token"
        )
        with pytest.raises(InvalidConfig, match="another master uses"):
            await daemon.run(same)


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = rpc.create_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert rpc.create_token(path) == token
    path.chmod(0o644)
    with pytest.raises(InvalidConfig, match="chmod 600"):
        rpc.read_token(path)


async def test_a_node_whose_outbox_is_full_is_sent_away_to_come_back(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        (outbox,) = master.interpreter.node_outboxes.values()
        outbox.close()
        assert not await stream.read(), "the stream ends instead of falling silent"
        again = master.nodes.Connect(timeout=TIMEOUT_S)
        await again.write(node())
        assert (await again.read()).WhichOneof("message") == "registered"
        again.cancel()


async def test_a_core_that_fails_stops_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as master:

        def fail(_event: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(master.interpreter.core, "handle", fail)
        async with asyncio.timeout(TIMEOUT_S):
            status = await master.serving
        assert status == 1, "a ticker that dies silently would leave a master without a clock"
