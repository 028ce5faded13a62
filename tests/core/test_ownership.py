"""An id is not a proof: registering or attaching under it requires its owner's key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission.hosting import holder_registration
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    LaunchContext,
    NodeName,
    Resources,
)
from hrm.core.vocabulary.ownership import MASTER, is_owner
from hrm.errors import AlreadyExists, HrmError, NotOwner, Unavailable
from hrm.testing.virtual import VirtualCluster, VirtualNode, unit

OWNER = "digest of the owner's key"
OTHER = "digest of another key"
LAUNCH = LaunchContext(driver_url="spark://owner:1")
ID = "driver-20260101000000-0001"


class Cluster(VirtualCluster):
    """A node ``n1`` whose agent has a key, and an application whose driver has one."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = VirtualNode(self, self._core())
        self.nodes["n1"] = self.agent
        self.join()
        result = self.application(application_id="", launch=LAUNCH)
        assert not isinstance(result, HrmError)
        self.app_id = ApplicationId(result.application_id)
        self.attach_as(OWNER)
        self.request(self.app_id, [1])
        self.settle()

    def _core(self) -> Any:
        return VirtualCluster([unit("n1")]).nodes["n1"].core

    def ask(self, event: Any, **fields: Any) -> Any:
        """The master's reply: the result itself, or the error."""
        call_id = next(self._calls)
        self.submit_to_master(event(now=self.now, call_id=call_id, **fields))
        found: Any = self.replies[call_id]
        return found.error if hasattr(found, "error") else found.result

    def application(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "application_id": self.app_id if hasattr(self, "app_id") else ApplicationId(""),
            "submission_key": "k",
            "name": "app",
            "user": "ada",
            "owner": OWNER,
        }
        return self.ask(e.ApplicationRegistered, **{**fields, **changes})

    def attach_as(self, owner: str, session: int = 7) -> Any:
        return self.ask(
            e.ApplicationAttached,
            application_id=self.app_id, session=session, epoch=self.epoch, owner=owner,
        )  # fmt: skip

    def join(self, **changes: Any) -> Any:
        """The agent registers, or another with ``changes`` to its message."""
        node = self.agent
        if not changes:
            node.next_sequence()
            node.connect()
        fields: dict[str, Any] = {
            "node": node.name, "identity": "i1", "incarnation": str(node.incarnation),
            "sequence": node.sequence, "host": "127.0.0.1", "endpoint": "127.0.0.1:1",
            "units": node.core.offers, "containers": node.core.statuses(), "owner": OWNER,
        }  # fmt: skip
        return self.ask(e.NodeRegistered, **{**fields, **changes})

    def leave(self) -> None:
        self.disconnect(self.agent)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_registering_again_with_anothers_id_takes_nothing(cluster: Cluster) -> None:
    app = cluster.app(cluster.app_id)
    for owner in (OTHER, ""):
        error = cluster.application(owner=owner, launch=LaunchContext(driver_url="spark://evil:1"))
        assert isinstance(error, NotOwner)
        assert cluster.app_id in error.message
        assert isinstance(cluster.attach_as(owner, session=99), NotOwner)
    assert (app.session, app.launch) == (7, LAUNCH)
    assert cluster.states(cluster.app_id) == {"running": 1}
    assert cluster.application(launch=LAUNCH).application_id == cluster.app_id


def test_an_application_whose_appmaster_is_away_is_still_its_own(cluster: Cluster) -> None:
    detached = e.ApplicationDetached(now=cluster.now, application_id=cluster.app_id, session=7)
    cluster.submit_to_master(detached)
    assert isinstance(cluster.application(owner=OTHER), NotOwner)
    assert isinstance(cluster.attach_as(OTHER), NotOwner)
    app = cluster.app(cluster.app_id)
    assert app.record.state is ApplicationState.DETACHED
    assert cluster.attach_as(OWNER, session=8).application_id == cluster.app_id
    assert app.session == 8


def test_ownership_outlives_the_master(cluster: Cluster) -> None:
    cluster.restart_master()
    assert isinstance(cluster.application(owner=OTHER), NotOwner)
    assert isinstance(cluster.attach_as(OTHER), NotOwner)
    assert cluster.application().application_id == cluster.app_id
    assert cluster.attach_as(OWNER).application_id == cluster.app_id


def test_anothers_submission_key_makes_an_application_of_ones_own(cluster: Cluster) -> None:
    nothing = ApplicationId("")
    assert cluster.application(application_id=nothing).application_id == cluster.app_id, "repeated"
    other = cluster.application(application_id=nothing, owner=OTHER).application_id
    assert other != cluster.app_id
    assert cluster.application(application_id=nothing, owner=OTHER).application_id == other


