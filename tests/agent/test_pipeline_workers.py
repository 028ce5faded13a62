"""Worker processes of an agent, without the agent."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.core.vocabulary.model import Gpu, NodeName
from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.agent.worker_pool import RunResult, Workers
from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node_messages import NodeCapacity, RunOutcome

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 30.0


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    capacity = NodeCapacity(name=NodeName("n1"), cores=1, memory_mib=512.0)
    share = PipelineShare(capacity=capacity, cpus=(None,), gpus={})
    made = Workers(share, tmp_path, str(REPOSITORY))
    yield made
    await made.close()


def _nap(directory: Path, seconds: float) -> dict[str, Any]:
    given = directory / "input"
    given.write_bytes(pickle.dumps(seconds))
    return {
        "reference": "pipeline_samples.sample_steps:slow",
        "subtask": "nap",
        "device": "cpu",
        "inputs": [str(given)],
        "raw": False,
        "output": str(directory / "output"),
        "memory_limit_mib": 0,
    }


async def _run(workers: Workers, number: int, directory: Path, seconds: float) -> RunResult:
    async with asyncio.timeout(LIMIT_S):
        return await workers.run(
            number, (Device.CPU, 0), directory, _nap(directory, seconds), lambda _pid: None
        )


async def test_a_run_that_is_stopped_before_it_begins_does_not_run(
    workers: Workers, tmp_path: Path
) -> None:
    begun = asyncio.ensure_future(_run(workers, 1, tmp_path, 600.0))
    workers.stop(1)  # ordered in the same turn of the loop, before the run has had one
    started_s = time.monotonic()
    result = await begun
    assert result.outcome is RunOutcome.CRASHED and "before it began" in result.message
    assert time.monotonic() - started_s < 5.0
    assert (await _run(workers, 2, tmp_path, 0.0)).outcome is RunOutcome.DONE


async def test_a_run_that_is_stopped_midway_takes_its_worker_along(
    workers: Workers, tmp_path: Path
) -> None:
    pids: list[int] = []
    started = asyncio.Event()

    def on_start(pid: int) -> None:
        pids.append(pid)
        started.set()

    job = _nap(tmp_path, 600.0)
    run = asyncio.ensure_future(workers.run(1, (Device.CPU, 0), tmp_path, job, on_start))
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
        workers.stop(1)
        result = await run
    assert result.outcome is RunOutcome.CRASHED and "SIGKILL" in result.message
    assert not psutil.pid_exists(pids[0])


async def test_few_workers_wait_on_one_gpu_whatever_their_code(tmp_path: Path) -> None:
    capacity = NodeCapacity(name=NodeName("n1"), cores=1, memory_mib=512.0)
    gpus = {0: Gpu(index=0, memory_mib=1000, declared=True)}
    workers = Workers(
        PipelineShare(capacity=capacity, cpus=(None,), gpus=gpus), tmp_path, str(REPOSITORY)
    )
    pids: list[int] = []
    try:
        for number in range(5):
            code = tmp_path / f"code {number}"
            code.mkdir()
            async with asyncio.timeout(LIMIT_S):
                run = workers.run(number, (Device.GPU, 0), code, _nap(tmp_path, 0.0), pids.append)
                assert (await run).outcome is RunOutcome.DONE
        kept = [worker.process.pid for worker in workers._idle]
        assert kept == pids[1:], "the one that has waited longest made room"
    finally:
        await workers.close()
    assert not any(map(psutil.pid_exists, pids)), "who made room is not left to itself"


@pytest.mark.parametrize(
    "response",
    [
        b"[]", b"1", b"nonsense", b'{"outcome": "FINE"}', b'{"outcome": 1}', b"[" * 100_000,
        b'{"outcome": "DONE", "ran_s": "long"}', b'{"outcome": "DONE", "ran_s": NaN}',
        b'{"outcome": "DONE", "memory_mib": -1}', b'{"outcome": "DONE", "gpu_memory_mib": 1e300}',
        b'{"outcome": "DONE", "message": []}', b'{"outcome": "DONE", "proof": "no"}',
        b'{"outcome": "DONE", "result_format": "xml"}', b"x" * (2 << 20),
    ],
    ids=lambda one: one[:40].decode(),
)  # fmt: skip
async def test_what_a_function_returns_in_its_workers_place_is_checked(
    tmp_path: Path, workers: Workers, response: bytes
) -> None:
    """A function may find the pipe to the agent. It loses its worker, and affects nothing else."""
    (tmp_path / "answer").write_bytes(response)
    (tmp_path / "lying.py").write_text(LYING.format(path=tmp_path / "answer"))
    job = {**_nap(tmp_path, 0.0), "reference": "lying:lying", "subtask": "lie"}
    async with asyncio.timeout(LIMIT_S):
        result = await workers.run(1, (Device.CPU, 0), tmp_path, job, lambda _pid: None)
    assert result.outcome is RunOutcome.CRASHED and not workers._idle


LYING = """
import os
from pathlib import Path
from hrm.pipelines import Pipeline
lying = Pipeline("lying")

@lying.subtask()
def lie(value):
    content = Path("{path}").read_bytes() + b"\\n"
    for number in range(3, 20):
        try:
            left = content
            while left:
                left = left[os.write(number, left):]
        except OSError:
            pass
    os.read(0, 1)
"""
