"""What it costs to share what a user's workers learn of their steps.

    python -m benchmarks.pipelines.shared_estimates [--workers N] [--quick] [--json FILE]

The master's table of one user and the streams of its workers, both as they are in production, in
virtual time: workers register, then one run ends each second, each fifth next to another step, the
others with a profile of what they used of their GPU.
Measured for tables of growing size: what a worker begins with, what workers are sent in a minute,
how long the master's loop is busy with it, and how long a worker takes to take in one message.
Times are of the process's CPU; writing to sockets is not part of them.

Without changes since, nothing is sent. The whole table in every message is what the last column
compares with: what the same messages would have if each worker were sent all of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.master.estimates import SHARE_PERIOD_S, EstimatesOfUsers
from hrm.pipelines.master.streams import WorkerStream
from hrm.pipelines.master.tasks import TICK_INTERVAL_S
from hrm.pipelines.policies.corun.store import merge_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.v1 import pipeline_pb2 as pb

__all__ = ["main", "measure", "report"]

TABLES = ((60, 50), (600, 500), (1_200, 2_000), (3_600, 2_000))
"""Rows, and co-runs from which pairs are learned."""
_USER = "ann"
_MODEL = "NVIDIA H100 80GB HBM3"
_BUCKETS = 6
_SECONDS = 60
_AS_FAST = dict.fromkeys(Device, 1.0)


class _Costs:
    """CPU milliseconds of what is done in ``timed``."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.ms.append(1e3 * (time.process_time() - began))


def _filled(known: Stdm, rows: int, co_runs: int, rng: np.random.Generator) -> list[Row]:
    """Run every row of the table on both devices, and some next to each other."""
    names = [
        Row(f"company.pipelines.module{number // _BUCKETS}:step", number % _BUCKETS, _MODEL)
        for number in range(rows)
    ]
    for row in names:
        known.declare(row, SubtaskSpec(name="a", kind=row.kind, devices=frozenset(Device)))
        memory_mib, on_gpu_mib = rng.uniform(50, 900, 2)
        known.observe_run(row, Device.CPU, rng.uniform(1, 50), memory_mib)
        known.observe_run(row, Device.GPU, rng.uniform(1, 5), memory_mib, on_gpu_mib)
        known.observe_cells(row, {"cpu": rng.uniform(), "sm": rng.uniform()})
        known.observe_gpu_use(row, _use(rng))
    for _ in range(co_runs):
        _run_ends(known, names, rng, shared=True)
    return names


def _run_ends(known: Stdm, rows: Sequence[Row], rng: np.random.Generator, *, shared: bool) -> None:
    row, other = (rows[int(number)] for number in rng.integers(len(rows), size=2))
    known.observe_run(
        row, Device.GPU, rng.uniform(1, 9), *(100.0, 500.0), co_runners=(other,) if shared else ()
    )
    if not shared:
        known.observe_gpu_use(row, _use(rng))


def _use(rng: np.random.Generator) -> tuple[GpuUsePart, ...]:
    """Shares without any pattern, and memory that grows: no easier to compress than real ones."""
    shares = rng.uniform(size=(USE_PARTS, 2))
    memory_mib = np.sort(rng.uniform(100.0, 900.0, USE_PARTS))
    return tuple(
        GpuUsePart(float(gpu), float(mib), float(gpu), float(pcie))
        for (gpu, pcie), mib in zip(shares, memory_mib, strict=True)
    )


