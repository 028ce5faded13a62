"""The smallest application of a person who waits: one job, then one small SQL query.

    python benchmarks/apps/first_task.py

Master and settings are in PYSPARK_SUBMIT_ARGS. The last line printed is JSON: when the job and the
query had their results, in seconds since the epoch, and how the driver started.
"""

from __future__ import annotations

import json
import time

from pyspark.sql import SparkSession


def main() -> None:
    """Run both, and report."""
    spark = SparkSession.builder.appName("first-task").getOrCreate()
    total = spark.sparkContext.parallelize(range(100), 2).sum()
    task_at_s = time.time()
    (row,) = spark.sql("select sum(id) total from range(1000) where id % 2 = 0").collect()
    found = {
        "task_at_s": task_at_s,
        "sql_at_s": time.time(),
        "right": total == 4950 and row.total == 249500,
        "start": spark.conf.get("spark.hrm.start", ""),
    }
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
