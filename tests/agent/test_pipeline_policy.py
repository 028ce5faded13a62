"""The modes of a node's learned policy: orders, restarts, fallbacks, damaged files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from hrm.errors import InvalidRequest
from hrm.pipelines.agent.policy import POLICY_FILE, AgentPolicies
from hrm.pipelines.policies.corun import GuardedNodePolicy, Stdm, load, load_guarded
from hrm.policies.guard import Doubt, GuardMode, Reason
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire


def agent(directory: Path) -> tuple[AgentPolicies, GuardedNodePolicy]:
    """Made as by an agent's start."""
    policy = load_guarded(
        "iawp",
        rng=np.random.default_rng(0),
        node="n1",
        estimates=Stdm(memory_mib=1000.0),
        sampled_at_s=lambda: None,
    )
    assert isinstance(policy, GuardedNodePolicy)
    return AgentPolicies(directory, policy), policy


def order(mode: str, number: int) -> pb.PolicyOrder:
    return pb.PolicyOrder(policy="iawp", mode=mode, order=number)


def test_an_order_is_followed_once_and_outlives_the_agent(tmp_path: Path) -> None:
    policies, policy = agent(tmp_path)
    policies.follow(order("on", 7))
    policies, policy = agent(tmp_path)
    assert policy.guard.status(0.0).mode is GuardMode.ON
    policy.guard.set_mode(GuardMode.SHADOW)
    policies.follow(order("on", 7))
    assert policy.guard.mode is GuardMode.SHADOW, "the same order, heard again"
    policies.follow(order("canary-1", 8))
    assert policy.guard.status(0.0).mode is GuardMode.CANARY_1


def test_a_fall_back_outlives_the_agent_and_the_order(tmp_path: Path) -> None:
    policies, policy = agent(tmp_path)
    policies.follow(order("on", 7))
    policy.guard._roll_back(100.0)
    (state,) = policies.changed(100.0)
    assert (state.mode, state.rolled_back_at_s) == ("shadow", 100.0)
    policies, policy = agent(tmp_path)
    policies.follow(order("on", 7))
    assert policy.guard.mode is GuardMode.SHADOW, "only people move it up"


def test_what_has_changed_is_reported_and_all_of_it_to_a_new_master(tmp_path: Path) -> None:
    policies, _ = agent(tmp_path)
    assert [one.policy for one in policies.changed(0.0)] == ["iawp"]
    assert policies.changed(0.0) == []
    policies.follow(order("off", 1))
    assert [one.mode for one in policies.changed(0.0)] == ["off"]
    assert len(policies.report(0.0)) == 1


def test_a_report_with_a_long_error_is_one_that_the_master_takes(tmp_path: Path) -> None:
    policies, policy = agent(tmp_path)
    policy.guard._count(Doubt(Reason.FAULT, "x" * 70_000))
    (state,) = policies.changed(0.0)
    assert policy_wire.to_report(state, "n1").last.startswith("fault: xxx")


def test_what_is_not_in_use_is_let_pass_and_no_mode_is_refused(tmp_path: Path) -> None:
    policies, policy = agent(tmp_path)
    policies.follow(pb.PolicyOrder(policy="other", mode="on", order=1))
    with pytest.raises(InvalidRequest, match="canary-10"):
        policies.follow(order("half", 1))
    assert policy.guard.mode is GuardMode.SHADOW
    plain = AgentPolicies(tmp_path, load("pats", rng=np.random.default_rng(0)))
    plain.follow(order("on", 2))
    assert plain.report(0.0) == []


@pytest.mark.parametrize("damage", ["{", "[]", '{"iawp": "on"}', '{"iawp": {"mode": "half"}}'])
def test_a_damaged_file_lets_it_begin_in_its_shadow(tmp_path: Path, damage: str) -> None:
    (tmp_path / POLICY_FILE).write_text(damage)
    with capture_logs() as logs:
        policies, policy = agent(tmp_path)
    assert policy.guard.mode is GuardMode.SHADOW
    assert [one["log_level"] for one in logs] == ["warning"]
    policies.follow(order("on", 7))
    assert policy.guard.mode is GuardMode.SHADOW, "it may have fallen back since that order"
    policies.follow(order("on", int(1e3 * time.time()) + 1_000))
    assert policy.guard.status(0.0).mode is GuardMode.ON, "said again"


def test_a_disk_that_refuses_does_not_hold_up_a_mode(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    policies, policy = agent(directory)
    with capture_logs() as logs:
        policies.follow(order("on", 1))
    assert policy.guard.mode is GuardMode.ON
    assert "cannot be kept" in logs[0]["event"]
    directory.mkdir()
    policies.follow(order("off", 2))
    assert json.loads((directory / POLICY_FILE).read_text()) == {
        "iawp": {"mode": "off", "order": 2}
    }
