"""The 22 TPC-H queries, one after another in one application, each timed.

    spark-submit benchmarks/apps/tpch.py --data DIR --scale-factor 0.1 [--answers FILE]

``DIR`` holds one Parquet file per table. The queries are in ``benchmarks/tpch/*.sql``, written from
the public specification with its validation parameters. ``--answers`` keeps every row of every
result for comparison.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

QUERIES = Path(__file__).resolve().parent.parent / "tpch"
TABLES = (
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
)  # fmt: skip


def query_texts(directory: Path, scale_factor: float) -> dict[str, str]:
    """Query name to SQL; query 11's fraction falls with the scale factor, as specified."""
    texts = {}
    for path in sorted(directory.glob("q*.sql")):
        texts[path.stem] = path.read_text().replace("{fraction}", f"{0.0001 / scale_factor:.10f}")
    return texts


def plain(value: Any) -> Any:
    """A cell in a form that JSON represents without loss."""
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


def main() -> None:
    """Run the queries, keep the results, print the result line."""
    parser = argparse.ArgumentParser(description="TPC-H on Spark")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--scheme", default="file", help="of the file system that DIR is on")
    parser.add_argument("--scale-factor", required=True, type=float)
    parser.add_argument("--queries", type=Path, default=QUERIES)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--name", default="TPC-H")
    given = parser.parse_args()
    spark = SparkSession.builder.appName(given.name).getOrCreate()
    begin = time.monotonic()
    for table in TABLES:
        path = (given.data / f"{table}.parquet").resolve()
        spark.read.parquet(f"{given.scheme}://{path}").createOrReplaceTempView(table)
    seconds: dict[str, float] = {}
    results: dict[str, list[list[Any]]] = {}
    for name, text in query_texts(given.queries, given.scale_factor).items():
        query_begin = time.monotonic()
        rows = spark.sql(text).collect()
        seconds[name] = time.monotonic() - query_begin
        results[name] = [[plain(cell) for cell in row] for row in rows]
    elapsed_s = time.monotonic() - begin
    spark.stop()
    if given.answers:
        given.answers.write_text(json.dumps(results))
    print(json.dumps({"app": "tpch", "elapsed_s": elapsed_s, "queries": seconds}), flush=True)


if __name__ == "__main__":
    main()
