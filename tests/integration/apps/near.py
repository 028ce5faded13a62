"""Reads data that is on named hosts: `near.py HOST...`, one after another.

For each it counts an RDD of which every partition prefers that host, and then waits until dynamic
allocation has released all executors.
"""

import sys
import time
from typing import Any

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("near").getOrCreate()
jvm: Any = spark._jvm
context = spark.sparkContext._jsc.sc()
python = jvm.org.apache.spark.api.python.PythonUtils
any_class = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()


def executors() -> int:
    return int(context.getExecutorMemoryStatus().size()) - 1


for host in sys.argv[1:]:
    preferring = jvm.java.util.ArrayList()
    for number in range(2):
        preferring.add(jvm.scala.Tuple2(number, python.toSeq([host])))
    counted = context.makeRDD(python.toSeq(preferring), any_class).count()
    print(f"COUNTED {counted}", flush=True)
    deadline = time.monotonic() + 60
    while executors() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not executors(), "dynamic allocation has not let them go"
spark.stop()
