"""PipelineService with real nodes: what it refuses, what it keeps, the life of a node's stream."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hrm import ownership_keys, rpc, rpc_server
from hrm.config import MasterSettings
from hrm.errors import InvalidConfig, InvalidRequest, LimitReached, NotFound
from hrm.pipelines.core.cluster import LeastWait
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.master import result_files as pipeline_files
from hrm.pipelines.master.result_files import PipelineFiles
from hrm.pipelines.master.service import PipelineService
from hrm.pipelines.master.tasks import NodeStream, PipelineTasks, pipeline_policy
from hrm.policies.guard import GuardRegistry
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import BOTH, Node, capacity, pipeline, subtask, task

TOKEN = "t"
CPU = pb.SubtaskDevice.SUBTASK_DEVICE_CPU
LIMIT_S = 10.0


@asynccontextmanager
async def serving(
    directory: Path, *, epoch: int = 0, ports: list[int] | None = None, **settings: Any
) -> AsyncIterator[tuple[PipelineTasks, Any]]:
    """A service on a free port of the loopback (it goes to ``ports``), and a stub for it."""
    broken: list[Exception] = []
    tasks = PipelineTasks(
        MasterSettings(state_dir=directory, **settings),
        policy=LeastWait(),
        stop=broken.append,
        epoch=epoch,
    )
    server = grpc.aio.server(
        interceptors=[rpc_server.AccessInterceptor(TOKEN)], options=rpc_server.SERVER_OPTIONS
    )
    service = PipelineService(tasks, 0.2)
    pipeline_pb2_grpc.add_PipelineServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    if ports is not None:
        ports.append(port)
    await server.start()
    try:
        async with rpc.channel(f"127.0.0.1:{port}", TOKEN) as channel:
            yield tasks, pipeline_pb2_grpc.PipelineServiceStub(channel)
    finally:
        await server.stop(0)
    assert not broken


def request(**more: Any) -> pb.SubmitPipelineTaskRequest:
    spec = more.pop("pipeline", None) or pw.from_pipeline(pipeline(subtask("a")))
    return pb.SubmitPipelineTaskRequest(pipeline=spec, payload=b"x", **more)


@contextmanager
def refused(code: grpc.StatusCode, *parts: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code
    for part in parts:
        assert part in (caught.value.details() or "")


def _spec(**fields: Any) -> pb.PipelineSpec:
    base: dict[str, Any] = {
        "name": "p",
        "reference": "m:p",
        "subtasks": [pb.PipelineSubtask(name="a", devices=[CPU], timeout_s=1, attempts=1)],
    }
    return pb.PipelineSpec(**(base | fields))


def _one(**fields: Any) -> list[pb.PipelineSubtask]:
    base: dict[str, Any] = {"name": "a", "devices": [CPU], "timeout_s": 1, "attempts": 1}
    return [pb.PipelineSubtask(**(base | fields))]


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (request(task_id="../x"), "task_id"),
        (request(pipeline=_spec(name="")), "pipeline.name"),
        (request(pipeline=_spec(reference="m")), "MODULE:ATTRIBUTE"),
        (request(pipeline=_spec(subtasks=[])), "0 subtasks"),
        (request(pipeline=_spec(subtasks=_one(after=["b"]))), "remove the cycle"),
        (request(pipeline=_spec(subtasks=_one() + _one())), "twice"),
        (request(pipeline=_spec(subtasks=_one(devices=[]))), "neither a CPU nor a GPU"),
        (request(pipeline=_spec(subtasks=_one(devices=[7]))), "devices"),
        (request(pipeline=_spec(subtasks=_one(timeout_s=float("nan")))), "timeout_s"),
        (request(pipeline=_spec(subtasks=_one(attempts=0))), "attempts"),
        (request(pipeline=_spec(subtasks=_one(memory_mib=-1))), "memory_mib"),
        (request(size_mb=float("inf")), "size_mb"),
        (request(files=[pb.SourceFile(path="../x.py")]), "'../x.py'"),
        (request(files=[pb.SourceFile(path="/x.py")]), "'/x.py'"),
        (request(files=[pb.SourceFile(path="x", content=bytes(5 << 20))]), "more than"),
    ],
)
async def test_a_bad_submission_is_refused_by_its_field(
    tmp_path: Path, bad: pb.SubmitPipelineTaskRequest, part: str
) -> None:
    async with serving(tmp_path) as (tasks, stub):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
            await stub.Submit(bad)
        assert not tasks.core.tasks and tasks.files.held_bytes == 0


async def test_bounds_are_named(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"pipeline_queue_limit": 1, "pipeline_payload_mib": 1}
    async with serving(tmp_path, **limits) as (tasks, stub):
        large = request()
        large.payload = bytes(2 << 20)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "pipeline_payload_mib"):
            await stub.Submit(large)
        await stub.Submit(request(task_id="t"))
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "pipeline_queue_limit"):
            await stub.Submit(request())
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t"):
            await stub.Submit(request(task_id="t"))
        assert tasks.files.held_bytes == 1, "nothing is left of what was refused"
        assert await content(tasks.files, "t", "in") == b"x"


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, stub):
        with refused(grpc.StatusCode.NOT_FOUND, "no pipeline task x"):
            await stub.Cancel(pb.CancelPipelineTaskRequest(task_id="x"))
        with refused(grpc.StatusCode.NOT_FOUND, "no result"):
            [one async for one in stub.GetResult(pb.GetPipelineResultRequest(task_id="x"))]
        with refused(grpc.StatusCode.NOT_FOUND, "no pipeline task x"):
            [one async for one in stub.Watch(pb.WatchPipelineTasksRequest(task_ids=["x"]))]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "task_ids"):
            [one async for one in stub.Watch(pb.WatchPipelineTasksRequest())]


class FakeNode:
    """One end of a node's stream, played by a test."""

    def __init__(self, stub: Any, identity: str = "i1", **register: Any) -> None:
        self._outgoing: asyncio.Queue[pb.NodePipelineMessage] = asyncio.Queue()
        node = Node(capacity("n1"))
        message = pb.RegisterPipelineNode(
            capacity=pw.from_capacity(node.core.capacity),
            identity=identity,
            load=pw.from_load(node.core.load(0.0)),
            **register,
        )
        self.send_update(register=message)
        self._call = stub.Connect(self._all())
        self._messages = aiter(self._call)

    def send_update(self, **fields: Any) -> None:
        self._outgoing.put_nowait(pb.NodePipelineMessage(**fields))

    async def _all(self) -> AsyncIterator[pb.NodePipelineMessage]:
        while True:
            yield await self._outgoing.get()

    async def receive(self, kind: str) -> Any:
        """The next message, which must be of this kind."""
        async with asyncio.timeout(LIMIT_S):
            message = await anext(self._messages)
        assert message.WhichOneof("message") == kind
        return getattr(message, kind)

    def hang_up(self) -> None:
        self._call.cancel()

    def end(self, attempt: pb.PipelineAttempt, result: bytes, **more: Any) -> None:
        done = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE
        self.send_update(data=pb.PipelineData(attempt=attempt, data=result[:2]))
        self.send_update(data=pb.PipelineData(attempt=attempt, offset=2, data=result[2:]))
        end = pb.PipelineTaskEnd(outcome=done, result_bytes=len(result), **more)
        self.send_update(ended=pb.PipelineAttemptEnd(attempt=attempt, end=end))


