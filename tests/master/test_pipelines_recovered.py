"""Tasks of pipelines outlive their master: what the next one finds, and what workers bring back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.master import settings as pipeline_settings
from hrm.v1 import common_pb2
from hrm.v1 import pipeline_pb2 as pb
from tests.master.pipeline_service import (
    DONE,
    LIMIT_S,
    FakeWorker,
    Served,
    refused,
    request,
    serving,
)
from tests.master.submitting import RUNNING, Agent, agent
from tests.spark.fake_master import until

FILES = [pb.SourceFile(path="a.py", content=b"x = 1")]


def status_of(spec: common_pb2.ContainerSpec) -> common_pb2.ContainerStatus:
    """As its node reports it to the next master."""
    return common_pb2.ContainerStatus(
        container_id=spec.container_id,
        application_id=spec.application_id,
        executor_id=spec.executor_id,
        workload_class=common_pb2.WORKLOAD_CLASS_BATCH,
        resources=spec.resources,
        state=RUNNING,
        node="n1",
        resource_unit_id=spec.resource_unit_id,
        started_at_s=1.0,
    )


@asynccontextmanager
async def with_a_task_running(
    directory: Path,
) -> AsyncIterator[tuple[common_pb2.ContainerSpec, pb.PlacePipelineTask]]:
    """A master with task t at its worker on node n1; the master ends with this."""
    async with serving(directory) as at, agent(at.master) as node_n1:
        await at.stub.Submit(request(task_id="t", files=FILES, result_key=bytes(32)))
        spec = await node_n1.assigned()
        await node_n1.report_state(spec, RUNNING)
        worker = at.worker("t")
        await worker.receive("registered")
        await worker.receive("data")
        order = await worker.receive("place")
        yield spec, order


@asynccontextmanager
async def back(at: Served, *specs: common_pb2.ContainerSpec) -> AsyncIterator[Agent]:
    """Node n1 has registered with its containers."""
    async with agent(at.master, containers=map(status_of, specs)) as again:
        yield again


async def worker_back(at: Served, spec: common_pb2.ContainerSpec, **more: Any) -> FakeWorker:
    await until(lambda: spec.container_id in at.tasks.workloads.of_worker)
    worker = at.worker("t", name=spec.container_id, **more)
    await worker.receive("registered")
    return worker


async def test_what_runs_goes_on_and_its_result_comes_to_the_next_master(tmp_path: Path) -> None:
    async with with_a_task_running(tmp_path) as (spec, order):
        pass
    async with serving(tmp_path) as at, back(at, spec):
        assert at.live == ["t"]
        worker = await worker_back(at, spec, tasks=[order.attempt])
        (listed,) = (await at.stub.List(pb.ListPipelineTasksRequest())).tasks
        assert (listed.node, listed.application_id) == ("n1", spec.application_id)
        assert listed.attempt == 1, "people see small numbers"
        worker.end(order.attempt, b"result")
        assert await worker.receive("acknowledge") == order.attempt
        assert await at.result("t") == b"result"
        end = await at.ended("t")
        assert (end.attempt, end.placement) == (1, order.attempt.attempt)


async def test_what_does_not_come_back_is_placed_again_with_its_modules_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_a_task_running(tmp_path) as (spec, first):
        pass
    bounds = pipeline_settings.bounds_of_workloads

    def soon(settings: Any) -> WorkloadBounds:
        return replace(bounds(settings), recovery_s=0.5)

    monkeypatch.setattr("hrm.pipelines.master.tasks.bounds_of_workloads", soon)
    async with serving(tmp_path) as at, back(at, spec):
        worker = await worker_back(at, spec)
        data = await worker.receive("data")
        order = await worker.receive("place")
        assert (data.data, list(order.files), order.result_key) == (b"x", FILES, bytes(32))
        assert order.attempt.attempt != first.attempt.attempt
        worker.end(first.attempt, b"of the first")
        await worker.receive("acknowledge")
        assert at.live == ["t"], "that is not the placement that counts"
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        assert await at.result("t") == b"result"


async def test_what_has_ended_is_known_to_the_next_master_and_its_result_is_there(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
    async with serving(tmp_path) as at:
        assert (await at.ended("t")).result_bytes == 6
        assert await at.result("t", forget=True) == b"result"
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t is there already"):
            await at.stub.Submit(request(task_id="t"))
        (listed,) = (await at.stub.List(pb.ListPipelineTasksRequest(all=True))).tasks
        assert (listed.task_id, listed.user, listed.attempt) == ("t", "ada", 1)
        assert listed.application_id.startswith("pipelines-")


async def test_a_task_whose_input_is_lost_with_the_disk_is_cancelled_and_says_so(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as at:
        await at.stub.Submit(request(task_id="t"))
    shutil.rmtree(tmp_path / "master" / "pipelines" / "files")
    async with serving(tmp_path) as at:
        end = await at.ended("t")
        assert end.outcome == pb.PIPELINE_TASK_OUTCOME_CANCELLED
        assert "lost from the master's disk" in end.message
        assert at.tasks.workloads.find(TaskId("t")) is not None and not at.live


async def test_an_end_that_is_not_on_the_disk_leaves_the_task_as_it_was(tmp_path: Path) -> None:
    """The master dies after its worker has reported the end, and before that is written."""
    first, then = tmp_path / "first", tmp_path / "then"
    async with serving(first) as at:
        worker, order = await at.placed("t", result_key=bytes(32))
        store = at.tasks._kept._store
        put, asked = store.put_pipeline_task, asyncio.Event()
        go_on = asyncio.Event()

        async def later(stored: pb.StoredPipelineTask) -> None:
            asked.set()
            await go_on.wait()
            await put(stored)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "put_pipeline_task", lambda x: asyncio.ensure_future(later(x)))
            worker.end(order.attempt, b"result")
            async with asyncio.timeout(LIMIT_S):
                await asked.wait()
            names = {x.name for x in (first / "master/pipelines/files").iterdir()}
            assert names == {"t.in", "t.out"}, "either will do"
            await asyncio.to_thread(shutil.copytree, first / "master", then / "master")
            go_on.set()
            assert (await at.ended("t")).outcome == DONE
        await at.tasks.files.settled(TaskId("t"))
        assert {x.name for x in (first / "master/pipelines/files").iterdir()} == {"t.out"}
    async with serving(then) as at:
        assert at.live == ["t"] and at.tasks.files.has_input(TaskId("t"))


async def test_ends_of_an_earlier_hrm_are_taken_over_without_what_flooded_them(
    tmp_path: Path,
) -> None:
    """That kept co-runners of any number, for steps that the task does not have."""
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        step = order.pipeline.subtasks[0]
        worker.end(order.attempt, b"result", timings=[_run(step)])
        await worker.receive("acknowledge")
        store = at.tasks._kept._store
        (stored,) = store.pipeline_tasks()
        crowd = [pb.PipelineRow(kind="k" * 250, gpu_model="m" * 1_000)] * 1_000
        del stored.end.timings[:]
        stored.end.timings.extend([_run(step, co_runners=crowd, cells={"mine": 1.0})])
        stored.end.timings.extend([_run(step, subtask="no such step")] * 6)
        await store.put_pipeline_task(stored)
    with structlog.testing.capture_logs() as logs:
        async with serving(tmp_path) as at:
            (run,) = (await at.ended("t")).timings
            assert (run.subtask, len(run.co_runners), len(run.cells)) == (step.name, 0, 0)
            assert await at.result("t") == b"result"
    said = {entry["event"]: entry for entry in logs}
    (long,) = [entry for name, entry in said.items() if "is long" in name]
    assert long["task"] == "t" and long["kib"] > 1_000
    taken = said["pipeline tasks are taken over"]
    assert (taken["tasks"], taken["ended"], taken["runs_dropped"]) == (1, 1, 6)


def _run(step: pb.PipelineSubtask, subtask: str = "", **fields: Any) -> pb.SubtaskTiming:
    return pb.SubtaskTiming(
        subtask=subtask or step.name,
        row=pb.PipelineRow(kind=step.kind),
        device=step.devices[0],
        outcome=pb.SUBTASK_OUTCOME_DONE,
        **fields,
    )
