"""A client and workers that forge results: which it reads, and where a task's key can be seen."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from pipeline_samples import sample_steps
from structlog.testing import capture_logs

from hrm.errors import PermissionDenied
from hrm.pipelines import Client
from hrm.pipelines.client.client import Task
from hrm.pipelines.client.outcome import TaskResult
from hrm.pipelines.client.results import Seal, encode
from hrm.pipelines.core.model import ResultFormat, TaskId
from hrm.v1 import pipeline_pb2 as pb
from tests.master.pipeline_service import (
    LIMIT_S,
    FakeWorker,
    Served,
    refused,
    request,
    serving,
)
from tests.pipeline.test_results import Bomb
from tests.spark.fake_master import until

PICKLE, JSON = pb.PIPELINE_RESULT_FORMAT_PICKLE, pb.PIPELINE_RESULT_FORMAT_JSON


@contextmanager
def connected(at: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HRM_TOKEN_FILE", str(at.master.settings.token_file))
    with Client(at.master.address, patience_s=5.0, user="ada") as client:
        yield client


@asynccontextmanager
async def placed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> AsyncIterator[tuple[Served, FakeWorker, Task, pb.PlacePipelineTask]]:
    """A task of a real client whose order has come to a worker that the test plays."""
    async with serving(directory) as at:
        with connected(at, monkeypatch) as client:
            task = client.submit(sample_steps.slow, 1, **more)
            await until(lambda: at.live == [task.task_id])
            worker = at.worker(task.task_id)
            await worker.receive("registered")
            await worker.receive("data")
            yield at, worker, task, await worker.receive("place")


def proved(order: pb.PlacePipelineTask, data: bytes, kind: ResultFormat) -> bytes:
    seal = Seal(io.BytesIO(), order.result_key, order.attempt.task_id, order.attempt.attempt)
    seal.write(data)
    return seal.proof(kind)


@asynccontextmanager
async def _quietly(opened: Any) -> AsyncIterator[tuple[list[Any], Any]]:
    """Yields what is logged meanwhile."""
    with capture_logs() as output:
        async with opened as there:
            yield output, there


def _contents(directory: Path) -> list[bytes]:
    """All but the key of draws, for which the test's random bytes are as good as any."""
    paths = [x for x in directory.rglob("*") if x.is_file() and x.name != "policy-draw.key"]
    return [path.read_bytes() for path in paths]


async def outcome(task: Task) -> TaskResult:
    return await asyncio.to_thread(task.outcome, LIMIT_S)


async def test_the_worker_that_has_the_order_proves_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with placed(tmp_path, monkeypatch) as (_, worker, task, order):
        assert (order.user, len(order.result_key)) == ("ada", 32)
        assert order.result_format == pb.PIPELINE_RESULT_FORMAT_AUTO
        file = io.BytesIO()
        at = order.attempt
        seal = Seal(file, order.result_key, at.task_id, at.attempt)
        kind = encode([1, 2], ResultFormat.AUTO, seal)
        worker.end(at, file.getvalue(), result_format=JSON, proof=seal.proof(kind))
        assert (await outcome(task)).value == [1, 2]


@pytest.mark.parametrize("lie", ["no proof", "other key", "other task", "other bytes"])
async def test_a_worker_that_makes_a_result_up_runs_nothing_in_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "went-off"))
    async with placed(tmp_path / "state", monkeypatch) as (_, worker, task, order):
        seen = pb.PlacePipelineTask()
        seen.CopyFrom(order)
        if lie == "other key":
            seen.result_key = bytes(32)
        if lie == "other task":
            seen.attempt.task_id = "another"
        proof = proved(seen, b"other" if lie == "other bytes" else bomb, ResultFormat.PICKLE)
        worker.end(
            order.attempt, bomb, result_format=PICKLE, proof=b"" if lie == "no proof" else proof
        )
        with pytest.raises(PermissionDenied, match=f"{task.task_id} from node .*was not read"):
            await outcome(task)
    assert not (tmp_path / "went-off").exists()


