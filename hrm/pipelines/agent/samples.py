"""Telemetry for pipelines: how busy the machine, its network and its GPUs are.

A GPU that NVML does not report is assumed to be as busy as predicted for its runs.
"""

from __future__ import annotations

import contextlib
import time

import psutil
import pynvml
import structlog

from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.core.node_messages import LoadSampled

__all__ = ["Sampler"]

_LINK_BYTES_PER_S = 125e6
_MIB = 1 << 20
_log = structlog.get_logger("hrm.agent.pipelines")


class Sampler:
    """``sample`` is to be called about once a second, from one thread."""

    def __init__(self, share: PipelineShare) -> None:
        self._handles = _handles(share)
        self._share = share
        self._at_s = time.monotonic()
        self._bytes = _network_bytes()
        psutil.cpu_percent()

    def sample(self, now: float) -> LoadSampled:
        """What the machine does since the last call; shares 0..1, rates of a 1 Gbit/s link."""
        at_s, total = time.monotonic(), _network_bytes()
        passed_s = max(1e-3, at_s - self._at_s)
        sent, received = (
            min(1.0, (new - old) / passed_s / _LINK_BYTES_PER_S)
            for new, old in zip(total, self._bytes, strict=True)
        )
        self._at_s, self._bytes = at_s, total
        gpus = [self._gpu(index) for index in self._handles]
        complete = len(gpus) == len(self._share.gpus)
        return LoadSampled(
            now=now,
            cpu=min(1.0, psutil.cpu_percent() / 100),
            memory=min(1.0, psutil.virtual_memory().percent / 100),
            sent=max(0.0, sent),
            received=max(0.0, received),
            gpu_utilisation=tuple(gpu[0] for gpu in gpus) if complete else (),
            gpu_memory_used_mib=tuple(gpu[1] for gpu in gpus) if complete else (),
        )

    def _gpu(self, index: int) -> tuple[float, float]:
        """Share of time in which kernels ran, and MiB in use."""
        handle = self._handles[index]
        with contextlib.suppress(pynvml.NVMLError):
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            return rates.gpu / 100, int(memory.used) / _MIB
        return 0.0, 0.0


def _handles(share: PipelineShare) -> dict[int, object]:
    """NVML's handles of the GPUs that are there, by number."""
    real = [index for index, gpu in share.gpus.items() if not gpu.declared]
    if not real:
        return {}
    try:
        pynvml.nvmlInit()
        return {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in real}
    except pynvml.NVMLError as error:
        _log.warning("GPUs are not sampled", why=str(error))
        return {}


def _network_bytes() -> tuple[int, int]:
    """Since the machine started, over all its links; what it sends to itself uses none."""
    links = [one for name, one in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return sum(one.bytes_sent for one in links), sum(one.bytes_recv for one in links)
