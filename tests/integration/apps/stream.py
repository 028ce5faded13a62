"""One streaming query until told to stop: `stream.py TRIGGER STOP_FILE`, then idles until told."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

trigger, stop = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.appName(f"stream-{trigger}").getOrCreate()
writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("ticks")
if trigger == "available-now":
    writer = writer.trigger(availableNow=True)
elif trigger == "processing-time":
    writer = writer.trigger(processingTime="500 milliseconds")
query = writer.start()
deadline = time.monotonic() + 120
while not stop.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
query.stop()
stop.with_suffix(".stopped").touch()
while not stop.with_suffix(".end").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
spark.stop()
