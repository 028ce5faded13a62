"""Each event that a core may receive in each state of an entity has the effect of the table.

The tables themselves are tested by ``test_transitions``, the AppMaster by
``test_appmaster_lifecycle``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master.entities import Application, Node
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.submissions import SUBMISSION
from hrm.core.messages.submissions import SubmissionHappening as H
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.node.container_life import CONTAINER_AT_NODE, NodeContainerHappening
from hrm.core.node.core import NodeCore
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.event_table import Ignored, Impossible, Refused
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerStatus,
    EndCause,
    NodeName,
    Resources,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.model import ApplicationState as A
from hrm.core.vocabulary.model import ContainerState as C
from hrm.core.vocabulary.model import NodeState as N
from hrm.core.vocabulary.transitions import (
    APPLICATION,
    CONTAINER,
    NODE,
    ApplicationHappening,
    ContainerHappening,
    NodeHappening,
)
from hrm.testing.virtual import SMALL, VirtualCluster, unit

# Submissions.

ID = "driver-20260101000000-0001"
BOUNDS = m.SubmissionBounds(driver_launches_max=2, recovery_s=5.0)


def submitted(state: S, **more: Any) -> SubmissionsCore:
    """A core that finds the submission in this state in its store, at time 100."""
    record = m.SubmissionRecord(
        submission_id=ID,
        key="k",
        name="app",
        user="u",
        driver="{}",
        resources=Resources(1, 1024),
        state=state,
        may_live=state is S.RUNNING,
        restart_at_s=110.0 if state is S.WAITING_TO_RESTART else 0.0,
    )
    return SubmissionsCore(BOUNDS, [replace(record, **more)], 100.0)


def ended(**fields: Any) -> m.DriverEnded:
    plain = m.DriverEnded(now=101.0, submission_id=ID, attempt=1, exit_code=1, message="it broke")
    return replace(plain, **fields)


LEASE = m.LeaseAsked(now=101.0, submission_id=ID, attempt=1, call_id=7)
TICKS: list[m.Event] = [m.SubmissionsTicked(now=100.0 + 0.5 * x) for x in range(300)]
OF_SUBMISSIONS: dict[H, list[list[m.Event]]] = {
    H.LAUNCHED: [[m.DriverLaunched(now=101.0, submission_id=ID, attempt=1, node="n1")]],
    H.LEASE_ASKED: [[LEASE]],
    H.GONE: [[replace(LEASE, gone=True)]],
    H.LINKED: [[m.DriverLinked(now=101.0, submission_id=ID, attempt=1, application_id="app-1")]],
    H.DRIVER_ENDED: [[ended()], [ended(exit_code=0)], [ended(killed=True)]],
    H.DRIVER_LOST: [[ended(lost=True)], [ended(lost=True, killed=True)]],
    H.REFUSED: [[m.RefusedDriver(now=101.0, submission_id=ID, attempt=1, message="no node")]],
    H.KILL_ASKED: [[m.KillAsked(now=101.0, submission_id=ID, call_id=7)]],
    H.HOLDER_ENDED: [[m.HolderEnded(now=101.0, submission_id=ID, message="ended")]],
    H.UNCONFIRMED: [TICKS],
    H.RESTART_DUE: [TICKS],
    H.TIE_LAPSED: [TICKS[:11]],
    H.TURN_CAME: [TICKS[:2]],
}
BY_TIME = {H.UNCONFIRMED, H.RESTART_DUE, H.TIE_LAPSED, H.TURN_CAME}


@pytest.mark.parametrize(
    ("state", "happening"), list(itertools.product(S, H)), ids=lambda x: x.value
)
def test_a_submission(state: S, happening: H) -> None:
    led = SUBMISSION[state][happening]
    if isinstance(led, Impossible):
        assert happening in BY_TIME, "what comes from outside may come at any time"
        return
    reached = set()
    tie_s = 5.0 if happening is H.TIE_LAPSED else 0.0
    waits = happening is H.TURN_CAME
    may_wait = state is S.SUBMITTED and happening in (H.KILL_ASKED, H.TIE_LAPSED)
    attempts = (0,) if waits else (0, 1) if may_wait else (1,)
    variants = itertools.product(OF_SUBMISSIONS[happening], (True, False), (0, 1), attempts)
    for events, supervise, launches, attempt in variants:
        core = submitted(
            state, supervise=supervise, launches=launches, attempt=attempt, tie_s=tie_s,
            serial_key="k" if waits else "",
        )  # fmt: skip
        for event in events:
            commands = core.handle(event)
            if core.entries[ID].life.state is not state:
                break
        reached.add(core.entries[ID].life.state)
        assert core.entries[ID].record.state is core.entries[ID].life.state
        if isinstance(led, Ignored):
            refused = any(isinstance(x, m.RefuseCall) for x in commands)
            assert refused is isinstance(led, Refused)
    assert reached == ({state} if isinstance(led, Ignored) else led)


# Containers at their node.

X = ContainerId("x")


def spec(name: str, workload_class: WorkloadClass = WorkloadClass.BATCH) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId(f"app-{name}"),
        executor_id=name,
        resource_profile_id=0,
        workload_class=workload_class,
        resources=Resources(4, 1024),
        unit_id=unit("n1").unit_id,
    )


def stop(**more: Any) -> e.StopReceived:
    plain = e.StopReceived(
        now=5.0, epoch=1, container_id=X, cause=EndCause.KILLED, reason="why", grace_s=1.0
    )
    return replace(plain, **more)


def hosting(state: C) -> NodeCore:
    """A node with one unit, where ``x`` is in this state, and waits behind ``other``."""
    node = NodeCore(NodeName("n1"), (unit("n1"),), preemption_grace_s=30.0)
    names = ("other", "x") if state is C.WAITING else ("x",)
    for name in names:
        node.handle(e.AssignReceived(now=1.0, epoch=1, spec=spec(name)))
    if state is C.STOPPING:
        node.handle(stop(now=2.0))
    elif state is C.ENDED:
        node.handle(
            e.ProcessEnded(now=2.0, container_id=X, end=ContainerEnd(cause=EndCause.EXITED))
        )
    assert node.containers[X].life.state is state
    return node


OF_CONTAINERS: dict[NodeContainerHappening, list[e.NodeEvent]] = {
    NodeContainerHappening.ORDERED: [e.AssignReceived(now=5.0, epoch=1, spec=spec("x"))],
    NodeContainerHappening.ADOPTED: [
        e.ContainerAdopted(now=5.0, spec=spec("x"), started_at_s=1.0, stopping=why)
        for why in ("", "why")
    ],
    NodeContainerHappening.WITHDRAWN: [
        stop(only_if_waiting=True),
        stop(only_if_waiting=True, decommission=True),
    ],
    NodeContainerHappening.DECOMMISSIONED: [stop(decommission=True)],
    NodeContainerHappening.STOPPED: [stop()],
    NodeContainerHappening.OVER_LIMIT: [
        e.ContainerOverLimit(now=5.0, container_id=X, message="too much")
    ],
    NodeContainerHappening.UNIT_CLOSED: [e.NodeClosed(now=5.0, why="no disk")],
    NodeContainerHappening.PROCESS_ENDED: [
        e.ProcessEnded(now=5.0, container_id=X, end=ContainerEnd(cause=EndCause.EXITED))
    ],
    NodeContainerHappening.CLASS_SET: [
        e.ContainerClassSet(now=5.0, epoch=1, container_id=X, workload_class=WorkloadClass.STREAM)
    ],
    NodeContainerHappening.ACKNOWLEDGED: [e.EndsAcknowledged(now=5.0, epoch=1, container_ids=(X,))],
    # The node's own decisions, when capacity appears or a stream comes.
    NodeContainerHappening.STARTED: [
        e.ProcessEnded(
            now=5.0, container_id=ContainerId("other"), end=ContainerEnd(cause=EndCause.EXITED)
        )
    ],
    NodeContainerHappening.PREEMPTED: [
        e.AssignReceived(now=5.0, epoch=1, spec=spec("s", WorkloadClass.STREAM))
    ],
}
HERE = [x for x in C if x not in (C.PENDING, C.ASSIGNED)]


@pytest.mark.parametrize(
    ("state", "happening"),
    list(itertools.product(HERE, NodeContainerHappening)),
    ids=lambda x: x.value,
)
def test_a_container_at_its_node(state: C, happening: NodeContainerHappening) -> None:
    led = CONTAINER_AT_NODE[state][happening]
    for event in OF_CONTAINERS[happening]:
        node = hosting(state)
        node.handle(event)
        kept = node.containers.get(X)
        now = C.ENDED if kept is None else kept.life.state
        # The impossible does not happen: the node does not choose it.
        assert now is state if isinstance(led, Ignored | Impossible) else {now} == led


@pytest.mark.parametrize(
    "happening", [NodeContainerHappening.ORDERED, NodeContainerHappening.ADOPTED]
)
def test_a_container_that_comes_is_settled_at_once(happening: NodeContainerHappening) -> None:
    reached = set()
    makes: list[Callable[[], NodeCore]] = [
        lambda: NodeCore(NodeName("n1"), (unit("n1"),)),
        lambda: NodeCore(NodeName("n1"), (unit("n1", vcores=1),)),
        lambda: hosting_other("other"),
    ]
    for make, event in itertools.product(makes, OF_CONTAINERS[happening]):
        node = make()
        reports = [x for x in node.handle(event) if isinstance(x, c.ReportContainer)]
        assert reports
        reached.add(node.containers[X].life.state)
    led = CONTAINER_AT_NODE[C.ASSIGNED][happening]
    assert isinstance(led, frozenset)
    started = {C.RUNNING} if happening is NodeContainerHappening.ORDERED else set()
    assert reached == led | started, "one that may start at once has waited no time"


def hosting_other(name: str) -> NodeCore:
    node = NodeCore(NodeName("n1"), (unit("n1"),))
    node.handle(e.AssignReceived(now=1.0, epoch=1, spec=spec(name)))
    return node


# The master's records. Messages of the node are constructed here: its own take a second to travel.

N1 = NodeName("n1")


def status(app: ApplicationId, state: C) -> ContainerStatus:
    return ContainerStatus(
        container_id=container_id_of(app, "1"),
        application_id=app,
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=SMALL,
        state=state,
        node=N1,
        unit_id=unit("n1").unit_id,
        end=ContainerEnd(cause=EndCause.EXITED) if state is C.ENDED else None,
    )


class Driven:
    """A master with one node and one application, which requests executor 1."""

    def __init__(self) -> None:
        self.cluster = VirtualCluster([unit("n1")], network_delay_s=1.0)
        self.app = self.cluster.submit(1)
        self.cluster.advance(0.5)
        self.container = self.cluster.container(self.app, 1)
        assert self.container.state is C.ASSIGNED

    @property
    def application(self) -> Application:
        return self.cluster.app(self.app)

    @property
    def node(self) -> Node:
        return self.cluster.master.master_state.nodes[N1]

    def deliver(
        self, event: Callable[..., e.MasterEvent], **fields: Any
    ) -> c.Reply | c.Refuse | None:
        call_id = self.cluster.next_call()
        if event in CALLS:
            fields["call_id"] = call_id
        self.cluster.submit_to_master(event(now=self.cluster.now, **fields))
        return self.cluster.replies.get(call_id)

    def receive(self, event: Callable[..., e.MasterEvent], **fields: Any) -> None:
        incarnation, sequence = self.node.incarnation, self.node.sequence + 1
        self.deliver(event, node=N1, incarnation=incarnation, sequence=sequence, **fields)

    def see(self, state: C) -> None:
        self.receive(e.ContainerReported, container=status(self.app, state))

    def release(self) -> None:
        self.deliver(
            e.ContainersReleased, application_id=self.app, executor_ids=("1",), reason="why"
        )

    def drain(self, *, undo: bool = False) -> c.Reply | c.Refuse | None:
        return self.deliver(e.DrainRequested, nodes=(N1,), undo=undo)

    def finish(self, state: A) -> None:
        self.deliver(e.ApplicationFinished, application_id=self.app, state=state, message="why")

    def detach(self) -> None:
        session = self.application.session or 0
        self.deliver(e.ApplicationDetached, application_id=self.app, session=session)

    def fall_silent(self) -> None:
        """Time passes only for the master."""
        now, bounds = self.cluster.now, self.cluster.bounds
        for half_s in range(1, int(2 * bounds.node_timeout_s) + 4):
            self.cluster.submit_to_master(e.Ticked(now=now + 0.5 * half_s))

    def register_again(self) -> None:
        node = self.node
        self.deliver(
            e.NodeRegistered,
            node=N1,
            identity=node.identity,
            incarnation="next",
            sequence=1,
            host=node.host,
            endpoint=node.endpoint,
            units=node.units,
            owner=node.owner,
        )


CALLS = {e.DrainRequested, e.NodeRegistered, e.KillRequested, e.ApplicationAttached}
CALLS |= {e.ApplicationRegistered}
TO_CONTAINERS: dict[ContainerHappening, Callable[[Driven], None]] = {
    ContainerHappening.SEEN_WAITING: lambda given: given.see(C.WAITING),
    ContainerHappening.SEEN_RUNNING: lambda given: given.see(C.RUNNING),
    ContainerHappening.SEEN_STOPPING: lambda given: given.see(C.STOPPING),
    ContainerHappening.SEEN_ENDED: lambda given: given.see(C.ENDED),
    ContainerHappening.UNLISTED: lambda given: given.receive(e.NodeReported, containers=()),
    ContainerHappening.RELEASED: Driven.release,
    ContainerHappening.NODE_LOST: Driven.fall_silent,
}
"""A claim is granted, and a container abandoned, by the master itself."""


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize(
    ("state", "happening"),
    list(itertools.product((C.ASSIGNED, C.WAITING, C.RUNNING, C.STOPPING, C.ENDED), TO_CONTAINERS)),
    ids=lambda x: x.value,
)
def test_a_container_at_the_master(state: C, happening: ContainerHappening, drained: bool) -> None:
    given = Driven()
    if drained:
        given.drain()
    if state is C.STOPPING:
        given.release()
    elif state is not C.ASSIGNED:
        given.see(state)
    assert given.container.state is state
    TO_CONTAINERS[happening](given)
    led = CONTAINER[state][happening]
    if not isinstance(led, frozenset):
        assert given.container.state is state
    elif len(led) == 1:
        assert {given.container.state} == led
    else:
        assert (state, happening) == (C.ASSIGNED, ContainerHappening.UNLISTED)
        assert given.container.state is (C.ENDED if drained else C.ASSIGNED)


TO_NODES: dict[NodeHappening, Callable[[Driven], object]] = {
    NodeHappening.REGISTERED: Driven.register_again,
    NodeHappening.HEARD_AGAIN: lambda given: given.receive(e.NodeReported, containers=()),
    NodeHappening.DRAIN_ORDERED: Driven.drain,
    NodeHappening.DRAIN_UNDONE: lambda given: given.drain(undo=True),
    NodeHappening.FALLEN_SILENT: Driven.fall_silent,
}


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize(
    ("state", "happening"), list(itertools.product(N, NodeHappening)), ids=lambda x: x.value
)
def test_a_node_at_the_master(state: N, happening: NodeHappening, drained: bool) -> None:
    given = Driven()
    if drained or state is N.DRAINING:
        given.drain()
    if state is N.LOST:
        given.fall_silent()
    if given.node.state is not state:
        assert drained
        return  # no node under drain is ALIVE
    answer = TO_NODES[happening](given)
    led = NODE[state][happening]
    if isinstance(led, frozenset):
        assert given.node.state in led
    else:
        assert given.node.state is state
        undone_for_nothing = (state, happening, drained) == (
            N.LOST,
            NodeHappening.DRAIN_UNDONE,
            False,
        )
        refused = undone_for_nothing or isinstance(led, Refused)
        assert isinstance(answer, c.Refuse) is refused


TO_APPLICATIONS: dict[ApplicationHappening, Callable[[Driven], object]] = {
    ApplicationHappening.REGISTERED_AGAIN: lambda given: given.deliver(
        e.ApplicationRegistered, application_id=given.app, submission_key="k", name="n", user="u"
    ),
    ApplicationHappening.ATTACHED: lambda given: given.deliver(
        e.ApplicationAttached, application_id=given.app, session=99, epoch=given.cluster.epoch
    ),
    ApplicationHappening.DETACHED: Driven.detach,
    ApplicationHappening.RECOVERED: lambda given: given.cluster.restart_master(),
    ApplicationHappening.REPORTED: lambda given: given.deliver(
        e.WorkloadClassObserved,
        application_id=given.app,
        workload_class=WorkloadClass.STREAM,
        evidence="why",
    ),
    ApplicationHappening.CONTAINER_STARTED: lambda given: given.see(C.RUNNING),
    ApplicationHappening.FINISHED: lambda given: given.finish(A.FAILED),
    ApplicationHappening.KILLED: lambda given: given.deliver(
        e.KillRequested, application_id=given.app, reason="why"
    ),
    ApplicationHappening.DRIVER_FAILED: lambda given: given.deliver(
        e.DriverFailed, application_id=given.app, attempt=0, message="why"
    ),
}
"""``test_cluster`` tests the end of a grace period."""


@pytest.mark.parametrize(
    ("state", "happening"), list(itertools.product(A, TO_APPLICATIONS)), ids=lambda x: x.value
)
def test_an_application(state: A, happening: ApplicationHappening) -> None:
    given = Driven()
    match state:
        case A.RUNNING:
            given.see(C.RUNNING)
        case A.DETACHED:
            given.detach()
        case A.SUCCEEDED | A.FAILED:
            given.finish(state)
        case A.KILLED:
            given.deliver(e.KillRequested, application_id=given.app, reason="why")
    assert given.application.life.state is state
    answer = TO_APPLICATIONS[happening](given)
    led, now = APPLICATION[state][happening], given.application.life.state
    if isinstance(led, frozenset):
        assert now in led
    else:
        assert now is state
        assert isinstance(answer, c.Refuse) is isinstance(led, Refused)
