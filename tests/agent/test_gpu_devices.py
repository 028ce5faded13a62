"""Which devices are closed to which containers: a fake /proc/devices and /dev, and a fake NVML."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from hrm.agent.gpu.devices import GpuDevices, find_gpu_devices
from hrm.agent.isolation import Cgroup1, Cgroup2, DeviceNumbers, Isolation
from hrm.config import DeclaredGpu
from hrm.core.vocabulary.model import Gpu
from hrm.errors import InvalidConfig

GPUS = tuple(Gpu(index=index, memory_mib=1000) for index in range(2))
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
235 nvidia-caps
511 nvidia-uvm

Block devices:
195 nvidia-not-a-character-device
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four GPUs, whose minor numbers descend while their indices ascend."""
    (tmp_path / "devices").write_text(PROC_DEVICES)
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMinorNumber", lambda handle: 3 - handle)
    return tmp_path


def found(machine: Path) -> GpuDevices:
    return find_gpu_devices(GPUS, (), machine / "devices", machine)


def test_a_container_may_open_its_gpu_and_no_other(machine: Path) -> None:
    devices = found(machine)
    assert devices.closed(GPUS[:1]) == (
        DeviceNumbers(195, 0),
        DeviceNumbers(195, 1),
        DeviceNumbers(195, 2),
    )
    assert not {*devices.closed(GPUS)} & {devices.of[0], devices.of[1]}, "it holds both"
    assert devices.closed(GPUS[1:2]) == (
        DeviceNumbers(195, 0),
        DeviceNumbers(195, 1),
        DeviceNumbers(195, 3),
    )


def test_one_without_a_gpu_reaches_nothing_of_the_driver(machine: Path) -> None:
    assert {DeviceNumbers(195), DeviceNumbers(235), DeviceNumbers(511)} <= set(
        found(machine).closed(())
    )


def test_a_driver_that_reports_no_minor_number_counts_from_zero(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_handle: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMinorNumber", refuse)
    assert found(machine).of == {0: DeviceNumbers(195, 0), 1: DeviceNumbers(195, 1)}


def test_a_machine_without_the_driver_has_nothing_to_close(tmp_path: Path) -> None:
    devices = find_gpu_devices((), (), tmp_path / "absent", tmp_path)
    assert devices.closed(()) == ()
    assert devices.remark(Isolation()) == ""


def test_it_is_reported_where_nothing_closes_them(machine: Path) -> None:
    devices = found(machine)
    cgroup1 = Cgroup1("me", 1)
    if cgroup1.restricts_devices:
        assert devices.remark(cgroup1).startswith("GPU devices: closed to containers")
    assert "NOT closed" in devices.remark(Isolation())
    assert "eBPF program for that, which HRM does not load" in devices.remark(Cgroup2("me", 1))


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/absent", "no device /dev/absent"), ("/etc/passwd", "no character")]
)
def test_a_declared_gpu_must_name_a_device(tmp_path: Path, path: str, why: str) -> None:
    declared = (DeclaredGpu(memory_mib=1, device=Path(path)),)
    with pytest.raises(InvalidConfig, match=why):
        find_gpu_devices((), declared, tmp_path, tmp_path)
