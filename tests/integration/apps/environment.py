"""Prints which Python drives, and what the executors' Python finds in its packed environment:
`environment.py NAME_OF_THE_APPLICATION`."""

import importlib
import importlib.util
import os
import sys

from pyspark.sql import SparkSession


def found(_: int) -> str:
    if importlib.util.find_spec("packed") is None:
        return "no environment"
    packed = importlib.import_module("packed")
    return f"{packed.WORD} {os.path.relpath(sys.prefix)}"


spark = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
print(f"DRIVER {os.path.relpath(sys.prefix)}")
words = set(spark.sparkContext.parallelize(range(2), 2).map(found).collect())
print(f"EXECUTOR {' '.join(words)}")
spark.stop()
