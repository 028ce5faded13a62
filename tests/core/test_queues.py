"""Queues of applications on the production master, in virtual time."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.master.queue_report import queue_statuses
from hrm.core.master.queue_whatif import what_if
from hrm.core.messages import commands as c
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.tenancy.queue_status import QueueStatus, Supposed, Supposition, WaitReason
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, ApplicationState, Resources, WorkloadClass
from hrm.errors import AlreadyExists, InvalidRequest, NotAllowed, NotFound
from hrm.testing.virtual import VirtualCluster, unit

HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))
WIDE = Resources(3, 1024)


def cluster(
    *queues: QueueSpec, nodes: int = 4, schedulers: int = 2, **others: object
) -> VirtualCluster:
    units = [unit(f"n{number}", 4) for number in range(nodes)]
    return VirtualCluster(units, schedulers=schedulers, queues=queues, **others)  # type: ignore[arg-type]


def request_again(virtual: VirtualCluster, *apps: ApplicationId, executors: int) -> None:
    """As Spark does: what was preempted is requested again, under new ids."""
    for app in apps:
        state = virtual.app(app)
        lacks = executors - len(state.containers)
        if lacks > 0 and not state.life.state.ended:
            first = state.last_executor_number + 1
            virtual.request(app, range(first, first + lacks))


def live(virtual: VirtualCluster, seconds: int, *apps: ApplicationId, executors: int = 40) -> None:
    for _ in range(seconds):
        request_again(virtual, *apps, executors=executors)
        virtual.advance(1)


def running(virtual: VirtualCluster, app: ApplicationId) -> int:
    return virtual.states(app).get("running", 0)


def preempted(virtual: VirtualCluster) -> int:
    return virtual.master.placement.reclaim.preempted


def status(virtual: VirtualCluster, name: str) -> QueueStatus:
    found = queue_statuses(virtual.master.master_state, virtual.master.placement.queues)
    return next(x for x in found if x.spec.name == name)


def why(virtual: VirtualCluster, app: ApplicationId) -> str:
    return explain(virtual.master.master_state, virtual.app(app), virtual.now)[0]


def test_one_that_is_alone_borrows_everything_and_waits_at_units() -> None:
    virtual = cluster(*HALVES)

    app = virtual.submit(40, queue="a")
    virtual.advance(3)

    assert running(virtual, app) == 16
    assert not any(x.withheld for x in virtual.app(app).containers.values())


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_what_is_borrowed_comes_back_for_a_guarantee(schedulers: int) -> None:
    virtual = cluster(*HALVES, schedulers=schedulers)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    other = virtual.submit(40, queue="b")
    live(virtual, 60, one, other)

    assert (running(virtual, one), running(virtual, other)) == (8, 8)
    assert preempted(virtual) == 8


def test_nothing_goes_back_and_forth() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)
    other = virtual.submit(40, queue="b")
    live(virtual, 30, one, other)
    before = preempted(virtual)

    live(virtual, 600, one, other)

    assert preempted(virtual) == before


def test_no_queue_falls_below_its_guarantee() -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": {"cores": 10}}),
        spec_from("root.b", {"guaranteed": {"cores": 5}}),
    )
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    other = virtual.submit(40, WIDE, queue="b")
    for _ in range(60):
        virtual.advance(1)
        assert running(virtual, one) >= 10

    assert running(virtual, other) == 1, "a second of three cores would need more than is lent"


def test_without_preemption_natural_ends_restore_the_shares() -> None:
    virtual = cluster(*HALVES, bounds=Bounds(queue_preemption=False), run_s=20.0)
    one = virtual.submit(200, queue="a")
    virtual.advance(10)

    other = virtual.submit(200, queue="b")
    live(virtual, 60, one, other, executors=200)

    assert preempted(virtual) == 0
    assert (running(virtual, one), running(virtual, other)) == (8, 8)


def test_what_one_queue_leaves_goes_to_others_by_weight() -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": {"cores": 4}}),
        spec_from("root.b", {"guaranteed": {"cores": 0}, "weight": 3}),
        spec_from("root.c", {"guaranteed": {"cores": 0}, "weight": 1}),
        run_s=10.0,
    )
    apps = [virtual.submit(200, queue=name) for name in "abc"]

    live(virtual, 60, *apps, executors=200)

    # 4 first; of the other 12, as root.a has weight 1: 12 x 1/5, 12 x 3/5, 12 x 1/5.
    assert sum(running(virtual, app) for app in apps) == 16
    assert running(virtual, apps[1]) in (7, 8)
    assert running(virtual, apps[2]) in (2, 3)


def test_a_newcomer_without_guarantee_waits_for_ends() -> None:
    virtual = cluster(spec_from("root.a", {"guaranteed": "100%"}))
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    other = virtual.submit(4, queue="root.default")
    live(virtual, 30, one)

    assert preempted(virtual) == 0
    assert running(virtual, other) == 0
    assert "root.default holds its share" in why(virtual, other)


def test_free_capacity_is_lent_whatever_the_shares_are() -> None:
    """The other queue's containers are too large for what is free."""
    virtual = cluster(*HALVES, nodes=2)
    virtual.submit(2, WIDE, queue="a")
    virtual.advance(2)
    virtual.submit(8, Resources(4, 1024), queue="a")
    virtual.advance(2)

    small = virtual.submit(8, queue="b")
    virtual.advance(5)

    assert running(virtual, small) == 2


