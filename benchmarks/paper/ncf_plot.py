"""Plots of ``benchmarks.paper.ncf``: errors, ranks of interference, and co-run scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

__all__ = ["draw"]

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hrm",
}
_COLOUR, _OURS = "#2471a3", "#c0392b"


def draw(path: Path, document: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """One row of panels per table; the neural filter and the learned score are highlighted."""
    tables = document["tables"]
    with mpl.rc_context(_STYLE):
        whole, rows = plt.subplots(len(tables), 3, figsize=(9.0, 2.4 * len(tables)), squeeze=False)
        for panels, table in zip(rows, tables, strict=True):
            found = table["metrics"]
            _bars(panels[0], found["errors"], names, "mean absolute error")
            panels[0].set_title(table["source"].partition(" (")[0], fontsize=9, loc="left")
            if not found["spearman"]:
                panels[1].set_axis_off()
                panels[2].set_axis_off()
                continue
            _bars(panels[1], found["spearman"], names, "rank of told interference")
            scores = {
                name: {
                    "mean": one["spearman"],
                    "low": one["spearman_95"][0],
                    "high": one["spearman_95"][1],
                }
                for name, one in table["scores"].items()
                if isinstance(one, dict) and "spearman" in one
            }
            _bars(panels[2], scores, {}, "rank of the score")
        whole.tight_layout()
        whole.savefig(path, metadata={"Date": None})
        plt.close(whole)


def _bars(panel: Any, found: Mapping[str, Any], names: Mapping[str, str], title: str) -> None:
    labels = [names.get(name, name) for name in found]
    means = [one["mean"] for one in found.values()]
    lows = [
        one["mean"] - one.get("low", one["mean"] - one.get("half", 0)) for one in found.values()
    ]
    highs = [
        one.get("high", one["mean"] + one.get("half", 0)) - one["mean"] for one in found.values()
    ]
    colours = [_OURS if name in ("ncf", "learned") else _COLOUR for name in found]
    places = list(range(len(labels)))
    panel.barh(places, means, xerr=[lows, highs], color=colours, height=0.65, capsize=2)
    panel.set_yticks(places, labels)
    panel.invert_yaxis()
    panel.set_xlabel(title)
    panel.grid(axis="y", visible=False)
