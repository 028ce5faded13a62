"""Shuffles inside the executors' JVMs, then waits: `shuffled.py FILE_THAT_ENDS_IT`."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("shuffled").getOrCreate()
count = spark.range(0, 100_000, 1, 4).repartition(3).distinct().count()
print(f"COUNT {count}", flush=True)
deadline = time.monotonic() + 300
while not Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.1)
spark.stop()
