"""Caches blocks on the executors' disks, waits for a file, and ends."""

import sys
import time
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession

directory = Path(sys.argv[1])
spark = SparkSession.builder.appName("block-places").getOrCreate()
numbers = spark.sparkContext.parallelize(range(1000), 16).map(lambda x: (x % 7, x))
numbers.persist(StorageLevel.DISK_ONLY)
print(f"SUM {numbers.reduceByKey(lambda a, b: a + b).values().sum()}")
(directory / "ready").touch()
deadline = time.monotonic() + 300
while not (directory / "end").exists() and time.monotonic() < deadline:
    time.sleep(0.1)
spark.stop()
