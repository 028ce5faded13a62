"""Device memory of containers' processes: an agent, real processes, and a fake of NVML."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hrm.agent.gpu.device_memory import DeviceMemory, device_memory_message
from hrm.core.vocabulary.model import Gpu
from hrm.v1 import common_pb2
from tests.agent import fake_nvml
from tests.agent.conftest import ENDED, RUNNING, AgentProcess, Master, StartAgent

Eventually = Callable[..., Any]
GPUS = (Gpu(index=0, memory_mib=1000), Gpu(index=1, memory_mib=1000))
MIB = 1 << 20
FOREVER = "sh -c 'echo $$ > python.pid; exec sleep 600'"
"""A child of the command, as a Python worker is of its executor."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], list[SimpleNamespace]]:
    """The reports of two GPUs: (list, GPU) to processes."""
    lists: dict[tuple[str, int], list[SimpleNamespace]] = {}
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    for kind in ("Compute", "MPSCompute", "Graphics"):
        monkeypatch.setattr(
            pynvml,
            f"nvmlDeviceGet{kind}RunningProcesses",
            lambda handle, kind=kind: lists.get((kind, handle), []),
        )
    return lists


def process(pid: int, mib: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)


def test_a_process_is_counted_once_on_each_gpu(driver: Any) -> None:
    driver["Compute", 0] = [process(7, 300), process(8, None)]
    driver["Graphics", 0] = [process(7, 300), process(9, 10)]
    driver["Compute", 1] = [process(7, 50)]
    memory = DeviceMemory(GPUS)
    assert memory.used_bytes() == {7: 350 * MIB, 8: 0, 9: 10 * MIB}
    assert DeviceMemory(GPUS[1:]).used_bytes() == {7: 50 * MIB}


def test_a_process_of_mps_is_counted_as_any_other(driver: Any) -> None:
    driver["Compute", 0] = [process(7, 30)]  # the server
    driver["MPSCompute", 0] = [process(8, 300), process(9, None)]
    assert DeviceMemory(GPUS).used_bytes() == {7: 30 * MIB, 8: 300 * MIB, 9: 0}


def test_a_driver_without_a_list_of_mps_is_watched_by_the_others(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_handle: int) -> list[SimpleNamespace]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses", missing)
    driver["Compute", 0] = [process(7, 300)]
    assert DeviceMemory(GPUS).used_bytes() == {7: 300 * MIB}


def test_a_driver_that_fails_hides_no_other(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DeviceMemory(GPUS)
    driver["Compute", 0] = [process(7, 1)]
    driver["Compute", 1] = [process(7, 2)]

    def listed(handle: int) -> list[SimpleNamespace]:
        if handle == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        found: list[SimpleNamespace] = driver["Compute", handle]
        return found

    with monkeypatch.context() as patched:
        patched.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", listed)
        assert memory.used_bytes() == {7: 2 * MIB}, "as much as is known"
    assert memory.used_bytes() == {7: 3 * MIB}


def test_a_driver_that_was_reloaded_is_opened_again(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0

    def init() -> None:
        nonlocal opened
        opened += 1

    def handle(index: int) -> int:
        if not opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return index

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    memory = DeviceMemory(GPUS)
    driver["Compute", 0] = [process(7, 1)]
    opened = 0
    assert memory.used_bytes() == {}
    assert memory.used_bytes() == {7: MIB}


def test_the_message_names_what_to_raise() -> None:
    assert "600 MiB of device memory of 500 MiB" in device_memory_message(600, 500)
    assert "raise spark.hrm.executor.gpu.memory" in device_memory_message(600, 500)
    assert "spark.executor.resource.gpu.amount=1" in device_memory_message(600, 0)


async def with_a_container(
    tmp_path: Path,
    master: Master,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
    **settings: Any,
) -> tuple[AgentProcess, Path]:
    """An agent on one fake GPU of 1000 MiB, and a container that holds 500 of it."""
    path = tmp_path / "nvml.json"
    fake_nvml.write_state(path, [1000], {})
    monkeypatch.setenv(fake_nvml.VARIABLE, str(path))
    agent = start_agent(**settings)
    await master.until(lambda: master.registrations)
    assert not master.registrations[0].resource_units[1].gpu.declared
    master.assign("app-1-x1", FOREVER, unit=1, gpu_memory_mib=500)
    await master.until_state("app-1-x1", RUNNING)
    return agent, path


def child_of(agent: AgentProcess, container_id: str, eventually: Eventually) -> int:
    path = agent.work_dir / "containers" / container_id / "python.pid"
    eventually(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


async def test_a_container_over_its_share_ends_with_the_reason(
    tmp_path: Path,
    master: Master,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    agent, path = await with_a_container(tmp_path, master, start_agent, monkeypatch)
    pid = child_of(agent, "app-1-x1", eventually)
    fake_nvml.write_state(path, [1000], {0: {pid: 400, 1: 999}})
    status = await master.until(
        lambda: (
            master.statuses["app-1-x1"].usage.gpu_memory_mib == 400 and master.statuses["app-1-x1"]
        )
    )
    assert status.state == RUNNING, "inside its share, whatever others use"
    fake_nvml.write_state(path, [1000], {0: {pid: 501}})
    end = (await master.until_state("app-1-x1", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_GPU_MEMORY_LIMIT
    assert "used 501 MiB of device memory of 500 MiB" in end.message


async def test_one_that_holds_none_may_use_none(
    tmp_path: Path,
    master: Master,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    agent, path = await with_a_container(tmp_path, master, start_agent, monkeypatch)
    master.assign("app-2-x1", FOREVER)
    await master.until_state("app-2-x1", RUNNING)
    fake_nvml.write_state(path, [1000], {0: {child_of(agent, "app-2-x1", eventually): 20}})
    end = (await master.until_state("app-2-x1", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_GPU_MEMORY_LIMIT
    assert "used 20 MiB of device memory and holds none" in end.message
    assert master.statuses["app-1-x1"].state == RUNNING


async def test_the_node_states_what_becomes_of_over_users(
    tmp_path: Path,
    master: Master,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = os.environ["PATH"].split(os.pathsep)
    without = [path for path in where if not (Path(path) / "nvidia-cuda-mps-control").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(without))
    await with_a_container(tmp_path, master, start_agent, monkeypatch, mps="auto")
    remarks = list(master.registrations[0].remarks)
    assert any(r.startswith("device memory: watched through NVML") for r in remarks)
    assert any(r.startswith("MPS: off (the driver here comes without") for r in remarks)


async def test_declared_gpus_are_counted_only(master: Master, start_agent: StartAgent) -> None:
    start_agent(gpus=[{"memory_mib": 1000}], mps="auto")
    await master.until(lambda: master.registrations)
    remarks = list(master.registrations[0].remarks)
    assert any(r.startswith("device memory: counted only: the GPUs are declared") for r in remarks)
    assert any(r.startswith("MPS: off (the GPUs are declared") for r in remarks)