async def _result(stub: Any, task_id: str, **more: Any) -> bytes:
    call = stub.GetResult(pb.GetPipelineResultRequest(task_id=task_id, **more))
    return b"".join([chunk.data async for chunk in call])


async def test_an_input_goes_out_and_a_result_comes_back_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        await stub.Submit(request(task_id="t"))
        data = await node.receive("data")
        place = await node.receive("place")
        assert (data.data, place.payload_bytes, place.attempt.task_id) == (b"x", 1, "t")
        node.end(place.attempt, b"result")
        assert (await node.receive("acknowledge")).task_id == "t"
        node.end(place.attempt, b"other!")
        await node.receive("acknowledge")
        assert await _result(stub, "t") == b"result"
        assert await _result(stub, "t", forget=True) == b"result"
        with refused(grpc.StatusCode.NOT_FOUND, "no result"):
            await _result(stub, "t")
        assert tasks.files.held_bytes == 0


async def test_a_result_is_its_clients(tmp_path: Path) -> None:
    async with serving(tmp_path, pipeline_ended_kept=1) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        mine, other = ownership_keys.new_key(), ownership_keys.new_key()
        await stub.Submit(request(task_id="t", ownership_key=mine))
        for key in ("", other):  # such as one that has guessed the next id
            with refused(grpc.StatusCode.PERMISSION_DENIED, "pipeline task t"):
                await stub.Submit(request(task_id="t", ownership_key=key))
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t"):
            await stub.Submit(request(task_id="t", ownership_key=mine))
        await node.receive("data")
        node.end((await node.receive("place")).attempt, b"result")
        await node.receive("acknowledge")
        for key in ("", other):
            with refused(grpc.StatusCode.PERMISSION_DENIED, "pipeline task t"):
                await _result(stub, "t", forget=True, ownership_key=key)
        assert await _result(stub, "t", forget=True, ownership_key=mine) == b"result"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "ownership_key"):
            await stub.Submit(request(task_id="u", ownership_key="short"))
        large = request(task_id="u", ownership_key=other)
        large.pipeline.name = ""
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await stub.Submit(large)
        assert set(tasks._owners) == {"t"}


