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
        rows = [
            [
                *_compared(c, c["case"]),
                f"{c['p_holm']:.2g}",
                f"{100 * c['decided_mean']:.0f} %",
                f"{100 * c['decided']:.0f} %",
            ]
            for c in document["cells"]
        ]
        header = ["cell", "best heuristic", "over ideal", "ldwp-set", "difference", "p (Holm)",
                  "decided, mean", "at least"]  # fmt: skip
        parts += ["## Cells, at equal node policy", common.table(header, rows)]
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
    for experiment in ("cells", "overload", "published", "pairs"):
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


def _table(points: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["case"], one["pair"], *(_shown(one["figures"][name]) for name in _COLUMNS)]
        for one in points
    ]
    return common.table(["case", "pair", *_COLUMNS.values()], rows)


def _headline(document: Mapping[str, Any]) -> str:
    lines = []
    if document["cells"]:
        count = len(document["cells"])
        lines.append(
            f"`ldwp-set` is better than the best heuristic of the cell, with its 95 % interval, "
            f"in {document['cells_better']} of {count} cells, and more than 5 % worse in "
            f"{document['cells_worse']}; the mean gain at equal node policy is "
            f"{100 * document['equal_node_policy_gain']:.1f} %. It decided "
            f"{100 * document['decided_mean']:.0f} % in the mean, "
            f"{100 * document['decided_least']:.0f} % in the run with the fewest: a tenth is left "
            "to the heuristic until 20 of its tasks have ended, which weighs in short windows."
        )
    if document["overload_share_of_bound"] is not None:
        lines.append(
            f"Under 1.5 x load `{document['default_pair']}` ends "
            f"{100 * document['overload_share_of_bound']:.0f} % of what the fluid bound allows of "
            f"the mix, `ect+min-min` {100 * document['overload_rival_share']:.0f} %."
        )
    lines.append(
        f"Experiments: {', '.join(document['experiments'])}. `arrivals, in p95` says how many "
        "times the 95th percentile of response tasks arrived for: below 10 a window is short, and "
        "the end of the run, without arrivals, weighs."
    )
    return " ".join(lines)
