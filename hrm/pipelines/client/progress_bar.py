"""How far a map is, on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    name: str, total: int | None, shown: bool | None = None
) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, and the function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not (console.is_terminal if shown is None else shown):
        yield lambda: None
        return
    with Progress(console=console) as progress:
        bar = progress.add_task(name, total=total)
        yield lambda: progress.advance(bar)
