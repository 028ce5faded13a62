"""Placement policies where what shares a GPU slows each other down, as was measured in pairs.

    python -m benchmarks.corunning --data DIR               # writes results/corunning.md and .json
    python -m benchmarks.corunning --data DIR --quick --json FILE

Jobs of five kinds on 30 units of two slots, through the production core in virtual time; how fast
each kind runs alone and beside each other was measured on one GPU (Gavel's data; without it there
is nothing to do). *true*: the policy knows the measured slowdowns. *learned*: it knows what the
master learns from the containers that end. All else is the same for all policies of a seed. Seeds 0
to 3 were looked at while the policies were written, and are not among those of the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.corunning.simulated import Told, Wanted, Workload, run
from benchmarks.fairness import measured
from benchmarks.fairness.world import World
from benchmarks.simulation.figures import Interval, interval
from hrm import policies
from hrm.core.scheduling.scheduler import PlacementPolicy

__all__ = ["ARMS", "Arm", "Cell", "main", "measure"]

DATA = Path("../shared/data/gavel")
NODES, CONTAINERS = 30, 1_000
REFERENCE = "worst-fit"
"""The best of those that know nothing of tenants: others are compared with it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy, and how it knows slowdowns: not, from the start, or by learning them."""

    policy: str
    knows: str = ""

    def __str__(self) -> str:
        return f"{self.policy}, {self.knows}" if self.knows else self.policy

    def make(self, index: int, world: World, wanted: Wanted) -> PlacementPolicy:
        """For scheduler number ``index``."""
        policy = policies.load(self.policy, index)
        return Told(policy, world, wanted) if self.knows == "true" else policy


@dataclass(frozen=True, slots=True)
class Cell:
    """``queue``: may containers wait at units, as by default?"""

    load: float
    queue: bool = True

    def __str__(self) -> str:
        return f"load {self.load:g}" + ("" if self.queue else ", none waits at units")


ASKING = ("least-slowdown", "most-affected-first", "co-runner-round-robin")
ARMS = (
    *(Arm(name) for name in ("min-wait", "best-fit", "worst-fit", "random")),
    Arm("one-tenant-per-node"),
    *(Arm(name, knows) for knows in ("true", "learned") for name in ASKING),
)
CELLS = (Cell(0.3), Cell(0.5), Cell(0.6), Cell(0.5, queue=False))


def measure(
    world: World, cell: Cell, arm: Arm, seed: int, containers: int = CONTAINERS
) -> dict[str, float]:
    """One run, see ``simulated.run``."""
    workload = Workload(
        load=cell.load,
        nodes=NODES,
        containers=containers,
        seed=seed,
        queue=cell.queue,
        learn=arm.knows == "learned",
    )
    return run(world, workload, arm.make)


def _measured(
    pairs: measured.Pairs, cells: Sequence[Cell], seeds: Sequence[int], processes: int
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """By cell and arm, a run for each seed."""
    found = {str(cell): {str(arm): list[dict[str, float]]() for arm in ARMS} for cell in cells}
    tries = [(pairs, cell, seed) for cell in cells for seed in seeds]
    with ProcessPoolExecutor(processes) as pool:
        for (_, cell, seed), by_arm in zip(tries, pool.map(_of_seed, tries), strict=True):
            for arm, figures in by_arm.items():
                found[str(cell)][arm].append(figures)
            CONSOLE.print(f"{cell}: seed {seed} of {seeds[0]} to {seeds[-1]}")
    return found


def _of_seed(given: tuple[measured.Pairs, Cell, int]) -> dict[str, dict[str, float]]:
    pairs, cell, seed = given
    world = measured.draw(pairs, seed, equal_loads=True)
    return {str(arm): measure(world, cell, arm, seed) for arm in ARMS}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corunning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="two seeds at one load")
    parser.add_argument("--seeds", type=int, default=12, metavar="N", help="of each cell")
    parser.add_argument("--first-seed", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="that run seeds")
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR",
        help="the folder that has Gavel's measurements (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    return parser


def _body(document: dict[str, Any]) -> str:
    parts = [
        f"{document['nodes']} units of two slots, {document['containers']:,} containers a run, "
        f"{len(document['seeds'])} seeds, each with five kinds drawn of {document['kinds']}. "
        "Means with 95 % intervals over them. *Slowdown*: run time over that alone, mean of all "
        "containers; *worst*: of the kind that is slowed most; *response*: a job's time from "
        "arrival to end over that of its longest container alone; *used*: slots at work. "
        f"*Difference*: from the figure before it with {REFERENCE} and the same seed."
    ]
    header = ["policy"]
    for name in _FIGURES:
        header += [name, "difference"] if name in _COMPARED else [name]
    for cell, by_arm in document["cells"].items():
        rows = []
        for arm, runs in by_arm.items():
            row = [arm]
            for name in _FIGURES:
                values = [run[name] for run in runs]
                row.append(_interval(values))
                if name in _COMPARED:
                    others = [run[name] for run in by_arm[REFERENCE]]
                    differences = [x - y for x, y in zip(values, others, strict=True)]
                    row.append(_interval(differences) if arm != REFERENCE else "-")
            rows.append(row)
        parts.append(f"## {cell[0].upper() + cell[1:]}\n\n{common.table(header, rows)}")
    return "\n\n".join(parts)


_FIGURES = ("slowdown", "worst", "response", "used")
_COMPARED = ("slowdown", "worst", "response")


def _interval(values: Sequence[float]) -> str:
    found: Interval = interval(values)
    return f"{found.mean:.3f} ± {found.high - found.mean:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare all policies; exit status 2 where the data is missing."""
    args = _parser().parse_args(argv)
    try:
        pairs = measured.load(args.data)
    except FileNotFoundError as error:
        CONSOLE.print(
            f"no {error.filename}: slowdowns are not made up here; pass --data with the folder "
            "that has Gavel's measurements"
        )
        return 2
    cells = (Cell(0.5),) if args.quick else CELLS
    count = 2 if args.quick else args.seeds
    seeds = range(args.first_seed, args.first_seed + count)
    found = _measured(pairs, cells, seeds, args.processes)
    document = {
        "provenance": common.provenance("benchmarks.corunning", ["numpy"]),
        "nodes": NODES,
        "containers": CONTAINERS,
        "seeds": list(seeds),
        "kinds": len(pairs.kinds),
        "cells": found,
    }
    body = _body(document)
    CONSOLE.print(body, markup=False)
    if args.json is not None:
        common.write_json(args.json, document)
    if not args.quick:
        common.write_results("corunning", "Neighbours on one GPU", document, body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
