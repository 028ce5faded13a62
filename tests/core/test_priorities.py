"""Queues in the order of classes: who goes first, what requests change, who is interrupted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hrm.core.master.explain import explain
from hrm.core.master.queue_report import queue_statuses
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.history import PriorityRecord
from hrm.core.vocabulary.model import (
    ApplicationId,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.priority_class import INTERRUPTIONS_MAX, priority_text
from hrm.errors import HrmError, InvalidRequest, LimitReached, NotFound
from hrm.testing.virtual import VirtualCluster, unit

CLASSES = spec_from("root.a", {"order": "classes"})
INTERRUPTING = spec_from("root.a", {"order": "classes", "interrupts": True})
BOUNDS = Bounds(queue_reclaim_wait_s=0.0, queue_preemption_part=1.0, queue_preemption_grace_s=1.0)
"""What waits may interrupt others at once, and these end soon."""


def cluster(
    *queues: QueueSpec, slots: int = 2, bounds: Bounds = BOUNDS, nodes: int = 1
) -> VirtualCluster:
    each = [unit(f"n{n}", vcores=slots // nodes, memory_mib=65_536) for n in range(nodes)]
    return VirtualCluster(each, queues=queues, bounds=bounds)


def ask(virtual: VirtualCluster, app: str, steps: int, by: str = "user ana") -> HrmError | None:
    """Why the request is refused; None: it is not."""
    call_id = virtual.next_call()
    virtual.submit_to_master(
        e.PriorityRequested(
            now=virtual.now, call_id=call_id, application_id=ApplicationId(app), steps=steps, by=by
        )
    )
    virtual.settle()
    reply = virtual.replies[call_id]
    return reply.error if isinstance(reply, c.Refuse) else None


def priority(virtual: VirtualCluster, app: ApplicationId) -> str:
    return priority_text(virtual.app(app).record.stands.tenths)


def line(virtual: VirtualCluster, queue: str = "root.a") -> list[ApplicationId]:
    """What waits in a queue, in order."""
    found = virtual.master.placement.queues.lines.get(queue)  # type: ignore[call-overload]
    return [] if found is None else [key[-1] for key in found.order]


def running(virtual: VirtualCluster, app: ApplicationId) -> int:
    return virtual.states(app).get("running", 0)


def why(virtual: VirtualCluster, app: ApplicationId) -> list[str]:
    summary, details = explain(virtual.master.master_state, virtual.app(app), virtual.now)
    return [summary, *details]


def again(virtual: VirtualCluster, *apps: ApplicationId, executors: int = 1) -> None:
    """As Spark does: what was preempted is requested again, under new ids."""
    for app in apps:
        state = virtual.app(app)
        lacks = executors - len([x for x in state.containers.values() if x.stop_cause is None])
        if lacks > 0 and not state.life.state.ended:
            first = state.last_executor_number + 1
            virtual.request(app, range(first, first + lacks))


def live(virtual: VirtualCluster, seconds: int, *apps: ApplicationId, executors: int = 1) -> None:
    for _ in range(seconds):
        again(virtual, *apps, executors=executors)
        virtual.advance(1)


def test_the_queue_vector_of_the_specification() -> None:
    """Two slots; seven tasks come, A to G, and end in another order."""
    virtual = cluster(INTERRUPTING)
    apps: dict[str, ApplicationId] = {}

    def there() -> str:
        live(virtual, 6, *apps.values())
        return "".join(name for name, app in apps.items() if running(virtual, app))

    def submitted(name: str, number: int) -> str:
        apps[name] = virtual.submit(1, queue="a", priority=number, name=name)
        return there()

    def ended(name: str) -> str:
        virtual.finish(apps.pop(name))
        return there()

    numbers = {"A": 1, "B": 2, "C": 3, "D": 4, "E": 5, "F": 5, "G": 5}
    history = [submitted(name, number) for name, number in numbers.items()]
    assert history == ["A", "AB", "AB", "AB", "AE", "EF", "EF"]
    assert [ended(name) for name in "EFGBADC"] == ["FG", "BG", "AB", "AD", "CD", "C", ""]


def test_requests_reorder_what_waits_at_once() -> None:
    virtual = cluster(CLASSES)
    virtual.submit(2, queue="a")
    virtual.settle()
    first, second, urgent = (virtual.submit(1, queue="a", priority=x) for x in (1, 1, 4))
    virtual.settle()
    assert line(virtual) == [urgent, first, second]

    assert ask(virtual, second, +1) is None
    assert line(virtual) == [urgent, second, first]
    assert ask(virtual, first, +2) is None
    assert line(virtual) == [urgent, first, second]
    assert ask(virtual, first, -2) is None
    assert line(virtual) == [urgent, second, first]
    assert priority(virtual, first) == "1.0 (normal)"


def test_enough_requests_make_it_urgent_and_the_first_of_its_queue() -> None:
    virtual = cluster(CLASSES)
    virtual.submit(2, queue="a")
    virtual.settle()
    urgent, normal = (virtual.submit(1, queue="a", priority=x) for x in (4, 3))
    virtual.settle()

    assert ask(virtual, normal, +1) is None
    assert priority(virtual, normal) == "4.0 (urgent)"
    assert line(virtual) == [urgent, normal]
    assert ask(virtual, normal, +1) is None
    assert priority(virtual, normal) == "4.0 (urgent)", "both were of one period: one conversion"
    virtual.advance(60)
    assert ask(virtual, normal, +1) is None
    assert line(virtual) == [normal, urgent]


def test_what_has_passed_and_has_no_place_comes_back_for_what_was_raised() -> None:
    """Two nodes of two slots, and executors of two: one slot is free on each, and nobody fits."""
    virtual = cluster(CLASSES, slots=4, nodes=2)
    small = [virtual.submit(1, queue="a") for _ in range(2)]
    virtual.settle()
    assert {running(virtual, x) for x in small} == {1}
    large = Resources(2, 1024)
    first, second = (virtual.submit(1, large, queue="a") for _ in range(2))
    virtual.settle()
    assert ask(virtual, second, +2) is None

    virtual.finish(small[0])
    virtual.advance(5)

    assert [running(virtual, x) for x in (first, second)] == [0, 1]


def test_the_order_of_numbers_and_of_submission_are_as_they_were() -> None:
    for order, expected in (("priority", "ba"), ("fifo", "ab")):
        virtual = cluster(spec_from("root.a", {"order": order, "guaranteed": "50%"}))
        virtual.submit(2, queue="default")
        virtual.submit(2, queue="a")
        virtual.settle()
        names = {virtual.submit(1, queue="a", priority=x): y for x, y in ((-100, "a"), (100, "b"))}
        virtual.settle()
        assert "".join(names.get(x, "") for x in line(virtual)) == expected


def test_a_request_is_refused_with_the_reason() -> None:
    fifo = spec_from("root.b", {})
    virtual = cluster(CLASSES, fifo)
    ended, there, highest = (virtual.submit(1, queue="a", priority=x) for x in (1, 1, 5))
    elsewhere = virtual.submit(1, queue="b")
    virtual.finish(ended)
    virtual.settle()

    refusals = {x: ask(virtual, x, +1) for x in (ended, "app-none", highest, elsewhere, there)}

    assert isinstance(refusals[ended], NotFound) and "has ended" in str(refusals[ended])
    assert isinstance(refusals["app-none"], NotFound)
    assert isinstance(refusals[highest], InvalidRequest)
    assert "hrm queue set root.b --order classes" in str(refusals[elsewhere])
    assert refusals[there] is None


def test_steps_are_bounded_for_an_application_and_for_a_user() -> None:
    bounds = replace(BOUNDS, priority_steps=5, priority_steps_per_user=8)
    virtual = cluster(CLASSES, bounds=bounds)
    mine = [virtual.submit(1, queue="a", user="ana") for _ in range(3)]
    other = virtual.submit(1, queue="a", user="bo")
    virtual.settle()

    assert ask(virtual, mine[0], +3) is None
    too_many = ask(virtual, mine[0], -3)
    assert isinstance(too_many, LimitReached) and "priority_steps" in str(too_many)
    assert ask(virtual, mine[0], -2) is None
    assert ask(virtual, mine[1], +3) is None
    of_user = ask(virtual, mine[2], +1)
    assert isinstance(of_user, LimitReached) and "priority_steps_per_user" in str(of_user)
    assert ask(virtual, other, +5) is None

    virtual.advance(60)
    assert ask(virtual, mine[2], +1) is None
    assert ask(virtual, mine[0], +5) is None


def test_what_waits_rises_to_the_top_of_its_class_and_no_further() -> None:
    virtual = cluster(CLASSES, bounds=replace(BOUNDS, priority_ageing_s=10.0))
    virtual.submit(2, queue="a")
    virtual.settle()
    old, raised = (virtual.submit(1, queue="a", priority=2) for _ in range(2))
    virtual.settle()
    assert ask(virtual, raised, +5) is None
    assert line(virtual) == [raised, old]

    virtual.advance(35)
    assert priority(virtual, old) == "2.3 (normal)"
    virtual.advance(300)

    assert {priority(virtual, x) for x in (old, raised)} == {"3.0 (normal)"}
    assert line(virtual) == [old, raised], "at the top of a class the first submitted goes first"
    late = virtual.submit(1, queue="a", priority=3)
    virtual.settle()
    assert line(virtual) == [old, raised, late], "nothing that comes later passes it within a class"


def test_what_runs_does_not_grow_old_and_is_not_disturbed_by_requests() -> None:
    virtual = cluster(INTERRUPTING, bounds=replace(BOUNDS, priority_ageing_s=5.0))
    apps = [virtual.submit(1, queue="a") for _ in range(2)]
    virtual.advance(30)

    assert ask(virtual, apps[0], +5) is None
    virtual.advance(30)

    assert [priority(virtual, x) for x in apps] == ["1.5 (normal)", "1.0 (normal)"]
    assert [running(virtual, x) for x in apps] == [1, 1]


def test_a_priority_survives_the_master() -> None:
    virtual = cluster(CLASSES)
    virtual.submit(2, queue="a")
    virtual.settle()
    app = virtual.submit(1, queue="a", priority=3)
    virtual.settle()
    assert ask(virtual, app, +1, by="user ana") is None

    virtual.restart_master()
    virtual.settle()

    assert priority(virtual, app) == "4.0 (urgent)"
    assert virtual.app(app).record.stands.by == "user ana"


def test_why_says_the_position_and_what_brought_it_there() -> None:
    virtual = cluster(CLASSES, bounds=replace(BOUNDS, priority_ageing_s=10.0))
    holder = virtual.submit(2, queue="a")
    virtual.settle()
    ahead, app = (virtual.submit(1, queue="a", priority=x) for x in (4, 1))
    virtual.settle()
    assert ask(virtual, app, +3, by="user ana") is None
    virtual.advance(12)

    lines = why(virtual, app)

    raised = "requests of +3 steps, the last by user ana, 1 step up for waiting"
    assert f"its priority is 1.4 (normal): declared as 1.0 (normal), {raised}" in lines
    assert "it waits at position 2 of 2 in root.a; streams go first" in lines
    assert any("position 1 of 2" in x for x in why(virtual, ahead))
    assert not any("position" in x for x in why(virtual, holder))


def test_one_that_is_killed_while_it_waits_leaves_the_queue() -> None:
    virtual = cluster(CLASSES)
    virtual.submit(2, queue="a")
    virtual.settle()
    first, second = (virtual.submit(3, queue="a", priority=x) for x in (4, 1))
    virtual.settle()

    call = virtual.next_call()
    virtual.submit_to_master(e.KillRequested(now=virtual.now, call_id=call, application_id=first))
    virtual.settle()

    assert line(virtual) == [second]
    assert not virtual.app(first).containers


def test_nothing_is_interrupted_where_the_queue_does_not_say_so() -> None:
    virtual = cluster(CLASSES)
    apps = [virtual.submit(1, queue="a") for _ in range(2)]
    virtual.settle()
    highest = virtual.submit(1, queue="a", priority=5)

    live(virtual, 20, *apps)

    assert [running(virtual, x) for x in (*apps, highest)] == [1, 1, 0]


def test_what_is_interrupted_is_recorded_and_goes_before_urgent_ones_afterwards() -> None:
    moves: list[object] = []
    virtual = VirtualCluster(
        [unit("n0", vcores=2, memory_mib=65_536)], queues=[INTERRUPTING], bounds=BOUNDS,
        watch=lambda move: moves.append((move[1], move[4])),
    )  # fmt: skip
    old, latest = (virtual.submit(1, queue="a") for _ in range(2))
    virtual.settle()
    highest = virtual.submit(1, queue="a", priority=5)
    live(virtual, 6, old, latest)
    assert [running(virtual, x) for x in (old, latest, highest)] == [1, 0, 1]
    assert (latest, PriorityRecord.INTERRUPTED) in moves
    urgent = virtual.submit(1, queue="a", priority=4)
    virtual.settle()
    assert any("it was interrupted" in x for x in why(virtual, latest))

    virtual.finish(highest)
    live(virtual, 6, old, latest)

    assert [running(virtual, x) for x in (old, latest, urgent)] == [1, 1, 0]
    assert virtual.app(latest).record.stands.owed == 0
    assert virtual.app(latest).record.stands.interruptions == 1


def test_the_highest_interrupts_where_it_could_wait_at_a_unit_of_which_nobody_else_wants_any() -> (
    None
):
    """Nothing but its own queue wants anything, and that has its share of cores: it passes. In the
    queue of a unit it would be returned, to claim, and be back there before it may."""
    virtual = cluster(INTERRUPTING, slots=16, bounds=replace(BOUNDS, queue_reclaim_wait_s=2.0))
    size = Resources(1, 1024, 1_000)
    virtual.add_node(
        ResourceUnit(
            unit_id=ResourceUnitId("n9/gpu0"), capacity=Resources(4, 8_192, 8_000), run_limit=2
        )
    )
    normal, highest = (virtual.submit(0, queue="a", priority=x) for x in (1, 5))
    for app, many in ((normal, 2), (highest, 1)):
        virtual.request(app, range(1, 1 + many), size, expected_duration_s=30.0)
        virtual.settle()
    virtual.advance(6)
    assert (running(virtual, normal), running(virtual, highest)) == (1, 1)
    assert virtual.app(highest).ended_ids == set(), "it has not been returned"


def test_streams_drivers_and_gangs_that_need_it_are_not_interrupted() -> None:
    virtual = cluster(INTERRUPTING, slots=6)
    stream = virtual.submit(1, queue="a", workload_class=WorkloadClass.STREAM)
    gang = virtual.submit(3, queue="a", gang_min=2)
    virtual.advance(3)
    driver = virtual.submit(1, queue="a", new_id=ApplicationId("driver-1"))
    batch = virtual.submit(1, queue="a")
    virtual.advance(3)
    held = {x: running(virtual, x) for x in (stream, gang, driver, batch)}
    assert sum(held.values()) == 6
    highest = virtual.submit(6, queue="a", priority=5)

    live(virtual, 30, stream, driver, batch)
    again(virtual, gang, executors=3)
    virtual.advance(10)

    assert running(virtual, stream) == 1
    assert running(virtual, driver) == 1
    assert running(virtual, gang) == 2
    assert running(virtual, batch) == 0
    assert running(virtual, highest) == 2


def test_no_application_is_interrupted_more_than_twice() -> None:
    virtual = cluster(INTERRUPTING)
    victim = virtual.submit(2, queue="a")
    virtual.settle()
    lost = 0
    for _ in range(INTERRUPTIONS_MAX + 2):
        highest = virtual.submit(1, queue="a", priority=5)
        live(virtual, 8, victim, executors=2)
        lost += running(virtual, victim) < 2
        virtual.finish(highest)
        live(virtual, 8, victim, executors=2)
        assert running(virtual, victim) == 2

    assert lost == INTERRUPTIONS_MAX
    assert virtual.app(victim).record.stands.interruptions == INTERRUPTIONS_MAX


def test_requests_at_random_starve_nobody_and_lose_nothing() -> None:
    """Six applications of two users come and are raised and lowered at random, as often as bounds
    allow; each runs in the end, and what is counted is what there is."""
    for seed in range(8):
        chance = random.Random(seed)
        bounds = replace(BOUNDS, priority_period_s=5.0, priority_ageing_s=8.0)
        virtual = cluster(INTERRUPTING, bounds=bounds)
        left = {
            virtual.submit(1, queue="a", user=chance.choice(["ana", "bo"]), priority=number): 4
            for number in (1, 1, 2, 3, 4, 5)
        }
        for _ in range(200):
            for app in list(left):
                if chance.random() < 0.3:
                    ask(virtual, app, chance.choice([-5, -2, -1, 1, 2, 5]))
            live(virtual, 1, *left)
            for app in [x for x in left if running(virtual, x)]:
                left[app] -= 1
                if not left[app]:
                    virtual.finish(app)
                    del left[app]
            if not left:
                break
        assert not left, seed
        virtual.settle()
        accounts = virtual.master.master_state.queues.accounts
        assert accounts is not None and accounts.root.wanted == (0.0, 0.0, 0.0)


def test_a_queue_is_shown_with_its_classes_and_where_each_stands() -> None:
    virtual = cluster(CLASSES)
    virtual.submit(2, queue="a", priority=2)
    virtual.settle()
    urgent, normal = (virtual.submit(1, queue="a", priority=x) for x in (4, 1))
    virtual.settle()

    gate = virtual.master.placement.queues
    found = next(
        x for x in queue_statuses(virtual.master.master_state, gate) if x.spec.name == "root.a"
    )

    counts = [(x.priority_class.value, x.applications, x.waiting) for x in found.classes]
    assert counts == [("urgent", 1, 1), ("normal", 2, 1)]
    assert [(x.application_id, x.position, x.tenths) for x in found.waiting] == [
        (urgent, 1, 40),
        (normal, 2, 10),
    ]


def test_what_preempts_nothing_is_not_stated_together_with_interrupts() -> None:
    with pytest.raises(ValueError, match="state one of the two"):
        spec_from("root.a", {"order": "classes", "interrupts": True, "preemptible": False})


@pytest.mark.parametrize("stated", [{"interrupts": True}, {"interrupts": True, "order": "fair"}])
def test_only_an_order_of_classes_interrupts(stated: dict[str, object]) -> None:
    with pytest.raises(ValueError, match='only with order = "classes"'):
        spec_from("root.a", stated)


@pytest.mark.parametrize("wanted", [1, 3, 6])
@pytest.mark.parametrize("schedulers", [1, 6])
def test_all_that_the_highest_requests_interrupts_at_the_default_pace(
    schedulers: int, wanted: int
) -> None:
    """The last one had passed the queue while its predecessors' victims were ending, and then
    waited for ever."""
    nodes = [unit(f"n{number}", vcores=2, memory_mib=65_536) for number in range(4)]
    cluster = VirtualCluster(nodes, queues=[INTERRUPTING], schedulers=schedulers)
    lower = cluster.submit(8, queue="a", name="lower")
    cluster.advance(10)
    highest = cluster.submit(wanted, queue="a", priority=5, name="highest")
    for _ in range(60):
        again(cluster, lower, executors=8)
        cluster.advance(1)
    assert running(cluster, highest) == wanted
    assert running(cluster, lower) == 8 - wanted
