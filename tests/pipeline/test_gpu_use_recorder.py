"""What a step uses of its GPU over its life, from a driver that a test plays."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pynvml
import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, check_gpu_use
from hrm.pipelines.worker.gpu_use_recorder import GpuUseRecorder, GpuUseRecording

MIB = 1 << 20


class Driver:
    """Of one GPU with a link of 4 lanes of generation 3. An ``errors`` entry is raised by name."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.sm, self.memory_mib, self.kib_per_s = 40, 700, {0: 0, 1: 0}
        self.opened = self.asked = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.enough = asyncio.Event()
        """Of samples, for a recording on ``loop``."""

    def _asked(self, name: str) -> None:
        self.asked += 1
        if name in self.errors:
            raise pynvml.NVMLError(self.errors[name])

    def open(self) -> None:
        self._asked("open")
        self.opened += 1

    def close(self) -> None:
        self.opened -= 1

    def utilisation(self, _handle: str, since_us: int) -> list[SimpleNamespace]:
        self._asked("utilisation")
        return [SimpleNamespace(pid=os.getpid(), timeStamp=since_us + 1, smUtil=self.sm),
                SimpleNamespace(pid=1, timeStamp=since_us + 2, smUtil=99)]  # fmt: skip

    def processes(self, _handle: str) -> list[SimpleNamespace]:
        self._asked("processes")
        size = None if self.memory_mib < 0 else self.memory_mib * MIB
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=size),
                SimpleNamespace(pid=1, usedGpuMemory=9 * MIB)]  # fmt: skip

    def pcie(self, _handle: str, way: int) -> int:
        self._asked("pcie")
        if self.loop is not None and self.asked > 12:
            self.loop.call_soon_threadsafe(self.enough.set)
        return self.kib_per_s[way]

    def link(self, _handle: str) -> int:
        self._asked("link")
        return 3


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    for name, call in {
        "nvmlInit": made.open,
        "nvmlShutdown": made.close,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu {index}",
        "nvmlDeviceGetProcessUtilization": made.utilisation,
        "nvmlDeviceGetComputeRunningProcesses": made.processes,
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda _handle: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _handle: [],
        "nvmlDeviceGetPcieThroughput": made.pcie,
        "nvmlDeviceGetMaxPcieLinkGeneration": made.link,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _handle: 4,
    }.items():
        monkeypatch.setattr(pynvml, name, call)
    return made


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def recorder(clock: Clock) -> GpuUseRecorder:
    return GpuUseRecorder(os.getpid(), 0, clock)


def test_each_part_has_the_greatest_use_within_it_and_at_its_ends(driver: Driver) -> None:
    clock = Clock()
    made = recorder(clock)
    for second in range(16):
        clock.now = 50.0 + second
        driver.sm, driver.memory_mib = (90, 100) if second < 8 else (10, 500)
        driver.kib_per_s = {pynvml.NVML_PCIE_UTIL_TX_BYTES: 962_000,
                            pynvml.NVML_PCIE_UTIL_RX_BYTES: 1_924_000}  # fmt: skip
        assert made.sample()
    use = made.use(16.0)
    check_gpu_use(use)
    assert [part.gpu for part in use] == [0.9] * 8 + [pytest.approx(0.1)] * 8
    assert [part.memory_mib for part in use] == [100.0] * 7 + [500.0] * 9, "the next is seen"
    assert {part.cores for part in use} == {part.gpu for part in use}
    assert [part.pcie for part in use] == pytest.approx([0.5] * USE_PARTS)
    made.close()
    assert driver.opened == 0


def test_few_samples_are_stretched_and_fewer_than_two_are_nothing(driver: Driver) -> None:
    clock = Clock()
    made = recorder(clock)
    assert made.use(10.0) == ()
    made.sample()
    assert made.use(10.0) == ()
    clock.now, driver.memory_mib = 59.0, 900
    made.sample()
    use = made.use(10.0)
    assert len(use) == USE_PARTS
    assert {part.memory_mib for part in use} == {900.0}, "it may have grown at any time"
    assert made.use(0.0) == ()


def test_a_peak_between_two_samples_raises_all_of_them(driver: Driver) -> None:
    clock = Clock()
    made = recorder(clock)
    for second, memory_mib in ((0, 200), (8, 800)):
        clock.now, driver.memory_mib = 50.0 + second, memory_mib
        made.sample()
    sampled, raised = made.use(16.0, 500.0), made.use(16.0, 1600.0)
    assert max(part.memory_mib for part in sampled) == 800.0, "what was seen is no less"
    assert [part.memory_mib for part in raised] == [2.0 * part.memory_mib for part in sampled]
    idle = recorder(clock)
    driver.memory_mib = 0
    assert idle.sample() and idle.sample()
    assert {part.memory_mib for part in idle.use(16.0, 300.0)} == {300.0}


def test_a_step_that_computes_nothing_uses_no_time(driver: Driver) -> None:
    driver.errors["utilisation"] = pynvml.NVML_ERROR_NOT_FOUND
    made = recorder(Clock())
    assert made.sample() and made.sample()
    assert {(part.gpu, part.memory_mib) for part in made.use(1.0)} == {(0.0, 700.0)}


@pytest.mark.parametrize("lacking", ["open", "utilisation", "processes"])
def test_what_a_driver_does_not_report_by_process_is_no_profile(
    driver: Driver, lacking: str
) -> None:
    driver.errors[lacking] = pynvml.NVML_ERROR_NOT_SUPPORTED
    made = recorder(Clock())
    assert not made.sample()
    assert made.use(10.0) == ()
    made.close()


def test_memory_that_the_driver_hides_is_no_profile(driver: Driver) -> None:
    driver.memory_mib = -1
    assert not recorder(Clock()).sample()


@pytest.mark.parametrize("lacking", ["link", "pcie"])
def test_a_link_that_is_not_reported_counts_as_idle(driver: Driver, lacking: str) -> None:
    driver.errors[lacking] = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.kib_per_s = {0: 500_000, 1: 500_000}
    made = recorder(Clock())
    assert made.sample() and made.sample()
    assert {part.pcie for part in made.use(1.0)} == {0.0}


async def test_a_recording_samples_until_it_ends(driver: Driver) -> None:
    driver.loop = asyncio.get_running_loop()
    recording = GpuUseRecording(0)
    recording.begin(os.getpid())
    async with asyncio.timeout(10.0):
        await driver.enough.wait()
    recording.end()
    assert recording.use(1.0, 0.0)
    recording.end()
    assert driver.opened == 0


async def test_nothing_is_recorded_where_there_is_no_device(driver: Driver) -> None:
    recording = GpuUseRecording(None)
    recording.begin(os.getpid())
    recording.end()
    assert recording.use(1.0, 0.0) == () and driver.asked == 0
