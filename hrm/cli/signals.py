"""Signal handling that commands share."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["sigterm_as_interrupt"]


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does: cleanup runs on the way out.

    Raises:
        KeyboardInterrupt: in the main thread, when SIGTERM arrives inside the block.
    """

    def interrupted(number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    previous = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
