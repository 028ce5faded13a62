"""Streaming Top-K: the most frequent keys so far, after every micro-batch of a structured stream.

    spark-submit benchmarks/apps/topk_stream.py --source files --input DIR --batches N
    spark-submit benchmarks/apps/topk_stream.py --source rate --rate 200 --seconds 25

``files`` reads one file of ``DIR`` per micro-batch, one key per line, and ends after N of them;
``rate`` generates its own rows and ends after a time. Either way the trigger is Spark's default or
an interval: the query would run without end if it were not stopped. The key of row ``n`` of the
rate source is ``key_of_value(n)``, so that its result, too, can be computed independently.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

KEYS = 50
_END_TIMEOUT_S = 60


def key_of_value(value: int, keys: int = KEYS) -> str:
    """The key of row ``value`` of the rate source; low numbers are more frequent."""
    draw = value * 7919 % 1000
    return f"key-{draw * draw * keys // 1_000_000:02d}"


def rate_keys(spark: SparkSession, rate: int, keys: int) -> DataFrame:
    """The rate source with the keys of ``key_of_value``."""
    draw = "(value * 7919L % 1000L)"
    number = f"CAST({draw} * {draw} * {keys}L DIV 1000000L AS STRING)"
    rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    return rows.select(F.expr(f"concat('key-', lpad({number}, 2, '0'))").alias("key"))


def file_keys(spark: SparkSession, directory: str) -> DataFrame:
    """One file per micro-batch, one key per line."""
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(directory)
    return rows.select(F.col("value").alias("key"))


class TopK:
    """Called for every micro-batch: keeps its result, and checks whether it was the last."""

    def __init__(self, k: int, batches: int, quiet: bool) -> None:
        self.k = k
        self.batches = batches
        self.quiet = quiet
        self.seen: list[dict[str, Any]] = []
        self.enough = threading.Event()

    def __call__(self, counts: DataFrame, batch: int) -> None:
        begin = time.monotonic()
        top = counts.orderBy(F.desc("count"), "key").limit(self.k).collect()
        summary = {
            "batch": batch,
            "at_s": time.time(),
            "elapsed_s": time.monotonic() - begin,
            "top": [[row["key"], int(row["count"])] for row in top],
        }
        self.seen.append(summary)
        if not self.quiet:
            print(json.dumps(summary), flush=True)
        if self.batches and len(self.seen) >= self.batches:
            self.enough.set()


def run(spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    """Run the query to its end.

    Raises:
        RuntimeError: the query failed, or had not seen its batches within ``--timeout``.
    """
    if given.source == "rate":
        keys = rate_keys(spark, given.rate, KEYS)
    else:
        keys = file_keys(spark, given.input)
    results = TopK(given.k, given.batches if given.source == "files" else 0, given.quiet)
    writer = keys.groupBy("key").count().writeStream.outputMode("complete").queryName("topk")
    if given.trigger_s:
        writer = writer.trigger(processingTime=f"{given.trigger_s} seconds")
    begin = time.monotonic()
    query = writer.foreachBatch(results).start()
    limit_s = given.seconds if given.source == "rate" else given.timeout
    while not results.enough.wait(0.1):
        passed_s = time.monotonic() - begin
        if query.exception() is not None or not query.isActive:
            raise RuntimeError(f"the query ended early: {query.exception()}")
        if passed_s >= limit_s:
            if given.source == "rate" and any(batch["top"] for batch in results.seen):
                break
            # The rate source gives nothing at first, for long on a slow machine.
            if given.source == "files" or passed_s >= given.timeout:
                raise RuntimeError(f"{len(results.seen)} batches in {passed_s:.0f} s, too few")
    elapsed_s = time.monotonic() - begin
    durations = [progress["durationMs"] for progress in query.recentProgress]
    query.stop()
    query.awaitTermination(_END_TIMEOUT_S)
    return {
        "batches": len(results.seen),
        "elapsed_s": elapsed_s,
        "batch_ms": [int(each.get("triggerExecution", 0)) for each in durations],
        "last": results.seen[-3:],
    }


def main() -> None:
    """Run the query, print the result line."""
    parser = argparse.ArgumentParser(description="Top-K over a structured stream")
    parser.add_argument("--source", choices=["files", "rate"], required=True)
    parser.add_argument("--input", help="directory of the files source")
    parser.add_argument("--batches", type=int, default=10, help="micro-batches (files)")
    parser.add_argument("--rate", type=int, default=200, help="rows a second (rate)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long (rate)")
    parser.add_argument("--trigger-s", type=float, default=0.0, help="0: as fast as it goes")
    parser.add_argument("--timeout", type=float, default=300.0, help="limit, seconds")
    parser.add_argument("--checkpoint", required=True, help="a directory that does not exist yet")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--quiet", action="store_true", help="print the result line only")
    parser.add_argument("--name", default="TopK")
    given = parser.parse_args()
    if given.source == "files" and not given.input:
        parser.error("--source files needs --input DIR")
    spark = (
        SparkSession.builder.appName(given.name)
        .config("spark.sql.streaming.checkpointLocation", given.checkpoint)
        .getOrCreate()
    )
    result = run(spark, given)
    spark.stop()
    print(json.dumps({"app": "topk_stream", **result}), flush=True)


if __name__ == "__main__":
    main()
