"""The rule by which the master divides shares over platforms, against the source's.

    python -m benchmarks.fairness.in_force                      # writes results/fairness-in-force.*
    python -m benchmarks.fairness.in_force --quick --json FILE  # two draws of each

The fluid model and the worlds of ``benchmarks.paper.fairness``, with run times given and one tenant
on a node. The rule (``hrm.policies.sharing.platform_divider``) differs from affinity round robin
with reciprocal affinities by what it takes for reports that are not exact, or not honest, and by a
bound on what a queue may lose. Systems meet the same worlds; intervals are of differences from
simple fairness, over draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.fairness import measured
from benchmarks.fairness.fluid import System, run
from benchmarks.fairness.scenarios import scenarios
from benchmarks.fairness.world import World
from benchmarks.simulation.figures import interval
from hrm.policies.mapping import OneTenantPerNode
from hrm.policies.sharing import (
    Affinity,
    AffinityRoundRobin,
    Division,
    SimpleFairness,
    TenantDemands,
    divider,
    fair_share,
)
from hrm.policies.sharing.affinity import HOUR_S

__all__ = ["main"]

DRAWS = 10
_PAIRS_A_DRAW = 8


@dataclass(frozen=True)
class InForce:
    """Gets throughputs for affinities, of which it makes run times again."""

    loss_max: float

    @property
    def name(self) -> str:
        return f"in force, {self.loss_max:.0%} at most"

    def divide(self, demands: TenantDemands) -> Division:
        rule = divider()
        assert rule is not None, "there is a default"
        shares = np.array(fair_share(demands.wanted.tolist(), demands.total), np.int64)
        rule = replace(rule, loss_max=self.loss_max)
        return rule.divide(shares, demands.cores, HOUR_S / demands.affinity)[0]


def _systems() -> dict[str, System]:
    mapping = OneTenantPerNode()
    found = {
        "simple-fairness": System(SimpleFairness(), Affinity.RECIPROCAL, mapping),
        "source: reciprocal": System(AffinityRoundRobin(), Affinity.RECIPROCAL, mapping),
        "source: egocentric": System(AffinityRoundRobin(), Affinity.EGOCENTRIC, mapping),
    }
    for loss_max in (0.1, 0.2, 1.0):
        division = InForce(loss_max)
        found[division.name] = System(division, Affinity.THROUGHPUT, mapping)
    return found


def _measure(draws: Sequence[Sequence[World]]) -> dict[str, Any]:
    """By system: of each draw the means over its worlds; and the least fairness of all worlds."""
    systems = _systems()
    found: dict[str, dict[str, Any]] = {
        name: {"fairness": [], "makespan": [], "least": 1.0} for name in systems
    }
    for worlds in draws:
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        for world in worlds:
            runs = {name: run(world, system) for name, system in systems.items()}
            base_s = runs["simple-fairness"].makespan_s
            for name, each in runs.items():
                rows[name].append((each.fairness, each.makespan_s / base_s))
                found[name]["least"] = min(found[name]["least"], each.fairness)
        for name, pairs in rows.items():
            fairness, makespan = np.mean(pairs, axis=0).tolist()
            found[name]["fairness"].append(fairness)
            found[name]["makespan"].append(makespan)
    return found


def _table(title: str, found: dict[str, Any]) -> str:
    base = np.array(found["simple-fairness"]["fairness"])
    lines = [
        f"## {title}",
        "",
        "| division | fairness | over simple fairness's [95 %] | least | makespan, of simple's |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        fairness, more = np.array(row["fairness"]), np.array(row["fairness"]) - base
        found_more = interval(more.tolist())
        half = found_more.high - found_more.mean
        shown = "-" if name == "simple-fairness" else f"{found_more.mean:+.3f} ± {half:.3f}"
        lines.append(
            f"| {name} | {fairness.mean():.3f} | {shown} | {row['least']:.3f} | "
            f"{np.mean(row['makespan']):.3f} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 where the data is not there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness.in_force", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="two draws of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE alone")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="Gavel's measurements; without, drawn worlds alone"
    )
    parser.add_argument("--draws", type=int, help=f"of each (default {DRAWS})")
    parser.add_argument(
        "--first", type=int, default=0, help="seed (default 0; others than those it was made with)"
    )
    given = parser.parse_args(arguments)
    many, first = given.draws or (2 if given.quick else DRAWS), given.first
    provenance = common.provenance("benchmarks.fairness.in_force", ["numpy"])
    draws = [[x.world for x in scenarios(seed)] for seed in range(first, first + many)]
    titles = {"The source's 23 scenarios, drawn pressures": _measure(draws)}
    if given.data is not None:
        try:
            pairs = measured.load(given.data)
        except FileNotFoundError as error:
            CONSOLE.print(f"no {error.filename}: --data is the folder with Gavel's measurements")
            return 1
        for equal in (True, False):
            begins = [first + x * _PAIRS_A_DRAW for x in range(many)]
            seeds = [range(begin, begin + _PAIRS_A_DRAW) for begin in begins]
            some = [[measured.draw(pairs, x, equal_loads=equal) for x in each] for each in seeds]
            titles[f"Measured pairs, {'equal' if equal else 'unequal'} loads"] = _measure(some)
    document = {
        "provenance": provenance,
        "draws": many,
        "worlds": titles,
    }
    body = "\n".join(_table(title, found) for title, found in titles.items())
    CONSOLE.print(body)
    if given.json is not None:
        common.write_json(given.json, document)
    else:
        common.write_results(
            "fairness-in-force", "The rule in force for unlike platforms", document, body
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
