"""Calls about queues: each field arrives, and what is malformed is refused with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.accounts import NOTHING
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec, spec_from
from hrm.core.tenancy.queue_status import (
    PlatformPart,
    QueueStatus,
    QueueWait,
    Supposition,
    WaitReason,
)
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.tenancy.waiting_times import WaitSummary
from hrm.core.vocabulary.model import ApplicationId, ContainerId, Resources
from hrm.errors import InvalidRequest, NotFound
from hrm.request_bounds import violation
from hrm.v1 import common_pb2
from hrm.v1 import queues_pb2 as pb
from hrm.wire import queues
from tests.tenancy.test_queue_spec import STATED

TREE = QueueTree.of(
    [
        spec_from("root.etl", {"guaranteed": {"cores": 16, "memory": "64g"}, "max_running": 4}),
        spec_from("root.ml.train", {"submitters": ["ana"], "weight": 2}),
        spec_from("root.ml.serve", {}),
        spec_from("root.x.serve", {}),
    ]
)


def changed(**fields: Any) -> e.QueuesChanged:
    return queues.to_change(pb.ChangeQueuesRequest(**fields), TREE, 5, 9.0)


@given(STATED)
def test_what_is_stated_arrives_as_it_is_shown(stated: dict[str, Any]) -> None:
    """What is shown of a queue, sent back, makes the same queue."""
    spec = spec_from("root.new", stated)
    sent = pb.ChangeQueuesRequest.FromString(
        pb.ChangeQueuesRequest(queues=[queues.from_spec(spec)], create=True).SerializeToString()
    )
    event = queues.to_change(sent, TREE, 5, 9.0)
    assert event == e.QueuesChanged(now=9.0, call_id=5, stated=(spec,), create=True)


def test_what_is_not_given_stays() -> None:
    (spec,) = changed(queues=[pb.QueueStated(name="etl", order="fair", weight=3)]).stated
    assert spec == spec_from(
        "root.etl",
        {"guaranteed": {"cores": 16, "memory": "64g"}, "max_running": 4, "order": "fair",
         "weight": 3},
    )  # fmt: skip
    less = pb.QueueStated(name="root.etl", guaranteed=pb.QueueQuota(cores="8"))
    (spec,) = changed(queues=[less], unset=["max_running"]).stated
    assert spec == spec_from("root.etl", {"guaranteed": {"cores": 8}})


def test_nobody_may_be_the_submitters() -> None:
    nobody = pb.QueueStated(name="root.etl", submitters=pb.QueueNames())
    (spec,) = changed(queues=[nobody]).stated
    assert spec.submitters == ()


def test_a_removal_names_queues_as_people_do() -> None:
    event = changed(removed=["train", "x.serve"], dry_run=True)
    assert event.removed == ("root.ml.train", "root.x.serve")
    assert event.dry_run


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({}, InvalidRequest, "name a queue to create, to change or to remove"),
        ({"dry_run": True}, InvalidRequest, "name a queue"),
        ({"removed": ["root.etx"]}, NotFound, "no queue root.etx; did you mean root.etl"),
        ({"removed": ["tarin"]}, NotFound, "did you mean root.ml.train"),
        ({"removed": ["serve"]}, NotFound, "several queues are called serve; write one whole"),
        ({"removed": ["\x1b[2J"]}, NotFound, r"no queue \\x1b\[2J; hrm queues lists"),
        ({"queues": [pb.QueueStated(name="root.q")]}, NotFound, "there is no queue root.q"),
        (
            {"queues": [pb.QueueStated(name="etl", order="lifo")]},
            InvalidRequest,
            "queue root.etl: order = 'lifo': one of fifo, fair, priority",
        ),
        (
            {"queues": [pb.QueueStated(name="root.A")], "create": True},
            InvalidRequest,
            "the queue 'root.A' has the part 'A'",
        ),
        (
            {"queues": [pb.QueueStated(name="etl", weight=float("nan"))]},
            InvalidRequest,
            "weight = 'nan': above 0",
        ),
        (
            {"queues": [pb.QueueStated(name="etl", max_running=-1)]},
            InvalidRequest,
            "max_running = '-1': a whole number",
        ),
        (
            {"queues": [pb.QueueStated(name="etl", maximum=pb.QueueQuota(memory="lots"))]},
            InvalidRequest,
            "memory is MiB or a size",
        ),
        (
            {"queues": [pb.QueueStated(name="etl")], "unset": ["wieght"]},
            InvalidRequest,
            "wieght is nothing that is stated of a queue; there are guaranteed, maximum, weight",
        ),
        (
            {"queues": [pb.QueueStated(name="etl")], "unset": ["name"]},
            InvalidRequest,
            "name is nothing that is stated",
        ),
        (
            {"queues": [pb.QueueStated(name="root.n")], "create": True, "unset": ["weight"]},
            InvalidRequest,
            "unset is for the change of one queue",
        ),
    ],
)
def test_what_is_malformed_is_refused(fields: dict[str, Any], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        changed(**fields)


def test_a_request_is_bounded() -> None:
    many = pb.ChangeQueuesRequest(removed=["root.a"] * 1_001)
    assert "removed has 1001 elements; at most 1000" in violation(many)
    long = pb.ChangeQueuesRequest(queues=[pb.QueueStated(name="q" * 1_025)])
    assert "queues.name has 1025 characters" in violation(long)
    users = pb.QueueNames(names=["u"] * 1_001)
    wide = pb.ChangeQueuesRequest(queues=[pb.QueueStated(submitters=users)])
    assert "queues.submitters.names has 1001 elements" in violation(wide)


def test_the_state_of_a_queue_is_shown() -> None:
    waits = tuple(
        QueueWait(
            application_id=ApplicationId(f"app-{number}"), user="ana", position=number,
            containers=2, reason=WaitReason.USER_LIMIT, why="ana holds her part",
        )
        for number in (1, 2, 3)
    )  # fmt: skip
    status = QueueStatus(
        spec=TREE.specs[QueueName("root.ml.train")], is_leaf=True, guaranteed=(1.0, 2.0, 3.0),
        maximum=(4.0, 5.0, 6.0), share=(7.0, 8.0, 9.0), used=(2.0, 2.0, 3.5),
        borrowed=(1.0, 0.0, 0.5), pending=(0.5, 0.0, 0.0), running=2, applications=5,
        past_use=0.25, waiting=waits[:2], waiting_total=3,
        platforms=(PlatformPart("new", 4, 3.0, 1.5), PlatformPart("old", 3, 0.0, 0.5)),
    )  # fmt: skip
    shown = queues.from_status(status, in_file=True)
    assert shown.stated == pb.QueueStated(
        name="root.ml.train", weight=2.0, submitters=pb.QueueNames(names=["ana"])
    )
    assert shown.borrowed == pb.QueueAmounts(cores=1.0, gpu_memory_mib=0.5)
    assert (shown.in_file, shown.running, shown.applications, shown.past_use) == (True, 2, 5, 0.25)
    assert (len(shown.waiting), shown.waiting_total) == (2, 3)
    assert shown.platforms[0] == pb.QueuePlatform(
        platform="new", cores=4, held_cores=3.0, affinity=1.5
    )
    assert [part.platform for part in shown.platforms] == ["new", "old"]
    assert shown.waiting[0] == pb.QueueWait(
        application_id="app-1", user="ana", position=1, containers=2, reason="user-limit",
        why="ana holds her part",
    )  # fmt: skip


def test_how_a_queue_was_served_is_shown_and_what_is_unknown_is_absent() -> None:
    waits = WaitSummary(
        p50_s=1.0, p90_s=2.0, p99_s=3.0, starts=4.0, buckets=(4, *[0] * 10), total_s=5.0
    )
    seen = LeafObservation(
        takes_part=True, throughput=0.5, entitled=8.0, held=6.0, speed=0.75, busy=0.25, waits=waits
    )
    status = QueueStatus(
        spec=TREE.specs[QueueName("root.etl")], is_leaf=True, guaranteed=NOTHING, maximum=NOTHING,
        share=NOTHING, used=NOTHING, borrowed=NOTHING, pending=NOTHING, running=0, applications=0,
        observed=seen, longest_wait_s=9.0,
    )  # fmt: skip

    shown = queues.from_status(status, in_file=False)

    assert shown.longest_wait_s == 9
    assert shown.observed == pb.QueueObserved(
        takes_part=True, throughput=0.5, entitled_cores=8, held_cores=6, speed=0.75, busy=0.25,
        wait_p50_s=1, wait_p90_s=2, wait_p99_s=3, starts=4,
    )  # fmt: skip
    unknown = replace(
        seen, takes_part=False, throughput=None, speed=None, busy=None,
        waits=replace(waits, p50_s=None, p90_s=None, p99_s=None),
    )  # fmt: skip
    for each in (unknown, replace(unknown, waits=None)):
        found = queues.from_status(replace(status, observed=each), in_file=False).observed
        present = {field.name for field, _ in found.ListFields()}
        assert present <= {"entitled_cores", "held_cores", "starts"}
    assert not queues.from_status(replace(status, observed=None), in_file=False).HasField(
        "observed"
    )


def test_the_fairness_between_queues_is_shown() -> None:
    summary = FairnessSummary(
        half_life_s=600.0, queues=2, with_speeds=1, fairness=0.5, jain=0.8, spread=3.0
    )
    assert queues.from_fairness(summary) == pb.QueueFairness(
        half_life_s=600, queues=2, with_speeds=1, fairness=0.5, jain=0.8, spread=3
    )
    none = queues.from_fairness(FairnessSummary(half_life_s=600.0))
    assert {field.name for field, _ in none.ListFields()} == {"half_life_s"}


def test_the_cost_of_a_change_is_shown_with_what_the_file_states() -> None:
    etl, train = QueueName("root.etl"), QueueName("root.ml.train")
    change = e.QueuesChanged(
        now=1.0, call_id=1, stated=(QueueSpec(name=etl, weight=2.0),), removed=(train,)
    )
    cost = c.QueueChangeCost(
        preempted=(ContainerId("app-1-x1"),), held_back=(ApplicationId("app-2"),)
    )
    assert queues.from_change(change, cost, {train}) == pb.ChangeQueuesResponse(
        preempted_containers=["app-1-x1"],
        held_back_applications=["app-2"],
        in_file=["root.ml.train"],
        queues=[pb.QueueStated(name="root.etl", weight=2.0)],
    )


def test_what_is_below_a_queue() -> None:
    ml = QueueName("root.ml")
    assert [x for x in TREE.specs if queues.is_below(x, ml)] == [
        "root.ml", "root.ml.serve", "root.ml.train",
    ]  # fmt: skip
    assert not queues.is_below("root.mlx", ml)


def test_a_supposition_has_what_is_asked() -> None:
    resources = common_pb2.Resources(vcores=2, memory_mib=1024)
    asked = pb.WhatIfRequest(queue="etl", executors=3, resources=resources, user="ana")
    assert queues.to_supposition(asked) == Supposition(
        queue="etl", executors=3, resources=Resources(2, 1024), user="ana"
    )
    asked.user = "u" * 1_025
    assert "user has 1025 characters" in violation(asked)
    for executors in (0, 10_001):
        with pytest.raises(InvalidRequest, match="executors"):
            queues.to_supposition(pb.WhatIfRequest(executors=executors, resources=resources))
