"""Which device files belong to which GPU, and which of them a container may not open.

``CUDA_VISIBLE_DEVICES`` is only a request to a program. So where the isolation driver can
(``Isolation.restricts_devices``), every GPU but the container's own is closed to it; and, to one
without a GPU, all that NVIDIA's driver offers. Major numbers are those of ``/proc/devices``; a
GPU's minor number is NVML's, which need not be its index.

Containers of the agent's own user may be root, and root may leave its group. Only with ``run_as``
is this a security boundary.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import structlog

from hrm.agent.isolation import DeviceNumbers, Isolation
from hrm.config import DeclaredGpu
from hrm.core.vocabulary.model import Gpu
from hrm.errors import InvalidConfig

__all__ = ["GpuDevices", "find_gpu_devices"]

_PROC_DEVICES = Path("/proc/devices")
_DEV = Path("/dev")
_DRIVER = ("nvidia", "nvidia-frontend", "nvidiactl")
"""Names that the major number of the GPUs themselves has had over the years."""
_CONTROL_FIRST = 254
"""From here on a minor number is the driver's control device, which every CUDA program opens."""
_log = structlog.get_logger("hrm.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevices:
    """``of``: the device of each GPU, by its index; ``others``: GPUs of the machine that are not
    offered; ``driver``: all major numbers of the driver."""

    of: dict[int, DeviceNumbers] = field(default_factory=dict)
    others: frozenset[DeviceNumbers] = frozenset()
    driver: frozenset[DeviceNumbers] = frozenset()

    def closed(self, gpus: Sequence[Gpu]) -> tuple[DeviceNumbers, ...]:
        """What a container that holds (a share of each of) ``gpus`` may not open."""
        if not gpus:
            return tuple(sorted({*self.driver, *self.of.values(), *self.others}, key=str))
        own = {self.of.get(gpu.index) for gpu in gpus}
        return tuple(sorted(({*self.of.values()} | self.others) - own, key=str))

    def remark(self, isolation: Isolation) -> str:
        """The remark for operators of the node; empty: there is no device to close."""
        if not self.of and not self.driver and not self.others:
            return ""
        if isolation.restricts_devices:
            return f"GPU devices: closed to containers that do not hold them ({isolation.name})"
        why = {"cgroup2": "cgroup v2 takes an eBPF program for that, which HRM does not load"}
        return (
            f"GPU devices: NOT closed to other containers, only hidden by CUDA_VISIBLE_DEVICES: "
            f"{why.get(isolation.name, 'it takes the devices controller of cgroup v1')}"
        )


def find_gpu_devices(
    gpus: Iterable[Gpu],
    declared: tuple[DeclaredGpu, ...],
    proc_devices: Path = _PROC_DEVICES,
    dev: Path = _DEV,
) -> GpuDevices:
    """The devices of these GPUs on this machine.

    Raises:
        InvalidConfig: the path of a declared GPU is not a device.
    """
    majors = _majors(proc_devices)
    driver = frozenset(DeviceNumbers(major) for major in majors.values())
    if declared:
        named = {i: _numbers(gpu.device) for i, gpu in enumerate(declared) if gpu.device}
        return GpuDevices(of=dict(named), driver=driver)
    major = next((majors[name] for name in _DRIVER if name in majors), None)
    if major is None:
        return GpuDevices()
    of = {gpu.index: DeviceNumbers(major, _minor(gpu)) for gpu in gpus}
    there = (re.fullmatch(r"nvidia(\d+)", path.name) for path in dev.glob("nvidia*"))
    minors = {int(found[1]) for found in there if found}
    all_of_them = {DeviceNumbers(major, minor) for minor in minors if minor < _CONTROL_FIRST}
    others = frozenset(all_of_them - set(of.values()))
    return GpuDevices(of=of, others=others, driver=driver)


def _majors(proc_devices: Path) -> dict[str, int]:
    """Major numbers of NVIDIA's character devices, by name."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        characters = proc_devices.read_text().partition("Block devices:")[0]
        for number, name in re.findall(r"^\s*(\d+) (nvidia\S*)$", characters, re.MULTILINE):
            found[name] = int(number)
    return found


def _minor(gpu: Gpu) -> int:
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
            return int(pynvml.nvmlDeviceGetMinorNumber(handle))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        _log.warning("a GPU's minor number is not available; taking its index", why=str(error))
        return gpu.index


def _numbers(path: Path) -> DeviceNumbers:
    try:
        about = path.stat()
    except OSError as error:
        raise InvalidConfig(f"gpus: no device {path}: {error.strerror}") from error
    if not stat.S_ISCHR(about.st_mode):
        raise InvalidConfig(f"gpus: {path} is no character device")
    return DeviceNumbers(os.major(about.st_rdev), os.minor(about.st_rdev))
