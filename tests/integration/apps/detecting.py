"""A batch query and a stream whose operators run on their executors' parts of a GPU.

    detecting.py ROWS CHECKPOINT

Prints ``BATCH n sum`` and ``STREAM n``: numbers of rows, and the sum of the batch's.
"""

import sys
import time
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from hrm.pipelines import Pipeline
from hrm.pipelines.client.spark import map_in_pandas

squares = Pipeline("squares")


@squares.subtask()
def decode(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(value=frame["id"] % 10)


@squares.subtask(after=decode, gpu_only=True, gpu_memory_mib=3000)
def square(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(value=frame["value"] ** 2)


def main(rows: int, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("detecting").getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    schema = "id long, value long"
    rate = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    numbers = rate.selectExpr("value as id")
    stream = (
        map_in_pandas(squares, numbers, schema)
        .writeStream.format("memory")
        .queryName("squares")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    batch = map_in_pandas(squares, spark.range(rows), schema)
    ((count, total),) = batch.selectExpr("count(*)", "sum(value)").collect()
    # One write per line: Spark's driver is unbuffered, and its log goes into the same file.
    sys.stdout.write(f"BATCH {count} {total}\n")
    deadline = time.monotonic() + 60
    while not spark.table("squares").head(1) and time.monotonic() < deadline:
        stream.awaitTermination(1)
    wrong = spark.sql("select * from squares where value != pow(id % 10, 2)").count()
    sys.stdout.write(f"STREAM {spark.table('squares').count()} {wrong}\n")
    stream.stop()
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), str(Path(sys.argv[2])))
