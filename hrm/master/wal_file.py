"""Is a store's write-ahead log (``-wal``) damaged, or only truncated?

SQLite reads such a log up to the first frame whose checksum is wrong, and assumes that a crash
truncated it there. But a frame that was damaged later hides all following ones, whose transactions
had been acknowledged. Each commit waits for the disk, so if a commit and then another frame of the
same log stand behind the bad frame, that frame had been whole. For the last transaction this cannot
be decided.

Source: SQLite's "WAL-mode File Format", sections 4.1 to 4.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["wal_damage"]

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
"""Its lowest bit gives the byte order in which the checksums read words."""
_READ_BYTES_MAX = 64 * 1024 * 1024
"""The checksum is computed word by word: some three seconds for this much. The rest is trusted."""
_PAGE_BYTES_MAX = 65_536
_MASK = 0xFFFFFFFF


@dataclass(slots=True)
class _Sum:
    """The running checksum of a log; ``order``: the byte order, as in ``struct``."""

    order: str
    first: int = 0
    second: int = 0

    def add(self, data: bytes) -> None:
        first, second = self.first, self.second
        words = struct.unpack(f"{self.order}{len(data) // 4}I", data)
        for even, odd in zip(words[::2], words[1::2], strict=True):
            first = (first + even + second) & _MASK
            second = (second + odd + first) & _MASK
        self.first, self.second = first, second

    def is_(self, first: int, second: int) -> bool:
        return (self.first, self.second) == (first, second)


def wal_damage(store: Path) -> str:
    """The damage of the log next to ``store``; empty: none, or a crash truncated it.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with store.with_name(f"{store.name}-wal").open("rb") as log:
            return _damage(log)
    except FileNotFoundError:
        return ""


def _damage(log: BinaryIO) -> str:
    head = log.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return ""
    magic, _version, page_bytes, _checkpoints, *salts, first, second = _HEADER.unpack(head)
    checksum = _Sum(">" if magic & 1 else "<")
    checksum.add(head[:24])
    whole = magic & ~1 == _MAGIC and checksum.is_(first, second)
    if not whole or not 0 < page_bytes <= _PAGE_BYTES_MAX:
        return "the header of its log of changes (-wal) is damaged" if log.read(1) else ""
    bad = 0
    committed = False
    number = 0
    while len(frame := log.read(_FRAME.size)) == _FRAME.size:
        page = log.read(page_bytes)
        if len(page) < page_bytes:
            break
        number += 1
        _number, size_after_commit, *frame_salts, first, second = _FRAME.unpack(frame)
        ours = frame_salts == salts
        if bad:
            if ours and committed:
                return f"frame {bad} of its log of changes (-wal) is damaged, and others follow"
            committed = committed or (ours and size_after_commit > 0)
        elif number * page_bytes <= _READ_BYTES_MAX:
            checksum.add(frame[:8])
            checksum.add(page)
            if not ours or not checksum.is_(first, second):
                bad = number
                committed = ours and size_after_commit > 0
    return ""
