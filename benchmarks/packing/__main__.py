"""How full the GPUs of a cluster get, and how long containers wait, under each placement policy.

    python -m benchmarks.packing --data DIR                  # writes results/packing.md and .json
    python -m benchmarks.packing --churn --data DIR          # and results/packing-churn.*
    python -m benchmarks.packing --quick --json FILE
    python -m benchmarks.packing --pods FILE --nodes FILE    # another list alone, nothing written,
                                                             # nor of some lists, policies, seeds

*Filling* is the published protocol: pods are drawn with replacement from a list until together they
request 130 % of the cluster's GPUs; each starts at once or is dropped, and none leaves. What counts
is the part of the GPUs that is allocated in the end. *Churn* has arrivals and ends instead, on a
sample of the nodes and at several loads, and what waits goes on waiting (``waits``). *Orders*
fill a tenth of the nodes with the pods of the first list in orders that no draw has: a policy that
goes by what came so far may not suppose that it says what will come.

The policies are the installed ones, called as a master does. Left out are those that would only
repeat another: fifo, which chooses as centralized-drf does where each pod is a job of its own, and
those that follow slowdowns and tenants, of which there are none here. Seeds from 100 up were looked
at while fragmentation was written, and are not among those of the results.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.packing.filling import Filling, Site, fill
from benchmarks.packing.lists import Pod, arrivals, read_machines, read_pods
from benchmarks.packing.waits import FULL_CHURN, QUICK_CHURN, churn_document, in_words
from benchmarks.simulation.figures import interval
from benchmarks.traces.reading import find
from hrm import policies
from hrm.errors import HrmError

__all__ = ["main"]

DATA = Path("../shared/data/alibaba_gpu_v2023")
LISTS = ("default", "gpushare40", "cpu050")
OURS, PEER, CENTRAL = "fragmentation", "best-fit", "centralized-drf"
POLICIES = (OURS, "min-wait", PEER, "worst-fit", "round-robin", "random", CENTRAL)
QUICK_POLICIES = (OURS, "min-wait", PEER)
ORDERED = (OURS, "min-wait", PEER)
ORDERS: Mapping[str, Callable[[Pod], float]] = {
    "as drawn": lambda pod: 0,
    "those without a GPU first": lambda pod: pod.gpus > 0,
    "whole GPUs last": lambda pod: pod.gpus > 0 and pod.gpu_milli == _WHOLE,
    "in order of their GPUs": lambda pod: pod.gpu_milli_sum,
}
"""Pods are sorted by it, stably."""
_WHOLE = 1_000
_ORDERED_NODES = 10
"""Every so many-th node."""
DEMAND = 1.3
_SEED_STRIDE = 64
_SEEDS_WRITTEN = 5
"""Runs with fewer are no results."""

Fillings = dict[str, dict[str, list[Filling]]]


def _filled(
    lists: Mapping[str, Path], nodes: Path, names: Sequence[str], seeds: Sequence[int]
) -> Fillings:
    """By list and policy, a run for each seed."""
    site = Site(read_machines(nodes))
    found: Fillings = {}
    for title, path in lists.items():
        pods = read_pods(path)
        found[title] = {name: [] for name in names}
        for seed in seeds:
            drawn = arrivals(pods, round(DEMAND * site.gpu_milli), seed)
            for name in names:
                policy = policies.load(name, seed * _SEED_STRIDE if name == "random" else 0)
                filling = fill(policy, site, drawn)
                found[title][name].append(filling)
                CONSOLE.print(
                    f"{title}, seed {seed}, {name}: {100 * filling.allocated:.2f} % allocated, "
                    f"{filling.placements_per_s:,.0f} placements/s"
                )
    return found


def _ordered(pods: Sequence[Pod], nodes: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """By order and policy, the part of the GPUs that is allocated with each seed."""
    site = Site(read_machines(nodes)[::_ORDERED_NODES])
    found: dict[str, Any] = {order: {name: [] for name in ORDERED} for order in ORDERS}
    for seed in seeds:
        drawn = arrivals(pods, round(DEMAND * site.gpu_milli), seed)
        for order, key in ORDERS.items():
            for name, runs in found[order].items():
                filling = fill(policies.load(name, 0), site, sorted(drawn, key=key))
                runs.append(filling.allocated)
                CONSOLE.print(f"{order}, seed {seed}, {name}: {100 * runs[-1]:.2f} % allocated")
    return found


def _figures(fillings: Fillings) -> dict[str, Any]:
    """What the targets are about; None where it was not measured."""
    per_list = {
        title: {name: statistics.fmean(x.allocated for x in runs) for name, runs in found.items()}
        for title, found in fillings.items()
    }
    default = per_list.get(LISTS[0], {})
    ours = [x.placements_per_s for x in next(iter(fillings.values())).get(OURS, ())]
    return {
        "default_allocated_percent": 100 * default[OURS] if OURS in default else None,
        "best_fit_allocated_percent": 100 * default[PEER] if PEER in default else None,
        "placements_per_s": statistics.median(ours) if ours else None,
        "first_on_every_list": all(max(x, key=x.__getitem__) == OURS for x in per_list.values()),
    }


def _body(document: Mapping[str, Any], fillings: Fillings) -> str:
    seeds = len(document["seeds"])
    parts = [
        f"{document['nodes']:,} nodes with {document['gpus']:,} GPUs; pods that request "
        f"{DEMAND:.0%} of these, {seeds} seeds. Means with 95 % intervals. *Allocated*: part of "
        f"the GPUs, in percent; *less*: than {OURS} with the same pods; *dropped*: of the pods; "
        "*placements/s*: pods that got a place over processor time of the policy for them, median."
    ]
    header = ("policy", "allocated %", f"less than {OURS}", "dropped %", "placements/s")
    for title, found in fillings.items():
        rows = [_filling_row(name, runs, found.get(OURS)) for name, runs in found.items()]
        parts.append(f"## {title}\n\n{common.table(header, rows)}")
    rows = [
        (order, *(_mean([100 * each for each in found[name]]) for name in ORDERED))
        for order, found in document["orders"].items()
    ]
    parts.append(
        f"## Orders of arrival\n\nAllocated %, on every {_ORDERED_NODES}th node, the first list, "
        f"the same pods in other orders.\n\n{common.table(('order', *ORDERED), rows)}"
    )
    return "\n\n".join(parts)


def _filling_row(
    name: str, runs: Sequence[Filling], ours: Sequence[Filling] | None
) -> tuple[object, ...]:
    less = None
    if ours is not None and ours is not runs:
        less = _mean([100 * (x.allocated - y.allocated) for x, y in zip(ours, runs, strict=True)])
    return (
        name,
        _mean([100 * x.allocated for x in runs]),
        less,
        _mean([100 * (1 - x.placed / x.pods) for x in runs]),
        f"{statistics.median(x.placements_per_s for x in runs):,.0f}",
    )


def _mean(values: Sequence[float], digits: int = 2) -> str:
    found = interval(values)
    if len(values) < 2:
        return f"{found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f} ± {found.high - found.mean:.{digits}f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR",
        help="the folder that has the openb lists (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--lists", type=_names, default=LISTS, metavar="NAMES",
        help=f"openb lists of pods in it (default: {','.join(LISTS)})",
    )  # fmt: skip
    parser.add_argument("--pods", type=Path, metavar="FILE", help="another list of pods alone")
    parser.add_argument("--nodes", type=Path, metavar="FILE", help="another list of nodes")
    parser.add_argument(
        "--policies", type=_names, default=POLICIES, metavar="NAMES",
        help=f"that fill (default: {','.join(POLICIES)})",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="default: %(default)s")
    parser.add_argument("--churn", action="store_true", help="arrivals and ends, of the first list")
    common.add_common_arguments(parser)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _inputs(given: argparse.Namespace) -> tuple[dict[str, Path], Path]:
    """The lists of pods by title, and that of nodes."""
    nodes = given.nodes or given.data
    if given.pods is not None:
        return {given.pods.name.partition(".")[0]: given.pods}, nodes
    lists = LISTS[:1] if given.quick else given.lists
    return {name: find(given.data, f"openb_pod_list_{name}.csv*") for name in lists}, nodes


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the results; the exit status, 2 where the input is bad."""
    parser = _parser()
    given = parser.parse_args(words)
    if given.seeds < 1:
        parser.error("--seeds must be at least 1")
    if given.churn and given.policies != POLICIES:
        parser.error("--policies is of what fills; --churn has its own")
    seeds = range(1 if given.quick else given.seeds)
    try:
        lists, nodes = _inputs(given)
        if given.churn:
            sizes = QUICK_CHURN if given.quick else FULL_CHURN
            measured = churn_document(next(iter(lists.values())), nodes, sizes, seeds)
            title, body = "How long containers with GPUs wait", in_words(measured)
        else:
            measured, body = _filling_document(given, lists, nodes, seeds)
            title = "GPUs packed"
    except HrmError as error:
        CONSOLE.print(f"error: {error.message}", style="red", markup=False)
        return 2
    document: dict[str, Any] = {
        "benchmark": "packing-churn" if given.churn else "packing",
        "provenance": common.provenance("benchmarks.packing", ["numpy"]),
        "seeds": list(seeds),
        **measured,
    }
    sys.stdout.write(body + "\n")
    if given.json is not None:
        common.write_json(given.json, document)
    whole = (given.lists, given.policies, given.pods, given.nodes) == (LISTS, POLICIES, None, None)
    if whole and not given.quick and len(seeds) >= _SEEDS_WRITTEN:
        for path in common.write_results(document["benchmark"], title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


def _filling_document(
    given: argparse.Namespace, lists: Mapping[str, Path], nodes: Path, seeds: Sequence[int]
) -> tuple[dict[str, Any], str]:
    """What filling has shown, and the same for people."""
    names = QUICK_POLICIES if given.quick and given.policies == POLICIES else given.policies
    machines = read_machines(nodes)
    fillings = _filled(lists, nodes, names, seeds)
    document = {
        "nodes": len(machines),
        "gpus": sum(machine.gpus for machine in machines),
        "demand": DEMAND,
        "orders": _ordered(read_pods(next(iter(lists.values()))), nodes, seeds),
        "filling": {
            title: {name: [asdict(run) for run in runs] for name, runs in found.items()}
            for title, found in fillings.items()
        },
        **_figures(fillings),
    }
    return document, _body({**document, "seeds": list(seeds)}, fillings)


if __name__ == "__main__":
    sys.exit(main())
