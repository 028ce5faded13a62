"""The application whose classes go into the class-data archives: a sample of common operations.

``hrm.spark.archive_training`` runs it with a driver and an executor that save the classes they
loaded as they end, so its contents decide what starts faster. The data are tiny: the first row
loads the classes. It runs on its own (``spark-submit rehearsal.py DIRECTORY``) and imports
nothing of HRM.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

ROWS = 200


def main(arguments: list[str]) -> int:
    """Rehearse, with files below the directory ``arguments[1]``; 0 if every result is right."""
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as f

    place = arguments[1]
    spark = SparkSession.builder.appName("rehearsal").getOrCreate()
    context = spark.sparkContext
    words = context.parallelize(["to be", "or not", "to be"], 2).flatMap(str.split)
    counts = dict(words.map(lambda word: (word, 1)).reduceByKey(lambda a, b: a + b).collect())
    rows = spark.range(ROWS).withColumn("key", f.col("id") % 7).withColumn("text", f.lit("a b"))
    rows.write.mode("overwrite").parquet(f"{place}/parquet")
    rows.write.mode("overwrite").csv(f"{place}/csv")
    back = spark.read.parquet(f"{place}/parquet").cache()
    twice = f.udf(lambda value: value * 2, "long")
    small = spark.createDataFrame([(key, f"name-{key}") for key in range(7)], ["key", "name"])
    joined = back.join(small, "key").join(back.groupBy("key").count(), "key")
    ranked = joined.withColumn("rank", f.row_number().over(Window.partitionBy("key").orderBy("id")))
    best = ranked.where("rank = 1").select(twice("id").alias("twice"), "name", "count").collect()
    back.createOrReplaceTempView("rows")
    query = "select key, sum(id) total, avg(id) mean from rows group by key order by total desc"
    totals = spark.sql(query).collect()
    lines = spark.read.text(f"{place}/csv").select(f.explode(f.split("value", ",")).alias("part"))
    parts = lines.groupBy("part").count().orderBy("count", "part").limit(5).collect()
    right = (
        counts == {"to": 2, "be": 2, "or": 1, "not": 1}
        and len(best) == 7
        and sum(row.total for row in totals) == sum(range(ROWS))
        and len(parts) == 5
    )
    spark.stop()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
