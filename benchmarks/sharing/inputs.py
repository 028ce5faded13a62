"""What the applications of the benchmark read, made once and kept in the cache, and the results
that they must have, computed without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import checks, demo
from benchmarks.apps import tpch
from benchmarks.inputs import stream_files, tpch_tables
from benchmarks.sharing.plan import Plan, query_groups
from benchmarks.sharing.store import paced, paced_jar
from benchmarks.text import build_text

__all__ = ["TOP", "BatchJob", "Inputs", "parted_tables", "prepare"]

TOP = 5
"""How many keys the stream's results have."""

_APPS = Path(__file__).resolve().parent.parent / "apps"
_FILES = {"orders": 4, "partsupp": 2}
"""Of other tables than lineitem, which has most; those not named: 1."""
_SPARE_FILES = 400
"""Beyond those of the window: before it, and until the last batch job that counts has ended."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """An application of the backlog. ``arguments`` and ``check`` get the directory of a run."""

    app: Path
    arguments: Callable[[Path], list[object]]
    check: Callable[[dict[str, Any], Path], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """``jobs``: batch jobs by name. ``stream``: the files, in order of their names, that come to
    the stream. ``stream_expected``: its result after each of them. ``jar``: the paced store."""

    jobs: dict[str, BatchJob]
    stream: list[Path]
    stream_expected: Sequence[Any]
    jar: Path


def prepare(plan: Plan, cache: Path) -> Inputs:
    """Make whatever is not in ``cache`` yet.

    Raises:
        BenchmarkError: a tool that makes them is missing or has failed.
    """
    count = 3 * plan.slots * plan.ticks + _SPARE_FILES
    directory = stream_files(cache, count, plan.rows_per_file)
    jobs = {"wordcount": _wordcount(plan, cache)}
    if plan.queries:
        jobs.update(_tpch(plan, cache))
    return Inputs(
        jobs=jobs,
        stream=sorted(directory.glob("*.txt")),
        stream_expected=checks.expected_files_topk(directory, TOP),
        jar=paced_jar(cache),
    )


def _wordcount(plan: Plan, cache: Path) -> BatchJob:
    text = build_text(cache, plan.text_mb)
    expected = demo.expected_counts(text)
    return BatchJob(
        app=_APPS / "wordcount.py",
        arguments=lambda _: ["--input", paced(Path(text.path))],
        check=lambda result, _: checks.wordcount_complaints(result, expected),
    )


def _tpch(plan: Plan, cache: Path) -> dict[str, BatchJob]:
    whole = tpch_tables(cache, plan.scale_factor)
    tables = parted_tables(cache, whole, plan)
    reference = checks.duckdb_results(whole, plan.scale_factor)
    jobs = {}
    for number, names in enumerate(query_groups(sorted(reference))):
        queries = cache / f"tpch-queries-{number}"
        shutil.rmtree(queries, ignore_errors=True)
        queries.mkdir(parents=True)
        for name in names:
            shutil.copy(tpch.QUERIES / f"{name}.sql", queries)
        wanted = {name: reference[name] for name in names}

        def arguments(directory: Path, queries: Path = queries) -> list[object]:
            return [
                "--data", tables, "--scheme", "paced", "--scale-factor", plan.scale_factor,
                "--queries", queries, "--answers", directory / "answers.json",
            ]  # fmt: skip

        def check(_: dict[str, Any], directory: Path, wanted: dict[str, Any] = wanted) -> list[str]:
            ours = checks.read_results(directory / "answers.json")
            found = checks.tpch_complaints(ours, wanted, plan.scale_factor)
            return [f"{query}: {text}" for query, texts in found.items() for text in texts]

        jobs[f"tpch-{number}"] = BatchJob(_APPS / "tpch.py", arguments, check)
    return jobs


def parted_tables(cache: Path, whole: Path, plan: Plan) -> Path:
    """The directory of the same tables, each a directory of some Parquet files: a task each."""
    import duckdb

    target = cache / f"tpch-{plan.scale_factor:g}-parted-{plan.lineitem_files}"
    if target.exists():
        return target
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with duckdb.connect() as connection:
        for table in tpch.TABLES:
            place = partial / f"{table}.parquet"
            place.mkdir(parents=True)
            source = str(whole / f"{table}.parquet").replace("'", "''")
            parts = plan.lineitem_files if table == "lineitem" else _FILES.get(table, 1)
            for part in range(parts):
                connection.execute(
                    "copy (select * exclude (file_row_number) from "
                    f"read_parquet('{source}', file_row_number=true) "
                    f"where file_row_number % {parts} = {part}) "
                    f"to '{place / f'part-{part:02d}.parquet'}' (format parquet)"
                )
    partial.replace(target)
    return target
