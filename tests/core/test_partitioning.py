"""How a node is partitioned into resource units, and that nothing is lost or invented in it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.vocabulary.model import NOTHING, Gpu, NodeName, Resources
from hrm.core.vocabulary.partitioning import (
    BindingMode,
    Core,
    Hardware,
    Partitioning,
    partition,
)
from hrm.errors import InvalidRequest

NAME = NodeName("n1")

TWO_SOCKETS = Hardware(
    cores=tuple(Core(number, numa=number // 4) for number in range(8)),
    memory_mib=8000,
    gpus=(Gpu(index=0, memory_mib=100, numa=1), Gpu(index=1, memory_mib=200, numa=0)),
)


def test_shared_cores_are_one_pool_for_all() -> None:
    cpu, gpu0, gpu1 = partition(NAME, TWO_SOCKETS, Partitioning(mode=BindingMode.SHARED))
    assert (cpu.unit_id, gpu0.unit_id, gpu1.unit_id) == ("n1/cpu", "n1/gpu0", "n1/gpu1")
    assert cpu.capacity == Resources(8, 8000)
    assert gpu1.capacity == Resources(8, 8000, 200), "at most; nothing is kept for it"
    assert gpu1.own_capacity == Resources(0, 0, 200)
    assert gpu0.pool == gpu1.pool == cpu.unit_id
    assert all(not unit.cpus for unit in (cpu, gpu0, gpu1)), "nothing is pinned"


def test_partial_binding_takes_the_nearest_cores_and_leaves_the_rest() -> None:
    binding = Partitioning(mode=BindingMode.PARTIAL, bound_cores=2)
    cpu, gpu0, gpu1 = partition(NAME, TWO_SOCKETS, binding)
    assert gpu0.cpus == (4, 5), "GPU 0 is on NUMA node 1"
    assert gpu1.cpus == (0, 1)
    assert cpu.cpus == (2, 3, 6, 7)
    assert [unit.capacity.memory_mib for unit in (cpu, gpu0, gpu1)] == [4000, 2000, 2000]
    assert gpu0.gpu_only and not cpu.gpu_only


def test_an_even_split_has_no_unit_without_a_gpu() -> None:
    gpu0, gpu1 = partition(NAME, TWO_SOCKETS, Partitioning(mode=BindingMode.EVEN))
    assert gpu0.cpus == (4, 5, 6, 7)
    assert gpu1.cpus == (0, 1, 2, 3)
    assert not gpu0.gpu_only, "there is no other unit for containers without need of a GPU"


def test_gpus_of_one_socket_share_its_cores_fairly() -> None:
    hardware = replace(
        TWO_SOCKETS, gpus=(Gpu(index=0, memory_mib=1, numa=0), Gpu(index=1, memory_mib=1, numa=0))
    )
    _, gpu0, gpu1 = partition(NAME, hardware, Partitioning(mode=BindingMode.PARTIAL, bound_cores=3))
    near = [len([c for c in unit.cpus if c < 4]) for unit in (gpu0, gpu1)]
    assert near == [2, 2]


def test_the_firmwares_distances_decide_where_it_reports_them() -> None:
    hardware = Hardware(
        cores=(Core(0, numa=1), Core(1, numa=2), Core(2, numa=1)),
        memory_mib=300,
        gpus=(Gpu(index=0, memory_mib=1, numa=0),),
        distances=((0, 1, 30), (0, 2, 11)),
    )
    _, gpu = partition(NAME, hardware, Partitioning(mode=BindingMode.PARTIAL))
    assert gpu.cpus == (1,)


def test_memory_next_to_a_gpu_can_be_a_number() -> None:
    binding = Partitioning(mode=BindingMode.PARTIAL, gpu_host_memory_mib=500)
    assert [u.capacity.memory_mib for u in partition(NAME, TWO_SOCKETS, binding)] == [
        7000,
        500,
        500,
    ]


def test_cores_that_the_machine_does_not_have_are_not_pinned() -> None:
    hardware = replace(TWO_SOCKETS, cores=tuple(Core(None) for _ in range(8)))
    for unit in partition(NAME, hardware, Partitioning(mode=BindingMode.EVEN)):
        assert unit.cpus == ()


@pytest.mark.parametrize("mode", BindingMode)
def test_a_node_without_gpus_is_one_unit_in_every_mode(mode: BindingMode) -> None:
    hardware = replace(TWO_SOCKETS, gpus=())
    (unit,) = partition(NAME, hardware, Partitioning(mode=mode))
    assert unit.capacity == Resources(8, 8000)


IMPOSSIBLE = {
    "more GPUs than exist": (
        Partitioning(gpu_limit=3),
        TWO_SOCKETS,
        "gpu_limit is 3, but the node has",
    ),
    "more cores than exist": (
        Partitioning(mode=BindingMode.PARTIAL, bound_cores=5),
        TWO_SOCKETS,
        "5 cores for each of 2 GPUs are 10, but the node offers 8",
    ),
    "a reserve larger than the rest": (
        Partitioning(mode=BindingMode.PARTIAL, bound_cores=3, reserve_cores=3),
        TWO_SOCKETS,
        "leave 2 of 8, fewer than the 3 kept",
    ),
    "fewer cores than GPUs": (
        Partitioning(mode=BindingMode.EVEN),
        replace(TWO_SOCKETS, cores=(Core(0),)),
        "1 cores cannot be split over 2 GPUs",
    ),
    "more memory than there is": (
        Partitioning(mode=BindingMode.EVEN, gpu_host_memory_mib=5000),
        TWO_SOCKETS,
        "leave -2000 of 8000 MiB",
    ),
    "too little memory": (
        Partitioning(mode=BindingMode.EVEN),
        replace(TWO_SOCKETS, memory_mib=1),
        "1 MiB are too few for 2 units",
    ),
    "a negative number": (
        Partitioning(mode=BindingMode.PARTIAL, reserve_cores=-1),
        TWO_SOCKETS,
        "reserve_cores is -1",
    ),
    "no number": (
        Partitioning(mode=BindingMode.PARTIAL, bound_cores=math.nan),  # type: ignore[arg-type]
        TWO_SOCKETS,
        "bound_cores is nan",
    ),
    "one core twice": (
        Partitioning(),
        replace(TWO_SOCKETS, cores=(Core(1), Core(1))),
        "names one core twice",
    ),
    "one GPU twice": (
        Partitioning(),
        replace(TWO_SOCKETS, gpus=(TWO_SOCKETS.gpus[0],) * 2),
        "names one GPU twice",
    ),
    "a GPU without memory": (
        Partitioning(),
        replace(TWO_SOCKETS, gpus=(Gpu(index=0, memory_mib=0),)),
        "at least one MiB of device memory",
    ),
    "nothing at all": (Partitioning(), replace(TWO_SOCKETS, cores=()), "at least one core"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_binding_is_refused_with_the_reason(case: str) -> None:
    binding, hardware, reason = IMPOSSIBLE[case]
    with pytest.raises(InvalidRequest, match=reason):
        partition(NAME, hardware, binding)


hardwares = st.builds(
    lambda numas, memory_mib, gpus, run_limit: Hardware(
        cores=tuple(Core(number, numa) for number, numa in enumerate(numas)),
        memory_mib=memory_mib,
        gpus=tuple(
            Gpu(index=index, memory_mib=mib, numa=numa) for index, (mib, numa) in enumerate(gpus)
        ),
        run_limit=run_limit,
    ),
    st.lists(st.integers(-1, 2), min_size=1, max_size=24),
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(1, 1000), st.integers(-1, 2)), max_size=5),
    st.integers(0, 8),
)
bindings = st.builds(
    lambda mode, bound, reserve, memory, limit: Partitioning(
        mode=mode,
        bound_cores=bound,
        reserve_cores=reserve,
        gpu_host_memory_mib=memory,
        gpu_limit=limit,
    ),
    st.sampled_from(BindingMode),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([0, 0, 1, 5000]),
    st.sampled_from([None, None, 0, 1, 2]),
)


@given(hardwares, bindings)
def test_every_partitioning_conserves_cores_memory_and_device_memory(
    hardware: Hardware, binding: Partitioning
) -> None:
    try:
        units = partition(NAME, hardware, binding)
    except InvalidRequest:
        return
    gpus = hardware.gpus[: binding.gpu_limit]
    total = sum((unit.own_capacity for unit in units), NOTHING)
    device_mib = sum(gpu.memory_mib for gpu in gpus)
    assert total == Resources(len(hardware.cores), hardware.memory_mib, device_mib)
    assert [unit.gpu for unit in units if unit.gpu] == list(gpus), "each GPU in one unit"
    pinned = [cpu for unit in units for cpu in unit.cpus]
    assert len(set(pinned)) == len(pinned), "no core belongs to two units"
    assert set(pinned) <= {core.number for core in hardware.cores}
    assert len({unit.unit_id for unit in units}) == len(units)
    assert all(min(u.capacity.vcores, u.capacity.memory_mib, u.run_limit) >= 1 for u in units)
    if gpus and binding.mode is BindingMode.PARTIAL:
        kept = sum(unit.capacity.vcores for unit in units if unit.gpu is None)
        assert kept >= binding.reserve_cores
        assert {u.capacity.vcores for u in units if u.gpu} == {binding.bound_cores}
    if gpus and binding.mode is BindingMode.EVEN:
        parts = [unit.capacity.vcores for unit in units]
        assert max(parts) - min(parts) <= 1 and all(unit.gpu for unit in units)
