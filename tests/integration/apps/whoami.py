"""Prints the users of its driver and its Python tasks, and which Python they run: `whoami.py`."""

import os
import sys

from pyspark.sql import SparkSession


def mine(_: object) -> list[tuple[int, str]]:
    return [(os.getuid(), sys.executable)]


spark = SparkSession.builder.appName("whoami").getOrCreate()
found = spark.sparkContext.parallelize(range(4), 2).mapPartitions(mine).collect()
print(f"DRIVER {' '.join(map(str, mine(None)[0]))}", flush=True)
tasks = sorted({f"{uid} {python}" for uid, python in found})
print(f"TASKS {' '.join(tasks)}", flush=True)
spark.stop()