@pytest.mark.parametrize("maximum", [1, 3, 7])
def test_a_maximum_holds_on_an_empty_cluster(maximum: int) -> None:
    virtual = cluster(
        spec_from("root.a.x", {}), spec_from("root.a", {"maximum": {"cores": maximum}})
    )

    app = virtual.submit(40, queue="root.a.x")
    virtual.advance(10)

    assert running(virtual, app) == maximum
    assert "root.a holds as much as it may" in why(virtual, app)


def test_as_many_applications_run_as_may() -> None:
    virtual = cluster(spec_from("root.a", {"max_running": 2}))
    apps = [virtual.submit(1, queue="a") for _ in range(3)]
    virtual.advance(3)
    assert [running(virtual, app) for app in apps] == [1, 1, 0]
    assert "max_running = 2" in why(virtual, apps[2])

    virtual.finish(apps[0])
    virtual.advance(3)

    assert running(virtual, apps[2]) == 1


def test_the_first_application_goes_first() -> None:
    virtual = cluster(*HALVES, run_s=5.0)
    rival = virtual.submit(200, queue="b")
    first, second = (virtual.submit(12, queue="a") for _ in range(2))

    virtual.advance(3)

    assert running(virtual, rival) == 8
    assert (running(virtual, first), running(virtual, second)) == (8, 0)
    waiting = status(virtual, "root.a").waiting
    assert [(x.application_id, x.position) for x in waiting] == [(first, 1), (second, 2)]


def test_a_fair_order_serves_applications_alike() -> None:
    queues = (spec_from("root.a", {"guaranteed": "50%", "order": "fair"}), HALVES[1])
    virtual = cluster(*queues, run_s=10.0)
    rival = virtual.submit(40, queue="b")
    virtual.settle()
    apps = [virtual.submit(40, queue="a") for _ in range(2)]

    live(virtual, 60, rival, *apps)

    assert [running(virtual, app) for app in apps] == [4, 4]


def test_a_higher_priority_goes_first() -> None:
    queues = (spec_from("root.a", {"guaranteed": "50%", "order": "priority"}), HALVES[1])
    virtual = cluster(*queues)
    virtual.submit(200, queue="b")
    virtual.settle()
    low = virtual.submit(6, queue="a", priority=1)
    high = virtual.submit(6, queue="a", priority=5)

    live(virtual, 40)

    assert running(virtual, high) >= running(virtual, low)
    assert running(virtual, high) + running(virtual, low) == 8


def test_users_have_their_parts() -> None:
    queues = (spec_from("root.a", {"guaranteed": "50%", "minimum_user_limit": 0.5}), HALVES[1])
    virtual = cluster(*queues)
    rival = virtual.submit(200, queue="b")
    ana = virtual.submit(20, queue="a", user="ana")
    bo = virtual.submit(20, queue="a", user="bo")

    live(virtual, 60, rival, ana, bo, executors=20)

    assert running(virtual, ana) + running(virtual, bo) == 8
    assert running(virtual, bo) >= 1


