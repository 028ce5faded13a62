"""Works, idles until STOP_FILE exists, and ends: `elastic.py STOP_FILE`. For dynamic allocation."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("elastic").getOrCreate()
context = spark.sparkContext


def slow(numbers):  # type: ignore[no-untyped-def]
    time.sleep(3)
    return [sum(numbers)]


total = sum(context.parallelize(range(100), 6).mapPartitions(slow).collect())
print(f"TOTAL {total}", flush=True)
deadline = time.monotonic() + 120
while not Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.1)
spark.stop()
