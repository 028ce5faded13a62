"""``hrm forecast``: how much work there has been, how much comes, and how many nodes that needs.

A client of the master like others: it reads the journal, adds it to the history that it keeps below
``$HRM_HOME/forecast``, and computes on this machine. The master does none of it.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm import errors
from hrm.cli import client, console
from hrm.cli.console import Output
from hrm.cli.queries import MasterOption, OutputOption, TimeoutOption

if TYPE_CHECKING:
    from hrm.autoscale.files import ForecastFiles, KeptHistory
    from hrm.forecast.report import ForecastReport, PoolReport
    from hrm.forecast.steps import ForecastStep

__all__ = ["app", "document"]

READ_TIMEOUT_S = 60.0
LIMIT_S = 120.0

app = typer.Typer()


class HorizonChoice(StrEnum):
    """The length of the intervals that are forecast."""

    FIVE_MINUTES = "5min"
    HOUR = "hour"
    DAY = "day"


PictureOption = Path | None


@app.command("forecast")
def forecast(
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="Of this queue and those below it alone.")
    ] = "",
    horizon: Annotated[
        HorizonChoice, typer.Option("--horizon", help="Forecast the next intervals of this length.")
    ] = HorizonChoice.DAY,
    png: Annotated[
        PictureOption, typer.Option("--png", metavar="FILE", help="Draw it into this file, too.")
    ] = None,
    svg: Annotated[
        PictureOption, typer.Option("--svg", metavar="FILE", help="Draw it into this file, too.")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", metavar="SECONDS", min=1, max=3600,
            help="After so long it goes with the best models so far.",
        ),
    ] = LIMIT_S,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = READ_TIMEOUT_S,
) -> None:  # fmt: skip
    """Show the volume of tasks so far, forecast the next ones, and the nodes that they need."""
    from hrm.forecast.steps import STEPS

    _check_libraries(pictures=bool(png or svg))
    kept, state = _history(master, timeout)
    name = _queue_name(queue, kept)
    report, pool = _computed(kept, STEPS[horizon], name, limit)
    if output is Output.JSON:
        console.print_json(document(report, pool, name, state))
    else:
        from hrm.cli import forecast_views

        console.view(forecast_views.chart(report))
        console.view(forecast_views.forecasts_table(report, pool))
        console.view(forecast_views.errors_table(report))
        for remark in report.remarks:
            console.note(remark)
        for remark in _notes(report, pool, kept, state):
            console.note(remark)
    if png or svg:
        from hrm.cli import forecast_pictures

        for path in filter(None, (png, svg)):
            kind = "png" if path == png else "svg"
            forecast_pictures.draw(path, report, pool, name, kind)
            console.note(f"wrote {path}")


def _check_libraries(*, pictures: bool) -> None:
    """Raises Unavailable if something is not installed without which there is no forecast."""
    import importlib.util

    needed = ["statsmodels", *(["matplotlib"] if pictures else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.Unavailable(
            f"{' and '.join(missing)} is not installed, which forecasts need; type: "
            "pip install 'hrm-spark[forecast]'"
        )


def _history(master: str | None, timeout_s: float) -> tuple[KeptHistory, dict[str, Any]]:
    """The history up to now, kept for next time; and what ``hrm autoscale`` has written."""
    from hrm.address import default_master
    from hrm.autoscale.feed import MasterFeed
    from hrm.autoscale.files import ForecastFiles

    files = ForecastFiles(default_master(master))
    kept, damage = files.read_history()
    with client.connect(master) as connection:
        feed = MasterFeed(connection.admin, connection.events, connection.queues, timeout_s)
        remarks = [damage]
        try:
            remarks.append(feed.update(kept, time.time()))
        finally:  # the next time goes on from what has been read before a call failed
            remarks.append(_kept(files, kept))
            for each in filter(None, remarks):
                console.note(each)
    return kept, files.read_scaler()


def _kept(files: ForecastFiles, kept: KeptHistory) -> str:
    """Why the history could not be written; empty: it was."""
    try:
        files.write_history(kept)
    except errors.Unavailable as error:
        return error.message
    return ""


def _queue_name(queue: str, kept: KeptHistory) -> str:
    """The whole name of a queue that has had tasks, or of one above it, by its end.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several.
    """
    if not queue:
        return ""
    known = kept.history.queues
    parts = [each.split(".") for each in known]
    names = sorted({".".join(each[:n]) for each in parts for n in range(1, len(each) + 1)})
    for name in (queue, f"root.{queue}"):
        if name in names:
            return name
    found = [each for each in names if each.endswith(f".{queue}")]
    if len(found) > 1:
        raise errors.InvalidRequest(
            f"--queue {queue!r} may be any of {', '.join(found)}; write the whole name"
        )
    if found:
        return found[0]
    have = f"those that have: {', '.join(known)}" if known else "none has had any"
    raise errors.NotFound(
        f"no task of a queue {queue!r} is in the history; {have}; all queues: hrm queues"
    )


def _other_horizon(kept: KeptHistory, step: ForecastStep) -> str:
    """What to type where there is too little history for this one."""
    from hrm.forecast.steps import STEPS

    begun_s = kept.history.begun_s
    if begun_s is None:
        return "no container has started in it yet: run an application first"
    others = [each for each in reversed(STEPS.values()) if each is not step]
    for other in others:
        if len(kept.history.volumes(other)) >= other.needed:
            return f"now: hrm forecast --horizon {other.name}"
    ready = {
        (math.ceil(begun_s / each.seconds) + each.needed) * each.seconds: each
        for each in (step, *others)
    }
    first_s = min(ready)
    at = datetime.fromtimestamp(first_s, UTC)
    return (
        f"no horizon has enough yet; from {at:%Y-%m-%d %H:%M} UTC on: hrm forecast --horizon "
        f"{ready[first_s].name}"
    )


def _computed(
    kept: KeptHistory, step: ForecastStep, queue: str, limit_s: float
) -> tuple[ForecastReport, PoolReport | None]:
    from hrm.forecast.report import forecast as make
    from hrm.forecast.report import pool_report

    until_s = time.monotonic() + limit_s
    series = kept.history.volumes(step, queue)
    try:
        with _working():
            report = make(series, step.leads, out_of_time=lambda: time.monotonic() > until_s)
    except errors.InvalidRequest as error:
        if len(series) >= step.needed:
            raise
        raise errors.InvalidRequest(f"{error.message}; {_other_horizon(kept, step)}") from error
    # Nodes are busy with the tasks of all queues: how many a node serves is known of all together.
    everything = report
    if queue:
        from dataclasses import replace

        whole = kept.history.volumes(step).tail(len(report.series))
        everything = replace(report, series=whole)
    return report, pool_report(everything, kept.history.busy_nodes(step))


def _working() -> Any:
    return console.stderr().status("fitting models to the history")


def document(
    report: ForecastReport, pool: PoolReport | None, queue: str, state: dict[str, Any]
) -> dict[str, Any]:
    """The forecast as JSON; unknown volumes and figures are null."""
    step = report.series.step
    ends = [report.series.end_s + lead * step.seconds for lead in range(len(report.expected))]
    return {
        "queue": queue,
        "step_s": step.seconds,
        "history": {
            "begin_s": report.series.start_s,
            "tasks": [_number(each) for each in report.series.values],
        },
        "forecast": [
            {
                "begin_s": begin_s,
                "expected": _number(report.expected[lead]),
                **{f"p{round(100 * q)}": _number(v[lead]) for q, v in report.quantiles.items()},
                "nodes": pool.nodes[lead] if pool else None,
            }
            for lead, begin_s in enumerate(ends)
        ],
        "tasks_per_busy_node": _number(pool.tasks_per_node) if pool else None,
        "p90_covers": _number(report.covers),
        "errors": {
            name: {
                "one_minus_mape": _number(each.one_minus_mape),
                "one_minus_wape": _number(each.one_minus_wape),
                "mase": _number(each.mase),
            }
            for name, each in report.figures.items()
        },
        "errors_of": report.origins,
        "remarks": list(report.remarks),
        "autoscale": state or None,
    }


def _number(value: float) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None


def _notes(
    report: ForecastReport, pool: PoolReport | None, kept: KeptHistory, state: dict[str, Any]
) -> list[str]:
    history = kept.history
    notes = []
    if report.covers < 0.9:
        notes.append(
            f"P90 is the largest error of {report.origins} forecasts: it covers "
            f"{100 * report.covers:.0f} % at most, until there is more history"
        )
    if pool is None:
        notes.append("no node has been busy in the history, so nodes cannot be counted")
    if history.gaps:
        lost_s = sum(to_s - from_s for from_s, to_s in history.gaps)
        notes.append(f"the journal lacks {len(history.gaps)} times, {lost_s / 3600:.1f} h together")
    if history.wrong_times:
        notes.append(f"{history.wrong_times} events had times of a clock that had jumped: moved")
    call = state.get("last_call") or {}
    if call and not call.get("ok", True):
        at = datetime.fromtimestamp(float(call.get("at_s", 0)), UTC)
        notes.append(
            f"hrm autoscale: its hook failed at {at:%Y-%m-%d %H:%M} UTC: {call.get('reason', '')}"
        )
    return notes
