"""The modes of a worker's learned policy: orders, fallbacks, reports."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun import GuardedNodePolicy, Stdm, load, load_guarded
from hrm.pipelines.worker.policy import WorkerPolicies
from hrm.policies.guard import Doubt, GuardMode, Reason
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire


def worker() -> tuple[WorkerPolicies, GuardedNodePolicy]:
    """Made as by a worker's start."""
    policy = load_guarded(
        "iawp",
        rng=np.random.default_rng(0),
        node="n1",
        estimates=Stdm(memory_mib=1000.0),
        sampled_at_s=lambda: None,
    )
    assert isinstance(policy, GuardedNodePolicy)
    return WorkerPolicies(policy), policy


def order(mode: str, number: int) -> pb.PolicyOrder:
    return pb.PolicyOrder(policy="iawp", mode=mode, order=number)


def test_it_begins_in_shadow_mode_and_follows_an_order_once() -> None:
    policies, policy = worker()
    assert policy.guard.mode is GuardMode.SHADOW
    policies.follow(order("on", 7))
    assert policy.guard.status(0.0).mode is GuardMode.ON
    policy.guard.set_mode(GuardMode.SHADOW)
    policies.follow(order("on", 7))
    assert policy.guard.mode is GuardMode.SHADOW, "the same order, heard again"
    policies.follow(order("canary-1", 8))
    assert policy.guard.status(0.0).mode is GuardMode.CANARY_1


def test_a_fall_back_outlives_the_order() -> None:
    policies, policy = worker()
    policies.follow(order("on", 7))
    policy.guard._roll_back(100.0)
    (state,) = policies.changed(100.0)
    assert (state.mode, state.rolled_back_at_s) == ("shadow", 100.0)
    policies.follow(order("on", 7))
    assert policy.guard.mode is GuardMode.SHADOW, "only people move it up"


def test_what_has_changed_is_reported_and_all_of_it_to_a_new_master() -> None:
    policies, _ = worker()
    assert [one.policy for one in policies.changed(0.0)] == ["iawp"]
    assert policies.changed(0.0) == []
    policies.follow(order("off", 1))
    assert [one.mode for one in policies.changed(0.0)] == ["off"]
    assert len(policies.report(0.0)) == 1


def test_a_report_with_a_long_error_is_one_that_the_master_takes() -> None:
    policies, policy = worker()
    policy.guard._count(Doubt(Reason.FAULT, "x" * 70_000))
    (state,) = policies.changed(0.0)
    assert policy_wire.to_report(state, "n1", 10).last.startswith("fault: xxx")


def test_what_is_not_in_use_is_let_pass_and_no_mode_is_refused() -> None:
    policies, policy = worker()
    policies.follow(pb.PolicyOrder(policy="other", mode="on", order=1))
    with pytest.raises(InvalidRequest, match="canary-10"):
        policies.follow(order("half", 1))
    assert policy.guard.mode is GuardMode.SHADOW
    plain = WorkerPolicies(load("pats", rng=np.random.default_rng(0)))
    plain.follow(order("on", 2))
    assert plain.report(0.0) == []
