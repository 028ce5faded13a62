"""TPC-H queries repeatedly: `queries.py DATA QUERIES SCALE STOP_FILE [four|all [DIRECTORY]]`.

Four of them, or all. Prints `ANSWER n` after each query whose result is that of the first round.
With DIRECTORY, a job of slow Python functions runs beside them, repeatedly, in turn with them on
all executors; each of its tasks touches DIRECTORY/CONTAINER as it begins. At the end it prints how
often it was right: `SLOW n`.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

data, queries, scale, stop = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
every = sys.argv[5:6] == ["all"]
begun = sys.argv[6:]
SLOW_S, SLOW_TASKS = 3.0, 16
NAMES = [f"q{n:02}" for n in range(1, 23)] if every else ["q03", "q06", "q12", "q14"]

spark = SparkSession.builder.appName("queries").getOrCreate()
for file in sorted(data.glob("*.parquet")):
    spark.read.parquet(file.as_uri()).createOrReplaceTempView(file.stem)
texts = [(queries / f"{name}.sql").read_text() for name in NAMES]
texts = [text.replace("{fraction}", f"{0.0001 / scale:.10f}") for text in texts]


def response(text: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


def over() -> bool:
    return Path(stop).exists() or time.monotonic() >= deadline


@udf("long")
def slowly_squared(number):  # type: ignore[no-untyped-def]
    (Path(begun[0]) / Path.cwd().name).touch()
    time.sleep(SLOW_S)
    return number * number


def right_slow_answers() -> int:
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "slow")
    found = 0
    while not over():
        rows = spark.range(0, SLOW_TASKS, 1, SLOW_TASKS).select(slowly_squared(col("id"))).collect()
        assert sorted(n for (n,) in rows) == [n * n for n in range(SLOW_TASKS)]
        found += 1
    return found


deadline = time.monotonic() + 1200
expected, number = [response(text) for text in texts], 0
without = [name for name, rows in zip(NAMES, expected, strict=True) if not rows]
assert len(without) <= len(NAMES) // 10, f"queries without an answer show nothing: {without}"
slow = ThreadPoolExecutor(1).submit(right_slow_answers) if begun else None
while not over():
    if slow is not None and slow.done():
        break  # it has failed
    which = number % len(texts)
    assert response(texts[which]) == expected[which], f"{NAMES[which]} has another answer"
    number += 1
    sys.stdout.write(f"ANSWER {number}\n")
    sys.stdout.flush()
if slow is not None:
    print(f"SLOW {slow.result(300)}", flush=True)
spark.stop()