def test_a_user_holds_no_more_than_the_factor() -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": "50%", "user_limit_factor": 0.5}), HALVES[1]
    )

    app = virtual.submit(40, queue="a", user="ana")
    virtual.advance(5)

    assert running(virtual, app) == 4
    assert "user_limit_factor" in why(virtual, app)


def test_a_gang_passes_whole() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    gang = virtual.submit(8, queue="b", gang_min=8)
    seen = set()
    for _ in range(60):
        live(virtual, 1, one)
        seen.add(running(virtual, gang))

    assert running(virtual, gang) == 8
    assert preempted(virtual) == 8


def test_a_gang_beyond_the_guarantee_preempts_nothing() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    gang = virtual.submit(9, queue="b", gang_min=9)
    live(virtual, 60, one)

    assert preempted(virtual) == 0
    assert running(virtual, gang) == 0
    assert running(virtual, one) == 16


def test_a_stream_goes_before_batch_of_its_queue_and_of_no_other() -> None:
    virtual = cluster(*HALVES)
    batch = virtual.submit(40, queue="a")
    other = virtual.submit(40, queue="b")
    live(virtual, 30, batch, other)

    stream = virtual.submit(4, queue="a", workload_class=WorkloadClass.STREAM)
    for _ in range(60):
        live(virtual, 1, batch, other)
        assert running(virtual, other) == 8

    assert running(virtual, stream) == 4
    assert running(virtual, batch) == 4


def test_one_that_may_not_be_preempted_keeps_what_it_has() -> None:
    queues = (spec_from("root.a", {"guaranteed": "50%", "preemptible": False}), HALVES[1])
    virtual = cluster(*queues)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    virtual.submit(40, queue="b")
    live(virtual, 60, one)

    assert running(virtual, one) == 16


def test_siblings_share_before_cousins() -> None:
    """What root.x has is divided among its children; root.y keeps its guarantee."""
    virtual = cluster(
        spec_from("root.x", {"guaranteed": "50%"}),
        spec_from("root.x.a", {"guaranteed": "50%"}),
        spec_from("root.x.b", {"guaranteed": "50%"}),
        spec_from("root.y", {"guaranteed": "50%"}),
    )
    cousin, one = virtual.submit(40, queue="root.y"), virtual.submit(40, queue="root.x.a")
    live(virtual, 40, cousin, one)
    assert (running(virtual, cousin), running(virtual, one)) == (8, 8)

    other = virtual.submit(40, queue="root.x.b")
    for _ in range(60):
        live(virtual, 1, cousin, one, other)
        assert running(virtual, cousin) == 8

    assert (running(virtual, one), running(virtual, other)) == (4, 4)


def test_a_master_that_restarts_knows_what_queues_hold() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)
    virtual.restart_master()
    for node in virtual.nodes.values():
        virtual.register(node)
    virtual.advance(12)

    assert status(virtual, "root.a").used[0] == 16
    assert status(virtual, "root.a").borrowed[0] == 8
    assert virtual.app(one).record.queue == "root.a"


def test_an_application_whose_queue_is_gone_goes_to_the_recovered() -> None:
    virtual = cluster(*HALVES)
    app = virtual.submit(2, queue="a")
    virtual.disk.queues = (HALVES[1],)

    virtual.restart_master()
    virtual.advance(1)

    assert virtual.app(app).record.queue == "root.recovered"
    assert any(x.name == "root.recovered" for x in virtual.disk.queues)


def test_rules_place_what_names_no_queue() -> None:
    rules = (
        QueueRule("tag", "night", "root.b"),
        QueueRule("user", "*", "root.users.{user}"),
        QueueRule("user", "ana", "root.a"),
    )
    virtual = cluster(*HALVES, spec_from("root.users.cy", {}), queue_rules=rules)

    found = [
        virtual.app(virtual.submit(1, user=user, tags=tags)).record.queue
        for user, tags in (("ana", ()), ("ana", ("night",)), ("cy", ()), ("bo", ()))
    ]

    assert found == ["root.a", "root.b", "root.users.cy", "root.default"]


