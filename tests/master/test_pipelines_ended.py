"""Ended tasks at the master: which results are kept, and which tasks are forgotten first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from pipeline_samples import sample_steps

from hrm.pipelines.client import client as client_module
from hrm.pipelines.core.model import ResultFormat, TaskId
from hrm.v1 import pipeline_pb2 as pb
from tests.master.pipeline_service import Served, refused, request, serving
from tests.master.test_pipeline_results import JSON, connected, outcome, proved
from tests.spark.fake_master import until

LIMIT_S = 60.0
MANY = 200


async def run_all(at: Served, names: list[str], value: bytes = b"result") -> None:
    """Submit these, and end each well; nobody watches."""
    for name in names:
        await at.stub.Submit(request(task_id=name))
    await end_all(at, len(names), value)


async def end_all(at: Served, many: int, value: bytes) -> None:
    """A worker takes so many live tasks, and all return this."""
    worker = at.worker(at.live[0])
    left = many
    async with asyncio.timeout(LIMIT_S):
        async for message in worker._messages:
            if message.WhichOneof("message") == "place":
                attempt = message.place.attempt
                proof = proved(message.place, value, ResultFormat.JSON)
                worker.end(attempt, value, result_format=JSON, proof=proof)
                worker.send_update(load=pb.PipelineLoad())
                left -= 1
            elif message.WhichOneof("message") == "acknowledge" and not left and not at.live:
                break
    worker.hang_up()


def known(at: Served) -> list[str]:
    return [x.spec.task_id for x in at.tasks.workloads.records()]


async def test_a_result_is_kept_until_it_is_fetched(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(8)]
    async with serving(tmp_path, pipeline_ended_kept=2) as at:
        await run_all(at, names)
        for name in names:
            assert (await at.ended(name)).result_bytes == 6, "its end is known, its result is not"
        assert known(at) == names
        assert await at.result("t7") == b"result"
        for name in names[:4]:
            assert await at.result(name, forget=True) == b"result"
    async with serving(tmp_path, pipeline_ended_kept=2) as at:
        for name in ("t4", "t7"):
            assert await at.result(name) == b"result", "a new master has it as well"
        await run_all(at, ["t8"])
        assert known(at)[-5:] == ["t4", "t5", "t6", "t7", "t8"]
        assert len(known(at)) == 7, "and two of those that have been fetched"


async def test_a_client_gets_the_results_of_more_tasks_than_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than it can watch at a time, too: it gets to the last ones long after they ended."""
    monkeypatch.setattr(client_module, "CONNECTIONS_MAX", 1)
    async with serving(tmp_path, pipeline_ended_kept=2) as at:
        with connected(at, monkeypatch) as client:
            tasks = [client.submit(sample_steps.slow, 1) for _ in range(MANY)]
            await until(lambda: len(at.live) == MANY)
            await end_all(at, MANY, b"7")
            outcomes = [await outcome(task) for task in tasks]
            assert [x.value for x in outcomes] == [7] * MANY
        assert not at.tasks._order.owing
        assert at.tasks.files.held_bytes == 0


async def test_what_has_no_result_is_kept_until_its_end_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path, pipeline_ended_kept=1) as at:
        for number in range(4):
            await at.stub.Submit(request(task_id=f"t{number}"))
            await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id=f"t{number}", reason="why"))
        for number in range(4):
            assert (await at.ended(f"t{number}")).message == "why"
        await at.stub.Submit(request(task_id="t4"))
        watching = asyncio.create_task(at.ended("t4"))
        await until(lambda: TaskId("t4") in at.tasks._watchers._of)
        await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id="t4", reason="why"))
        assert (await watching).message == "why"
        await until(lambda: list(at.tasks._order.settled)[-1:] == ["t4"])
        assert not at.tasks._order.owing


async def test_a_result_that_is_evicted_owes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, pipeline_ended_kept=0) as at:
        await run_all(at, ["t0", "t1"])
        assert known(at) == ["t0", "t1"]
        files = at.tasks.files
        ends = at.tasks._order.held_bytes
        monkeypatch.setattr(files, "_bytes_max", files.held_bytes + ends)
        monkeypatch.setattr(files, "_now_s", lambda: 1e12)
        await at.stub.Submit(request(task_id="t2"))
        assert list(at.tasks._order.owing) == ["t1"]
        with refused(grpc.StatusCode.NOT_FOUND, "no result", "pipeline_held_mib"):
            await at.result("t0")


async def test_the_bytes_of_ends_are_bounded_and_count_with_those_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, pipeline_held_mib=1) as at:
        assert at.tasks._order._bytes_max == (1 << 20) // 8
        names = [f"t{number}" for number in range(40)]
        for name in names:
            await at.stub.Submit(request(task_id=name))
            reason = "x" * 4_000
            await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id=name, reason=reason))
        await until(lambda: not at.live)
        left = known(at)
        assert left == names[-len(left) :], "the oldest are forgotten first"
        assert 30 <= len(left) < 40
        held = at.tasks._order.held_bytes
        assert 100_000 < held <= (1 << 20) // 8
        monkeypatch.setattr(at.tasks.files, "_bytes_max", held)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "results and ends", "pipeline_held_mib"):
            await at.stub.Submit(request(task_id="more", payload=b"x"))
