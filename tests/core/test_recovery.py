"""What a master that has just started may grant before all nodes are back."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.messages import events as e
from hrm.core.messages.appmaster import (
    AppMasterTicked,
    Command,
    ContainerListed,
    ContainerSeen,
    Phase,
    ProfileTarget,
    RequestContainers,
    SessionOpened,
    TargetsChanged,
)
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    ContainerState,
    EndCause,
    NodeName,
    container_id_of,
)
from hrm.testing.virtual import SMALL, VirtualCluster, unit


def restarted() -> tuple[VirtualCluster, ApplicationId]:
    """Two nodes run a container each; the master has started again, and one node is back."""
    cluster = VirtualCluster([unit("n1", vcores=2), unit("n2", vcores=2)])
    app = cluster.submit(2)
    cluster.settle()
    cluster.restart_master()
    cluster.attach(app)
    cluster.register(cluster.nodes["n1"])
    return cluster, app


def ask(cluster: VirtualCluster, app: ApplicationId, executor: int, again: bool | None) -> None:
    request = ContainerRequest(executor_id=str(executor), resource_profile_id=0, resources=SMALL)
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=(request,), again=again)
    )


def test_what_is_surely_new_starts_at_once_on_a_node_that_is_back() -> None:
    cluster, app = restarted()
    asked_at_s = cluster.now
    ask(cluster, app, 3, again=False)
    cluster.settle()
    new = cluster.container(app, 3)
    assert (new.state, new.node) == (ContainerState.RUNNING, "n1")
    assert new.assigned_at_s - asked_at_s < 0.1


def test_what_may_have_been_asked_for_before_waits_for_the_node_that_may_run_it() -> None:
    for again in (True, None):
        cluster, app = restarted()
        ask(cluster, app, 3, again)
        cluster.settle()
        assert cluster.container(app, 3).state is ContainerState.PENDING
        cluster.register(cluster.nodes["n2"])
        cluster.settle()
        assert cluster.container(app, 3).state is ContainerState.RUNNING, "all are back"


def test_once_the_wait_is_over_it_is_given_up_and_what_is_new_is_not() -> None:
    cluster, app = restarted()
    ask(cluster, app, 3, again=True)
    ask(cluster, app, 4, again=False)
    cluster.advance(cluster.bounds.recovery_window_s + 1)
    end = cluster.container(app, 3).end
    assert end is not None
    assert end.cause is EndCause.LOST
    assert "n2" in end.message
    assert cluster.container(app, 4).state is ContainerState.RUNNING


def test_an_appmaster_that_comes_after_the_nodes_is_notified_what_ended_meanwhile() -> None:
    """It would wait long for an executor whose end was reported while it was not attached."""
    cluster = VirtualCluster([unit("n1", vcores=2)])
    app = cluster.submit(2)
    cluster.settle()
    cluster.disconnect(cluster.nodes["n1"])
    cluster.end_process(app, 1, exit_code=137)
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    call_id = cluster.attach(app)
    listed = {x.executor_id: x for x in cluster.admitted(call_id).containers}
    assert listed["2"].state is ContainerState.RUNNING
    assert listed["1"].state is ContainerState.ENDED
    assert listed["1"].end is not None and listed["1"].end.exit_code == 137

    core = AppMasterCore()
    target = ProfileTarget(profile=0, count=2, vcores=1, heap_mib=1, memory_mib=1)
    core.handle(TargetsChanged(now=0, targets=(target,)))
    core.handle(SessionOpened(now=0, epoch=1, containers=(), last_executor_number=0))
    running = [
        ContainerSeen(executor_id=x, profile=0, phase=Phase.RUNNING, node="n1") for x in ("1", "2")
    ]
    for container in running:
        core.handle(ContainerListed(now=1, container=container))
    ended = replace(running[0], phase=Phase.ENDED, exit_code=137, blame=Blame.APPLICATION)
    core.handle(
        SessionOpened(now=9, epoch=2, containers=(ended, running[1]), last_executor_number=2)
    )
    (request,) = requests(core.handle(AppMasterTicked(now=9.2)))
    assert ([x.executor_id for x in request.asks], request.again) == (["3"], False)


def requests(commands: list[Command]) -> list[RequestContainers]:
    return [x for x in commands if isinstance(x, RequestContainers)]


def test_the_appmaster_states_what_it_asks_for_again() -> None:
    target = ProfileTarget(profile=0, count=2, vcores=1, heap_mib=1, memory_mib=1)
    for took_over in (False, True):
        core = AppMasterCore(took_over=took_over)
        core.handle(TargetsChanged(now=0, targets=(target,)))
        opened = SessionOpened(now=0, epoch=1, containers=(), last_executor_number=0)
        (first,) = requests(core.handle(opened))
        running = ContainerSeen(executor_id="1", profile=0, phase=Phase.RUNNING)
        core.handle(ContainerListed(now=1, container=running))
        back = SessionOpened(now=2, epoch=2, containers=(running,), last_executor_number=2)
        (repeated,) = requests(core.handle(back))
        lost = ContainerSeen(executor_id="1", profile=0, phase=Phase.ENDED, blame=Blame.NODE)
        (new,) = requests(core.handle(ContainerListed(now=3, container=lost)))
        asked = [[x.executor_id for x in each.asks] for each in (first, repeated, new)]
        assert asked == [["1", "2"], ["2"], ["3"]]
        again_flags = [each.again for each in (first, repeated, new)]
        assert again_flags == ([None] * 3 if took_over else [False, True, False])


def test_another_agent_under_the_name_of_one_that_is_away_does_not_stand_for_it() -> None:
    """What ran there may still run: requested again, it must not start a second time."""
    cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=1)
    cluster.settle()
    app = cluster.submit(executors=6)
    cluster.settle()
    before = {name: set(node.processes) for name, node in cluster.nodes.items()}
    assert before[NodeName("n1")]
    cluster.durable_nodes[NodeName("n1")] = "old"
    cluster.restart_master()
    cluster.register(cluster.nodes[NodeName("n2")])
    cluster.advance(cluster.bounds.recovery_window_s + 2.0)
    assert cluster.master.nodes.absent == {"n1"}
    cluster.submit_to_master(
        e.NodeRegistered(
            now=cluster.now, call_id=cluster.next_call(), node=NodeName("n1"), identity="new",
            incarnation="new", sequence=1, host="h", endpoint="", units=(unit("n1"),), owner="new",
        )
    )  # fmt: skip
    cluster.attach(app)
    missing = [x for x in range(1, 7) if container_id_of(app, str(x)) in before[NodeName("n1")]]
    cluster.request(app, missing)
    cluster.advance(5.0)
    n1, n2 = (set(cluster.nodes[NodeName(name)].processes) for name in ("n1", "n2"))
    assert n1 == before[NodeName("n1")]
    assert not n1 & n2


def test_an_appmaster_that_has_lost_its_numbers_uses_none_that_an_earlier_one_used() -> None:
    """Nobody knows them: requests are not written, and the master is another, too."""
    cluster = VirtualCluster([unit("n1", vcores=4)])
    app = cluster.submit(3)
    cluster.settle()
    cluster.disconnect(cluster.nodes["n1"])
    assert [x.last_executor_number for x in cluster.durable.values()] == [100]
    cluster.restart_master()
    admitted = cluster.admitted(cluster.attach(app))
    assert admitted.containers == ()

    core = AppMasterCore(took_over=True)
    target = ProfileTarget(profile=0, count=1, vcores=1, heap_mib=1, memory_mib=1)
    core.handle(TargetsChanged(now=0, targets=(target,)))
    opened = SessionOpened(
        now=0, epoch=2, containers=(), last_executor_number=admitted.last_executor_number
    )
    (request,) = requests(core.handle(opened))

    assert [x.executor_id for x in request.asks] == ["101"]
    cluster.request(app, [101])
    assert [x.last_executor_number for x in cluster.durable.values()] == [200]


def test_an_appmaster_that_goes_on_counts_on_after_a_restart_of_the_master() -> None:
    core = AppMasterCore()
    target = ProfileTarget(profile=0, count=2, vcores=1, heap_mib=1, memory_mib=1)
    core.handle(TargetsChanged(now=0, targets=(target,)))
    core.handle(SessionOpened(now=0, epoch=1, containers=(), last_executor_number=0))
    core.handle(SessionOpened(now=2, epoch=2, containers=(), last_executor_number=100))
    more = replace(target, count=3)
    (request,) = requests(core.handle(TargetsChanged(now=3, targets=(more,))))
    assert [x.executor_id for x in request.asks] == ["3"]
