"""Runs two jobs, and edits files of its own in between: `edited.py NAME GO FILE...`.

It says when the first is over, and waits for the file GO, while a test ends its executor.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

name, go, *files = sys.argv[1:]
spark = SparkSession.builder.appName(name).getOrCreate()
numbers = spark.sparkContext.parallelize(range(100), 4)
print(f"FIRST {numbers.sum()}", flush=True)
for each in files:
    with Path(each).open("a") as file:
        file.write("# edited\n")
print("EDITED", flush=True)
deadline = time.monotonic() + 300
while not Path(go).exists() and time.monotonic() < deadline:
    time.sleep(0.1)
print(f"SECOND {numbers.map(lambda x: x * 2).sum()}", flush=True)
spark.stop()
