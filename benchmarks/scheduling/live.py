"""End to end: a real master process, emulated agents and AppMasters on real gRPC streams.

Counted is a container for which its agent has the order; its delay lasts from when the AppMaster
writes its request until the agent reads the assignment, both in one process, so by one clock.
Meanwhile the master also does all that follows: reports of RUNNING and ENDED, their notices,
acknowledgements, heartbeats, registrations and ends of applications. The generator needs about as
much processor time as the master: on a machine of two cores it uses one of them, and the master
never more than the other.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.emulated import Agents, Application, run
from benchmarks.scheduling.cells import BATCH, Cell, percentile
from benchmarks.scheduling.daemon import Master, running
from hrm.core.vocabulary.bounds import SCHEDULERS

__all__ = ["EndToEnd", "Memory", "Returned", "jain_index", "measure_end_to_end", "measure_memory"]

_REGISTER_LIMIT_S = 180.0
CLIENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """One run. ``master_cores`` and ``generator_cores``: processor time over wall time.

    ``fairness``: Jain's index of the containers that each client got, 1 where all got as many, 1
    over their number where one got all. ``schedulers``: those inside of the master.
    """

    nodes: int
    tasks: int
    schedulers: int
    remote_schedulers: int
    register_s: float
    containers_per_s: float
    applications_per_s: float
    p50_ms: float
    p99_ms: float
    fairness: float
    master_cores: float
    generator_cores: float
    rss_mib: float

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A master's resident memory with ``containers`` running on ``nodes``.

    ``orders_per_s``: how fast agents got the orders when all were requested at once, while they
    reported that they run.
    """

    nodes: int
    containers: int
    orders_per_s: float
    idle_mib: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """How long nodes took to return to a master that was killed. ``serving_s``: until the new one
    listened; ``all_s``: until the last node was registered, both from its start."""

    nodes: int
    containers: int
    serving_s: float
    all_s: float


def _cpu_s(master: Master) -> float:
    times = master.process.cpu_times()
    return float(times.user + times.system)


def _rss_mib(master: Master) -> float:
    return float(master.process.memory_info().rss / 2**20)


async def _drive(
    agents: Agents, cell: Cell, clients: int, seconds: float
) -> tuple[list[int], list[float]]:
    """Jobs one after another from each client; returns the number of each, and the delays."""
    ends_at_s = time.perf_counter() + seconds
    jobs = [0] * clients
    delays_s: list[float] = []
    keys = itertools.count(1)
    first = time.time_ns()

    async def client(number: int) -> None:
        while time.perf_counter() < ends_at_s:
            job = Application(agents, f"key-{first}-{next(keys)}", cell.workload_class)
            await job.open()
            await job.ask(cell.tasks)
            await job.finish()
            delays_s.extend(job.delays_s)
            jobs[number] += 1

    await asyncio.gather(*map(client, range(clients)))
    return jobs, delays_s


def jain_index(shares: Sequence[float]) -> float:
    """How evenly something is shared: 1 evenly, 1 over their number where one has all of it.

    Source: Jain, Chiu, Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984.
    """
    squares = sum(x * x for x in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


async def _end_to_end(
    cell: Cell, seconds: float, clients: int, remote: int, inside: int, profile: Path | None
) -> EndToEnd:
    with tempfile.TemporaryDirectory(prefix="hrm-benchmark-") as directory:
        master = Master(Path(directory), cell.nodes, schedulers=inside)
        with running(master, profile):
            agents = Agents(master.target, master.token, cell.nodes, hold_s=0.5)
            try:
                register_s = await agents.start(master.heartbeat_interval_s, _REGISTER_LIMIT_S)
                for number in range(remote):
                    await asyncio.to_thread(master.add_scheduler, number + 1)
                gc.collect()
                gc.freeze()
                await _drive(agents, cell, clients, min(2.0, seconds / 4))
                before, begun_s = agents.assigned_count, time.perf_counter()
                used_s, own_s = _cpu_s(master), time.process_time()
                jobs, delays_s = await _drive(agents, cell, clients, seconds)
                elapsed_s = time.perf_counter() - begun_s
                return EndToEnd(
                    nodes=cell.nodes, tasks=cell.tasks, schedulers=inside,
                    remote_schedulers=remote, register_s=register_s,
                    containers_per_s=(agents.assigned_count - before) / elapsed_s,
                    applications_per_s=sum(jobs) / elapsed_s,
                    p50_ms=1e3 * percentile(delays_s, 0.5),
                    p99_ms=1e3 * percentile(delays_s, 0.99), fairness=jain_index(jobs),
                    master_cores=(_cpu_s(master) - used_s) / elapsed_s,
                    generator_cores=(time.process_time() - own_s) / elapsed_s,
                    rss_mib=_rss_mib(master),
                )  # fmt: skip
            finally:
                gc.unfreeze()
                await agents.close()


def measure_end_to_end(
    cell: Cell,
    seconds: float,
    clients: int = CLIENTS,
    remote: int = 0,
    profile: Path | None = None,
    *,
    inside: int | None = None,
) -> EndToEnd:
    """One run of ``seconds`` with ``clients`` applications at a time.

    ``remote``: ``hrm scheduler`` processes besides those in the master, which are ``inside``; by
    default one where there are processes, else as many as a master has. ``profile``: where the
    master writes its cProfile at its end.
    """
    if inside is None:
        inside = 1 if remote else SCHEDULERS
    return run(_end_to_end(cell, seconds, clients, remote, inside, profile))


async def _burst(agents: Agents, nodes: int, containers: int) -> float:
    """Request all containers at once, and let them run; returns orders per second."""
    size = min(400, containers)
    jobs = [Application(agents, f"key-{number}", BATCH) for number in range(containers // size)]
    await asyncio.gather(*(job.open() for job in jobs))
    begun_s = time.perf_counter()
    await asyncio.gather(*(job.ask(size) for job in jobs))
    return len(jobs) * size / (time.perf_counter() - begun_s)


async def _memory(nodes: int, containers: int) -> tuple[Memory, Returned]:
    with tempfile.TemporaryDirectory(prefix="hrm-benchmark-") as directory:
        master = Master(Path(directory), nodes)
        with running(master):
            agents = Agents(master.target, master.token, nodes, hold_s=None)
            try:
                idle_mib = _rss_mib(master)
                await agents.start(master.heartbeat_interval_s, _REGISTER_LIMIT_S)
                orders_per_s = await _burst(agents, nodes, containers)
                await asyncio.sleep(master.heartbeat_interval_s)  # every node has reported once
                there = agents.running()
                memory = Memory(
                    nodes=nodes, containers=there, orders_per_s=orders_per_s, idle_mib=idle_mib,
                    rss_mib=_rss_mib(master),
                )  # fmt: skip
                master.kill()
                agents.up.clear()
                begun_s = time.perf_counter()
                await asyncio.to_thread(master.start)
                serving_s = time.perf_counter() - begun_s
                await agents.all_registered(_REGISTER_LIMIT_S)
                all_s = time.perf_counter() - begun_s
                return memory, Returned(
                    nodes=nodes, containers=there, serving_s=serving_s, all_s=all_s
                )
            finally:
                await agents.close()


def measure_memory(nodes: int, containers: int) -> tuple[Memory, Returned]:
    """Let ``containers`` run on ``nodes``, measure the master's memory, kill it, restart it, and
    wait for all nodes to return."""
    return run(_memory(nodes, containers))
