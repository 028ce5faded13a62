"""Pipelines whose steps compute with PyTorch on a real GPU, on a live cluster without Spark."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pipeline_samples import torch_steps

from hrm import rpc
from hrm.pipelines import Pipeline
from hrm.pipelines.telemetry import Profiler, Sampler
from hrm.v1 import pipeline_pb2 as pb
from tests.integration.test_pipelines import (
    Client,
    PipelineCluster,
    joined,
    until,
)
from tests.real_gpu import Card, card_or_skip, computes, nvidia_smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

STEPS = "pipeline_samples.torch_steps"
ON_GPU = pb.SubtaskDevice.SUBTASK_DEVICE_GPU
DONE = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE
MIB = 1 << 20
BUSY = (
    "import torch; a = torch.randn(8192, 8192, device='cuda'); b = a @ a\n"
    "torch.cuda.synchronize(); print(torch.cuda.memory_reserved() >> 20, flush=True)\n"
    "while True:\n"
    "    for _ in range(20): b = a @ a\n"
    "    torch.cuda.synchronize()\n"
)
Record = Callable[[str, object], None]


@pytest.fixture
def card() -> Iterator[Card]:
    found = card_or_skip()
    if why := computes():
        pytest.skip(why)
    yield found
    pynvml.nvmlShutdown()


@pytest.fixture
async def cluster(card: Card, tmp_path: Path) -> AsyncIterator[PipelineCluster]:
    """One node with the GPU; afterwards the device's memory is free again."""
    before_mib = card.used_mib()
    subject = PipelineCluster(tmp_path)
    try:
        await subject.start()
        subject.agent("n1", cores=4)
        yield subject
    finally:
        await asyncio.to_thread(subject.close)

    async def is_free() -> bool:
        return card.used_mib() < before_mib + 64

    await until(is_free)