@pytest.mark.parametrize("changes", [{"user": "other"}, {"submission_id": "driver-1"}])
def test_a_submission_key_that_is_taken_is_of_no_use(cluster: Cluster, changes: Any) -> None:
    """Not to another user, nor to a driver of another submission."""
    before = cluster.master.master_state.applications[cluster.app_id].launch
    nothing, launch = ApplicationId(""), replace(LAUNCH, environment=(("A", ""),))
    refused = cluster.application(application_id=nothing, launch=launch, **changes)
    assert isinstance(refused, NotOwner)
    assert cluster.master.master_state.applications[cluster.app_id].launch == before


def test_the_first_with_a_key_owns_what_an_older_hrm_has_registered(cluster: Cluster) -> None:
    cluster.durable[cluster.app_id] = replace(cluster.durable[cluster.app_id], owner="")
    cluster.restart_master()
    assert cluster.application(owner="").application_id == cluster.app_id
    assert cluster.application(owner=OWNER).application_id == cluster.app_id
    assert cluster.durable[cluster.app_id].owner == OWNER
    assert isinstance(cluster.application(owner=OTHER), NotOwner)
    assert isinstance(cluster.application(owner=""), NotOwner)
    again = cluster.application(application_id=ApplicationId(""))
    assert again.application_id == cluster.app_id, "its submission key is known under the owner"


@pytest.mark.parametrize("stored_without", [False, True])
def test_what_holds_a_driver_is_the_masters(cluster: Cluster, stored_without: bool) -> None:
    record = m.SubmissionRecord(
        submission_id=ID, key="k", name="app", user="u", driver="{}", resources=Resources(1, 1024)
    )
    early = cluster.application(
        application_id=ApplicationId(""), submission_key=ID, owner=OTHER
    ).application_id
    event = holder_registration(record, LAUNCH, known=False, call_id=1, now=cluster.now)
    cluster.submit_to_master(replace(event, call_id=900))
    assert cluster.admitted(900).application_id == ID != early, "a guessed key is in nobody's way"
    if stored_without:
        cluster.durable[ApplicationId(ID)] = replace(cluster.durable[ApplicationId(ID)], owner="")
    cluster.restart_master()
    for owner in ("", OTHER):
        as_holder = cluster.application(
            application_id=ApplicationId(ID), submission_key=ID, owner=owner
        )
        assert isinstance(as_holder, NotOwner)
    assert cluster.application(application_id=ApplicationId(ID), owner=MASTER).application_id == ID


def test_a_nodes_identity_is_no_proof(cluster: Cluster) -> None:
    for owner in (OTHER, ""):
        error = cluster.join(owner=owner, incarnation="x")
        assert isinstance(error, NotOwner)
        assert "n1" in error.message
    node = cluster.master.master_state.nodes[NodeName("n1")]
    assert node.incarnation == str(cluster.agent.incarnation)
    cluster.leave()
    assert isinstance(cluster.join(owner=OTHER, incarnation="x"), NotOwner)
    cluster.join()
    assert cluster.states(cluster.app_id) == {"running": 1}


def test_the_name_of_an_agent_that_is_away_is_held_for_it(cluster: Cluster) -> None:
    other = {"identity": "i2", "owner": OTHER, "incarnation": "x", "containers": ()}
    assert isinstance(cluster.join(**other), AlreadyExists)
    cluster.agent.connected = False  # dead, with its connection open
    for _ in range(int(cluster.bounds.heartbeat_interval_s * 3) + 1):
        cluster.advance(1)
    error = cluster.join(**other)
    assert isinstance(error, Unavailable), "it may be dead: worth another try"
    cluster.join()
    cluster.leave()
    error = cluster.join(**other)
    assert isinstance(error, Unavailable), "worth another try"
    assert "node_timeout_s" in error.message
    assert cluster.states(cluster.app_id) == {"running": 1}
    cluster.advance(cluster.bounds.node_timeout_s + 1)
    assert not isinstance(cluster.join(**other), HrmError), "lost, and its name is free"
    assert isinstance(cluster.join(), AlreadyExists)
    assert cluster.durable_nodes == {"n1": OTHER}


def test_one_that_had_a_name_in_between_does_not_get_it_back_by_its_old_stream(
    cluster: Cluster,
) -> None:
    def beat(sequence: int) -> None:
        cluster.submit_to_master(
            e.NodeReported(
                now=cluster.now, node=NodeName("n1"), incarnation="x", sequence=sequence,
                containers=(),
            )
        )  # fmt: skip

    cluster.leave()
    cluster.advance(cluster.bounds.node_timeout_s + 1)
    other = {"identity": "i2", "owner": OTHER, "incarnation": "x", "containers": ()}
    assert not isinstance(cluster.join(**other), HrmError)
    cluster.advance(cluster.bounds.node_timeout_s + 1)
    cluster.join()
    cluster.attach_as(OWNER)
    cluster.request(cluster.app_id, [2])
    cluster.settle()
    cluster.leave()
    beat(1_000)
    node = cluster.master.master_state.nodes[NodeName("n1")]
    assert not node.connected
    assert cluster.states(cluster.app_id) == {"running": 1}


