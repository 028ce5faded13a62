"""The report of the pipeline experiments: one document of numbers, and Markdown made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.paired_runs import Paired, holm, paired, ship
from benchmarks.paper.ldwp_runs import JOIN_S, LEAVE_S, Run
from benchmarks.simulation.figures import Interval, interval

__all__ = ["SHIP_SETTINGS", "cell", "changes", "changes_table", "document_of", "report"]

SHIP_SETTINGS = ("rates", "nodes", "world overload", "world none")
TARGET_THROUGHPUT, TARGET_GPU_POINTS = 0.269, 0.147
PUBLISHED = {
    "rates": "paper, figures 7 and 8: equal at 10/min; +27.9 % at 60/min; worker 1 +41.0 %",
    "saturation": (
        "Beyond the paper's rates: 90 a minute is the fluid bound, so at 120 no policy can keep "
        "up. `tasks/min` counts tasks, so who prefers short ones has more of them (`min-min`) and "
        "may pass the fluid bound of the whole mix, while long ones wait: `all over all time` "
        "counts everything until the last has ended"
    ),
    "nodes": "paper, figures 5 and 6: +38.8 % at 10 nodes; worker 1 +31.9 % at 6 nodes",
    "node policies": "paper, figures 9 and 10: GPU utilisation 83 %, +14.7 %; worker 1 87 %",
    "changes": "paper, figure 13: a plateau after about 12 minutes, and after about 10",
    "sizes, idle": "paper, figure 12: random over the method's time 5 to 10, rising with size",
}
_COLUMNS = {
    "throughput": "tasks/min",
    "arrival_cap": "arrived",
    "bound": "bound",
    "of_bound": "of the bound",
    "whole": "all over all time",
    "response_p50_s": "response p50, s",
    "response_p95_s": "p95",
    "slowdown": "over ideal",
    "gpu_utilisation": "GPU use",
    "gpu_busy": "GPU busy",
    "gpu_work": "work in a busy s",
    "balance": "balance",
    "load": "mean load",
    "worker_1_throughput": "worker 1, tasks/min",
    "worker_1_gpu": "worker 1, GPU use",
    "decision_p50_us": "decision p50, µs",
    "decision_p99_us": "p99",
    "fallbacks": "fallbacks",
    "failed": "failed",
}
_RECOVERED = 0.95
_BY_TYPE = ("rates", "nodes", "node policies")


def document_of(runs: Sequence[Run], context: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the report and the plots need, as JSON."""
    points: dict[tuple[str, float, str], list[Run]] = {}
    for run in runs:
        points.setdefault((run.setting.name, run.setting.x, run.pair), []).append(run)
    rows = [_row(own, context["baseline"], points) for own in points.values()]
    document: dict[str, Any] = {
        "benchmark": "ldwp",
        **context,
        "pairs": _pairs(rows),
        "points": rows,
        "fluctuations": [
            changes(own)
            for key, own in points.items()
            if key[0] == "changes" and all(len(run.series) > LEAVE_S / 60 + 5 for run in own)
        ],
        "load_balance": _balance(points),
    }
    document["ship"] = {
        f"{name}+{context['iawp']}": _ship(f"{name}+{context['iawp']}", document)
        for name in context["learned"]
    }
    document["targets"] = _targets(document)
    return document


def _row(
    own: Sequence[Run],
    baseline: str,
    points: Mapping[tuple[str, float, str], Sequence[Run]],
) -> dict[str, Any]:
    """A pair at a point: figures with intervals, and paired with the baseline there."""
    first = own[0]
    names = [name for name in first.values if all(name in run.values for run in own)]
    row: dict[str, Any] = {
        "setting": first.setting.name,
        "x": first.setting.x,
        "pair": first.pair,
        "tasks": first.setting.tasks,
        "seeds": [run.seed for run in own],
        "log_hash": first.log_hash,
        "figures": {n: interval([run.values[n] for run in own]).as_json() for n in names},
    }
    theirs = points.get((first.setting.name, first.setting.x, baseline), ())
    if theirs and first.pair != baseline:
        row["paired"] = {
            name: paired(
                {run.seed: run.values[name] for run in own},
                {run.seed: run.values[name] for run in theirs},
            ).as_json()
            for name in ("throughput", "slowdown", "gpu_utilisation", "response_p95_s")
        }
    return row


