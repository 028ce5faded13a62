"""Messages between a master and an agent, as events of the other's core."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm import ownership_keys
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import YIELD_GRACE_S, YIELD_GRACE_S_MAX
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    Followed,
    LaunchContext,
    NodeName,
    Resources,
    ResourceUnitId,
    Shortcut,
    Usage,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.errors import InvalidRequest
from hrm.runtime import node as runtime
from hrm.testing.virtual import unit
from hrm.v1 import common_pb2, node_pb2
from hrm.wire.node_stream import (
    from_container,
    from_heartbeat,
    from_order,
    from_rebinding,
    from_registration,
    from_unit,
    to_event,
    to_registration,
    to_report,
    to_unit,
)

X1 = ContainerId("app-1-x1")
STOP = node_pb2.StopContainer(
    container_id=X1, cause=common_pb2.END_CAUSE_KILLED, reason="asked to", grace_s=2.0,
    decommission=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "event"),
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
        (
            {"drop_shuffle_files": node_pb2.DropShuffleFiles(application_id="app-1")},
            e.ApplicationEnded(now=5.0, epoch=7, application_id=ApplicationId("app-1")),
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_each_order_is_one_event_or_none(
    fields: dict[str, object], event: e.NodeEvent | None
) -> None:
    assert to_event(node_pb2.MasterMessage(epoch=7, **fields), 5.0) == event  # type: ignore[arg-type]


def test_a_malformed_order_is_refused() -> None:
    message = node_pb2.MasterMessage(assign=common_pb2.ContainerSpec())
    with pytest.raises(InvalidRequest):
        to_event(message, 5.0)


# Every order and every report, both ways.

NODE = NodeName("n1")
text = st.text(alphabet="abc é", max_size=20)
seconds = st.floats(0.0, 1e9)
spec = st.builds(
    ContainerSpec,
    container_id=st.just(X1),
    application_id=st.just(ApplicationId("app-1")),
    executor_id=st.just("1"),
    resource_profile_id=st.integers(0, 9),
    workload_class=st.sampled_from(WorkloadClass),
    resources=st.builds(Resources, st.integers(1, 64), st.integers(1, 4096), st.integers(0, 9)),
    unit_id=st.just(ResourceUnitId("n1/ru0")),
    heap_mib=st.integers(0, 4096),
    expected_duration_s=seconds,
    launch=st.builds(
        LaunchContext,
        driver_url=text,
        spark_version=text,
        environment=st.dictionaries(text, text, max_size=3).map(lambda x: tuple(sorted(x.items()))),
        java_options=st.lists(text, max_size=3).map(tuple),
        extra_class_path=st.lists(text, max_size=3).map(tuple),
        decommissions=st.booleans(),
        driver=text,
    ),
    user=text,
)
some_ids = st.lists(st.just(X1), max_size=3).map(tuple)
core_count = st.none() | st.integers(1, 64)
ORDERS: dict[type[Any], st.SearchStrategy[Any]] = {
    c.AssignContainer: st.builds(c.AssignContainer, spec=spec),
    c.StopContainer: st.builds(
        c.StopContainer,
        container_id=st.just(X1),
        cause=st.sampled_from(EndCause),
        reason=text,
        grace_s=seconds,
        only_if_waiting=st.booleans(),
        decommission=st.booleans(),
    ),
    c.AcknowledgeEnded: st.builds(c.AcknowledgeEnded, container_ids=some_ids),
    c.SetContainerClass: st.builds(
        c.SetContainerClass,
        container_id=st.just(X1),
        workload_class=st.sampled_from(WorkloadClass),
    ),
    c.RebindUnits: st.builds(
        c.RebindUnits,
        request_id=st.integers(0, 2**31),
        mode=st.none() | st.sampled_from(BindingMode),
        bound_cores=core_count,
        reserve_cores=core_count,
    ),
    c.DropShuffleFiles: st.builds(
        c.DropShuffleFiles, application_id=st.just(ApplicationId("app-1"))
    ),
}
status = st.builds(
    ContainerStatus,
    container_id=st.just(X1),
    application_id=st.just(ApplicationId("app-1")),
    executor_id=st.just("1"),
    resource_profile_id=st.integers(0, 9),
    workload_class=st.sampled_from(WorkloadClass),
    resources=st.just(Resources(1, 512)),
    state=st.sampled_from(ContainerState),
    node=st.sampled_from([NODE, NodeName("")]),
    unit_id=st.just(ResourceUnitId("n1/ru0")),
    requested_at_s=seconds,
    assigned_at_s=seconds,
    started_at_s=seconds,
    ended_at_s=seconds,
    end=st.none()
    | st.builds(
        ContainerEnd,
        cause=st.sampled_from(EndCause),
        exit_code=st.integers(-1, 255),
        message=text,
    ),
    stdout_url=text,
    stderr_url=text,
    usage=st.none()
    | st.builds(
        Usage,
        cpu_percent=seconds,
        memory_mib=st.integers(0, 9),
        processes=st.integers(0, 9),
        disk_mib=st.integers(0, 9),
        gpu_memory_mib=st.integers(0, 9),
    ),
    expected_duration_s=seconds,
)


def test_every_order_has_its_examples() -> None:
    assert set(ORDERS) == set(get_args(c.NodeMessage))


@pytest.mark.parametrize("kind", list(ORDERS), ids=lambda x: x.__name__)
@given(data=st.data(), now=seconds, epoch=st.integers(0, 2**40))
def test_an_order_arrives_as_in_the_virtual_cluster(
    kind: type[Any], data: st.DataObject, now: float, epoch: int
) -> None:
    order = data.draw(ORDERS[kind])
    sent = node_pb2.MasterMessage.FromString(from_order(order, epoch).SerializeToString())
    assert to_event(sent, now) == runtime.order(order, now, epoch)


@given(status=status, now=seconds)
def test_a_container_arrives(status: ContainerStatus, now: float) -> None:
    event = to_report(from_container(status), NODE, "i1", now)
    assert event == e.ContainerReported(
        now=now, node=NODE, incarnation="i1", sequence=0, container=status
    )


@given(statuses=st.lists(status, max_size=3).map(tuple), now=seconds)
def test_a_heartbeat_arrives(statuses: tuple[ContainerStatus, ...], now: float) -> None:
    usage = Usage(cpu_percent=5.0, memory_mib=7, memory_total_mib=9, load_1m=0.5, disk_mib=1)
    shortcut = Shortcut(name="class-archive", state="ready", note="n", used=2, missed=1)
    event = to_report(from_heartbeat(usage, statuses, [shortcut]), NODE, "i1", now)
    assert event == e.NodeReported(
        now=now, node=NODE, incarnation="i1", sequence=0, containers=statuses, usage=usage,
        shortcuts=(shortcut,),
    )  # fmt: skip


@given(accepted=st.booleans(), message=text, number=st.integers(0, 2**31))
def test_a_reply_to_a_rebinding_arrives(accepted: bool, message: str, number: int) -> None:
    response = c.ReplyToRebinding(request_id=number, accepted=accepted, message=message)
    assert to_report(from_rebinding(response), NODE, "i1", 1.0) == e.RebindReplied(
        now=1.0, node=NODE, request_id=number, accepted=accepted, message=message
    )


@given(statuses=st.lists(status, max_size=3).map(tuple))
def test_a_registration_arrives(statuses: tuple[ContainerStatus, ...]) -> None:
    part = replace(unit("n1", vcores=4), lent=Resources(2, 100), borrowed=Resources(0, 7))
    fields = {"name": "n1", "identity": "i", "incarnation": "i1", "host": "h", "endpoint": "h:1",
            "isolation": "none", "spark_versions": ["4.0"], "platform": "cpu", "remarks": ["r"],
            "ownership_key": ownership_keys.new_key(), "labels": ["ssd", "zone=a"],
            "preemption_grace_s": 0.0}  # fmt: skip
    runtime = Runtime(spark="4.0", scala="2.13", java="17", python="3.11")
    message = from_registration([part], statuses, Followed(7, "e7"), (runtime,), **fields)
    assert to_registration(message, 3.0) == e.NodeRegistered(
        now=3.0, call_id=0, node=NODE, identity="i", incarnation="i1", sequence=0, host="h",
        endpoint="h:1", units=(part,), containers=statuses, isolation="none",
        spark_versions=("4.0",), platform="cpu", remarks=("r",),
        owner=ownership_keys.owner_of(str(fields["ownership_key"])), followed=Followed(7, "e7"),
        labels=frozenset({"ssd", "zone=a"}), runtimes=(runtime,), preemption_grace_s=0.0,
    )  # fmt: skip
    message.register.ClearField("preemption_grace_s")
    assert to_registration(message, 3.0).preemption_grace_s is None
    del message.register.runtimes[:]
    older = to_registration(message, 3.0)
    assert older.runtimes == (Runtime(spark="4.0"),), "as one that reports versions alone"
    del message.register.spark_versions[:]
    assert to_registration(message, 3.0).runtimes is None
    message.register.labels.append("a b")
    with pytest.raises(InvalidRequest, match="'a b' is no label"):
        to_registration(message, 3.0)


@pytest.mark.parametrize("field", ["lent", "borrowed"])
@pytest.mark.parametrize("dimension", ["vcores", "memory_mib", "gpu_memory_mib"])
def test_a_unit_lends_and_borrows_no_more_than_it_has(field: str, dimension: str) -> None:
    message = from_unit(unit("n1", vcores=4))
    part = getattr(message, field)
    setattr(part, dimension, getattr(message.capacity, dimension))
    assert getattr(getattr(to_unit(message), field), dimension) == getattr(part, dimension)
    setattr(part, dimension, getattr(message.capacity, dimension) + 1)
    with pytest.raises(InvalidRequest, match=f"{field} of resource unit .* is more than it has"):
        to_unit(message)


@pytest.mark.parametrize("preempts", [True, False])
def test_a_unit_says_whether_batch_is_preempted_there(preempts: bool) -> None:
    one = replace(unit("n1"), preempts=preempts)
    assert to_unit(from_unit(one)) == one


def test_an_agent_that_does_not_say_so_preempts() -> None:
    message = from_unit(unit("n1"))
    message.ClearField("no_preemption")
    assert to_unit(message).preempts


@pytest.mark.parametrize("grace_s", [0.0, 0.7, YIELD_GRACE_S, YIELD_GRACE_S_MAX])
def test_a_unit_says_how_long_what_yields_there_has_to_end(grace_s: float) -> None:
    one = replace(unit("n1"), yield_grace_s=grace_s)
    assert to_unit(from_unit(one)) == one


def test_what_yields_at_an_older_agent_has_the_default_time() -> None:
    message = from_unit(replace(unit("n1"), yield_grace_s=60.0))
    message.ClearField("yield_grace_s")
    assert to_unit(message).yield_grace_s == YIELD_GRACE_S


@pytest.mark.parametrize("grace_s", [math.nan, -1.0, 3_600.5, math.inf, -math.inf])
def test_a_grace_period_that_no_agent_has_is_refused(grace_s: float) -> None:
    message = from_unit(unit("n1"))
    message.yield_grace_s = grace_s
    with pytest.raises(InvalidRequest, match=r"yield_grace_s is .*; it must be"):
        to_unit(message)
