"""The core keeps its promises: hundreds of seeds, and every seed that ever failed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hrm.sim.faults.plan import KINDS, Limits
from hrm.sim.run import Result, Summary, run_seed

RUNS = 300
CHUNKS = 10
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))


def _said(result: Result) -> str:
    lines = [result.plan.words(), *result.tail, *result.violations, result.plan.command()]
    return "\n".join(lines)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk: int) -> None:
    size = RUNS // CHUNKS
    faults: Counter[str] = Counter()
    for seed in range(chunk * size, (chunk + 1) * size):
        result = run_seed(seed)
        faults.update(result.faults)
        assert not result.violations, _said(result)
    assert len(faults) > len(KINDS) / 2, "the runs were too quiet to mean anything"


def test_every_kind_of_fault_happens_and_applications_come_through() -> None:
    summary, outcomes = Summary(), Counter[bool]()
    for seed in range(1_000_000, 1_000_060):
        result = run_seed(seed)
        summary.add(result)
        outcomes.update(outcome == "succeeded" for outcome in result.outcomes.values())
    assert set(KINDS) <= set(summary.faults)
    assert outcomes[True] > 2 * outcomes[False]
    assert summary.violations == 0, summary.failed_seeds


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_seed_that_failed_once_fails_no_more(kept: Path) -> None:
    record = json.loads(kept.read_text())
    assert record.keys() == {"seed", "limits", "found", "date"}
    limits = dict(record["limits"])
    limits["without"] = frozenset(limits.pop("without", ()))
    result = run_seed(record["seed"], Limits(**limits))
    assert not result.violations, _said(result)


def test_seeds_are_kept() -> None:
    assert KEPT
