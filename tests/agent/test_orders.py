"""What a master says, in the words of an agent's core."""

from __future__ import annotations

import pytest

from hrm.agent.orders import to_event
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ContainerId, EndCause, WorkloadClass
from hrm.errors import InvalidRequest
from hrm.v1 import common_pb2, node_pb2

X1 = ContainerId("app-1-x1")
STOP = node_pb2.StopContainer(
    container_id=X1, cause=common_pb2.END_CAUSE_KILLED, reason="asked to", grace_s=2.0,
    decommission=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "event"),
    [
        (
            {"stop": STOP},
            e.StopReceived(
                now=5.0, epoch=7, container_id=X1, cause=EndCause.KILLED, reason="asked to",
                grace_s=2.0, decommission=True,
            ),
        ),
        (
            {"acknowledge": node_pb2.AcknowledgeEnded(container_ids=[X1])},
            e.EndsAcknowledged(now=5.0, epoch=7, container_ids=(X1,)),
        ),
        (
            {
                "set_class": node_pb2.SetContainerClass(
                    container_id=X1, workload_class=common_pb2.WORKLOAD_CLASS_STREAM
                )
            },
            e.ContainerClassSet(
                now=5.0, epoch=7, container_id=X1, workload_class=WorkloadClass.STREAM
            ),
        ),
        ({"set_class": node_pb2.SetContainerClass(container_id=X1)}, None),
        ({"drop_shuffle_files": node_pb2.DropShuffleFiles(application_id="app-1")}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_each_order_is_one_event_or_none(
    said: dict[str, object], event: e.NodeEvent | None
) -> None:
    assert to_event(node_pb2.MasterMessage(epoch=7, **said), 5.0) == event  # type: ignore[arg-type]


def test_a_malformed_order_is_refused() -> None:
    message = node_pb2.MasterMessage(assign=common_pb2.ContainerSpec())
    with pytest.raises(InvalidRequest):
        to_event(message, 5.0)
