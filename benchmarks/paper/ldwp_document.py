"""What the runs of ``benchmarks.paper.ldwp`` show, as a document of numbers.

All comparisons are of two pairs of policies on the same arrivals, so they are paired by seed; the
twelve cells are as many chances for a lucky result, so their p values are Holm's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.paired_runs import holm, paired
from benchmarks.paper.ldwp_cases import SPANS, Case, Found, Window
from benchmarks.simulation.figures import interval

__all__ = ["LEARNED", "NODE_POLICIES", "ORACLES", "document_of"]

LEARNED = "ldwp-set"
NODE_POLICIES = ("random", "mct", "min-min", "pats", "iawp:cosine", "iawp:guarded")
ORACLES = ("iawp:oracle", "iawp:oracle:guarded")
WORSE = 0.05
SIGNIFICANT = 0.05
DECIDES = 0.9


def _of(runs: Sequence[Found], case: str, pair: str, figure: str) -> dict[int, float]:
    return {
        run.seed: run.values[figure]
        for run in runs
        if (run.case, run.pair) == (case, pair) and figure in run.values
    }


def _mean(runs: Sequence[Found], case: str, pair: str, figure: str) -> float:
    values = _of(runs, case, pair, figure)
    return sum(values.values()) / len(values)


def _compared(
    runs: Sequence[Found], case: str, ours: str, theirs: str, figure: str
) -> dict[str, Any]:
    """One figure of two pairs; ``difference``: ours less theirs over the mean of theirs."""
    own, other = (_of(runs, case, pair, figure) for pair in (ours, theirs))
    return {
        "ours": interval(list(own.values())).as_json(),
        "theirs": interval(list(other.values())).as_json(),
        "difference": paired(own, other).as_json(),
    }


def _best(runs: Sequence[Found], case: str, pairs: Sequence[str]) -> str:
    """The pair of the least mean slow-down, in hindsight."""
    return min(pairs, key=lambda pair: _mean(runs, case, pair, "slowdown"))


def _against(runs: Sequence[Found], case: str, ours: str, pairs: Sequence[str]) -> dict[str, Any]:
    """``ours`` against the best of ``pairs``, by the slow-down: a difference below 0 is better.

    ``spans``: how many times the 95th percentile of response tasks arrived for, of the slowest.
    """
    theirs = _best(runs, case, pairs)
    decided = list(_of(runs, case, ours, "decided").values())
    spans = [_mean(runs, case, pair, "spans") for pair in (ours, *pairs)]
    return {
        "case": case,
        "best": theirs,
        **_compared(runs, case, ours, theirs, "slowdown"),
        "decided": min(decided, default=0.0),
        "decided_mean": sum(decided) / len(decided) if decided else 0.0,
        "spans": min(spans),
        "short": min(spans) < SPANS,
    }


def _cells(runs: Sequence[Found], cases: Sequence[Case], experiment: str) -> list[dict[str, Any]]:
    """Each with the p value that Holm's procedure leaves it among them."""
    cells = [
        _against(runs, case.name, case.pairs[-1], case.pairs[:-1])
        for case in cases
        if case.experiment == experiment
    ]
    for cell, p in zip(cells, holm([one["difference"]["p"] for one in cells]), strict=True):
        cell["p_holm"] = p
    return cells


def document_of(
    runs: Sequence[Found], cases: Sequence[Case], windows: Sequence[Window] = ()
) -> dict[str, Any]:
    """All that the report needs, as JSON, the headline figures first."""
    cells, cold = (_cells(runs, cases, experiment) for experiment in ("cells", "cold"))
    gains = [-cell["difference"]["mean"] for cell in cells]
    overload = [
        _overload(runs, case, pair)
        for case in cases
        if case.experiment == "overload"
        for pair in case.pairs[1:]
    ]
    shares = [one["work_of_bound"] for one in overload[:1]]  # of the pair that is the default
    return {
        "equal_node_policy_gain": sum(gains) / len(gains) if gains else None,
        "cells_better": sum(
            cell["difference"]["mean"] < 0.0 and cell["p_holm"] < SIGNIFICANT for cell in cells
        ),
        "cells_better_unadjusted": sum(cell["difference"]["high"] < 0.0 for cell in cells),
        "cells_worse": sum(cell["difference"]["mean"] > WORSE for cell in cells),
        "cells_decided": sum(cell["decided_mean"] >= DECIDES for cell in cells),
        "cells_short": sum(cell["short"] for cell in cells),
        "cold_worse": sum(cell["difference"]["mean"] > WORSE for cell in cold),
        "decided_least": min((cell["decided"] for cell in cells), default=None),
        "decided_mean": sum(cell["decided_mean"] for cell in cells) / len(cells) if cells else None,
        "overload_share_of_bound": shares[0]["ours"]["mean"] if shares else None,
        "overload_rival_share": shares[0]["theirs"]["mean"] if shares else None,
        "overload": overload,
        "fallbacks": _fallbacks(runs, cases),
        "modes_at_end": dict(Counter(run.mode for run in runs if run.mode)),
        "experiments": sorted({case.experiment for case in cases}),
        "windows": [one._asdict() for one in windows],
        "cells": cells,
        "cold": cold,
        "equal_node_policy": [_equal(runs, c) for c in cases if c.experiment == "pairs"],
        "points": [_point(runs, case, pair) for case in cases for pair in case.pairs],
        "cpu_s": sum(run.values["cpu_s"] for run in runs),
    }


def _overload(runs: Sequence[Found], case: Case, pair: str) -> dict[str, Any]:
    """A pair against the first of the case, in work and in tasks that ended while tasks arrived,
    and in slow-down."""
    rival = case.pairs[0]
    figures = ("work_of_bound", "of_bound", "slowdown")
    found = {figure: _compared(runs, case.name, pair, rival, figure) for figure in figures}
    return {"case": case.name, "pair": pair, "rival": rival, **found}


def _fallbacks(runs: Sequence[Found], cases: Sequence[Case]) -> dict[str, dict[str, int]]:
    """How often the learned policy fell back, by experiment and reason."""
    experiment_of = {case.name: case.experiment for case in cases}
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        if run.mode:
            counts.setdefault(experiment_of[run.case], Counter()).update(run.fallbacks)
    return {experiment: dict(found.most_common()) for experiment, found in counts.items()}


def _equal(runs: Sequence[Found], case: Case) -> dict[str, Any]:
    """The learned gain at each node policy, and what the co-run oracle leaves to gain."""
    found: dict[str, Any] = {"case": case.name, "gains": []}
    for node in NODE_POLICIES:
        own = [pair for pair in case.pairs if pair.partition("+")[2] == node]
        learned = f"{LEARNED}+{node}"
        others = [pair for pair in own if pair != learned]
        found["gains"].append({"node": node, **_against(runs, case.name, learned, others)})
    found["headroom"] = [
        {"node": oracle, **_against(runs, case.name, f"ect+{oracle}", [f"ect+{plain}"])}
        for oracle, plain in zip(ORACLES, NODE_POLICIES[-2:], strict=True)
    ]
    everything = [p for p in case.pairs if not p.startswith(LEARNED) and "oracle" not in p]
    found["best"] = _best(runs, case.name, everything)
    return found


def _point(runs: Sequence[Found], case: Case, pair: str) -> dict[str, Any]:
    own = [run for run in runs if (run.case, run.pair) == (case.name, pair)]
    names = [name for name in own[0].values if all(name in run.values for run in own)]
    return {
        "experiment": case.experiment,
        "case": case.name,
        "pair": pair,
        "seeds": len(own),
        "figures": {n: interval([run.values[n] for run in own]).as_json() for n in names},
    }
