"""WordCount: how often every word occurs in a text.

    spark-submit benchmarks/apps/wordcount.py --input FILE [--top 20] [--api rdd|dataframe]

A word is a run of ASCII letters, counted in lower case. ``--api rdd`` sends every line through
Python workers on the executors, ``dataframe`` stays inside the JVM. The last line printed is JSON:
the most frequent words, the number of words and of distinct words, and a checksum over all counts.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import zlib
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

WORD = re.compile("[A-Za-z]+")


def words_of(line: str) -> list[str]:
    """The words of one line."""
    return [word.lower() for word in WORD.findall(line)]


def by_dataframe(spark: SparkSession, path: str, top: int) -> dict[str, Any]:
    """Count with Spark SQL."""
    found = F.expr("explode(regexp_extract_all(value, '[A-Za-z]+', 0))")
    words = spark.read.text(path).select(found.alias("word")).select(F.lower("word").alias("word"))
    counts = words.groupBy("word").count().cache()
    line = F.concat_ws(":", "word", F.col("count").cast("string"))
    total, distinct, checksum = counts.select(
        F.sum("count"), F.count("*"), F.sum(F.crc32(line))
    ).collect()[0]
    commonest = counts.orderBy(F.desc("count"), "word").limit(top).collect()
    return {
        "words": int(total or 0),
        "distinct": int(distinct),
        "checksum": int(checksum or 0),
        "top": [[row["word"], int(row["count"])] for row in commonest],
    }


def by_rdd(spark: SparkSession, path: str, top: int, partitions: int) -> dict[str, Any]:
    """Count with functions of Python."""
    lines = spark.sparkContext.textFile(path, partitions)
    counts = lines.flatMap(words_of).map(lambda word: (word, 1)).reduceByKey(lambda a, b: a + b)
    counts.cache()
    total, distinct, checksum = counts.map(
        lambda pair: (pair[1], 1, zlib.crc32(f"{pair[0]}:{pair[1]}".encode()))
    ).fold((0, 0, 0), lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]))
    commonest = counts.takeOrdered(top, key=lambda pair: (-pair[1], pair[0]))
    return {
        "words": total,
        "distinct": distinct,
        "checksum": checksum,
        "top": [[word, count] for word, count in commonest],
    }


def main() -> None:
    """Count, print the most frequent words and the result line."""
    parser = argparse.ArgumentParser(description="WordCount on Spark")
    parser.add_argument("--input", required=True, help="a text file, or a directory of them")
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--api", choices=["dataframe", "rdd"], default="dataframe")
    parser.add_argument("--partitions", type=int, default=4, help="fewest input splits (rdd)")
    parser.add_argument("--name", default="WordCount")
    given = parser.parse_args()
    spark = SparkSession.builder.appName(given.name).getOrCreate()
    begin = time.monotonic()
    if given.api == "rdd":
        result = by_rdd(spark, given.input, given.top, given.partitions)
    else:
        result = by_dataframe(spark, given.input, given.top)
    result["elapsed_s"] = time.monotonic() - begin
    spark.stop()
    print(json.dumps({"app": "wordcount", **result}), flush=True)


if __name__ == "__main__":
    main()
