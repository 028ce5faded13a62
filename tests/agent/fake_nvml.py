"""A declared fake of NVML, for agents on machines without a GPU.

``install(path)`` replaces pynvml's functions. The file at ``path`` is the driver's state:
``{"memory_mib": [1000], "processes": {"0": {"4711": 300}}}``: the GPUs, and by GPU and process the
MiB in use. A test writes it while the agent runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

__all__ = ["VARIABLE", "install", "write_state"]

VARIABLE = "TEST_FAKE_NVML"
_MIB = 1 << 20


def write_state(path: Path, memory_mib: list[int], processes: dict[int, dict[int, int]]) -> None:
    """Write the driver's state, atomically."""
    made = path.with_suffix(".partial")
    made.write_text(json.dumps({"memory_mib": memory_mib, "processes": processes}))
    made.rename(path)


def install(path: Path) -> None:
    def known() -> dict[str, Any]:
        document = json.loads(path.read_text())
        assert isinstance(document, dict)
        return document

    def computing(index: int) -> list[SimpleNamespace]:
        found = known()["processes"].get(str(index), {})
        return [SimpleNamespace(pid=int(p), usedGpuMemory=mib * _MIB) for p, mib in found.items()]

    replies = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(known()["memory_mib"]),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMinorNumber": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:0{index}:00.0"),
        "nvmlDeviceGetMemoryInfo": lambda i: SimpleNamespace(total=known()["memory_mib"][i] * _MIB),
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetName": lambda _index: "Fake One",
        "nvmlDeviceGetComputeRunningProcesses": computing,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _index: [],
    }
    for name, response in replies.items():
        setattr(pynvml, name, response)
