"""What a driver and an executor find on their class paths: `settings.py FILE...`."""

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("settings").getOrCreate()
loader = spark.sparkContext._jvm.java.lang.ClassLoader  # type: ignore[union-attr]
for name in sys.argv[1:]:
    print(f"DRIVER {name} {loader.getSystemResource(name)}", flush=True)
    found = f"reflect('java.lang.ClassLoader', 'getSystemResource', '{name}') as found"
    row = spark.range(0, 1, 1, 1).selectExpr("id", found).collect()[0]
    print(f"EXECUTOR {name} {row['found']}", flush=True)
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
print(f"HADOOP {hadoop.get('of.the.site')}", flush=True)
spark.stop()
