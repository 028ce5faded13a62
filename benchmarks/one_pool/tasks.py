"""Pipeline tasks of an arm: submitted when they are due, and each end checked.

What a task must return is computed here without HRM, from the same block of the text. Each last
step that got to its end has left a line in the task's own file; the master logs each end.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.one_pool.plan import Plan, Work
from benchmarks.processes import BenchmarkError
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import HrmError
from hrm.pipelines import Client, Pipeline, Task, TaskResult

__all__ = ["Ended", "TaskFlow", "check", "commonest", "ends_logged", "pipelines"]

_STEPS = Path(__file__).resolve().parent / "steps" / "paced_blocks.py"
_NO_WORD = re.compile("[^a-z]+")
_ENDED = re.compile(r"\] task ended .*\btask=(\S+)")


@functools.cache
def pipelines() -> dict[int, Pipeline]:
    """The pipelines by their number of steps. Their module has no package: its file alone is sent
    to the nodes, not all benchmarks."""
    spec = importlib.util.spec_from_file_location(_STEPS.stem, _STEPS)
    if spec is None or spec.loader is None:
        raise BenchmarkError(f"{_STEPS} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_STEPS.stem] = module
    spec.loader.exec_module(module)
    found: dict[int, Pipeline] = module.PIPELINES
    return found


def commonest(text: bytes, work: Work, plan: Plan, top: int = 5) -> list[list[Any]]:
    """What the task must return: the ``top`` commonest words of its block, with their counts."""
    block = text[work.offset : work.offset + plan.block_bytes]
    words = _NO_WORD.split(block.decode("ascii", "replace").lower())
    counts = Counter(word for word in words if word)
    return [[word, counts[word]] for word in sorted(counts, key=lambda w: (-counts[w], w))[:top]]


def ends_logged(log: Path) -> Counter[str]:
    """How often the masters whose log this is have ended each task, by its id."""
    return Counter(_ENDED.findall(log.read_text(errors="replace")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One task. Moments are seconds since the epoch. ``ended_s``: None: it has not ended.
    ``steps``: begin and end of each step that counts. ``attempt``: placements, of the last master.
    ``runs``: how often its last step got to its end; ``logged``: how often it ended."""

    number: int
    is_stream: bool
    submitted_s: float
    ended_s: float | None = None
    ok: bool = False
    right: bool = False
    steps: list[tuple[float, float]] = field(default_factory=list)
    attempt: int = 0
    runs: int = 0
    logged: int = 0
    error: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.ok and not (self.right and self.runs)

    @property
    def is_failed(self) -> bool:
        return self.ended_s is not None and not self.ok

    @property
    def is_lost(self) -> bool:
        return self.ended_s is None

    @property
    def is_twice(self) -> bool:
        """It ended twice, or its last step got to its end more often than it was placed."""
        return self.logged > 1 or self.runs > max(1, self.attempt)

    def complaint(self) -> str:
        """What is not as it must be; empty: nothing."""
        found = []
        if self.is_lost:
            found.append(f"has not ended {self.error}".rstrip())
        if self.is_failed:
            found.append(f"failed: {self.error}")
        if self.is_wrong:
            found.append("has another result" if self.runs else "ended without its last step")
        if self.is_twice:
            found.append(
                f"ended {self.logged} times, its last step {self.runs} times, in placement "
                f"{self.attempt}"
            )
        return f"task {self.number} {'; '.join(found)}" if found else ""


def check(result: TaskResult, expected: list[list[Any]]) -> tuple[bool, list[tuple[float, float]]]:
    """Is the result right, and when did its steps run? A step's end is what it has noted itself,
    its length what its worker has measured."""
    runs = [run for run in result.runs if run.ok]
    if not result.ok or not isinstance(result.value, dict):
        return False, []
    ended_s = result.value.get("ended_s", [])
    if len(runs) != len(ended_s):
        return False, []
    steps = [(at_s - run.ran_s, at_s) for run, at_s in zip(runs, ended_s, strict=True)]
    return result.value.get("commonest") == expected, steps


class TaskFlow:
    """The tasks of one run. ``turn`` submits those that are due."""

    def __init__(
        self, client: Client, works: Sequence[Work], plan: Plan, text: Path, directory: Path
    ) -> None:
        """``directory``: of the tasks' own files; it is made."""
        self._client = client
        self._waiting = list(reversed(works))
        self._plan = plan
        self._text = text
        self._directory = directory
        self._lock = threading.Lock()
        self._tasks: list[tuple[Work, Task, float]] = []
        self._ends_s: dict[int, float] = {}
        self._count = len(works)
        directory.mkdir(parents=True)

    @property
    def ended(self) -> int:
        with self._lock:
            return len(self._ends_s)

    @property
    def is_over(self) -> bool:
        return self.ended >= self._count

    def turn(self, passed_s: float) -> None:
        """``passed_s``: since the beginning."""
        while self._waiting and self._waiting[-1].submit_s <= passed_s:
            work = self._waiting.pop()
            kind = WorkloadClass.STREAM if work.is_stream else WorkloadClass.BATCH
            value = {
                "path": str(self._text),
                "offset": work.offset,
                "bytes": self._plan.block_bytes,
                "seconds": list(work.seconds),
                "mark": str(self._mark(work.number)),
            }
            pipeline = pipelines()[len(work.seconds)]
            submitted_s = time.time()
            task = self._client.submit(pipeline, value, workload=kind)
            self._tasks.append((work, task, submitted_s))
            task.when_done(functools.partial(self._end, work.number))

    def _mark(self, number: int) -> Path:
        return self._directory / f"{number:04d}"

    def _end(self, number: int) -> None:
        with self._lock:
            self._ends_s[number] = time.time()

    def stop(self) -> None:
        """Cancel what has not ended."""
        self._client.cancel_all([task for _, task, _ in self._tasks], "the run is over")

    def results(self, log: Path) -> list[Ended]:
        """Of all tasks, as far as they have ended; ``log``: of the master."""
        logged, text = ends_logged(log), self._text.read_bytes()
        return [
            self._checked(work, task, submitted_s, logged[task.task_id], text)
            for work, task, submitted_s in self._tasks
        ]

    def _checked(
        self, work: Work, task: Task, submitted_s: float, logged: int, text: bytes
    ) -> Ended:
        mark = self._mark(work.number)
        runs = len(mark.read_text().splitlines()) if mark.exists() else 0
        common: dict[str, Any] = {
            "number": work.number, "is_stream": work.is_stream, "submitted_s": submitted_s,
            "runs": runs, "logged": logged,
        }  # fmt: skip
        try:
            result = task.outcome(0.0)
        except (TimeoutError, HrmError) as error:
            return Ended(**common, error=str(error))
        right, steps = check(result, commonest(text, work, self._plan))
        with self._lock:
            ended_s = self._ends_s.get(work.number, time.time())
        return Ended(
            **common,
            ended_s=ended_s,
            ok=result.ok,
            right=right,
            steps=steps,
            attempt=result.attempt,
            error=result.error,
        )
