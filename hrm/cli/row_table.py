"""A table of rows for terminals that stays fast however long it is.

rich lays out each cell by itself, which takes more than half a millisecond a row: seconds for the
nodes of a large cluster. A long table is for grep and for programs that look at columns, so beyond
``LAID_OUT_MAX`` rows the same columns are written as plain lines: no colour, and nothing folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.markup import render
from rich.segment import Segment
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["LAID_OUT_MAX", "RowTable"]

LAID_OUT_MAX = 200
"""Rows that rich lays out, in some 0.15 s."""
_GAP = "  "


class RowTable(Table):
    """An unframed table of texts in rich's markup."""

    def __init__(self) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.row_count <= LAID_OUT_MAX:
            yield from super().__rich_console__(console, options)
            return
        yield Segment("".join(f"{line.rstrip(' ')}\n" for line in self._lines()))

    def _lines(self) -> Iterator[str]:
        columns = []
        for column in self.columns:
            cells = [_unmarked(str(cell)) for cell in (column.header, *column.cells)]
            widths = [len(cell) if cell.isascii() else cell_len(cell) for cell in cells]
            width = max(widths)
            blanks = [" " * (width - each) for each in widths]
            parts = (blanks, cells) if column.justify == "right" else (cells, blanks)
            columns.append([first + second for first, second in zip(*parts, strict=True)])
        yield from map(_GAP.join, zip(*columns, strict=True))
        if self.caption:
            yield _unmarked(str(self.caption))


def _unmarked(cell: str) -> str:
    """A cell's text without its markup; most have none."""
    return render(cell).plain if "[" in cell or "\\" in cell else cell
