"""The oracle distinguishes a container that delays a waiter from one that passes without delay.

Runs of the simulator have few batch waiters that others could pass, so the bug is planted here
under a list of events.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.queue.reservation import Reservation
from hrm.core.vocabulary.model import ContainerId, ContainerSpec, NodeName, WorkloadClass
from hrm.sim.oracle.overtaking import Overtaking, held_up
from hrm.testing.virtual import unit
from tests.core.test_lasting_preemption import spec

EVENTS = [("runs", 2, 100.0), ("waits", 4, 50.0), ("short", 1, 60.0), ("long", 1, 5000.0)]


def timed(name: str, vcores: int, length_s: float) -> ContainerSpec:
    made = spec(name, WorkloadClass.BATCH, vcores, "n1/cpu")
    return replace(made, expected_duration_s=length_s)


def violations_of(core: NodeCore) -> list[str]:
    found: list[str] = []
    oracle = Overtaking(found.append)
    for number, each in enumerate(EVENTS):
        event = e.AssignReceived(now=float(number), epoch=1, spec=timed(*each))
        oracle.after(core, core.handle(event), event.now)
    return found


def core_of(vcores: int) -> NodeCore:
    return NodeCore(NodeName("n1"), (unit("n1", vcores=vcores),))


def test_the_core_as_it_is_delays_nothing() -> None:
    core = core_of(4)
    assert violations_of(core) == []
    (queue,) = core.units.values()
    assert set(queue.running) == {"runs", "short"}
    long = queue.batch_waiting[ContainerId("long")]
    assert held_up(queue, long)
    queue.remove(ContainerId("waits"))
    assert not held_up(queue, long), "it waits for nobody now, and should have started"


def test_a_forgotten_reservation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservation, "allows", lambda *_: True)
    (found,) = violations_of(core_of(4))
    assert found.startswith("long started before waits")


def test_passing_next_to_a_waiter_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservation, "allows", lambda *_: True)
    assert violations_of(core_of(5)) == []
