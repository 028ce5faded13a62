"""A client of Spark Connect without Spark: ``connect.py sc://HOST:PORT``."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession, functions


def main(address: str) -> None:
    """Queries, a temporary view, and a function of Python that runs on executors."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    numbers = spark.range(0, 1000, 1, 4)
    numbers.createOrReplaceTempView("numbers")
    doubled = functions.udf(lambda x: x * 2, "long")
    answer = {
        "sum": spark.sql("SELECT sum(id) FROM numbers").collect()[0][0],
        "groups": [
            list(row)
            for row in numbers.groupBy((functions.col("id") % 3).alias("r"))
            .count()
            .sort("r")
            .collect()
        ],
        "udf": [row[0] for row in numbers.limit(5).select(doubled("id")).collect()],
        "local": spark.createDataFrame([("a", 1), ("b", 2)], "k string, v long").count(),
    }
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
