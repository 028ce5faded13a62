"""The measures of a run.

- ``throughput``: tasks a minute that ended in the last two thirds of the arrivals' span. Before it
  the cluster fills, after it the cluster drains for as long as its longest task takes.
- ``whole``: tasks a minute from the beginning to the last end. All tasks count, so leaving the long
  ones to the end gains nothing.
- GPU utilisation: the mean share of the GPUs' multiprocessors in use, over all GPUs and the same
  span; with ``gpu_busy``, the share of time with a run on it, and ``gpu_work``, seconds of work
  (alone) done in a busy second: a GPU can be busy with runs that keep each other from working.
- Load balance, equations 7 to 10: the load of a node is the mean of its use of cores, host memory,
  GPUs and GPU memory; the degree is 1 less the *population* standard deviation over the nodes,
  between 0.5 and 1. An idle cluster scores 1, so the mean load is reported with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hrm.pipelines.sim.simulated_machine import SimulatedMachine, Totals

__all__ = ["WARM_UP", "Result", "Span", "balance", "load_of", "node_use"]

WARM_UP = 1.0 / 3.0
"""Share of the arrivals' span that is not measured."""

Matrix = npt.NDArray[np.float64]


def load_of(uses: Sequence[Sequence[float]]) -> Matrix:
    """Equation 7, shape (nodes,): the mean of each row (CPU, memory, GPU, GPU memory), 0..1."""
    found: Matrix = np.asarray(uses, dtype=float).mean(axis=1)
    return found


def balance(loads: Sequence[float] | Matrix) -> float:
    """Equations 8 to 10: 1 less the population standard deviation of the nodes' loads, 0.5 to 1."""
    values = np.asarray(loads, dtype=float)
    assert values.size and values.min() >= -1e-9 and values.max() <= 1.0 + 1e-9
    return float(1.0 - values.std())


def node_use(
    machine: SimulatedMachine, before: Totals, after: Totals
) -> tuple[float, float, float, float]:
    """Mean use of cores, memory, GPUs and GPU memory between two readings, each 0..1."""
    passed_s = max(1e-9, after.at_s - before.at_s)
    gpus = max(1, len(machine.gpus))
    return (
        (after.cores_s - before.cores_s) / passed_s / machine.type.cores,
        (after.memory_s - before.memory_s) / passed_s,
        (sum(after.gpu_used_s) - sum(before.gpu_used_s)) / passed_s / gpus,
        (sum(after.gpu_memory_s) - sum(before.gpu_memory_s)) / passed_s / gpus,
    )


@dataclass(slots=True)
class Span:
    """The use of one node's GPUs between two readings."""

    worker: str
    type: str
    used_s: float
    busy_s: float
    work_s: float
    gpu_s: float
    """Seconds of existence, summed over its GPUs."""


@dataclass(slots=True, kw_only=True)
class Result:
    """One run. Times in virtual seconds; everything but ``decision_us`` depends on the seed alone.

    ``ended``: (time, worker, response, ideal) of each task that was done, in order of ends;
    ``balance``: (time, degree, mean load) at every sample; ``bound``: tasks a minute that no
    policy can exceed on these tasks, nan where it was not computed.
    """

    cluster_policy: str
    node_policy: str
    seed: int
    rate_per_min: float
    tasks: int
    arrived_s: float
    ended: list[tuple[float, str, float, float]]
    failed: int
    spans: list[Span]
    balance: list[tuple[float, float, float]]
    decision_us: list[float]
    fallbacks: int
    refused: int
    retries: int
    events: int
    log_hash: str
    bound: float = float("nan")
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def arrival_cap(self) -> float:
        """Tasks a minute that arrived."""
        return 60.0 * self.tasks / self.arrived_s

    @property
    def whole(self) -> float:
        last_s = max((one[0] for one in self.ended), default=0.0)
        return 60.0 * len(self.ended) / last_s if last_s > 0 else 0.0

    def throughput(self, worker: str | None = None) -> float:
        """Tasks a minute that ended in the window, on all nodes or on one."""
        first_s, last_s = self.window
        done = sum(
            first_s < at_s <= last_s and worker in (None, name) for at_s, name, _, _ in self.ended
        )
        return 60.0 * done / (last_s - first_s)

    @property
    def window(self) -> tuple[float, float]:
        return WARM_UP * self.arrived_s, self.arrived_s

    def gpu(self, *, worker: str | None = None, kind: str | None = None) -> tuple[float, ...]:
        """GPU utilisation, busy share, work in a busy second: of all, one or one type of node."""
        spans = [
            one for one in self.spans if worker in (None, one.worker) and kind in (None, one.type)
        ]
        exists = max(1e-9, sum(one.gpu_s for one in spans))
        busy = sum(one.busy_s for one in spans)
        return (
            sum(one.used_s for one in spans) / exists,
            busy / exists,
            sum(one.work_s for one in spans) / max(1e-9, busy),
        )

    def balance_until(self, at_s: float) -> tuple[float, float]:
        """Mean degree and mean load of the samples until then."""
        own = [(degree, load) for when, degree, load in self.balance if when <= at_s]
        if not own:
            return 1.0, 0.0
        degree, load = np.asarray(own).mean(axis=0).tolist()
        return degree, load

    def values(self) -> dict[str, float]:
        """Every figure by name."""
        responses = [one[2] for one in self.ended] or [0.0]
        p50, p95 = np.percentile(responses, (50, 95)).tolist()
        slowdowns = [one[2] / one[3] for one in self.ended] or [0.0]
        degree, load = self.balance_until(self.arrived_s)
        used, busy, work = self.gpu()
        latency = self.decision_us or [0.0]
        found = {
            "throughput": self.throughput(),
            "whole": self.whole,
            "arrival_cap": self.arrival_cap,
            "bound": self.bound,
            "response_p50_s": p50,
            "response_p95_s": p95,
            "slowdown": float(np.mean(slowdowns)),
            "gpu_utilisation": used,
            "gpu_busy": busy,
            "gpu_work": work,
            "balance": degree,
            "load": load,
            "failed": float(self.failed),
            "fallbacks": float(self.fallbacks),
            "refused": float(self.refused),
            "retries": float(self.retries),
            "decision_p50_us": float(np.percentile(latency, 50)),
            "decision_p99_us": float(np.percentile(latency, 99)),
        }
        first = "worker-1"
        found["worker_1_throughput"] = self.throughput(first)
        found["worker_1_gpu"] = self.gpu(worker=first)[0]
        for kind in sorted({one.type for one in self.spans}):
            found[f"gpu_type_{kind}"] = self.gpu(kind=kind)[0]
            own = {one.worker for one in self.spans if one.type == kind}
            each = [self.throughput(worker) for worker in sorted(own)]
            found[f"throughput_type_{kind}"] = float(np.mean(each))
        return {**found, **self.notes}
