"""What the benchmark of submissions makes of its command line, of moments and of its figures."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from benchmarks import submit
from benchmarks.submit import QUICK, Accepted, Cell, Plan, Start


def test_a_rate_is_over_all_and_latencies_are_percentiles() -> None:
    accepted = [Accepted(float(n), n + 0.25) for n in range(60)]
    assert submit.figures([*accepted, Accepted(60.0, 61.0)]) == {
        "count": 61,
        "submissions_per_min": 60.0,
        "p50_ms": 250.0,
        "p99_ms": 1000.0,
    }


def test_as_fast_as_possible_keeps_all_clients_busy() -> None:
    together = threading.Barrier(3, timeout=10)
    accepted = submit.submit_all(together.wait, 6, 3, None)
    assert len(accepted) == 6
    assert all(x.begun_s <= x.accepted_s for x in accepted)


def test_a_paced_submission_counts_from_when_it_was_due() -> None:
    accepted = submit.submit_all(lambda: None, 4, 1, 100.0)
    gaps = [b.begun_s - a.begun_s for a, b in itertools.pairwise(accepted)]
    assert gaps == pytest.approx([0.01] * 3)


def test_a_failed_submission_fails_the_run() -> None:
    def refused() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        submit.submit_all(refused, 2, 1, None)


def test_the_stock_script_is_measured_once_a_round() -> None:
    found = submit.cells(Plan(concurrency=(1, 8)))
    assert [x for x in found if x.client == "spark-submit"] == [Cell("spark-submit", "max", 8)]
    assert {x.client for x in found if x.pace == "1/s"} == {"command", "library"}
    assert len(set(map(str, found))) == len(found)


def test_the_document_and_its_tables() -> None:
    def row(cell: Cell, per_min: float) -> dict[str, Any]:
        times = {"count": 2, "p50_ms": 7.0, "p99_ms": 9.0, "client_cpu_ms": 3.0}
        of_cell = {"client": cell.client, "pace": cell.pace, "clients": cell.clients}
        return {
            **of_cell, **times, "submissions_per_min": per_min,
            "master_cpu_ms": 1.0, "load_1m": 0.5,
        }  # fmt: skip

    rows = [row(cell, per_min) for cell in submit.cells(QUICK) for per_min in (300.0, 400.0)]
    starts = [Start(running_s=1.0, registered_s=4.0, ended_s=5.0)]
    document = submit.document(rows, starts, QUICK)
    json.dumps(document)
    assert document["submissions_per_min"] == 350.0
    assert (document["submit_p50_ms"], document["start_registered_s"]) == (7.0, 4.0)
    text = submit.report(document)
    assert "| command max x4 | 2 | 350.0 | 7.0 | 9.0 |" in text
    assert "| accepted → application registered | 1 | 4.000 | 4.000 |" in text


def test_flags_win_over_quick() -> None:
    given = submit.parse_arguments(["--quick", "--count", "5", "--concurrency", "2"])
    plan = submit.plan_of(given)
    assert (plan.count, plan.concurrency, plan.starts) == (5, (2,), QUICK.starts)


@pytest.mark.parametrize(
    "arguments", [["--count", "0"], ["--starts", "-1"], ["--concurrency", "1,x"], ["--what"]]
)
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        submit.parse_arguments(arguments)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err
