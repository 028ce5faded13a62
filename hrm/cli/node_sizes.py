"""What this machine has, and how an embedded cluster divides it among its nodes.

Drivers, the master and anything else run there, too. Cores are shared in time, so all are offered;
memory is not, so a quarter of it (at least 2 GiB) is left. Explicit values above what the machine
has are applied, with a warning.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hrm.errors import InvalidRequest

__all__ = ["MEMORY_MIB_MIN", "NodeSize", "machine_cores", "machine_memory_mib", "node_size",
           "parse_memory_mib"]  # fmt: skip

MEMORY_MIB_MIN = 512
"""Smallest node: Spark refuses executors with a heap below about 450 MiB."""
_RESERVED_MIB_MIN = 2048
_UNITS_MIB = {"": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024.0, "k": 1 / 1024.0}
_MEMORY = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """What every node of an embedded cluster offers, and what is worth saying about it."""

    cores: int
    memory_mib: int
    notes: tuple[str, ...]


def parse_memory_mib(text: str) -> int:
    """MiB in ``text``, written as Spark does: 4g, 512m, 1.5g; a bare number is MiB.

    Raises:
        InvalidRequest: not a size, or less than :data:`MEMORY_MIB_MIN`.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"--memory {text}: not a size; write it like 4g, 1536m or 4096 (MiB)")
    mib = int(float(match[1]) * _UNITS_MIB[match[2].lower()])
    if mib < MEMORY_MIB_MIN:
        raise InvalidRequest(
            f"--memory {text}: a node needs at least {MEMORY_MIB_MIN}m, or no executor fits into it"
        )
    return mib


def machine_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_memory_mib() -> int:
    """Memory that this process may use: the machine's, or its cgroup's if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue  # no such cgroup, or "max"
    return min(sizes) // (1024 * 1024)


def node_size(
    nodes: int, cores: int | None, memory: str | None, *, has_cores: int, has_memory_mib: int
) -> NodeSize:
    """The size of each of ``nodes`` nodes on a machine that has so much.

    Args:
        cores: of one node; None: an equal share of the machine's.
        memory: of one node, see :func:`parse_memory_mib`; None: an equal share.

    Raises:
        InvalidRequest: a size that makes no sense.
    """
    notes = []
    size_mib = parse_memory_mib(memory) if memory is not None else 0
    if not size_mib:
        offered = has_memory_mib - max(_RESERVED_MIB_MIN, has_memory_mib // 4)
        size_mib = max(MEMORY_MIB_MIN, offered // nodes)
    chosen = cores or max(1, has_cores // nodes)
    if nodes * chosen > has_cores:
        notes.append(
            f"{nodes} x {chosen} vcores on {has_cores} cores: executors will share them; "
            f"--nodes and --cores change that"
        )
    if nodes * size_mib > has_memory_mib:
        notes.append(
            f"{nodes} x {size_mib} MiB on a machine of {has_memory_mib} MiB: if executors use it "
            f"all, the kernel will end some; --nodes and --memory change that"
        )
    return NodeSize(cores=chosen, memory_mib=size_mib, notes=tuple(notes))
