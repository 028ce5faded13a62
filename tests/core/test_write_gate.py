"""What waits for the disk: intent, and all messages about it; nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from hrm.core.master import write_gate
from hrm.core.master.core import MasterCore
from hrm.core.master.write_gate import LEAVING, WRITES, WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerId,
    EndCause,
    NodeName,
)
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.errors import DiskFull, Unavailable
from hrm.policies.min_wait import MinWait

APP, OTHER = ApplicationId("app-1"), ApplicationId("app-2")
NODE = NodeName("n1")
RECORD = ApplicationRecord(application_id=APP, submission_key="k", name="n", user="u")
ADMITTED = c.Reply(
    call_id=1,
    result=c.ApplicationAdmitted(
        application_id=APP, epoch=1, containers=(), last_executor_number=0
    ),
)
TICK = e.Ticked(now=1.0)
OVER = c.EndApplication(state=ApplicationState.KILLED, message="")


FULL = DiskFull("the master is paused")


def made(*known: ApplicationId) -> WriteGate:
    """The gate of a master whose store has these applications, and the node ``NODE``."""
    records = [replace(RECORD, application_id=x, submission_key=f"of {x}") for x in known]
    return WriteGate(MasterCore(1, [MinWait(0)], records=records, known_nodes={NODE: "owner"}))


def registers(application_id: str = "") -> e.ApplicationRegistered:
    return e.ApplicationRegistered(
        now=1.0, call_id=1, application_id=ApplicationId(application_id), submission_key="k",
        name="n", user="u", declared_class=None,
    )  # fmt: skip


def stop(node: str = NODE) -> c.SendToNode:
    message = c.StopContainer(
        container_id=ContainerId("app-1-x1"), cause=EndCause.KILLED, reason="", grace_s=1.0
    )
    return c.SendToNode(node=NodeName(node), incarnation="1", message=message)


def notice(application_id: ApplicationId, what: Any = OVER) -> c.NotifyApplication:
    return c.NotifyApplication(application_id=application_id, notice=what)


def put(**changes: Any) -> c.PersistApplication:
    return c.PersistApplication(record=replace(RECORD, **changes))


def test_an_admission_waits_and_so_does_its_repetition() -> None:
    gate = made()
    passing, held = gate.take(registers(), [put()], [ADMITTED])
    assert (list(passing), held is not None) == ([], True)
    passing, held = gate.take(registers(), [], [ADMITTED])
    assert (list(passing), held is not None) == ([], True)
    assert [list(gate.release()), list(gate.release())] == [[ADMITTED], [ADMITTED]]
    assert gate.take(registers(), [], [ADMITTED]) == ([ADMITTED], None)


QUEUES = c.PersistQueues(stated=(spec_from("root.a", {}),))


def changes_queues(*, dry_run: bool = False) -> e.QueuesChanged:
    return e.QueuesChanged(now=1.0, call_id=1, stated=QUEUES.stated, create=True, dry_run=dry_run)


def test_a_change_of_queues_is_on_the_disk_before_its_reply() -> None:
    gate = made(APP)
    reply = c.Reply(call_id=1, result=c.QueueChangeCost())
    passing, held = gate.take(changes_queues(), [QUEUES], [reply, stop()])
    assert (list(passing), held is not None) == ([stop()], True), "orders do not wait for it"
    again = c.Reply(call_id=2, result=c.QueueChangeCost())
    assert list(gate.take(changes_queues(), [], [again])[0]) == [], "nor is it overtaken"
    assert list(gate.take(TICK, [], [notice(APP)])[0]) == [notice(APP)]
    assert [list(gate.release()), list(gate.release())] == [[reply], [again]]


def test_while_the_disk_is_full_queues_stay_as_they_are() -> None:
    gate = made()
    gate.pause(FULL)
    assert gate.refusal(changes_queues()) is FULL
    assert gate.refusal(changes_queues(dry_run=True)) is None


def test_what_may_be_learned_again_holds_nothing() -> None:
    gate = made(APP)
    for state in (ApplicationState.RUNNING, ApplicationState.DETACHED, ApplicationState.RUNNING):
        assert gate.take(TICK, [put(state=state)], [notice(APP)]) == ([notice(APP)], None)
    gone: list[Any] = [c.ForgetNode(node=NODE), c.ForgetApplication(application_id=OTHER)]
    assert gate.take(TICK, gone, [stop()]) == ([stop()], None)


def test_an_end_waits_and_its_containers_are_ended_at_once() -> None:
    gate = made(APP, OTHER)
    end = put(state=ApplicationState.KILLED)
    passing, held = gate.take(TICK, [end], [stop(), notice(APP)])
    assert list(passing) == [stop()]
    assert held is not None
    assert held.leaving == (notice(APP),)
    assert gate.take(TICK, [], [notice(OTHER)]) == ([notice(OTHER)], None), "others do not wait"
    passing, held = gate.take(TICK, [], [notice(APP), stop()])
    assert list(passing) == [stop()]
    assert held is not None, "what is said of it later comes later"


def test_a_node_is_sent_nothing_before_its_drain_is_written() -> None:
    gate = made()
    order = e.DrainRequested(now=1.0, call_id=2, nodes=(NODE,), undo=False)
    done = c.Reply(call_id=2, result=c.Done())
    passing, _ = gate.take(order, [c.RememberDrain(node=NODE)], [stop(), stop("n2"), done])
    assert list(passing) == [stop("n2")]
    assert list(gate.take(TICK, [], [stop()])[0]) == []
    assert list(gate.release()) == [stop(), done]
    assert list(gate.release()) == [stop()]


def test_a_reply_of_which_nothing_is_known_waits_for_all() -> None:
    gate = made()
    unknown = c.Reply(call_id=3, result=c.Done())
    assert gate.take(TICK, [], [unknown]) == ([unknown], None)
    gate.take(registers(), [put()], [ADMITTED])
    assert list(gate.take(TICK, [], [unknown])[0]) == []


def test_what_waits_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_gate, "HELD_MAX", 2)
    gate = made()
    for _ in range(2):
        gate.take(registers(), [put()], [ADMITTED])
    with pytest.raises(Unavailable, match="a disk that does not complete writes"):
        gate.take(registers(), [], [ADMITTED])
    passing, held = gate.take(TICK, [], [stop("another")])
    assert (len(passing), held) == (1, None), "what need not wait does not"


def test_a_pause_releases_the_callers_of_what_is_held() -> None:
    gate = made()
    gate.take(registers(), [put()], [ADMITTED, notice(APP)])
    assert gate.pause(FULL) == (c.Refuse(call_id=1, error=FULL),)
    again = replace(ADMITTED, call_id=2)
    passing, held = gate.take(registers(), [], [stop("another"), again])
    assert list(passing) == [stop("another"), c.Refuse(call_id=2, error=FULL)]
    assert held is not None
    assert list(gate.release()) == [ADMITTED, notice(APP)], "what is held stays"
    gate.resume()
    passing, _ = gate.take(registers(), [], [replace(ADMITTED, call_id=3)])
    assert list(passing) == [], "it waits for what is still held, and is not refused"


def node_registers(node: str, owner: str) -> e.NodeRegistered:
    return e.NodeRegistered(
        now=1.0, call_id=1, node=NodeName(node), identity="i", owner=owner, incarnation="1",
        sequence=1, host="h", endpoint="h:1", units=(), containers=(),
    )  # fmt: skip


ATTACHED = e.ApplicationAttached(now=1.0, call_id=1, application_id=APP, session=1, epoch=1)
KILL = e.KillRequested(now=1.0, call_id=1, application_id=APP, reason="")
DRAIN = e.DrainRequested(now=1.0, call_id=1, nodes=(NODE,), undo=False)


@pytest.mark.parametrize(
    ("event", "is_refused"),
    [
        (registers(), True),
        (registers(APP), False),
        (replace(registers(), submission_key=f"of {APP}"), False),
        (node_registers("another", "owner"), True),
        (node_registers(NODE, "owner"), False),
        (ATTACHED, False),
        (KILL, True),
        (DRAIN, True),
    ],
)
def test_a_paused_master_refuses_what_it_would_have_to_write(
    event: e.MasterEvent, is_refused: bool
) -> None:
    gate = made(APP)
    assert gate.refusal(event) is None
    gate.pause(FULL)
    assert (gate.refusal(event) is FULL) == is_refused
    gate.resume()
    assert gate.refusal(event) is None


def test_each_command_is_written_or_leaves_or_stays_inside() -> None:
    inside = {c.WakeScheduler, c.ProposeClaims}
    assert not LEAVING & WRITES
    assert set(get_args(c.MasterCommand)) - inside == LEAVING | WRITES