def measure(rows: int, co_runs: int, workers: int, seconds: int = _SECONDS) -> dict[str, Any]:
    """One size of table, with so many workers that all read at once."""
    rng, now = np.random.default_rng(0), [0.0]
    streams = {NodeName(f"w{number}"): WorkerStream("") for number in range(workers)}
    with tempfile.TemporaryDirectory() as directory:
        shared = EstimatesOfUsers(Path(directory), lambda _: _USER, clock_s=lambda: now[0])
        known = shared.of(_USER)
        names = _filled(known, rows, co_runs, rng)
        registering, ticking, merging = _Costs(), _Costs(), _Costs()
        with registering.timed():
            whole = [shared.whole(worker) for worker in streams][-1]
        node = Stdm(memory_mib=4096.0, gpu_memory_mib={_MODEL: 20_000.0})
        merge_estimates(whole, node, _AS_FAST)
        sizes: list[int] = []
        # After the first period all workers have their turns; the loop alone would save the file.
        shared._save_if_due = lambda: None  # type: ignore[method-assign]
        for number in range(int((SHARE_PERIOD_S + seconds) / TICK_INTERVAL_S)):
            now[0] += TICK_INTERVAL_S
            if now[0] == int(now[0]):
                _run_ends(known, names, rng, shared=int(now[0]) % 5 == 0)
            with ticking.timed():
                shared.ticked(streams)
            sent = [message for stream in streams.values() for message in _read(stream)]
            if now[0] > SHARE_PERIOD_S:
                sizes += [message.ByteSize() for message in sent]
            if sent and number % 5 == 0:
                with merging.timed():
                    merge_estimates(sent[0].estimates, node, _AS_FAST)
                    node.gpu_features(names[0])
    minutes = seconds / 60
    return {
        "rows": rows,
        "pairs": len(known.pair_effects),
        "whole_kib": len(whole) / 1024,
        "registering_ms": registering.ms[0],
        "message_kib": float(np.mean(sizes)) / 1024,
        "messages_a_minute": len(sizes) / minutes,
        "mib_a_minute": sum(sizes) / 2**20 / minutes,
        "whole_mib_a_minute": len(whole) * len(sizes) / 2**20 / minutes,
        "master_ms_a_period": sum(ticking.ms) * SHARE_PERIOD_S / (SHARE_PERIOD_S + seconds),
        "longest_tick_ms": max(ticking.ms),
        "merge_ms": common.median(merging.ms),
    }


def _read(stream: WorkerStream) -> Iterator[pb.MasterPipelineMessage]:
    while not stream.queue.empty():
        message = stream.queue.get_nowait()
        assert isinstance(message, pb.MasterPipelineMessage)
        stream.written(message)
        yield message


def report(document: dict[str, Any]) -> str:
    """Markdown from the measurements."""
    header = (
        *("rows", "pairs", "whole table, KiB", "all register, ms", "a message, KiB"),
        *("messages a minute", "MiB a minute", "master, ms in 10 s", "longest tick, ms"),
        *("a worker's merge, ms", "MiB a minute, if all were sent"),
    )
    rows = [
        [
            one["rows"],
            one["pairs"],
            f"{one['whole_kib']:.0f}",
            f"{one['registering_ms']:.0f}",
            f"{one['message_kib']:.1f}",
            f"{one['messages_a_minute']:.0f}",
            f"{one['mib_a_minute']:.1f}",
            f"{one['master_ms_a_period']:.0f}",
            f"{one['longest_tick_ms']:.1f}",
            f"{one['merge_ms']:.1f}",
            f"{one['whole_mib_a_minute']:.0f}",
        ]
        for one in document["tables"]
    ]
    return (
        f"{document['workers']} workers of one user; a run ends each second, each fifth next to "
        "another step, the others with a profile of their GPU. Virtual time; CPU time of this "
        "process, without writing to sockets.\n\n" + common.table(header, rows)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines.shared_estimates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--workers", type=int, default=1_000, metavar="N", help="default: 1000")
    given = parser.parse_args(arguments)
    tables, seconds = (TABLES[:2], 20) if given.quick else (TABLES, _SECONDS)
    document: dict[str, Any] = {
        "benchmark": "pipelines-shared-estimates",
        "provenance": common.provenance("benchmarks.pipelines.shared_estimates", ["numpy"]),
        "workers": given.workers,
        "tables": [measure(*size, given.workers, seconds) for size in tables],
    }
    largest = document["tables"][-1]
    document["headline"] = {
        name: largest[name] for name in ("mib_a_minute", "longest_tick_ms", "merge_ms")
    }
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "What sharing the estimates of a user's workers costs"
        for path in common.write_results("pipelines-shared-estimates", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
