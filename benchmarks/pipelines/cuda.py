"""GPU versions measured on a real card: events around each run, with samples of NVML.

Only where PyTorch finds CUDA; otherwise ``counting`` estimates. A run lasts from before its first
copy to after its last, since a subtask starts and ends on the host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import torch

from benchmarks.pipelines import counting

__all__ = ["Meter", "measured"]

SAMPLE_S = 0.05
WATCH_S = 1.5
"""NVML averages over up to a second: a short step is repeated for so long."""
RUNS_MAX = 2_000


class Meter:
    """Samples a card's utilisation and memory from NVML until it is stopped."""

    def __init__(self, index: int = 0) -> None:
        pynvml.nvmlInit()
        self._card = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.busy: list[float] = []
        self.memory: list[float] = []
        self.used_mib: list[float] = []

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        pynvml.nvmlShutdown()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            rates = pynvml.nvmlDeviceGetUtilizationRates(self._card)
            self.busy.append(rates.gpu / 100)
            self.memory.append(rates.memory / 100)
            self.used_mib.append(pynvml.nvmlDeviceGetMemoryInfo(self._card).used / 2**20)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def measured(version: Callable[..., Any], inputs: list[Any], runs: int) -> dict[str, Any]:
    """The GPU half of a row of the profiles, from this machine's first card."""
    version(*inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(runs):
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        start.record()
        version(*inputs)
        end.record()
        end.synchronize()
        times.append(round(start.elapsed_time(end) / 1000, 6))
    reserved = torch.cuda.max_memory_reserved() / 2**20
    deadline = time.monotonic() + WATCH_S
    with Meter() as meter:
        for _ in range(RUNS_MAX):
            version(*inputs)
            torch.cuda.synchronize()
            if time.monotonic() > deadline:
                break
    with counting.counted() as work:
        version(*inputs)
    read = sum(one.read for one in work.operations)
    written = sum(one.written for one in work.operations)
    memory = _mean(meter.memory)
    share = read / (read + written) if read + written else 0.0
    return {
        "gpu_model": torch.cuda.get_device_name(0),
        "gpu_s": times,
        "gpu_memory_mib": round(reserved + counting.CONTEXT_MIB, 1),
        "gpu_features": {
            "sm": round(_mean(meter.busy), 5),
            "l1": round(memory / 5, 5),
            "l2": round(memory / 3, 5),
            "tex": 0.0,
            "dram": round(memory, 5),
            "load": round(memory * share, 5),
            "store": round(memory * (1 - share), 5),
        },
        "gpu_copied_mb": round(work.copied / 1e6, 3),
        "gpu_launches": len(work.operations),
        "other_gpus": {},
    }