def refusal(virtual: VirtualCluster, *stated: QueueSpec, **how: object) -> c.Refuse:
    before = virtual.master.queues.tree
    reply = virtual.change_queues(*stated, **how)  # type: ignore[arg-type]
    assert isinstance(reply, c.Refuse), reply
    assert virtual.master.queues.tree is before
    return reply


def test_a_queue_in_use_is_not_removed() -> None:
    virtual = cluster(*HALVES)
    app = virtual.submit(1, queue="a")

    error = refusal(virtual, removed=["root.a"]).error

    assert isinstance(error, InvalidRequest)
    assert app in error.message
    virtual.finish(app, ApplicationState.SUCCEEDED)
    virtual.advance(2)
    assert isinstance(virtual.change_queues(removed=["root.a"]), c.Reply)
    assert [x.name for x in virtual.disk.queues] == ["root.b"]


@pytest.mark.parametrize(
    ("stated", "create", "kind", "words"),
    [
        ({"root.c": {"guaranteed": "10%"}}, True, InvalidRequest, "110%"),
        ({"root.a": {}}, True, AlreadyExists, "hrm queue set"),
        ({"root.z": {}}, False, NotFound, "hrm queue create"),
    ],
)
def test_bad_changes_change_nothing(
    stated: dict[str, dict[str, object]], create: bool, kind: type[Exception], words: str
) -> None:
    virtual = cluster(*HALVES)

    reply = refusal(virtual, *(spec_from(*x) for x in stated.items()), create=create)

    assert isinstance(reply.error, kind)
    assert words in reply.error.message


def test_a_leaf_with_applications_gets_no_children() -> None:
    virtual = cluster(*HALVES)
    virtual.submit(1, queue="a")

    error = refusal(virtual, spec_from("root.a.x", {}), create=True).error

    assert "root.a has 1 live applications" in error.message


def test_an_unknown_queue_is_refused_with_those_that_there_are() -> None:
    virtual = cluster(*HALVES)
    with pytest.raises(AssertionError, match=r"there is no queue .zz.; there are root\.a"):
        virtual.submit(1, queue="zz")


def test_only_submitters_may_submit() -> None:
    virtual = cluster(spec_from("root.a", {"submitters": ["ana"]}))
    with pytest.raises(AssertionError, match=r"bo may not submit to root\.a") as caught:
        virtual.submit(1, queue="a", user="bo")
    assert NotAllowed.__name__ in str(caught.value)
    assert virtual.app(virtual.submit(1, queue="a", user="ana")).record.queue == "root.a"


def test_a_cut_says_what_it_costs_and_then_costs_that() -> None:
    virtual = cluster(*HALVES)
    one, other = virtual.submit(40, queue="a"), virtual.submit(40, queue="b")
    live(virtual, 40, one, other)
    change = (
        spec_from("root.a", {"guaranteed": "25%"}),
        spec_from("root.b", {"guaranteed": "75%"}),
    )

    dry = virtual.change_queues(*change, dry_run=True)
    assert isinstance(dry, c.Reply)
    assert isinstance(dry.result, c.QueueChangeCost)
    assert len(dry.result.preempted) == 4
    assert (running(virtual, one), running(virtual, other)) == (8, 8)
    virtual.change_queues(*change)
    live(virtual, 60, one, other)

    assert (running(virtual, one), running(virtual, other)) == (4, 12)
    assert preempted(virtual) == 4
    gone = {x.container_id for x in virtual.app(one).ended if x.started_at_s}
    assert gone == set(dry.result.preempted)


def suppose(virtual: VirtualCluster, queue: str, executors: int, user: str = "") -> Supposed:
    """Executors of one core."""
    master = virtual.master
    asked = Supposition(queue=queue, executors=executors, resources=Resources(1, 1024), user=user)
    return what_if(master.master_state, master.placement, asked, virtual.now)


