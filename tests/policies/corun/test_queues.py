"""How long until a GPU is through, for policies that queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.pipeline.feasible import Limits
from hrm.policies.corun.queues import could_fit, gpu_wait_s, gpu_work_s
from tests.policies.corun.worlds import ONE_SLOT, Known, gpu, subtask

LOADED = Known(features={"edges": [0.4] * 8}, gpu_memory_mib={"edges": 3000.0})
ONE, FULL = subtask("edges"), gpu(0, running=["edges"])


def test_work_counts_with_the_load_or_at_least_a_slot() -> None:
    assert gpu_work_s(FULL, ONE.row, LOADED, ONE_SLOT) == 4.0
    assert gpu_work_s(FULL, ONE.row, LOADED, Limits()) == pytest.approx(0.4 * 4.0)
    assert gpu_work_s(FULL, ONE.row, Known(), Limits()) == pytest.approx(0.25 * 4.0)


def test_who_fits_does_not_wait() -> None:
    assert gpu_wait_s(FULL, ONE, LOADED, ONE_SLOT) == 4.0
    assert gpu_wait_s(FULL, ONE, LOADED, Limits()) == 0.0


def test_who_needed_more_than_estimated_is_charged_more() -> None:
    more = replace(ONE, gpu_memory_mib=7000.0)
    assert gpu_wait_s(FULL, more, LOADED, Limits()) == 4.0
    assert could_fit(FULL, more, LOADED, Limits())
    assert not could_fit(FULL, replace(ONE, gpu_memory_mib=7300.0), LOADED, Limits())
