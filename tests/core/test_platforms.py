"""Queues' shares are divided over unlike platforms, on the production master, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hrm.core.master.explain import explain
from hrm.core.master.platform_shares import PLATFORMS_MAX
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec, spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.columns import Bools, Floats
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.policies.sharing import divider
from hrm.testing.virtual import VirtualCluster, unit

HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))
FAST = Bounds(queue_reclaim_wait_s=1.0, queue_preemption_grace_s=1.0, queue_preemption_part=1.0)
A, B = QueueName("root.a"), QueueName("root.b")


class Known:
    """Run times by queue and platform; what is not stated is not known."""

    def __init__(self, times: Mapping[str, Mapping[str, float]]) -> None:
        self.times = times

    def run_times(
        self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]
    ) -> Floats:
        nan = float("nan")
        rows = [[self.times.get(x, {}).get(y, nan) for y in platforms] for x in queues]
        return np.array(rows, np.float64).reshape(len(queues), len(platforms))

    def has_run(self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]) -> Bools:
        return np.isfinite(self.run_times(queues, platforms))


UNLIKE = Known({"root.a": {"new": 1.0, "old": 4.0}, "root.b": {"new": 2.0, "old": 1.0}})
"""Applications of a suit new nodes, those of b old ones."""


def cluster(
    *queues: QueueSpec,
    platforms: Mapping[str, int] | None = None,
    known: Known | None = UNLIKE,
    division: str = "affinity-round-robin",
    schedulers: int = 2,
    bounds: Bounds = FAST,
    run_s: float | None = None,
) -> VirtualCluster:
    """Nodes of four cores each, so many of each platform."""
    virtual = VirtualCluster(
        queues=queues or HALVES,
        schedulers=schedulers,
        bounds=bounds,
        run_s=run_s,
        division=divider(division),
    )
    for platform, many in (platforms or {"new": 2, "old": 2}).items():
        for number in range(many):
            properties = NodeProperties(host="127.0.0.1", platform=platform)
            virtual.add_node(unit(f"{platform}{number}", 4), properties=properties)
    if known is not None:
        virtual.master.placement.platforms.learn_from(known)
    virtual.advance(1)
    return virtual


def placed(virtual: VirtualCluster, app: ApplicationId) -> dict[str, int]:
    """Cores that run, by platform."""
    found: Counter[str] = Counter()
    for container in virtual.app(app).containers.values():
        if container.state is ContainerState.RUNNING and container.node is not None:
            platform = virtual.master.master_state.nodes[container.node].platform
            found[platform] += container.request.resources.vcores
    return dict(found)


def live(virtual: VirtualCluster, seconds: int, *apps: ApplicationId, executors: int = 40) -> None:
    """As Spark does: what was preempted is requested again, under new ids."""
    for _ in range(seconds):
        for app in apps:
            state = virtual.app(app)
            lacks = executors - len(state.containers)
            if lacks > 0 and not state.life.state.ended:
                first = state.last_executor_number + 1
                virtual.request(app, range(first, first + lacks))
        virtual.advance(1)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_each_gets_its_share_where_its_tasks_run_fast(schedulers: int) -> None:
    virtual = cluster(schedulers=schedulers)
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(5)

    assert placed(virtual, one) == {"new": 8}
    assert placed(virtual, other) == {"old": 8}


def test_one_that_came_late_gets_its_share_on_the_platform_that_suits_it() -> None:
    virtual = cluster()
    one = virtual.submit(40, queue="a")
    virtual.advance(10)
    assert placed(virtual, one) == {"new": 8, "old": 8}

    other = virtual.submit(40, queue="b")
    live(virtual, 240, one, other)

    assert placed(virtual, other) == {"old": 8}
    assert placed(virtual, one) == {"new": 8}


def test_simple_fairness_gives_each_the_same_part_of_every_platform() -> None:
    virtual = cluster(division="simple-fairness")
    one, other = virtual.submit(40, queue="a"), virtual.submit(40, queue="b")
    live(virtual, 120, one, other)

    assert placed(virtual, one) == placed(virtual, other) == {"new": 4, "old": 4}


def test_without_a_division_a_share_may_be_anywhere() -> None:
    virtual = cluster(division="none")
    one = virtual.submit(8, queue="a")
    virtual.advance(5)

    assert sum(placed(virtual, one).values()) == 8
    assert all(not x.request.platform for x in virtual.app(one).containers.values())


def test_where_nothing_is_known_one_explores_each_platform_and_nothing_is_moved() -> None:
    virtual = cluster(known=None)
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(5)

    assert placed(virtual, one) == {"new": 7, "old": 1}
    assert placed(virtual, other) == {"new": 1, "old": 7}
    live(virtual, 120, one, other, executors=8)
    assert virtual.master.placement.moves.moved == 0


def test_what_is_learned_later_moves_what_runs_two_at_a_time_and_then_rests() -> None:
    opposite = {"root.a": {"new": 4.0, "old": 1.0}, "root.b": {"new": 1.0, "old": 2.0}}
    virtual = cluster(bounds=replace(FAST, platform_move_after_s=6.0))
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(40)
    assert placed(virtual, one) == {"new": 8}
    moves = virtual.master.placement.moves
    assert moves.moved == 0

    virtual.master.placement.platforms.learn_from(Known(opposite))
    live(virtual, 120, one, other, executors=8)

    assert placed(virtual, one) == {"old": 8}
    assert placed(virtual, other) == {"new": 8}
    assert moves.moved == 16
    live(virtual, 120, one, other, executors=8)
    assert moves.moved == 16


def test_nothing_is_moved_of_streams_and_of_queues_that_are_not_preemptible() -> None:
    opposite = {"root.a": {"new": 4.0, "old": 1.0}, "root.b": {"new": 1.0, "old": 2.0}}
    kept = spec_from("root.b", {"guaranteed": "50%", "preemptible": False})
    virtual = cluster(HALVES[0], kept, bounds=replace(FAST, platform_move_after_s=6.0))
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(40)
    virtual.master.placement.platforms.learn_from(Known(opposite))
    live(virtual, 60, one, other, executors=8)

    assert virtual.master.placement.moves.moved == 0


def test_one_moves_alone_to_what_is_free() -> None:
    virtual = cluster(bounds=replace(FAST, platform_move_after_s=6.0))
    filler = virtual.submit(8, queue="a")
    one = virtual.submit(4, queue="a")
    virtual.advance(40)
    assert placed(virtual, one) == {"old": 4}

    virtual.finish(filler)
    live(virtual, 120, one, executors=4)

    assert placed(virtual, one) == {"new": 4}


@pytest.mark.parametrize("drain_s", [2.0, 6.0, 30.0])
def test_exchanges_wait_for_the_one_that_takes_longer_to_finish(drain_s: float) -> None:
    opposite = {"root.a": {"new": 4.0, "old": 1.0}, "root.b": {"new": 1.0, "old": 2.0}}
    virtual = cluster(bounds=Bounds())
    for node in virtual.nodes.values():
        node.drain_s = drain_s if node.properties.platform == "old" else 1.0
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(90)
    virtual.master.placement.platforms.learn_from(Known(opposite))
    live(virtual, 400, one, other, executors=8)

    assert placed(virtual, one) == {"old": 8}
    assert placed(virtual, other) == {"new": 8}
    assert virtual.master.placement.moves.moved == 16


def test_nothing_is_moved_to_where_it_may_not_run() -> None:
    virtual = VirtualCluster(queues=HALVES, bounds=FAST)
    for platform, labels in (("new", frozenset[str]()), ("old", frozenset({"lab"}))):
        for number in range(2):
            properties = NodeProperties(host="127.0.0.1", platform=platform, labels=labels)
            virtual.add_node(unit(f"{platform}{number}", 4), properties=properties)
    virtual.master.placement.platforms.learn_from(UNLIKE)
    requires = NodeRequirement(labels=frozenset({"lab"}))
    one = virtual.submit(8, queue="a", requires=requires)
    virtual.advance(2)
    other = virtual.submit(8, queue="b")
    live(virtual, 300, one, other, executors=8)

    assert placed(virtual, one) == {"old": 8}
    assert placed(virtual, other) == {"new": 8}
    assert virtual.master.placement.moves.moved == 0


def test_one_that_wants_more_than_its_guarantee_stops_no_exchanges() -> None:
    parts = {"a": "40%", "b": "40%", "c": "20%"}
    queues = [spec_from(f"root.{x}", {"guaranteed": part}) for x, part in parts.items()]
    opposite = {"root.a": {"new": 4.0, "old": 1.0}, "root.b": {"new": 1.0, "old": 2.0}}
    bounds = replace(FAST, platform_move_after_s=6.0)
    virtual = cluster(*queues, platforms={"new": 3, "old": 2}, bounds=bounds)
    third = virtual.submit(4, queue="c")
    virtual.advance(2)
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(40)
    assert placed(virtual, one)["new"] >= 7
    virtual.request(third, [99])
    virtual.master.placement.platforms.learn_from(Known(opposite))
    live(virtual, 200, one, other, executors=8)

    assert virtual.master.placement.moves.moved > 0
    assert placed(virtual, one)["old"] >= 7


def test_data_on_another_platform_still_counts() -> None:
    virtual = cluster()
    one = virtual.submit(0, queue="a")
    virtual.request(one, [1, 2], hosts=("old0", "old1"), locality_wait_s=30.0)
    virtual.advance(2)

    assert placed(virtual, one) == {"old": 2}


def test_data_counts_on_nodes_of_any_platform_where_none_is_chosen() -> None:
    """Some nodes have said no platform; nothing is governed."""
    virtual = VirtualCluster()
    for name, platform in (("n1", ""), ("n2", "new")):
        virtual.add_node(unit(name, 4), properties=NodeProperties(host=name, platform=platform))
    app = virtual.submit(0)
    virtual.request(app, [1], hosts=("n1", "n2"))
    virtual.advance(1)

    (container,) = virtual.app(app).containers.values()
    assert container.request.near == ("n1", "n2")


def test_what_is_full_is_waited_for_once() -> None:
    """Containers that live shortly do not each wait for a platform that somebody keeps."""
    kept = spec_from("root.b", {"guaranteed": "50%", "preemptible": False})
    virtual = cluster(HALVES[0], kept, known=Known({"root.b": {"new": 1.0, "old": 9.0}}))
    virtual.submit(8, queue="b")
    virtual.advance(5)
    both = {"root.a": {"new": 1.0, "old": 9.0}, "root.b": {"new": 1.0, "old": 9.0}}
    virtual.master.placement.platforms.learn_from(Known(both))
    one = virtual.submit(8, queue="a")
    virtual.advance(6)
    assert placed(virtual, one) == {"old": 8}

    virtual.end_process(one, 1)
    virtual.advance(1)
    virtual.request(one, [9])
    virtual.advance(1)
    assert placed(virtual, one) == {"old": 8}


def test_what_nobody_else_wants_is_lent_on_every_platform() -> None:
    virtual = cluster()
    one = virtual.submit(40, queue="a")
    virtual.advance(5)

    assert placed(virtual, one) == {"new": 8, "old": 8}


def test_no_core_idles_for_long_for_a_platform() -> None:
    """The platform is full of what may not be preempted: its share is had elsewhere."""
    kept = spec_from("root.b", {"guaranteed": "50%", "preemptible": False})
    virtual = cluster(HALVES[0], kept, known=Known({"root.b": {"new": 1.0, "old": 9.0}}))
    other = virtual.submit(8, queue="b")
    virtual.advance(5)
    assert placed(virtual, other) == {"new": 8}
    virtual.master.placement.platforms.learn_from(
        Known({"root.a": {"new": 1.0, "old": 9.0}, "root.b": {"new": 9.0, "old": 1.0}})
    )
    virtual.advance(3)

    one = virtual.submit(8, queue="a")
    virtual.advance(1)
    assert placed(virtual, one) == {}
    virtual.advance(4)

    assert placed(virtual, one) == {"old": 8}


def test_what_waits_says_for_which_platform() -> None:
    kept = spec_from("root.b", {"guaranteed": "50%", "preemptible": False})
    virtual = cluster(
        HALVES[0],
        kept,
        known=Known({"root.a": {"new": 1.0, "old": 9.0}, "root.b": {"new": 1.0, "old": 1.01}}),
        bounds=Bounds(platform_wait_s=60.0),
    )
    virtual.submit(8, queue="b")
    virtual.advance(5)
    one = virtual.submit(8, queue="a")
    virtual.advance(2)

    why = explain(virtual.master.master_state, virtual.app(one), virtual.now)[0]
    assert "on the platform new" in why


def test_a_container_that_no_node_of_a_platform_could_hold_goes_elsewhere_at_once() -> None:
    virtual = cluster(platforms={"new": 2})
    for number in range(2):
        properties = NodeProperties(host="127.0.0.1", platform="old")
        virtual.add_node(unit(f"old{number}", 8), properties=properties)
    virtual.advance(1)
    one = virtual.submit(1, queue="a", resources=Resources(6, 1024))
    virtual.advance(1)

    assert placed(virtual, one) == {"old": 6}


def test_streams_prefer_their_platform_and_wait_for_nothing() -> None:
    kept = spec_from("root.b", {"guaranteed": "50%", "preemptible": False})
    virtual = cluster(HALVES[0], kept, known=Known({"root.a": {"new": 1.0, "old": 9.0}}))
    virtual.submit(8, queue="b")
    virtual.advance(5)
    stream = virtual.submit(4, workload_class=WorkloadClass.STREAM, queue="a")
    virtual.advance(1)

    assert sum(placed(virtual, stream).values()) == 4


def test_parts_are_no_more_than_there_is_and_follow_nodes() -> None:
    virtual = cluster()
    virtual.submit(40, queue="a")
    virtual.submit(40, queue="b")
    virtual.advance(5)
    shares = virtual.master.placement.platforms

    parts = {name: shares.parts(name) for name in (A, B)}
    assert [x.platform for x in parts[A]] == ["new", "old"]
    assert [x.cores for x in parts[A]] == [8, 0]
    assert [x.cores for x in parts[B]] == [0, 8]

    properties = NodeProperties(host="127.0.0.1", platform="new")
    virtual.add_node(unit("new2", 4), properties=properties)
    virtual.advance(2)
    parts = {name: shares.parts(name) for name in (A, B)}
    assert sum(part.cores for name in (A, B) for part in parts[name]) == 20
    assert sum(parts[name][0].cores for name in (A, B)) == 12


def test_one_platform_divides_nothing() -> None:
    virtual = cluster(platforms={"new": 4})
    one = virtual.submit(40, queue="a")
    virtual.advance(5)

    assert not virtual.master.placement.platforms.divides
    assert virtual.master.placement.platforms.parts(A) == []
    assert placed(virtual, one) == {"new": 16}


def test_platforms_without_end_are_divided_as_far_as_the_largest() -> None:
    virtual = cluster(platforms={f"odd{x}": 1 for x in range(80)} | {"new": 2, "old": 2})
    one, other = virtual.submit(8, queue="a"), virtual.submit(8, queue="b")
    virtual.advance(5)

    parts = virtual.master.placement.platforms.parts(A)
    assert len(parts) == PLATFORMS_MAX
    assert {"new", "old"} <= {part.platform for part in parts}
    assert sum(placed(virtual, one).values()) == sum(placed(virtual, other).values()) == 8


def test_a_platform_that_drains_changes_nothing_for_others() -> None:
    virtual = cluster(platforms={"new": 2, "gone": 1, "old": 2})
    virtual.submit(8, queue="a")
    virtual.submit(8, queue="b")
    drain = e.DrainRequested(now=virtual.now, call_id=99, nodes=(NodeName("gone0"),), undo=False)
    virtual.submit_to_master(drain)
    virtual.advance(5)

    parts = virtual.master.placement.platforms.parts(A)
    assert [part.platform for part in parts] == ["new", "old"]
    assert parts[0].affinity > 1 > parts[1].affinity


def test_near_its_data_is_near_on_its_platform() -> None:
    virtual = cluster()
    asked = virtual.submit(0, queue="a")
    virtual.request(asked, [1, 2], hosts=("old0", "new1"), locality_wait_s=3.0)
    virtual.advance(2)

    nodes = {x.node for x in virtual.app(asked).containers.values()}
    assert nodes == {"new1"}
