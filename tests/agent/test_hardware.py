"""What an agent finds on its machine: a fake /sys, a fake driver, declared GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from hrm.agent.hardware import cores, find_gpus, numa_distances
from hrm.agent.machine import Machine, keep_binding, load_binding
from hrm.config import AgentSettings, DeclaredGpu, load
from hrm.core.vocabulary.model import Gpu, Resources
from hrm.core.vocabulary.partitioning import BindingMode, Core, Partitioning
from hrm.errors import InvalidConfig, InvalidRequest

MIB = 1024 * 1024


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two NUMA nodes with four CPUs, of which this process may use three."""
    for node, (cpus, distances) in enumerate([("0-1", "10 21"), ("2,3", "21 10")]):
        path = tmp_path / f"devices/system/node/node{node}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(cpus + "\n")
        (path / "distance").write_text(distances + "\n")
    (tmp_path / "devices/system/node/online").write_text("0-1\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    return tmp_path


def test_cores_know_their_numa_nodes(machine: Path) -> None:
    assert cores(0, machine) == (Core(1, 0), Core(2, 1), Core(3, 1))
    assert cores(2, machine) == (Core(1, 0), Core(2, 1))
    assert numa_distances(machine) == ((0, 0, 10), (0, 1, 21), (1, 0, 21), (1, 1, 10))


def test_more_cores_than_there_are_have_no_numbers(machine: Path) -> None:
    assert cores(5, machine) == (Core(None),) * 5


def test_a_machine_that_reports_nothing_is_fine(tmp_path: Path) -> None:
    assert {core.numa for core in cores(0, tmp_path)} == {-1}
    assert numa_distances(tmp_path) == ()


def test_without_nvidias_library_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert find_gpus(()) == ()


def memory(handle: int, version: int | None = None) -> SimpleNamespace:
    """Of a new driver for the first GPU; for the second, of an old one without that version."""
    if handle == 1 and version is not None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    sizes = {"total": (handle + 1) * 1000 * MIB, "used": 0}
    return SimpleNamespace(**sizes) if version is None else SimpleNamespace(**sizes, reserved=MIB)


def test_gpus_as_the_driver_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver keeps for itself is not offered."""
    place = tmp_path / "bus/pci/devices/0000:3b:00.0"
    place.mkdir(parents=True)
    (place / "numa_node").write_text("1\n")
    replies = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(
            busId=[b"00000000:3B:00.0", "00000000:AF:00.0"][h]
        ),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUUID": lambda h: f"GPU-{h}",
        "nvmlDeviceGetName": lambda _: b"Fast One",
    }
    for name, response in replies.items():
        monkeypatch.setattr(pynvml, name, response)
    assert find_gpus((), tmp_path) == (
        Gpu(index=0, memory_mib=999, numa=1, uuid="GPU-0", name="Fast One"),
        Gpu(index=1, memory_mib=2000, numa=-1, uuid="GPU-1", name="Fast One"),
    )


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="no NVIDIA driver")
def test_the_gpus_of_this_machine() -> None:
    gpus = find_gpus(())
    assert gpus
    assert all(gpu.uuid.startswith("GPU-") and gpu.name and gpu.memory_mib > 0 for gpu in gpus)
    assert not any(gpu.declared for gpu in gpus)


def test_declared_gpus_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_AGENT_GPUS", '[{"memory_mib": 16384, "numa": 0}]')
    settings = load(AgentSettings)
    (gpu,) = find_gpus(settings.gpus)
    assert gpu == Gpu(index=0, memory_mib=16384, numa=0, declared=True)
    assert str(gpu) == "GPU 0, unnamed, 16384 MiB (declared)"
    assert load(AgentSettings, gpus='[{"memory_mib": 1}]').gpus == (DeclaredGpu(memory_mib=1),)


@pytest.mark.parametrize(
    "text", ["16384", "{", '[{"memory_mib": -1}]', '[{"memory": 1}]', '[{"memory_mib": NaN}]']
)
def test_gpus_that_cannot_be_declared(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HRM_AGENT_GPUS", text)
    with pytest.raises(InvalidConfig, match="HRM_AGENT_GPUS"):
        load(AgentSettings)


def settings_in(directory: Path, **more: object) -> AgentSettings:
    return load(
        AgentSettings,
        work_dir=directory,
        name="n1",
        cores=4,
        memory_mib=4000,
        isolation="none",
        run_as="off",
        gpus=[{"memory_mib": 100}, {"memory_mib": 200}],
        **more,
    )


def test_a_machine_is_partitioned_as_its_settings_state(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, binding_mode="partial")
    with Machine.prepare(settings) as machine:
        assert [unit.unit_id for unit in machine.units] == ["n1/cpu", "n1/gpu0", "n1/gpu1"]
        assert all(not unit.cpus for unit in machine.units), "nothing here can pin"
        assert machine.capacity == Resources(4, 4000, 300)
    impossible = settings_in(tmp_path, binding_mode="partial", gpu_bound_cores=2)
    with (
        pytest.raises(InvalidConfig, match="cannot be bound as set: 2 cores for each of 2 GPUs"),
        Machine.prepare(impossible),
    ):
        pass


def test_more_gpus_than_exist_end_the_agent_with_the_reason(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, gpu_limit=3)
    with pytest.raises(InvalidRequest, match="gpu_limit is 3, but the node has 2"):
        Machine.prepare(settings).__enter__()


def test_a_binding_outlives_the_agent_until_its_settings_change(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    assert load_binding(settings) == Partitioning()
    even = Partitioning(mode=BindingMode.EVEN, gpu_limit=1)
    keep_binding(settings, even)
    assert load_binding(settings) == even
    changed = settings_in(tmp_path, binding_mode="partial")
    assert load_binding(changed).mode is BindingMode.PARTIAL
    (tmp_path / "binding.json").write_text("[1")
    assert load_binding(settings) == Partitioning()
