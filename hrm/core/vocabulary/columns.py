"""The columns of the table of resource units, by name: of the state and of each view of it."""

from __future__ import annotations

import abc
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["CELLS", "Bools", "Columns", "Floats", "Ints"]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

CELLS = 12


class Columns(abc.ABC):
    """Names for the parts of a table, shape (rows, ``CELLS``)."""

    @property
    @abc.abstractmethod
    def table(self) -> Ints:
        """The whole of it, up to date."""

    @property
    def free(self) -> Ints:
        return self.table[:, 0:4]

    @property
    def stream_headroom(self) -> Ints:
        return self.table[:, 4:8]

    @property
    def waiting_stream(self) -> Ints:
        return self.table[:, 8]

    @property
    def waiting_batch(self) -> Ints:
        return self.table[:, 9]

    @property
    def version(self) -> Ints:
        return self.table[:, 10]

    @property
    def waiting_limit(self) -> Ints:
        return self.table[:, 11]
