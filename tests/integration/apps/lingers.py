"""A service that catches every failure and never ends: `lingers.py FILE_TO_MAKE_WHEN_IT_SERVES`."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("lingers").getOrCreate()
print(f"SUM {spark.sparkContext.parallelize(range(10), 1).sum()}", flush=True)
with Path(sys.argv[1]).open("a") as file:
    file.write("serves\n")
while True:
    try:
        spark.sparkContext.parallelize(range(10), 1).sum()
    except Exception as error:  # as a server does for each client
        print(f"FAILED {type(error).__name__}", flush=True)
    time.sleep(0.5)
