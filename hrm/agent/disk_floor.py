"""What must stay free on the disks of containers, and which container ends where it does not.

A floor belongs to one directory, or to several on different disks that stand for each other: what
is missing on one of those is no harm while another has it, so a floor counts where most is free.
Below it no container starts, and the one that uses most is ended; the next only if a measurement
after that one's files are removed still finds too little, and none if all of them together use less
than what is lacking, or if what is being removed of ended ones is as much as that. A quarter more
than the floor has to be free before containers start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["ADVICE", "DiskFloor", "Measured", "free_and_floor_mib"]

Usage = Callable[[Path], tuple[int, int, int]]
"""Bytes of a path's file system: all, used, free."""
ADVICE = (
    "spill less (more memory for each task, or more partitions), remove what you cached on disk, "
    "or raise the limit, or give the node more disk"
)
_MIB = 1024 * 1024
_PATIENCE_S = 60.0
"""How long a container may take to end for the floor, before the next is ended; and how long the
removal of others' files is waited for."""
_REMOVAL_PATIENCE_S = 600.0
"""How long the removal of what one ended for the floor has written is waited for."""
_MARGIN_PARTS = 4
"""This part of the floor makes a difference: to start containers again, and to wait no longer."""
_FLOOR_PARTS = 4
"""The floor is at most this part of the file system, so that a small one can be used at all."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``whole``: all was counted."""

    mib: int
    whole: bool = True


def free_and_floor_mib(directory: Path, free_min_mib: int, usage: Usage) -> tuple[int, int]:
    """What is free on the file system of ``directory``, and what must stay so.

    Raises:
        OSError: it cannot be asked.
    """
    total, _, free = usage(directory if directory.is_dir() else directory.parent)
    return free // _MIB, min(free_min_mib, total // _FLOOR_PARTS // _MIB)


class DiskFloor:
    """``low``: why no container may start; empty: they may."""

    def __init__(
        self, directories: Sequence[Path], free_min_mib: int, usage: Usage, place: str
    ) -> None:
        """``place``: what the directories are, for messages."""
        self._directories = directories
        self._free_min_mib = free_min_mib
        self._usage = usage
        self._place = place
        self._swept_free_mib = 0
        self._last_measured: Mapping[str, Measured] | None = None
        self._victim = ""
        """The last container ended for the floor, until its files are removed; ``_last_measured``:
        what was measured before."""
        self._patient_until_s = 0.0
        self._lacking_max_mib = 0
        """Until how many MiB lack the removal of the victim's files is waited for."""
        self._removing: tuple[float, int] | None = None
        """Until when, and until how many MiB lack, what is being removed is waited for; None: it is
        less than what is lacking."""
        self.free_mib = self.floor_mib = 0
        self.low = ""

    def sample(self) -> int:
        """Take a sample of the free space where there is most of it; returns it in MiB.

        Raises:
            OSError: none of the directories can be asked.
        """
        self.free_mib, self.floor_mib = free_mib, floor = self._measure()
        if free_mib < floor:
            self.low = (
                f"less than {floor} MiB are free on the file system of {self._place} "
                f"(disk_free_min_mib of the agent)"
            )
        elif free_mib >= floor + floor // _MARGIN_PARTS:
            self.low = ""
        return free_mib

    def _measure(self) -> tuple[int, int]:
        samples, problem = [], OSError(f"there is no {self._place}")
        for directory in self._directories:
            try:
                samples.append(free_and_floor_mib(directory, self._free_min_mib, self._usage))
            except OSError as error:
                problem = error
        if not samples:
            raise problem
        return max(samples, key=lambda sample: sample[0] - sample[1])

    def swept(self) -> None:
        """All use has been measured, just now."""
        self._swept_free_mib = self.free_mib

    def to_end(
        self,
        use: Mapping[str, Measured],
        measured: Mapping[str, Measured],
        leaving: Mapping[str, Measured] = MappingProxyType({}),
    ) -> dict[str, str]:
        """The container to end, with a line for its user; at most one. ``use``: of live ones, as
        ``measured`` by the latest sweep, which is the same object until the next. ``leaving``: of
        ended ones whose files are being removed."""
        now = time.monotonic()
        lacking_mib = self.floor_mib - max(self.free_mib, self._swept_free_mib) if self.low else 0
        if not 0 < lacking_mib <= sum(each.mib for each in leaving.values()):
            self._removing = None
        elif self._removing is None:
            # As long as others do not fill what is left.
            self._removing = (now + _PATIENCE_S, self._lacking_max(lacking_mib))
        if self._victim in use or self._victim in leaving:
            until_s = self._patient_until_s
            if self._victim in leaving and lacking_mib <= self._lacking_max_mib:
                until_s += _REMOVAL_PATIENCE_S
            if now < until_s:
                return {}
        if self._victim:
            # What it held is free by now; earlier sweeps no longer count.
            self._victim, self._last_measured = "", measured
        if lacking_mib <= 0 or measured is self._last_measured or not use:
            return {}
        if self._removing is not None:
            until_s, lacking_max_mib = self._removing
            if now < until_s and lacking_mib <= lacking_max_mib:
                return {}
        if not self._still_lacks():
            return {}
        total_mib = sum(each.mib for each in use.values())
        most = max(use, key=lambda name: (not use[name].whole, use[name].mib, name))
        if total_mib < lacking_mib and use[most].whole:
            return {}  # others have filled the disk
        self._victim, self._last_measured = most, measured
        self._patient_until_s = now + _PATIENCE_S
        self._lacking_max_mib = self._lacking_max(lacking_mib)
        share_mib = max(0, total_mib - lacking_mib) // len(use)
        among = f"the most of {len(use)} containers, " if len(use) > 1 else ""
        return {
            most: (
                f"used {use[most].mib} MiB of disk, {among}and its fair share was {share_mib} MiB, "
                f"on a node with {self._swept_free_mib} MiB free where {self.floor_mib} must stay "
                f"(disk_free_min_mib of the agent); {ADVICE}"
            )
        }

    def _lacking_max(self, lacking_mib: int) -> int:
        """Until how many MiB lack others may go on filling the disk; less than all of the floor."""
        left_mib = self.floor_mib - lacking_mib
        return lacking_mib + min(self.floor_mib // _MARGIN_PARTS, left_mib // 2)

    def _still_lacks(self) -> bool:
        """Now: what was removed since the latest sample is no fault of those that run."""
        try:
            free_mib, floor_mib = self._measure()
        except OSError:
            return True
        return free_mib < floor_mib