@pytest.fixture
async def client(cluster: PipelineCluster) -> AsyncIterator[Client]:
    token = rpc.read_token(cluster.token_file)
    async with rpc.channel(cluster.address, token) as channel:
        made = Client(channel)
        await joined(made, 1)
        yield made


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    """A process that keeps the GPU busy; its first line is what PyTorch has reserved, in MiB."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


async def submit(client: Client, name: str, value: Any, gpu_memory_mib: int = 0) -> str:
    """``gpu_memory_mib``: what its GPU version is said to take; 0: what its author says."""
    pipeline: Pipeline = getattr(torch_steps, name)
    if gpu_memory_mib:
        (step,) = pipeline.steps.values()
        changed = Pipeline(pipeline.name)
        changed.steps[step.name] = replace(step, gpu_memory_mib=gpu_memory_mib)
        pipeline = changed
    return await client.submit(pipeline, name, value, reference=f"{STEPS}:{name}")


def at_once(results: Sequence[dict[str, Any]]) -> int:
    """The most that ran at one time."""
    began = [(found["began_s"], 1) for found in results]
    ended = [(found["ended_s"], -1) for found in results]
    changes = [change for _, change in sorted([*began, *ended])]
    return max(itertools.accumulate(changes))


async def test_workers_share_the_gpu_and_each_computes_on_it(
    client: Client, card: Card, figure: Record
) -> None:
    first = await submit(client, "multiplying", 1.0)  # one alone teaches what it takes
    end = await client.end(first)
    assert end.outcome == DONE, end.message
    ids = [await submit(client, "multiplying", 2.0) for _ in range(8)]

    async def loaded() -> bool:
        workers = await client.workers()
        return len(workers) > 1 and any(x.load.running and x.load.gpu > 0.5 for x in workers)

    await until(loaded)
    for worker in await client.workers():
        (gpu,) = worker.capacity.gpus
        assert gpu.model == card.name and gpu.memory_mib < card.memory_mib, "a part of it"
        load = worker.load
        figure("load", f"gpu {load.gpu:.2f} memory {load.gpu_memory:.3f}")
    figure("nvidia_smi", nvidia_smi("utilization.gpu,memory.used"))
    updates = await client.watch(*ids)
    results = []
    for task_id in (first, *ids):
        end = updates[task_id][-1].ended if task_id in updates else end
        assert end.outcome == DONE, end.message
        results.append(await client.result(task_id))
        for timing in end.timings:
            assert timing.device == ON_GPU and not timing.message, timing
            assert timing.gpu_memory_mib >= 3 * 64, "torch's peak was measured"
    for found in results:
        assert found["same"]
        assert (found["visible"], found["devices"], found["uuid"]) == (card.uuid, 1, card.uuid)
    figure("at_once", at_once(results))
    figure("workers", len({found["pid"] for found in results}))
    figure("products", [found["products"] for found in results])


async def test_several_workers_are_on_the_gpu_at_once(
    client: Client, card: Card, figure: Record
) -> None:
    ids = [await submit(client, "keeping", 5.0) for _ in range(8)]

    async def several() -> bool:
        return sum(bool(x.load.running) for x in await client.workers()) > 1

    await until(several)
    updates = await client.watch(*ids)
    ends = [updates[task_id][-1].ended for task_id in ids]
    assert all(end.outcome == DONE for end in ends), ends
    results = [await client.result(task_id) for task_id in ids]
    assert {found["uuid"] for found in results} == {card.uuid}
    assert at_once(results) > 1
    figure("at_once", at_once(results))
    figure("workers", len({found["pid"] for found in results}))
    figure("gpu_memory_mib", sorted({round(x.gpu_memory_mib) for end in ends for x in end.timings}))


async def test_a_step_that_needs_most_of_the_gpu_does_not_wait_for_unused_memory(
    client: Client, card: Card, figure: Record
) -> None:
    """A worker that waits for its next run gives the device memory of the last one back."""
    most_mib = card.memory_mib * 6 // 10
    waits_s = []
    for name in ("filling", "filling", "multiplying", "filling"):
        big = name == "filling"
        value: Any = most_mib - 1_000 if big else 0.5
        begun_s = time.monotonic()
        end = await client.end(await submit(client, name, value, most_mib if big else 0))
        assert end.outcome == DONE, end.message
        waits_s.append(round(time.monotonic() - begun_s, 2))
        assert [timing.device for timing in end.timings] == [ON_GPU]
        # The next sample of the device comes within a second or two.
        begun_s = time.monotonic()

        async def sampled(begun_s: float = begun_s) -> bool:
            return time.monotonic() - begun_s > 2.5

        await until(sampled)
    figure("waits_s", waits_s)
    assert max(waits_s[1:]) < 20.0, waits_s


async def test_what_does_not_fit_on_the_gpu_runs_on_a_core(
    client: Client, card: Card, figure: Record
) -> None:
    task_id = await submit(client, "grasping", 2 * card.memory_mib, card.memory_mib // 2)
    end = await client.end(task_id)
    figure("timings", [f"{x.device} {x.placed_by}: {x.message}" for x in end.timings])
    assert end.outcome == DONE, end.message
    assert await client.result(task_id) == f"{2 * card.memory_mib} MiB on a core"
    small = await client.end(await submit(client, "grasping", 16))
    assert small.outcome == DONE, small.message
    on_gpu = [x for x in end.timings if x.device == ON_GPU]
    for timing in on_gpu:
        assert "CUDA out of memory" in timing.message, timing


def test_a_process_is_profiled_as_nvidia_smi_sees_it(
    card: Card, busy: subprocess.Popen[str], figure: Record
) -> None:
    assert busy.stdout is not None
    reserved_mib = int(busy.stdout.readline())
    profiler = Profiler(busy.pid, card.index)
    known: list[list[str]] = []
    while profiler.seen_s < 4.0:
        profiler.sample()
        known.append(nvidia_smi("utilization.gpu,utilization.memory,memory.used"))
    figures = profiler.figures()
    profiler.close()
    figure("figures", {k: round(v, 3) for k, v in figures.items()})
    figure("reserved_mib", reserved_mib)
    assert figures["sm"] > 0.5
    assert reserved_mib <= figures["gpu_memory"] <= reserved_mib + 1_500
    if shutil.which("nvidia-smi"):
        shares = [statistics.median(float(one[i]) for one in known) / 100 for i in (0, 1)]
        figure("nvidia_smi", shares)
        assert figures["sm"] == pytest.approx(shares[0], abs=0.25)


def test_the_node_is_sampled_as_nvidia_smi_sees_it(
    card: Card,
    busy: subprocess.Popen[str],
    eventually: Callable[..., Any],
    figure: Record,
) -> None:
    assert busy.stdout is not None
    reserved_mib = int(busy.stdout.readline())
    sampler = Sampler([card.index])
    eventually(lambda: sampler.sample(1.0).gpu_utilisation[0] > 0.5, 20, "the GPU is seen busy")
    sample = sampler.sample(2.0)
    known = nvidia_smi("utilization.gpu,memory.used,memory.reserved,memory.total")
    figure("sample", json.dumps([sample.gpu_utilisation, sample.gpu_memory_used_mib, known]))
    assert sample.gpu_memory_used_mib[0] >= reserved_mib
    if known:
        busy_percent, used_mib = float(known[0]), float(known[1])
        assert sample.gpu_utilisation[0] * 100 == pytest.approx(busy_percent, abs=25)
        assert sample.gpu_memory_used_mib[0] <= used_mib + 64, "others may use the card, too"
