"""Laws of interference from measured pairs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines.pair_laws import Pair, fit, laws_of, pairs_of
from hrm.errors import InvalidRequest
from hrm.pipelines.sim.profiles import K80


def test_a_law_is_found_again() -> None:
    rng = np.random.default_rng(3)
    agents = np.sort(rng.uniform(-1.0, 0.5, 12))
    pairs = [
        Pair("k80", f"job {v:02d}", f"job {p:02d}", 1.0 + math.exp(agents[p] - 0.5 * agents[v]))
        for v in range(12)
        for p in range(12)
    ]
    law = fit(pairs)
    assert law.explained == pytest.approx(1.0)
    assert law.ln_s[1] == pytest.approx(-0.5, abs=0.01)
    assert law.ln_a[1] == pytest.approx(agents[-1] - agents[0], rel=0.25)
    assert law.spread < 1e-6


def test_too_few_pairs_are_no_law() -> None:
    with pytest.raises(InvalidRequest, match="too few"):
        fit([Pair("k80", "a", "b", 1.2)])


def test_pairs_of_training_jobs_are_read(tmp_path: Path) -> None:
    jobs = {f"('Job {n} (batch size 8)', 1)": 10.0 * (n + 1) for n in range(4)}
    table = {
        job: {"null": alone, **{other: [alone / 2, jobs[other] / 4] for other in jobs}}
        for job, alone in jobs.items()
    }
    document = {"k80": table, "k80_unconsolidated": table}
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(document))
    pairs = pairs_of(tmp_path)
    assert len(pairs) == 16
    assert {one.slowdown for one in pairs} == {2.0}
    law = laws_of(pairs)[K80]
    assert math.exp(law.ln_a[0] + law.ln_s[0]) == pytest.approx(1.0, rel=0.05)
