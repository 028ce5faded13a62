"""The Markdown of the results, from the tables of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.fairness.claims import FIRST_LEVEL, Claim
from benchmarks.fairness.systems import LEARNED, VARIANTS, Table
from benchmarks.simulation.figures import interval

__all__ = ["body"]

_NAMES = {"scenarios": "drawn pressures", "measured": "measured pairs"}


def body(
    document: Mapping[str, Any],
    found: Mapping[str, Table],
    checked: Mapping[str, Sequence[Claim]],
) -> str:
    """All tables below the head of the results file."""
    parts = [
        _head(document),
        "## What the source claims, and what was found\n",
        "Means over runs with 95 % intervals. *open*: the interval has both signs.\n",
        _claims(checked),
        "\n## Fairness and makespan of every pair of policies, all scenarios\n",
        _grid(found["scenarios"]),
    ]
    if "measured" in found:
        parts += [
            "\n## The same with measured pairs of jobs, two kinds of GPU\n",
            _grid(found["measured"]),
        ]
    parts += [
        "\n## Affinity round robin in scenarios where it is not the fairest, run 0\n",
        _losses(found["scenarios"]),
        "\n## Steps and simplifications (section 6.5), all scenarios\n",
        _variants(found["variants"]),
        "\n## Run times that are learned while tenants run, the default scenario\n",
        _learned(found["learned"]),
        "\n## Tenants that come one after the other\n",
        _arrivals(found["arrivals"]),
        "\n## Processor time of one decision\n",
        _decisions(document["decisions"]),
    ]
    return "\n".join(parts)


def _head(document: Mapping[str, Any]) -> str:
    return (
        f"{document['scenarios']} scenarios, {document['runs']} runs. Affinities differ from the "
        f"printed ones by {document['epa_rpa_max_error']:.5f} at most. Affinity round robin is the "
        f"fairest of four first levels in {document['pa_rr_fairest']:.1f} scenarios (mean over "
        f"runs; {document['pa_rr_fairest_run_0']:.0f} in run 0). No division could give all "
        f"tenants more than {document['bound_common_throughput']:.4f} of their ideal throughput at "
        "once in the default (linear program, no interference).\n"
    )


def _claims(checked: Mapping[str, Sequence[Claim]]) -> str:
    header = ["claim", "unit", "published"]
    for name in checked:
        header += [f"found, {_NAMES[name]}", "verdict"]
    rows = []
    for at, first in enumerate(next(iter(checked.values()))):
        row = [first.name, first.unit, first.published]
        for each in checked.values():
            row += [str(each[at].found), each[at].verdict]
        rows.append(row)
    return common.table(header, rows)


def _grid(table: Table) -> str:
    rows = []
    for at, label in enumerate(table.systems):
        cells = [
            interval(values[:, :, at].mean(axis=1).tolist())
            for values in (table.fairness, table.ratio)
        ]
        rows.append(
            [
                label.division, label.affinity, label.mapping, *map(str, cells),
                f"{table.jain[:, :, at].mean():.3f}",
                f"{table.wait_s[:, :, at].mean() / 3600:.2f}",
                f"{table.moved[:, :, at].mean():,.0f}",
            ]
        )  # fmt: skip
    return common.table(
        ["first level", "affinity", "second level", "fairness", "makespan, of simple's", "Jain",
         "last first core, h", "cores lost before the end"],
        rows,
    )  # fmt: skip


def _losses(table: Table) -> str:
    """Scenarios of run 0 where another first level is fairer, over all mappings."""
    first = table.fairness[0]
    means = {
        each: first[:, table.where(division=each, affinity="reciprocal")].mean(axis=1)
        for each in FIRST_LEVEL
    }
    ours = means["affinity-round-robin"]
    best = np.max(list(means.values()), axis=0)
    rows = [
        [name, f"{ours[at]:.3f}", max(means, key=lambda x: means[x][at]), f"{best[at]:.3f}"]
        for at, (_, name) in enumerate(table.scenarios)
        if best[at] > ours[at]
    ]
    if not rows:
        return "None."
    return common.table(["scenario", "affinity round robin", "fairest", "its fairness"], rows)


def _paired(table: Table, one: int, other: int) -> Iterator[str]:
    for values in (table.fairness, table.ratio):
        yield str(interval((values[:, :, one] - values[:, :, other]).mean(axis=1).tolist()))


def _variants(table: Table) -> str:
    at = table.systems.index
    rows = [
        [label.mapping, base.mapping, *_paired(table, at(label), at(base))]
        for label, (_, base) in VARIANTS.items()
    ]
    return common.table(
        ["affinity round robin with", "less that with", "fairness", "makespan, of simple's"], rows
    )


def _learned(table: Table) -> str:
    rows = []
    for at, label in enumerate(table.systems):
        if label not in LEARNED:
            continue
        cells = [
            str(interval(values[:, :, at].mean(axis=1).tolist()))
            for values in (table.fairness, table.ratio)
        ]
        rows.append([label.mapping, *cells, f"{table.moved[:, :, at].mean():,.0f}"])
    return common.table(
        ["affinity round robin, one tenant on a node", "fairness", "makespan, of simple's",
         "cores lost before the end"],
        rows,
    )  # fmt: skip


def _arrivals(table: Table) -> str:
    kinds = list(dict.fromkeys(kind for kind, _ in table.scenarios))
    rows = []
    for kind in kinds:
        which = [at for at, (each, _) in enumerate(table.scenarios) if each == kind]
        for at, label in enumerate(table.systems):
            fairness = table.fairness[:, which, at].mean(axis=1).tolist()
            ratio = table.ratio[:, which, at].mean(axis=1).tolist()
            cells = [str(interval(fairness)), str(interval(ratio))]
            rows.append([kind, label.division, label.mapping, *cells])
    return common.table(
        ["arrivals", "first level", "second level", "fairness", "makespan, of simple's"], rows
    )


def _decisions(rows: Sequence[Mapping[str, Any]]) -> str:
    return common.table(
        ["policy", "tenants", "median, ms", "most, ms"],
        [[row["policy"], row["tenants"], row["median_ms"], row["most_ms"]] for row in rows],
    )
