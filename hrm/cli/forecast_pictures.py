"""``hrm forecast --png`` and ``--svg``: the same as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hrm.errors import Unavailable

if TYPE_CHECKING:
    from hrm.forecast.report import ForecastReport, PoolReport

__all__ = ["draw"]

HISTORY_SHOWN = 240


def draw(
    path: Path, report: ForecastReport, pool: PoolReport | None, queue: str, kind: str
) -> None:
    """Write the picture; ``kind``: png or svg.

    Raises:
        Unavailable: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    step = report.series.step
    past = report.series.tail(HISTORY_SHOWN)
    before = np.array([_at(past.start_s + n * step.seconds) for n in range(len(past))])
    after = np.array([_at(past.end_s + n * step.seconds) for n in range(len(report.expected))])
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.add_subplot()
    panel.plot(before, past.values, color="#555555", linewidth=1, label="history")
    panel.plot(after, report.expected, color="#c0392b", marker=".", label="forecast")
    panel.fill_between(
        after, report.quantiles[0.1], report.quantiles[0.9], color="#c0392b", alpha=0.2,
        label="P10 to P90",
    )  # fmt: skip
    panel.set_ylabel(f"tasks by {step.name}")
    panel.set_title(queue or "all queues", loc="left")
    if pool is not None:
        panel.set_xlabel(f"nodes for P90 of the next: {pool.nodes[0]}")
    # Within the panel it would cover what is drawn there.
    panel.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False)
    figure.autofmt_xdate()
    try:
        figure.savefig(path, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else {})
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error}; name another file") from error


def _at(time_s: float) -> np.datetime64:
    return np.datetime64(round(time_s), "s")
