"""That a container yields goes to its node, back with its status, and to schedulers elsewhere."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.messages.claims import Entry
from hrm.core.messages.state_changes import JobImage, StateChanged, UnitState
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import unit
from hrm.v1 import application_pb2, scheduler_pb2
from hrm.wire import applications, codec, shared_state

BATCH = WorkloadClass.BATCH
SIZE = Resources(1, 512)
NAMES = {
    "container_id": ContainerId("app-1-x1"),
    "application_id": ApplicationId("app-1"),
    "executor_id": "1",
    "resource_profile_id": 0,
    "workload_class": BATCH,
    "resources": SIZE,
    "unit_id": ResourceUnitId("n1/cpu"),
}


def test_of_a_spec_and_a_status() -> None:
    spec = ContainerSpec(**NAMES, yields=True)  # type: ignore[arg-type]
    assert codec.to_spec(codec.from_spec(spec)) == spec
    status = ContainerStatus(**NAMES, state=ContainerState.RUNNING, yields=True)  # type: ignore[arg-type]
    assert codec.to_status(codec.from_status(status)) == status


def test_of_a_request() -> None:
    update = application_pb2.ApplicationUpdate()
    for yields in (True, False):
        update.request.containers.add(
            executor_id=str(yields), resources=codec.from_resources(SIZE), yields=yields
        )
    event = applications.to_event(update, ApplicationId("app-1"), 0.0)
    assert [x.yields for x in event.requests] == [True, False]  # type: ignore[union-attr]


def test_of_what_schedulers_of_other_processes_see() -> None:
    first, second = (
        Entry(ContainerId(x), BATCH, (1, 512, 0, 1), 60.0, yields=True) for x in ("a", "b")
    )
    image = UnitState(
        unit=replace(unit("n1"), yield_grace_s=60.0),
        node=NodeName("n1"),
        is_open=True,
        waiting_limit=3,
        running=(first.started(5.0),),
        yielding_waiting=(second,),
    )
    request = ContainerRequest(executor_id="1", resource_profile_id=0, resources=SIZE, yields=True)
    job = JobImage(
        application_id=ApplicationId("app-1"),
        workload_class=BATCH,
        pending=((ContainerId("c"), request, 1.0),),
    )
    changed = StateChanged(sequence=1, now=0.0, units=(image,), jobs=(job,))
    sent = scheduler_pb2.SchedulerMessage.FromString(shared_state.ChangeEncoder().encode(changed))
    found = shared_state.to_change(sent.change)
    assert found.units == (image,)
    assert found.jobs[0].pending == job.pending