async def test_one_that_asks_for_json_unpickles_nothing_of_a_worker_that_has_the_key_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "went-off"))
    state = tmp_path / "state"
    async with placed(state, monkeypatch, result_format="json") as (_, worker, task, order):
        proof = proved(order, bomb, ResultFormat.PICKLE)
        worker.end(order.attempt, bomb, result_format=PICKLE, proof=proof)
        with pytest.raises(PermissionDenied, match="came as pickle, and json was requested"):
            await outcome(task)
    assert not (tmp_path / "went-off").exists()


async def test_the_key_is_for_the_tasks_worker_alone_and_gone_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = b"the key of a task, 32 bytes long"
    monkeypatch.setattr("secrets.token_bytes", lambda _count: key)
    async with _quietly(placed(tmp_path, monkeypatch)) as (output, there):
        at, worker, task, order = there
        assert order.result_key == key
        everything = pb.ListPipelineTasksRequest(all=True)
        reported = (await at.stub.List(everything)).SerializeToString()
        assert list(at.tasks._keys.values()) == [key]
        data = b"[1]"
        proof = proved(order, data, ResultFormat.JSON)
        worker.end(order.attempt, data, result_format=JSON, proof=proof)
        assert (await outcome(task)).value == [1]
        assert not at.tasks._keys and not at.tasks._proofs
        assert key not in repr(at.tasks.workloads.ended[TaskId(task.task_id)]).encode()
        reported += (await at.stub.List(everything)).SerializeToString()
        watch = at.stub.Watch(pb.WatchPipelineTasksRequest(task_ids=[task.task_id]))
        reported += b"".join([one.SerializeToString() async for one in watch])
        reported += (
            at.tasks.workloads.explain(TaskId(task.task_id)).encode() + repr(output).encode()
        )
        files = await asyncio.to_thread(_contents, tmp_path)
    assert output, "the log is looked at"
    for place in (reported, *files):
        assert key not in place and key.hex().encode() not in place


async def test_a_cancelled_tasks_key_is_dropped_and_a_refused_ones_not_kept(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, pipeline_queue_limit=1) as at:
        await at.stub.Submit(request(task_id="t", result_key=bytes(32)))
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "pipeline_queue_limit"):
            await at.stub.Submit(request(task_id="u", result_key=bytes(32)))
        assert list(at.tasks._keys) == ["t"]
        await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id="t"))
        assert not at.tasks._keys


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        ({"result_key": b"short"}, "result_key has 5 bytes; 16 to 64, or none"),
        ({"result_key": bytes(65)}, "result_key has 65 bytes"),
        ({"result_format": 9}, "result_format is 9"),
        ({"user": "x" * 100_000}, "user has 100000 characters"),
    ],
)
async def test_what_goes_with_a_task_is_bounded(
    tmp_path: Path, bad: dict[str, Any], part: str
) -> None:
    async with serving(tmp_path) as at:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
            await at.stub.Submit(request(**bad))
        assert not at.live and not at.tasks._keys


@pytest.mark.parametrize(
    "bad", [{"proof": bytes(65)}, {"result_format": pb.PIPELINE_RESULT_FORMAT_AUTO}]
)
async def test_a_worker_that_sends_nonsense_about_a_result_is_disconnected(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        worker.end(order.attempt, b"result", **bad)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "end."):
            await worker.receive("acknowledge")
        assert at.live == ["t"]


async def test_whose_a_task_is_and_whose_its_worker_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with placed(tmp_path, monkeypatch) as (at, _, _, order):
        listed = await at.stub.List(pb.ListPipelineTasksRequest())
        assert [one.user for one in listed.tasks] == ["ada"]
        application_id = at.workload_of(order.attempt.task_id).application_id
        assert [one.application_id for one in listed.nodes] == [application_id]
        assert application_id.startswith("pipelines-")
