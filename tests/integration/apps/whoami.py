"""Prints the users of its driver and its Python tasks, and which Python they run: `whoami.py`."""

import os
import sys

from pyspark.sql import SparkSession


def mine(_: object) -> list[tuple[int, str]]:
    return [(os.getuid(), sys.executable)]


spark = SparkSession.builder.appName("whoami").getOrCreate()
found = spark.sparkContext.parallelize(range(4), 2).mapPartitions(mine).collect()
print("DRIVER", *mine(None)[0], flush=True)
print("TASKS", *sorted({f"{uid} {python}" for uid, python in found}), flush=True)
spark.stop()
