"""Names its master itself, and sums: `code_master.py MASTER [SETTING=VALUE]...`."""

import sys

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("code-master").master(sys.argv[1])
for setting in ("spark.executor.memory=512m", "spark.executor.instances=1", *sys.argv[2:]):
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
print("SUM", spark.sparkContext.parallelize(range(10), 2).sum(), flush=True)
spark.stop()
