"""Figures 5 and 6: fairness and makespan of either level's policies, by kind of scenario."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

from benchmarks.fairness.systems import FIRST_LEVEL, SECOND_LEVEL, Table
from benchmarks.paper.plots import HEIGHT_IN, STYLE, WIDTH_IN

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

__all__ = ["draw_levels"]

_COLOURS = ("#7f8c8d", "#b7950b", "#2471a3", "#c0392b")


def draw_levels(directory: Path, table: Table) -> list[Path]:
    """One file a level; bars from the least to the greatest of a kind's scenarios."""
    written = []
    for level, names in (("first", FIRST_LEVEL), ("second", SECOND_LEVEL)):
        path = directory / f"paper-fairness-{level}.svg"
        with mpl.rc_context(STYLE):
            whole, panels = plt.subplots(1, 2, figsize=(WIDTH_IN, HEIGHT_IN))
            for panel, figure, title in zip(
                panels, ("fairness", "ratio"), ("fairness", "makespan, of simple's"), strict=True
            ):
                _panel(panel, table, figure, level, names)
                panel.set_title(title, fontsize=9)
            panels[0].legend(fontsize=7)
            whole.tight_layout()
            whole.savefig(path, metadata={"Date": None})
            plt.close(whole)
        written.append(path)
    return written


def _panel(panel: Axes, table: Table, figure: str, level: str, names: tuple[str, ...]) -> None:
    values = getattr(table, figure).mean(axis=0)
    kinds = table.kinds
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        which = table.first_level(name) if level == "first" else table.second_level(name)
        for at, kind in enumerate(kinds):
            rows = [row for row, (each, _) in enumerate(table.scenarios) if each == kind]
            cells = values[rows][:, which].mean(axis=1)
            x = at + width * (index - (len(names) - 1) / 2)
            panel.plot(
                [x, x], [cells.min(), cells.max()], color=_COLOURS[index], linewidth=2,
            )  # fmt: skip
            panel.plot(
                [x], [cells.mean()], marker="o", markersize=4, color=_COLOURS[index],
                label=name if at == 0 else None,
            )  # fmt: skip
    panel.set_xticks(range(len(kinds)), [kind.replace(" ", "\n", 1) for kind in kinds], fontsize=6)
