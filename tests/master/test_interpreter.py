"""The live master's loop: which events wait for a turn, and which do not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hrm import policies
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.master.interpreter import Interpreter, Outbox
from hrm.master.store import Store

NODE = NodeName("n1")
TIMEOUT_S = 10.0
BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM


class Master:
    """A master with one scheduler and one node of 16 slots, whose stream is not read."""

    def __init__(self, store: Store) -> None:
        # Back-offs outlast every test.
        bounds = Bounds(node_timeout_s=1e9, retry_delay_s=1e3, retry_delay_max_s=1e3)
        core = MasterCore(1, [policies.load("min-wait", 0)], bounds)
        self.interpreter = Interpreter(core, store)
        self.outbox = self.interpreter.node_outboxes[NODE, "1"] = Outbox()
        self._numbers = itertools.count(1)

    async def start(self, node: NodeName = NODE, memory_mib: int = 65_536) -> None:
        """Let a node join."""
        unit = ResourceUnit(
            unit_id=ResourceUnitId(f"{node}/cpu"), capacity=Resources(16, memory_mib), run_limit=16
        )
        await self.interpreter.call(
            lambda call_id: e.NodeRegistered(
                now=self.interpreter.now(), call_id=call_id, node=node, identity="i",
                incarnation="1", sequence=1, host="h", endpoint="h:1", units=(unit,),
            )
        )  # fmt: skip

    async def application(self, workload_class: WorkloadClass) -> ApplicationId:
        result = await self.interpreter.call(
            lambda call_id: e.ApplicationRegistered(
                now=self.interpreter.now(), call_id=call_id, application_id=ApplicationId(""),
                submission_key=f"key-{next(self._numbers)}", name="app", user="user",
                declared_class=workload_class,
            )
        )  # fmt: skip
        assert isinstance(result, c.ApplicationAdmitted)
        return result.application_id

    def ask(self, app: ApplicationId, count: int = 1, duration_s: float = 0.0) -> None:
        """Returns without another turn of the loop."""
        requests = tuple(
            ContainerRequest(
                executor_id=str(next(self._numbers)),
                resource_profile_id=0,
                resources=Resources(1, 1024),
                expected_duration_s=duration_s,
            )
            for _ in range(count)
        )
        event = e.ContainersRequested(
            now=self.interpreter.now(), application_id=app, requests=requests
        )
        self.interpreter.submit(event)

    def wakes(self) -> list[float]:
        """Gets the time of every wake of the scheduler from now on."""
        core, found = self.interpreter.core, list[float]()
        handle = core.handle

        def watched(event: e.MasterEvent) -> list[c.MasterCommand]:
            if isinstance(event, e.SchedulerWoken):
                found.append(event.now)
            return handle(event)

        core.handle = watched  # type: ignore[method-assign]
        return found

    async def rounds(self, count: int) -> None:
        """Wait until the scheduler has made so many more rounds."""
        (scheduler,) = self.interpreter.core.placement.schedulers.values()
        target = scheduler.rounds + count
        async with asyncio.timeout(TIMEOUT_S):
            while scheduler.rounds < target:  # noqa: ASYNC110 - the core notifies nothing
                await asyncio.sleep(0)

    def reported(self) -> list[ApplicationId]:
        """Applications whose containers the node has been notified of, or will be once it reads."""
        messages = self.outbox._messages
        return [x.spec.application_id for x in messages if isinstance(x, c.AssignContainer)]


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Master]:
    store = Store(tmp_path / "store.sqlite")
    try:
        made = Master(store)
        await made.start()
        yield made
        assert not made.interpreter.stopped.done()
    finally:
        store.close()


async def test_a_stream_is_placed_in_the_turn_that_took_in_its_request(master: Master) -> None:
    stream = await master.application(STREAM)

    master.ask(stream, 3)

    assert master.reported() == [stream] * 3


async def test_so_it_is_while_its_scheduler_is_due_to_wake_for_batch(
    master: Master,
) -> None:
    batch, stream = await master.application(BATCH), await master.application(STREAM)

    master.ask(batch)
    master.ask(stream)

    assert master.reported() == [stream]


async def test_batch_leaves_the_loop_to_others_between_its_steps(master: Master) -> None:
    batch = await master.application(BATCH)

    master.ask(batch)

    assert master.reported() == []
    (message,) = await asyncio.wait_for(master.outbox.take(), TIMEOUT_S)
    assert isinstance(message, c.AssignContainer)
    assert message.spec.application_id == batch


async def test_an_order_is_for_one_life_of_an_agent_and_so_is_the_end_of_a_stream(
    master: Master,
) -> None:
    newest = master.interpreter.node_outboxes[NODE, "2"] = Outbox()
    stop = c.StopContainer(
        container_id=ContainerId("a-x1"), cause=EndCause.RELEASED, reason="", grace_s=1.0
    )

    master.interpreter._send_all(
        [
            c.SendToNode(node=NODE, incarnation="1", message=stop),
            c.SendToNode(node=NODE, incarnation="0", message=stop),
            c.DropNode(node=NODE, incarnation="1"),
        ]
    )

    assert await asyncio.wait_for(master.outbox.take(), TIMEOUT_S) == [stop]
    assert await asyncio.wait_for(master.outbox.take(), TIMEOUT_S) == []
    assert (master.outbox.closed, newest.closed) == (True, False)
    newest.close()
    assert await asyncio.wait_for(newest.take(), TIMEOUT_S) == []


async def test_ends_are_acknowledged_some_at_a_time_and_delay_nothing_else() -> None:
    outbox = Outbox()
    stop = c.StopContainer(
        container_id=ContainerId("a-x3"), cause=EndCause.RELEASED, reason="", grace_s=1.0
    )
    for name in ("a-x1", "a-x2"):
        outbox.put(c.AcknowledgeEnded(container_ids=(ContainerId(name),)))
    outbox.put(stop)

    assert await asyncio.wait_for(outbox.take(), TIMEOUT_S) == [stop]
    both = (ContainerId("a-x1"), ContainerId("a-x2"))
    expected = [c.AcknowledgeEnded(container_ids=both)]
    assert await asyncio.wait_for(outbox.take(), TIMEOUT_S) == expected


async def test_a_scheduler_that_waits_for_capacity_has_one_timer_however_often_capacity_appears(
    master: Master,
) -> None:
    batch = await master.application(BATCH)
    master.ask(batch, 16, duration_s=1e9)
    await master.rounds(1)
    master.ask(batch)
    for number in range(20):
        await master.start(NodeName(f"small-{number}"), memory_mib=512)
        # A report is admitted once no scheduler has work.
        await asyncio.wait_for(master.interpreter.throttle.of_report(), TIMEOUT_S)

    scheduled: list[asyncio.TimerHandle] = vars(asyncio.get_running_loop())["_scheduled"]
    back_offs = [x for x in scheduled if not x.cancelled() and "_ring" in repr(x)]
    assert len(back_offs) == 1


async def test_a_scheduler_whose_round_is_due_gets_no_second_one(master: Master) -> None:
    batch, stream = await master.application(BATCH), await master.application(STREAM)
    wakes = master.wakes()

    master.ask(batch)
    for _ in range(5):
        master.ask(stream)
    for_streams = len(wakes)
    # A report is admitted once no scheduler has work.
    await asyncio.wait_for(master.interpreter.throttle.of_report(), TIMEOUT_S)

    assert master.reported() == [stream] * 5 + [batch]
    assert len(wakes) == for_streams + 1
