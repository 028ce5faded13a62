"""Processes of a worker's steps, without the worker."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node_messages import RunOutcome
from hrm.pipelines.worker.step_pool import RunResult, StepProcesses
from tests.pipeline.test_step_runs import job

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 30.0


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[StepProcesses]:
    made = StepProcesses(tmp_path, str(REPOSITORY), has_device=False)
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
        "node": "n1",
    }


async def _run(processes: StepProcesses, number: int, directory: Path, seconds: float) -> RunResult:
    async with asyncio.timeout(LIMIT_S):
        return await processes.run(
            number, (Device.CPU, 0), directory, _nap(directory, seconds), lambda _pid: None
        )


async def test_a_run_that_is_stopped_before_it_begins_does_not_run(
    processes: StepProcesses, tmp_path: Path
) -> None:
    begun = asyncio.ensure_future(_run(processes, 1, tmp_path, 600.0))
    processes.stop(1)  # ordered in the same turn of the loop, before the run has had one
    started_s = time.monotonic()
    result = await begun
    assert result.outcome is RunOutcome.CRASHED and "before it began" in result.message
    assert time.monotonic() - started_s < 5.0
    assert (await _run(processes, 2, tmp_path, 0.0)).outcome is RunOutcome.DONE


async def test_a_run_that_is_stopped_midway_takes_its_process_along(
    processes: StepProcesses, tmp_path: Path
) -> None:
    pids: list[int] = []
    started = asyncio.Event()

    def on_start(pid: int) -> None:
        pids.append(pid)
        started.set()

    job = _nap(tmp_path, 600.0)
    run = asyncio.ensure_future(processes.run(1, (Device.CPU, 0), tmp_path, job, on_start))
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
        processes.stop(1)
        result = await run
    assert result.outcome is RunOutcome.CRASHED and "SIGKILL" in result.message
    assert not psutil.pid_exists(pids[0])


async def test_few_wait_on_one_gpu_whatever_their_code(
    processes: StepProcesses, tmp_path: Path
) -> None:
    pids: list[int] = []
    try:
        for number in range(5):
            code = tmp_path / f"code {number}"
            code.mkdir()
            async with asyncio.timeout(LIMIT_S):
                run = processes.run(number, (Device.GPU, 0), code, _nap(tmp_path, 0.0), pids.append)
                assert (await run).outcome is RunOutcome.DONE
        kept = [one.process.pid for one in processes._idle]
        assert kept == pids[1:], "the one that has waited longest made room"
    finally:
        await processes.close()
    assert not any(map(psutil.pid_exists, pids)), "who made room is not left to itself"


@pytest.mark.parametrize(
    "response",
    [
        b"[]", b"{}", b"1", b"nonsense", b"[" * 100_000, b'{"outcome": "DONE"}',
        b'{"run": "1", "outcome": "DONE"}',
        *(b'{"run": 1, "outcome": ' + rest for rest in (
            b'"FINE"}', b'1}', b'"DONE", "ran_s": "long"}', b'"DONE", "ran_s": NaN}',
            b'"DONE", "memory_mib": -1}', b'"DONE", "gpu_memory_mib": 1e300}',
            b'"DONE", "message": []}', b'"DONE", "proof": "no"}',
            b'"DONE", "result_format": "xml"}',
        )), b"x" * (2 << 20),
    ],
    ids=lambda one: one[:60].decode(),
)  # fmt: skip
async def test_what_a_function_returns_in_its_processes_place_is_checked(
    tmp_path: Path, processes: StepProcesses, response: bytes
) -> None:
    """A function may find the pipe to the worker. It loses its process, and harms nothing else."""
    (tmp_path / "answer").write_bytes(response)
    (tmp_path / "lying.py").write_text(LYING.format(path=tmp_path / "answer", rest_s=600))
    job = {**_nap(tmp_path, 0.0), "reference": "lying:lying", "subtask": "lie"}
    async with asyncio.timeout(LIMIT_S):
        result = await processes.run(1, (Device.CPU, 0), tmp_path, job, lambda _pid: None)
    assert result.outcome is RunOutcome.CRASHED and not processes._idle


async def _run_with_children(
    processes: StepProcesses, number: int, directory: Path, subtask: str, value: Any
) -> Any:
    """What the step returned, or how it failed."""
    (directory / "with_children.py").write_text(WITH_CHILDREN)
    wanted = job(directory, f"-.{subtask}", value, reference="with_children:with_children")
    async with asyncio.timeout(LIMIT_S):
        result = await processes.run(number, (Device.CPU, 0), directory, wanted, lambda _pid: None)
    if result.outcome is not RunOutcome.DONE:
        return result.message
    return pickle.loads((directory / "output").read_bytes())


async def test_the_input_of_a_step_is_empty_and_no_process_of_it_takes_an_order(
    processes: StepProcesses, tmp_path: Path
) -> None:
    assert await _run_with_children(processes, 1, tmp_path, "read", 0) == ("", b"")
    left = await _run_with_children(processes, 2, tmp_path, "leave", 0)
    assert await _run_with_children(processes, 3, tmp_path, "wait", left) == 0, "it read the end"
    assert len(processes._idle) == 1, "one process has served them all"


@pytest.mark.parametrize(("way", "status"), [("return", 0), ("raise", 1), ("exit", 3)])
async def test_what_a_step_forks_ends_with_the_function_and_returns_nothing(
    processes: StepProcesses, tmp_path: Path, way: str, status: int
) -> None:
    assert await _run_with_children(processes, 1, tmp_path, "fork", way) == status << 8


async def test_a_process_that_ends_is_missed_though_what_it_forked_lives_on(
    processes: StepProcesses, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    try:
        ended = await _run_with_children(processes, 1, tmp_path, "stay", str(path))
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)
    assert "exit code 3" in ended


async def test_a_reply_of_another_run_is_ignored(processes: StepProcesses, tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(b'{"run": 7, "outcome": "RAISED", "message": "late"}')
    (tmp_path / "lying.py").write_text(LYING.format(path=tmp_path / "answer", rest_s=0))
    lie = {**_nap(tmp_path, 0.0), "reference": "lying:lying", "subtask": "lie"}
    async with asyncio.timeout(LIMIT_S):
        result = await processes.run(8, (Device.CPU, 0), tmp_path, lie, lambda _pid: None)
    assert result.outcome is RunOutcome.DONE, result.message


async def test_a_process_that_was_stopped_as_it_replied_serves_no_other_task(
    processes: StepProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = processes._ask
    asked: list[Any] = []

    async def stopped_then(process: Any, wanted: Any) -> RunResult:
        result = await ask(process, wanted)
        processes.stop(1)
        asked.append(process)
        return result

    monkeypatch.setattr(processes, "_ask", stopped_then)
    wanted = job(tmp_path, "arithmetic.double", 4)
    async with asyncio.timeout(LIMIT_S):
        result = await processes.run(1, (Device.CPU, 0), tmp_path, wanted, lambda _pid: None)
        assert result.outcome is RunOutcome.DONE, result.message
        assert not processes._idle
        await processes.close()
        await asked[0].process.wait()


async def test_the_same_code_on_the_same_core_has_the_same_process(
    processes: StepProcesses, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    pids: list[int] = []
    for number, code in enumerate((tmp_path, tmp_path, tmp_path / "other")):
        async with asyncio.timeout(LIMIT_S):
            place = (Device.CPU, 0)
            run = processes.run(number, place, code, _nap(tmp_path, 0.0), pids.append)
            assert (await run).outcome is RunOutcome.DONE
    assert pids[0] == pids[1] != pids[2]
    assert [one.process.pid for one in processes._idle] == pids[2:]


@pytest.mark.parametrize(("has_device", "seen"), [(True, "0"), (False, "")])
async def test_a_step_sees_the_gpu_of_its_container_and_on_a_core_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_device: bool, seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HRM_TOKEN_FILE", "/a/token")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    processes = StepProcesses(tmp_path, "", has_device=has_device)
    on_gpu = processes._environment((Device.GPU, 0), tmp_path)
    on_core = processes._environment((Device.CPU, 0), tmp_path)
    assert (on_gpu["CUDA_VISIBLE_DEVICES"], on_core["CUDA_VISIBLE_DEVICES"]) == (seen, "")
    assert on_core["OMP_NUM_THREADS"] == "1" and on_gpu.get("OMP_NUM_THREADS") is None
    assert not any(name.startswith("HRM_TOKEN") for name in (*on_gpu, *on_core))


LYING = """
import os
import time
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
    time.sleep({rest_s})
"""


WITH_CHILDREN = """
import os
import subprocess
import sys
import time
from pathlib import Path
from hrm.pipelines import Pipeline
with_children = Pipeline("with-children")

@with_children.subtask()
def read(value):
    return sys.stdin.read(), subprocess.run(["cat"], capture_output=True).stdout

@with_children.subtask()
def leave(value):
    global left
    left = subprocess.Popen(["cat"])
    return left.pid

@with_children.subtask()
def fork(value):
    forked = os.fork()
    if forked:
        return os.waitpid(forked, 0)[1]
    if value == "return":
        return -1
    if value == "raise":
        raise ValueError("of the one that was forked")
    sys.exit(3)

@with_children.subtask()
def wait(pid):
    assert left.pid == pid
    return left.wait()

@with_children.subtask()
def stay(value):
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        Path(value).write_text(str(os.getpid()))
        time.sleep(600)
    while not Path(value).exists() or not Path(value).read_text():
        time.sleep(0.01)
    os.wait()
    os._exit(3)
"""
