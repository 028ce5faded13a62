"""Streaming queries one after the other: `stream.py TRIGGER STOP_FILE [TRIGGER STOP_FILE]...`.

Each runs until its stop file exists; then, without a query, the application waits for the file's
namesake `.end`. With the trigger `dstream` it is a stream of Spark's older API.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.streaming import StreamingContext

spark = SparkSession.builder.appName(f"stream-{sys.argv[1]}").getOrCreate()


def start_query(trigger: str) -> Callable[[], None]:
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("ticks")
    if trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    elif trigger == "processing-time":
        writer = writer.trigger(processingTime="500 milliseconds")
    return writer.start().stop


def count(numbers: "RDD[int]") -> None:
    numbers.count()


def start_batches() -> Callable[[], None]:
    streaming = StreamingContext(spark.sparkContext, 1)
    numbers = streaming.queueStream([], default=spark.sparkContext.parallelize(range(4), 1))
    numbers.foreachRDD(count)
    streaming.start()
    return lambda: streaming.stop(stopSparkContext=False)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


for trigger, stop_file in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    path = Path(stop_file)
    stop = start_batches() if trigger == "dstream" else start_query(trigger)
    wait_for(path)
    stop()
    path.with_suffix(".stopped").touch()
    wait_for(path.with_suffix(".end"))
spark.stop()
