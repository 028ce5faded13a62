"""How long containers wait under each policy, by load: what ``--churn`` measures and reports."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.packing.churn import Churn, mean_wait_s, plans_at
from benchmarks.traces import load, load_jobs
from benchmarks.traces.comparison import ratio
from benchmarks.traces.replay_plan import sampled_nodes
from benchmarks.traces.trace_records import TraceNode
from hrm import policies
from hrm.core.scheduling.scheduler import PlacementPolicy

__all__ = ["FULL_CHURN", "QUICK_CHURN", "ChurnSizes", "churn_document", "in_words"]

OURS, CENTRAL = "fragmentation", "centralized-drf"
CHURNING = (OURS, "min-wait", "best-fit", CENTRAL)
_SEED_STRIDE = 64


@dataclass(frozen=True, slots=True)
class ChurnSizes:
    """The arrivals, and at which loads."""

    churn: Churn
    loads: tuple[float, ...]


FULL_CHURN = ChurnSizes(Churn(), (0.6, 0.7, 0.8, 0.9))
QUICK_CHURN = ChurnSizes(Churn(nodes=10, jobs=200), (0.8,))


def _of_scheduler(name: str, seed: int, index: int) -> PlacementPolicy:
    return policies.load(name, seed * _SEED_STRIDE + index)


def churn_document(
    pods: Path, nodes: Path, sizes: ChurnSizes, seeds: Sequence[int]
) -> dict[str, Any]:
    """By load and policy the mean wait of each seed in seconds, and ``churn_wait_ratio``, by load:
    that of fragmentation over that of one central scheduler with the same arrivals."""
    jobs, _ = load_jobs("alibaba-gpu-v2023", pods)
    all_nodes, _ = load("alibaba-gpu-v2023-nodes", nodes)
    churn = sizes.churn
    sample = sampled_nodes([x for x in all_nodes if isinstance(x, TraceNode)], churn.nodes)
    waits: dict[str, dict[str, list[float]]] = {}
    for at in sizes.loads:
        by_policy = waits.setdefault(f"{at:g}", {name: [] for name in CHURNING})
        for seed in seeds:
            plans = plans_at(jobs, sample, churn, at, seed)
            for name, found in by_policy.items():
                make = partial(_of_scheduler, name, seed)
                schedulers = 1 if name == CENTRAL else churn.schedulers
                found.append(mean_wait_s(make, plans, sample, schedulers))
                CONSOLE.print(f"load {at:g}, seed {seed}, {name}: mean wait {found[-1]:.1f} s")
    return {
        "churn": {**asdict(churn), "loads": sizes.loads},
        "waits_s": waits,
        "churn_wait_ratio": {
            at: record[0] if (record := ratio(x[OURS], x[CENTRAL])) else None
            for at, x in waits.items()
        },
    }


def in_words(document: Mapping[str, Any]) -> str:
    """The report."""
    churn, waits = document["churn"], document["waits_s"]
    seeds = len(next(iter(waits.values()))[OURS])
    parts = [
        f"{churn['jobs']:,} arrivals on {churn['nodes']} nodes, {churn['schedulers']} schedulers, "
        f"{CENTRAL} one, which lets nothing wait at nodes; {seeds} seeds. *Load*: work over "
        "capacity, of the scarcest resource, between first and last arrival. *Wait*: from a "
        "container's request to its start, mean in seconds (mean of the seeds). *Ratio*: to "
        f"{CENTRAL} with the same arrivals (geometric mean, 95 %)."
    ]
    rows = [
        (at, name, f"{statistics.fmean(runs):.1f}", _ratio(runs, found[CENTRAL]))
        for at, found in waits.items()
        for name, runs in found.items()
    ]
    parts.append(common.table(("load", "policy", "wait, mean s", "ratio"), rows))
    return "\n\n".join(parts)


def _ratio(runs: Sequence[float], central: Sequence[float]) -> str | None:
    record = None if runs is central else ratio(runs, central)
    if record is None:
        return None
    mean, low, high = record
    return f"{mean:.2f}" + (f" [{low:.2f}, {high:.2f}]" if len(runs) > 1 else "")
