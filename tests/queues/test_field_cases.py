"""Each case from another project's tests, on HRM's own master and nodes in virtual time.

What runs is started first, one container after the other; then what waits is requested. When that
has come to rest, which containers were lost, and how many started, is as the case says of HRM.
Drivers request again what they lose, as those of Spark do: nothing may go back and forth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    FirstExecutors,
    Gpu,
    Resources,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing.virtual import VirtualCluster, unit
from tests.queues.field_cases import App, Case, Group, Node, Size, cases

GIB = 1024
ONE = Resources(1, GIB)
REST_S = 150
"""Until all is done, and nothing more happens: a tenth of all containers is preempted a round."""


def resources(size: Size) -> Resources:
    return Resources(int(size.cores), int(size.gib * GIB), int(size.gpu_gib * GIB))


def spec(name: str, stated: Mapping[str, Any]) -> QueueSpec:
    values = {
        key: value if not isinstance(value, Size) else {
            "cores": int(value.cores),
            "memory": f"{value.gib * GIB:.0f}m",
            "gpu_memory": f"{value.gpu_gib * GIB:.0f}m",
        }
        for key, value in stated.items()
    }  # fmt: skip
    return spec_from(name if name == "root" else f"root.{name}", values)


@dataclass(slots=True)
class Slot:
    """One container that an application wants. ``first``: the one that it began with."""

    app: App
    group: Group
    first: ContainerId
    current: ContainerId
    waited: bool
    ended: bool = False


class Situation:
    """One case on a cluster. An application of the case is one of HRM for each node that its
    containers have to run on, for a requirement is of an application."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.apps = {app.name: app for app in case.apps}
        bounds = Bounds(queue_use_half_life_s=0.0)
        if case.grace_s is not None:
            bounds = replace(bounds, queue_preemption_grace_s=case.grace_s)
        self.cluster = VirtualCluster(
            queues=[spec(name, stated) for name, stated in case.queues.items()],
            bounds=bounds,
            drain_s=1.0 if case.drain_s is None else case.drain_s,
        )
        self.slots: list[Slot] = []
        self.drivers: list[ContainerId] = []
        self.ids: dict[tuple[str, str], ApplicationId] = {}
        self.executors: dict[ApplicationId, Iterator[int]] = {}
        for node in case.nodes:
            self.add(node)
        self.cluster.settle()

    def add(self, node: Node) -> None:
        size = resources(node.size)
        labels = frozenset({node.name, *node.labels})
        properties = NodeProperties(host=node.name, labels=labels)
        if not size.gpu_memory_mib:
            one = unit(node.name, size.vcores, size.memory_mib)
            self.cluster.add_node(one, properties=properties)
            return
        hardware = Hardware(
            cores=tuple(Core(number) for number in range(size.vcores)),
            memory_mib=size.memory_mib,
            gpus=(Gpu(index=0, memory_mib=size.gpu_memory_mib),),
        )
        self.cluster.add_hardware(node.name, hardware, Partitioning(mode=BindingMode.SHARED))

    def run(self) -> None:
        """All that the case says, until it has come to rest."""
        for app in self.case.apps:
            self.start(app)
        self.cluster.settle()
        there = self.processes()
        begun = [*self.drivers, *(slot.first for slot in self.slots)]
        assert all(x in there for x in begun), f"{self.case.name} does not begin as it says"
        stated = {x: {**self.case.queues[x], **y} for x, y in self.case.later.items()}
        if stated:
            self.cluster.change_queues(*(spec(x, y) for x, y in stated.items()))
        for app in self.case.apps:
            for group in app.waits:
                self.request(app, group, group.count, waits=True)
        self.rest(REST_S)
        self.end()

    def start(self, app: App) -> None:
        """What runs of it, each container a moment after the one before."""
        for _ in range(app.drivers):
            self.start_driver(app)
            self.cluster.settle()
        left = app.gang
        for group in app.runs:
            done = 0
            while done < group.count:
                many = max(1, left)
                self.request(app, group, many, waits=False)
                done, left = done + many, 0
                self.cluster.advance(0.1)

    def end(self) -> None:
        """What ends by itself."""
        for name, many in self.case.ends.items():
            slots = [x for x in self.slots if x.app.name == name and not x.waited]
            for slot in slots[:many]:
                slot.ended = True
                application_id, _, executor = slot.current.rpartition("-x")
                self.cluster.end_process(ApplicationId(application_id), int(executor))
                self.rest(20)
        for name in self.case.finishes:
            for slot in self.slots:
                slot.ended = slot.ended or slot.app.name == name
            self.cluster.finish(self.id_of(self.apps[name], ""))
            self.rest(20)

    def rest(self, seconds: int) -> None:
        """Time passes. What applications lose, and what comes back from a unit where it waited,
        they request again."""
        for _ in range(seconds):
            self.cluster.advance(1.0)
            for slot in self.slots:
                application_id = ApplicationId(slot.current.rpartition("-x")[0])
                live = self.cluster.app(application_id).containers
                if slot.current not in live and not slot.ended:
                    (slot.current,) = self.submit(slot.app, slot.group, 1)

    def start_driver(self, app: App) -> None:
        name = ApplicationId(f"driver-20260101000000-{len(self.drivers) + 1:04d}")
        first = FirstExecutors(count=1, resources=ONE, stated=True)
        self.cluster.submit(
            1, ONE, WorkloadClass.BATCH, new_id=name, first_executors=first, queue=app.queue,
            user=app.user,
        )  # fmt: skip
        self.ids[app.name, "driver"] = name
        self.drivers.append(container_id_of(name, "1"))

    def id_of(self, app: App, node: str) -> ApplicationId:
        """The application of HRM for what must run on this node."""
        found = self.ids.get((app.name, node))
        if found is not None:
            return found
        labels = {*app.labels, node} - {""}
        found = self.cluster.submit(
            0,
            workload_class=WorkloadClass.STREAM if app.stream else WorkloadClass.BATCH,
            name=app.name,
            gang_min=app.gang,
            driver=self.ids.get((app.name, "driver")),
            requires=NodeRequirement(labels=frozenset(labels)) if labels else None,
            user=app.user,
            queue=app.queue,
            priority=app.priority,
        )
        self.ids[app.name, node] = found
        self.executors[found] = itertools.count(1)
        return found

    def request(self, app: App, group: Group, many: int, *, waits: bool) -> None:
        for each in self.submit(app, group, many):
            self.slots.append(Slot(app, group, each, each, waits))

    def submit(self, app: App, group: Group, many: int) -> list[ContainerId]:
        application_id = self.id_of(app, group.node)
        numbers = list(itertools.islice(self.executors[application_id], many))
        self.cluster.request(application_id, numbers, resources(group.size))
        return [container_id_of(application_id, str(number)) for number in numbers]

    def processes(self) -> set[ContainerId]:
        return {x for node in self.cluster.nodes.values() for x in node.processes}

    def lost(self) -> dict[str, list[int]]:
        """Of each application, which containers ended that should not have, by their order."""
        there, found = self.processes(), dict[str, list[int]]()
        for app in self.case.apps:
            slots = [x for x in self.slots if x.app is app and not x.waited]
            numbers = [
                number
                for number, slot in enumerate(slots, 1)
                if slot.first not in there and not slot.ended
            ]
            if numbers:
                found[app.name] = numbers
        return found

    def started(self) -> dict[str, int]:
        there, found = self.processes(), dict[str, int]()
        for slot in self.slots:
            if slot.waited and (slot.ended or slot.current in there):
                found[slot.app.name] = found.get(slot.app.name, 0) + 1
        return found


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_hrm_does_what_the_case_says(case: Case) -> None:
    situation = Situation(case)
    situation.run()
    lost = situation.lost()
    expected = {
        name: len(lost.get(name, ())) if isinstance(which, int) else tuple(lost.get(name, ()))
        for name, which in case.hrm.lost.items()
    }
    assert lost.keys() == case.hrm.lost.keys() and expected == case.hrm.lost, lost
    assert situation.started() == case.hrm.started
    assert set(situation.drivers) <= situation.processes(), "a driver was preempted"
