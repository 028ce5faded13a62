"""Up to which class of priority users of a queue may go."""

from __future__ import annotations

from typing import Any

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueSpec, spec_fields, spec_from
from hrm.core.vocabulary.model import ApplicationId
from hrm.core.vocabulary.priority_class import priority_text
from hrm.errors import HrmError, NotAllowed
from hrm.testing.virtual import VirtualCluster, unit

OPERATOR = ""


def cluster(*queues: QueueSpec) -> VirtualCluster:
    return VirtualCluster([unit("n0", 2)], queues=queues)


def classes(name: str = "root.a", **stated: Any) -> QueueSpec:
    return spec_from(name, {"order": "classes", **stated})


def submitted(
    virtual: VirtualCluster, priority: int, user: str = "ana", **more: Any
) -> HrmError | None:
    """Why a new application is refused; None: it is not."""
    call_id = virtual.next_call()
    registered = e.ApplicationRegistered(
        now=virtual.now,
        call_id=call_id,
        application_id=ApplicationId(""),
        submission_key=f"key-{call_id}",
        name="app",
        user=user,
        priority=priority,
        **{"queue": "a", **more},
    )
    virtual.submit_to_master(registered)
    virtual.settle()
    reply = virtual.replies[call_id]
    return reply.error if isinstance(reply, c.Refuse) else None


def asked(virtual: VirtualCluster, app: ApplicationId, steps: int, user: str) -> HrmError | None:
    """Why a request for another priority is refused; None: it is not."""
    call_id = virtual.next_call()
    virtual.submit_to_master(
        e.PriorityRequested(
            now=virtual.now, call_id=call_id, application_id=app, steps=steps, by="x", user=user
        )
    )
    virtual.settle()
    reply = virtual.replies[call_id]
    return reply.error if isinstance(reply, c.Refuse) else None


def text(virtual: VirtualCluster, app: ApplicationId) -> str:
    return priority_text(virtual.app(app).record.stands.tenths)


@pytest.mark.parametrize(
    ("most", "allowed"), [("normal", 3), ("urgent", 4), ("highest", 5), (None, 5)]
)
def test_numbers_above_what_a_queue_states_are_refused_with_what_to_type(
    most: str | None, allowed: int
) -> None:
    virtual = cluster(classes(**({} if most is None else {"maximum_class": most})))
    for priority in (-7, 0, 1, 2, 3, 4, 5, 99):
        error = submitted(virtual, priority)
        assert (error is None) == (min(priority, 5) <= allowed), priority
        if error is not None:
            assert isinstance(error, NotAllowed)
            assert f"set spark.hrm.priority to at most {allowed}" in error.message
            assert "hrm queue set root.a --maximum-class" in error.message


def test_the_whole_refusal() -> None:
    virtual = cluster(classes("root.a", maximum_class="urgent"))
    error = submitted(virtual, 5)
    assert error is not None
    assert error.message == (
        "priority 5 declares an application of the class highest, and in root.a ana may have at "
        "most urgent (maximum_class of root.a); set spark.hrm.priority to at most 4, or ask an "
        "administrator of root.a to submit it, or an operator to allow it: hrm queue set root.a "
        "--maximum-class highest"
    )


def test_what_is_stated_of_a_queue_counts_below_it_and_the_lowest_counts() -> None:
    virtual = cluster(
        spec_from("root", {"maximum_class": "urgent"}),
        classes("root.a", maximum_class="highest"),
        classes("root.b", maximum_class="normal"),
    )
    error = submitted(virtual, 5)
    assert error is not None
    assert "maximum_class of root)" in error.message
    assert submitted(virtual, 4) is None
    assert submitted(virtual, 4, queue="b") is not None


def test_the_queue_of_those_that_name_none_is_bounded_too() -> None:
    virtual = cluster(classes("root.default", maximum_class="normal"))
    assert submitted(virtual, 4, queue="") is not None
    assert submitted(virtual, 3, queue="") is None


def test_another_order_has_no_classes_to_bound() -> None:
    virtual = cluster(spec_from("root.a", {"order": "priority", "maximum_class": "normal"}))
    assert submitted(virtual, 99) is None


def test_administrators_of_the_queue_that_states_it_go_further() -> None:
    virtual = cluster(
        spec_from("root.team", {"maximum_class": "urgent", "administrators": ["eve"]}),
        classes("root.team.a", maximum_class="normal", administrators=["bo"]),
    )
    assert submitted(virtual, 5, "eve") is None, "of the queue, and of the one above it"
    assert submitted(virtual, 4, "bo") is None, "of the queue"
    assert submitted(virtual, 5, "bo") is not None, "not of the one above it"
    assert submitted(virtual, 4, "ana") is not None


def test_steps_do_not_lead_where_a_submission_may_not() -> None:
    virtual = cluster(classes(maximum_class="normal", administrators=["eve"]))
    virtual.submit(2, queue="a")
    mine, other, third = (virtual.submit(1, queue="a", priority=3, user="ana") for _ in range(3))
    error = asked(virtual, mine, +1, "ana")
    assert isinstance(error, NotAllowed)
    assert error.message == (
        f"{mine}: these steps would make it urgent, and applications of root.a may be normal "
        f"(maximum_class of root.a); request fewer, or ask an administrator of root.a or an "
        f"operator to request them"
    )
    assert text(virtual, mine) == "3.0 (normal)"
    assert asked(virtual, mine, -3, "ana") is None
    assert asked(virtual, mine, +2, "ana") is None
    assert text(virtual, mine) == "2.9 (normal)"
    assert asked(virtual, other, +1, "eve") is None
    assert asked(virtual, third, +1, OPERATOR) is None
    assert [text(virtual, x) for x in (other, third)] == ["4.0 (urgent)"] * 2
    assert asked(virtual, third, +1, "ana") is None, "it is urgent, and stays so"


def test_a_lower_bound_leaves_what_is_there_as_it_is() -> None:
    virtual = cluster(classes())
    app = virtual.submit(1, queue="a", priority=5)
    virtual.change_queues(classes(maximum_class="normal"))
    assert text(virtual, app) == "5.0 (highest)"
    assert submitted(virtual, 5) is not None
    virtual.restart_master()
    virtual.settle()
    assert text(virtual, app) == "5.0 (highest)"


def test_an_application_goes_on_with_the_class_of_its_driver() -> None:
    """The bound was lowered while the driver waited, or ran."""
    virtual = cluster(classes())
    driver = virtual.submit(
        1, queue="a", priority=5, new_id=ApplicationId("driver-20260101000000-0001")
    )
    virtual.change_queues(classes(maximum_class="normal"))
    assert submitted(virtual, 5, submission_id=driver) is None


def test_it_is_stated_and_kept_as_one_of_three_words() -> None:
    spec = classes(maximum_class="urgent")
    assert spec_from("root.a", spec_fields(spec)) == spec
    assert spec_fields(spec)["maximum_class"] == "urgent"
    for wrong in ("top", 5, None, True):
        with pytest.raises(ValueError, match="one of highest, urgent, normal"):
            classes(maximum_class=wrong)
