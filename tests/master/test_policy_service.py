"""PolicyService on a real port: what it shows, sets, refuses and remembers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

from hrm import rpc
from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig, InvalidRequest
from hrm.identity.roles import AccessRole
from hrm.master import daemon
from hrm.master.journal import EventFilter
from hrm.master.node_policies import NODE_MODES_FILE, NodePolicies
from hrm.master.policy_service import (
    DRAW_KEY_FILE,
    MODELS_DIR,
    MODES_FILE,
    cluster_policy,
    load_draw_key,
    load_modes,
    save_modes,
)
from hrm.pipelines.policies import cluster
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.policies import model_files
from hrm.policies.guard import GuardMode, GuardRegistry
from hrm.v1 import pipeline_pb2, policy_pb2_grpc
from hrm.v1 import policy_pb2 as pb
from hrm.wire import policies as policy_wire
from tests.identity.calls import as_, made
from tests.master.pipeline_service import FakeWorker, Served, request, serving
from tests.master.test_services import TIMEOUT_S, Running, refused, registration, running
from tests.policies.cluster.views import all_fit, set_model, task_of, view_of


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> GuardedClusterPolicy:
    """A learned policy that every master of the test uses."""
    rng = np.random.default_rng(0)
    made = cluster.load("ldwp-set", rng=rng, model=set_model(), clock_s=lambda: 0.0)
    assert isinstance(made, GuardedClusterPolicy)

    def with_policy(
        modes: dict[str, GuardMode],
        keep: Callable[[dict[str, GuardMode]], None] | None = None,
        *,
        draw_key: bytes,
    ) -> GuardRegistry:
        guards = GuardRegistry(modes, keep=keep, draw_key=draw_key)
        guards.add(made.guard)
        return guards

    monkeypatch.setattr(daemon, "GuardRegistry", with_policy)
    return made


def _stub(master: Running) -> Any:
    return policy_pb2_grpc.PolicyServiceStub(master.channel)


async def _shown(master: Running, **request: Any) -> pb.ShowPoliciesResponse:
    found = await _stub(master).ShowPolicies(pb.ShowPoliciesRequest(**request), timeout=TIMEOUT_S)
    assert isinstance(found, pb.ShowPoliciesResponse)
    return found


async def _set(master: Running, policy: str, mode: str) -> pb.LearnedPolicy:
    request = pb.SetPolicyModeRequest(policy=policy, mode=mode)
    found = await _stub(master).SetPolicyMode(request, timeout=TIMEOUT_S)
    assert isinstance(found, pb.LearnedPolicy)
    return found


async def test_it_shows_what_was_asked_and_why_the_heuristic_decided(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    model_files.write(set_model(), tmp_path / "master" / MODELS_DIR / "ldwp-set-9.npz")
    view = view_of(11)
    async with running(tmp_path) as master:
        policy.choose(task_of(1), view, all_fit(view))
        many = view_of(300)
        policy.choose(task_of(2), many, all_fit(many))
        (shown,) = (await _shown(master)).policies
        assert (shown.mode, shown.asked, shown.shadowed, shown.learned) == ("shadow", 2, 2, 0)
        assert dict(shown.fallbacks) == {"node-count": 1}
        assert "300 nodes; it has learned with 1 to 64" in shown.last
        assert len(shown.records) == 0
        assert not shown.HasField("ratio_p95")
        result = await _shown(master, policy="ldwp-set", records=True)
        assert [r.key for r in result.policies[0].records] == ["task-1", "task-2"]
        assert any(f.version == 9 and f.path.endswith("ldwp-set-9.npz") for f in result.models)


async def test_a_mode_outlives_the_master(tmp_path: Path, policy: GuardedClusterPolicy) -> None:
    async with running(tmp_path) as master:
        for _ in range(2):
            assert (await _set(master, "ldwp-set", "canary-10")).mode == "canary-10"
        assert policy.guard.mode is GuardMode.CANARY_10
    policy.guard.set_mode(GuardMode.OFF)
    async with running(tmp_path) as master:
        (shown,) = (await _shown(master)).policies
        assert shown.mode == "canary-10"


async def test_what_it_refuses(tmp_path: Path, policy: GuardedClusterPolicy) -> None:
    async with running(tmp_path) as master:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "canary-50"):
            await _set(master, "ldwp-set", "half")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "mode"):
            await _set(master, "ldwp-set", "x" * 100_000)
        with refused(grpc.StatusCode.NOT_FOUND, "in use: ldwp-set"):
            await _set(master, "ect", "on")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "policy"):
            await _set(master, "", "on")
        with refused(grpc.StatusCode.NOT_FOUND, "hrm policy show"):
            await _shown(master, policy="nobody")
        assert policy.guard.mode is GuardMode.SHADOW
        async with rpc.channel(master.address, "wrong") as channel:
            call = policy_pb2_grpc.PolicyServiceStub(channel).ShowPolicies(
                pb.ShowPoliciesRequest(), timeout=TIMEOUT_S
            )
            with refused(grpc.StatusCode.UNAUTHENTICATED, "HRM_TOKEN_FILE"):
                await call


async def test_a_master_without_learned_policies_reports_it(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        assert len((await _shown(master)).policies) == 0
        with refused(grpc.StatusCode.NOT_FOUND, "in use: none"):
            await _set(master, "ldwp-set", "on")


def test_the_masters_policy_is_loaded_by_name_and_known_to_its_hosts(tmp_path: Path) -> None:
    def loaded(name: str, guards: GuardRegistry) -> str:
        made = cluster_policy(name, guards=guards, state_dir=tmp_path, heartbeat_s=1.0, seed=0)
        return made.name

    guards = GuardRegistry({"ldwp-set": GuardMode.CANARY_1})
    assert loaded("ect", guards) == "ect"
    assert guards.statuses(0.0) == []
    newest = dataclasses.replace(set_model(), version=10**8)
    model_files.write(newest, tmp_path / MODELS_DIR / f"{newest}.npz")
    assert loaded("ldwp-set", guards) == "ldwp-set"
    assert [(s.policy, s.mode) for s in guards.statuses(0.0)] == [("ldwp-set", GuardMode.CANARY_1)]
    with pytest.raises(InvalidConfig, match="least-loaded"):
        loaded("nonsense", guards)


def test_modes_are_kept_and_a_damaged_file_is_reported(tmp_path: Path) -> None:
    assert load_modes(tmp_path) == {}
    save_modes(tmp_path, {"a": GuardMode.ON, "b": GuardMode.CANARY_1})
    assert load_modes(tmp_path) == {"a": GuardMode.ON, "b": GuardMode.CANARY_1}
    for damaged in ("{", "[]", '{"a": "half"}', ""):
        (tmp_path / MODES_FILE).write_text(damaged)
        with pytest.raises(InvalidConfig, match="remove it"):
            load_modes(tmp_path)


async def test_a_full_disk_is_reported_in_the_log_and_fails_no_call(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    async with serving(tmp_path) as at:
        master = at.master
        one = await _worker(at, "a")
        await one.receive("data")
        await one.receive("place")
        state_dir = tmp_path / "master"
        for name in (MODES_FILE, NODE_MODES_FILE):  # directories, which no file can replace
            (state_dir / name / "in-the-way").mkdir(parents=True)
        with structlog.testing.capture_logs() as logs:
            assert (await _set(master, "ldwp-set", "canary-10")).mode == "canary-10"
            assert policy.guard.mode is GuardMode.CANARY_10
            assert list((await _set(master, "iawp", "on")).nodes) == [one.name]
        assert (await _order(one)).mode == "on"
        reported = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
        assert len(reported) == 2 and all("cannot keep the modes" in text for text in reported)
        assert not list(state_dir.glob(".*partial"))


async def _worker(at: Served, task_id: str) -> FakeWorker:
    """The first worker of a task of a user of its own."""
    await at.stub.Submit(request(task_id=task_id, user=f"user-{task_id}"))
    policies = [_report(mode="shadow", asked=3)]
    worker = at.worker(task_id, policies=policies)
    await worker.receive("registered")
    return worker


def _report(**fields: Any) -> pb.LearnedPolicy:
    return pb.LearnedPolicy(policy="iawp", kind="node", heuristic="pats", model="m", **fields)


async def _order(worker: FakeWorker) -> pb.PolicyOrder:
    order = await worker.receive("policy")
    assert isinstance(order, pb.PolicyOrder)
    return order


async def test_policies_of_nodes_are_shown_by_worker_and_their_modes_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        master = at.master
        one, two = await _worker(at, "a"), await _worker(at, "b")
        for worker in (one, two):
            await worker.receive("data")
            await worker.receive("place")
        result = await _set(master, "iawp", "canary-10")
        assert list(result.nodes) == sorted((one.name, two.name))
        assert (result.kind, result.mode) == ("node", "canary-10")
        orders = [await _order(worker) for worker in (one, two)]
        assert [order.mode for order in orders] == ["canary-10", "canary-10"]
        assert orders[0].order == orders[1].order > 0
        output = _report(mode="canary-10", asked=9, fallbacks={"stale-snapshot": 2})
        one.send_update(load=pipeline_pb2.PipelineLoad(policies=[output]))
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found = {x.node: x for x in (await _shown(master, policy="iawp")).policies}
                if found[one.name].asked == 9:
                    break
        assert (found[one.name].mode, found[two.name].mode) == ("canary-10", "shadow")
        assert dict(found[one.name].fallbacks) == {"stale-snapshot": 2}
        with refused(grpc.StatusCode.NOT_FOUND, "in use: iawp. Which"):
            await _set(master, "ldwp", "on")
        two.hang_up()
        async with asyncio.timeout(TIMEOUT_S):
            while [x.node for x in (await _shown(master)).policies] != [one.name, ""]:
                pass
        gone = (await _shown(master)).policies[1]
        assert (gone.mode, gone.asked) == ("canary-10", 3), "what two had counted"
    async with serving(tmp_path) as at:
        master = at.master
        with refused(grpc.StatusCode.NOT_FOUND, "in use: none"):
            await _set(master, "ldwp", "on")
        three = await _worker(at, "c")
        assert await _order(three) == orders[0], "it outlives the master, with its number"
        again = await _set(master, "iawp", "canary-10")
        assert list(again.nodes) == [three.name]
        await three.receive("data")
        await three.receive("place")
        assert (await _order(three)).order > orders[0].order, "said again, it counts again"


async def test_a_mode_is_ordered_and_shown_while_no_worker_runs(tmp_path: Path) -> None:
    """A worker lives for seconds after its last task."""
    async with serving(tmp_path) as at:
        (shown,) = (await _shown(at.master, policy="iawp")).policies
        assert (shown.mode, shown.heuristic) == ("shadow", "mct")
        assert not (await _shown(at.master)).policies, "nothing is ordered, nothing was counted"
        result = await _set(at.master, "iawp", "canary-50")
        assert (result.kind, result.mode, list(result.nodes)) == ("node", "canary-50", [])
        assert "no worker uses it now; those that start later will" in result.last
    async with serving(tmp_path) as at:
        for request in ({"policy": "iawp"}, {"policy": "iawp", "records": True}, {}):
            (shown,) = (await _shown(at.master, **request)).policies
            assert (shown.mode, shown.node) == ("canary-50", "")
        worker = await _worker(at, "a")
        assert (await _order(worker)).mode == "canary-50"
        assert [x.node for x in (await _shown(at.master)).policies] == [worker.name]


def test_what_workers_counted_is_summed_up_when_they_are_gone(tmp_path: Path) -> None:
    nodes = NodePolicies(tmp_path, lambda _order: None, lambda _node: 1e6)
    counted = {
        "asked": 5,
        "learned": 3,
        "shadowed": 2,
        "proposed": 1,
        "agreed": 1,
        "fallbacks": {"fault": 2},
    }
    for number in range(1_100):
        name = NodeName(f"w{number}")
        nodes.take_report(name, [_report(mode="on", **counted)])
        nodes.left(name)
        nodes.left(name)
    (sums,) = nodes.summaries()
    assert (sums.asked, sums.learned, sums.shadowed, sums.agreed) == (5_500, 3_300, 2_200, 1_100)
    assert (dict(sums.fallbacks), sums.heuristic, sums.model) == ({"fault": 2_200}, "pats", "m")
    assert len(nodes._left) == 1_000
    back = NodeName("w1099")
    nodes.take_report(back, [_report(mode="on", asked=7)])
    (sums,) = nodes.summaries()
    assert sums.asked == 5_495, "it counts by itself again"
    nodes.left(back)
    assert nodes.summaries()[0].asked == 5_502


def test_a_worker_counts_what_it_can_have_decided_and_nothing_else(tmp_path: Path) -> None:
    """What a worker reports is its user's word, and the sums are everybody's."""
    nodes = NodePolicies(tmp_path, lambda _order: None, lambda _node: 5.0)
    reasons = {f"made-up-{one}": 2**63 - 1 for one in range(70)}
    lies = {"\x1b[31mred": 7, "fault": 2**63 - 1, "stale-snapshot": -5} | reasons
    nodes.take_report(
        NodeName("liar"),
        [
            _report(mode="on", asked=2**63 - 1, learned=9**18, fallbacks=lies, agreed=3),
            pb.LearnedPolicy(policy="made-up", mode="on", asked=1),
        ],
    )
    nodes.left(NodeName("liar"))
    nodes.take_report(NodeName("nameless"), [pb.LearnedPolicy(policy="iawp", mode="on")])
    nodes.left(NodeName("nameless"))
    (sums,) = nodes.summaries()
    most = 15_000
    assert (sums.policy, sums.asked, sums.learned, sums.agreed) == ("iawp", most, most, 0)
    assert dict(sums.fallbacks) == {"fault": most}
    assert (sums.heuristic, sums.model) == ("pats", "m"), "of one that has a name"
    honest = _report(mode="on", asked=10, learned=12, shadowed=-4, fallbacks={"unmeasured": 11})
    nodes.take_report(NodeName("honest"), [honest])
    nodes.left(NodeName("honest"))
    (sums,) = nodes.summaries()
    assert (sums.asked, sums.learned, sums.shadowed) == (most + 10, most + 10, 0)
    assert dict(sums.fallbacks) == {"fault": most, "unmeasured": 10}


async def test_the_life_of_a_worker_is_that_of_its_application(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker = await _worker(at, "a")
        boast = _report(mode="shadow", asked=2**62)
        worker.send_update(load=pipeline_pb2.PipelineLoad(policies=[boast]))
        async with asyncio.timeout(TIMEOUT_S):
            while (shown := (await _shown(at.master, policy="iawp")).policies[0]).asked == 3:
                pass
        assert 10_000 <= shown.asked < 1_000 * (TIMEOUT_S + 600.0)
        assert at.tasks.host.age_s(NodeName("nobody")) == 0.0


def test_damaged_orders_are_reported(tmp_path: Path) -> None:
    for damaged in ("{", "[]", '{"iawp": {"mode": "half", "order": 1}}', '{"iawp": "on"}'):
        (tmp_path / NODE_MODES_FILE).write_text(damaged)
        with pytest.raises(InvalidConfig, match="remove it"):
            NodePolicies(tmp_path, lambda _order: None, lambda _node: 1e6)


def test_a_report_that_is_malformed_is_refused(tmp_path: Path) -> None:
    nodes = NodePolicies(tmp_path, lambda _order: None, lambda _node: 1e6)
    long = _report(mode="on", last="x" * 70_000)
    odd = pb.LearnedPolicy(policy="iawp", mode="on", model="\x1b[2J")
    for bad in (_report(mode="half"), pb.LearnedPolicy(mode="on"), long, odd):
        with pytest.raises(InvalidRequest):
            nodes.take_report(NodeName("n1"), [bad])
    assert nodes.all() == []
    for number in range(40):
        nodes.take_report(NodeName("n1"), [pb.LearnedPolicy(policy=f"p{number}", mode="on")])
    assert len(nodes.all()) == 16


def test_how_both_fared_is_sent_where_it_is_known() -> None:
    clever = GuardedClusterPolicy(
        set_model(), None, cluster.load("ect", rng=np.random.default_rng(0)), clock_s=lambda: 0.0
    ).guard
    known = dataclasses.replace(
        clever.status(0.0), ratio_mean=1.5, reference_mean=1.25, compared=30, reference_compared=4
    )
    sent = policy_wire.from_status(known, 0.0)
    assert (sent.ratio_mean, sent.reference_mean) == (1.5, 1.25)
    assert (sent.compared, sent.reference_compared) == (30, 4)
    assert not sent.HasField("ratio_p95")
    assert not policy_wire.from_status(clever.status(0.0), 0.0).HasField("ratio_mean")


async def test_why_a_policy_was_rolled_back_is_shown_logged_and_an_event(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    async with running(tmp_path) as master:
        await _set(master, "ldwp-set", "canary-50")
        with structlog.testing.capture_logs() as logs:
            for number in range(100):
                policy.guard.expect(str(number), 1.0, drawn=number % 2 == 0)
                policy.guard.ended(str(number), now=1.0, response_s=1.0, ok=number % 2 == 1)
                if policy.guard.mode is GuardMode.SHADOW:
                    break
        (shown,) = (await _shown(master)).policies
        assert shown.mode == "shadow" and shown.rolled_back_why.startswith("watchdog: response")
        (warning,) = (x for x in logs if x["log_level"] == "warning")
        assert warning["to_try_it_again"] == "hrm policy set ldwp-set canary-1"
        assert master.interpreter.journal is not None
        await master.interpreter.journal.flush()
        events = await master.interpreter.journal.latest(EventFilter(), 10)
        (event,) = (x for x in events if x.to_state == "policy rolled back")
        assert event.kind == "master" and "ldwp-set: watchdog: response" in event.reason
        assert (await _set(master, "ldwp-set", "canary-1")).rolled_back_why == ""
    assert load_modes(tmp_path / "master") == {"ldwp-set": GuardMode.CANARY_1}


async def test_who_may_not_see_a_task_does_not_see_what_was_decided_for_it(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    view = view_of(300)
    async with running(tmp_path) as master, AsyncExitStack() as stack:
        for number, user in enumerate(("ada", "bob", "ada")):
            task = dataclasses.replace(task_of(number), user=user)
            policy.choose(task, view, all_fit(view))

        async def seen_by(name: str, role: AccessRole) -> tuple[list[str], str]:
            token = (await made(master, role, name=name)).token
            one = await stack.enter_async_context(as_(master, token))
            (shown,) = (await _shown(one, policy="ldwp-set", records=True)).policies
            assert dict(shown.fallbacks) == {"node-count": 3}, "counts are for all"
            return [record.key for record in shown.records], shown.last[:10]

        assert await seen_by("ada", AccessRole.SUBMITTER) == (["task-0", "task-2"], "node-count")
        assert await seen_by("bob", AccessRole.SUBMITTER) == (["task-1"], "")
        assert await seen_by("eve", AccessRole.VIEWER) == ([], "")
        every = [f"task-{number}" for number in range(3)]
        assert await seen_by("olga", AccessRole.OPERATOR) == (every, "node-count")


async def test_the_last_fallback_of_a_worker_is_for_its_user(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, AsyncExitStack() as stack:
        worker = await _worker(at, "a")
        output = _report(mode="shadow", asked=9, last="fault: no file ada/secret.bin")
        worker.send_update(load=pipeline_pb2.PipelineLoad(policies=[output]))
        async with asyncio.timeout(TIMEOUT_S):
            while not (await _shown(at.master, policy="iawp")).policies[0].last:
                pass
        for name, last in (("user-a", output.last), ("bob", "")):
            token = (await made(at.master, AccessRole.SUBMITTER, name=name)).token
            one = await stack.enter_async_context(as_(at.master, token))
            (shown,) = (await _shown(one, policy="iawp")).policies
            assert (shown.asked, shown.last) == (9, last)


async def test_a_heuristic_in_force_is_said_to_be_one(tmp_path: Path) -> None:
    async with running(tmp_path, placement_policy="fragmentation") as master:
        with refused(grpc.StatusCode.NOT_FOUND, "fragmentation is in force as placement_policy"):
            await _shown(master, policy="fragmentation")


def test_the_secret_of_the_draw_is_made_once_and_private(tmp_path: Path) -> None:
    key = load_draw_key(tmp_path)
    assert len(key) == 32 and load_draw_key(tmp_path) == key
    path = tmp_path / DRAW_KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    for damaged in (b"", b"00", b"\xff" * 64, b"0" * 1_000):
        path.write_bytes(damaged)
        with pytest.raises(InvalidConfig, match="remove it"):
            load_draw_key(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidConfig, match="no regular file"):
        load_draw_key(tmp_path)


async def test_which_tasks_are_the_learned_policys_differs_from_cluster_to_cluster(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    view = view_of(11)
    sides = []
    for name in ("one", "one", "other"):
        async with running(tmp_path / name) as master:
            await _set(master, "ldwp-set", "canary-50")
            tasks = [task_of(number) for number in range(40)]
            by = [policy.choose(task, view, all_fit(view)).placed_by for task in tasks]
            sides.append(by)
    assert sides[0] == sides[1] != sides[2]


async def test_a_question_about_an_application_is_its_users(
    tmp_path: Path, policy: GuardedClusterPolicy
) -> None:
    async with running(tmp_path) as master:
        ask = registration(user="ada")
        app = (await master.applications.Register(ask, timeout=TIMEOUT_S)).application_id
        assert [policy.guard.user_of(name) for name in (app, "app-unknown")] == ["ada", ""]
