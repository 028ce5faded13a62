"""The Markdown of the results, from the tables of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.fairness.claims import Claim, fairest_shares
from benchmarks.fairness.systems import (
    DISTURBED,
    FIRST_LEVEL,
    GIVEN,
    LEARNED,
    ROUND_ROBIN,
    VARIANTS,
    Table,
)
from benchmarks.simulation.figures import interval

__all__ = ["body"]


def body(
    document: Mapping[str, Any],
    found: Mapping[str, Table],
    checked: Mapping[str, Sequence[Claim]],
) -> str:
    """All tables below the head of the results file."""
    parts = [
        _head(document),
        "## What the source claims, and what was found\n",
        "Means over runs with 95 % intervals. *holds*, *fails*: the whole interval lies on one "
        "side; *open*: it has both; *mixed*: kinds of scenarios differ (next table); -: nothing "
        "to decide. *Size*: does the published figure lie within the interval?\n",
        _claims(checked),
        "\n### By kind of scenario, drawn pressures\n",
        _kinds(checked["drawn pressures"]),
        "\n## Fairness and makespan of every pair of policies, all scenarios\n",
        _grid(found["scenarios"]),
    ]
    if "measured" in found:
        parts += [
            "\n## The same with measured pairs of jobs, two kinds of GPU\n",
            _grid(found["measured"]),
        ]
    parts += [
        "\n## Affinity round robin in scenarios where it is not always the fairest\n",
        "Means over the source's mappings and over runs; how often each is the fairest, of all "
        "runs. Scenarios that are not listed have no such run.\n",
        *(_losses(found[name]) + "\n" for name in ("scenarios", "measured") if name in found),
        "\n## Properties of the rules in random cases\n",
        _PROPERTIES,
        _properties(document["properties"]),
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


_PROPERTIES = (
    "Cases in which some tenant is slower than with its part of every platform; envies another by "
    "more than a core; gets more that it can use by stating a larger want; and in which all could "
    "be faster by 1 % (in parts of cores). With the worst case of each.\n"
)


def _claims(checked: Mapping[str, Sequence[Claim]]) -> str:
    header = ["claim", "unit", "published"]
    for name in checked:
        header += [f"found, {name}", "verdict", "size"]
    rows = []
    for at, first in enumerate(next(iter(checked.values()))):
        row = [first.name, first.unit, first.published]
        for each in checked.values():
            row += [str(each[at].found), each[at].verdict, each[at].inside]
        rows.append(row)
    return common.table(header, rows)


def _kinds(checked: Sequence[Claim]) -> str:
    """Those with a verdict."""
    rows = [
        [each.name, each.unit, *(f"{of.found}, {of.verdict}" for of in each.kinds.values())]
        for each in checked
        if each.verdict != "-"
    ]
    return common.table(["claim", "unit", *checked[0].kinds], rows)


def _properties(rows: Sequence[Mapping[str, Any]]) -> str:
    return common.table(
        ["division", "affinity", "cases", "slower than with its part", "worst, of it",
         "envious", "worst, of the other's", "gains by asking", "at most, times",
         "all could gain 1 %", "median possible gain"],
        [
            [
                row["division"], row["affinity"], row["cases"],
                row["incentive"], f"{row['incentive_worst']:.3f}",
                row["envy"], f"{row['envy_worst']:.3f}",
                row["asking"], f"{row['asking_most']:.2f}",
                row["inefficient"], f"{100 * row['possible_gain_median']:.1f} %",
            ]
            for row in rows
        ],
    )  # fmt: skip


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
    """Scenarios where in some run another first level is fairer, over the source's mappings."""
    means = {
        each: table.fairness[:, :, table.first_level(each)].mean(axis=(0, 2))
        for each in FIRST_LEVEL
    }
    shares = fairest_shares(table)
    rows = [
        [
            name, f"{means[ROUND_ROBIN][at]:.3f}",
            max(means, key=lambda each: means[each][at]),
            f"{max(mean[at] for mean in means.values()):.3f}",
            *(f"{100 * shares[each][at]:.0f} %" for each in FIRST_LEVEL),
        ]
        for at, (_, name) in enumerate(table.scenarios)
        if shares[ROUND_ROBIN][at] < 1
    ]  # fmt: skip
    if not rows:
        return "None."
    return common.table(
        ["scenario", "affinity round robin", "fairest by mean", "its fairness",
         *(f"fairest: {each}" for each in FIRST_LEVEL)],
        rows,
    )  # fmt: skip


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
    """Each with its difference to what is given: the times alone, and those of full nodes."""
    index = {label: at for at, label in enumerate(table.systems)}
    rows = []
    for label in LEARNED:
        at = index[label]
        cells = [
            str(interval(values[:, :, at].mean(axis=1).tolist()))
            for values in (table.fairness, table.ratio)
        ]
        for base in (GIVEN, DISTURBED):
            cells += ["-", "-"] if label == base else _paired(table, at, index[base])
        errors = table.error[:, :, at]
        error = "-" if np.isnan(errors).all() else f"{100 * np.nanmean(errors):.1f} %"
        rows.append([label.mapping, *cells, error, f"{table.moved[:, :, at].mean():,.0f}"])
    return common.table(
        ["affinity round robin, one tenant on a node", "fairness", "makespan, of simple's",
         "fairness, less that of the first row", "makespan, less that",
         "fairness, less that of the second row", "makespan, less that",
         "error of times alone", "cores lost before the end"],
        rows,
    )  # fmt: skip


def _arrivals(table: Table) -> str:
    rows = []
    for kind in table.kinds:
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
