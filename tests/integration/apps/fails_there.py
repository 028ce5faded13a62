"""Its tasks fail on one host at first: `fails_there.py HOST FILE_THAT_ENDS_IT`. Then it runs small
jobs until the file is there."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

bad, end = sys.argv[1], Path(sys.argv[2])


def runs_at(host: str) -> bool:
    """Is the executor of this worker on this host?"""
    pid = os.getpid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "--hostname" in words:
            return words[words.index("--hostname") + 1] == host
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise LookupError("no executor is above this process")


def fail_there(numbers):  # type: ignore[no-untyped-def]
    time.sleep(1.0)
    if runs_at(bad):
        raise ValueError("a bad disk")
    return numbers


spark = SparkSession.builder.appName("fails-there").getOrCreate()
context = spark.sparkContext
print("COUNT", context.parallelize(range(100), 8).mapPartitions(fail_there).count(), flush=True)
while not end.exists():
    context.parallelize(range(4), 4).count()
    time.sleep(0.5)
print("DONE", flush=True)
spark.stop()
