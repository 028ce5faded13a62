"""Jobs whose tasks take three times as long on one host: `measured.py HOST FILE_THAT_ENDS_IT`."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

slow, end = sys.argv[1], Path(sys.argv[2])


def runs_at(host: str) -> bool:
    """Is the executor of this worker on this host?"""
    pid = os.getpid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "--hostname" in words:
            return words[words.index("--hostname") + 1] == host
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise LookupError("no executor is above this process")


def work(numbers):  # type: ignore[no-untyped-def]
    time.sleep(0.6 if runs_at(slow) else 0.2)
    return [(x % 3, x) for x in numbers]


spark = SparkSession.builder.appName("measured 1").getOrCreate()
numbers = spark.sparkContext.parallelize(range(100), 8)
while not end.exists():
    print("SUM", numbers.mapPartitions(work).reduceByKey(lambda a, b: a + b, 2).values().sum())
print("DONE", flush=True)
spark.stop()
