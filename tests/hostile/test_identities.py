"""Another's application, node or result: ids are public, and using one requires its secret."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from pipeline_samples import sample_steps

from hrm.core.vocabulary.model import ApplicationId, container_id_of
from hrm.errors import HrmError
from hrm.pipelines import Client
from hrm.v1 import (
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    pipeline_pb2,
    pipeline_pb2_grpc,
)
from tests.hostile.application import Application, registration
from tests.hostile.attack import Attack
from tests.hostile.cluster import Cluster, wait_until

SECRET = "the secret of its RPC"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("identities")) as made:
        made.start_master()
        made.start_agent()
        yield made


def call(cluster: Cluster) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {cluster.token}"),), "timeout": 20}


def test_anothers_application_is_not_taken(cluster: Cluster) -> None:
    """By its id alone, with or without a key of the thief's own."""
    launch = common_pb2.SparkLaunch(environment={"COMMAND": "sleep 600", "SECRET": SECRET})
    outcome_text: list[str] = []
    with (
        Attack("10", "registering with another's application id", on=cluster.daemons[0]) as seen,
        Application(cluster.address, cluster.token, launch=launch) as application,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        application.request("1")
        application.wait_running(1)
        stub = application_pb2_grpc.ApplicationServiceStub(channel)
        for fields in ({}, {"ownership_key": ""}):
            known = application_pb2.RegisterApplicationRequest.DESCRIPTOR.fields_by_name
            fields = {k: v for k, v in fields.items() if k in known}
            thief = registration(application_id=application.application_id, **fields)
            outcome_text.append(attempt(lambda t=thief: stub.Register(t, **call(cluster))))
            attach = application_pb2.AttachApplication(
                application_id=application.application_id, epoch=cluster.status().epoch
            )
            updates = iter([application_pb2.ApplicationUpdate(attach=attach)])
            outcome_text.append(attempt(lambda u=updates: next(stub.Session(u, **call(cluster)))))
        time.sleep(0.5)
        assert "accepted" not in outcome_text, outcome_text
        assert application.sessions == 1, application.problems
        assert application.running() == ["1"]
        seen.outcome = outcome_text[0]


def attempt(ask: Any) -> str:
    try:
        ask()
    except grpc.RpcError as error:
        return str(error.code().name)
    except StopIteration:
        return "ended"
    return "accepted"


def test_anothers_node_is_not_taken(cluster: Cluster) -> None:
    """By its name, and by its name and identity, which other nodes' messages show."""
    identity = next(
        p.read_text() for p in (cluster.directory / "node-1").glob("*ident*") if p.is_file()
    )
    with (
        Attack("10", "registering as another's node", on=cluster.daemons[0]) as seen,
        grpc.insecure_channel(cluster.address) as channel,
    ):
        outcome_text = [
            join_as_node(cluster, channel, x) for x in ("a-thief", identity.strip()[:100])
        ]
        seen.outcome = f"another identity: {outcome_text[0]}, its identity: {outcome_text[1]}"
        assert "accepted" not in outcome_text, outcome_text
        wait_until(lambda: "node-1" in cluster.alive_nodes(), "the node is alive")


def join_as_node(cluster: Cluster, channel: grpc.Channel, identity: str) -> str:
    unit = node_pb2.ResourceUnit(
        resource_unit_id="node-1/0",
        capacity=common_pb2.Resources(vcores=1, memory_mib=64),
        run_limit=1,
    )
    register = node_pb2.RegisterNode(
        name="node-1", identity=identity, incarnation="a-thief", endpoint="127.0.0.1:1",
        resource_units=[unit],
    )  # fmt: skip
    messages = iter([node_pb2.NodeMessage(sequence=1 << 40, register=register)])
    stub = node_pb2_grpc.NodeServiceStub(channel)
    return attempt(lambda: next(stub.Connect(messages, **call(cluster))))


# --- a result that its worker has not made --------------------------------------------------------


class Trap:
    """An object that runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


class Forger:
    """It takes the place of the first worker of pipelines before that has started, and returns a
    pickle of its own for every task."""

    def __init__(self, cluster: Cluster, pickled: bytes) -> None:
        self._pickled = pickled
        self._cluster = cluster
        self._out: list[pipeline_pb2.NodePipelineMessage] = []
        self._more = threading.Condition()
        self._ended = False
        self.placed = 0
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _send(self, **message: Any) -> None:
        with self._more:
            self._out.append(pipeline_pb2.NodePipelineMessage(**message))
            self._more.notify()

    def _messages(self) -> Iterator[pipeline_pb2.NodePipelineMessage]:
        while not self._ended:
            with self._more:
                if not self._out and not self._more.wait(0.5):
                    continue
                message = self._out.pop(0)
            yield message

    def _live(self) -> None:
        with grpc.insecure_channel(self._cluster.address) as channel:
            stub = pipeline_pb2_grpc.PipelineServiceStub(channel)
            self._register(wait_until(partial(self._worker_of, stub), "a task is submitted"))
            stream = stub.Connect(self._messages(), **{**call(self._cluster), "timeout": 60})
            try:
                for message in stream:
                    if message.WhichOneof("message") == "place":
                        self._forge(message.place.attempt)
            except grpc.RpcError:
                return

    def _worker_of(self, stub: Any) -> str:
        """The first worker of the first workload; "": there is none yet."""
        tasks = stub.List(pipeline_pb2.ListPipelineTasksRequest(), **call(self._cluster)).tasks
        return container_id_of(ApplicationId(tasks[0].application_id), "1") if tasks else ""

    def _register(self, name: str) -> None:
        capacity = pipeline_pb2.PipelineCapacity(
            node=name, cores=64, memory_mib=1 << 20, cpu_speed=100.0, gpu_speed=1.0
        )
        load = pipeline_pb2.PipelineLoad(free_cores=64, free_memory_mib=1 << 20)
        self._send(
            register=pipeline_pb2.RegisterPipelineNode(
                capacity=capacity, identity="forger", load=load
            )
        )

    def _forge(self, attempt: pipeline_pb2.PipelineAttempt) -> None:
        self.placed += 1
        end = pipeline_pb2.PipelineTaskEnd(
            outcome=pipeline_pb2.PIPELINE_TASK_OUTCOME_DONE, result_bytes=len(self._pickled)
        )
        self._send(data=pipeline_pb2.PipelineData(attempt=attempt, data=self._pickled))
        self._send(ended=pipeline_pb2.PipelineAttemptEnd(attempt=attempt, end=end))

    def close(self) -> None:
        self._ended = True
        self._thread.join(5.0)


def test_a_forged_result_is_not_unpickled(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result is only read with a proof that the process with the task's key has made it."""
    monkeypatch.setenv("HRM_TOKEN_FILE", str(cluster.token_file))
    monkeypatch.setenv("HRM_MASTER", cluster.address)
    sprung = tmp_path / "sprung"
    forger = Forger(cluster, pickle.dumps(Trap(sprung)))
    try:
        with Attack("10", "a worker with a pickle of its own", on=cluster.daemons[0]) as seen:
            outcome_text = "no error"
            try:
                with Client() as client:
                    list(client.map(sample_steps.arithmetic, [1]))
            except (HrmError, OSError, ValueError) as error:
                outcome_text = f"{type(error).__name__}: {error}"
            assert forger.placed, "the task did not come to the forger"
            assert not sprung.exists(), "the client ran code of the forger"
            seen.outcome = f"refused: {outcome_text[:120]}"
    finally:
        forger.close()
