"""The columns of the table of resource units, by name: of the state and of each view of it."""

from __future__ import annotations

import abc
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "CELLS",
    "FREE",
    "STREAM_HEADROOM",
    "VERSION",
    "WAITERS_MAX",
    "WAITING_BATCH",
    "WAITING_STREAM",
    "Bools",
    "Floats",
    "Ints",
    "TableColumns",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

FREE = slice(0, 4)
STREAM_HEADROOM = slice(4, 8)
WAITING_STREAM = 8
WAITING_BATCH = 9
VERSION = 10
WAITERS_MAX = 11
CELLS = 12


class TableColumns(abc.ABC):
    """Names for the parts of a table, shape (rows, ``CELLS``)."""

    @property
    @abc.abstractmethod
    def table(self) -> Ints:
        """The whole of it, up to date."""

    @property
    def free(self) -> Ints:
        return self.table[:, FREE]

    @property
    def stream_headroom(self) -> Ints:
        return self.table[:, STREAM_HEADROOM]

    @property
    def waiting_stream(self) -> Ints:
        return self.table[:, WAITING_STREAM]

    @property
    def waiting_batch(self) -> Ints:
        return self.table[:, WAITING_BATCH]

    @property
    def version(self) -> Ints:
        return self.table[:, VERSION]

    @property
    def waiting_limit(self) -> Ints:
        return self.table[:, WAITERS_MAX]
