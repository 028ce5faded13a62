"""Sums squares in slow tasks: `total.py TASKS SECONDS_A_TASK [FILE_TO_MAKE_WHEN_TASKS_RUN]`."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

tasks, seconds = int(sys.argv[1]), float(sys.argv[2])
marker = sys.argv[3] if len(sys.argv) > 3 else None


def square(numbers):  # type: ignore[no-untyped-def]
    if marker:
        Path(marker).touch()
    time.sleep(seconds)
    return [sum(x * x for x in numbers)]


spark = SparkSession.builder.appName("total").getOrCreate()
rdd = spark.sparkContext.parallelize(range(1000), tasks).mapPartitions(square)
print(f"TOTAL {sum(rdd.collect())}", flush=True)
spark.stop()
