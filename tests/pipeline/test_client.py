"""The client without a cluster."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from pipeline_samples import sample_steps

from hrm import errors, rpc
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import InvalidRequest, NotFound, Unavailable
from hrm.pipelines.client.client import Client, Task
from hrm.pipelines.client.outcome import TaskResult
from hrm.pipelines.client.tickets import Ticket
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import codec


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


def refused(code: int = 7) -> AioRpcError:
    """As gRPC reports a call that its server has reset."""
    status = grpc.StatusCode.UNAVAILABLE if code == 7 else grpc.StatusCode.RESOURCE_EXHAUSTED
    return failure(status, f"Received RST_STREAM with error code {code}")


def failure(status: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(status, Metadata(), Metadata(), details, "")


class _Bounded(_Away):
    """It serves few calls at a time, and refuses more as gRPC does. Tasks end at once."""

    def __init__(self, calls_max: int, call_s: float = 0.0) -> None:
        super().__init__(1)
        self.calls_max, self._call_s = calls_max, call_s
        self.calls = self.most = self.refusals = 0
        self.submitted: set[str] = set()

    async def _serve(self) -> None:
        if self.calls >= self.calls_max:
            self.refusals += 1
            raise refused()
        self.calls += 1
        self.most = max(self.most, self.calls)
        await asyncio.sleep(self._call_s)
        self.calls -= 1

    async def Submit(self, request: Any, timeout: float) -> None:  # noqa: N802
        await self._serve()
        self.submitted.add(request.task_id)

    async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
        await self._serve()
        self.cancelled.append(request.task_id)

    async def _updates(self, task_id: str) -> Any:
        end = pb.PipelineTaskEnd(outcome=pb.PIPELINE_TASK_OUTCOME_CANCELLED)
        yield pb.PipelineTaskUpdate(task_id=task_id, ended=end)

    def Watch(self, request: Any) -> Any:  # noqa: N802
        return self._updates(request.task_ids[0])


def test_a_flood_of_tasks_is_sent_as_the_master_accepts_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = _Bounded(32, call_s=0.001)
    monkeypatch.setattr(client, "_stub", bounded)
    tasks = [client.submit(sample_steps.arithmetic, 1) for _ in range(500)]
    assert {task.outcome(20.0).error for task in tasks} == {"it was cancelled"}
    assert len(bounded.submitted) == 500 and not bounded.refusals
    bounded.calls_max = 8
    away = [Task(client, ticket(f"t{n}"), Future()) for n in range(100)]
    client.cancel_all(away, "no more")
    assert len(bounded.cancelled) == 100 and not bounded.refusals


def test_what_is_refused_is_submitted_again_as_long_as_other_calls_are_served(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.patience_s = 0.3
    monkeypatch.setattr("hrm.pipelines.client.repeated_calls.RETRY_S", 0.05)
    bounded = _Bounded(1, call_s=0.1)
    monkeypatch.setattr(client, "_stub", bounded)
    tasks = [client.submit(sample_steps.arithmetic, 1) for _ in range(10)]
    assert {task.outcome(20.0).error for task in tasks} == {"it was cancelled"}
    assert len(bounded.submitted) == 10 and bounded.refusals
    bounded.calls_max = 0
    begun_s = time.monotonic()
    with pytest.raises(Unavailable, match="is up and refuses more calls: it is overloaded"):
        client.submit(sample_steps.arithmetic, 1).outcome(20.0)
    assert time.monotonic() - begun_s < 10.0


@pytest.mark.parametrize("code", [7, 11])
def test_a_refused_call_is_not_taken_for_a_master_that_is_not_there(code: int) -> None:
    message = rpc.error_from(refused(code), "10.0.0.1:7480").message
    assert "10.0.0.1:7480 is up and refuses more calls" in message
    assert "hrm up" not in message and "no HRM master" not in message
    assert not rpc.is_refused(refused(2))


def test_of_what_is_given_up_the_master_hears_only_if_it_was_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = _Bounded(32, call_s=0.2)
    monkeypatch.setattr(client, "_stub", bounded)
    tasks = [client.submit(sample_steps.arithmetic, 1) for _ in range(100)]
    client.cancel_all(tasks, "no more")
    assert all(task.outcome(5.0).error for task in tasks)
    assert set(bounded.cancelled) == bounded.submitted and 0 < len(bounded.submitted) < 100


def test_many_are_given_up_in_time_where_no_call_is_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hung(_Away):
        async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
            self.cancelled.append(request.task_id)
            await asyncio.sleep(timeout)
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    hung = Hung(1)
    monkeypatch.setattr(client, "_stub", hung)
    monkeypatch.setattr("hrm.pipelines.client.client.GIVE_UP_S", 0.2)
    begun_s = time.monotonic()
    client.cancel_all([Task(client, ticket(f"t{n}"), Future()) for n in range(1_000)], "no more")
    assert time.monotonic() - begun_s < 5.0
    assert len(hung.cancelled) < 1_000, "the others need not be tried"


def test_a_closed_client_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_stub", _Bounded(8))
    left = client.map(sample_steps.arithmetic, [1, 2, 3], keep_failures=True)
    going_on = client.map(sample_steps.arithmetic, [1, 2], in_flight=1, keep_failures=True)
    with client:
        task = client.submit(sample_steps.arithmetic, 1)
        next(left)
        next(going_on)
    calls: list[Callable[[], object]] = [
        lambda: client.submit(sample_steps.arithmetic, 1),
        lambda: client.send(sample_steps.arithmetic, 1),
        lambda: client.attach(ticket("t0")),
        lambda: client.forget(ticket("t0")),
        lambda: client.cancel("t0", "no more"),
        lambda: next(going_on),
        client.tasks,
        task.cancel,
    ]
    for call in calls:
        with pytest.raises(errors.HrmError, match=r"this client of 127.0.0.1:1 is closed; make"):
            call()
    left.close()
    gc.collect()  # what is left of calls complains here
    client.close()


def test_the_class_of_a_task_is_a_word(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[pb.SubmitPipelineTaskRequest] = []

    class Listening(_Bounded):
        async def Submit(self, request: Any, timeout: float) -> None:  # noqa: N802
            requests.append(request)

    monkeypatch.setattr(client, "_stub", Listening(1))
    for word in ("stream", WorkloadClass.STREAM, "batch"):
        client.submit(sample_steps.arithmetic, 1, workload=word).outcome(5.0)
    client.send(sample_steps.arithmetic, 1, workload="stream")
    for _ in client.map(sample_steps.arithmetic, [1], workload="stream", keep_failures=True):
        pass
    stream, batch = WorkloadClass.STREAM, WorkloadClass.BATCH
    found = [codec.to_class(one.workload_class, "workload_class") for one in requests]
    assert found == [stream, stream, batch, stream, stream]
    with pytest.raises(InvalidRequest, match="workload is 'fast'; it must be 'batch' or 'stream'"):
        client.submit(sample_steps.arithmetic, 1, workload="fast")


def test_a_plain_text_is_one_label_of_nodes(client: Client, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with Client("127.0.0.1:1", token_path=token, node_labels="zone=a") as one:
        assert one.node_labels == ("zone=a",)
    with Client("127.0.0.1:1", token_path=token, node_labels=["ssd", "gpu", "ssd"]) as two:
        assert two.node_labels == ("gpu", "ssd")
