"""Plots of RLPTO's experiments: table II as a front, figure 9, figure 10, and measured gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.paper.plots import HEIGHT_IN, STYLE, WIDTH_IN
from benchmarks.paper.rlpto_methods import BETAS, REPORTED
from benchmarks.paper.rlpto_source import SOURCE, TIMES_S
from hrm.learn.training_workloads import COMBINATIONS

__all__ = ["draw_all"]

_COLOURS = ("#7f8c8d", "#b7950b", "#1e8449", "#6c3483", "#2471a3", "#c0392b", "#117864", "#a04000")


def draw_all(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every plot of the parts that there are, in ``folder``; returns the files."""
    made = []
    pictures = {"beta": _front, "points": _points} if "source" in document else {}
    if "measured" in document:
        pictures["gains"] = _gains
    for name, draw in pictures.items():
        path = folder / f"paper-rlpto-{name}.svg"
        with mpl.rc_context(STYLE):
            whole = plt.figure(figsize=(WIDTH_IN, HEIGHT_IN))
            draw(whole, document)
            whole.tight_layout()
            whole.savefig(path, metadata={"Date": None})
            plt.close(whole)
        made.append(path)
    return made


def _front(whole: Any, document: Mapping[str, Any]) -> None:
    """Accuracy over time, simulated and as printed; and figure 9."""
    left, right = whole.subplots(1, 2)
    held = document["source"]["tables"]["II"]
    betas = [f"beta-{beta:g}" for beta in BETAS]
    left.plot(
        [held[name]["total_s"]["mean"] for name in betas],
        [held[name]["accuracy"]["mean"] for name in betas],
        color=_COLOURS[5], marker="o", markersize=4, label="beta rule, simulated",
    )  # fmt: skip
    left.plot(
        [REPORTED["II"][name][1] for name in betas], [REPORTED["II"][name][0] for name in betas],
        color=_COLOURS[5], marker="o", markersize=4, linestyle=":", markerfacecolor="none",
        label="RLPTO, as printed",
    )  # fmt: skip
    for number, name in enumerate(SOURCE):
        row = held[name]
        left.plot(row["total_s"]["mean"], row["accuracy"]["mean"], "s", markersize=4,
                  color=_COLOURS[number], label=name)  # fmt: skip
    left.set_xlabel("total time, s")
    left.set_ylabel("accuracy, %")
    left.legend(fontsize=6)
    rows = document["source"]["workers"]
    xs = [row["workers"] for row in rows]
    right.plot(xs, [row["time_s"] for row in rows], color=_COLOURS[4], marker="o", markersize=4)
    right.set_xlabel("workers of one job")
    right.set_ylabel("time, s")
    right.set_ylim(bottom=0)
    other = right.twinx()
    other.plot(xs, [row["accuracy"] for row in rows], color=_COLOURS[5], marker="s", markersize=4)
    other.set_ylabel("accuracy, %")


def _points(whole: Any, document: Mapping[str, Any]) -> None:
    """Figure 10 with one queue for all."""
    panels = whole.subplots(1, len(COMBINATIONS), sharey=False)
    shown = (*SOURCE, "beta-0.0003", "rlpto-0")
    for panel, combination in zip(panels, COMBINATIONS, strict=True):
        for number, name in enumerate(shown):
            for row in document["source"]["mixes"]:
                if (row["combination"], row["queue"], row["method"]) == (combination, "one", name):
                    panel.plot([t / 1_000 for t in TIMES_S], row["points"], label=name,
                               color=_COLOURS[number], linewidth=1.1)  # fmt: skip
        panel.set_title(f"mix {combination}", fontsize=8)
        panel.set_xlabel("1,000 s")
    panels[0].set_ylabel("points")
    panels[0].legend(fontsize=5.5)


def _gains(whole: Any, document: Mapping[str, Any]) -> None:
    """Gain over the tuned beta rule, with intervals: methods, and numbers of workers."""
    found = document["measured"]
    left, right = whole.subplots(1, 2)
    best = found["best"]
    shown = {"oracle": found["oracle"], **found["rule_gains"],
             "rlpto": found["gains"][best["beta"]]}  # fmt: skip
    for place, value in enumerate(shown.values()):
        _bar(left, place, value, _COLOURS[4])
    left.set_xticks(range(len(shown)), list(shown), rotation=20, fontsize=7)
    left.set_ylabel(f"sooner than {best['beta']}, %")
    for place, held in enumerate(found["nodes"].values()):
        own = [(name, value) for name, value in held.items() if " over " not in name]
        for number, (name, value) in enumerate(own):
            label = name if place == 0 else None
            _bar(right, place + 0.2 * number, value, _COLOURS[3 + number], label)
    right.set_xticks(range(len(found["nodes"])), list(found["nodes"]))
    right.set_xlabel("workers of the cluster")
    right.legend(fontsize=6.5)
    for panel in (left, right):
        panel.axhline(0.0, color="black", linewidth=0.8)


def _bar(
    panel: Any, x: float, found: Mapping[str, float], colour: str, label: str | None = None
) -> None:
    mean, low, high = (100.0 * found[key] for key in ("mean", "low", "high"))
    panel.errorbar([x], [mean], yerr=[[mean - low], [high - mean]], color=colour, marker="o",
                   markersize=4, capsize=2, linestyle="none", label=label)  # fmt: skip
