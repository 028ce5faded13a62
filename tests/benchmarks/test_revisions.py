"""Two revisions compared: which numbers count, and the error for a revision that does not exist."""

from __future__ import annotations

import pytest

from benchmarks import revisions


def test_only_positive_numbers_at_the_top_are_compared() -> None:
    document = {"rate_per_s": 2, "failed": 0, "ok": True, "name": "x", "parts": {"a_s": 1}}

    assert revisions.numbers(document) == {"rate_per_s": 2.0}


def test_each_number_has_its_ratio_and_direction() -> None:
    new = [{"commits_per_s": 30.0, "p99_ms": 5.0, "nodes": 7.0, "conflicts": 2.0, "extra": 1.0}]
    old = [{"commits_per_s": 20.0, "p99_ms": 10.0, "nodes": 7.0, "conflicts": 1.0}]

    rows = revisions.compare(new, old)

    assert list(rows) == ["commits_per_s", "conflicts", "p99_ms"]
    assert rows["commits_per_s"]["ratio"]["value"] == pytest.approx(1.5)
    assert [row["better"] for row in rows.values()] == ["more", None, "less"]
    assert rows["p99_ms"]["ratio"]["value"] == pytest.approx(0.5)


def test_what_follows_two_dashes_is_the_benchmarks_own() -> None:
    parsed = revisions.parse_arguments(["v1", "--runs", "2", "--", "--only", "sort"])

    assert (parsed.revision, parsed.runs, parsed.extra) == ("v1", 2, ["--only", "sort"])


def test_an_unknown_revision_is_an_error_with_a_next_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert revisions.main(["no-such-revision", "--runs", "1"]) == 1
    assert "git knows no revision no-such-revision" in capsys.readouterr().err


def test_fewer_than_one_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        revisions.main(["HEAD", "--runs", "0"])
    assert "at least one" in capsys.readouterr().err
