"""Executors of each application over time, an arm a panel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.paper.plots import HEIGHT_IN, STYLE, WIDTH_IN

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

__all__ = ["draw"]

_COLOURS = ("#b7950b", "#2471a3", "#c0392b")


def draw(path: Path, found: dict[str, Any]) -> Path:
    """The first run of each arm of ``benchmarks.elastic.report.document``; where it was written."""
    arms = {arm: runs[0] for arm, runs in found["runs"].items()}
    end_s = max(each["ended_s"] for run in arms.values() for each in run["trained"])
    with mpl.rc_context(STYLE):
        size = (WIDTH_IN, 0.6 * HEIGHT_IN * len(arms))
        whole, panels = plt.subplots(len(arms), 1, figsize=size, sharex=True, squeeze=False)
        for (arm, run), panel in zip(arms.items(), panels[:, 0], strict=True):
            _panel(panel, run)
            panel.set_title(found["about"][arm], fontsize=9)
            panel.set_xlim(0, end_s)
            panel.set_ylim(0, found["plan"]["nodes"] * found["plan"]["slots_per_node"] + 0.5)
        panels[0, 0].legend(fontsize=7)
        panels[len(arms) // 2, 0].set_ylabel("executors")
        panels[-1, 0].set_xlabel("seconds")
        whole.tight_layout()
        whole.savefig(path, metadata={"Date": None})
        plt.close(whole)
    return path


def _panel(panel: Axes, run: dict[str, Any]) -> None:
    for colour, each in zip(_COLOURS, run["trained"], strict=True):
        steps = [step for step in each["executors"] if step[0] < each["ended_s"]]
        times = [at_s for at_s, _ in steps] + [each["ended_s"]]
        counts = [count for _, count in steps] + [0]
        panel.step(times, counts, where="post", color=colour, label=each["name"])
        panel.axvline(each["delivered_s"], color=colour, linestyle=":", linewidth=1)
