"""Pipelines for tests of workers and of clusters: good ones, and one of each kind of bad."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from hrm.pipelines import Pipeline

arithmetic = Pipeline("arithmetic")


@arithmetic.subtask()
def double(value: int) -> int:
    return 2 * value


@arithmetic.subtask(after=double)
def square(value: int) -> int:
    return value * value


@arithmetic.subtask(after=double)
def negate(value: int) -> int:
    return -value


@square.gpu
def _square_on_a_gpu(value: int) -> int:
    return value * value


@arithmetic.subtask(after=(square, negate))
def add(squared: int, negated: int) -> int:
    return squared + negated


slow = Pipeline("slow")


@slow.subtask()
def nap(value: float) -> float:
    time.sleep(value)
    return value


@slow.subtask(after=nap)
def emit(value: float) -> tuple[float, int]:
    return value, os.getpid()


raising = Pipeline("raising")


@raising.subtask(attempts=2)
def divide(value: int) -> float:
    return value / 0


hanging = Pipeline("hanging")


@hanging.subtask(timeout_s=0.5, attempts=1)
def hang(value: int) -> None:
    time.sleep(600)


greedy = Pipeline("greedy")


@greedy.subtask(memory_mib=64, attempts=1)
def fill(value: int) -> Any:
    return np.ones(value << 17).sum()  # ``value`` MiB


crashing = Pipeline("crashing")


@crashing.subtask(attempts=1)
def crash(value: int) -> None:
    os._exit(3)


unpicklable = Pipeline("unpicklable")


@unpicklable.subtask(attempts=1)
def make(value: int) -> Any:
    return lambda: value


on_a_gpu = Pipeline("on-a-gpu")


@on_a_gpu.subtask(gpu_only=True, gpu_memory_mib=100)
def visible(value: int) -> tuple[int, str]:
    return value, os.environ["CUDA_VISIBLE_DEVICES"]


not_a_pipeline = 7


reading = Pipeline("reading")


@reading.subtask(attempts=1)
def total(made: Any) -> int:
    """The sum of what another task has left in a directory."""
    return sum(made.load())


numbers = Pipeline("numbers")


@numbers.subtask(attempts=1)
def count(most: int) -> list[int]:
    return list(range(most))
