"""Ends an executor's JVM in the midst of a task, once a code: `exits.py DIRECTORY CODE...`."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, udf
from pyspark.sql.types import BooleanType

spark = SparkSession.builder.appName("exits").getOrCreate()


def total(code: str, path: str) -> int:
    @udf(BooleanType())
    def first(_):  # type: ignore[no-untyped-def]
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    exits = f"java_method('java.lang.System', 'exit', {code})"
    numbers = spark.range(0, 1000, 1, 2).withColumn("first", first(col("id")))
    value = expr(f"CASE WHEN first THEN length({exits}) ELSE id END")
    ((found,),) = numbers.select(value.alias("n")).groupBy().sum("n").collect()
    return int(found)


for code in sys.argv[2:]:
    found = total(code, str(Path(sys.argv[1]) / f"exit-{code}"))
    print(f"TOTAL {found} AFTER {code}", flush=True)
spark.stop()
