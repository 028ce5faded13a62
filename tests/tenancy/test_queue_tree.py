"""The tree of queues: what may stand in it, and what each queue has of a cluster."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.tenancy.queue_spec import (
    DEFAULT_QUEUE,
    RECOVERED_QUEUE,
    ROOT,
    QueueName,
    QueueSpec,
    spec_from,
)
from hrm.core.tenancy.queue_tree import Governed, QueueTree, lineage

CLUSTER: Governed = (100.0, 1000.0, 400.0)


def tree(**stated: dict[str, Any]) -> QueueTree:
    """``a__b`` is ``root.a.b``."""
    names = {name: "root." + name.replace("__", ".") for name in stated}
    return QueueTree.of(spec_from(names[name], fields) for name, fields in stated.items())


def guaranteed(queues: QueueTree, name: str) -> Governed:
    return queues.limits(CLUSTER)[QueueName(name)].guaranteed


def test_without_anything_stated_one_queue_has_the_cluster() -> None:
    queues = QueueTree.of()
    assert list(queues.specs) == [ROOT, DEFAULT_QUEUE]
    assert queues.leaves == [DEFAULT_QUEUE]
    assert queues.stated == []
    assert not queues.governs
    assert guaranteed(queues, "root.default") == CLUSTER


def test_queues_on_the_way_need_not_be_stated() -> None:
    queues = tree(a__b__c={})
    assert [*queues.specs] == ["root", "root.a", "root.default", "root.a.b", "root.a.b.c"]
    assert queues.implied == {"root", "root.a", "root.a.b", "root.default"}
    assert queues.governs
    assert [spec.name for spec in queues.stated] == ["root.a.b.c"]
    assert lineage(QueueName("root.a.b.c")) == ["root", "root.a", "root.a.b", "root.a.b.c"]


def test_a_guarantee_in_parts_is_of_the_parent() -> None:
    queues = tree(a={"guaranteed": "50%"}, a__x={"guaranteed": "20%"}, a__y={}, b={})
    assert guaranteed(queues, "root.a") == (50, 500, 200)
    assert guaranteed(queues, "root.a.x") == (10, 100, 40)
    assert guaranteed(queues, "root.a.y") == (40, 400, 160), "what its sibling leaves"
    assert guaranteed(queues, "root.b") == (50, 500, 200)
    assert guaranteed(queues, "root.default") == (0, 0, 0)


def test_what_is_not_stated_is_divided_by_weight() -> None:
    queues = tree(a={"guaranteed": {"cores": 40}}, b={"weight": 2}, c={})
    assert [guaranteed(queues, f"root.{x}")[0] for x in "abc"] == [40, 40, 20]
    assert [guaranteed(queues, f"root.{x}")[1] for x in "abc"] == [250, 500, 250]


def test_amounts_of_which_there_is_less_are_reduced_alike() -> None:
    queues = tree(a={"guaranteed": {"cores": 150}}, b={"guaranteed": {"cores": 50}}, c={})
    assert [guaranteed(queues, f"root.{x}")[0] for x in "abc"] == [75, 25, 0]


def test_a_maximum_is_of_the_cluster_and_each_queues_own() -> None:
    queues = tree(a={"maximum": "50%"}, a__x={"maximum": "80%"}, a__y={"maximum": {"cores": 5}})
    amounts = queues.limits(CLUSTER)
    assert amounts[QueueName("root.a")].maximum == (50, 500, 200)
    assert amounts[QueueName("root.a.x")].maximum == (80, 800, 320)
    assert amounts[QueueName("root.a.y")].maximum == (5, math.inf, math.inf)


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        (
            {"a": {"guaranteed": "70%"}, "b": {"guaranteed": "40%"}},
            r"below root are guaranteed 110% of its cores together, more than all of it: "
            r"root.a 70%, root.b 40%",
        ),
        (
            {"a": {"guaranteed": {"cores": 8}}, "a__x": {"guaranteed": {"cores": 9}}},
            "below root.a are guaranteed 9 cores together, and root.a itself 8: root.a.x 9",
        ),
    ],
)
def test_guarantees_that_cannot_be_kept_are_refused(stated: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tree(**stated)


def test_a_queue_is_stated_once() -> None:
    spec = spec_from("root.a", {})
    with pytest.raises(ValueError, match=r"root\.a is stated twice"):
        QueueTree.of([spec, spec])


def test_a_queue_is_replaced_and_removed() -> None:
    queues = tree(a={"guaranteed": "50%"}, b={"guaranteed": "50%"})
    with pytest.raises(ValueError, match="more than all of it"):
        queues.with_queue(spec_from("root.c", {"guaranteed": "1%"}))
    smaller = queues.with_queue(spec_from("root.a", {"guaranteed": "10%"}))
    assert guaranteed(smaller, "root.a")[0] == 10
    without = smaller.changed([QueueName("root.a")], [])
    assert QueueName("root.a") not in without.specs
    assert QueueName("root.a") in smaller.specs, "a tree does not change"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("root.default", "root.default cannot be removed: applications without a queue go there"),
        ("root", "root cannot be removed"),
        ("root.a", "root.a has queues below it; remove these first: root.a.x"),
        ("root.z", r"there is no queue 'root.z'; there are .*root.a.x.* \(hrm queues lists all\)"),
    ],
)
def test_what_cannot_be_removed_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tree(a__x={}).changed([QueueName(name)], [])


def test_a_leaf_is_found_by_its_whole_name_and_by_its_end() -> None:
    queues = tree(a__x={}, a__y={}, b__y={})
    assert queues.find("root.a.x") == queues.find("a.x") == queues.find("x") == "root.a.x"
    assert queues.find("default") == "root.default", "as YARN's default names it"
    assert queues.find("y") is None, "two end so"
    assert queues.find("a") is None, "it takes no applications"
    assert queues.unknown("z").startswith("there is no queue 'z'; there are root.default, root.a.x")
    assert "has queues below it, and takes no applications; choose one: root.a.x" in queues.unknown(
        "root.a"
    )


def test_who_may_submit_may_so_for_all_queues_above() -> None:
    queues = tree(
        a={"submitters": ["ana", "bo"], "administrators": ["eve"]}, a__x={"submitters": ["ana"]},
        a__y={},
    )  # fmt: skip
    x, y = QueueName("root.a.x"), QueueName("root.a.y")
    assert [user for user in ("ana", "bo", "eve", "al") if queues.may_submit(x, user)] == [
        "ana", "eve",
    ]  # fmt: skip
    assert [user for user in ("ana", "bo", "eve", "al") if queues.may_submit(y, user)] == [
        "ana", "bo", "eve",
    ]  # fmt: skip
    assert queues.may_administer(x, "eve")
    assert not queues.may_administer(QueueName("root.default"), "eve")


def test_the_queue_of_lost_applications_is_there_once_it_is_needed() -> None:
    queues = tree(a={})
    recovered = queues.with_recovered()
    assert recovered.is_leaf(RECOVERED_QUEUE)
    assert guaranteed(recovered, RECOVERED_QUEUE) == (0, 0, 0)
    assert recovered.with_recovered() is recovered


NAMES = ["root.a", "root.a.x", "root.a.y", "root.b", "root.b.x", "root.c", "root"]
SPECS = st.fixed_dictionaries(
    {},
    optional={
        name: st.fixed_dictionaries(
            {},
            optional={
                "weight": st.floats(0.01, 100),
                **(
                    {}
                    if name == "root"
                    else {
                        "guaranteed": st.sampled_from(
                            ["0%", "10%", "30%", {"cores": 10}, {"cores": 70, "memory": "10m"}]
                        ),
                        "maximum": st.sampled_from(["30%", "100%", {"cores": 70, "memory": 500}]),
                    }
                ),
            },
        )
        for name in NAMES
    },
)
SIZES = st.tuples(*[st.floats(0, 1e6)] * 3)


@given(SPECS, SIZES)
def test_guarantees_fit_into_the_parents_whatever_the_size(
    stated: dict[str, Any], size: tuple[float, float, float]
) -> None:
    try:
        queues = QueueTree.of(spec_from(name, fields) for name, fields in stated.items())
    except ValueError:
        return  # a contradiction, which says so
    amounts = queues.limits(size)
    assert amounts.keys() == queues.specs.keys()
    for name, each in amounts.items():
        for which in range(3):
            assert 0 <= each.guaranteed[which] <= each.maximum[which] * (1 + 1e-9)
            below = queues.children.get(name, ())
            total = sum(amounts[child].guaranteed[which] for child in below)
            assert total <= each.guaranteed[which] * (1 + 1e-9) + 1e-9
    assert QueueTree.of(queues.stated).specs == queues.specs


def test_limits_alone_govern_too() -> None:
    assert tree(default={"max_running": 2}).governs
    assert QueueTree.of([QueueSpec(name=ROOT, max_running=3)]).governs


def test_queues_are_removed_from_below_and_made_together() -> None:
    queues = tree(a__x={"guaranteed": "60%"}, b={"guaranteed": "40%"})
    names = [QueueName("root.a.x"), QueueName("root.a")]
    made = [spec_from("root.b", {"guaranteed": "10%"}), spec_from("root.c", {"guaranteed": "90%"})]
    changed = queues.changed(names, made)
    assert {x.name for x in changed.stated} == {"root.b", "root.c"}
    with pytest.raises(ValueError, match=r"root\.a has queues below it; remove these first"):
        queues.changed(names[::-1], [])
    with pytest.raises(ValueError, match=r"there is no queue 'root\.a\.x'"):
        queues.changed([names[0], names[0]], [])
    with pytest.raises(ValueError, match="guaranteed 130% of its cores together"):
        queues.changed(names, [spec_from("root.c", {"guaranteed": "90%"})])


def test_the_queue_of_what_has_none_any_more_stays_a_leaf() -> None:
    with pytest.raises(ValueError, match=r"root\.recovered has no queues below it"):
        tree(recovered__a={})
