"""A small SQL query with a shuffle: `python small_query.py`, at Spark Connect or with a driver.

``SPARK_REMOTE`` or ``PYSPARK_SUBMIT_ARGS`` says which. The last line of its output has seconds from
the end of the imports to the result, the processor time of that, and when the result came.
"""

from __future__ import annotations

import json
import os
import time

from pyspark.sql import SparkSession

if "SPARK_REMOTE" in os.environ:
    import pyspark.sql.connect.session  # what a session would import first

    assert pyspark.sql.connect.session

QUERY = "SELECT id % 7 AS k, sum(id) AS total FROM range(0, 10000, 1, 2) GROUP BY 1 ORDER BY 1"

begun_s, worked_s = time.time(), time.process_time()
rows = SparkSession.builder.getOrCreate().sql(QUERY).collect()
ended_s, worked_s = time.time(), time.process_time() - worked_s
total = sum(row["total"] for row in rows)
times = {"session_s": ended_s - begun_s, "ended_at_s": ended_s, "processor_s": worked_s}
print(json.dumps({**times, "total": total}))
