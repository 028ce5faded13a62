"""How a node is partitioned into resource units: which cores and how much memory go to each GPU.

A GPU without a core is idle, and so is a core that waits for a GPU; the three modes trade one for
the other. All partition the same machine:

========  ==========================================  ============================================
mode      the units                                   when
========  ==========================================  ============================================
shared    one of all cores and memory; one a GPU,     mostly CPU jobs. Nothing is pinned and nothing
          which takes cores and memory from it        kept for GPUs: they may find no core left.
partial   one a GPU with N cores of its own; one of   CPU jobs, and some GPU jobs whose need of
          all that remains, at least the reserve      cores is small and steady
even      one a GPU with an equal part of the cores;  mostly GPU jobs. A container without need of
          none without a GPU                          a GPU may run there, and holds its cores.
========  ==========================================  ============================================

A unit has one GPU, or ``gpus_per_unit`` that are near each other, with what is bound to each of
them: for containers that use several at once. Where the GPUs of a unit are not alike, it offers as
much of each as the smallest has.

Cores are bound to the GPU that is nearest by NUMA distance, one core to each GPU in turn. Memory is
divided in proportion to the cores, or ``gpu_host_memory_mib`` goes to every GPU; the CPU unit has
what is left (the last GPU's unit where there is none). Over the units of a node ``own_capacity``
adds up to what the node offers.

Source: HRM paper, section 3.1. The division of memory and the search for cores are HRM's choice.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hrm.core.vocabulary.model import Gpu, NodeName, Resources, ResourceUnit, ResourceUnitId
from hrm.errors import InvalidRequest

__all__ = ["BindingMode", "Core", "Hardware", "Partitioning", "partition"]

_NEAR, _FAR, _UNKNOWN = 10, 20, 15


class BindingMode(enum.Enum):
    SHARED = "shared"
    PARTIAL = "partial"
    EVEN = "even"


@dataclass(frozen=True, slots=True)
class Core:
    """One core. ``number`` is the kernel's, None where more are offered than the machine has."""

    number: int | None
    numa: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a node offers. ``distances``: between NUMA nodes, as the firmware reports them.

    ``run_limit``: most containers at once in each unit; 0: as many as it has vcores. ``pins``: the
    node can hold containers on certain cores.
    """

    cores: tuple[Core, ...]
    memory_mib: int
    gpus: tuple[Gpu, ...] = ()
    distances: tuple[tuple[int, int, int], ...] = ()
    run_limit: int = 0
    pins: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """How to partition. ``bound_cores`` and ``reserve_cores`` are of the partial mode alone.

    ``gpu_limit``: how many of its GPUs the node offers; None: all. ``gpus_per_unit``: how many go
    to a unit; the last one has what is left.
    """

    mode: BindingMode = BindingMode.SHARED
    bound_cores: int = 1
    reserve_cores: int = 1
    gpu_host_memory_mib: int = 0
    gpu_limit: int | None = None
    gpus_per_unit: int = 1

    def __str__(self) -> str:
        if self.mode is not BindingMode.PARTIAL:
            return str(self.mode.value)
        return f"partial, {self.bound_cores} cores a GPU, at least {self.reserve_cores} kept"


def partition(
    name: NodeName, hardware: Hardware, binding: Partitioning
) -> tuple[ResourceUnit, ...]:
    """The units of a node; the one without a GPU first, where there is one.

    Raises:
        InvalidRequest: the binding is impossible on this hardware; with the reason and the numbers.
    """
    _check(hardware, binding)
    gpus = hardware.gpus[: binding.gpu_limit]
    if not gpus or binding.mode is BindingMode.SHARED:
        return _joined(_shared(name, hardware, gpus), hardware, binding.gpus_per_unit)
    bound = _bound_counts(len(hardware.cores), len(gpus), binding)
    parts, rest = _nearest(hardware, gpus, bound)
    shares = _memory_shares(hardware.memory_mib, [*map(len, parts), len(rest)], binding)
    units = [
        _unit(name, hardware, gpu, cores, memory_mib, gpu_only=binding.mode is BindingMode.PARTIAL)
        for gpu, cores, memory_mib in zip(gpus, parts, shares, strict=False)
    ]
    if binding.mode is BindingMode.EVEN or not rest:
        return _joined(units, hardware, binding.gpus_per_unit)
    of_cpu = _unit(name, hardware, None, rest, shares[-1], gpu_only=False)
    return _joined((of_cpu, *units), hardware, binding.gpus_per_unit)


def _check(hardware: Hardware, binding: Partitioning) -> None:
    numbers = {
        "bound_cores": (binding.bound_cores, 1),
        "reserve_cores": (binding.reserve_cores, 0),
        "gpu_host_memory_mib": (binding.gpu_host_memory_mib, 0),
        "gpus_per_unit": (binding.gpus_per_unit, 1),
        "gpu_limit": (0 if binding.gpu_limit is None else binding.gpu_limit, 0),
    }
    for field, (value, least) in numbers.items():
        if not isinstance(value, int) or value < least:
            raise InvalidRequest(f"{field} is {value}; it must be a whole number from {least} up")
    known = [core.number for core in hardware.cores if core.number is not None]
    if len(set(known)) < len(known):
        raise InvalidRequest("the hardware names one core twice")
    if len({gpu.index for gpu in hardware.gpus}) < len(hardware.gpus):
        raise InvalidRequest("the hardware names one GPU twice")
    if not hardware.cores or hardware.memory_mib < 1:
        raise InvalidRequest("a node must offer at least one core and one MiB")
    if any(gpu.memory_mib < 1 for gpu in hardware.gpus):
        raise InvalidRequest("a GPU must have at least one MiB of device memory")
    if binding.gpu_limit is not None and binding.gpu_limit > len(hardware.gpus):
        raise InvalidRequest(
            f"gpu_limit is {binding.gpu_limit}, but the node has {len(hardware.gpus)} GPUs"
        )


def _bound_counts(cores: int, gpus: int, binding: Partitioning) -> list[int]:
    """How many cores each GPU gets."""
    if binding.mode is BindingMode.EVEN:
        if cores < gpus:
            raise InvalidRequest(
                f"{cores} cores cannot be split over {gpus} GPUs: each needs one; offer more "
                f"cores, or fewer GPUs (gpu_limit)"
            )
        return [cores // gpus + (index < cores % gpus) for index in range(gpus)]
    wanted = binding.bound_cores * gpus
    if wanted > cores:
        raise InvalidRequest(
            f"{binding.bound_cores} cores for each of {gpus} GPUs are {wanted}, but the node "
            f"offers {cores}; lower gpu_bound_cores (--bound-cores)"
        )
    if cores - wanted < binding.reserve_cores:
        raise InvalidRequest(
            f"{binding.bound_cores} cores for each of {gpus} GPUs leave {cores - wanted} of "
            f"{cores}, fewer than the {binding.reserve_cores} kept for CPU jobs; "
            f"lower gpu_bound_cores (--bound-cores) or cpu_reserve_cores (--reserve)"
        )
    return [binding.bound_cores] * gpus


def _nearest(
    hardware: Hardware, gpus: Sequence[Gpu], counts: Sequence[int]
) -> tuple[list[list[Core]], list[Core]]:
    """The cores of each GPU, one to each in turn from those nearest to it; and what is left."""
    distance = _distance_on(hardware)
    left = list(hardware.cores)
    parts: list[list[Core]] = [[] for _ in gpus]
    for turn in range(max(counts)):
        for gpu, part, count in zip(gpus, parts, counts, strict=True):
            if turn < count:
                far = [distance(gpu.numa, core.numa) for core in left]
                best = far.index(min(far))
                part.append(left.pop(best))
    return parts, left


def _distance_on(hardware: Hardware) -> Callable[[int, int], int]:
    """How far two NUMA nodes of a machine are from each other."""
    distances = {(a, b): distance for a, b, distance in hardware.distances}

    def distance(a: int, b: int) -> int:
        if a < 0 or b < 0:
            return _UNKNOWN
        return distances.get((a, b), _NEAR if a == b else _FAR)

    return distance


def _joined(
    units: Sequence[ResourceUnit], hardware: Hardware, size: int
) -> tuple[ResourceUnit, ...]:
    """The same with ``size`` GPUs a unit: each time the first that is left and those nearest to it,
    of which the ones that are like it go first."""
    if size == 1:
        return tuple(units)
    distance = _distance_on(hardware)
    joined = [unit for unit in units if unit.gpu is None]
    left = [(unit, unit.gpu) for unit in units if unit.gpu is not None]
    while left:
        _, first = left[0]
        ranks = [
            (
                gpu is not first,
                distance(first.numa, gpu.numa),
                abs(gpu.memory_mib - first.memory_mib),
            )
            for _, gpu in left
        ]
        nearest = sorted(range(len(left)), key=ranks.__getitem__)[:size]
        joined.append(_join([left[index][0] for index in nearest]))
        left = [each for index, each in enumerate(left) if index not in nearest]
    return tuple(joined)


def _join(units: Sequence[ResourceUnit]) -> ResourceUnit:
    """One unit with all that these have; cores that they share count once."""
    first, gpus = units[0], [gpu for unit in units for gpu in unit.gpus]
    shared = bool(first.pool)
    own = (first,) if shared else units
    cpus = [cpu for unit in own for cpu in unit.cpus]
    return replace(
        first,
        capacity=Resources(
            sum(unit.capacity.vcores for unit in own),
            sum(unit.capacity.memory_mib for unit in own),
            len(gpus) * min(gpu.memory_mib for gpu in gpus),
        ),
        run_limit=first.run_limit if shared else max(unit.run_limit for unit in own),
        cpus=tuple(sorted(cpus)) if all(unit.cpus for unit in own) else (),
        more_gpus=tuple(gpus[1:]),
    )


def _memory_shares(total_mib: int, cores: Sequence[int], binding: Partitioning) -> list[int]:
    """Memory of each GPU's unit, and at the end of the CPU unit (0 where it has no cores)."""
    gpus, rest = len(cores) - 1, cores[-1]
    if binding.gpu_host_memory_mib:
        left = total_mib - gpus * binding.gpu_host_memory_mib
        if left < (1 if rest else 0):
            raise InvalidRequest(
                f"{binding.gpu_host_memory_mib} MiB for each of {gpus} GPUs leave {left} of "
                f"{total_mib} MiB; lower gpu_host_memory_mib"
            )
        shares = [*[binding.gpu_host_memory_mib] * gpus, left if rest else 0]
    else:
        shares = [total_mib * count // sum(cores) for count in cores]
    shares[-1 if rest else -2] += total_mib - sum(shares)
    if min(shares[: None if rest else -1]) < 1:
        raise InvalidRequest(f"{total_mib} MiB are too few for {gpus + (rest > 0)} units")
    return shares


def _shared(name: NodeName, hardware: Hardware, gpus: Sequence[Gpu]) -> tuple[ResourceUnit, ...]:
    vcores = len(hardware.cores)
    owner = ResourceUnit(
        unit_id=ResourceUnitId(f"{name}/cpu"),
        capacity=Resources(vcores, hardware.memory_mib),
        run_limit=hardware.run_limit or vcores,
    )
    shared = [
        replace(
            owner,
            unit_id=ResourceUnitId(f"{name}/gpu{gpu.index}"),
            capacity=Resources(vcores, hardware.memory_mib, gpu.memory_mib),
            gpu=gpu,
            pool=owner.unit_id,
            gpu_only=True,
        )
        for gpu in gpus
    ]
    return (owner, *shared)


def _unit(
    name: NodeName,
    hardware: Hardware,
    gpu: Gpu | None,
    cores: Sequence[Core],
    memory_mib: int,
    *,
    gpu_only: bool,
) -> ResourceUnit:
    numbers = [core.number for core in cores if core.number is not None]
    pinned = hardware.pins and len(numbers) == len(cores)
    device_mib = 0 if gpu is None else gpu.memory_mib
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{name}/cpu" if gpu is None else f"{name}/gpu{gpu.index}"),
        capacity=Resources(len(cores), memory_mib, device_mib),
        run_limit=hardware.run_limit or len(cores),
        cpus=tuple(sorted(numbers)) if pinned else (),
        gpu=gpu,
        gpu_only=gpu_only,
    )
