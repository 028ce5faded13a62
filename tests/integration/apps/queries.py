"""TPC-H queries over and over: `queries.py DATA QUERIES SCALE STOP_FILE`.

Prints `ROUND n` after each round whose answers are those of the first, and how many tasks failed by
their own fault in the end.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

data, queries, scale, stop = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
NAMES = ("q01", "q03", "q05", "q06", "q12", "q14", "q18")

spark = SparkSession.builder.appName("queries").getOrCreate()
for file in sorted(data.glob("*.parquet")):
    spark.read.parquet(file.as_uri()).createOrReplaceTempView(file.stem)
texts = [(queries / f"{name}.sql").read_text() for name in NAMES]
texts = [text.replace("{fraction}", f"{0.0001 / scale:.10f}") for text in texts]


def answers():  # type: ignore[no-untyped-def]
    return [[tuple(row) for row in spark.sql(text).collect()] for text in texts]


expected, number = answers(), 0
assert all(expected), "a query without an answer shows nothing"
deadline = time.monotonic() + 1200
while not Path(stop).exists() and time.monotonic() < deadline:
    number += 1
    assert answers() == expected, f"round {number} has other answers"
    sys.stdout.write(f"ROUND {number}\n")
    sys.stdout.flush()
spark.stop()
