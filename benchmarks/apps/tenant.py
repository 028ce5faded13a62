"""Jobs of tasks that wait for a store and compute, one after the other: the work of one tenant.

    spark-submit benchmarks/apps/tenant.py --input "paced:///DIR/*" --warm-up "paced:///SMALL/*" \
        --executors 4 --jobs 4 --ready READY --go GO --measure MEASURE

Each file of ``--input`` is a task of each job. It has one line: a number and how many steps to
compute from it. ``READY`` is written once all executors are there and have started their Python;
with ``GO`` jobs over ``--warm-up`` begin, one after the other, until there is ``MEASURE``. Then
``--jobs`` jobs over ``--input`` count. The last line printed is JSON: when each began and ended, in
seconds since the epoch, and what it computed.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from pyspark import SparkContext

_POLL_S = 0.1
MODULUS = 2_147_483_647
"""A prime: what is computed from a number is that number times a constant."""


def computed(number: int, steps: int) -> int:
    """Steps of a multiplicative congruential generator from ``number`` + 1: pure processor time."""
    value = number + 1
    for _ in range(steps):
        value = value * 48271 % MODULUS
    return value


def result_of(line: str) -> int:
    """What one task computes from its line."""
    number, steps, *_ = line.split()
    return computed(int(number), int(steps))


def job(context: SparkContext, files: str) -> dict[str, Any]:
    """One job over all of ``files``."""
    begun_s = time.time()
    found = context.textFile(files, 1).map(result_of).collect()
    return {"begun_s": begun_s, "ended_s": time.time(), "tasks": len(found), "sum": sum(found)}


def await_file(path: Path, limit_s: float) -> None:
    """Until there is ``path``.

    Raises:
        RuntimeError: not within ``limit_s``.
    """
    begin_s, never = time.monotonic(), threading.Event()
    while not path.exists():
        if time.monotonic() - begin_s > limit_s:
            raise RuntimeError(f"no {path} after {limit_s:.0f} s")
        never.wait(_POLL_S)


def await_executors(context: SparkContext, count: int, limit_s: float) -> None:
    """Until so many have registered, and each has run a task in Python.

    Raises:
        RuntimeError: not within ``limit_s``.
    """
    begin_s, never = time.monotonic(), threading.Event()
    executors: Any = context._jsc.sc()
    while executors.getExecutorIds().size() < count:
        if time.monotonic() - begin_s > limit_s:
            raise RuntimeError(f"{executors.getExecutorIds().size()} of {count} executors only")
        never.wait(_POLL_S)
    context.parallelize(range(4 * count), 4 * count).map(lambda _: time.sleep(0.25)).count()


def main() -> None:
    """Run the jobs, print the result line."""
    parser = argparse.ArgumentParser(description="The work of one tenant")
    parser.add_argument("--name", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--warm-up", required=True)
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--go", type=Path, required=True)
    parser.add_argument("--measure", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=300.0, help="of each wait, seconds")
    given = parser.parse_args()
    context = SparkContext(appName=given.name)
    await_executors(context, given.executors, given.timeout)
    given.ready.touch()
    await_file(given.go, given.timeout)
    warm = []
    while not given.measure.exists():
        warm.append(job(context, given.warm_up))
    jobs = [job(context, given.input) for _ in range(given.jobs)]
    context.stop()
    print(json.dumps({"app": "tenant", "warm_up": warm, "jobs": jobs}), flush=True)


if __name__ == "__main__":
    main()
