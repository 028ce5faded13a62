"""Views of a forecast: a chart of columns, the figures of each interval, and errors."""

from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from hrm.cli import console

if TYPE_CHECKING:
    from hrm.forecast.report import ForecastReport, PoolReport

__all__ = ["chart", "errors_table", "forecasts_table"]

HEIGHT = 10
WIDTH_MAX = 120
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LIKELY, _UP_TO_P90, _UNKNOWN = "bold cyan", "cyan", "dim"


def chart(report: ForecastReport) -> RenderableType:
    """Columns: what was, then what is expected, and above it, shaded, up to P90; ``?``: unknown."""
    most_columns = min(WIDTH_MAX, shutil.get_terminal_size().columns) - 12
    upper = report.quantiles[0.9]
    leads = len(report.expected)
    past = report.series.values[-max(1, most_columns - leads) :]
    finite = [float(each) for each in (*past, *upper) if math.isfinite(each)]
    top = max([*finite, 1.0])
    text = Text()
    for row in range(HEIGHT, 0, -1):
        label = f"{top * row / HEIGHT:>9.4g} " if row in (HEIGHT, HEIGHT // 2) else " " * 10
        text.append(label + "│")
        for value in past:
            if math.isfinite(value):
                text.append(_cell(float(value) / top, row))
            else:
                text.append("?" if row == 1 else " ", _UNKNOWN)
        text.append("│" if row % 2 else " ", _UNKNOWN)
        for expected, most in zip(report.expected, upper, strict=True):
            cell = _cell(float(expected) / top, row)
            if cell == " " and _cell(float(most) / top, row) != " ":
                text.append("░", _UP_TO_P90)
            else:
                text.append(cell, _LIKELY)
        text.append("\n")
    began = report.series.end_s - len(past) * report.series.step.seconds
    text.append(" " * 10 + "└" + "─" * (len(past) + 1 + leads) + "\n")
    text.append(f"{'':11}{_at(began, report)} UTC, by {report.series.step.name}; ")
    text.append("forecast", _LIKELY)
    text.append(", ")
    text.append("up to P90", _UP_TO_P90)
    text.append(f" from {_at(report.series.end_s, report)}")
    return text


def _cell(part: float, row: int) -> str:
    """What a column of so much of the height shows in a row, from 1 at the bottom."""
    filled = part * HEIGHT - (row - 1)
    return _EIGHTHS[max(0, min(8, round(filled * 8)))]


def forecasts_table(report: ForecastReport, pool: PoolReport | None) -> RenderableType:
    """A line for each interval that is forecast."""
    table = console.table("BEGINS (UTC)", ">EXPECTED", ">P10", ">P50", ">P90", ">NODES FOR P90")
    for lead, expected in enumerate(report.expected):
        begin_s = report.series.end_s + lead * report.series.step.seconds
        table.add_row(
            _at(begin_s, report),
            f"{expected:.1f}",
            *(f"{report.quantiles[each][lead]:.1f}" for each in (0.1, 0.5, 0.9)),
            str(pool.nodes[lead]) if pool else "-",
        )
    return table


def errors_table(report: ForecastReport) -> RenderableType:
    """How far off such forecasts of the next interval were."""
    table = console.table(f"ERRORS OF {report.origins}", ">1-MAPE", ">1-WAPE", ">MASE")
    for name, each in report.figures.items():
        table.add_row(
            name, _percent(each.one_minus_mape), _percent(each.one_minus_wape), _plain(each.mase)
        )
    return table


def _at(time_s: float, report: ForecastReport) -> str:
    at = datetime.fromtimestamp(time_s, UTC)
    return f"{at:%Y-%m-%d}" if report.series.step.name == "day" else f"{at:%Y-%m-%d %H:%M}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%" if math.isfinite(part) else "-"


def _plain(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"
