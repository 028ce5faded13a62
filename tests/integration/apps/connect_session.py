"""A session of Spark Connect, where SPARK_REMOTE is: `connect_session.py [WAIT_MS]`.

It prints one line of JSON: seconds from the session's start to its first result, that result,
and what another session could have left. With WAIT_MS, a query that takes so long comes last.
"""

from __future__ import annotations

import json
import sys
import time

import pyspark.sql.connect.session  # loaded before the clock starts
from pyspark.sql import SparkSession

QUERY = "SELECT sum(total) FROM (SELECT sum(id) AS total FROM range(0, 100, 1, 2) GROUP BY id % 3)"

assert pyspark.sql.connect.session
begun_s = time.monotonic()
spark = SparkSession.builder.getOrCreate()
total = spark.sql(QUERY).collect()[0][0]
session_s = time.monotonic() - begun_s
views = [row.viewName for row in spark.sql("SHOW VIEWS").collect()]
settings = [row.key for row in spark.sql("SET").collect()]
if len(sys.argv) > 1:
    slow = f"SELECT java_method('java.lang.Thread', 'sleep', {sys.argv[1]}L)"
    spark.sql(slow).collect()
print(json.dumps({"session_s": session_s, "total": total, "views": views, "settings": settings}))
spark.stop()
