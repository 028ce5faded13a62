"""Containers that use several GPUs at once: units with as many, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster

EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])
MODES = pytest.mark.parametrize("mode", BindingMode)
SIZE = Resources(1, 128)


def machine(gpus: int = 4, cores: int = 16) -> Hardware:
    """GPUs with odd numbers are on another socket than those with even ones."""
    return Hardware(
        cores=tuple(Core(x, x % 2) for x in range(cores)),
        memory_mib=1024 * cores,
        gpus=tuple(Gpu(index=x, memory_mib=1000, numa=x % 2) for x in range(gpus)),
    )


def units_of(hardware: Hardware, mode: BindingMode, size: int) -> list[ResourceUnit]:
    binding = Partitioning(mode=mode, gpus_per_unit=size)
    return [x for x in partition(NodeName("n1"), hardware, binding) if x.gpus]


def numbers(units: list[ResourceUnit]) -> list[list[int]]:
    return [[gpu.index for gpu in unit.gpus] for unit in units]


def request(
    cluster: VirtualCluster, app: ApplicationId, many: int, gpus: int, mib: int = 0
) -> None:
    requests = tuple(
        ContainerRequest(
            executor_id=str(number + 1),
            resource_profile_id=0,
            resources=replace(SIZE, gpu_memory_mib=mib),
            gpus=gpus,
        )
        for number in range(many)
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    )


def cluster_of(
    size: int, schedulers: int = 2, mode: BindingMode = BindingMode.SHARED
) -> VirtualCluster:
    cluster = VirtualCluster(schedulers=schedulers)
    cluster.add_hardware("n1", machine(), Partitioning(mode=mode, gpus_per_unit=size))
    cluster.settle()
    return cluster


def refusal(cluster: VirtualCluster, app: ApplicationId) -> str:
    (notice,) = [x for x in cluster.notices[app] if isinstance(x, c.RequestRefused)]
    return notice.message


@MODES
def test_the_gpus_of_a_unit_are_near_each_other(mode: BindingMode) -> None:
    assert numbers(units_of(machine(), mode, 2)) == [[0, 2], [1, 3]]
    assert numbers(units_of(machine(5), mode, 2)) == [[0, 2], [1, 3], [4]]
    assert numbers(units_of(machine(), mode, 4)) == [[0, 2, 1, 3]]
    assert numbers(units_of(machine(), mode, 1)) == [[0], [1], [2], [3]]


def test_distances_between_sockets_count_and_then_that_gpus_are_alike() -> None:
    gpus = tuple(
        Gpu(index=x, memory_mib=mib, numa=numa)
        for x, (numa, mib) in enumerate([(0, 1000), (1, 1000), (2, 1000), (2, 500), (2, 1000)])
    )
    hardware = replace(machine(), gpus=gpus, distances=((0, 1, 40), (0, 2, 12)))
    units = units_of(hardware, BindingMode.EVEN, 2)
    assert numbers(units)[0] == [0, 2]
    assert numbers(units) == [[0, 2], [1, 4], [3]]


@MODES
def test_what_a_unit_of_several_gpus_has(mode: BindingMode) -> None:
    hardware = machine()
    (first, second) = units_of(hardware, mode, 2)
    single = units_of(hardware, mode, 1)[0]
    shared = mode is BindingMode.SHARED
    assert first.capacity.gpu_memory_mib == second.capacity.gpu_memory_mib == 2000
    assert first.capacity.vcores == single.capacity.vcores * (1 if shared else 2)
    assert len(first.cpus) == (0 if shared else first.capacity.vcores)
    if mode is BindingMode.EVEN:
        assert all(cpu % 2 == 0 for cpu in first.cpus), "the cores of their socket"


@EACH
@MODES
def test_whole_gpus_are_one_containers_alone(schedulers: int, mode: BindingMode) -> None:
    cluster = cluster_of(2, schedulers, mode)
    app = cluster.submit(0)
    request(cluster, app, 3, gpus=2)
    cluster.settle()
    rest = "pending" if mode is BindingMode.SHARED else "waiting"
    assert cluster.states(app) == {"running": 2, rest: 1}, "units that share cores have no queue"
    running = [x for x in cluster.app(app).containers.values() if x.state.value == "running"]
    assert sorted(x.unit_id for x in running) == ["n1/gpu0", "n1/gpu1"]
    assert {x.request.resources.gpu_memory_mib for x in cluster.app(app).containers.values()} == {
        2000
    }


@EACH
def test_parts_of_several_gpus_are_shared(schedulers: int) -> None:
    cluster = cluster_of(2, schedulers)
    app = cluster.submit(0)
    request(cluster, app, 5, gpus=2, mib=1000)
    cluster.settle()
    assert cluster.states(app) == {"running": 4, "pending": 1}, "half of each GPU for each"


def test_units_of_another_size_serve_none() -> None:
    cluster = cluster_of(2)
    cluster.add_hardware("n2", machine(2), Partitioning())
    cluster.settle()
    one, two = cluster.submit(0), cluster.submit(0)
    request(cluster, one, 3, gpus=1)
    request(cluster, two, 3, gpus=2)
    cluster.settle()
    assert cluster.states(one)["running"] == cluster.states(two)["running"] == 2
    assert {x.node for x in cluster.app(one).containers.values()} - {None} == {"n2"}
    assert {x.node for x in cluster.app(two).containers.values()} - {None} == {"n1"}


@pytest.mark.parametrize("mib", [0, 500])
def test_a_size_that_no_unit_has_is_refused_and_told_what_to_set(mib: int) -> None:
    cluster = cluster_of(2)
    app = cluster.submit(0)
    request(cluster, app, 1, gpus=3, mib=mib)
    cluster.settle()
    assert "no node offers 3 GPUs in one resource unit, only 2" in refusal(cluster, app)
    assert "set gpus_per_unit = 3" in refusal(cluster, app)
    single = cluster.submit(0)
    request(cluster, single, 1, gpus=1, mib=mib)
    cluster.settle()
    assert "spark.executor.resource.gpu.amount to 2" in refusal(cluster, single)


def test_more_device_memory_than_each_gpu_has_is_refused() -> None:
    cluster = cluster_of(2)
    app = cluster.submit(0)
    request(cluster, app, 1, gpus=2, mib=2100)
    cluster.settle()
    assert "lower spark.hrm.executor.gpu.memory" in refusal(cluster, app)


@EACH
def test_units_of_several_gpus_are_shared_fairly(schedulers: int) -> None:
    cluster = VirtualCluster(schedulers=schedulers)
    for number in range(4):
        cluster.add_hardware(f"a{number}", machine(2), Partitioning(gpus_per_unit=2))
    cluster.settle()
    apps = [cluster.submit(0), cluster.submit(0)]
    for app in apps:
        request(cluster, app, 4, gpus=2)
    cluster.settle()
    assert [cluster.states(app)["running"] for app in apps] == [2, 2]


@EACH
@MODES
def test_units_that_run_one_container_a_gpu_run_those_with_several(
    schedulers: int, mode: BindingMode
) -> None:
    cluster = VirtualCluster(schedulers=schedulers)
    binding = Partitioning(mode=mode, bound_cores=1, gpus_per_unit=2)
    cluster.add_hardware("n1", replace(machine(), run_limit=1), binding)
    cluster.settle()
    app = cluster.submit(0)
    request(cluster, app, 2, gpus=2)
    cluster.settle()

    assert cluster.states(app) == {"running": 2}
