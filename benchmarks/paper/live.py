"""The paper's set-up on a real master: 1,050 emulated nodes, real gRPC, jobs at once.

Every system gets a master of its own (the production command, its own store), one at a time, and
all bursts on it; systems take turns, every second round backwards. Before the counted bursts a
small one warms the master up. Containers run until their job ends, which is after the last one of
the burst runs: within a burst nothing ends, as in the paper, whose tasks run 25 s.

What differs from the paper, and what it does to the numbers: master, schedulers, nodes and
applications share this machine's cores. Parallel schedulers can only be faster where there are
cores for them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import REPOSITORY
from benchmarks.paper.emulated import Agents, Application, Master
from benchmarks.processes import (
    MARK,
    BenchmarkError,
    Started,
    free_port,
    new_mark,
    start,
    sweep,
    tail,
    wait_until,
)
from hrm.sim.experiments.metrics import summary

__all__ = ["CENTRALISED", "SYSTEMS", "System", "run"]

NODES = 1_050
JOBS = (60, 120, 180)
TASKS = 40
WARM_UP_JOBS = 12
HEARTBEAT_S = 5.0
BURST_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30.0
CENTRALISED = "centralised"


@dataclass(frozen=True, slots=True)
class System:
    """Schedulers in the master, and in processes of their own."""

    inside: int
    processes: int = 0


SYSTEMS = {
    CENTRALISED: System(1),
    "HRM, 6 in the master": System(6),
    "HRM, 1 + 5 processes": System(1, 5),
}


def run(
    systems: Sequence[str],
    runs: int,
    directory: Path,
    *,
    nodes: int = NODES,
    jobs: Sequence[int] = JOBS,
    said: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Rows as ``hrm.sim.experiments.run_points`` gives them, charged ``live``.

    Raises:
        BenchmarkError: something did not start, did not answer in time, or was refused.
    """
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # masters that end are no news

    # One event loop for all masters: gRPC keeps to the first one that it was used in.
    async def measure() -> None:
        for number, system in common.interleaved(systems, runs):
            where = directory / f"{number}-{list(systems).index(system)}"
            # Later bursts see a fuller history, so every second run takes them backwards.
            order = list(jobs) if number % 2 == 0 else list(reversed(jobs))
            bursts = await _one_master(SYSTEMS[system], where, nodes, order)
            for size, figures in bursts.items():
                found.setdefault((system, size), []).append(figures)
                delay_ms = figures["delay_ms"]
                said(f"live run {number + 1} of {runs}, {system}, {size} jobs: {delay_ms:.0f} ms")

    try:
        asyncio.run(measure())
    except TimeoutError:
        raise BenchmarkError(
            f"a burst did not end within {BURST_TIMEOUT_S:.0f} s; the machine may be too busy"
        ) from None
    return [
        {
            "system": system,
            "charging": "live",
            "x": size,
            "figures": {name: each.as_json() for name, each in summary(values).items()},
            "runs": {name: [one[name] for one in values] for name in values[0]},
        }
        for (system, size), values in sorted(found.items(), key=lambda item: item[0][1])
    ]


async def _one_master(
    system: System, directory: Path, nodes: int, jobs: Sequence[int]
) -> dict[int, dict[str, float]]:
    mark = new_mark()
    token_file, address = directory / "token", f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ, MARK: mark, "HRM_HOME": str(directory), "PYTHONPATH": str(REPOSITORY),
        "NO_COLOR": "1",
    }  # fmt: skip
    started: list[Started] = []

    def hrm(log: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "hrm.cli", *map(str, arguments)]
        started.append(start(command, log=directory / log, environment=environment))

    try:
        hrm(
            "master.log", "master", "--port", address.partition(":")[2], "--state-dir",
            directory / "state", "--token-file", token_file, "--schedulers", system.inside,
            "--heartbeat-interval-s", HEARTBEAT_S,
        )  # fmt: skip
        _ready(started[0], "master ready", START_TIMEOUT_S)
        for index in range(system.processes):
            hrm(
                f"scheduler-{index}.log", "scheduler", "--master", address, "--name",
                f"s{index}", "--token-file", token_file,
            )  # fmt: skip
        for each in started[1:]:
            _ready(each, "ready", START_TIMEOUT_S)
        return await _bursts(address, token_file.read_text().strip(), nodes, jobs)
    finally:
        for each in reversed(started):
            each.end()
        sweep(mark)


def _ready(process: Started, word: str, timeout_s: float) -> None:
    def said() -> bool:
        if not process.running:
            raise BenchmarkError(f"{process.command[3]} ended:\n{tail(process.log)}")
        return process.log.exists() and word in process.log.read_text()

    wait_until(said, timeout_s, f"{process.command[3]} ({process.log})")


async def _bursts(
    address: str, token: str, nodes: int, jobs: Sequence[int]
) -> dict[int, dict[str, float]]:
    async with (
        Master(address, token) as master,
        Agents(master, nodes, heartbeat_s=HEARTBEAT_S) as agents,
    ):
        await _burst(master, agents, "warm-up", WARM_UP_JOBS)
        return {size: await _burst(master, agents, f"burst-{size}", size) for size in jobs}


async def _burst(master: Master, agents: Agents, name: str, size: int) -> dict[str, float]:
    """``size`` jobs at once, to the last running container; then all of them end."""
    async with asyncio.timeout(BURST_TIMEOUT_S):
        apps = [await Application.attach(master, f"{name}-{i}", TASKS) for i in range(size)]
        begun_s = time.monotonic()
        placing = [asyncio.create_task(app.place()) for app in apps]
        await asyncio.gather(*(app.ask(25.0) for app in apps))
        await asyncio.gather(*placing)
        makespan_s = time.monotonic() - begun_s
    async with asyncio.timeout(BURST_TIMEOUT_S):
        await asyncio.gather(*(app.finish() for app in apps))
        await agents.empty()
    assigned_s = agents.assigned_s()
    after_s = [np.array(assigned_s[app.application_id]) - app.asked_s for app in apps]
    delays_s = np.array([each.max() for each in after_s])
    told_s = np.array([max(app.told_s.values()) for app in apps])
    p50, p95, p99 = (1e3 * np.percentile(delays_s, (50, 95, 99))).tolist()
    return {
        "delay_ms": float(1e3 * delays_s.mean()),
        "delay_p50_ms": p50,
        "delay_p95_ms": p95,
        "delay_p99_ms": p99,
        "container_delay_ms": float(1e3 * np.concatenate(after_s).mean()),
        "told_ms": float(1e3 * told_s.mean()),
        "makespan_ms": 1e3 * makespan_s,
        "containers_per_s": size * TASKS / makespan_s,
    }
