"""Keeps data in its executors and counts whatever is computed: `keeper.py DIRECTORY`.

It waits for DIRECTORY/compute, caches a data set and writes a shuffle, says READY, keeps its
executors at work until DIRECTORY/finish, uses both again, and prints how often each record of each
was computed: once, unless data was lost meanwhile.
"""

import sys
import time
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession

directory = Path(sys.argv[1])
spark = SparkSession.builder.appName("keeper").getOrCreate()
context = spark.sparkContext
cached_count, shuffled_count = context.accumulator(0), context.accumulator(0)
deadline = time.monotonic() + 1200


def there(name: str) -> bool:
    assert time.monotonic() < deadline, f"nobody made {name}"
    time.sleep(0.05)
    return (directory / name).exists()


def square(x):  # type: ignore[no-untyped-def]
    cached_count.add(1)
    return x * x


def keyed(x):  # type: ignore[no-untyped-def]
    shuffled_count.add(1)
    return (x % 10, x)


def work(x):  # type: ignore[no-untyped-def]
    time.sleep(0.2)
    return x


while not there("compute"):
    pass
cached = context.parallelize(range(1000), 12).map(square).persist(StorageLevel.MEMORY_AND_DISK)
shuffled = context.parallelize(range(1000), 12).map(keyed).reduceByKey(lambda a, b: a + b, 4)
cached.sum(), shuffled.count()
(directory / "ready").touch()
while not there("finish"):
    context.parallelize(range(6), 6).map(work).sum()
cached_sum = cached.sum()
print(f"CACHED {cached_sum} COMPUTED {cached_count.value}", flush=True)
shuffled_sum = sum(v for _, v in shuffled.collect())
print(f"SHUFFLED {shuffled_sum} COMPUTED {shuffled_count.value}", flush=True)
spark.stop()
