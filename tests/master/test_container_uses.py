"""What nodes have recorded of GPUs is shown to the user whose containers it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidRequest
from hrm.master import container_uses
from hrm.master.container_uses import ContainerUseReports
from hrm.policies.shared_gpu.container_uses import ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.v1 import common_pb2, node_pb2
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire.container_uses import from_container_use, to_container_uses
from tests.master.pipeline_service import serving
from tests.master.submitting import agent
from tests.master.test_services import TIMEOUT_S


def message(
    name: str = "train", user: str = "ann", mib: float = 700.0
) -> common_pb2.ContainerGpuUse:
    kind = ContainerKind(user, name, "executor", 0, 1_000)
    parts = (GpuUsePart(0.5, mib, 0.5, 0.0),) * USE_PARTS
    return from_container_use(kind, RecordedUse(parts, 3))


async def test_a_heartbeats_records_are_in_its_users_profiles(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, agent(at.master) as node:
        beat = node_pb2.NodeHeartbeat(gpu_uses=[message(), message(user="bob")])
        await node._call.write(node_pb2.NodeMessage(sequence=2, heartbeat=beat))
        ask = pb.GetPipelineProfilesRequest(name="train", asker="ann")
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := (await at.stub.GetProfiles(ask)).containers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # nothing is notified
        (one,) = found
        assert (one.user, one.node, one.runs, len(one.use)) == ("ann", "n1", 3, USE_PARTS)
        ask.name = "other"
        assert not (await at.stub.GetProfiles(ask)).containers


async def test_a_record_that_is_none_ends_the_stream_with_the_reason(tmp_path: Path) -> None:
    wrong = message(mib=-1.0)
    async with serving(tmp_path) as at, agent(at.master) as node:
        beat = node_pb2.NodeHeartbeat(gpu_uses=[wrong])
        await node._call.write(node_pb2.NodeMessage(sequence=2, heartbeat=beat))
        with pytest.raises(grpc.aio.AioRpcError, match=r"memory_mib = -1\.0"):
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    await node._call.read()


def test_records_go_over_the_wire_whole() -> None:
    ((kind, use),) = to_container_uses([message()])
    assert kind == ContainerKind("ann", "train", "executor", 0, 1_000)
    assert use.runs == 3 and use.parts[0] == GpuUsePart(0.5, 700.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"part": "other"}, "gpu_uses.part is 'other'; it must be one of executor"),
        ({"application_name": ""}, "has no parts, or no name"),
        ({"runs": 0}, "gpu_uses.runs"),
        ({"gpu_memory_mib": -1}, "gpu_uses.gpu_memory_mib"),
    ],
)
def test_what_is_no_record_is_refused(changes: dict[str, object], why: str) -> None:
    made = message()
    for name, value in changes.items():
        setattr(made, name, value)
    with pytest.raises(InvalidRequest, match=why):
        to_container_uses([made])
    del made.use[:]
    with pytest.raises(InvalidRequest):
        to_container_uses([made])


def test_what_was_reported_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_uses, "RECORDS_MAX", 2)
    reports = ContainerUseReports()
    for name in ("a", "b", "a", "c"):
        reports.reported(NodeName("n1"), [message(name)])
    assert [bool(reports.of("ann", name)) for name in ("a", "b", "c")] == [True, False, True]
    assert reports.of("bob", "a") == []
