"""What the benchmark of submissions makes of its command line, of moments and of its figures."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import asdict
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from benchmarks import submit
from benchmarks.processes import BenchmarkError
from benchmarks.submit import QUICK, Accepted, Cell, Plan, Start
from hrm.v1 import submission_pb2 as pb


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


def _rows(plan: Plan) -> list[dict[str, Any]]:
    """Three repetitions of each cell; no two cells have a figure in common."""
    names = ("submissions_per_min", "p50_ms", "p99_ms", "client_cpu_ms", "master_cpu_ms", "load_1m")
    return [
        {
            **asdict(cell), "count": 2,
            **{name: 1_000.0 * number + 100 * column + spread for column, name in enumerate(names)},
        }
        for number, cell in enumerate(submit.cells(plan), 1)
        for spread in (9.0, 0.0, 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize("plan", [QUICK, Plan(concurrency=(8, 1, 2))])
def test_the_headline_is_that_of_the_command(plan: Plan) -> None:
    starts = [Start(running_s=n, registered_s=4.0 * n, ended_s=5.0 * n) for n in (1.0, 9.0, 2.0)]
    document = submit.document(_rows(plan), starts, plan)
    place = {cell: number for number, cell in enumerate(submit.cells(plan), 1)}
    fastest = place[Cell("command", "max", max(plan.concurrency))]
    paced = place[Cell("command", "1/s", 16)]
    assert document["submissions_per_min"] == 1_000 * fastest + 1
    assert document["submit_p50_ms"] == 1_000 * paced + 100 + 1
    assert document["submit_p99_ms"] == 1_000 * paced + 200 + 1
    assert (document["start_running_s"], document["start_registered_s"]) == (2.0, 8.0)
    for cell, number in place.items():
        assert document["medians"][str(cell)]["client_cpu_ms"] == 1_000 * number + 300 + 1


def test_the_document_and_its_tables() -> None:
    document = submit.document(_rows(QUICK), [Start(running_s=1, registered_s=4, ended_s=5)], QUICK)
    json.dumps(document)
    text = submit.report(document)
    number = submit.cells(QUICK).index(Cell("command", "max", 4)) + 1
    assert f"| command max x4 | 2 | {number},001.0 | {number},101.0 | {number},201.0 |" in text
    assert "| accepted → application registered | 1 | 4.000 | 4 |" in text
    assert "36 submissions in each cell, 6 in those of spark-submit" in text
    assert "Each cell once" in text
    more = submit.report({**document, "plan": asdict(Plan())})
    assert "Medians of 3 interleaved repetitions" in more


def test_a_cell_begins_when_nothing_is_live_or_not_at_all() -> None:
    killed: list[str] = []

    class Client:
        left = 3

        def call(self, name: str, request: object) -> pb.ListSubmissionsResponse:
            if name == "Kill":
                assert isinstance(request, pb.KillSubmissionRequest)
                killed.append(request.submission_id)
                self.left -= self.left > 0
            found = [pb.Submission(submission_id=f"s{n}") for n in range(self.left)]
            return pb.ListSubmissionsResponse(submissions=found)

    class Stuck(Client):
        left = 1

        def call(self, name: str, request: object) -> pb.ListSubmissionsResponse:
            self.left = 1
            return super().call(name, request)

    cluster = submit.Submitted.__new__(submit.Submitted)
    submit.empty_cluster(cluster, cast(Any, Client()), limit_s=10.0)
    assert killed == ["s0", "s1", "s2"]
    with pytest.raises(BenchmarkError, match="all submissions to end"):
        submit.empty_cluster(cluster, cast(Any, Stuck()), limit_s=0.0)


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