def _pairs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every pair at the highest rate, for other programs."""
    rates = [row for row in rows if row["setting"] == "rates"]
    most = max((row["x"] for row in rates), default=0)
    found = {}
    for row in rates:
        if row["x"] == most:
            figures = row["figures"]
            value = figures["throughput"]
            found[row["pair"]] = {
                "rate_per_min": most,
                "throughput": value["mean"],
                "ci95": [value["low"], value["high"]],
                "bound": figures["bound"]["mean"],
                "gpu_utilisation": figures["gpu_utilisation"]["mean"],
                "balance": figures["balance"]["mean"],
            }
    return found


def changes(own: Sequence[Run]) -> dict[str, Any]:
    """Figure 13: tasks a minute over time, how long until 95 % of the later level, and the dip.

    The level is the mean of the last five minutes before the next change, after smoothing over
    three; ``dip_tasks``: the deficit below the lower of the levels before and after, until the
    next change. Arrivals vary, so a policy without learning has some, too.
    """
    shortest = min(len(run.series) for run in own)
    series = np.mean([run.series[:shortest] for run in own], axis=0)
    # The first and the last minute have one neighbour: they are not averaged with an empty one.
    counted = np.convolve(np.ones(shortest), np.ones(3), mode="same")
    smooth = np.convolve(series, np.ones(3), mode="same") / counted
    join, leave = int(JOIN_S // 60), int(LEAVE_S // 60)
    return {
        "pair": own[0].pair,
        "series": series.tolist(),
        "joined": _recovery(smooth, join, min(leave, shortest)),
        "left": _recovery(smooth, leave, shortest),
    }


def _recovery(smooth: Any, begin: int, end: int) -> dict[str, float]:
    before = float(smooth[max(0, begin - 5) : begin].mean())
    level = float(smooth[max(begin, end - 5) : end].mean())
    after = smooth[begin:end]
    reached = np.flatnonzero(after >= _RECOVERED * level)
    minutes = float(reached[0]) if len(reached) else float(end - begin)
    missing = np.maximum(0.0, min(before, level) - after)
    return {"level": level, "minutes": minutes, "dip_tasks": float(missing.sum())}


def _balance(points: Mapping[tuple[str, float, str], Sequence[Run]]) -> list[dict[str, Any]]:
    """Figure 11: degree and mean load up to the arrival of so many tasks, at 50/min."""
    found = []
    rates = sorted({x for name, x, _ in points if name == "rates"})
    at = 50.0 if 50.0 in rates else (rates[-1] if rates else 0.0)
    for (name, x, pair), own in points.items():
        if name != "rates" or x != at:
            continue
        for place, (tasks, _, _) in enumerate(own[0].balance):
            found.append(
                {
                    "pair": pair,
                    "tasks": tasks,
                    "degree": interval([run.balance[place][1] for run in own]).as_json(),
                    "load": float(np.mean([run.balance[place][2] for run in own])),
                }
            )
    return found


def _ship(pair: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The ship rule on throughput and on the slow-down over the ideal (less is better)."""
    rows = [
        row
        for row in document["points"]
        if row["pair"] == pair and row["setting"] in SHIP_SETTINGS and "paired" in row
    ]
    found: dict[str, Any] = {"scenarios": len(rows)}
    for name, sign in (("throughput", 1.0), ("slowdown", -1.0)):
        own = [_paired(row["paired"][name], sign) for row in rows]
        yes, won, lost = ship(own) if own else (False, 0, 0)
        adjusted = holm([one.p for one in own])
        found[name] = {
            "ships": yes,
            "won": won,
            "lost": lost,
            "each": [
                {"setting": row["setting"], "x": row["x"], **one.as_json(), "p_holm": p}
                for row, one, p in zip(rows, own, adjusted, strict=True)
            ],
        }
    return found


def _paired(held: Mapping[str, float], sign: float) -> Paired:
    ends = sorted((sign * held["low"], sign * held["high"]))
    return Paired(Interval(sign * held["mean"], ends[0], ends[1], int(held["runs"])), held["p"])


