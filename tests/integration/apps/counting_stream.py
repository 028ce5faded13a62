"""One streaming query with a checkpoint: `counting_stream.py CHECKPOINT BATCHES_FILE [OUTPUT]`.

Each micro-batch adds a line to the file: the driver's number and the batch's. With OUTPUT, it first
writes its rows there, as JSON, replacing what a lost driver had left of this batch.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

checkpoint, batches, *output = sys.argv[1:]
attempt = os.environ["HRM_SUBMISSION_ATTEMPT"]


def note(frame, batch_id):  # type: ignore[no-untyped-def]
    if output:
        frame.write.mode("overwrite").json(f"{output[0]}/{batch_id}")
    else:
        frame.count()
    with Path(batches).open("a") as file:
        file.write(f"{attempt} {batch_id}\n")


spark = SparkSession.builder.appName("counting").getOrCreate()
rate = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
writer = rate.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
writer.trigger(processingTime="500 milliseconds").start().awaitTermination()
