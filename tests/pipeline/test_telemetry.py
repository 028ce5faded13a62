"""Profiles of real processes; what cannot be measured is reported as missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hrm.pipelines.telemetry import Profiler, Sampler

Start = Callable[[str], "subprocess.Popen[str]"]

BUSY = "data = bytearray(80 << 20); print('up', flush=True)\nwhile True: pass"
IDLE = "import sys; print('up', flush=True); sys.stdin.read()"
PARENT = (
    "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=subprocess.PIPE)\n"
    "child.stdout.readline(); print('up', flush=True)\n"
    "try: sys.stdin.read()\n"
    "finally: child.kill(); child.wait()"
)


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def started(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield started
    for process in running:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    if process.returncode is None:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
    assert process.stdout is not None
    process.stdout.close()


def watched(profiler: Profiler, until: Callable[[], bool]) -> None:
    """Sample until ``until``; waits by measuring, since the processor is what is measured."""
    for _ in range(20_000):
        profiler.sample()
        if until():
            return
    raise AssertionError("it did not come to that")


def test_a_busy_process_shows_its_core_and_its_memory(start: Start) -> None:
    profiler = Profiler(start(BUSY).pid)
    watched(profiler, lambda: profiler.seen_s > 0.6)
    found = profiler.figures()
    # Other work may have taken part of the core in the meantime.
    assert 0.05 < found["cpu"] <= 1.0
    assert 80 < found["memory"] < 400
    assert set(found) == {"cpu", "memory"}


def test_an_idle_process_uses_no_core(start: Start) -> None:
    profiler = Profiler(start(IDLE).pid)
    watched(profiler, lambda: profiler.seen_s > 0.4)
    assert profiler.figures()["cpu"] < 0.05


def test_what_a_worker_starts_counts(start: Start) -> None:
    profiler = Profiler(start(PARENT).pid)
    watched(profiler, lambda: profiler.seen_s > 0.6)
    assert profiler.figures()["cpu"] > 0.05
    assert profiler.figures()["memory"] > 80


def test_without_a_driver_a_gpus_figures_are_missing(start: Start) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert set(Profiler(start(IDLE).pid, gpu=0).figures()) == {"cpu", "memory"}
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is a GPU")


def test_an_ended_process_keeps_what_was_seen_and_one_never_seen_has_nothing(start: Start) -> None:
    process = start(BUSY)
    profiler = Profiler(process.pid)
    process.kill()
    process.wait(timeout=10)
    assert not profiler.sample()
    assert profiler.figures()["memory"] > 80
    assert Profiler(process.pid).figures() == {}


def test_nvmls_figures_of_the_process_are_taken_and_no_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(IDLE)
    mib = 1024 * 1024

    def utilisation(handle: Any, since_us: int) -> list[SimpleNamespace]:
        assert handle == "gpu 1"
        return [
            SimpleNamespace(pid=process.pid, timeStamp=since_us + 5, smUtil=40, memUtil=10),
            SimpleNamespace(pid=1, timeStamp=since_us + 9, smUtil=60, memUtil=90),
        ]

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"gpu {index}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", utilisation)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda handle: [
            SimpleNamespace(pid=process.pid, usedGpuMemory=700 * mib),
            SimpleNamespace(pid=1, usedGpuMemory=900 * mib),
        ],
    )
    profiler = Profiler(process.pid, gpu=1)
    found = profiler.figures()
    assert (found["sm"], found["dram"]) == pytest.approx((0.4, 0.1))
    assert found["gpu_memory"] == 700
    assert found.keys() == {"cpu", "memory", "sm", "dram", "gpu_memory"}
    profiler.close()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A driver that fails while its ``error`` is set. Besides this process others use the card."""
    sizes = {os.getpid(): 400 << 20, 1: 500 << 20}
    state: dict[str, Any] = {"error": None, "opened": 0, "sizes": sizes}

    def opened() -> None:
        state["opened"] += 1

    def rates(_handle: int) -> SimpleNamespace:
        if state["error"] is not None:
            raise pynvml.NVMLError(state["error"])
        return SimpleNamespace(gpu=80, memory=30)

    def processes(_handle: int) -> list[SimpleNamespace]:
        found = state["sizes"].items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found]

    def none(_handle: int) -> list[SimpleNamespace]:
        return []

    monkeypatch.setattr(pynvml, "nvmlInit", opened)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", processes)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses", none)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGraphicsRunningProcesses", none)
    return state


def test_a_gpu_is_sampled_with_what_the_worker_uses_of_its_memory(driver: dict[str, Any]) -> None:
    """Others have parts of their own: theirs would leave nothing of the worker's."""
    sample = Sampler([0]).sample(1.0)
    assert (sample.gpu_utilisation, sample.gpu_memory_used_mib) == ((0.8,), (400.0,))
    driver["sizes"][os.getpid()] = None
    assert Sampler([0]).sample(1.0).gpu_memory_used_mib == (0.0,), "the driver does not say"
    del driver["sizes"][os.getpid()]
    assert Sampler([0]).sample(1.0).gpu_memory_used_mib == (0.0,)


def test_what_steps_use_of_a_gpu_is_the_workers(driver: dict[str, Any], start: Start) -> None:
    child = start(IDLE)
    driver["sizes"] = {child.pid: 100 << 20, os.getpid(): 20 << 20, 1: 500 << 20}
    assert Sampler([0]).sample(1.0).gpu_memory_used_mib == (120.0,)


def test_a_gpu_whose_driver_fails_is_not_reported_as_idle(
    driver: dict[str, Any],
) -> None:
    sampler = Sampler([0])
    driver["error"] = pynvml.NVML_ERROR_UNINITIALIZED
    sample = sampler.sample(1.0)
    assert (sample.gpu_utilisation, sample.gpu_memory_used_mib) == ((), ())
    assert driver["opened"] == 2, "it is opened again, since it may have been reloaded"
    driver["error"] = None
    assert sampler.sample(2.0).gpu_utilisation == (0.8,)


def test_without_a_device_nothing_is_sampled(driver: dict[str, Any]) -> None:
    sample = Sampler([]).sample(1.0)
    assert sample.gpu_utilisation == () and not driver["opened"]
