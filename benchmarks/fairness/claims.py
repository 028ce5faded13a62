"""What the source claims, beside what was found: each a sentence, two figures and a verdict.

A verdict is of the interval over runs: *holds* where all of it lies on the claim's side, *fails*
where none does, else *open*; a single run has no interval and is open. Each kind of scenario has a
verdict of its own, and where they are not the same, that of all together is *mixed*: a mean over
opposite cases says nothing about either. What is not a comparison has no verdict ("-"): the best
of several is never below the worst. What the source states as a figure is not expected to the
digit, for its table of run times beside others was not published; its direction is what is tested,
and whether its size lies within the interval is stated beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.fairness.systems import FIRST_LEVEL, ROUND_ROBIN, SECOND_LEVEL, SIMPLE, Table
from benchmarks.simulation.figures import Interval, interval
from hrm.core.vocabulary.columns import Bools, Floats

__all__ = ["Claim", "Found", "claims", "fairest_counts", "fairest_shares", "verdict"]

_, PROVIDER, APPLICATION, _ = FIRST_LEVEL
NONE = "-"
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Found:
    """In the scenarios of one kind."""

    found: Interval
    verdict: str


@dataclass(frozen=True, slots=True)
class Claim:
    """``found`` is above ``above`` where the claim is right. ``size``: the published figure."""

    name: str
    published: str
    size: float | None
    found: Interval
    unit: str
    verdict: str
    kinds: dict[str, Found]

    @property
    def inside(self) -> str:
        """Does the published size lie in the interval?"""
        if self.size is None or self.found.runs < 2:
            return NONE
        return "yes" if self.found.low <= self.size <= self.found.high else "no"

    def as_json(self) -> dict[str, Any]:
        kinds = {
            kind: {"found": each.found.as_json(), "verdict": each.verdict}
            for kind, each in self.kinds.items()
        }
        return asdict(self) | {
            "found": self.found.as_json(), "inside": self.inside, "kinds": kinds,
        }  # fmt: skip


def verdict(found: Interval, *, above: float = 0.0) -> str:
    """Of a claim that says "above ``above``"."""
    if found.runs < 2:
        return "open"
    if found.low > above:
        return "holds"
    return "fails" if found.high < above else "open"


def claims(table: Table) -> Iterator[Claim]:
    """All that one table of runs can say about figures 3 to 7, with each kind's own verdict."""
    of_kinds = {kind: list(_all(table.of_kind(kind))) for kind in table.kinds}
    for at, whole in enumerate(_all(table)):
        kinds = {kind: Found(rows[at].found, rows[at].verdict) for kind, rows in of_kinds.items()}
        verdicts = {each.verdict for each in kinds.values()}
        alike = verdicts <= {whole.verdict}
        yield replace(whole, kinds=kinds, verdict=whole.verdict if alike else "mixed")


def _all(table: Table) -> Iterator[Claim]:
    yield from _of_affinities(table)
    yield from _of_first_level(table)
    yield from _of_second_level(table)
    yield from _of_levels(table)


def _mean(values: Floats, which: Bools) -> Floats:
    """Over the systems ``which``: runs by scenarios."""
    mean: Floats = values[:, :, which].mean(axis=2)
    return mean


def _first(table: Table, values: Floats, division: str) -> Floats:
    return _mean(values, table.first_level(division))


def _second(table: Table, values: Floats, mapping: str) -> Floats:
    return _mean(values, table.second_level(mapping))


def _claim(
    name: str,
    published: str,
    by_run: Floats,
    unit: str,
    *,
    size: float | None = None,
    above: float | None = 0.0,
) -> Claim:
    """``by_run`` has a value for each run, or for each run and scenario, which are averaged.
    Without ``above`` there is nothing to decide."""
    found = interval(by_run.reshape(len(by_run), -1).mean(axis=1).tolist())
    decided = NONE if above is None else verdict(found, above=above)
    return Claim(name, published, size, found, unit, decided, {})


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
    for other, fairer, shorter in (("throughput", 10, 8), ("egocentric", 3, 2)):
        gain = _percent_more(fairness["reciprocal"], fairness[other])
        name = f"reciprocal is fairer than {other} affinity"
        yield _claim(name, str(fairer), gain, "%", size=fairer)
        gain = -_percent_more(ratio["reciprocal"], ratio[other])
        name = f"its makespan is shorter than with {other}"
        yield _claim(name, str(shorter), gain, "%", size=shorter)
    gain = _percent_more(fairness["egocentric"], fairness["throughput"])
    yield _claim("egocentric is fairer than throughput", "about 7", gain, "%", size=7)
    yield from _run_by_run(table, aware)