def test_what_if_says_what_happens_then() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    virtual.advance(10)

    found = suppose(virtual, "b", 10)
    assert (found.at_once, found.by_preemption, found.later) == (0, 8, 2)
    other = virtual.submit(10, queue="b")
    live(virtual, 40, one)

    assert running(virtual, other) == 8
    ended = {x.container_id for x in virtual.app(one).ended if x.started_at_s}
    assert ended == {container for container, _ in found.preempted}


def test_reasons_and_amounts_are_told() -> None:
    virtual = cluster(*HALVES)
    one = virtual.submit(40, queue="a")
    other = virtual.submit(40, queue="b")
    live(virtual, 40, one, other)

    found = status(virtual, "root.b")

    assert (found.guaranteed[0], found.share[0], found.used[0]) == (8, 8, 8)
    assert found.pending[0] == 32
    assert found.waiting[0].reason is WaitReason.QUEUE_SHARE
    assert status(virtual, "root").used[0] == 16


def test_past_use_counts_and_fades() -> None:
    weights = [spec_from(f"root.{x}", {"guaranteed": "0%"}) for x in "ab"]
    virtual = cluster(*weights, run_s=10.0, bounds=Bounds(queue_use_half_life_s=60.0))
    one = virtual.submit(40, queue="a")
    live(virtual, 120, one)

    other = virtual.submit(40, queue="b")
    live(virtual, 30, one, other)
    early = running(virtual, one)
    live(virtual, 600, one, other)

    assert early < 8 - 1, "root.a has used all for long"
    assert abs(running(virtual, one) - running(virtual, other)) <= 2


def test_what_if_knows_the_limits_of_a_user() -> None:
    """A user may hold half of 16 cores."""
    virtual = cluster(spec_from("root.x", {"guaranteed": "100%", "user_limit_factor": 0.5}))
    virtual.submit(3, queue="x", user="ana")
    virtual.advance(5)

    mine = suppose(virtual, "x", 10, "ana")
    assert (mine.at_once, mine.by_preemption, mine.later) == (5, 0, 5)
    assert mine.why == "ana would hold as much of root.x as one user may (user_limit_factor)"
    assert suppose(virtual, "x", 10, "bo").at_once == 8
    assert suppose(virtual, "x", 10).at_once == 10, "of a user without limits"
    assert suppose(virtual, "x", 5, "ana").why == ""


@pytest.mark.parametrize("executors", [1, 4, 12])
def test_what_if_of_a_user_is_what_happens_then(executors: int) -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": "50%", "minimum_user_limit": 0.5}),
        spec_from("root.b", {"guaranteed": "50%"}),
    )
    one = virtual.submit(40, queue="a", user="ana")
    virtual.submit(40, queue="b", user="cy")
    live(virtual, 40, one)
    before = running(virtual, one)
    assert before == 8

    found = suppose(virtual, "a", executors, "bo")

    # Ana holds the queue's share already, and what she waits for goes first: all of bo's wait.
    assert (found.at_once, found.by_preemption, found.later) == (0, 0, executors)
    other = virtual.submit(executors, queue="a", user="bo")
    virtual.advance(30)
    assert running(virtual, other) == found.at_once


def test_what_if_of_a_user_who_has_a_part_left() -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": "50%", "minimum_user_limit": 0.5}),
        spec_from("root.b", {"guaranteed": "50%"}),
    )
    virtual.submit(2, queue="a", user="ana")
    virtual.submit(40, queue="b", user="cy")
    virtual.advance(20)

    found = suppose(virtual, "a", 9, "bo")

    # Half of the 8 cores that are root.a's; root.b has borrowed the rest of them.
    assert (found.at_once + found.by_preemption, found.later) == (4, 5)
    assert "bo would hold a user's part of root.a, of which 2 have some" in found.why
    other = virtual.submit(9, queue="a", user="bo")
    virtual.advance(60)
    assert running(virtual, other) == 4


def test_what_if_of_a_user_who_may_not_submit_is_refused() -> None:
    virtual = cluster(spec_from("root.a", {"submitters": ["ana"]}))
    assert suppose(virtual, "a", 1, "ana").at_once == 1
    with pytest.raises(NotAllowed, match=r"bo may not submit to root\.a"):
        suppose(virtual, "a", 1, "bo")
