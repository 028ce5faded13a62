"""Sums under a master, then under another: `second_master.py FIRST SECOND [SETTING=VALUE]...`."""

import sys

from pyspark.sql import SparkSession

first = SparkSession.builder.appName("first").master(sys.argv[1]).getOrCreate()
total = first.sparkContext.parallelize(range(10), 2).sum()
print("FIRST", first.sparkContext.master, total, flush=True)
first.stop()
builder = SparkSession.builder.appName("second").master(sys.argv[2])
for setting in ("spark.executor.memory=512m", "spark.executor.instances=1", *sys.argv[3:]):
    builder = builder.config(*setting.split("=", 1))
second = builder.getOrCreate()
print("SECOND", second.sparkContext.parallelize(range(10), 2).sum(), flush=True)
second.stop()
