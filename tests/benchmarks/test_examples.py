"""What Spark's examples are given, and how their ends are classified."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clusters import Submission, spark_home
from benchmarks.examples import __main__ as runner
from benchmarks.examples import data
from benchmarks.examples.__main__ import Outcome
from benchmarks.examples.plan import _PLANS, discover, plan_of
from benchmarks.processes import start

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"""["']((?:data|examples/src/main/resources)/[^"'`]+)["'`]""")
_WRITTEN = ("data/test_table",)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory as examples get it."""
    pytest.importorskip("pyspark")
    resources = tmp_path / "resources"
    data.resources(resources)
    data.lay_out(tmp_path / "work", spark_home(), resources)
    return tmp_path / "work"


def test_all_files_that_examples_name_are_there(work: Path) -> None:
    root = spark_home() / "examples" / "src" / "main" / "python"
    names = discover(root)
    assert len(names) > 100
    named = {
        path
        for name in names
        if not plan_of(name).skip
        for path in _NAMED.findall((root / name).read_text())
        if not path.startswith(_WRITTEN)
    }
    assert len(named) > 20
    assert [path for path in sorted(named) if not (work / path).exists()] == []
    files = [x for name in names for x in plan_of(name).arguments if x.startswith("data/")]
    assert [path for path in files if not (work / path).exists()] == []


def test_what_an_example_writes_does_not_reach_sparks_own_files(work: Path) -> None:
    (work / "data" / "test_table").mkdir()
    assert not (spark_home() / "data" / "test_table").exists()


def test_every_plan_is_for_an_example_that_exists() -> None:
    pytest.importorskip("pyspark")
    names = discover(spark_home() / "examples" / "src" / "main" / "python")
    assert sorted(_PLANS.keys() - set(names)) == []
    for name in names:
        if (
            "awaitTermination"
            in (spark_home() / "examples" / "src" / "main" / "python" / name).read_text()
            and not plan_of(name).skip
        ):
            assert plan_of(name).until, f"{name} would never end"


def test_lines_come_for_as_long_as_another_reads() -> None:
    with data.serve_lines() as port, socket.create_connection(("127.0.0.1", port)) as reader:
        reader.settimeout(10)
        lines = reader.makefile()
        got = [lines.readline().strip() for _ in range(1 + 2 * len(data.LINES))]
    assert got == [data.GREETING, *data.LINES, *data.LINES]


def test_files_come_whole(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    (tmp_path / "lines").mkdir()
    with data.feed_files(tmp_path / "lines"):
        found = eventually(lambda: list((tmp_path / "lines").iterdir()))
        assert found[0].read_text().splitlines() == list(data.LINES)


def test_a_report_counts_and_keeps_the_reasons() -> None:
    outcomes = [
        Outcome(
            example="pi.py", result="passed", seconds=12.4, kind="batch", commit="b", date="2026-2"
        ),
        Outcome(example="sql/x.py", result="skipped", note="needs a broker"),
        Outcome(example="y.py", result="failed", seconds=3.0, kind="batch", note="status 1"),
        Outcome(example="mllib/recommendation_example.py", result="passed", note="it ended"),
    ]
    text = runner._report({"known": 9, "examples": [vars_of(x) for x in outcomes]})
    assert "(4 of 9 run), unchanged" in text
    assert "2 passed, 1 failed, 0 fails without HRM, 1 skipped" in text
    assert "Rows of 1 commits, 2026-2 to 2026-2." in text
    assert "| pi.py | passed | batch | 12 | - | b |" in text
    assert "| sql/x.py | skipped | - | - | needs a broker | - |" in text
    deep = "it ended; run with spark.driver.extraJavaOptions=-Xss4m, spark.executor.extraJava"
    assert deep in text, "what an example is given beside its input"


def vars_of(outcome: Outcome) -> dict[str, object]:
    return {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}


def test_of_a_failure_the_error_is_kept() -> None:
    log_text = (
        "status 1: Traceback\n  File x\nValueError: no | such thing\n26/11/21 INFO Stopping\n"
    )
    assert runner._short(log_text) == "ValueError: no / such thing"
    assert runner._short("") == "no word"
    log_text = (
        "py4j.Py4JJavaError: o1.show\nCaused by: x.FileError: /tmp/hrm-examples-a_1/sql-x/d/f.json"
    )
    assert runner._short(log_text) == "x.FileError: d/f.json"
    assert runner._alike("calling o12.show", "calling o9.show")
    assert not runner._alike("calling o12.show", "")


def test_an_end_reports_what_was_printed_and_what_was_logged(tmp_path: Path) -> None:
    started = start(
        [sys.executable, "-c", "import sys; print('KeyError: x'); sys.exit('log')"],
        log=tmp_path / "stderr",
        environment={},
        output=tmp_path / "stdout",
    )
    assert started.wait(30.0) == 1
    ended = runner.Ended(1, Submission(started, tmp_path))
    assert str(ended).splitlines() == ["status 1:", "log", "KeyError: x"]
    assert runner._short(str(ended)) == "KeyError: x"


def test_earlier_outcomes_count_for_the_same_spark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RESULTS_DIR", tmp_path)
    assert runner._known("examples", "4.3.0") == {}
    example = vars_of(Outcome(example="pi.py", result="passed"))
    document = {"provenance": {"versions": {"pyspark": "4.3.0"}}, "examples": [example]}
    (tmp_path / "examples.json").write_text(json.dumps(document))
    assert runner._known("examples", "4.3.0")["pi.py"].result == "passed"
    assert runner._known("examples", "4.4.0") == {}


def _matrix_row(directory: Path, spark: str, failures: int) -> str:
    """Report one run as ``make test-matrix`` does; returns the table."""
    environment = directory / f"env-{spark}"
    site = environment / "lib" / "python3.11" / "site-packages"
    for name in (f"pyspark-{spark}", "numpy-1.26.4"):
        (site / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)
    (environment / "pyvenv.cfg").write_text("home = /usr\nversion = 3.11.7\n")
    (environment / "report.xml").write_text(
        f'<testsuites><testsuite tests="5" failures="{failures}" errors="0" skipped="1" '
        f'time="61.2"/></testsuites>'
    )
    (directory / "docs").mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "matrix-report"), str(environment), "spark and core"],
        cwd=directory, check=True, timeout=60,
    )  # fmt: skip
    return (directory / "docs" / "spark-versions.md").read_text()


def test_the_table_of_versions_has_one_row_for_each(tmp_path: Path) -> None:
    _matrix_row(tmp_path, "4.0.5", 0)
    _matrix_row(tmp_path, "3.5.9", 2)
    rows = [x for x in _matrix_row(tmp_path, "3.5.9", 0).splitlines() if re.match(r"\| \d", x)]
    cells = [row.split("|") for row in rows]
    assert [[row[1], *row[4:8]] for row in cells] == [
        [" 3.5.9 ", " core ", " 4 ", " 0 ", " 1 "],
        [" 4.0.5 ", " core ", " 4 ", " 0 ", " 1 "],
    ]
    assert all(re.fullmatch(r" \d+ ", row[3]) for row in cells), "the Java that ran them"
