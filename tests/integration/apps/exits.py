"""Ends an executor's JVM in the midst of a task, once: `exits.py EXIT_CODE FILE_TO_MAKE`."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, udf
from pyspark.sql.types import BooleanType

code, path = int(sys.argv[1]), sys.argv[2]


@udf(BooleanType())
def first(_):  # type: ignore[no-untyped-def]
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


spark = SparkSession.builder.appName("exits").getOrCreate()
exits = f"java_method('java.lang.System', 'exit', {code})"
numbers = spark.range(0, 1000, 1, 2).withColumn("first", first(col("id")))
value = expr(f"CASE WHEN first THEN length({exits}) ELSE id END")
((total,),) = numbers.select(value.alias("n")).groupBy().sum("n").collect()
print("TOTAL", total, flush=True)
spark.stop()
