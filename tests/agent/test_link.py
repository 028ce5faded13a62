"""The agent's stream, tested without a whole agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog.testing

from hrm import rpc
from hrm.agent.link import Link
from hrm.v1 import node_pb2
from tests.agent.conftest import LIMIT_S, TOKEN, Master


@asynccontextmanager
async def linked(
    master: Master, heartbeat: Callable[[Link], None], on_down: Callable[[], None]
) -> AsyncIterator[asyncio.Task[None]]:
    """A link that is kept up meanwhile; ``heartbeat`` has to send one."""
    link = Link(
        target=f"127.0.0.1:{master.port}",
        open_channel=lambda: rpc.channel(f"127.0.0.1:{master.port}", TOKEN),
        register=lambda: node_pb2.NodeMessage(register=node_pb2.RegisterNode(name="node-1")),
        on_message=lambda message: None,
        on_up=lambda master, first: None,
        on_down=on_down,
        heartbeat=lambda: heartbeat(link),
        delay_max_s=0.2,
    )
    running = asyncio.create_task(link.run())
    try:
        yield running
    finally:
        await link.close(LIMIT_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def beat(link: Link) -> None:
    link.send(node_pb2.NodeMessage(heartbeat=node_pb2.NodeHeartbeat()))


async def test_a_heartbeat_that_fails_ends_the_session_and_the_next_one_is_complete(
    master: Master,
) -> None:
    failures = 2
    downs: list[None] = []

    def heartbeat(link: Link) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ZeroDivisionError("a bug")
        beat(link)

    with structlog.testing.capture_logs() as logs:
        async with linked(master, heartbeat, lambda: downs.append(None)) as running:
            await master.until(lambda: len(master.heartbeats) >= 2)
            assert not running.done()
            assert len(master.registrations) == 3, "one more for each failure, none after"
            assert len(downs) == 2
    output = [entry for entry in logs if entry["log_level"] == "error"]
    assert ["cannot make a heartbeat" in entry["event"] for entry in output] == [True, True]
    assert all(entry["exc_info"] for entry in output), "with the traceback"


def more_than(items: Sequence[object], number: int) -> bool:
    return len(items) > number


async def test_a_master_that_ends_the_stream_is_found_again(master: Master) -> None:
    async with linked(master, beat, lambda: None):
        for number in (1, 2, 3):
            await master.until(partial(more_than, master.registrations, number - 1))
            await master.until(partial(more_than, master.heartbeats, len(master.heartbeats)))
            master.hang_up()
        await master.until(lambda: len(master.registrations) == 4)
