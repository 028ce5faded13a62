"""How long a stream waits for its containers while batch jobs keep every scheduler busy.

The master is that of ``durable``: core, interpreter and store on one event loop. ``CLIENTS`` batch
applications at a time register, request their containers, get notices of their starts and ends, and
finish; when one is over the next one follows. On the same loop a running stream requests a few more
containers, repeatedly. Its delay is the time from the arrival of the request until the last of its
nodes gets the order. It includes what the loop does meanwhile: all of batch's events and the wait
for the disk.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scheduling.cells import STREAM, Cell, percentile, requests_of
from benchmarks.scheduling.durable import LocalMaster, tuned
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState, NodeName
from hrm.master.daemon import TICK_INTERVAL_S

__all__ = ["StreamDelays", "measure_streams"]

CLIENTS = 16
STREAM_TASKS = 4
_PAUSE_S = 0.02
_REPORTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelays:
    """Delays of one run, milliseconds, with the progress of batch meanwhile.

    ``p99_cpu_ms`` is counted in processor time of the loop: without waiting for the disk or, on a
    busy machine, for a processor.
    """

    nodes: int
    tasks: int
    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    p99_cpu_ms: float
    batch_containers_per_s: float


class _Load:
    """Batch applications without end, and the nodes' reports of their containers."""

    def __init__(self, master: LocalMaster, cell: Cell) -> None:
        self.master = master
        self.cell = cell
        self.requests = requests_of(cell.tasks)
        self.granted = 0
        self._reports: deque[tuple[NodeName, ContainerId, ApplicationId]] = deque()
        self._over: dict[ApplicationId, tuple[int, asyncio.Event]] = {}
        self._ready = asyncio.Event()

    async def client(self) -> None:
        while True:
            app = await self.master.register(self.cell)
            over = asyncio.Event()
            self._over[app] = (self.cell.tasks, over)
            await self.master.ask(app, self.requests)
            self.granted += self.cell.tasks
            await over.wait()
            self.master.finish(app)

    async def nodes(self) -> None:
        """Every container runs, then ends, a few at a time, like messages from a socket."""
        while True:
            self._reports.extend(self.master.granted)
            self.master.granted.clear()
            for _ in range(min(_REPORTS_AT_ONCE, len(self._reports))):
                node, container_id, app = self._reports.popleft()
                self.master.report(node, container_id, app, ContainerState.RUNNING)
                self.master.report(node, container_id, app, ContainerState.ENDED)
                if app in self._over:
                    missing, over = self._over[app]
                    self._over[app] = (missing - 1, over)
                    if missing == 1:
                        del self._over[app]
                        over.set()
            await asyncio.sleep(0)


async def _measure(cell: Cell, requests: int) -> StreamDelays:
    delays_s: list[float] = []
    cpu_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hrm-benchmark-") as directory:
        master = LocalMaster(cell.nodes, cell.policy, Path(directory) / "store.sqlite")
        await master.start()
        load = _Load(master, cell)
        with tuned():
            work = [load.client() for _ in range(CLIENTS)]
            ticks = master.interpreter.tick_forever(TICK_INTERVAL_S)
            tasks = [asyncio.create_task(each) for each in (*work, load.nodes(), ticks)]
            try:
                stream = await master.register(Cell(cell.nodes, STREAM_TASKS, STREAM, cell.policy))
                begun_s, before, first = time.perf_counter(), load.granted, 1
                for _ in range(requests):
                    wanted = requests_of(STREAM_TASKS, first)
                    first += STREAM_TASKS
                    asked_s, asked_cpu_s = time.perf_counter(), time.thread_time()
                    notified_s, notified_cpu_s = await master.ask(stream, wanted)
                    delays_s.append(notified_s - asked_s)
                    cpu_s.append(notified_cpu_s - asked_cpu_s)
                    await asyncio.sleep(_PAUSE_S)
                    master.check()
                elapsed_s, granted = time.perf_counter() - begun_s, load.granted - before
            finally:
                await _cancel(tasks)
                master.close()
    return StreamDelays(
        nodes=cell.nodes, tasks=cell.tasks, requests=requests,
        p50_ms=1e3 * percentile(delays_s, 0.5), p99_ms=1e3 * percentile(delays_s, 0.99),
        max_ms=1e3 * max(delays_s), p99_cpu_ms=1e3 * percentile(cpu_s, 0.99),
        batch_containers_per_s=granted / elapsed_s,
    )  # fmt: skip


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """End tasks; ``wait_for`` of Python 3.11 may swallow a cancellation, so more than once."""
    left = set(tasks)
    for _ in range(10):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
        if not left:
            return
    raise TimeoutError(f"{len(left)} tasks do not end")


def measure_streams(cell: Cell, requests: int) -> StreamDelays:
    """``requests`` of a stream, one after another, with batch jobs of the cell."""
    return asyncio.run(_measure(cell, requests))