def _run_by_run(table: Table, aware: Bools) -> Iterator[Claim]:
    """Figure 4: each pair of policies in each scenario, with one affinity and with the other.

    Where a division is the same with both, the two are equal: such ties are neither for the claim
    nor against it, so what is tested is the difference of wins and losses.
    """
    ours, others = (
        aware & table.where(affinity="reciprocal"),
        aware & table.where(affinity="egocentric"),
    )
    fairer = table.fairness[:, :, ours] - table.fairness[:, :, others]
    shorter = table.ratio[:, :, others] - table.ratio[:, :, ours]
    for word, size, gain in (("fairer", 59.7, fairer), ("shorter", 64.3, shorter)):
        by_run = gain.reshape(len(gain), -1)
        wins, losses = (100 * (by_run * sign > _EQUAL).mean(axis=1) for sign in (1, -1))
        less = "less fair" if word == "fairer" else "longer"
        yield _claim(
            f"in more pairs and scenarios, reciprocal is {word} than {less}, by", "above 0",
            wins - losses, "% of cases",
        )  # fmt: skip
        unit = "% of cases"
        yield _claim(f"{word} in", str(size), wins, unit, size=size, above=None)
        yield _claim("equal in", NONE, 100 - wins - losses, unit, above=None)


def fairest_counts(table: Table) -> Floats:
    """In how many scenarios affinity round robin is the fairest first level, by run."""
    ours = _first(table, table.fairness, ROUND_ROBIN)
    others = [_first(table, table.fairness, each) for each in FIRST_LEVEL if each != ROUND_ROBIN]
    counts: Floats = np.asarray((ours >= np.max(others, axis=0)).sum(axis=1), np.float64)
    return counts


def fairest_shares(table: Table) -> dict[str, Floats]:
    """Of the runs, by first level and scenario: how often it is the fairest, alone or not."""
    fairness = {each: _first(table, table.fairness, each) for each in FIRST_LEVEL}
    best = np.max(list(fairness.values()), axis=0)
    return {each: (values >= best - _EQUAL).mean(axis=0) for each, values in fairness.items()}


def _of_first_level(table: Table) -> Iterator[Claim]:
    """Figure 5, with reciprocal affinity."""
    count = len(table.scenarios)
    fairest = 100 * fairest_counts(table) / count
    yield _claim(
        "affinity round robin is the fairest first level in", "95.7 (22 of 23)", fairest,
        "% of scenarios", size=95.7, above=50.0,
    )  # fmt: skip
    fairness = {each: _first(table, table.fairness, each) for each in FIRST_LEVEL}
    ratio = {each: _first(table, table.ratio, each) for each in FIRST_LEVEL}
    for other in (SIMPLE, APPLICATION, PROVIDER):
        gain = _percent_more(fairness[ROUND_ROBIN], fairness[other])
        yield _claim(f"affinity round robin is fairer than {other}", "above 0", gain, "%")
    rest = [fairness[each] for each in FIRST_LEVEL if each != PROVIDER]
    least = (np.min(rest, axis=0) - fairness[PROVIDER]).mean(axis=1)
    yield _claim("provider affinity first is the least fair, by", "above 0", least, "of 1")
    last = 100 * (fairness[PROVIDER] < np.min(rest, axis=0)).mean(axis=1)
    yield _claim(
        "provider affinity first is the least fair in", NONE, last, "% of scenarios", above=50.0
    )
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
    yield _claim("with affinity round robin, it is fairer than random", "2.0", gain, "%", size=2.0)
    gain = -_percent_more(_mean(table.ratio, which[best]), _mean(table.ratio, which[other]))
    yield _claim("with affinity round robin, it is shorter than random", "3.7", gain, "%", size=3.7)
    raw = _second(table, table.fairness, "most-affected-first, raw")
    gain = _percent_more(fairness[best], raw)
    yield _claim("normalised is fairer than raw co-runner affinity", "similar", gain, "%", size=0.0)


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
        limit = 38 if level == "first" else 8
        name = f"best over worst of the {level} level, fairness"
        yield _claim(name, NONE, gain, "%", above=None)
        most = gain.max(axis=1)
        name = "the most of a run's scenarios"
        yield _claim(name, f"up to {limit}", most, "%", size=limit, above=None)
    gain = spread["first"] - spread["second"]
    yield _claim("the first level matters more, by", "above 0", gain, "points")
