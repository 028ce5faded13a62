"""Pipelines of one, two and three steps: the commonest words of a block of a text.

A step mostly waits, as one that reads from a remote store does: it takes its ``seconds``, and
computes for some milliseconds of them. This one file is what is sent to the nodes, as a user's own
script would be, so it imports nothing of the benchmarks.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hrm.pipelines import Pipeline

__all__ = ["PIPELINES", "TOP"]

TOP = 5
_WORD = re.compile(rb"[A-Za-z]+")


def _text(task: dict[str, Any]) -> bytes:
    with Path(task["path"]).open("rb") as file:
        file.seek(task["offset"])
        return file.read(task["bytes"])


def _counts(text: bytes) -> dict[str, int]:
    return Counter(word.decode().lower() for word in _WORD.findall(text))


def _commonest(counts: dict[str, int]) -> list[list[Any]]:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [[word, count] for word, count in ranked[:TOP]]


def _held(task: dict[str, Any], begun_s: float) -> list[float]:
    """Wait until this step has taken its seconds; when it and those before it were over."""
    ended_s: list[float] = task.get("ended_s", [])
    time.sleep(max(0.0, begun_s + task["seconds"][len(ended_s)] - time.monotonic()))
    return [*ended_s, time.time()]


def _result(task: dict[str, Any], commonest: list[list[Any]], begun_s: float) -> dict[str, Any]:
    """Of a task. Each time its last step gets here there is a line more in its own file."""
    ended_s = _held(task, begun_s)
    with Path(task["mark"]).open("a") as file:
        file.write(f"{ended_s[-1]}\n")
    return {"commonest": commonest, "ended_s": ended_s}


def _whole(task: dict[str, Any]) -> dict[str, Any]:
    begun_s = time.monotonic()
    return _result(task, _commonest(_counts(_text(task))), begun_s)


def _read(task: dict[str, Any]) -> dict[str, Any]:
    begun_s = time.monotonic()
    text = _text(task)
    return {**task, "text": text, "ended_s": _held(task, begun_s)}


def _count(task: dict[str, Any]) -> dict[str, Any]:
    begun_s = time.monotonic()
    counts = _counts(task.pop("text"))
    return {**task, "counts": counts, "ended_s": _held(task, begun_s)}


def _count_and_rank(task: dict[str, Any]) -> dict[str, Any]:
    begun_s = time.monotonic()
    return _result(task, _commonest(_counts(task["text"])), begun_s)


def _rank(task: dict[str, Any]) -> dict[str, Any]:
    begun_s = time.monotonic()
    return _result(task, _commonest(task["counts"]), begun_s)


one = Pipeline("blocks-1", result_format="json")
one.subtask("whole")(_whole)

two = Pipeline("blocks-2", result_format="json")
two.subtask("read")(_read)
two.subtask("rank", after="read")(_count_and_rank)

three = Pipeline("blocks-3", result_format="json")
three.subtask("read")(_read)
three.subtask("count", after="read")(_count)
three.subtask("rank", after="count")(_rank)

PIPELINES = {1: one, 2: two, 3: three}
"""By their number of steps."""
