"""Checks of results, by computations independent of Spark.

WordCount is checked by a Python Counter, Sort by numpy, Top-K by counting the keys that were sent,
TPC-H by DuckDB on the same Parquet files. Every check returns complaints; none means correct.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apps import sort, topk_stream, tpch, wordcount

__all__ = [
    "compare_rows",
    "duckdb_results",
    "expected_files_topk",
    "expected_words",
    "order_columns",
    "rate_complaints",
    "read_results",
    "sort_complaints",
    "topk_complaints",
    "tpch_complaints",
    "wordcount_complaints",
]

# Spark divides decimals to six digits, DuckDB divides doubles.
_RELATIVE = 1e-6
_ABSOLUTE = 1e-6

Rows = Sequence[Sequence[Any]]


def expected_words(lines: Iterable[str], top: int = 20) -> dict[str, Any]:
    """The correct result of WordCount over ``lines``."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(wordcount.words_of(line))
    commonest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:top]
    return {
        "words": sum(counts.values()),
        "distinct": len(counts),
        "checksum": sum(zlib.crc32(f"{word}:{n}".encode()) for word, n in counts.items()),
        "top": [[word, count] for word, count in commonest],
    }


def wordcount_complaints(result: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Compare every part of WordCount's result."""
    return [
        f"{key} is {result.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if result.get(key) != value
    ]


def sort_complaints(output: Path, rows: int) -> list[str]:
    """Compare the files that Sort wrote, row by row, with the sorted keys."""
    import duckdb

    files = sorted(str(path) for path in output.glob("part-*.parquet"))
    if not (output / "_SUCCESS").exists() or not files:
        return [f"{output} is not the output of a job that ended well"]
    with duckdb.connect() as connection:
        found = connection.execute(
            "select key, payload = repeat(printf('%08X', key), 8) as whole from read_parquet(?)",
            [files],
        ).fetchnumpy()
    expected = np.sort(np.arange(rows, dtype=np.int64) * sort.FACTOR % sort.MODULUS)
    keys = np.asarray(found["key"])
    if len(keys) != rows:
        return [f"{len(keys)} rows instead of {rows}"]
    complaints = []
    if int(keys.sum()) != int(expected.sum()):
        complaints.append("the checksum of the keys is wrong")
    if not np.array_equal(keys, expected):
        first = int(np.argmax(keys != expected))
        complaints.append(f"out of order from row {first}: {keys[first]}, not {expected[first]}")
    if not bool(np.all(found["whole"])):
        complaints.append("a payload does not belong to its key")
    return complaints


def expected_files_topk(directory: Path, k: int) -> list[list[list[Any]]]:
    """The Top-K after each of the files of ``directory``, in the order of their names."""
    counts: Counter[str] = Counter()
    results = []
    for path in sorted(directory.glob("*.txt")):
        counts.update(path.read_text().split())
        results.append(_top(counts, k))
    return results


def _top(counts: Counter[str], k: int) -> list[list[Any]]:
    return [[key, n] for key, n in sorted(counts.items(), key=lambda p: (-p[1], p[0]))[:k]]


def topk_complaints(result: Mapping[str, Any], expected: Sequence[Any]) -> list[str]:
    """Compare the last micro-batches of the files source with the exact results."""
    if result["batches"] != len(expected):
        return [f"{result['batches']} micro-batches instead of {len(expected)}"]
    return [
        f"after batch {each['batch']}: {each['top']}, expected {expected[each['batch']]}"
        for each in result["last"]
        if each["top"] != expected[each["batch"]]
    ]


def rate_complaints(result: Mapping[str, Any]) -> list[str]:
    """Compare the rate source's last result with the exact one.

    The number of rows is taken from the result itself (all ``KEYS`` keys must be in it); the key of
    each of them is not.
    """
    last = result["last"][-1]["top"] if result["last"] else []
    rows = sum(count for _, count in last)
    counts = Counter(topk_stream.key_of_value(value) for value in range(rows))
    expected = _top(counts, topk_stream.KEYS)
    return [] if last == expected and rows else [f"after {rows} rows: {last}, expected {expected}"]


def order_columns(text: str, columns: Sequence[str]) -> list[tuple[int, bool]]:
    """The columns of a query's own ORDER BY: (index, descending)."""
    flat = " ".join(text.split())
    found = re.search(r"order by ([^()]*?)(?: limit \d+)?$", flat)
    if found is None:
        return []
    keys = []
    for part in found.group(1).split(","):
        name, _, direction = part.strip().partition(" ")
        keys.append((columns.index(name), direction == "desc"))
    return keys


def _comparable(cell: Any) -> Any:
    """Numbers of any type as int or float, dates as text."""
    if isinstance(cell, dict) and "decimal" in cell:
        cell = decimal.Decimal(cell["decimal"])
    if isinstance(cell, decimal.Decimal):
        return int(cell) if cell == int(cell) else float(cell)
    if isinstance(cell, datetime.date):
        return cell.isoformat()
    return cell


def _same(ours: Any, theirs: Any) -> bool:
    numbers = (int, float)
    if isinstance(ours, numbers) and isinstance(theirs, numbers):
        return math.isclose(ours, theirs, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(ours == theirs)


def _row_key(row: Sequence[Any]) -> tuple[Any, ...]:
    """Text and whole numbers first: they are exact, so that rounding cannot change the order."""
    exact = [cell for cell in row if not isinstance(cell, float)]
    inexact = [cell for cell in row if isinstance(cell, float)]
    return (*map(str, exact), *inexact)


def compare_rows(ours: Rows, theirs: Rows, order: Sequence[tuple[int, bool]] = ()) -> list[str]:
    """Compare two results: the same rows in any order, and ours in the order of the query.

    Rows that are equal in the columns of ``order`` may come in any order.
    """
    left = [[_comparable(cell) for cell in row] for row in ours]
    right = [[_comparable(cell) for cell in row] for row in theirs]
    if len(left) != len(right):
        return [f"{len(left)} rows instead of {len(right)}"]
    for a, b in zip(sorted(left, key=_row_key), sorted(right, key=_row_key), strict=True):
        if len(a) != len(b) or not all(map(_same, a, b)):
            return [f"row {a} instead of {b}"]
    for before, after in pairwise(left):
        for index, descending in order:
            if _same(before[index], after[index]):
                continue
            if (before[index] < after[index]) == descending:
                return [f"{before} stands before {after}"]
            break
    return []


def duckdb_results(data: Path, scale_factor: float) -> dict[str, tuple[list[str], Rows]]:
    """Query name to (columns, rows) by DuckDB over the same Parquet files."""
    import duckdb

    results: dict[str, tuple[list[str], Rows]] = {}
    with duckdb.connect() as connection:
        for table in tpch.TABLES:
            path = str(data / f"{table}.parquet").replace("'", "''")
            connection.execute(f"create view {table} as select * from read_parquet('{path}')")
        for name, text in tpch.query_texts(tpch.QUERIES, scale_factor).items():
            cursor = connection.execute(text)
            columns = [column[0] for column in cursor.description or []]
            results[name] = (columns, cursor.fetchall())
    return results


def read_results(path: Path) -> dict[str, Rows]:
    """The results that the TPC-H application kept."""
    results: dict[str, Rows] = json.loads(path.read_text())
    return results


def tpch_complaints(
    ours: Mapping[str, Rows], reference: Mapping[str, tuple[list[str], Rows]], scale_factor: float
) -> dict[str, list[str]]:
    """Query name to complaints, for every query of the reference."""
    texts = tpch.query_texts(tpch.QUERIES, scale_factor)
    complaints = {}
    for name, (columns, rows) in reference.items():
        if name not in ours:
            complaints[name] = ["no answer"]
            continue
        complaints[name] = compare_rows(ours[name], rows, order_columns(texts[name], columns))
    return complaints