def _targets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The targets, the results, and whether they are met."""
    pairs, base = document["pairs"], document["baseline"]
    ours = [pair for pair in pairs if pair.partition("+")[0] in document["learned"]]
    if not ours or base not in pairs:
        return []
    best = max(ours, key=lambda pair: pairs[pair]["throughput"])
    gain = pairs[best]["throughput"] / pairs[base]["throughput"] - 1.0
    most = pairs[base]["bound"] / pairs[base]["throughput"] - 1.0
    found = [
        _target(
            f"throughput of {best} over {base} at the highest rate",
            f"+{100 * TARGET_THROUGHPUT:.1f} %",
            f"{100 * gain:+.1f} % (the bound allows {100 * most:+.1f} %)",
            gain >= TARGET_THROUGHPUT,
        )
    ]
    found += _beyond(document, base)
    use = {pair: values["gpu_utilisation"] for pair, values in pairs.items()}
    best = max(ours, key=lambda pair: use[pair])
    points = use[best] - use[document["random"]]
    found.append(
        _target(
            f"GPU use of {best} over {document['random']}",
            f"+{100 * TARGET_GPU_POINTS:.1f} points",
            f"{100 * points:+.1f} points",
            points >= TARGET_GPU_POINTS,
        )
    )
    pats = [pair for pair in pairs if pair.endswith("+pats")]
    if pats:
        other = max(pats, key=lambda pair: use[pair])
        found.append(
            _target(
                f"GPU use of {best} over {other}",
                "more",
                f"{100 * (use[best] - use[other]):+.1f} points",
                use[best] > use[other],
            )
        )
    first = max(pairs, key=lambda pair: pairs[pair]["balance"])
    value = f"{first} has {pairs[first]['balance']:.3f}"
    found.append(_target("load balance best", "learned", value, first in ours))
    for one in document["fluctuations"]:
        if one["pair"].startswith("ldwp-set"):
            dip, minutes = one["joined"]["dip_tasks"], one["joined"]["minutes"]
            value = f"{dip:.1f} tasks, {minutes:.0f} min"
            found.append(
                _target(f"dip of {one['pair']} when nodes join", "none", value, dip <= 1.0)
            )
    return found


def _beyond(document: Mapping[str, Any], base: str) -> list[dict[str, Any]]:
    """The same target where the bound leaves headroom: beyond the paper's rates, if run."""
    rows = [row for row in document["points"] if row["setting"] == "saturation"]
    found = []
    for x in sorted({row["x"] for row in rows}):
        of = {row["pair"]: row["figures"]["throughput"]["mean"] for row in rows if row["x"] == x}
        ours = [pair for pair in of if pair.partition("+")[0] in document["learned"]]
        best = max(ours, key=lambda pair: of[pair])
        gain = of[best] / of[base] - 1.0
        found.append(
            _target(
                f"the same at {x:g}/min, which the paper does not have: {best}",
                f"+{100 * TARGET_THROUGHPUT:.1f} %",
                f"{100 * gain:+.1f} %",
                gain >= TARGET_THROUGHPUT,
            )
        )
    return found


def _target(what: str, wanted: str, found: str, met: bool) -> dict[str, Any]:
    return {"what": what, "target": wanted, "found": found, "met": bool(met)}


def report(document: Mapping[str, Any]) -> str:
    """Markdown."""
    parts = [_introduction(document), "## Targets", _target_table(document)]
    for name in dict.fromkeys(row["setting"] for row in document["points"]):
        parts.append(f"## {name[0].upper()}{name[1:]}")
        if name in PUBLISHED:
            parts.append(PUBLISHED[name] + ".")
        parts.append(_table(document, name))
    parts += ["## Each type of node (figures 6, 8 and 10)", _types_table(document)]
    parts += ["## Sizes: whose time over whose (figure 12)", _sizes_table(document)]
    parts += ["## Load balance (figure 11)", _balance_table(document)]
    parts += ["## Nodes join and leave (figure 13)", changes_table(document["fluctuations"])]
    parts += ["## Learning (figure 3)", _learning(document)]
    parts += ["## Ship rule", _ship_table(document)]
    return "\n\n".join(parts)


def _introduction(document: Mapping[str, Any]) -> str:
    chosen = ", ".join(
        f"{pair} {value:.1f}" for pair, value in sorted(document["validation"].items())
    )
    return (
        "What is simulated and how to read it: "
        "[docs/pipelines-simulation.md](../../docs/pipelines-simulation.md). Nothing here ran on a "
        "GPU: GPU times are derived, as the table of profiles says.\n\n"
        f"Best heuristic pair on validation seeds: `{document['baseline']}`; co-run score: "
        f"`{document['iawp']}` (tasks/min there: {chosen}). Fluid bound of eleven workers: "
        f"{document['fluid_bound']:.1f} tasks/min. `bound` is the smaller of the fluid bound and "
        "what arrived. Means ± half of the 95 % interval."
    )


def _target_table(document: Mapping[str, Any]) -> str:
    rows = [
        [one["what"], one["target"], one["found"], "met" if one["met"] else "missed"]
        for one in document["targets"]
    ]
    if not rows:
        return "No learned policy was measured: there are no weights."
    return common.table(["", "target", "found", ""], rows)


def _table(document: Mapping[str, Any], name: str) -> str:
    rows = [row for row in document["points"] if row["setting"] == name]
    lines = []
    for row in sorted(rows, key=lambda one: one["x"]):
        figures = row["figures"]
        cells: list[object] = [f"{row['x']:g}", row["pair"]]
        cells += [cell(figures.get(column)) for column in _COLUMNS]
        held = row.get("paired", {}).get("throughput")
        cells.append(_percent(held) if held else "-")
        lines.append(cells)
    return common.table(["x", "pair", *_COLUMNS.values(), "over the best heuristics"], lines)


