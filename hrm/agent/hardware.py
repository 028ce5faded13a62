"""The cores, NUMA nodes and GPUs of this machine, as reported by the kernel and NVIDIA's driver.

A machine without NVML's library or driver has no GPUs. A setting can declare some: they are
scheduled like others and marked wherever they are shown, but have no device behind them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import structlog

from hrm.agent.gpu.readings import capacity_and_used_bytes
from hrm.config import DeclaredGpu
from hrm.core.vocabulary.model import Gpu
from hrm.core.vocabulary.partitioning import Core

__all__ = ["cores", "find_gpus", "numa_distances"]

_MIB = 1024 * 1024
_SYS = Path("/sys")
_log = structlog.get_logger("hrm.agent")


def cores(wanted: int, sys: Path = _SYS) -> tuple[Core, ...]:
    """``wanted`` of the CPUs that this process may use; 0: all.

    If there are fewer, the CPUs returned have no numbers: containers cannot be pinned to them.
    """
    allowed = sorted(os.sched_getaffinity(0))
    numa = {
        cpu: node for node, path in _numa_nodes(sys) for cpu in _numbers(_text(path / "cpulist"))
    }
    if wanted > len(allowed):
        return tuple(Core(None) for _ in range(wanted))
    return tuple(Core(number, numa.get(number, -1)) for number in allowed[: wanted or None])


def _numa_nodes(sys: Path) -> list[tuple[int, Path]]:
    found = (sys / "devices/system/node").glob("node[0-9]*")
    return sorted((int(path.name.removeprefix("node")), path) for path in found)


def numa_distances(sys: Path = _SYS) -> tuple[tuple[int, int, int], ...]:
    """(from, to, distance) for each pair of NUMA nodes; 10 is the distance of a node to itself."""
    nodes = _numa_nodes(sys)
    return tuple(
        (node, other, int(distance))
        for node, path in nodes
        for (other, _), distance in zip(nodes, _text(path / "distance").split(), strict=False)
    )


def _numbers(text: str) -> Iterator[int]:
    """The CPUs of a list such as ``0-3,8``."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def find_gpus(declared: tuple[DeclaredGpu, ...], sys: Path = _SYS) -> tuple[Gpu, ...]:
    """This machine's GPUs; the declared ones in their place where there are any."""
    if declared:
        gpus = tuple(
            Gpu(index=index, memory_mib=gpu.memory_mib, numa=gpu.numa, name=gpu.name, declared=True)
            for index, gpu in enumerate(declared)
        )
        _log.warning("offering declared GPUs: they have no device", gpus=len(gpus))
        return gpus
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("no GPUs", why=str(error))
        return ()
    try:
        count = pynvml.nvmlDeviceGetCount()
        return tuple(_gpu(index, sys) for index in range(count))
    except pynvml.NVMLError as error:
        _log.warning("no GPUs: the driver does not list them", why=str(error))
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int, sys: Path) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pci = _string(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    domain, _, rest = pci.partition(":")
    # NVML writes the domain with eight digits, the kernel with four.
    place = sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
    return Gpu(
        index=index,
        memory_mib=capacity_and_used_bytes(handle)[0] // _MIB,
        numa=int(_text(place) or -1),
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        name=_string(pynvml.nvmlDeviceGetName(handle)),
    )


def _string(value: Any) -> str:
    """Older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
