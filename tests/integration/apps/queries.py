"""TPC-H queries repeatedly: `queries.py DATA QUERIES SCALE STOP_FILE [all]`.

Four of them, or all. Prints `ANSWER n` after each query whose result is that of the first round.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

data, queries, scale, stop = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
every = sys.argv[5:] == ["all"]
NAMES = [f"q{n:02}" for n in range(1, 23)] if every else ["q03", "q06", "q12", "q14"]

spark = SparkSession.builder.appName("queries").getOrCreate()
for file in sorted(data.glob("*.parquet")):
    spark.read.parquet(file.as_uri()).createOrReplaceTempView(file.stem)
texts = [(queries / f"{name}.sql").read_text() for name in NAMES]
texts = [text.replace("{fraction}", f"{0.0001 / scale:.10f}") for text in texts]


def response(text: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


expected, number = [response(text) for text in texts], 0
without = [name for name, rows in zip(NAMES, expected, strict=True) if not rows]
assert len(without) <= len(NAMES) // 10, f"queries without an answer show nothing: {without}"
deadline = time.monotonic() + 1200
while not Path(stop).exists() and time.monotonic() < deadline:
    which = number % len(texts)
    assert response(texts[which]) == expected[which], f"{NAMES[which]} has another answer"
    number += 1
    sys.stdout.write(f"ANSWER {number}\n")
    sys.stdout.flush()
spark.stop()