async def test_a_result_that_is_not_whole_fails_its_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        await stub.Submit(request(task_id="t"))
        await node.receive("data")
        attempt = (await node.receive("place")).attempt
        done = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE
        end = pb.PipelineTaskEnd(outcome=done, result_bytes=9)
        node.send_update(ended=pb.PipelineAttemptEnd(attempt=attempt, end=end))
        await node.receive("acknowledge")
        watch = stub.Watch(pb.WatchPipelineTasksRequest(task_ids=["t"]))
        (update,) = [one async for one in watch]
        assert "did not arrive whole" in update.ended.message


async def test_a_node_that_comes_back_keeps_its_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        await stub.Submit(request(task_id="t"))
        await node.receive("data")
        attempt = (await node.receive("place")).attempt
        with refused(grpc.StatusCode.ALREADY_EXISTS, "another live agent"):
            await FakeNode(stub, identity="i2").receive("registered")
        node.hang_up()
        unknown_attempt = pb.PipelineAttempt(task_id="old", attempt=1)
        again = FakeNode(stub, tasks=[attempt, unknown_attempt])
        await again.receive("registered")
        assert (await again.receive("withdraw")).attempt.task_id == "old"
        again.end(attempt, b"result")
        await again.receive("acknowledge")
        assert await _result(stub, "t") == b"result"
        assert tasks.core.ended[TaskId("t")].attempt == 1


async def test_an_id_that_is_given_twice_is_two_tasks_to_two_masters(tmp_path: Path) -> None:
    """The node has ended the task of the first master, which ended before it received that."""
    async with serving(tmp_path, epoch=7) as (_, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        await stub.Submit(request(task_id="t"))
        await node.receive("data")
        old = (await node.receive("place")).attempt
    async with serving(tmp_path, epoch=8) as (tasks, stub):
        await stub.Submit(request(task_id="t"))
        node = FakeNode(stub, tasks=[old])
        await node.receive("registered")
        assert (await node.receive("withdraw")).attempt == old
        await node.receive("data")
        new = (await node.receive("place")).attempt
        assert new != old
        node.end(old, b"of the first master")
        assert await node.receive("acknowledge") == old
        assert TaskId("t") in tasks.core.tasks, "it goes on"
        node.end(new, b"of the second")
        await node.receive("acknowledge")
        assert await _result(stub, "t") == b"of the second"
        assert tasks.core.ended[TaskId("t")].attempt == 1, "people see small numbers"


async def test_one_that_placed_a_task_and_its_steps_is_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        await stub.Submit(request(task_id="t"))
        await node.receive("data")
        attempt = (await node.receive("place")).attempt
        for number, (decided_by, why) in enumerate([("iawp", ""), ("pats", "over-budget: 12 ms")]):
            timing = pb.SubtaskTiming(
                subtask="a", device=CPU, run=number, outcome=pb.SUBTASK_OUTCOME_DONE,
                placed_by=decided_by, fallback=why,
            )  # fmt: skip
            node.send_update(run=pb.PipelineRun(attempt=attempt, timing=timing))
        node.end(attempt, b"result")
        await node.receive("acknowledge")
        (task,) = (await stub.List(pb.ListPipelineTasksRequest(all=True))).tasks
        assert (task.placed_by, task.fallback) == ("least-wait", "")
        assert dict(task.runs_placed_by) == {"iawp": 1, "pats": 1}
        assert task.run_fallback == "over-budget: 12 ms"
        assert tasks.core.chosen(TaskId("t")) == [
            "its node was chosen by least-wait",
            "a on cpu 0 by iawp",
            "a on cpu 0 by pats, not by the policy in charge: over-budget: 12 ms",
        ]


async def test_a_bad_message_ends_the_stream_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        node.send_update(load=pb.PipelineLoad(cpu=float("nan")))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "load.cpu"):
            await node.receive("place")
        await stub.Submit(request(task_id="t"))
        assert "draining" in tasks.core.explain(TaskId("t")), "its stream is down"


