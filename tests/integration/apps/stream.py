"""One streaming query until told to stop: `stream.py TRIGGER STOP_FILE`, then idles until told.

With the trigger `dstream`, what Spark had before there were queries.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.streaming import StreamingContext

trigger, stop = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.appName(f"stream-{trigger}").getOrCreate()


def start_query():
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("ticks")
    if trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    elif trigger == "processing-time":
        writer = writer.trigger(processingTime="500 milliseconds")
    return writer.start()


def start_batches():
    streaming = StreamingContext(spark.sparkContext, 1)
    numbers = streaming.queueStream([], default=spark.sparkContext.parallelize(range(4), 1))
    numbers.foreachRDD(lambda numbers: numbers.count())
    streaming.start()
    return streaming


query = start_batches() if trigger == "dstream" else start_query()
deadline = time.monotonic() + 120
while not stop.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
if trigger == "dstream":
    query.stop(stopSparkContext=False)
else:
    query.stop()
stop.with_suffix(".stopped").touch()
while not stop.with_suffix(".end").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
spark.stop()
