"""Which queue an application goes to."""

from __future__ import annotations

from typing import Any

import pytest

from hrm.core.tenancy.queue_rules import QueueRefusal, QueueRule, place, rule_from
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.tenancy.queue_tree import QueueTree

QUEUES = QueueTree.of(
    spec_from(name, fields)
    for name, fields in {
        "root.etl": {},
        "root.users.ana-b": {},
        "root.ops": {"submitters": ["eve"]},
        "root.ml.train": {},
    }.items()
)


def placed(*rules: dict[str, str], asked: str = "", user: str = "bo", **about: Any) -> str:
    return place(QUEUES, map(rule_from, rules), asked=asked, user=user, **about)


def test_the_queue_that_it_names_comes_first() -> None:
    rule = {"user": "*", "queue": "root.etl"}
    assert placed(rule, asked="train") == "root.ml.train"
    assert placed(rule) == "root.etl"
    assert placed() == "root.default"


def test_the_first_rule_that_fits_counts() -> None:
    rules = (
        {"tag": "nightly", "queue": "root.etl"},
        {"group": "ops", "queue": "root.ops"},
        {"group": "*", "queue": "root.{group}"},
        {"name": "report", "queue": "root.ml.train"},
        {"user": "*", "queue": "root.users.{user}"},
    )
    assert placed(*rules, tags=["x", "nightly"]) == "root.etl"
    assert placed(*rules, user="eve", groups=["staff", "ops"]) == "root.ops"
    assert placed(*rules, groups=["ops"]) == "root.default", "it is not open to bo"
    assert placed(*rules, groups=["staff", "etl"]) == "root.etl", "the first group with a queue"
    assert placed(*rules, name="report") == "root.ml.train"
    assert placed(*rules, user="Ana.B") == "root.users.ana-b"


def test_a_queue_that_it_may_not_use_is_refused() -> None:
    with pytest.raises(QueueRefusal, match=r"bo may not submit to root\.ops; name another") as no:
        placed(asked="ops")
    assert no.value.denied
    with pytest.raises(QueueRefusal, match=r"there is no queue 'root\.opps'") as unknown:
        placed(asked="root.opps")
    assert not unknown.value.denied


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            "nightly",
            "several queues are called nightly; write one whole: root.a.nightly, root.b.nightly",
        ),
        (
            "etl",
            "root.etl has queues below it, and takes no applications; choose one: "
            "root.etl.y, root.etl.x.deep",
        ),
        ("x", "root.etl.x has queues below it, and takes no applications; choose one: root.etl.x"),
        ("nigthly", "did you mean root.b.nightly or root.a.nightly? (hrm queues lists all)"),
        ("a.nigthly", "did you mean root.a.nightly"),
        ("root.etl.yy", "did you mean root.etl.y"),
        ("q" * 100_000, "there are root.default, root.a.nightly"),
    ],
)
def test_a_name_that_is_none_of_a_queue_for_applications_says_what_to_write(
    asked: str, why: str
) -> None:
    names = ("root.a.nightly", "root.b.nightly", "root.etl.x.deep", "root.etl.y")
    queues = QueueTree.of(spec_from(name, {}) for name in names)
    with pytest.raises(QueueRefusal) as refused:
        place(queues, (), asked=asked, user="bo")
    assert why in str(refused.value)


def test_a_closed_default_queue_refuses_what_no_rule_places() -> None:
    closed = QueueTree.of([spec_from("root.default", {"submitters": ["ana"]})])
    with pytest.raises(QueueRefusal, match="no queue is for bo by itself") as no:
        place(closed, (), asked="", user="bo")
    assert no.value.denied
    divided = QueueTree.of([spec_from("root.default.a", {})])
    with pytest.raises(QueueRefusal, match=r"root\.default has queues below it"):
        place(divided, (), asked="", user="bo")


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"user": "ana"},
        {"queue": "root.a"},
        {"user": "ana", "group": "b", "queue": "root.a"},
        {"user": "ana", "queue": "root.a", "weight": 1},
        {"user": 3, "queue": "root.a"},
        {"user": "", "queue": "root.a"},
        {"user": "ana", "queue": "q" * 300},
    ],
)
def test_a_rule_that_is_none_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r'user = "ana", queue = "root\.ana"'):
        rule_from(stated)


def test_a_rule_is_read() -> None:
    assert rule_from({"group": "*", "queue": "root.{group}"}) == QueueRule(
        "group", "*", "root.{group}"
    )


@pytest.mark.parametrize("queue", ["root.{user", "root.{}", "root.{x}", "root.{user.real}"])
def test_a_rule_with_a_malformed_queue_is_refused_when_it_is_read(queue: str) -> None:
    with pytest.raises(ValueError, match=r"its queue .* alone may stand in it"):
        rule_from({"user": "*", "queue": queue})
