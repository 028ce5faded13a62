"""The GPU of this machine, for tests that need a real one: what NVML itself reports of it.

HRM's own readings are compared with these, so nothing of HRM is used here.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

import pynvml
import pytest

__all__ = ["Card", "card_or_skip", "computes", "nvidia_smi"]

MIB = 1 << 20
SMI_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The machine's first GPU. ``memory_mib`` is what programs can allocate, as CUDA reports it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    driver: str

    def used_mib(self) -> float:
        """Device memory that is not free, what the driver itself keeps included."""
        handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / MIB


def card_or_skip() -> Card:
    """The first GPU; NVML stays initialised. Where there is none, the test is skipped."""
    try:
        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount():
            pytest.skip("no GPU: NVIDIA's driver lists none")
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return Card(
            index=0,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=int(memory.total - memory.reserved) // MIB,
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        )
    except pynvml.NVMLError as error:
        pytest.skip(f"no GPU: {error}")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def computes() -> str:
    """Why PyTorch cannot use the GPU here; empty: it can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA"


def nvidia_smi(query: str) -> list[str]:
    """The values that ``nvidia-smi`` prints for the first GPU, without units; [] without it."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    done = subprocess.run(
        [command, "-i", "0", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=SMI_S,
        check=True,
    )
    return [value.strip() for value in done.stdout.strip().split(",")]
