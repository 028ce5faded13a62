"""Usage of containers and the node, sampled by psutil in one thread; containers over a limit.

A container is the process tree below its shim. Its memory is what the kernel charges to its cgroup
where there is one. Otherwise it is summed over the tree: resident sizes first, which count a shared
page several times; only if that is over the limit, proportional sizes, which cost a walk of the
page tables.

Where the kernel enforces the limit, it kills one process of the group and counts that; the tracker
turns the count into the end of the whole container. Where nothing does, the tracker compares. Disk
and device memory are measured elsewhere (``disk``, ``device_memory``) and evaluated here; a
container breaks one limit only, the first found.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import psutil
import structlog

from hrm.agent.disk_watch import DiskUse, DiskWatch, blind
from hrm.agent.gpu.device_memory import DeviceMemory, device_memory_message
from hrm.agent.isolation import Isolation
from hrm.core.vocabulary.advice import EXECUTOR, Advice, advice_for
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import ContainerId, EndCause, Usage, application_of

__all__ = ["Breach", "Sample", "Tracker", "memory_message"]

_MIB = 1024 * 1024
_STOP_LIMIT_S = 10.0
_log = structlog.get_logger("hrm.agent.tracker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A container that is over a limit, with the message for its user."""

    container_id: str
    message: str
    cause: EndCause = EndCause.MEMORY_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of everything. ``closed``: why no container may start now, empty: they may.
    ``gpu_uses``: of containers that hold device memory, where it is watched; NaN: not reported."""

    node: Usage
    containers: dict[str, Usage]
    breaches: tuple[Breach, ...]
    closed: str = ""
    gpu_uses: dict[str, GpuUsePart] = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    root_pid: int
    isolation: Isolation
    limit_mib: int
    heap_mib: int
    gpu_limit_mib: int
    cpu_s: dict[int, float] = field(default_factory=dict)
    sampled_at_s: float = 0.0
    breached: bool = False


def memory_message(
    used_mib: int | None, limit_mib: int, heap_mib: int = 0, advice: Advice = EXECUTOR
) -> str:
    """One line for the user of a container that was over its limit."""
    used = f"used {used_mib} MiB of" if used_mib is not None else "needed more than its"
    parts = advice.memory_parts(limit_mib, heap_mib)
    return f"{used} {limit_mib} MiB{parts}; {advice.more_memory}"


class Tracker:
    """Samples every ``interval_s`` in a thread of its own and passes each to ``on_sample``.

    ``watch`` and ``unwatch`` may be called from any thread. ``on_sample`` runs in the tracker's
    thread.
    """

    def __init__(
        self,
        interval_s: float,
        on_sample: Callable[[Sample], None],
        *,
        disk: DiskWatch | None = None,
        device_memory: DeviceMemory | None = None,
    ) -> None:
        """``disk`` sweeps in a thread of its own, which starts and stops with this one."""
        self._interval_s = interval_s
        self._on_sample = on_sample
        self._disk = disk
        self._device_memory = device_memory
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._last = Sample(node=Usage(), containers={}, breaches=())
        self._blind = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hrm-tracker", daemon=True)

    def watch(
        self,
        container_id: str,
        root_pid: int,
        isolation: Isolation,
        *,
        limit_mib: int,
        heap_mib: int = 0,
        gpu_limit_mib: int = 0,
    ) -> None:
        """Observe the processes below ``root_pid``, which itself does not count."""
        entry = _Watched(root_pid, isolation, limit_mib, heap_mib, gpu_limit_mib)
        with self._lock:
            self._watched[container_id] = entry

    def unwatch(self, container_id: str) -> None:
        with self._lock:
            self._watched.pop(container_id, None)

    def start(self) -> None:
        psutil.cpu_percent()  # the first call only sets the reference
        self._thread.start()
        if self._disk is not None:
            self._disk.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_LIMIT_S)
        if self._disk is not None:
            self._disk.stop()
        if self._device_memory is not None:
            self._device_memory.close()

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                sample = self.sample()
            except Exception as error:
                # One bad sample (no descriptor left, a file of /proc that this kernel lacks) must
                # not end the watch; but what cannot be watched must not start.
                why = blind("usage", error)
                if why != self._blind:
                    _log.exception("sampling failed")
                self._blind = why
                sample = replace(self._last, breaches=(), closed=why, gpu_uses={})
            try:
                self._on_sample(sample)
            except Exception:
                _log.exception("a sample was skipped")

    def sample(self) -> Sample:
        """Take one sample, now."""
        with self._lock:
            watched = dict(self._watched)
        children = _children() if watched else {}
        reading = self._device_memory.read() if self._device_memory and watched else None
        gpu_uses: dict[str, GpuUsePart] = {}
        disk = self._disk.use.containers if self._disk is not None else {}
        full = self._disk.too_much(watched) if self._disk is not None else {}
        usages: dict[str, Usage] = {}
        breaches: list[Breach] = []
        for container_id, entry in watched.items():
            processes = _below(entry.root_pid, children)
            memory_mib = _memory_mib(container_id, entry, processes)
            pids = {process.pid for process in processes}
            gpu_mib = 0
            if reading is not None:
                gpu_mib = sum(reading.used_bytes.get(pid, 0) for pid in pids) // _MIB
                if entry.gpu_limit_mib:
                    gpu_uses[container_id] = reading.use_of(pids)
            usages[container_id] = Usage(
                cpu_percent=_cpu_percent(entry, processes),
                memory_mib=memory_mib,
                processes=len(processes),
                disk_mib=disk[container_id].mib if container_id in disk else 0,
                gpu_memory_mib=gpu_mib,
            )
            if entry.breached:
                continue
            breach = _breach(container_id, entry, memory_mib, gpu_mib, full.get(container_id))
            if breach is not None:
                entry.breached = True
                breaches.append(breach)
        closed = (self._disk.blind or self._disk.low) if self._disk is not None else ""
        self._last = Sample(
            node=self._node(),
            containers=usages,
            breaches=tuple(breaches),
            closed=closed,
            gpu_uses=gpu_uses,
        )
        self._blind = ""
        return self._last

    def _node(self) -> Usage:
        memory = psutil.virtual_memory()
        use = self._disk.use if self._disk is not None else DiskUse()
        return Usage(
            cpu_percent=psutil.cpu_percent(),
            memory_mib=(memory.total - memory.available) // _MIB,
            processes=len(psutil.pids()),
            memory_total_mib=memory.total // _MIB,
            load_1m=round(os.getloadavg()[0], 2),
            disk_mib=use.total_mib,
            disk_free_mib=use.free_mib,
        )


def _breach(
    container_id: str, entry: _Watched, memory_mib: int, gpu_mib: int, disk: str | None
) -> Breach | None:
    """The first limit that a container is over; ``disk``: its breach, None: inside."""
    over = _over(container_id, entry, memory_mib)
    advice = advice_for(application_of(ContainerId(container_id)))
    if over is not None:
        message = memory_message(over or None, entry.limit_mib, entry.heap_mib, advice)
        return Breach(container_id=container_id, message=message)
    if gpu_mib > entry.gpu_limit_mib:
        message = device_memory_message(gpu_mib, entry.gpu_limit_mib, advice)
        cause = EndCause.GPU_MEMORY_LIMIT
        return Breach(container_id=container_id, message=message, cause=cause)
    if disk is not None:
        return Breach(container_id=container_id, message=disk, cause=EndCause.DISK_LIMIT)
    return None


def _over(container_id: str, entry: _Watched, memory_mib: int) -> int | None:
    """MiB used if over the limit, 0 if the kernel acted and the rest is gone; None: inside."""
    if entry.isolation.enforces_memory:
        return 0 if entry.isolation.memory_kills(container_id) else None
    return memory_mib if memory_mib > entry.limit_mib else None


def _memory_mib(container_id: str, entry: _Watched, processes: list[psutil.Process]) -> int:
    charged = entry.isolation.memory_used_mib(container_id)
    if charged is not None:
        return charged
    resident = sum(_bytes(process, proportional=False) for process in processes)
    if resident <= entry.limit_mib * _MIB:
        return resident // _MIB
    return sum(_bytes(process, proportional=True) for process in processes) // _MIB


def _children() -> dict[int, list[psutil.Process]]:
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            found.setdefault(process.info["ppid"], []).append(process)
    return found


def _below(root: int, children: dict[int, list[psutil.Process]]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(below)
        waiting.extend(process.pid for process in below)
    return found


def _bytes(process: psutil.Process, *, proportional: bool) -> int:
    with contextlib.suppress(psutil.Error):
        if not proportional:
            return int(process.memory_info().rss)
        with contextlib.suppress(psutil.AccessDenied):
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    return 0


def _cpu_percent(entry: _Watched, processes: list[psutil.Process]) -> float:
    """Percent of one CPU since the last sample, over processes that live at both or at its end."""
    now = time.monotonic()
    cpu_s: dict[int, float] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s[process.pid] = times.user + times.system
    cpu_used_s = sum(max(0.0, s - entry.cpu_s.get(pid, 0.0)) for pid, s in cpu_s.items())
    elapsed = now - entry.sampled_at_s
    first = entry.sampled_at_s == 0.0
    entry.cpu_s, entry.sampled_at_s = cpu_s, now
    return 0.0 if first or elapsed <= 0 else round(100.0 * cpu_used_s / elapsed, 1)
