"""Sends generated cases to the daemons that serve them, many at a time, and checks the replies.

By hand, to see the effect of one case (a cluster is started for it)::

    python -m tests.hostile.send SEED FIRST [COUNT]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hrm.v1 import (
    application_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    submission_pb2,
    submission_pb2_grpc,
)
from tests.hostile.application import Application, registration
from tests.hostile.cluster import Cluster
from tests.hostile.messages import Case, Known, Messages

__all__ = ["Sent", "Victims", "send", "targets_of"]

AT_ONCE = 24
CALL_S = 0.6
PATIENT_CALL_S = 20.0
"""Streams that stay open, and calls that wait, are cancelled after this time."""
REPLIES_MAX = 5
NEVER = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
REFUSED = grpc.StatusCode.UNAUTHENTICATED
RACE = "Internal error from Core"
RESET_MESSAGE = "Received RST_STREAM"
"""The connection accepts no more calls: earlier ones were left open on it."""
_EOF: Any = vars(grpc.aio)["EOF"]
_OPTIONS = (
    ("grpc.max_send_message_length", 1 << 30),
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)
_AGENT_SERVICES = ("AgentService",)


@dataclass(slots=True)
class Sent:
    """The results of many cases."""

    cases: int = 0
    messages: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    replied: set[str] = field(default_factory=set)
    """Methods of which some case got further than the refusal of its token."""
    wrong: list[str] = field(default_factory=list)


def targets_of(cluster: Cluster, node: str = "node-1") -> dict[str, list[str]]:
    """The targets of each service: an agent's are listed by name, all others are at the master, so
    that a new one is covered automatically."""
    return {"": [cluster.address], "AgentService": [cluster.endpoint(node)]}


@dataclass(slots=True)
class Victims:
    """Objects for the messages to name, so that some get beyond "there is no such": each lot has
    its own, because they do not survive many messages."""

    cluster: Cluster
    container_ids: list[str]
    unit_id: str
    stream: Any
    """Of a scheduler, whose session lasts as long."""
    session: int
    submission_ids: list[str]

    @classmethod
    def of(cls, cluster: Cluster, application: Application, node: str = "node-1") -> Victims:
        """``application`` stays live, and is not among them; its containers are."""
        unit = next(n for n in cluster.nodes() if n.name == node).resource_units[0].unit
        driver = submission_pb2.DriverSpec(
            name="driver", user="somebody", vcores=1, memory_mib=64, heap_mib=32, supervise=True,
            resources=[{"role": "RESOURCE_ROLE_MAIN", "name": "app.py", "uri": "local:/app.py"}],
        )  # fmt: skip
        submissions = submission_pb2_grpc.SubmissionServiceStub(cluster.channel)
        requests = [
            submission_pb2.SubmitRequest(key=uuid.uuid4().hex, driver=driver) for _ in range(2)
        ]
        replies = [submissions.Submit(request, timeout=20) for request in requests]
        schedulers = scheduler_pb2_grpc.SharedStateServiceStub(cluster.channel)
        stream = schedulers.Subscribe(scheduler_pb2.SubscribeRequest(name="victim"))
        return cls(
            cluster=cluster,
            container_ids=[c.container_id for c in application.containers.values()],
            unit_id=unit.resource_unit_id,
            stream=stream,
            session=next(iter(stream)).subscribed.session,
            submission_ids=[response.submission_id for response in replies],
        )

    def known(self) -> Known:
        """Valid values by the name of a field: what exists, and what fits on it."""
        stub = application_pb2_grpc.ApplicationServiceStub(self.cluster.channel)
        made = [stub.Register(registration(), timeout=20).application_id for _ in range(12)]
        epoch = self.cluster.status().epoch
        return {
            **_KNOWN,
            "application_id": made,
            "RegisterApplicationRequest.application_id": ["", "", *made],
            "container_id": [*self.container_ids, *(f"{x}-x1" for x in made)],
            "container_ids": [*self.container_ids, *(f"{x}-x1" for x in made)],
            "KillApplicationRequest.application_id": made[:1],
            "submission_id": self.submission_ids,
            "KillSubmissionRequest.submission_id": self.submission_ids[:1],
            "RegisterApplicationRequest.submission_id": ["", "", "", self.submission_ids[1]],
            "resource_unit_id": [self.unit_id, "hostile-a/0"],
            "ResourceUnit.resource_unit_id": ["hostile-a/0", "hostile-a/1"],
            "session": [self.session],
            "epoch": [epoch],
        }


_KNOWN: dict[str, list[Any]] = {
    "executor_id": ["1", "2", "7", "driver"],
    "executor_ids": ["1", "2", "7"],
    "name": ["hostile-a", "some-name"],
    "RegisterNode.name": ["hostile-a"],
    "CreateTokenRequest.kind": ["user"],
    "role": ["viewer"],
    "lifetime_s": [60.0],
    "BindNodeRequest.name": ["hostile-a", "node-1"],
    "QueueStated.name": ["root.hostile", "root.hostile.a"],
    "ListQueuesRequest.name": ["root", "default"],
    "WhatIfRequest.queue": ["root.default"],
    "removed": ["root.hostile", "root.hostile.a"],
    "queue": ["", "", "default"],
    "names": ["hostile-a"],
    "node": ["hostile-a"],
    "scheduler": ["victim"],
    "SubscribeRequest.name": ["hostile-s", "hostile-t"],
    "identity": ["identity-1", "identity-1", "identity-2"],
    "incarnation": ["incarnation-1", "incarnation-2"],
    "submission_key": [f"key-{n}" for n in range(500)],
    "submission_attempt": [1],
    "task_id": ["task-1", "task-2", "task-3"],
    "SubmitPipelineTaskRequest.task_id": [""],
    "task_ids": ["task-1", "task-2"],
    "reference": ["no_such_module:pipeline"],
    "after": [],
    "pool": [""],
    "gpu": [],
    "run_limit": [1, 4],
    "vcores": [1, 2],
    "memory_mib": [64, 128, 1024],
    "gpu_memory_mib": [0],
    "heap_mib": [0, 32],
    "gpus": [0],
    "numa_node": [0, -1],
    "lease_token": [0, 1],
    "endpoint": ["127.0.0.1:1"],
    "stream": ["stdout", "stderr"],
    "sha256": ["2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"],
    "PutPieceRequest.data": [b"c"],
    "size_bytes": [1],
    "offset": [0],
    "DriverResource.role": [1],
    "DriverResource.file": [],
    "DriverResource.uri": ["local:/app.py"],
    "DriverResource.fragment": [""],
    "SourceFile.path": ["package/module.py"],
    "SetPolicyModeRequest.mode": ["shadow", "on"],
    "policy": ["pats"],
    "LearnedPolicy.mode": ["shadow", "on"],
    "attempts": [1, 3],
    "SparkLaunch.driver": [""],
    "gang_min": [0, 2],
    "resume": [""],
    "limit": [0, 10],
    "tail_bytes": [0, 10],
    "demand": [1, 64, 0],
    "cpu_speed": [1.0],
    "gpu_speed": [1.0],
    "move_within_s": [0.0],
    "since_s": [0.0],
}


class _Sender:
    def __init__(self, targets: dict[str, list[str]], token: str) -> None:
        self._targets = targets
        self._channels: dict[str, Any] = {
            target: grpc.aio.insecure_channel(target, options=_OPTIONS)
            for found in targets.values()
            for target in found
        }
        self._authorization = ("authorization", f"Bearer {token}")

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)

    def _target(self, case: Case) -> str:
        found = self._targets.get(case.method.containing_service.name) or self._targets[""]
        return found[case.index // 7 % len(found)]

    async def send(self, case: Case, sent: Sent) -> None:
        target = self._target(case)
        status, details = await self._status(case, target)
        for many in (1, 1, 0):
            if not details.startswith(RACE):
                break
            # The stream was ended while more was being sent, and gRPC's client lost the reason.
            fewer = replace(case, messages=case.messages[:many])
            status, details = await self._status(fewer, target)
        if not case.token and status is grpc.StatusCode.DEADLINE_EXCEEDED:
            # Whoever is busy may take its time to refuse.
            status, details = await self._status(case, target, PATIENT_CALL_S)
        sent.cases += 1
        sent.messages += len(case.messages)
        sent.statuses[status.name] += 1
        if status is not REFUSED and status is not grpc.StatusCode.UNIMPLEMENTED:
            sent.replied.add(case.path)
        if status in NEVER:
            sent.wrong.append(f"{case}: {status.name}: {details[:300]!r}")
        if details.startswith(RESET_MESSAGE):
            sent.wrong.append(f"{case}: {status.name}: {details[:300]!r}")
        guarded = not target.startswith("unix:")
        if guarded and not case.token and status is not REFUSED:
            sent.wrong.append(f"{case}: {status.name} without the token: {details[:300]!r}")

    async def _status(
        self, case: Case, target: str, limit_s: float = CALL_S
    ) -> tuple[grpc.StatusCode, str]:
        try:
            await asyncio.wait_for(self._call(case, target, limit_s), 30.0)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        except asyncio.CancelledError:
            return grpc.StatusCode.CANCELLED, ""
        except TimeoutError:
            return grpc.StatusCode.INTERNAL, "the call came to no end"
        return grpc.StatusCode.OK, ""

    async def _call(self, case: Case, target: str, limit_s: float) -> None:
        channel, method = self._channels[target], case.method
        metadata = (self._authorization,) if case.token else ()
        more: dict[str, Any] = {"timeout": limit_s, "metadata": metadata}
        if method.client_streaming and method.server_streaming:
            call: Any = channel.stream_stream(case.path)(_each(case), **more)
        elif method.client_streaming:
            await channel.stream_unary(case.path)(_each(case), **more)
            return
        elif method.server_streaming:
            call = channel.unary_stream(case.path)(case.messages[0], **more)
        else:
            await channel.unary_unary(case.path)(case.messages[0], **more)
            return
        for _ in range(REPLIES_MAX):
            if await call.read() is _EOF:
                break
        else:
            call.cancel()
            return
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            details, nothing = await call.details(), grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, nothing, nothing, details, None)


async def _each(case: Case) -> AsyncIterator[bytes]:
    for message in case.messages:
        yield message


async def _send_all(
    cases: Iterable[Case], targets: dict[str, list[str]], token: str, at_once: int
) -> Sent:
    sent, sender = Sent(), _Sender(targets, token)
    waiting = iter(cases)

    async def work() -> None:
        for case in waiting:
            await sender.send(case, sent)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    finally:
        await sender.close()
    return sent


def send(
    cases: Iterable[Case], targets: dict[str, list[str]], token: str, at_once: int = AT_ONCE
) -> Sent:
    """Send all of them, ``at_once`` in flight at any time."""
    return asyncio.run(_send_all(cases, targets, token, at_once))


def main(seed: int, first: int, count: int = 1) -> None:
    """One by one: prints the reply to each, and new errors in a daemon's log."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(Path(name)))
        cluster.start_master()
        cluster.start_agent()
        application = stack.enter_context(Application(cluster.address, cluster.token))
        application.request("1")
        application.wait_running(1)
        messages = Messages(seed, Victims.of(cluster, application).known())
        targets, seen = targets_of(cluster), ""
        for index in range(first, first + count):
            case = messages.case(index)
            sent = send([case], targets, cluster.token, at_once=1)
            time.sleep(0.05)
            new = cluster.unhandled()
            if count == 1 or sent.wrong or new != seen:
                print(case, dict(sent.statuses), sent.wrong, new[len(seen) :], sep="\n  ")
            seen = new


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
