"""Sort: rows with pseudo-random keys, written in the order of their keys.

    spark-submit benchmarks/apps/sort.py --rows N --output DIR

The keys are ``row * 2654435761 mod 2**32``: an odd factor makes that a permutation, so every key
occurs once and the right result can be computed independently. Every row carries 64 bytes besides
its key through the shuffle. The output is Parquet, its files in the order of their names.
"""

from __future__ import annotations

import argparse
import json
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

FACTOR = 2_654_435_761
MODULUS = 2**32


def main() -> None:
    """Generate, sort, write, print the result line."""
    parser = argparse.ArgumentParser(description="Sort on Spark")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--output", required=True, help="a directory that does not exist yet")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--name", default="Sort")
    given = parser.parse_args()
    if not 0 < given.rows < 2**31:
        parser.error("--rows must be between 1 and 2**31 - 1, or keys would overflow")
    spark = SparkSession.builder.appName(given.name).getOrCreate()
    begin = time.monotonic()
    key = F.expr(f"pmod(id * {FACTOR}L, {MODULUS}L)")
    rows = spark.range(0, given.rows, 1, given.partitions).select(key.alias("key"))
    rows = rows.withColumn("payload", F.repeat(F.lpad(F.hex("key"), 8, "0"), 8))
    rows.orderBy("key").write.parquet(given.output)
    elapsed_s = time.monotonic() - begin
    spark.stop()
    print(json.dumps({"app": "sort", "rows": given.rows, "elapsed_s": elapsed_s}), flush=True)


if __name__ == "__main__":
    main()
