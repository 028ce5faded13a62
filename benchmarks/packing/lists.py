"""Lists of pods and of nodes, in the columns of the "openb" traces; see ``benchmarks.traces``.

Unlike a replay, packing takes every pod, one that was never scheduled too, in thousandths of a core
and of a GPU, and with the GPU models that it allows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traces.reading import BadRow, LoadReport, Row, find, read_csv
from hrm.errors import InvalidRequest

__all__ = ["GpuMachine", "Pod", "arrivals", "read_machines", "read_pods"]

_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one pod requests: ``gpu_milli`` of each of ``gpus``. ``models``: of GPUs that it may run
    on; empty: any."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: frozenset[str] = frozenset()

    @property
    def gpu_milli_sum(self) -> int:
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """One node of a list."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


def read_pods(path: Path) -> list[Pod]:
    """All pods of a file, or of ``openb_pod_list_default.csv`` in a directory.

    Raises:
        InvalidRequest: it is no such file, or a row is ill-formed; with the first of these.
        NotFound: no such file.
    """
    report = LoadReport()
    file = find(path, "openb_pod_list_default.csv*")
    pods = list(read_csv(file, report, _pod, _POD_COLUMNS))
    _check(report)
    if not any(pod.gpus for pod in pods):
        raise InvalidRequest(f"no pod of {file} asks for a GPU; name another list with --pods")
    return pods


def read_machines(path: Path) -> list[GpuMachine]:
    """All nodes of a file, or of ``openb_node_list_gpu_node.csv`` in a directory.

    Raises:
        InvalidRequest: it is no such file, or a row is ill-formed; with the first of these.
        NotFound: no such file.
    """
    report = LoadReport()
    file = find(path, "openb_node_list_gpu_node.csv*")
    machines = list(read_csv(file, report, _machine, _NODE_COLUMNS))
    _check(report)
    if not any(machine.gpus for machine in machines):
        raise InvalidRequest(f"no node of {file} has a GPU; name another list with --nodes")
    return machines


def arrivals(pods: Sequence[Pod], gpu_milli: int, seed: int) -> list[Pod]:
    """Pods drawn with replacement until together they request ``gpu_milli`` of GPUs."""
    draw = random.Random(seed)  # nosec B311
    drawn, requested = list[Pod](), 0
    while requested < gpu_milli:
        drawn.append(draw.choice(pods))
        requested += drawn[-1].gpu_milli_sum
    return drawn


def _pod(row: Row) -> Pod:
    gpus = row.whole("num_gpu", 0)
    gpu_milli = row.whole("gpu_milli", 0)
    if gpus and not 1 <= gpu_milli <= 1000:
        raise BadRow("gpu_milli is not within 1 and 1000", row.text("gpu_milli"))
    models = row.text("gpu_spec", "")
    return Pod(
        cpu_milli=row.whole("cpu_milli", 0),
        memory_mib=row.whole("memory_mib", 0),
        gpus=gpus,
        gpu_milli=gpu_milli if gpus else 0,
        models=frozenset(models.split("|")) if models else frozenset(),
    )


def _machine(row: Row) -> GpuMachine:
    return GpuMachine(
        name=row.text("sn"),
        cpu_milli=row.whole("cpu_milli", 1),
        memory_mib=row.whole("memory_mib", 1),
        gpus=row.whole("gpu", 0),
        model=row.text("model", ""),
    )


def _check(report: LoadReport) -> None:
    """A list with a hole would be another workload."""
    if report.rows_bad:
        raise InvalidRequest(
            f"{report.rows_bad} of {report.rows_read} rows cannot be read, the first is "
            f"{report.messages[0]}; mend or remove them"
        )
