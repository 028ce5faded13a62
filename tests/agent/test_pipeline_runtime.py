"""What the interpreter of pipelines leaves on the disk, and its behaviour when its core fails."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from hrm import rpc
from hrm.agent.run_as import RunAs
from hrm.config import AgentSettings, load
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import Unavailable
from hrm.pipelines.agent import task_dirs
from hrm.pipelines.agent.runtime import PipelineRuntime
from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.agent.worker_pool import RunResult, Workers
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import Device, TaskId
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.v1 import pipeline_pb2 as pb
from tests.core.pipeline.building import capacity
from tests.pipeline.test_worker import job

SHARE = PipelineShare(capacity=capacity(gpus=1), cpus=(None, None), gpus={})


@pytest.fixture
async def runtime(tmp_path: Path) -> PipelineRuntime:
    """It is not connected: there is no master."""
    settings = AgentSettings(master="127.0.0.1:1", name="n1", work_dir=tmp_path)
    run_as = RunAs(load(AgentSettings, work_dir=tmp_path, run_as="off"))
    identity = uuid.uuid4().hex  # an agent ends what earlier ones of its identity have left
    made = PipelineRuntime(
        settings, SHARE, identity, lambda: rpc.channel("127.0.0.1:1", "t"), run_as
    )
    made._dirs.prepare()
    return made


async def test_an_input_without_its_order_does_not_outlive_the_stream(
    runtime: PipelineRuntime, tmp_path: Path
) -> None:
    attempt = pb.PipelineAttempt(task_id="t", attempt=1)
    data = pb.PipelineData(attempt=attempt, data=b"half of it")
    runtime._message_received(pb.MasterPipelineMessage(data=data))
    assert len(list((tmp_path / "pipelines" / "tasks").iterdir())) == 1
    assert not runtime._registration().tasks
    assert not list((tmp_path / "pipelines" / "tasks").iterdir())


async def test_code_is_there_whole_or_not_at_all(runtime: PipelineRuntime) -> None:
    impossible = {"a.py": b"1", "a.py/b.py": b"2"}
    for _ in range(2):
        with pytest.raises(OSError):
            runtime._dirs.code_of(impossible)
    whole = runtime._dirs.code_of({"a.py": b"1", "b/c.py": b"2"})
    assert (whole / "b/c.py").read_bytes() == b"2"


async def test_old_code_frees_capacity(
    runtime: PipelineRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_dirs, "CODE_KEPT", 3)
    first = runtime._dirs.code_of({"a.py": b"0"})
    for number in range(1, 10):
        assert runtime._dirs.code_of({"a.py": b"0"}) == first, "it is used, so it stays"
        runtime._dirs.code_of({"a.py": b"%d" % number})
    kept = list((tmp_path / "pipelines" / "code").iterdir())
    assert len(kept) == 3 and first in kept


async def test_a_core_that_fails_ends_pipelines_here_and_reports_it(
    runtime: PipelineRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(event: Any) -> Any:
        raise RuntimeError("a bug")

    asked = m.GpuAsked(
        now=time.time(), holder="h", kind="k", gpu_memory_mib=1, workload=WorkloadClass.BATCH
    )
    monkeypatch.setattr(runtime.core, "handle", fail)
    runtime._deliver(m.ClockTicked(now=time.time()))
    with pytest.raises(Unavailable, match="log shows why"):
        await runtime.acquire(asked)
    assert runtime._giving_up is not None
    await runtime._giving_up
    await runtime._link.run()  # ended, so it does not try


async def test_a_worker_that_was_stopped_as_it_replied_serves_no_other_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    workers = Workers(SHARE, tmp_path, str(Path(__file__).parents[2]))
    ask = workers._ask
    asked: list[Any] = []

    async def stopped_then(worker: Any, wanted: Any) -> RunResult:
        result = await ask(worker, wanted)
        workers.stop(1)
        asked.append(worker)
        return result

    monkeypatch.setattr(workers, "_ask", stopped_then)
    wanted = job(tmp_path, "arithmetic.double", 4)
    try:
        result = await workers.run(1, (Device.CPU, 0), tmp_path / "code", wanted, lambda _pid: None)
        assert result.outcome is RunOutcome.DONE, result.message
        assert not workers._idle
    finally:
        await workers.close()
        async with asyncio.timeout(10.0):
            await asked[0].process.wait()


async def test_logs_of_workers_that_live_long_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "worker-cpu-0.log"
    with log.open("wb") as file:
        file.truncate(17 << 20)
    Workers(SHARE, tmp_path, "").end_idle()
    assert log.stat().st_size == 0


async def test_an_end_that_was_forgotten_is_not_reported(runtime: PipelineRuntime) -> None:
    end = m.EndTask(
        task_id=TaskId("t"), attempt=1, outcome=TaskOutcome.DONE, message="", timings=()
    )
    runtime._unacknowledged[end.task_id, 1] = end
    assert [one.WhichOneof("message") for one in runtime._end_messages(end)] == ["ended"]
    late = runtime._end_messages(end)
    runtime._forget((end.task_id, 1))
    assert not list(late), "its result is gone: it would be said to have none"
