"""One streaming query until the stop file exists, then idle: `stream.py TRIGGER STOP_FILE`.

With the trigger `dstream`, a stream of Spark's older API.
"""

import sys
import time
from pathlib import Path

from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.streaming import StreamingContext

trigger, stop = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.appName(f"stream-{trigger}").getOrCreate()


def start_query() -> StreamingQuery:
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("ticks")
    if trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    elif trigger == "processing-time":
        writer = writer.trigger(processingTime="500 milliseconds")
    return writer.start()


def count(numbers: "RDD[int]") -> None:
    numbers.count()


def start_batches() -> StreamingContext:
    streaming = StreamingContext(spark.sparkContext, 1)
    numbers = streaming.queueStream([], default=spark.sparkContext.parallelize(range(4), 1))
    numbers.foreachRDD(count)
    streaming.start()
    return streaming


batches = start_batches() if trigger == "dstream" else None
query = None if batches else start_query()
deadline = time.monotonic() + 120
while not stop.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
if batches:
    batches.stop(stopSparkContext=False)
if query:
    query.stop()
stop.with_suffix(".stopped").touch()
while not stop.with_suffix(".end").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
spark.stop()
