"""A pipeline of two steps: how many words a block of a text has, and which are the commonest.

Its module imports nothing of the benchmarks: this one file is what is sent to the nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from hrm.pipelines import Pipeline

__all__ = ["WORDS", "blocks_of"]

_WORD = re.compile(rb"[A-Za-z]+")
_COMMONEST = 5

WORDS = Pipeline("word-blocks")


def blocks_of(path: Path, many: int) -> list[dict[str, Any]]:
    """So many blocks that are the whole file, each of whole lines: inputs of the pipeline."""
    size, begin, found = path.stat().st_size, 0, list[dict[str, Any]]()
    with path.open("rb") as file:
        for number in range(1, many + 1):
            file.seek(size * number // many)
            file.readline()
            end = min(file.tell(), size)
            found.append({"path": str(path), "begin": begin, "bytes": end - begin})
            begin = end
    return found


@WORDS.subtask()
def read(block: dict[str, Any]) -> bytes:
    """The block itself."""
    with Path(block["path"]).open("rb") as file:
        file.seek(block["begin"])
        return file.read(block["bytes"])


@WORDS.subtask(after=read)
def count(text: bytes) -> dict[str, Any]:
    """Its number of words, and the commonest."""
    counts = Counter(word.decode().lower() for word in _WORD.findall(text))
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {"words": counts.total(), "commonest": [list(x) for x in ranked[:_COMMONEST]]}
