"""Learned policies that agents report: shown by node, and their modes sent."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig
from hrm.identity.roles import AccessRole
from hrm.master.node_policies import AGENT_MODES_FILE, AGENTS, NodePolicies
from hrm.v1 import node_pb2, pipeline_pb2, policy_pb2_grpc
from hrm.v1 import policy_pb2 as pb
from tests.identity.calls import as_, made
from tests.master.pipeline_service import request, serving
from tests.master.test_services import TIMEOUT_S, Running, node, refused, running

POLICY = "dqngpu-ddqn"


def report(**fields: Any) -> pb.LearnedPolicy:
    return pb.LearnedPolicy(
        policy=POLICY, kind="shared-gpu", heuristic="look-ahead", model="dqngpu-ddqn-1", **fields
    )


class Agent:
    """One agent's stream; messages are read as the test wants them."""

    def __init__(self, master: Running, name: str) -> None:
        self.name = name
        self.call = master.nodes.Connect(timeout=TIMEOUT_S)
        self._sequence = 1

    async def begin(self) -> Agent:
        await self.call.write(node(self.name, f"identity-{self.name}"))
        assert (await self.call.read()).WhichOneof("message") == "registered"
        return self

    async def reports(self, **fields: Any) -> None:
        self._sequence += 1
        beat = node_pb2.NodeHeartbeat(policies=[report(**fields)])
        await self.call.write(node_pb2.NodeMessage(sequence=self._sequence, heartbeat=beat))

    async def order(self) -> pb.PolicyOrder:
        message = await self.call.read()
        assert message.WhichOneof("message") == "policy", message
        order = message.policy
        assert isinstance(order, pb.PolicyOrder)
        return order


def stub(master: Running) -> Any:
    return policy_pb2_grpc.PolicyServiceStub(master.channel)


async def shown(master: Running, policy: str = "") -> list[pb.LearnedPolicy]:
    found = await stub(master).ShowPolicies(
        pb.ShowPoliciesRequest(policy=policy), timeout=TIMEOUT_S
    )
    return list(found.policies)


async def until_shown(master: Running, count: int, asked: int) -> list[pb.LearnedPolicy]:
    """So many reports of nodes that have been ``asked`` so often in all."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = [x for x in await shown(master, POLICY) if x.node]
            if len(found) == count and sum(x.asked for x in found) == asked:
                return found
            await asyncio.sleep(0.01)  # nothing is notified


async def set_mode(master: Running, mode: str) -> pb.LearnedPolicy:
    call = pb.SetPolicyModeRequest(policy=POLICY, mode=mode)
    found = await stub(master).SetPolicyMode(call, timeout=TIMEOUT_S)
    assert isinstance(found, pb.LearnedPolicy)
    return found


async def test_each_agents_policy_is_shown_and_all_get_the_mode(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        one, two = await Agent(master, "n1").begin(), await Agent(master, "n2").begin()
        await one.reports(mode="on", asked=9, learned=5, fallbacks={"not-loaded": 4})
        await two.reports(mode="shadow", asked=2_000_000, rolled_back_at_s=7.0)
        first, second = await until_shown(master, 2, 2_000_009)
        assert (first.node, first.kind, first.mode) == ("n1", "shared-gpu", "on")
        assert dict(first.fallbacks) == {"not-loaded": 4}
        assert (second.node, second.rolled_back_at_s) == ("n2", 7.0)
        result = await set_mode(master, "canary-10")
        assert (result.kind, result.mode, list(result.nodes)) == (
            "shared-gpu", "canary-10", ["n1", "n2"],
        )  # fmt: skip
        orders = [await one.order(), await two.order()]
        assert orders[0] == orders[1] and orders[0].mode == "canary-10"
    async with running(tmp_path) as master:
        (kept,) = await shown(master, POLICY)
        assert (kept.node, kept.mode) == ("", "canary-10")
        assert "no agent uses it now" in kept.last and "dqngpu:learned" in kept.last
        again = await Agent(master, "n1").begin()
        assert await again.order() == orders[0], "it outlives the master, with its number"


async def test_what_an_agent_counted_is_kept_while_it_is_away(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        one = await Agent(master, "n1").begin()
        await one.reports(mode="on", asked=9)
        await until_shown(master, 1, 9)
        one.call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            while (found := await shown(master))[0].node:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # nothing is notified
        assert [(x.asked, x.heuristic) for x in found] == [(9, "look-ahead")]
        again = await Agent(master, "n1").begin()
        await again.reports(mode="on", asked=11)
        await until_shown(master, 1, 11)
        assert len(await shown(master)) == 1, "its own counters are its report's again"


async def test_the_last_fallback_of_an_agent_is_for_operators(tmp_path: Path) -> None:
    async with running(tmp_path) as master, AsyncExitStack() as stack:
        one = await Agent(master, "n1").begin()
        await one.reports(mode="on", asked=1, last="not-loaded: there is no model file /m/x.npz")
        await until_shown(master, 1, 1)
        for role, seen in ((AccessRole.SUBMITTER, ""), (AccessRole.OPERATOR, "not-loaded")):
            token = (await made(master, role, name=role.value)).token
            user = await stack.enter_async_context(as_(master, token))
            (found,) = await shown(user, POLICY)
            assert (found.asked, found.last[:10]) == (1, seen)


async def test_a_malformed_report_ends_the_stream_with_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        one = await Agent(master, "n1").begin()
        await one.reports(mode="half")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "canary-50"):
            await one.call.read()


async def test_a_worker_that_reports_the_name_does_not_get_the_order(tmp_path: Path) -> None:
    """What a worker reports is its user's word."""
    async with serving(tmp_path) as at:
        one = await Agent(at.master, "n1").begin()
        await one.reports(mode="shadow", asked=1)
        await at.stub.Submit(request(task_id="a", user="eve"))
        worker = at.worker("a", policies=[report(mode="shadow", asked=2)])
        await worker.receive("registered")
        worker.send_update(load=pipeline_pb2.PipelineLoad(policies=[report(mode="on", asked=2)]))
        await until_shown(at.master, 2, 3)
        result = await set_mode(at.master, "on")
        assert list(result.nodes) == ["n1"]
        async with asyncio.timeout(TIMEOUT_S):
            while (message := await one.call.read()).WhichOneof("message") != "policy":
                pass  # the worker's container
        assert message.policy.mode == "on"


def test_damaged_modes_are_reported(tmp_path: Path) -> None:
    (tmp_path / AGENT_MODES_FILE).write_text('{"dqngpu-ddqn": "on"}')
    with pytest.raises(InvalidConfig, match="remove it"):
        NodePolicies(tmp_path, lambda _order: None, lambda _node: 1.0, AGENTS)
    (tmp_path / AGENT_MODES_FILE).unlink()
    nodes = NodePolicies(tmp_path, lambda _order: None, lambda _node: float("inf"), AGENTS)
    nodes.take_report(NodeName("n1"), [report(mode="on", asked=2**62)])
    assert nodes.all()[0].asked == 2**62, "an agent may have counted since before this master"
