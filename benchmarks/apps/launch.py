"""The smallest application that reports when its executors' processes began.

    spark-submit benchmarks/apps/launch.py --executors 2

Each task reports the executor it ran in and when that JVM was started, according to the kernel. The
last line printed is JSON: the start times by executor, in seconds since the epoch, and how long it
took.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

HOLD_S = 1.0


def started_at_s(pid: int) -> float:
    """When a process began; accurate to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(_rows: Iterable[int]) -> Iterator[tuple[str, float]]:
    """The JVM above the Python worker, and above its daemon."""
    time.sleep(HOLD_S)  # so that the first executor does not run every task
    pid = os.getppid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = parent_of(pid)
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    named = command.index(b"--executor-id") + 1 if b"--executor-id" in command else 0
    yield (command[named].decode() if named else "", started_at_s(pid))


def main() -> None:
    """Run one task per executor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--executors", type=int, required=True)
    given = parser.parse_args()
    begun_s = time.monotonic()
    spark = SparkSession.builder.appName("launch").getOrCreate()
    tasks = spark.sparkContext.parallelize(range(given.executors), given.executors)
    found = dict(tasks.mapPartitions(executor_of).collect())
    spark.stop()
    print(json.dumps({"executors": found, "elapsed_s": time.monotonic() - begun_s}), flush=True)


if __name__ == "__main__":
    main()
