"""The core's invariants hold: for a hundred seeds that no other change has used, and every seed
that ever failed. ``make test-campaign`` is for thousands."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from hrm.sim.faults.plan import KINDS, Limits
from hrm.sim.run import Result, Summary, run_seed

ROOT = Path(__file__).parents[2]
RUNS = 100
CHUNKS = 4
FRESH_FROM, FRESH_TO = 10_000_000, 1_000_000_000
"""Between these are seeds that belong to no campaign and to no kept record."""
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))


def fresh() -> int:
    """The first seed of this change, derived from the code that the simulator runs: every change
    gets other faults, and one tree gets the same wherever it is tested."""
    digest = hashlib.sha256()
    for folder in ("hrm/core", "hrm/pipelines/core", "hrm/policies", "hrm/runtime", "hrm/sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return FRESH_FROM + int.from_bytes(digest.digest()[:8]) % (FRESH_TO - FRESH_FROM)


def _output(result: Result) -> str:
    lines = [result.plan.words(), *result.tail, *result.violations, result.plan.command()]
    return "\n".join(lines)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_reservation_is_broken(chunk: int) -> None:
    size = RUNS // CHUNKS
    first = fresh() + chunk * size
    faults: Counter[str] = Counter()
    for seed in range(first, first + size):
        result = run_seed(seed)
        faults.update(result.faults)
        assert not result.violations, _output(result)
    assert len(faults) > len(KINDS) / 2, "the runs were too quiet to mean anything"


def test_every_kind_of_fault_happens_and_applications_come_through() -> None:
    summary, outcomes = Summary(), Counter[bool]()
    for seed in range(1_000_000, 1_000_060):
        result = run_seed(seed)
        summary.add(result)
        outcomes.update(outcome == "succeeded" for outcome in result.outcomes.values())
    assert set(KINDS) <= set(summary.faults), set(KINDS) - set(summary.faults)
    assert outcomes[True] > 2 * outcomes[False]
    assert summary.violations == 0, summary.failed_seeds


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_seed_that_failed_once_fails_no_more(kept: Path) -> None:
    record = json.loads(kept.read_text())
    assert record.keys() == {"seed", "limits", "found", "date"}
    limits = dict(record["limits"])
    limits["without"] = frozenset(limits.pop("without", ()))
    result = run_seed(record["seed"], Limits(**limits))
    assert not result.violations, _output(result)


def test_seeds_are_kept() -> None:
    assert KEPT
