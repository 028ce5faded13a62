"""Uses far more memory in a Python worker than its container has."""

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("glutton").getOrCreate()


def eat(_):  # type: ignore[no-untyped-def]
    food = []
    for _index in range(100):
        food.append(bytearray(64 * 1024 * 1024))
        time.sleep(0.05)
    return [len(food)]


spark.sparkContext.parallelize([1], 1).mapPartitions(eat).collect()
