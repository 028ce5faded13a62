"""The log of placements on disk: written while it changes, and read back by the trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from hrm.pipelines.core.model import TaskId
from hrm.pipelines.master import placements
from hrm.pipelines.master.placements import KeptPlacements
from hrm.pipelines.policies.cluster import load
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.policies.cluster.placement_log import read_records
from tests.policies.cluster.views import all_fit, set_model, task_of, view_of


async def test_what_is_new_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "_SAVE_PERIOD_S", 0.0)
    rng = np.random.default_rng(0)
    policy = load("ldwp-set", rng=rng, model=set_model(), clock_s=lambda: 0.0)
    assert isinstance(policy, GuardedClusterPolicy)
    kept = KeptPlacements(policy, tmp_path)
    path = tmp_path / "policies" / "ldwp-set.placements.npz"
    kept.save_if_due()
    assert not path.exists(), "there is nothing to write"
    view = view_of(4)
    for number in range(3):
        policy.choose(task_of(number), view, all_fit(view))
        policy.ended(TaskId(f"task-{number}"), now=1.0, response_s=9.0, ok=True)
        kept.save_if_due()
        assert kept._writing is not None
        await asyncio.wait_for(kept._writing, 10.0)
        assert len(read_records(path)) == number + 1


def test_a_heuristic_keeps_no_log(tmp_path: Path) -> None:
    kept = KeptPlacements(load("min-wait", rng=np.random.default_rng(0)), tmp_path)
    kept.save_if_due()
    assert kept._writing is None and not list(tmp_path.iterdir())
