"""The client without a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import sample_steps

from hrm.errors import InvalidRequest, NotFound, Unavailable
from hrm.pipelines.client.client import Client, Task
from hrm.pipelines.client.outcome import TaskResult
from hrm.pipelines.client.tickets import Ticket
from hrm.v1 import pipeline_pb2 as pb


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    token = tmp_path / "token"
    token.write_text("t" * 40 + "\n")
    token.chmod(0o600)
    with Client("127.0.0.1:1", token_path=token, patience_s=20.0) as client:
        yield client


def ticket(task_id: str) -> Ticket:
    return Ticket(task_id=task_id, result_key="", ownership_key="", result_format="pickle")


class _Away:
    """A stub of a master that replies to no call before all have been made."""

    def __init__(self, asking: int) -> None:
        self._all = asyncio.Barrier(asking)
        self.cancelled: list[str] = []

    async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
        async with asyncio.timeout(5.0):
            await self._all.wait()
        self.cancelled.append(request.task_id)


def test_many_are_cancelled_at_once_and_not_one_after_the_other(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = _Away(3)
    monkeypatch.setattr(client, "_stub", away)
    done: Future[TaskResult] = Future()
    done.set_result(TaskResult(task_id="done", value=1))
    tasks = [
        Task(client, ticket(name), future)
        for name, future in [("a", Future()), ("done", done), ("b", Future()), ("c", Future())]
    ]
    client.cancel_all(tasks, "no more")
    assert sorted(away.cancelled) == ["a", "b", "c"]


class _Full(_Away):
    """A master without capacity, until it has some."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = asyncio.Event()
        self.accepting = False
        self.submitted: list[str] = []

    async def Submit(self, request: Any, timeout: float) -> None:  # noqa: N802
        self.asked.set()
        if not self.accepting:
            raise Unavailable("no room")
        self.submitted.append(request.task_id)

    async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
        self.accepting = True
        raise NotFound("no such task")


@pytest.mark.parametrize("how", ["one", "all", "map"])
def test_a_task_that_is_given_up_is_not_submitted_any_more(
    client: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    full = _Full()
    monkeypatch.setattr(client, "_stub", full)
    if how == "map":
        with pytest.raises(TimeoutError, match="has not ended"):
            next(client.map(sample_steps.arithmetic, [1], timeout_s=0.2))
    else:
        task = client.submit(sample_steps.arithmetic, 1)
        asyncio.run_coroutine_threadsafe(full.asked.wait(), client._loop).result(5.0)
        if how == "one":
            task.cancel()
        else:
            client.cancel_all([task], "no more")
        assert "abandoned before" in task.outcome(5.0).error
    assert full.accepting and not full.submitted
    assert how == "one" or not client._running, "what was given up has ended"


def test_a_map_is_given_up_in_time_though_the_master_is_away(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(_Full):
        async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
            raise Unavailable("gone")

    gone = Gone()
    monkeypatch.setattr(client, "_stub", gone)
    monkeypatch.setattr("hrm.pipelines.client.client.GIVE_UP_S", 0.1)
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match="has not ended"):
        next(client.map(sample_steps.arithmetic, [1], timeout_s=0.2))
    assert time.monotonic() - begun_s < client.patience_s / 2


def test_every_call_has_the_clients_time_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    class Refusing(_Away):
        async def Submit(self, request: Any, timeout: float) -> None:  # noqa: N802
            limits.append(timeout)
            raise InvalidRequest("no")

    monkeypatch.setattr(client, "_stub", Refusing(1))
    monkeypatch.setattr(client, "_call_timeout_s", 7.0)
    with pytest.raises(InvalidRequest):
        client.submit(sample_steps.arithmetic, 1).outcome(5.0)
    assert limits == [7.0]


def test_a_submission_that_its_cancellation_overtook_is_cancelled_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(_Away):
        def __init__(self) -> None:
            super().__init__(1)
            self.asked, self.reply = asyncio.Event(), asyncio.Event()

        async def Submit(self, request: Any, timeout: float) -> None:  # noqa: N802
            self.asked.set()
            await self.reply.wait()

        async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
            self.cancelled.append(request.task_id)
            self.reply.set()
            if len(self.cancelled) == 1:
                raise NotFound("not yet")

        async def _updates(self, task_id: str) -> Any:
            end = pb.PipelineTaskEnd(outcome=pb.PIPELINE_TASK_OUTCOME_CANCELLED)
            yield pb.PipelineTaskUpdate(task_id=task_id, ended=end)

        def Watch(self, request: Any) -> Any:  # noqa: N802
            return self._updates(request.task_ids[0])

    slow = Slow()
    monkeypatch.setattr(client, "_stub", slow)
    task = client.submit(sample_steps.arithmetic, 1)
    asyncio.run_coroutine_threadsafe(slow.asked.wait(), client._loop).result(5.0)
    task.cancel()
    assert "cancelled" in task.outcome(5.0).error
    assert slow.cancelled == [task.task_id, task.task_id]
