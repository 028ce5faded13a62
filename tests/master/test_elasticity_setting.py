"""Which policy of elasticity the master's settings choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm.config import MasterSettings
from hrm.core.elasticity.beta_rule import BetaRule
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.master.daemon import _elasticity
from hrm.policies.elasticity.guarded import GuardedElasticity
from hrm.policies.guard import GuardMode, GuardRegistry


@pytest.mark.parametrize("name", ["beta-rule", "beta-on-demand"])
def test_beta_rules_decide_alone(name: str, tmp_path: Path) -> None:
    guards = GuardRegistry({}, keep=lambda modes: None)
    given: dict[str, Any] = {"elasticity_policy": name, "state_dir": tmp_path}
    policy = _elasticity(MasterSettings(**given), guards)
    assert isinstance(policy, BetaRule)
    assert policy.name == name
    assert not guards.statuses(0.0)


def test_the_rule_of_speed_ups_decides_where_nothing_is_said(tmp_path: Path) -> None:
    guards = GuardRegistry({}, keep=lambda modes: None)
    assert isinstance(_elasticity(MasterSettings(state_dir=tmp_path), guards), SpeedUpRule)
    assert not guards.statuses(0.0)


def test_a_trained_policy_is_guarded_and_in_shadow_mode_at_first(tmp_path: Path) -> None:
    guards = GuardRegistry({}, keep=lambda modes: None)
    policy = _elasticity(MasterSettings(elasticity_policy="rlpto", state_dir=tmp_path), guards)
    assert isinstance(policy, GuardedElasticity)
    assert policy.guard.mode is GuardMode.SHADOW
    assert [status.policy for status in guards.statuses(0.0)] == ["rlpto"]


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    guards = GuardRegistry({}, keep=lambda modes: None)
    settings = MasterSettings(elasticity_policy="off", state_dir=tmp_path)
    assert _elasticity(settings, guards) is None
