"""A correct result passes, and every kind of wrong one is found."""

from __future__ import annotations

import datetime
import decimal
import sys
from collections import Counter
from pathlib import Path
from shutil import which
from typing import Any

import pytest

pytest.importorskip("pyspark")

from benchmarks import checks, inputs
from benchmarks.apps import topk_stream, tpch


def test_wordcount_by_hand() -> None:
    expected = checks.expected_words(["The cat, the CAT!", "a-b c3d"], top=2)
    assert expected["words"] == 8
    assert expected["distinct"] == 6
    assert expected["top"] == [["cat", 2], ["the", 2]]
    assert checks.wordcount_complaints({**expected, "elapsed_s": 1.0}, expected) == []
    wrong = checks.wordcount_complaints({**expected, "checksum": 1}, expected)
    assert len(wrong) == 1
    assert "checksum" in wrong[0]
    assert checks.wordcount_complaints({}, expected) != []


ROWS = [
    ["x", 1, {"decimal": "2.50"}, "1995-01-01"],
    ["y", 2, {"decimal": "0.333333"}, "1996-01-01"],
]
SAME = [
    ("y", 2, 1 / 3, datetime.date(1996, 1, 1)),
    ("x", 1, decimal.Decimal("2.50"), datetime.date(1995, 1, 1)),
]


def test_rows_are_equal_whatever_their_order_and_number_types() -> None:
    assert checks.compare_rows(ROWS, SAME) == []
    assert checks.compare_rows(ROWS, SAME, [(0, False)]) == []


@pytest.mark.parametrize(
    ("ours", "order"),
    [
        (ROWS[:1], []),
        ([ROWS[0], ["y", 3, *ROWS[1][2:]]], []),
        ([ROWS[0], ["y", 2, {"decimal": "0.334"}, "1996-01-01"]], []),
        ([ROWS[0], ["y", 2, None, "1996-01-01"]], []),
        ([ROWS[0], ["y", 2, {"decimal": "0.333333"}, "1996-01-02"]], []),
        ([ROWS[0], ROWS[0]], []),
        (ROWS, [(0, True)]),
        (list(reversed(ROWS)), [(1, False)]),
    ],
)
def test_what_differs_is_found(ours: list[list[Any]], order: list[tuple[int, bool]]) -> None:
    assert checks.compare_rows(ours, SAME, order) != []


def test_ties_may_come_in_any_order() -> None:
    rows = [["b", 2], ["a", 2], ["c", 1]]
    assert checks.compare_rows(rows, rows, [(1, True)]) == []
    assert checks.compare_rows(rows, rows, [(1, True), (0, False)]) != []


def test_order_columns_are_read_off_the_query() -> None:
    text = "select sum(a) as x, b from t group by b\norder by x desc, b\nlimit 10\n"
    assert checks.order_columns(text, ["x", "b"]) == [(0, True), (1, False)]
    assert checks.order_columns("select count(*) from t", ["n"]) == []


def test_every_query_but_the_single_rows_asks_for_an_order() -> None:
    unordered = {
        name for name, text in tpch.query_texts(tpch.QUERIES, 1).items() if "order by" not in text
    }
    assert unordered == {"q06", "q14", "q17", "q19"}


def test_topk_over_files(tmp_path: Path) -> None:
    directory = inputs.stream_files(tmp_path, batches=4, rows=50, keys=5)
    assert inputs.stream_files(tmp_path, batches=4, rows=50, keys=5) == directory
    expected = checks.expected_files_topk(directory, 3)
    assert sum(n for _, n in checks.expected_files_topk(directory, 5)[-1]) == 200
    last = [{"batch": number, "top": expected[number]} for number in (2, 3)]
    assert checks.topk_complaints({"batches": 4, "last": last}, expected) == []
    assert checks.topk_complaints({"batches": 3, "last": last}, expected) != []
    swapped = [{"batch": 3, "top": list(reversed(expected[3]))}]
    assert checks.topk_complaints({"batches": 4, "last": swapped}, expected) != []
    times = [path.stat().st_mtime for path in sorted(directory.glob("*.txt"))]
    assert times == sorted(set(times))  # the file source reads them in this order


def test_topk_over_the_rate_source() -> None:
    counts = Counter(topk_stream.key_of_value(value) for value in range(1_000))
    assert len(counts) == topk_stream.KEYS
    top: list[list[Any]] = [
        [key, n] for key, n in sorted(counts.items(), key=lambda p: (-p[1], p[0]))
    ]
    assert checks.rate_complaints({"last": [{"top": top}]}) == []
    top[0][1] += 1
    top[1][1] -= 1
    assert checks.rate_complaints({"last": [{"top": top}]}) != []
    assert checks.rate_complaints({"last": []}) != []


def test_sort_output(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = 1_000

    def write(number: int, part: str) -> None:
        duckdb.execute(
            f"copy (select key, repeat(printf('%08X', key), 8) as payload from ("
            f"select (range * 2654435761) % 4294967296 as key from range({rows})) "
            f"where {part} order by key) to '{tmp_path}/part-{number:05d}-x.parquet'"
        )

    assert checks.sort_complaints(tmp_path, rows) != []
    (tmp_path / "_SUCCESS").touch()
    write(0, "key < 2000000000")
    assert "rows instead of" in checks.sort_complaints(tmp_path, rows)[0]
    write(1, "key >= 2000000000")
    assert checks.sort_complaints(tmp_path, rows) == []
    (tmp_path / "part-00000-x.parquet").rename(tmp_path / "part-00002-x.parquet")
    assert "out of order" in checks.sort_complaints(tmp_path, rows)[0]


def test_duckdb_runs_all_22_queries(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    if not (Path(sys.executable).parent / "tpchgen-cli").exists() and not which("tpchgen-cli"):
        pytest.skip("tpchgen-cli is not installed")
    data = inputs.tpch_tables(tmp_path, 0.01)
    outputs = checks.duckdb_results(data, 0.01)
    assert sorted(outputs) == [f"q{number:02d}" for number in range(1, 23)]
    rows = {name: len(found) for name, (_, found) in outputs.items()}
    assert all(rows.values())
    assert rows["q01"] == 4
    ours = {name: found for name, (_, found) in outputs.items()}
    complaints = checks.tpch_complaints(ours, outputs, 0.01)
    assert not any(complaints.values())
    ours["q01"] = ours["q01"][1:]
    del ours["q22"]
    found = checks.tpch_complaints(ours, outputs, 0.01)
    assert {name for name, texts in found.items() if texts} == {"q01", "q22"}
