"""What ``hrm policy score`` shows: a row for each co-run score, in each way of sharing a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hrm.cli import console
from hrm.cli.console import plain
from hrm.pipelines.policies.corun import DEFAULT_SCORE

if TYPE_CHECKING:
    from rich.table import Table

    from hrm.pipelines.policies.corun.corun_table import CoRunTable
    from hrm.pipelines.policies.corun.score_quality import Figure, ScoreQuality

__all__ = ["document", "view"]

_HEADERS = ("SHARING", "SCORE", "CO-RUNS SEEN", "RANK OF EACH", "RANK OF SETS", "REGRET")


def document(table: CoRunTable, found: Sequence[ScoreQuality]) -> dict[str, Any]:
    """For programs: a figure is its value and the bounds of its interval; null: it ranks none, or
    its resamples do not."""
    return {
        "data": table.source,
        "features": list(table.features),
        "jobs": len(table.loads),
        "runs": len(table.runs),
        "default_score": DEFAULT_SCORE,
        "scores": [
            {
                "score": one.score,
                "sharing": one.sharing.value,
                "co_runs_seen": one.seen,
                "runs": one.runs,
                "choices": one.choices,
                "rank_each": _numbers(one.each),
                "rank_set": _numbers(one.joint),
                "regret": _numbers(one.regret),
            }
            for one in found
        ],
    }


def _numbers(figure: Figure | None) -> dict[str, float | None] | None:
    if figure is None:
        return None
    low, high = (x if math.isfinite(x) else None for x in (figure.low, figure.high))
    return {"value": figure.value, "low": low, "high": high}


def view(found: Sequence[ScoreQuality]) -> Table:
    """For people. Rank: 1 is best; regret: 0 is best, 1 as good as a random choice."""
    shown = console.table(*_HEADERS)
    for one in found:
        seen = "half" if one.seen else "none"
        name = f"{one.score} (default)" if one.score == DEFAULT_SCORE else one.score
        figures = [_words(figure) for figure in (one.each, one.joint, one.regret)]
        shown.add_row(one.sharing.value, plain(name), seen, *figures)
    return shown


def _words(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return plain(f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]")
