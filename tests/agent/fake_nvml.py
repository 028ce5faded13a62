"""A declared fake of NVML, for agents on machines without a GPU.

``install(path)`` replaces pynvml's functions. The file at ``path`` is the driver's state:
``{"memory_mib": [1000], "processes": {"0": {"4711": 300}}, "busy": {"4711": 50}}``: the GPUs, by
GPU and process the MiB in use, and by process the share of time, percent, with a kernel. A test
writes it while the agent runs.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

__all__ = ["LOSE_VARIABLE", "VARIABLE", "install", "lose_while", "write_state"]

VARIABLE = "TEST_FAKE_NVML"
LOSE_VARIABLE = "TEST_LOSE_NVML"
_MIB = 1 << 20


def write_state(
    path: Path,
    memory_mib: list[int],
    processes: dict[int, dict[int, int]],
    busy: dict[int, int] | None = None,
) -> None:
    """Write the driver's state, atomically."""
    made = path.with_suffix(".partial")
    state = {"memory_mib": memory_mib, "processes": processes, "busy": busy or {}}
    made.write_text(json.dumps(state))
    made.rename(path)


def install(path: Path) -> None:
    def known() -> dict[str, Any]:
        document = json.loads(path.read_text())
        assert isinstance(document, dict)
        return document

    def memory(index: int, version: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(total=known()["memory_mib"][index] * _MIB, reserved=0, used=0)

    def computing(index: int) -> list[SimpleNamespace]:
        found = known()["processes"].get(str(index), {})
        return [SimpleNamespace(pid=int(p), usedGpuMemory=mib * _MIB) for p, mib in found.items()]

    def utilisation(_index: int, since_us: int) -> list[SimpleNamespace]:
        busy = known()["busy"]
        if not busy:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(pid=int(pid), smUtil=share, timeStamp=since_us + 1)
            for pid, share in busy.items()
        ]

    replies = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(known()["memory_mib"]),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMinorNumber": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:0{index}:00.0"),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetName": lambda _index: "Fake One",
        "nvmlDeviceGetComputeRunningProcesses": computing,
        "nvmlDeviceGetProcessUtilization": utilisation,
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda _index: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _index: [],
    }
    for name, response in replies.items():
        setattr(pynvml, name, response)


def lose_while(path: Path) -> None:
    """With the real driver: NVML is shut down under its users whenever ``path`` exists, as by a
    driver that is reloaded. Their handles are worth nothing then, also once the file is gone."""
    listed, begin = pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlInit

    def lost(handle: Any) -> Any:
        if path.exists():
            with contextlib.suppress(pynvml.NVMLError):
                while True:
                    pynvml.nvmlShutdown()
        return listed(handle)

    def found() -> Any:
        if path.exists():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return begin()

    pynvml.nvmlDeviceGetComputeRunningProcesses = lost
    pynvml.nvmlInit = found
