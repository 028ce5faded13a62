"""Reports where its driver is and which files it has: `cluster_mode.py WAY_TO_END FILE`.

Ways to end: stop; no-stop (exit status 0 with the context alive); raise (an exception after good
jobs); a number (that exit status, after a job that failed). A file outside its working directory
came as a URI: Spark has fetched it to a place of its own.
"""

import os
import sys
import traceback
from pathlib import Path

import helper  # type: ignore[import-not-found]  # comes with --py-files
from pyspark import SparkFiles
from pyspark.sql import SparkSession

way = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
total = spark.sparkContext.parallelize(range(100), 4).map(helper.square).sum()
file = Path(sys.argv[2])
found = file if file.exists() else Path(SparkFiles.get(file.name))
came = "sent" if found is file else "fetched"
print(f"SUM {total} {found.read_text().strip()} {came}", flush=True)
workers = spark.sparkContext.parallelize([0], 1)
python = workers.map(lambda _: os.environ.get("HRM_DRIVER_PYTHON")).first()
print(f"PYTHON {python}", flush=True)
print(f"CONF {spark.conf.get('spark.test.words')} {Path.cwd().name}", flush=True)
if way == "stop":
    spark.stop()
elif way == "no-stop":
    sys.stdout.flush()
    os._exit(0)
elif way == "raise":
    raise RuntimeError("all jobs were good")
else:
    try:
        workers.map(lambda zero: 1 // zero).collect()
    except Exception:
        traceback.print_exc()
    sys.stderr.write("it failed on purpose\n")
    sys.exit(int(way))
