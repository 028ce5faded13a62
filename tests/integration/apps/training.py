"""Fits a straight line by gradient descent on its executors: `training.py DIRECTORY`.

It reports each epoch, keeps its data in its executors, and learns as long as there is no
DIRECTORY/finish. Then it prints the line.
"""

import sys
import time
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import hrm

directory = Path(sys.argv[1])
spark = SparkSession.builder.appName("training").getOrCreate()
context = spark.sparkContext
deadline = time.monotonic() + 600


def error(a, b, point):  # type: ignore[no-untyped-def]
    x, y = point
    off = a * x + b - y
    return off * x, off, off * off


points = context.parallelize(range(200), 4).map(lambda x: (x / 200, 3 * x / 200 + 1)).cache()
slope, offset, epoch = 0.0, 0.0, 0
while not (directory / "finish").exists():
    assert time.monotonic() < deadline, "nobody ends it"
    errors = points.map(partial(error, slope, offset))
    of_slope, of_offset, loss = errors.reduce(lambda x, y: tuple(map(sum, zip(x, y))))  # noqa: B905
    slope, offset = slope - of_slope / 200, offset - of_offset / 200
    epoch += 1
    assert hrm.report(epoch=epoch, loss=loss / 200, accuracy=1 / (1 + loss / 200))
    time.sleep(0.05)
print(f"LINE {slope:.3f} {offset:.3f} AFTER {epoch}", flush=True)
spark.stop()
