"""Object detection by the executors of an application, each with a network of its own on its GPU.

    spark-submit benchmarks/apps/detection.py SHAPE EXECUTORS

``SHAPE`` is JSON of ``benchmarks.paper.table1.Shape``. All executors load their networks in one
job, and detect in the next, which is what is measured; what it took is the last line printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

from benchmarks.paper.table1 import Shape, detected, ready, watched


def main() -> None:
    given, executors = json.loads(sys.argv[1]), int(sys.argv[2])
    shape = Shape(**{**given, "side": tuple(given["side"])})
    session = SparkSession.builder.appName("detection").getOrCreate()
    # Tasks of a barrier stage start together: with one core each, every executor has one.
    parts = session.sparkContext.parallelize(range(executors), executors).barrier()

    def load(_: Iterable[int]) -> Iterator[int]:
        ready(shape)
        yield 1

    def detect(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
        for index in indices:
            yield detected(shape, index, executors)

    parts.mapPartitions(load).count()
    with watched() as seen:
        found = parts.mapPartitions(detect).collect()
    session.stop()
    totals = {"images": sum(one[0] for one in found), "boxes": sum(one[1] for one in found)}
    sys.stdout.write(json.dumps({**seen, **totals}) + "\n")


if __name__ == "__main__":
    main()
