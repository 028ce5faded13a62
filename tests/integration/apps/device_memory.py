"""Holds device memory for a test: ``device_memory.py DIRECTORY NAME``, by CUDA's driver alone.

It writes what it sees of the machine's GPUs to ``DIRECTORY/NAME.json``. From then on it holds as
many MiB as the file ``DIRECTORY/NAME.wanted`` says, and keeps them busy; after each change it
writes its state again. It ends once there is a file ``DIRECTORY/NAME.end``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

MIB = 1 << 20
PERIOD_S = 0.02


class Holder:
    """One CUDA context on the first visible GPU, and the memory that was allocated in it."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._blocks: list[tuple[ctypes.c_uint64, int]] = []
        self.error = self._cuda.cuInit(0)
        self.devices: list[str] = []
        count = ctypes.c_int()
        if not self.error and not self._cuda.cuDeviceGetCount(ctypes.byref(count)):
            self.devices = [self._uuid(number) for number in range(count.value)]
        if self.devices:
            self.error = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0)
            self.error = self.error or self._cuda.cuCtxSetCurrent(self._context)

    def _uuid(self, number: int) -> str:
        device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._cuda.cuDeviceGet(ctypes.byref(device), number)
        self._cuda.cuDeviceGetUuid_v2(ctypes.byref(found), device)
        return f"GPU-{uuid.UUID(bytes=bytes(found))}"

    @property
    def held_mib(self) -> int:
        return sum(mib for _, mib in self._blocks)

    def hold(self, wanted_mib: int) -> None:
        """``error`` is CUDA's if that failed, else 0."""
        for block, _ in self._blocks:
            self._cuda.cuMemFree_v2(block)
        self._blocks = []
        block = ctypes.c_uint64()
        self.error = self._cuda.cuMemAlloc_v2(
            ctypes.byref(block), ctypes.c_size_t(wanted_mib * MIB)
        )
        if not self.error:
            self._blocks = [(block, wanted_mib)]

    def work(self) -> None:
        for block, mib in self._blocks:
            self._cuda.cuMemsetD8_v2(block, ctypes.c_ubyte(1), ctypes.c_size_t(mib * MIB))
        self._cuda.cuCtxSynchronize()

    def free_and_total_mib(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if self.devices:
            self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def state(self, wanted_mib: int) -> dict[str, Any]:
        names = ("CUDA_VISIBLE_DEVICES", "HRM_GPU_INDEX", "HRM_GPU_MEMORY_MIB")
        free_mib, total_mib = self.free_and_total_mib()
        return {
            "pid": os.getpid(),
            "devices": self.devices,
            "environment": [os.environ.get(name, "") for name in names],
            "wanted_mib": wanted_mib,
            "held_mib": self.held_mib,
            "free_mib": free_mib,
            "total_mib": total_mib,
            "error": self.error,
        }


def main(directory: Path, name: str) -> None:
    holder = Holder()
    answers, wanted_file = directory / f"{name}.json", directory / f"{name}.wanted"
    latest = -1
    while not (directory / f"{name}.end").exists():
        wanted_mib = int(wanted_file.read_text()) if wanted_file.exists() else 0
        if wanted_mib != latest:
            latest = wanted_mib
            if wanted_mib:
                holder.hold(wanted_mib)
            made = answers.with_suffix(".part")
            made.write_text(json.dumps(holder.state(wanted_mib)))
            made.rename(answers)
        holder.work() if holder.devices else None
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
