"""A drain and kill -9: processes of a real master and a real agent, and ``hrm node drain``."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import grpc.aio
import pytest

from hrm.v1 import admin_pb2, common_pb2
from tests.integration.test_schedulers import end_agent, start_agent
from tests.scheduler.test_daemon import TIMEOUT_S, Cluster, until


async def state_of(cluster: Cluster, name: str) -> int | None:
    """The master's state of a node; None without the node or the master."""
    try:
        request = admin_pb2.ListNodesRequest()
        listed = await cluster.admin.ListNodes(request, timeout=TIMEOUT_S, wait_for_ready=True)
    except grpc.aio.AioRpcError:
        return None
    return next((node.state for node in listed.nodes if node.name == name), None)


async def hrm(cluster: Cluster, *arguments: str) -> None:
    process = cluster.start(*arguments, "--master", cluster.address)
    assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0, cluster.log().read_text()


async def restart_master(cluster: Cluster, master: subprocess.Popen[bytes]) -> None:
    master.kill()
    await asyncio.to_thread(master.wait, TIMEOUT_S)
    port = cluster.address.rpartition(":")[2]
    cluster.master = cluster.start("master", "--port", port, "--schedulers", "1")


@pytest.mark.timeout(120)
async def test_a_drain_that_was_confirmed_survives_kill_9(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    agent = None
    try:
        await cluster.start_master()
        agent = start_agent(cluster)
        for order, state in (
            ((), common_pb2.NODE_STATE_ALIVE),
            (("node", "drain", "node-1"), common_pb2.NODE_STATE_DRAINING),
            (("node", "drain", "node-1", "--undo"), common_pb2.NODE_STATE_ALIVE),
        ):
            if order:
                await hrm(cluster, *order)
                await restart_master(cluster, cluster.master)

            async def back(state: int = state) -> bool:
                return await state_of(cluster, "node-1") == state

            await until(back, f"node-1 to be in state {state}")
    finally:
        if agent is not None:
            await end_agent(agent)
        await cluster.close()
