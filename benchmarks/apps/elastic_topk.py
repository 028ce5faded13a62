"""Top-K over a stream of files whose number of executors follows the load.

    spark-submit benchmarks/apps/elastic_topk.py --input DIR --rows-per-file 5000 --slots 3 \
        --executors-max 3 --trigger-s 3 --ready READY --steady STEADY --stop STOP --checkpoint D

A micro-batch has one task for each file that came since the last one. The application holds as many
executors as these tasks need, from the last ``--hold`` micro-batches: more are requested after the
first micro-batch that needed them, and released after so many that did not. ``READY`` is written
once the query runs, ``STEADY`` once some micro-batches in a row took less than the trigger's
interval; it ends when it has counted as many files as ``STOP`` says. The last line printed is JSON:
every micro-batch with its times and result, and each change of the executors.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.apps.topk_stream import TopK

_POLL_S = 0.2
_END_TIMEOUT_S = 60
_IN_A_ROW = 3


def executors_wanted(files: Sequence[int], slots: int, least: int, most: int, hold: int) -> int:
    """Executors for the files of the last micro-batches, the latest last: one slot for each file of
    the largest among the last ``hold``."""
    largest = max(files[-hold:], default=0)
    return min(most, max(least, math.ceil(largest / slots)))


def is_steady(seconds: Sequence[float], trigger_s: float) -> bool:
    """Did the last micro-batches, in a row, take less than the interval?"""
    return len(seconds) >= _IN_A_ROW and max(seconds[-_IN_A_ROW:]) < trigger_s


class Executors:
    """The executors of this application: how many it holds, and how it changes that."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._context: Any = spark.sparkContext._jsc.sc()
        self._tracker = spark.sparkContext.statusTracker()
        self.changes: list[tuple[float, int]] = []

    @property
    def requested(self) -> int:
        return self.changes[-1][1] if self.changes else 0

    def follow(self, wanted: int) -> None:
        """Request more, or release the youngest; the latter between micro-batches only."""
        held = sorted(map(int, self._sequence(self._context.getExecutorIds())))
        surplus = held[wanted:]
        if wanted == self.requested and not surplus:
            return
        if surplus:
            if self._tracker.getActiveJobsIds():
                return
            # Spark takes those that it ends off the total, so that must contain them.
            self._request(len(held))
            ids = self._jvm.java.util.ArrayList()
            for number in surplus:
                ids.add(str(number))
            self._context.killExecutors(self._python_utils.toSeq(ids))
        self._request(wanted)
        if wanted != self.requested:
            self.changes.append((time.time(), wanted))

    @property
    def _python_utils(self) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils

    def _request(self, total: int) -> None:
        nowhere = self._python_utils.toScalaMap(self._jvm.java.util.HashMap())
        self._context.requestTotalExecutors(total, 0, nowhere)

    @staticmethod
    def _sequence(items: Any) -> list[str]:
        return [items.apply(index) for index in range(items.size())]


def micro_batches(query: StreamingQuery) -> list[dict[str, Any]]:
    """Of every micro-batch that had data: its number, start, duration and rows."""
    return [
        {
            "batch": progress["batchId"],
            "trigger": progress["timestamp"],
            "ms": int(progress["durationMs"]["triggerExecution"]),
            "add_batch_ms": int(progress["durationMs"].get("addBatch", 0)),
            "rows": int(progress["numInputRows"]),
        }
        for progress in query.recentProgress
        if progress["numInputRows"] > 0
    ]


def _stop_after(path: Path) -> int | None:
    """How many files there were in all; None: more may come."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def run(spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    """Count until all files are counted.

    Raises:
        RuntimeError: the query failed, or took longer than ``--timeout``.
    """
    lines = spark.readStream.format("text").load(given.input)
    results = TopK(given.k, 0, quiet=True)
    writer = lines.groupBy(F.col("value").alias("key")).count().writeStream.outputMode("complete")
    writer = writer.queryName("topk").trigger(processingTime=f"{given.trigger_s} seconds")
    executors = Executors(spark)
    executors.follow(given.executors_min)
    begin = time.monotonic()
    query = writer.foreachBatch(results).start()
    given.ready.touch()
    done: list[dict[str, Any]] = []
    reported = ""
    enough = threading.Event()
    while not enough.wait(_POLL_S):
        if query.exception() is not None or not query.isActive:
            raise RuntimeError(f"the query ended early: {query.exception()}")
        if time.monotonic() - begin > given.timeout:
            raise RuntimeError(f"not at its end after {given.timeout:.0f} s")
        last_progress = query.lastProgress
        if last_progress is not None and last_progress["timestamp"] != reported:
            # All of them, which grow, only where there is one more.
            reported = last_progress["timestamp"]
            done = micro_batches(query)
        files = [math.ceil(batch["rows"] / given.rows_per_file) for batch in done]
        executors.follow(
            executors_wanted(
                files, given.slots, given.executors_min, given.executors_max, given.hold
            )
        )
        if is_steady([batch["ms"] / 1000 for batch in done], given.trigger_s):
            given.steady.touch()
        last = _stop_after(given.stop)
        if last is not None and sum(files) >= last:
            enough.set()
    query.stop()
    query.awaitTermination(_END_TIMEOUT_S)
    tops = {each["batch"]: each["top"] for each in results.seen}
    return {
        "elapsed_s": time.monotonic() - begin,
        "micro_batches": [{**batch, "top": tops.get(batch["batch"])} for batch in done],
        "executors": executors.changes,
    }


def main() -> None:
    """Run the query, print the result line."""
    parser = argparse.ArgumentParser(description="Top-K with as many executors as the load needs")
    parser.add_argument("--input", required=True, help="the directory that files come to")
    parser.add_argument("--rows-per-file", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True, help="tasks at once, of an executor")
    parser.add_argument("--executors-min", type=int, default=1)
    parser.add_argument("--executors-max", type=int, required=True)
    parser.add_argument("--hold", type=int, default=3, help="micro-batches before a release")
    parser.add_argument("--trigger-s", type=float, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--steady", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=600.0, help="limit, seconds")
    parser.add_argument("--checkpoint", required=True, help="a directory that does not exist yet")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--name", default="Elastic Top-K")
    given = parser.parse_args()
    spark = (
        SparkSession.builder.appName(given.name)
        .config("spark.sql.streaming.checkpointLocation", given.checkpoint)
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .getOrCreate()
    )
    result = run(spark, given)
    spark.stop()
    print(json.dumps({"app": "elastic_topk", **result}), flush=True)


if __name__ == "__main__":
    main()
