"""The report of ``benchmarks.paper.ldwp``: Markdown from its document of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import common

__all__ = ["report"]

_COLUMNS = {
    "slowdown": "over ideal",
    "slowdown_max": "most",
    "response_p95_s": "p95, s",
    "throughput": "tasks/min",
    "of_bound": "ended in time, of the bound",
    "work_of_bound": "in work",
    "gpu_utilisation": "GPU use",
    "balance": "balance",
    "spans": "arrivals, in p95",
}


def _shown(value: Mapping[str, float], digits: int = 3) -> str:
    half = (value["high"] - value["low"]) / 2.0
    return f"{value['mean']:.{digits}g} ± {half:.2g}"


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:+.1f} [{100 * value['low']:+.1f}, {100 * value['high']:+.1f}] %"


def _compared(found: Mapping[str, Any], name: str) -> list[str]:
    theirs, ours = _shown(found["theirs"]), _shown(found["ours"])
    return [name, found["best"], theirs, ours, _percent(found["difference"])]


def report(document: Mapping[str, Any]) -> str:
    """Markdown."""
    parts = [_headline(document)]
    if document["cells"]:
        parts += ["## Cells, at equal node policy", _cells(document["cells"])]
        parts += _windows(document["windows"])
    if document["cold"]:
        parts += ["## Cold cells: from the first task on", _cells(document["cold"])]
    if document["overload"]:
        parts += ["## Overload", _overload(document["overload"])]
    for found in document["equal_node_policy"]:
        rows = [
            [
                g["node"],
                g["best"],
                _shown(g["theirs"]),
                _shown(g["ours"]),
                _percent(g["difference"]),
            ]
            for g in found["gains"]
        ]
        headroom = "; ".join(
            f"`{h['node']}` against the cosine, under `ect`: {_percent(h['difference'])}"
            for h in found["headroom"]
        )
        parts += [
            f"## {found['case']}",
            f"Headroom of the co-run choice, slow-down: {headroom}. Best pair without learning: "
            f"`{found['best']}`.",
            common.table(
                ["node policy", "best heuristic", "over ideal", "ldwp-set", "difference"], rows
            ),
        ]
    for experiment in ("cells", "cold", "overload", "published", "pairs"):
        points = [one for one in document["points"] if one["experiment"] == experiment]
        if points:
            parts += [f"## {experiment.capitalize()}: all figures", _table(points)]
    if document.get("source"):
        rows = [[r["policy"], _shown(r["slowdown"]), _shown(r["throughput"])]
                for r in document["source"]]  # fmt: skip
        parts += [
            "## The source's reward and features, as they are",
            common.table(["policy", "over ideal", "tasks/min"], rows),
        ]
    return "\n\n".join(parts)


def _cells(cells: Sequence[Mapping[str, Any]]) -> str:
    header = ["cell", "best heuristic", "over ideal", "ldwp-set", "difference", "p (Holm)",
              "decided, mean", "at least", "arrivals, in p95"]  # fmt: skip
    rows = [
        [
            *_compared(c, c["case"]),
            f"{c['p_holm']:.2g}",
            f"{100 * c['decided_mean']:.0f} %",
            f"{100 * c['decided']:.0f} %",
            f"{c['spans']:.1f}" + (", short" if c["short"] else ""),
        ]
        for c in cells
    ]
    return common.table(header, rows)


def _windows(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The pilot runs that say how many tasks a cell has."""
    if not windows:
        return []
    rows = [
        [one["case"], one["pilot_tasks"], one["pair"], f"{one['response_p95_s']:.3g}", one["tasks"]]
        for one in windows
    ]
    header = ["cell", "tasks of the pilot run", "slowest pair", "its p95, s", "tasks"]
    text = "How many tasks a cell has, by a run of each pair on a seed of validation:"
    return [text, common.table(header, rows)]


def _overload(found: Sequence[Mapping[str, Any]]) -> str:
    """One row for each pair and figure, against the rival."""
    names = {"work_of_bound": "work", "of_bound": "tasks", "slowdown": "over ideal"}
    rows = [
        [
            words,
            one["pair"],
            _shown(one[figure]["ours"]),
            one["rival"],
            _shown(one[figure]["theirs"]),
            _percent(one[figure]["difference"]),
        ]
        for figure, words in names.items()
        for one in found
    ]
    header = ["figure", "pair", "its", "rival", "the rival's", "difference"]
    text = (
        "`work` is what ended while tasks arrived, in ideal seconds, over the fluid bound of the "
        "mix; `tasks` counts them instead, and grows where short ones go first."
    )
    return f"{text}\n\n{common.table(header, rows)}"


def _table(points: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["case"], one["pair"], *(_shown(one["figures"][name]) for name in _COLUMNS)]
        for one in points
    ]
    return common.table(["case", "pair", *_COLUMNS.values()], rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _headline(document: Mapping[str, Any]) -> str:
    lines = []
    if document["cells"]:
        count = len(document["cells"])
        lines.append(
            f"`ldwp-set` is better than the best heuristic of the cell, after Holm's correction, "
            f"in {document['cells_better']} of {count} cells (with its own 95 % interval alone, in "
            f"{document['cells_better_unadjusted']}), and more than 5 % worse in "
            f"{document['cells_worse']}; the mean gain at equal node policy is "
            f"{100 * document['equal_node_policy_gain']:.1f} %. It decided "
            f"{100 * document['decided_mean']:.0f} % in the mean, 90 % or more in "
            f"{document['cells_decided']} cells, and {100 * document['decided_least']:.0f} % in "
            "the run with the fewest: a twentieth stays with the heuristic, to be compared with. "
            f"Windows are short, below 10 times the 95th percentile of response, in "
            f"{document['cells_short']} cells."
        )
    if document["cold"]:
        lines.append(
            f"From the first task on, it is more than 5 % worse in {document['cold_worse']} of "
            f"{len(document['cold'])} cells."
        )
    for one in document["overload"]:
        work = one["work_of_bound"]
        lines.append(
            f"Under 1.5 x load `{one['pair']}` does {100 * work['ours']['mean']:.0f} % of the "
            f"work of the fluid bound, `{one['rival']}` {100 * work['theirs']['mean']:.0f} %: "
            f"{_percent(work['difference'])}."
        )
    for experiment, counts in document["fallbacks"].items():
        lines.append(f"Fallbacks, {experiment}: {_counts(counts)}.")
    lines.append(
        f"Modes at the end of runs: {_counts(document['modes_at_end'])}. "
        f"Experiments: {', '.join(document['experiments'])}. `arrivals, in p95` says how many "
        "times the 95th percentile of response tasks arrived for: below 10 a window is short, and "
        "the end of the run, without arrivals, weighs."
    )
    return " ".join(lines)
