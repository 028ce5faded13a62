"""What the source claims, beside what was found: each a sentence, two figures and a verdict.

A verdict is of the interval over runs: *holds* where all of it lies on the claim's side, *fails*
where none does, else *open*. What the source states as a figure is not expected to the digit, for
its table of run times beside others was not published; its direction is what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.fairness.systems import Table
from benchmarks.simulation.figures import Interval, interval
from hrm.core.vocabulary.columns import Bools, Floats

__all__ = ["Claim", "claims", "fairest_counts", "verdict"]

SIMPLE, ROUND_ROBIN = "simple-fairness", "affinity-round-robin"
PROVIDER, APPLICATION = "provider-affinity-first", "application-affinity-first"
FIRST_LEVEL = (SIMPLE, PROVIDER, APPLICATION, ROUND_ROBIN)
SECOND_LEVEL = (
    "one-tenant-per-node",
    "random-combinations",
    "most-affected-first",
    "co-runner-round-robin",
)
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """``found`` is positive where the claim is right, but for those of kind "as printed"."""

    name: str
    published: str
    found: Interval
    unit: str
    verdict: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"found": self.found.as_json()}


def verdict(found: Interval) -> str:
    """Of a claim that says "above 0"."""
    if found.low > 0:
        return "holds"
    return "fails" if found.high < 0 else "open"


def claims(table: Table) -> Iterator[Claim]:
    """All that one table of runs can say about figures 3 to 7."""
    yield from _of_affinities(table)
    yield from _of_first_level(table)
    yield from _of_second_level(table)
    yield from _of_levels(table)


def _mean(values: Floats, which: Bools) -> Floats:
    """Over the systems ``which``: runs by scenarios."""
    mean: Floats = values[:, :, which].mean(axis=2)
    return mean


def _first(table: Table, values: Floats, division: str) -> Floats:
    """With reciprocal affinity, over all mappings but the raw one."""
    which = table.where(division=division, affinity="reciprocal")
    return _mean(values, which & ~table.where(mapping="most-affected-first, raw"))


def _second(table: Table, values: Floats, mapping: str) -> Floats:
    """Over all first levels of the source, with reciprocal affinity."""
    which = np.zeros(len(table.systems), bool)
    for division in FIRST_LEVEL:
        which |= table.where(division=division, affinity="reciprocal", mapping=mapping)
    return _mean(values, which)


def _claim(name: str, published: str, by_run: Floats, unit: str, *, above: float = 0.0) -> Claim:
    """``by_run`` has a value for each run, or for each run and scenario, which are averaged."""
    values = by_run.reshape(len(by_run), -1).mean(axis=1)
    margin = interval((values - above).tolist())
    return Claim(name, published, interval(values.tolist()), unit, verdict(margin))


def _percent_more(one: Floats, other: Floats) -> Floats:
    """By how much the mean over scenarios is higher, by run."""
    more: Floats = 100 * (one.mean(axis=1) / other.mean(axis=1) - 1)
    return more


def _of_affinities(table: Table) -> Iterator[Claim]:
    """Figures 3 and 4: provider and application affinity first and round robin, all mappings."""
    fairness, ratio = {}, {}
    aware = table.where(division=PROVIDER) | table.where(division=APPLICATION)
    aware |= table.where(division=ROUND_ROBIN)
    aware &= ~table.where(mapping="most-affected-first, raw")
    for affinity in ("throughput", "egocentric", "reciprocal"):
        which = aware & table.where(affinity=affinity)
        fairness[affinity] = _mean(table.fairness, which)
        ratio[affinity] = _mean(table.ratio, which)
    for other, fairer, shorter in (("throughput", "10", "8"), ("egocentric", "3", "2")):
        gain = _percent_more(fairness["reciprocal"], fairness[other])
        yield _claim(f"reciprocal is fairer than {other} affinity", fairer, gain, "%")
        gain = -_percent_more(ratio["reciprocal"], ratio[other])
        yield _claim(f"its makespan is shorter than with {other}", shorter, gain, "%")
    gain = 100 * (fairness["egocentric"].mean(axis=1) / fairness["throughput"].mean(axis=1) - 1)
    yield _claim("egocentric is fairer than throughput", "about 7", gain, "%")
    yield from _run_by_run(table, aware)


def _run_by_run(table: Table, aware: Bools) -> Iterator[Claim]:
    """Figure 4: each pair of policies in each scenario, with one affinity and with the other."""
    ours, others = (
        aware & table.where(affinity="reciprocal"),
        aware & table.where(affinity="egocentric"),
    )
    fairer = table.fairness[:, :, ours] > table.fairness[:, :, others] + _EQUAL
    shorter = table.ratio[:, :, ours] < table.ratio[:, :, others] - _EQUAL
    for name, published, found in (
        ("of all pairs and scenarios, reciprocal is fairer in", "59.7", fairer),
        ("of all pairs and scenarios, it is shorter in", "64.3", shorter),
    ):
        share = 100 * found.reshape(len(found), -1).mean(axis=1)
        yield _claim(name, published, share, "% of cases", above=50.0)


def fairest_counts(table: Table) -> Floats:
    """In how many scenarios affinity round robin is the fairest first level, by run."""
    ours = _first(table, table.fairness, ROUND_ROBIN)
    others = [_first(table, table.fairness, each) for each in FIRST_LEVEL if each != ROUND_ROBIN]
    counts: Floats = np.asarray((ours >= np.max(others, axis=0)).sum(axis=1), np.float64)
    return counts


def _of_first_level(table: Table) -> Iterator[Claim]:
    """Figure 5, with reciprocal affinity."""
    count = len(table.scenarios)
    fairest = 100 * fairest_counts(table) / count
    yield _claim(
        "affinity round robin is the fairest first level in", "95.7 (22 of 23)", fairest,
        "% of scenarios", above=50.0,
    )  # fmt: skip
    fairness = {each: _first(table, table.fairness, each) for each in FIRST_LEVEL}
    ratio = {each: _first(table, table.ratio, each) for each in FIRST_LEVEL}
    for other in (SIMPLE, APPLICATION, PROVIDER):
        gain = _percent_more(fairness[ROUND_ROBIN], fairness[other])
        yield _claim(f"affinity round robin is fairer than {other}", "above 0", gain, "%")
    rest = [fairness[each] for each in FIRST_LEVEL if each != PROVIDER]
    least = (np.min(rest, axis=0) - fairness[PROVIDER]).mean(axis=1)
    yield _claim("provider affinity first is the least fair, by", "above 0", least, "of 1")
    rest = [ratio[each] for each in FIRST_LEVEL if each != SIMPLE]
    longest = (ratio[SIMPLE] - np.max(rest, axis=0)).mean(axis=1)
    yield _claim("simple fairness takes longest, by", "above 0", longest, "of its makespan")
    gain = 100 * (1 - ratio[ROUND_ROBIN].mean(axis=1) / ratio[SIMPLE].mean(axis=1))
    yield _claim("affinity round robin is shorter than simple fairness", "above 0", gain, "%")


def _of_second_level(table: Table) -> Iterator[Claim]:
    """Figure 6 and section 6.3."""
    fairness = {each: _second(table, table.fairness, each) for each in SECOND_LEVEL}
    ratio = {each: _second(table, table.ratio, each) for each in SECOND_LEVEL}
    best = "most-affected-first"
    for other in SECOND_LEVEL:
        if other == best:
            continue
        gain = _percent_more(fairness[best], fairness[other])
        yield _claim(f"most affected first is fairer than {other}", "above 0", gain, "%")
        gain = -_percent_more(ratio[best], ratio[other])
        yield _claim(f"its makespan is shorter than that of {other}", "above 0", gain, "%")
    which = {
        each: table.where(division=ROUND_ROBIN, affinity="reciprocal", mapping=each)
        for each in SECOND_LEVEL
    }
    other = "random-combinations"
    gain = _percent_more(_mean(table.fairness, which[best]), _mean(table.fairness, which[other]))
    yield _claim("with affinity round robin, it is fairer than random", "2.0", gain, "%")
    gain = -_percent_more(_mean(table.ratio, which[best]), _mean(table.ratio, which[other]))
    yield _claim("with affinity round robin, it is shorter than random", "3.7", gain, "%")
    raw = _second(table, table.fairness, "most-affected-first, raw")
    gain = _percent_more(fairness[best], raw)
    yield _claim("normalised is fairer than raw co-runner affinity", "similar", gain, "%")


def _of_levels(table: Table) -> Iterator[Claim]:
    """Figure 7: the best policy of a level over its worst, scenario by scenario."""
    spread = {}
    for level, names, of in (
        ("first", FIRST_LEVEL, _first),
        ("second", SECOND_LEVEL, _second),
    ):
        values = np.array([of(table, table.fairness, each) for each in names])
        gain = 100 * (values.max(axis=0) / values.min(axis=0) - 1)
        spread[level] = gain
        limit = "38" if level == "first" else "8"
        yield _claim(f"best over worst of the {level} level, fairness", f"up to {limit}", gain, "%")
    gain = spread["first"] - spread["second"]
    yield _claim("the first level matters more, by", "above 0", gain, "points")