def cell(value: Mapping[str, float] | None) -> str:
    """Mean ± half of the interval, with the fewest digits."""
    if value is None or value["mean"] != value["mean"]:
        return "-"
    half = value["high"] - value["mean"]
    shown = f"{value['mean']:.3g}" if abs(value["mean"]) < 1_000 else f"{value['mean']:.0f}"
    return shown if half <= 0.0005 * abs(value["mean"]) else f"{shown} ± {half:.2g}"


def _percent(held: Mapping[str, float]) -> str:
    half = 100 * (held["high"] - held["mean"])
    return f"{100 * held['mean']:+.1f} ± {half:.1f} %"


def _types_table(document: Mapping[str, Any]) -> str:
    """For the settings in which the paper shows only worker 1, one of each type."""
    rows = [row for row in document["points"] if row["setting"] in _BY_TYPE]
    most = {
        name: max((row["x"] for row in rows if row["setting"] == name), default=0)
        for name in _BY_TYPE
    }
    kinds = sorted(
        {name[-1] for row in rows for name in row["figures"] if name.startswith("gpu_type_")}
    )
    lines = []
    for row in rows:
        if row["x"] == most[row["setting"]]:
            cells: list[object] = [row["setting"], f"{row['x']:g}", row["pair"]]
            for figure in ("throughput", "gpu"):
                cells += [cell(row["figures"].get(f"{figure}_type_{kind}")) for kind in kinds]
            lines.append(cells)
    header = ["", "x", "pair", *(f"type {kind}, tasks/min a node" for kind in kinds)]
    return common.table([*header, *(f"type {kind}, GPU use" for kind in kinds)], lines)


def _sizes_table(document: Mapping[str, Any]) -> str:
    """Median responses of random, and of the best heuristics, over those of each pair."""
    lines = []
    for setting in ("sizes, idle", "sizes, loaded"):
        rows = [row for row in document["points"] if row["setting"] == setting]
        p50 = {(r["x"], r["pair"]): r["figures"]["response_p50_s"]["mean"] for r in rows}
        for (x, pair), own in sorted(p50.items()):
            others = [p50.get((x, other)) for other in (document["random"], document["baseline"])]
            ratios = ["-" if one is None else f"{one / own:.2f}" for one in others]
            lines.append([setting, f"{x:g}", pair, *ratios])
    header = ["", "MB", "pair", "random / it", "best heuristics / it"]
    return common.table(header, lines)


def _balance_table(document: Mapping[str, Any]) -> str:
    rows = [
        [one["pair"], one["tasks"], cell(one["degree"]), f"{one['load']:.2f}"]
        for one in document["load_balance"]
    ]
    return common.table(["pair", "tasks", "degree", "mean load"], rows)


def changes_table(fluctuations: Sequence[Mapping[str, Any]]) -> str:
    """The results of ``changes`` for each pair."""
    if not fluctuations:
        return "These runs were too short for it."
    rows = [
        [one["pair"], what]
        + [f"{one[what][name]:.1f}" for name in ("level", "minutes", "dip_tasks")]
        for one in fluctuations
        for what in ("joined", "left")
    ]
    header = ["pair", "nodes", "level, tasks/min", "minutes to 95 %", "tasks missing"]
    return common.table(header, rows)


def _learning(document: Mapping[str, Any]) -> str:
    rows = []
    for name, meta in document["models"].items():
        for trial in meta.get("validation", {}).get("trials", ()):
            cells = (trial["decisions"], trial["log_slowdown"], trial["response_p95_s"])
            rows.append([name, f"{cells[0]:,}", f"{cells[1]:.3f}", f"{cells[2]:.0f}"])
        ect = meta.get("validation", {}).get("ect")
        if ect:
            rows.append(
                ["ect there", "-", f"{ect['log_slowdown']:.3f}", f"{ect['response_p95_s']:.0f}"]
            )
    if not rows:
        return "No model was at hand."
    header = ["policy", "decisions", "ln(response / ideal)", "response p95, s"]
    text = (
        "Greedy trials on validation seeds while the shipped weights were trained. Curves with and "
        "without pre-training, and nodes that join a network which goes on learning, are in "
        "[paper-ldwp-learning.md](paper-ldwp-learning.md)."
    )
    return f"{text}\n\n{common.table(header, rows)}"


def _ship_table(document: Mapping[str, Any]) -> str:
    rows = []
    for pair, found in document["ship"].items():
        for name in ("throughput", "slowdown"):
            one = found[name]
            words = "ships" if one["ships"] else "does not ship"
            rows.append([pair, name, found["scenarios"], one["won"], one["lost"], words])
    if not rows:
        return "No learned policy was measured."
    text = (
        "Default only if the paired 95 % interval against the best heuristics lies above 0 on 8 of "
        "10 scenarios and no loss of more than 2 % can be seen on any. Throughput cannot differ "
        "where everything that arrives is served; the slow-down over the ideal can."
    )
    return f"{text}\n\n" + common.table(["pair", "by", "scenarios", "won", "lost", ""], rows)
