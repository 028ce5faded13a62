"""A worker with a master that a test plays: tasks, their ends, broken streams, a worker's end."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm import rpc
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.errors import InvalidConfig
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import Device, Row, TaskId
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.store import dump_estimates
from hrm.pipelines.worker.document import read_document
from hrm.pipelines.worker.gpu_use_recorder import GpuUseRecording
from hrm.pipelines.worker.runtime import ALONE_S, WorkerRuntime
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire.gpu_uses import to_gpu_use
from tests.pipeline.played_master import (
    LIMIT_S,
    NAME,
    REPOSITORY,
    PlayedMaster,
    document,
    placing,
    playing,
)
from tests.spark.fake_master import until

DONE = pb.PIPELINE_TASK_OUTCOME_DONE
FAILED = pb.PIPELINE_TASK_OUTCOME_FAILED
GIVEN_BACK = pb.PIPELINE_TASK_OUTCOME_GIVEN_BACK
REFUSED = pb.PIPELINE_TASK_OUTCOME_REFUSED


def made(
    directory: Path, address: str = "127.0.0.1:1", alone_s: float = ALONE_S, **more: Any
) -> WorkerRuntime:
    about = document(directory, master=address, **more)
    return WorkerRuntime(about, directory, lambda: rpc.channel(address, "t"), alone_s)


@pytest.fixture
async def alone(tmp_path: Path) -> WorkerRuntime:
    """It is not connected: there is no master."""
    runtime = made(tmp_path)
    runtime._dirs.prepare()
    return runtime


@asynccontextmanager
async def working(
    directory: Path, **more: Any
) -> AsyncIterator[tuple[WorkerRuntime, PlayedMaster, pb.RegisterPipelineNode]]:
    async with playing() as master:
        runtime = made(directory, master.address, **more)
        await runtime.start()
        try:
            yield runtime, master, await master.receive("register")
        finally:
            await runtime.close()


async def until_run(runtime: WorkerRuntime) -> int:
    """The process of the only step, once it runs."""
    await until(lambda: any(runtime._processes._busy.values()))
    (process,) = runtime._processes._busy.values()
    assert process is not None
    return process.process.pid


def directories(directory: Path) -> list[str]:
    return sorted(x.name for x in (directory / "tasks").iterdir() if x.name.startswith("t"))


async def test_a_task_is_run_and_its_result_kept_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with working(tmp_path) as (runtime, master, registered):
        assert registered.capacity.node == NAME
        assert (registered.capacity.cores, registered.capacity.memory_mib) == (2, 1024)
        attempt = master.place("t", "arithmetic", 3)
        end, result = await master.ended(attempt)
        assert (end.outcome, pickle.loads(result)) == (DONE, 30)
        assert (end.timings[0].subtask, len(end.timings)) == ("double", 4)
        master.hang_up()
        again = await master.receive("register")
        assert list(again.tasks) == [attempt], "it is not acknowledged"
        end, result = await master.ended(attempt)
        assert (end.outcome, pickle.loads(result)) == (DONE, 30), "sent once more"
        assert directories(tmp_path) == ["t.1"]
        master.send(acknowledge=attempt)
        master.hang_up()
        assert not (await master.receive("register")).tasks
        assert not directories(tmp_path) and not runtime._unacknowledged


async def test_what_a_step_used_of_its_gpu_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = (GpuUsePart(0.5, 90.0, 0.5, 0.1),) * USE_PARTS

    def recorded(
        recording: GpuUseRecording, ran_s: float | None, peak_mib: float
    ) -> tuple[GpuUsePart, ...]:
        assert ran_s is not None and peak_mib >= 0.0
        return use if recording._gpu == 3 else ()

    monkeypatch.setattr(GpuUseRecording, "use", recorded)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu: dict[str, Any] = {"gpu_memory_mib": 8000, "gpu_model": "P4"}
    async with working(tmp_path, **gpu, gpu_device=3) as (runtime, master, _):
        master.place("t", "on_a_gpu", 3)
        run = await master.receive("run")
        assert to_gpu_use(run.gpu_use) == use
        row = Row("on-a-gpu/visible", 0, "P4")
        assert runtime.core.estimates.gpu_use(row) == use


async def test_what_other_workers_measure_arrives_while_it_runs(tmp_path: Path) -> None:
    others = Stdm(memory_mib=65_536)
    row = Row("edges", 1, "")
    others.observe_run(row, Device.CPU, 3.0, 100.0)
    async with working(tmp_path) as (runtime, master, _):
        assert not runtime._stdm.measured_cells(row)
        master.send(estimates=b"damaged")
        master.send(estimates=dump_estimates(others))
        await until(lambda: runtime._stdm.measured_cells(row) > 0)
        assert runtime._stdm.run_s(row, Device.CPU) == pytest.approx(3.0)
        assert runtime._stdm.memory_mib(row) == pytest.approx(100.0)


async def test_one_without_a_master_ends_once_it_has_nothing_to_run(tmp_path: Path) -> None:
    async with playing() as master:
        runtime = made(tmp_path, master.address, alone_s=0.0)
        await runtime.start()
        await master.receive("register")
        master.place("t", "slow", 1.5)
        await until_run(runtime)
        assert not runtime.broken.is_set(), "it has a master"
    try:
        async with asyncio.timeout(LIMIT_S):
            await runtime.broken.wait()
        assert len(runtime._unacknowledged) == 1, "its step has ended first"
    finally:
        await runtime.close()


@pytest.mark.parametrize(
    ("pipeline", "value", "words"),
    [
        ("crashing", 1, ["'crash' failed on node n1: ", "exit code 3"]),
        ("hanging", 1, ["longer than its limit of 0.5 s"]),
        ("greedy", 256, ["memory_mib of 64 MiB"]),
        ("raising", 1, ["2 times", "ZeroDivisionError"]),
    ],
)
async def test_a_step_that_goes_wrong_fails_its_task_and_not_the_worker(
    tmp_path: Path, pipeline: str, value: object, words: list[str]
) -> None:
    async with working(tmp_path) as (runtime, master, _):
        end, result = await master.ended(master.place("t", pipeline, value))
        assert end.outcome == FAILED and not result
        for word in words:
            assert word in end.message
        end, _ = await master.ended(master.place("t2", "slow", 0.0))
        assert end.outcome == DONE and not runtime.broken.is_set()


async def test_what_it_runs_goes_on_while_the_stream_is_down(tmp_path: Path) -> None:
    async with working(tmp_path) as (runtime, master, _):
        attempt = master.place("t", "slow", 1.0)
        await until_run(runtime)
        master.hang_up()
        assert list((await master.receive("register")).tasks) == [attempt]
        data, order = placing("t", "slow", 1.0)
        master.send(data=data)
        master.send(place=order)
        end, _ = await master.ended(attempt)
        assert end.outcome == DONE
        assert len(end.timings) == 2, "a repeated order starts nothing"


async def test_an_input_that_is_not_whole_is_given_back_and_not_run(tmp_path: Path) -> None:
    async with working(tmp_path) as (_, master, _registered):
        end, _ = await master.ended(master.place("t", "slow", 0.0, missing=3))
        assert end.outcome == GIVEN_BACK and "bytes of its input arrived" in end.message
        assert "node n1" in end.message, "people see the machine"


async def test_a_task_whose_files_cannot_be_written_is_refused(tmp_path: Path) -> None:
    async with working(tmp_path) as (_, master, _registered):
        (tmp_path / "tasks" / "t.1").write_text("a file is in the way")
        end, _ = await master.ended(master.place("t", "slow", 0.0))
        assert end.outcome == REFUSED
        assert "node n1: its files cannot be written" in end.message
        assert f"{tmp_path}/tasks/t.1: File exists" in end.message
        assert (await master.ended(master.place("t2", "slow", 0.0)))[0].outcome == DONE


@pytest.mark.parametrize("there", ["nothing", "file", "directory"])
async def test_no_step_runs_where_the_result_could_not_stay(tmp_path: Path, there: str) -> None:
    shared = tmp_path / "shared"
    if there == "file":
        shared.touch()
    elif there == "directory":
        shared.mkdir()
    async with working(tmp_path) as (_, master, _registered):
        end, result = await master.ended(master.place("t", "slow", 0.0, result_dir=str(shared)))
    if there == "directory":
        assert (end.outcome, end.in_result_dir, result) == (DONE, True, b"")
        assert [one.name for one in shared.iterdir()] == ["t.1"]
        return
    assert end.outcome == REFUSED and not end.timings
    why = "No such file or directory" if there == "nothing" else "Not a directory"
    assert f"node n1: result_dir {shared}: {why}; share the directory" in end.message
    assert "or leave result_dir out" in end.message


async def test_a_directory_of_results_that_hangs_holds_up_its_task_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = threading.Event()

    def hang(directory: str, _name: str) -> None:
        if directory == "/hangs":
            responds.wait(LIMIT_S)

    monkeypatch.setattr("hrm.pipelines.worker.runtime.check_result_dir", hang)
    monkeypatch.setattr("hrm.pipelines.worker.runtime._CHECK_LIMIT_S", 3.0)
    try:
        async with working(tmp_path) as (runtime, master, _):
            hangs = master.place("t", "slow", 0.0, result_dir="/hangs")
            other = master.place("withdrawn", "slow", 0.0, result_dir="/hangs")
            await until(lambda: len(runtime._checking) == 2)
            third = master.place("t2", "slow", 0.0)
            assert (await master.ended(third))[0].outcome == DONE
            master.send(acknowledge=third)
            master.hang_up()
            assert hangs in (await master.receive("register")).tasks
            data, order = placing("t", "slow", 0.0, result_dir="/hangs")
            master.send(data=data)
            master.send(place=order)
            master.send(withdraw=pb.WithdrawPipelineTask(attempt=other, reason="cancelled"))
            await until(lambda: len(runtime._checking) == 1)
            yielding = asyncio.create_task(runtime.yield_all())
            end, _ = await master.ended(hangs)
            assert end.outcome == REFUSED and "/hangs: it has not responded for 3 s" in end.message
            assert not yielding.done() and not runtime._checking
            master.send(acknowledge=hangs)
            async with asyncio.timeout(LIMIT_S):
                await yielding
    finally:
        responds.set()


async def test_a_task_that_is_withdrawn_is_stopped(tmp_path: Path) -> None:
    async with working(tmp_path) as (runtime, master, _):
        attempt = master.place("t", "slow", 600.0)
        pid = await until_run(runtime)
        master.send(withdraw=pb.WithdrawPipelineTask(attempt=attempt, reason="cancelled"))
        end, _ = await master.ended(attempt)
        assert end.outcome == pb.PIPELINE_TASK_OUTCOME_CANCELLED
        assert not psutil.pid_exists(pid)


async def test_on_its_end_it_gives_back_what_has_not_begun_and_lets_steps_end(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, vcores=1) as (runtime, master, _):
        running = master.place("t", "slow", 1.5)
        await until_run(runtime)
        waiting = master.place("t2", "slow", 0.0)
        await until(lambda: len(runtime.core.tasks) == 2)
        yielding = asyncio.create_task(runtime.yield_all())
        end, _ = await master.ended(waiting)
        assert end.outcome == GIVEN_BACK and not end.timings
        end, _ = await master.ended(running)
        assert end.outcome == GIVEN_BACK, "its second step is for another worker"
        assert [(x.subtask, x.outcome) for x in end.timings] == [("nap", pb.SUBTASK_OUTCOME_DONE)]
        late = master.place("t3", "slow", 0.0)
        assert (await master.ended(late))[0].outcome == GIVEN_BACK
        for attempt in (running, waiting):
            master.send(acknowledge=attempt)
        master.hang_up()
        assert list((await master.receive("register")).tasks) == [late]
        assert not yielding.done(), "one end is not acknowledged"
        assert (await master.ended(late))[0].outcome == GIVEN_BACK
        master.send(acknowledge=late)
        async with asyncio.timeout(LIMIT_S):
            await yielding
        assert not directories(tmp_path)


async def test_on_its_end_a_task_in_its_last_step_is_done(tmp_path: Path) -> None:
    async with working(tmp_path) as (runtime, master, _):
        attempt = master.place("t", "greedy", 1)
        await until_run(runtime)
        yielding = asyncio.create_task(runtime.yield_all())
        assert (await master.ended(attempt))[0].outcome == DONE
        master.send(acknowledge=attempt)
        async with asyncio.timeout(LIMIT_S):
            await yielding


async def test_an_idle_worker_ends_at_once(alone: WorkerRuntime) -> None:
    async with asyncio.timeout(LIMIT_S):
        await alone.yield_all()


async def test_an_input_without_its_order_does_not_outlive_the_stream(
    alone: WorkerRuntime, tmp_path: Path
) -> None:
    attempt = pb.PipelineAttempt(task_id="t", attempt=1)
    data = pb.PipelineData(attempt=attempt, data=b"half of it")
    alone._message_received(pb.MasterPipelineMessage(data=data))
    assert directories(tmp_path) == ["t.1"]
    assert not alone._registration().tasks
    assert not directories(tmp_path)


async def test_an_end_that_was_forgotten_is_not_reported(alone: WorkerRuntime) -> None:
    end = m.EndTask(
        task_id=TaskId("t"), attempt=1, outcome=TaskOutcome.DONE, message="", timings=()
    )
    alone._unacknowledged[end.task_id, 1] = end
    assert [one.WhichOneof("message") for one in alone._end_messages(end)] == ["ended"]
    late = alone._end_messages(end)
    alone._forget((end.task_id, 1))
    assert not list(late), "its result is gone: it would be said to have none"


# --- as a process ------------------------------------------------------------------------------


def write_document(directory: Path, master: str, **more: Any) -> Path:
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text("t" * 32)
    content = {
        "container_id": NAME, "node": "n1", "master": master,
        "token_file": str(token), "tls_ca": "", "allow_clear_text": False,
        "vcores": 1, "memory_mib": 1024, "gpu_memory_mib": 0, "gpu_model": "", "gpu_device": None,
        "policy": "pats", "import_path": str(REPOSITORY), "platform": "", "cpu_speed": 1.0,
        "gpu_speed": 1.0, "device_memory_risk": 0.01, "reconnect_delay_max_s": 0.2,
    }  # fmt: skip
    path = directory / "worker.json"
    path.write_text(json.dumps(content | more))
    return path


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    samples = str(REPOSITORY / "tests" / "samples")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), samples])}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hrm.pipelines.worker", str(path)),
        cwd=path.parent,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.communicate()


async def test_a_process_that_is_to_end_ends_by_itself_once_its_step_has(tmp_path: Path) -> None:
    async with playing() as master, started(write_document(tmp_path, master.address)) as worker:
        await master.receive("register")
        attempt = master.place("t", "slow", 1.5)
        await until(psutil.Process(worker.pid).children)
        steps = psutil.Process(worker.pid).children()
        os.kill(worker.pid, signal.SIGTERM)
        end, _ = await master.ended(attempt)
        assert end.outcome == GIVEN_BACK and len(end.timings) == 1
        assert worker.returncode is None, "the master may not have got it"
        master.send(acknowledge=attempt)
        async with asyncio.timeout(LIMIT_S):
            assert await worker.wait() == 0
        assert not any(x.is_running() for x in steps)


async def test_a_worker_that_is_killed_takes_its_steps_along(tmp_path: Path) -> None:
    async with playing() as master, started(write_document(tmp_path, master.address)) as worker:
        await master.receive("register")
        master.place("t", "slow", 600.0)
        await until(psutil.Process(worker.pid).children)
        steps = psutil.Process(worker.pid).children()
        worker.kill()
        await until(lambda: not any(map(_lives, steps)))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_worker_whose_core_fails_ends_with_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hrm.pipelines.worker import __main__ as program

    def fail(_self: Any, event: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hrm.pipelines.core.node.PipelineNode.handle", fail)
    async with asyncio.timeout(LIMIT_S):
        path = write_document(tmp_path, "127.0.0.1:1")
        assert await program._run(read_document(path), tmp_path) == 1


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"vcores": "two"}'])
def test_what_is_no_workers_document_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "worker.json"
    path.write_text(damage)
    with pytest.raises(InvalidConfig, match="is no document of a worker"):
        read_document(path)
