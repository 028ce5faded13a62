"""What counts as equal, what a row says, and that every client is pinned and named in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clients import __main__ as program
from benchmarks.clients import environments, table
from benchmarks.clients.checks import CHECKS
from benchmarks.clients.dbt import rows
from benchmarks.clients.environments import Packages, constraints_of, versions
from benchmarks.clients.places import CONNECT, THRIFT, last_answer
from benchmarks.clients.table import Row
from benchmarks.processes import BenchmarkError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, "x", None]}, {"a": [1, "x", None]}),
        (0.1 + 0.2, 0.3),
        ({"a": 1}, {"a": 1.0}),
        ([True], [True]),
    ],
)
def test_equal_answers(one: Any, other: Any) -> None:
    assert table.equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [1]),
        (1, True),
        ("1", 1),
        (None, 0),
        (0.5, 0.501),
    ],
)
def test_unequal_answers(one: Any, other: Any) -> None:
    assert not table.equal(one, other)
    assert not table.equal(other, one)


def test_what_fails_without_hrm_is_no_fault_of_hrm() -> None:
    assert table.verdict({"x": 1}, {"x": 1}) == table.PASSED
    assert table.verdict({"x": 1}, {"x": 2}) == table.FAILED
    assert table.verdict({"x": 1}, None) == table.FAILED
    assert table.verdict(None, {"x": 1}) == table.WITHOUT
    assert table.verdict(None, None) == table.WITHOUT
    assert table.verdict({}, {}) == table.PASSED


def test_rows_of_later_runs_replace_those_of_earlier_ones() -> None:
    old = [Row(check=name, version="1", result=table.FAILED) for name in ("a", "b", "gone")]
    new = [Row(check="b", version="2", result=table.PASSED)]
    merged = table.merged(old, new, ["c", "b", "a"])
    assert [(row.check, row.version) for row in merged] == [("b", "2"), ("a", "1")]


def test_the_report_counts_and_shows_every_row() -> None:
    shown = table.report(
        [
            Row(
                check="Jupyter", version="0.11.0", result=table.PASSED, local='{"a": 1}',
                hrm='{"a": 1}', seconds_local=9.6, seconds_hrm=20.2,
            ),
            Row(check="dbt", version="-", result=table.MISSING, note="no such | wheel"),
        ],
        ["Jupyter", "dbt", "joblib-spark"],
    )  # fmt: skip
    assert "2 of 3 checks run: 1 equal, 0 fails on HRM, 0 fails without HRM, 1 not ins" in shown
    assert '| Jupyter | 0.11.0 | {"a": 1} | {"a": 1} | equal | 10 | 20 | - | - | - |' in shown
    assert "| dbt | - | - | - | not installed | - | - | - | no such / wheel | - |" in shown
    assert shown.endswith("Not run: joblib-spark.")


def test_the_last_object_is_the_answer() -> None:
    assert last_answer('{"a": 1}\nlog\n{"b": 2}\n{broken\nlog') == {"b": 2}
    with pytest.raises(BenchmarkError, match="no answer"):
        last_answer("[1]\n")


def test_rows_of_dbt_are_found_between_other_lines() -> None:
    shown = '07:01 {"not": 1}\n' + json.dumps({"node": "x", "show": [{"page": "home"}]}, indent=2)
    assert rows(shown + "\n") == [{"page": "home"}]
    with pytest.raises(BenchmarkError, match="no rows"):
        rows("Running")


def test_the_reason_of_a_failure_is_the_line_with_the_error() -> None:
    assert program.reason("it ended\n  x.y.SomeError: bad\nlater words\n") == "x.y.SomeError: bad"
    assert program.reason("ran past its limit\n") == "ran past its limit"


def test_a_server_is_given_its_port_where_it_reads_it() -> None:
    before, after = CONNECT.arguments(15)
    assert (before[-1], after) == ("spark.connect.grpc.binding.port=15", [])
    before, after = THRIFT.arguments(15)
    assert (before, after[-1]) == ([], "hive.server2.thrift.port=15")


def test_every_environment_is_pinned_with_the_versions_that_it_names() -> None:
    for packages in {check.packages for check in CHECKS}:
        assert constraints_of(packages.name).exists(), packages.name
        pinned = versions(packages.name)
        for requirement in packages.wanted:
            name, _, version = requirement.partition("==")
            name = name.partition("[")[0].lower()
            assert name in pinned
            assert pinned[name].partition("+")[0] == (version or pinned[name].partition("+")[0])
    for check in CHECKS:
        assert check.shows in versions(check.packages.name), check.name


def test_what_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    packages = Packages(name="none", wanted=("hrm-has-no-such-package==1",))
    with pytest.raises(environments.Missing, match=r"none: ERROR: .*hrm-has-no-such-package"):
        environments.prepare(packages, tmp_path)
    assert not (tmp_path / "clients" / "none").exists()


def test_the_command_line_selects_checks() -> None:
    names = [c.name for c in program.wanted(program.parse_arguments(["--only", "AIRFLOW*"]))]
    assert len(names) == 4
    quick = program.wanted(program.parse_arguments(["--quick"]))
    assert 0 < len(quick) < len(CHECKS)
    with pytest.raises(SystemExit):
        program.parse_arguments(["--only", "nothing"])