@pytest.mark.parametrize("other_is_lost", [False, True])
def test_an_agent_whose_name_another_has_taken_is_told_to_register_again(
    cluster: Cluster, other_is_lost: bool
) -> None:
    """It was silent for so long that its node was lost, and its stream never broke."""
    cluster.agent.connected = False
    cluster.advance(cluster.bounds.node_timeout_s + 1)
    other = {"identity": "i2", "owner": OTHER, "incarnation": "x", "containers": ()}
    assert not isinstance(cluster.join(**other), HrmError)
    if other_is_lost:
        cluster.advance(cluster.bounds.node_timeout_s + 1)
    report = e.NodeReported(
        now=cluster.now, node=NodeName("n1"), incarnation=str(cluster.agent.incarnation),
        sequence=1_000, containers=(),
    )  # fmt: skip
    drop = c.DropNode(node=report.node, incarnation=report.incarnation)
    assert drop in cluster.runtime.decide(report)
    assert isinstance(cluster.join(), AlreadyExists) is not other_is_lost


def test_an_agent_of_which_nothing_is_kept_is_told_to_register_again() -> None:
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(lost_nodes_kept=0))
    node = cluster.nodes["n1"]
    node.connected = False
    cluster.advance(cluster.bounds.node_timeout_s + 1)
    assert not cluster.master.master_state.nodes
    node.connected = True
    cluster.advance(2 * cluster.bounds.heartbeat_interval_s)
    assert cluster.master.master_state.nodes[NodeName("n1")].connected


def test_a_restarted_master_waits_for_the_node_that_it_knew(cluster: Cluster) -> None:
    assert cluster.durable_nodes == {"n1": OWNER}
    cluster.restart_master()
    for changes in ({"owner": OTHER}, {"owner": OTHER, "identity": "i2"}, {"owner": ""}):
        assert isinstance(cluster.join(containers=(), **changes), Unavailable)
    cluster.join()
    assert not cluster.master.nodes.awaited
    cluster.restart_master()
    cluster.agent.connected = False
    cluster.advance(cluster.bounds.recovery_window_s + 1)
    assert not isinstance(cluster.join(owner=OTHER, containers=()), HrmError)


def test_a_node_of_an_older_hrm_is_owned_from_its_first_key_on() -> None:
    cluster = Cluster()
    cluster.durable_nodes[NodeName("n1")] = ""
    cluster.restart_master()
    assert not isinstance(cluster.join(owner=""), HrmError)
    cluster.join()
    assert cluster.durable_nodes == {"n1": OWNER}
    assert isinstance(cluster.join(owner=""), NotOwner)
    with pytest.raises(NotOwner, match="n1"):
        cluster.master.nodes.check_owner(NodeName("n1"), OTHER)
    cluster.master.nodes.check_owner(NodeName("n1"), OWNER)
    cluster.master.nodes.check_owner(NodeName("n2"), OTHER)


def test_only_the_key_of_a_submission_authorizes_its_driver() -> None:
    core = SubmissionsCore()
    record = m.SubmissionRecord(
        submission_id=ID, key="k", name="app", user="u", driver="{}", resources=Resources(1, 1024),
        supervise=True, ownership_key="secret",
    )  # fmt: skip
    assert "secret" not in repr(record)
    core.handle(m.Submitted(now=1.0, call_id=1, record=record))

    def ask(key: str, *, gone: bool = False) -> Any:
        event = m.LeaseAsked(
            now=2.0, call_id=2, submission_id=ID, attempt=1, gone=gone, ownership_key=key
        )
        return core.handle(event)[-1]

    for key in ("", "guess"):
        refused = ask(key)
        assert isinstance(refused, m.RefuseCall)
        assert isinstance(refused.error, NotOwner)
        assert "secret" not in refused.error.message
    assert isinstance(ask("secret"), m.GrantLease)
    assert isinstance(ask("guess", gone=True), m.RefuseCall)
    assert core.entries[ID].record.may_live, "nobody has said that its driver is dead"
    assert isinstance(ask("secret", gone=True), m.Committed)
    with pytest.raises(NotOwner):
        core.check_owner(ID, "guess")


def test_what_no_key_has_has_no_owner() -> None:
    assert is_owner("", "") and is_owner("", OTHER) and is_owner(OWNER, OWNER)
    assert not is_owner(OWNER, "") and not is_owner(OWNER, OTHER)
