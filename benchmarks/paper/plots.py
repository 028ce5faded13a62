"""Plots of the experiments: one column wide, legible in print, SVG without embedded fonts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

__all__ = ["HEIGHT_IN", "STYLE", "WIDTH_IN", "draw"]

WIDTH_IN, HEIGHT_IN = 7.0, 2.9
_COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b7950b", "#6c3483")
_MARKERS = ("s", "o", "^", "D", "v")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hrm",
    "legend.frameon": False,
}


def draw(
    path: Path,
    rows: Sequence[dict[str, Any]],
    *,
    figure: str,
    x_name: str,
    y_name: str,
    logarithmic: bool = False,
) -> None:
    """One panel per way of charging, one line per system, bars for the 95 % intervals.

    ``logarithmic``: the x axis doubles instead of adding.
    """
    chargings = list(dict.fromkeys(row["charging"] for row in rows))
    with mpl.rc_context(STYLE):
        size = (WIDTH_IN, HEIGHT_IN)
        whole, panels = plt.subplots(1, len(chargings), figsize=size, squeeze=False)
        for panel, charging in zip(panels[0], chargings, strict=True):
            _panel(panel, [row for row in rows if row["charging"] == charging], figure)
            panel.set_title(charging, fontsize=9)
            panel.set_xlabel(x_name)
            panel.set_ylim(bottom=0)
            if logarithmic:
                panel.set_xscale("log", base=2)
                panel.xaxis.set_major_formatter("{x:.0f}")
        panels[0][0].set_ylabel(y_name)
        panels[0][0].legend(fontsize=8)
        whole.tight_layout()
        whole.savefig(path, metadata={"Date": None})
        plt.close(whole)


def _panel(panel: Any, rows: Sequence[dict[str, Any]], figure: str) -> None:
    systems = list(dict.fromkeys(row["system"] for row in rows))
    for index, system in enumerate(systems):
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        own = [row for row in rows if row["system"] == system and figure in row["figures"]]
        if not own:
            continue
        xs = [row["x"] for row in own]
        means = [row["figures"][figure]["mean"] for row in own]
        halves = [row["figures"][figure]["high"] - row["figures"][figure]["mean"] for row in own]
        if xs == [0]:
            panel.axhline(means[0], color=colour, linestyle="--", label=system)
            continue
        panel.errorbar(
            xs, means, yerr=halves, color=colour, marker=marker, markersize=4, capsize=2,
            label=system,
        )  # fmt: skip
