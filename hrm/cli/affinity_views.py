"""Views of what has been learned of run times, built from the messages of QueueService."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import RenderableType

from hrm.cli import console
from hrm.cli.console import plain
from hrm.cli.render import NAME_SHOWN

if TYPE_CHECKING:
    from hrm.v1 import queues_pb2 as pb

__all__ = ["company_table", "platforms_table"]


def platforms_table(kinds: Iterable[pb.LearnedKind]) -> RenderableType:
    """A line for each kind of application and platform; times are relative to the fastest, and
    seconds are shown to who may see them."""
    table = console.table(
        "APPLICATION", "QUEUE", "PLATFORM", ">TASK ALONE", ">RELATIVE", ">INTERVAL",
        ">OBSERVATIONS", ">TASKS/H", ">EGOCENTRIC", ">RECIPROCAL",
    )  # fmt: skip
    for kind in kinds:
        for row in kind.platforms:
            interval = "unknown"
            if row.factor:
                low, high = row.relative / row.factor, row.relative * row.factor
                interval = f"{_times(low)} to {_times(high)}"
            table.add_row(
                plain(kind.name, NAME_SHOWN),
                plain(kind.queue),
                plain(row.platform, NAME_SHOWN) or "-",
                "-" if kind.hidden else f"{row.run_s:.3g}s",
                _times(row.relative),
                interval,
                f"{row.observations:.0f}",
                "-" if kind.hidden else f"{row.tasks_per_hour:.4g}",
                f"{row.egocentric:.2f}",
                f"{row.reciprocal:.2f}",
            )
    return table


def company_table(kinds: Iterable[pb.LearnedKind]) -> RenderableType:
    """How much longer tasks take on a full node: whatever is there, and by what is there."""
    table = console.table(
        "APPLICATION", "QUEUE", "IN COMPANY OF", "OF QUEUE", ">SLOWDOWN", ">INTERVAL",
        ">OBSERVATIONS",
    )  # fmt: skip
    for kind in kinds:
        for row in (kind.company, *kind.co_runners):
            table.add_row(
                plain(kind.name, NAME_SHOWN),
                plain(kind.queue),
                plain(row.name, NAME_SHOWN) or "any",
                plain(row.queue),
                _times(row.factor),
                f"{_times(row.least)} to {_times(row.most)}",
                f"{row.observations:.0f}",
            )
    return table


def _times(factor: float) -> str:
    return f"{factor:.2f}x" if factor < 100 else f"{factor:.3g}x"
