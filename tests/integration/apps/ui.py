"""Prints what Spark's UI has of its executors and its driver, as JSON: `ui.py`.

The first link of each is followed, if it is one of a log page: its HTTP status is added.
"""

import json
from urllib.request import urlopen

from pyspark.sql import SparkSession

LIMIT_S = 60.0

spark = SparkSession.builder.appName("ui").getOrCreate()
context = spark.sparkContext
context.parallelize(range(4), 4).count()
page = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/allexecutors"
shown = json.load(urlopen(page, timeout=LIMIT_S))
found = {}
for each in shown:
    links = each["executorLogs"]
    found[each["id"]] = {"links": links, "attributes": each["attributes"]}
    if "/containers/" in links.get("stderr", ""):
        found[each["id"]]["status"] = urlopen(links["stderr"], timeout=LIMIT_S).status
print("UI", json.dumps(found), flush=True)
spark.stop()
