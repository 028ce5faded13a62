"""Pipelines with the steps of those that ``ldwp-set`` was trained with, which wait and compute a
number.

Seven, six and five steps, one after the other, with a version for a core, for a GPU, or both, as in
face recognition, intrusion detection and video synopsis. A step takes its ``seconds``, its GPU
version half of them; no device is used. This one file is what is sent to the nodes, as a user's own
script would be, so it imports nothing of the benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hrm.pipelines import Pipeline

__all__ = ["PIPELINES", "result_of"]

_MODULUS = 1_000_003
CPU, BOTH, GPU = "cpu", "both", "gpu"


def _next(number: int, step: int) -> int:
    return (31 * number + step) % _MODULUS


def result_of(number: int, steps: int) -> int:
    """What a task of so many steps returns."""
    for step in range(steps):
        number = _next(number, step)
    return number


def _waiting(step: int, share: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def wait(task: dict[str, Any]) -> dict[str, Any]:
        time.sleep(share * task["seconds"][step])
        return {**task, "number": _next(task["number"], step)}

    return wait


def _chain(name: str, versions: Sequence[str]) -> Pipeline:
    made = Pipeline(name, result_format="json")
    before: tuple[str, ...] = ()
    for number, version in enumerate(versions):
        step = f"step-{number}"
        add = made.subtask(step, after=before, gpu_only=version == GPU)
        step_made = add(_waiting(number, 0.5 if version == GPU else 1.0))
        if version == BOTH:
            step_made.gpu(_waiting(number, 0.5))
        before = (step,)
    return made


seven = _chain("seven-steps", (CPU, CPU, GPU, BOTH, BOTH, BOTH, BOTH))
six = _chain("six-steps", (BOTH, BOTH, BOTH, BOTH, BOTH, CPU))
five = _chain("five-steps", (BOTH, BOTH, BOTH, CPU, CPU))
PIPELINES = (seven, six, five)
