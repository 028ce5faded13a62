"""Fits a straight line by gradient descent on its executors: `training.py DIRECTORY`.

It reports each epoch, keeps its data in its executors, and learns as long as there is no
DIRECTORY/finish. Then it prints the line, and how many executors it had at most and at last.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import hrm

directory = Path(sys.argv[1])
spark = SparkSession.builder.appName("training").getOrCreate()
context = spark.sparkContext
deadline = time.monotonic() + 600
points = context.parallelize(range(200), 4).map(lambda x: (x / 200, 3 * x / 200 + 1)).cache()
slope, offset, epoch = 0.0, 0.0, 0
while not (directory / "finish").exists():
    assert time.monotonic() < deadline, "nobody ends it"
    a, b = slope, offset
    of_slope, of_offset, loss = points.map(
        lambda p, a=a, b=b: ((a * p[0] + b - p[1]) * p[0], a * p[0] + b - p[1],
                             (a * p[0] + b - p[1]) ** 2)
    ).reduce(lambda x, y: (x[0] + y[0], x[1] + y[1], x[2] + y[2]))  # fmt: skip
    slope, offset = slope - of_slope / 200, offset - of_offset / 200
    epoch += 1
    assert hrm.report(epoch=epoch, loss=loss / 200, accuracy=1 / (1 + loss / 200))
    time.sleep(0.05)
print(f"LINE {slope:.3f} {offset:.3f} AFTER {epoch}", flush=True)
spark.stop()
