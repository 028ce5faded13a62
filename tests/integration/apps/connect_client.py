"""A client of Spark Connect: `connect_client.py sc://HOST:PORT`. It prints a sum."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print("SUM", spark.range(100).selectExpr("sum(id)").collect()[0][0])
spark.stop()
