"""Measurements of a node outlive its agent: a restart, damaged files, how often it writes."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pipeline_samples import sample_steps
from structlog.testing import capture_logs

from hrm import rpc
from hrm.agent.run_as import RunAs
from hrm.config import AgentSettings
from hrm.pipelines.agent import memory as pipeline_memory
from hrm.pipelines.agent.memory import ESTIMATES_FILE, EstimatesFile
from hrm.pipelines.agent.runtime import PipelineRuntime
from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.core.model import Device, Row
from hrm.pipelines.policies.corun import Stdm
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import capacity

LIMIT_S = 60.0
SHARE = PipelineShare(capacity=capacity(cores=2), cpus=(None, None), gpus={})
ROW = Row("edges", 1, "P4")


@asynccontextmanager
async def agent(directory: Path) -> AsyncIterator[PipelineRuntime]:
    """From start to close; no master listens."""
    settings = AgentSettings(
        master="127.0.0.1:1",
        name="n1",
        work_dir=directory,
        pipeline_path=str(Path(__file__).parents[2]),
        run_as="off",
    )
    identity = uuid.uuid4().hex  # an agent ends what earlier ones of its identity have left
    runtime = PipelineRuntime(
        settings, SHARE, identity, lambda: rpc.channel("127.0.0.1:1", "t"), RunAs(settings)
    )
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.close()


async def run(runtime: PipelineRuntime, name: str, value: object) -> None:
    """One task of ``arithmetic``, to its end."""
    attempt = pb.PipelineAttempt(task_id=name, attempt=1)
    payload = pickle.dumps(value)
    reference = "pipeline_samples.sample_steps:arithmetic"
    order = pb.PlacePipelineTask(
        attempt=attempt,
        pipeline=pw.from_pipeline(sample_steps.arithmetic.spec(reference)),
        size_mb=1.0,
        payload_bytes=len(payload),
    )
    data = pb.PipelineData(attempt=attempt, data=payload)
    for message in (pb.MasterPipelineMessage(data=data), pb.MasterPipelineMessage(place=order)):
        runtime._message_received(message)
    async with asyncio.timeout(LIMIT_S):
        while not runtime._unacknowledged:
            await asyncio.wait(runtime._runs, return_when=asyncio.FIRST_COMPLETED)
    ends = [end.message for end in runtime._unacknowledged.values()]
    assert ends == [""]


async def test_measurements_outlive_a_restart_of_the_agent(tmp_path: Path) -> None:
    async with agent(tmp_path) as runtime:
        await run(runtime, "t", 3)
        before = {
            row: (entry.runs, entry.values.tolist()) for row, entry in runtime._stdm.entries.items()
        }
    assert len(before) == 4
    with capture_logs() as logs:
        async with agent(tmp_path) as runtime:
            again = runtime._stdm
            assert set(again.entries) == set(before)
            for row, (runs, _) in before.items():
                assert again.entries[row].runs == runs
                assert again.run_s(row, Device.CPU) == runs[Device.CPU][0]
                assert runtime.core.estimates.measured_cells(row) >= 2, "no profile is taken again"
    assert {one["event"] for one in logs} >= {"estimates of a former agent are here"}


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"PK\x03\x04 half of it"])
async def test_a_damaged_file_is_a_warning_and_a_fresh_start(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / ESTIMATES_FILE).write_bytes(damage)
    with capture_logs() as logs:
        async with agent(tmp_path) as runtime:
            assert not runtime._stdm.entries
            runtime._stdm.observe(ROW, "cpu", 0.5)
    (warning,) = [one for one in logs if "cannot be used" in one["event"]]
    assert warning["log_level"] == "warning" and ESTIMATES_FILE in warning["why"]
    again = Stdm(memory_mib=1000.0)
    EstimatesFile(tmp_path, again)
    assert list(again.entries) == [ROW], "and the next one finds what this one has learned"


async def test_it_writes_when_there_is_something_new_and_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ESTIMATES_FILE
    stdm = Stdm(memory_mib=1000.0)
    file = EstimatesFile(tmp_path, stdm)
    stdm.observe(ROW, "cpu", 0.5)
    file.save_if_due()
    assert file._writing is None, "a minute has not passed"
    monkeypatch.setattr(pipeline_memory, "SAVE_PERIOD_S", 0.0)
    file.save_if_due()
    writing = file._writing
    assert writing is not None
    await asyncio.sleep(0)  # it has taken its snapshot
    stdm.observe(ROW, "cpu", 0.6)
    file.save_if_due()
    assert file._writing is writing, "one at a time"
    await writing
    first = path.read_bytes()
    await file.close()
    assert path.read_bytes() != first, "what came meanwhile is written at the end"
    path.unlink()
    await file.close()
    assert not path.exists(), "nothing is new"


async def test_a_disk_that_refuses_is_a_warning(tmp_path: Path) -> None:
    stdm = Stdm(memory_mib=1000.0)
    file = EstimatesFile(tmp_path / "gone", stdm)
    stdm.observe(ROW, "cpu", 0.5)
    with capture_logs() as logs:
        await file.close()
    assert "cannot be kept" in logs[0]["event"]