async def content(files: PipelineFiles, task: str, what: str = "out") -> bytes:
    return b"".join([data async for data in files.chunks(TaskId(task), what)])


async def test_files_keep_their_bound(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path / "p", 10)
    await files.put_input(TaskId("a"), b"1234")
    await files.add(TaskId("a"), 1, 0, b"12")
    await files.add(TaskId("a"), 1, 0, b"123")
    await files.add(TaskId("a"), 1, 3, b"4")
    assert files.held_bytes == 8
    with pytest.raises(LimitReached, match="pipeline_held_mib"):
        await files.add(TaskId("a"), 1, 4, b"567")
    assert not files.finish(TaskId("a"), 1, 7)
    assert files.finish(TaskId("a"), 1, 4)
    files.drop(TaskId("a"), result=False)
    assert (files.held_bytes, await content(files, "a")) == (4, b"1234")
    files.drop(TaskId("a"))
    with pytest.raises(NotFound):
        await content(files, "a")
    await emptied(tmp_path / "p")


async def emptied(directory: Path) -> None:
    async with asyncio.timeout(10.0):
        while list(directory.iterdir()):  # noqa: ASYNC110, ASYNC240 - threads empty it
            await asyncio.sleep(0.01)


class SlowDisk:
    """Delays the writing of one task's files; others' are written immediately."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
        self._writing, self.go_on = threading.Event(), threading.Event()
        write = pipeline_files._write

        def slowly(path: Path, data: bytes, mode: str) -> int:
            if path.name.startswith(f"{task}."):
                self._writing.set()
                assert self.go_on.wait(10.0)
            return write(path, data, mode)

        monkeypatch.setattr(pipeline_files, "_write", slowly)

    async def writing(self) -> None:
        assert await asyncio.to_thread(self._writing.wait, 10.0)


async def test_a_slow_disk_delays_its_writer_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "slow")
    files = PipelineFiles(tmp_path / "p", 10)
    slow = asyncio.create_task(files.put_input(TaskId("slow"), b"1234"))
    await disk.writing()
    assert files.held_bytes == 4, "room that is promised"
    await files.put_input(TaskId("quick"), b"5678")
    assert await content(files, "quick", "in") == b"5678"
    with pytest.raises(LimitReached):
        await files.put_input(TaskId("third"), b"9ab")
    reading = asyncio.create_task(content(files, "slow", "in"))
    disk.go_on.set()
    assert await reading == b"1234", "it waits for who writes"
    await slow


async def test_what_is_dropped_while_it_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    files = PipelineFiles(tmp_path / "p", 10)
    adding = asyncio.create_task(files.add(TaskId("t"), 1, 0, b"1234"))
    await disk.writing()
    adding.cancel()
    files.drop(TaskId("t"))
    assert files.held_bytes == 0
    disk.go_on.set()
    await asyncio.gather(adding, return_exceptions=True)
    await emptied(tmp_path / "p")
    assert files.held_bytes == 0


async def test_the_master_replies_while_an_input_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    async with serving(tmp_path) as (tasks, stub):
        first = stub.Submit(request(task_id="t"))
        await disk.writing()
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t is there already"):
            await stub.Submit(request(task_id="t"))
        assert not (await stub.List(pb.ListPipelineTasksRequest())).tasks
        disk.go_on.set()
        await first
        assert list(tasks.core.tasks) == ["t"]
        assert await content(tasks.files, "t", "in") == b"x", "the second took nothing away"


async def test_one_that_goes_away_while_its_input_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    async with serving(tmp_path) as (tasks, stub):
        submitting = stub.Submit(request(task_id="t"))
        await disk.writing()
        submitting.cancel()
        async with asyncio.timeout(10.0):
            while tasks.files.held_bytes:  # noqa: ASYNC110 - the server notices it eventually
                await asyncio.sleep(0.01)
        disk.go_on.set()
        await emptied(tmp_path / "pipelines")
        await stub.Submit(request(task_id="t"))
        assert list(tasks.core.tasks) == ["t"]


def test_the_policy_is_loaded_by_name(tmp_path: Path) -> None:
    settings = MasterSettings(state_dir=tmp_path)
    assert pipeline_policy(settings, GuardRegistry(), seed=1).name == "min-wait"
    settings = settings.model_copy(update={"pipeline_policy": "nobody"})
    with pytest.raises(InvalidConfig, match="'nobody'"):
        pipeline_policy(settings, GuardRegistry(), seed=1)


def test_records_survive_the_wire() -> None:
    node = Node(capacity("n1", gpus=2))
    steps = pipeline(subtask("a", on=BOTH, memory_mib=5), subtask("b", "a", timeout_s=1.5))
    assert pw.to_pipeline(pw.from_pipeline(steps)) == steps
    assert pw.to_capacity(pw.from_capacity(node.core.capacity)) == node.core.capacity
    node.place(task("t", steps))
    load = node.core.load(1.0)
    assert pw.to_load(pw.from_load(load)) == load
    node.end("t.a", 2.0)
    node.end("t.b", 3.0)
    for timing in node.ended[0].timings:
        assert pw.to_timing(pw.from_timing(timing), TaskId("t")) == timing


@asynccontextmanager
async def ticking(tasks: PipelineTasks) -> AsyncIterator[None]:
    ticks = asyncio.create_task(tasks.tick_forever(lambda _name: False))
    try:
        yield
    finally:
        ticks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticks


async def test_old_results_make_capacity_and_young_ones_do_not(tmp_path: Path) -> None:
    now = 0.0
    files = PipelineFiles(tmp_path / "p", 10, lambda: now)
    for name in ("a", "b"):
        await files.add(TaskId(name), 1, 0, b"1234")
        assert files.finish(TaskId(name), 1, 4)
        now += 30.0
    now = 59.0
    with pytest.raises(LimitReached, match="pipeline_held_mib"):
        await files.put_input(TaskId("c"), b"1234")
    now = 61.0
    await files.put_input(TaskId("c"), b"1234")
    with pytest.raises(NotFound, match="evicted for newer ones"):
        await content(files, "a")
    assert await content(files, "b") == b"1234"
    assert files.held_bytes == 8
    now = 1000.0
    with pytest.raises(LimitReached):
        await files.put_input(TaskId("d"), b"x" * 7)
    assert files.held_bytes == 4, "inputs of live tasks stay"


async def test_a_node_that_was_silent_for_too_long_has_to_register_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        node = FakeNode(stub)
        await node.receive("registered")
        (row,) = tasks.core.table.nodes.values()
        row.reported_at_s = 0.0
        async with ticking(tasks):
            with pytest.raises(StopAsyncIteration):
                await node.receive("anything")
            assert not tasks.core.table.nodes
            again = FakeNode(stub, identity="i2")
            await again.receive("registered")
            assert list(tasks.core.table.nodes) == ["n1"]


async def test_a_node_is_informed_whether_it_drains_whatever_it_remembers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub), ticking(tasks):
        node = FakeNode(stub)
        await node.receive("registered")
        assert await node.receive("drain") is False


async def test_a_node_that_does_not_read_is_disconnected() -> None:
    stream = NodeStream("i1")
    for _ in range(30_000):
        stream.put(pb.MasterPipelineMessage(drain=True))
    assert stream.closed and stream.stream_ended.is_set()
    assert stream.queue.qsize() <= 10_001


async def test_a_disk_that_is_full_refuses_and_keeps_nothing(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path / "p", 10)
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(LimitReached, match="free space on the master"):
        await files.put_input(TaskId("a"), b"1")
    with pytest.raises(LimitReached, match="free space on the master"):
        await files.add(TaskId("a"), 1, 0, b"1")
    assert files.held_bytes == 0


def test_a_row_of_no_bucket_is_refused() -> None:
    row = pb.PipelineRow(kind="k", bucket=6)
    timing = pb.SubtaskTiming(row=row, device=CPU, outcome=pb.SUBTASK_OUTCOME_DONE)
    with pytest.raises(InvalidRequest, match=r"row\.bucket"):
        pw.to_timing(timing, TaskId("t"))


async def test_tasks_of_the_same_code_hold_it_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tasks, stub):
        files = [pb.SourceFile(path="a.py", content=b"x = 1")]
        for name, raw in (("a", False), ("b", False), ("raw", True)):
            await stub.Submit(request(task_id=name, files=files, raw=raw))
        code = tasks._code
        assert code[TaskId("a")] is code[TaskId("b")] is not code[TaskId("raw")]
        assert code[TaskId("raw")].raw and not code[TaskId("a")].raw
        del code
        for name in ("a", "b", "raw"):
            await stub.Cancel(pb.CancelPipelineTaskRequest(task_id=name))
        assert not tasks._shared
