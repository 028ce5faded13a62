"""A master with prepared replies: AdminService on a real port, with a token.

The commands under test are the real ones, and so are the channel and the refusal of a wrong token;
only the replies are prepared, so that a test sees exactly how this node or application is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from hrm import rpc
from hrm.cli.app import app
from hrm.master.owners import hide_application
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    node_pb2,
    pipeline_pb2,
    pipeline_pb2_grpc,
    policy_pb2_grpc,
    queues_pb2_grpc,
)
from tests.cli.fake_policies import FakePolicies
from tests.cli.fake_queues import FakeQueues

APPLICATION = "app-0001"


def _resources(vcores: int, memory_mib: int) -> common_pb2.Resources:
    return common_pb2.Resources(vcores=vcores, memory_mib=memory_mib)


def example_cluster() -> admin_pb2.Cluster:
    return admin_pb2.Cluster(
        version="0.1.0",
        epoch=3,
        started_at_s=time.time() - 3725,
        address="127.0.0.1:7480",
        nodes_alive=2,
        nodes_lost=1,
        capacity=_resources(8, 16_384),
        free=_resources(5, 12_288),
        applications_live=1,
        containers_running=3,
        schedulers=[
            admin_pb2.Scheduler(
                name="scheduler-0",
                queued_jobs=3,
                placed=41,
                decision_p50_s=0.0021,
                decision_p99_s=0.0215,
                capacity_wait_p50_s=12.0,
                capacity_wait_p99_s=3600.0,
                oldest_wait_s=300.0,
            )
        ],
        lease=admin_pb2.Lease(holder="scheduler-1", expires_in_s=1.5, token=7),
        claims_committed=41,
        run_time_errors=admin_pb2.RunTimeErrors(containers=40, median=0.124, p90=0.5, unknown=2),
    )


def example_node() -> admin_pb2.Node:
    unit = node_pb2.ResourceUnit(
        resource_unit_id="cpu-0", capacity=_resources(4, 8192), run_limit=4
    )
    return admin_pb2.Node(
        name="node-1",
        host="127.0.0.1",
        state=common_pb2.NODE_STATE_ALIVE,
        resource_units=[
            admin_pb2.ResourceUnitStatus(
                unit=unit, free=_resources(1, 2048), running=3, waiting_stream=1, waiting_batch=2
            )
        ],
        isolation="cgroup1",
        spark_versions=["4.3.0"],
        last_heard_s_ago=0.4,
        remarks=["run as: containers run as root (run_as = off)"],
        usage=node_pb2.NodeUsage(disk_used_mib=3 << 10, disk_free_mib=40 << 10),
        shortcuts=[
            node_pb2.Shortcut(
                name="executor-archive",
                state="ready",
                note="/archives/[x]",  # square brackets are markup to rich
                used=12,
                missed=3,
                why_missed="the Java option -XX:+UseZGC",
            )
        ],
    )


def example_application() -> admin_pb2.Application:
    container = common_pb2.ContainerStatus(
        container_id=f"{APPLICATION}/1",
        executor_id="1",
        state=common_pb2.CONTAINER_STATE_ENDED,
        node="node-1",
        resources=_resources(2, 1408),
        requested_at_s=time.time() - 200,
        started_at_s=time.time() - 190,
        ended_at_s=time.time() - 100,
        end=common_pb2.ContainerEnd(
            cause=common_pb2.END_CAUSE_MEMORY_LIMIT,
            exit_code=137,
            message="over its limit of 1408 MiB; raise spark.executor.memoryOverhead",
        ),
    )
    return admin_pb2.Application(
        application_id=APPLICATION,
        name="word [count]",  # square brackets are markup to rich
        user="ada",
        queue="root.team",
        priority=7,
        state=common_pb2.APPLICATION_STATE_RUNNING,
        workload_class=common_pb2.WORKLOAD_CLASS_STREAM,
        class_evidence="query top-k, trigger ProcessingTime",
        spark_version="4.3.0",
        driver_host="127.0.0.1",
        driver_start="cold: the first of its kind",
        submitted_at_s=time.time() - 200,
        first_running_at_s=time.time() - 190,
        containers=[container],
        containers_running=1,
        containers_pending=4,
        mean_wait_s=10.0,
        run_times=[
            admin_pb2.RunTime(
                resource_profile_id=0,
                mean_s=90.0,
                containers=12,
                expected_s=180.0,
                mean_input_bytes=2.0**31,
            )
        ],
        input_bytes=2**32,
        gang_min=3,
    )


def gpu_node(*, declared: bool) -> admin_pb2.Node:
    """The example with a GPU, half of it in use."""
    node = example_node()
    gpu = node_pb2.Gpu(index=0, memory_mib=16_384, name="Fast One", declared=declared)
    unit = node_pb2.ResourceUnit(
        resource_unit_id="gpu0", capacity=_resources(1, 1024), run_limit=1, gpu=gpu, draining=True
    )
    unit.capacity.gpu_memory_mib = 16_384
    free = common_pb2.Resources(gpu_memory_mib=8192)
    node.resource_units.append(admin_pb2.ResourceUnitStatus(unit=unit, free=free, running=1))
    return node


class FakeMaster(admin_pb2_grpc.AdminServiceServicer):
    """Replies with the examples; remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.policies = FakePolicies()
        self.queues = FakeQueues()
        self.pipelines = FakePipelines()
        self.log = [b"first line\n", "zweite Zeile: ä".encode()[:-1], "ä".encode()[-1:]]
        self.empty = False
        self.target = ""
        self.gang_min = 3
        self.nodes = 1
        self.drains_any = False
        self.hides = False
        self.containers_total = 1
        self.priority_tenths = 0
        self.recovery: admin_pb2.Recovery | None = None
        self.token_file = Path()

    def _known(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        if request.application_id != APPLICATION:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no application\n{request.application_id}")

    def GetCluster(self, request: Any, context: grpc.ServicerContext) -> admin_pb2.Cluster:  # noqa: N802
        cluster = example_cluster()
        if self.recovery is not None:
            cluster.recovery.CopyFrom(self.recovery)
        return cluster

    def ListNodes(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.ListNodesResponse:
        self.requests.append(request)
        size, first = min(request.page_size or 1000, 1000), int(request.page_token or 0)
        left = 0 if self.empty else self.nodes - first
        return admin_pb2.ListNodesResponse(
            nodes=[example_node()] * min(left, size),
            next_page_token=str(first + size) if left > size else "",
        )

    def ListApplications(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.ListApplicationsResponse:
        self.requests.append(request)
        applications = [] if self.empty else [example_application()]
        return admin_pb2.ListApplicationsResponse(applications=applications)

    def GetApplication(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.Application:
        self._known(request, context)
        application = example_application()
        application.gang_min = self.gang_min
        application.containers_total = self.containers_total
        if self.priority_tenths:
            application.priority_class = common_pb2.PRIORITY_CLASS_NORMAL
            application.priority_tenths = self.priority_tenths
        if self.hides:
            hide_application(application)
        return application

    def ExplainApplication(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.Explanation:
        self._known(request, context)
        return admin_pb2.Explanation(
            application_id=APPLICATION,
            summary="4 containers wait for 2 vcores each",
            details=["node-1 has 1 vcore free"],
        )

    def KillApplication(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.Application:
        self._known(request, context)
        killed = example_application()
        killed.state = common_pb2.APPLICATION_STATE_KILLED
        killed.message = request.reason
        return killed

    def ChangePriority(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.Application:
        self._known(request, context)
        changed = example_application()
        changed.priority_class = common_pb2.PRIORITY_CLASS_NORMAL
        changed.priority_tenths = 20 + request.steps
        return changed

    def DrainNodes(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.ListNodesResponse:
        self.requests.append(request)
        if list(request.names) != ["node-1"] and not self.drains_any:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such node: {request.names[-1]}")
        node = example_node()
        if not request.undo:
            node.state = common_pb2.NODE_STATE_DRAINING
        return admin_pb2.ListNodesResponse(nodes=[node])

    def BindNode(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> admin_pb2.BindNodeResponse:
        self.requests.append(request)
        if request.name != "node-1":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such node: {request.name}")
        return admin_pb2.BindNodeResponse(message="node-1 is bound: even [all cores]")

    def LinkLog(self, request: Any, context: grpc.ServicerContext) -> node_pb2.LogLink:  # noqa: N802
        self.requests.append(request)
        self._known(request, context)
        return node_pb2.LogLink(url=f"http://node-1:1/{'x' * 200}?for=me", expires_at_s=9.0)

    def ReadLogs(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[node_pb2.LogChunk]:
        self._known(request, context)
        for data in self.log:
            yield node_pb2.LogChunk(data=data)


class FakePipelines(pipeline_pb2_grpc.PipelineServiceServicer):
    """What was measured of one pipeline."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.profiles: list[pipeline_pb2.PipelineProfile] = []
        self.containers: list[common_pb2.ContainerGpuUse] = []

    def GetProfiles(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> pipeline_pb2.GetPipelineProfilesResponse:
        self.requests.append(request)
        return pipeline_pb2.GetPipelineProfilesResponse(
            profiles=self.profiles, containers=self.containers
        )


class _RequireToken(grpc.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._wanted = ("authorization", f"Bearer {token}")
        self._refusal = grpc.unary_unary_rpc_method_handler(
            lambda _request, context: context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "missing or wrong token; see HRM_TOKEN_FILE"
            )
        )

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        if self._wanted in [tuple(pair) for pair in details.invocation_metadata]:
            return continuation(details)
        return self._refusal


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    """A running fake master that the environment names."""
    fake = FakeMaster()
    fake.token_file = tmp_path / "token"
    token = rpc.create_token(fake.token_file)
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=4), interceptors=[_RequireToken(token)]
    )
    admin_pb2_grpc.add_AdminServiceServicer_to_server(fake, server)
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(fake.policies, server)
    queues_pb2_grpc.add_QueueServiceServicer_to_server(fake.queues, server)
    pipeline_pb2_grpc.add_PipelineServiceServicer_to_server(fake.pipelines, server)
    fake.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    monkeypatch.setenv("HRM_MASTER", fake.target)
    monkeypatch.setenv("HRM_TOKEN_FILE", str(fake.token_file))
    try:
        yield fake
    finally:
        server.stop(grace=None).wait(timeout=10)


@pytest.fixture
def hrm() -> Callable[..., Result]:
    """``hrm("apps", "--all")``: the command's result."""

    def run(*arguments: str, **options: Any) -> Result:
        words: Sequence[str] = arguments
        return CliRunner().invoke(app, words, prog_name="hrm", **options)

    return run
