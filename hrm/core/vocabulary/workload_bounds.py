"""Bounds of pipelines as applications; the master fills them from its settings."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WORKLOAD_BOUNDS", "WorkloadBounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBounds:
    """``workers_max``: of one workload. ``begun_max``: workers that have been requested and do not
    run, unless twice as many run. ``worker_idle_s``: a worker without tasks is kept so long,
    ``stream_idle_s``: one of class stream, whose tasks come again, ``workload_idle_s``: a workload.
    ``failures_max``: workers in a row that fail before a task of theirs has ended."""

    workers_max: int = 1_000
    begun_max: int = 8
    worker_idle_s: float = 3.0
    stream_idle_s: float = 30.0
    workload_idle_s: float = 30.0
    failures_max: int = 8
    recovery_s: float = 15.0
    """So long a new master waits for the workers of an earlier one before it places tasks again."""
    connect_s: float = 60.0
    """A worker whose container runs for so long, and that has not connected, has failed."""
    worker_cores: int = 1
    worker_memory_mib: int = 1_024
    gpu_memory_mib: int = 2_048
    """Device memory of a worker whose steps do not say how much they need."""


WORKLOAD_BOUNDS = WorkloadBounds()
