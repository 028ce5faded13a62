"""Prints what driver and executors find under these names: `named_files.py APPLICATION NAME...`."""

import sys
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession


def found(name: str) -> str:
    return f"{name}={Path(name).read_text()}"


name, *names = sys.argv[1:]
spark = SparkSession.builder.appName(name).getOrCreate()
print(
    f"DRIVER {[f'{each}={Path(SparkFiles.get(each)).read_text()}' for each in names]}", flush=True
)
print(f"WORKING DIRECTORY {[each for each in names if Path(each).exists()]}", flush=True)
print(f"EXECUTOR {spark.sparkContext.parallelize(names, 2).map(found).collect()}", flush=True)
spark.stop()
