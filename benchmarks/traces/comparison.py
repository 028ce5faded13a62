"""Traces of real clusters, replayed through HRM's core under its policies and their peers.

    python -m benchmarks.traces --format philly --path DIR --jobs 2000 --seeds 3
    python -m benchmarks.traces --format google-2011-jobs --path DIR --nodes 40 --scale-load 1.2

    python -m benchmarks.traces --format muri --path sim_traces/trace1.csv sim_traces/trace2.csv

A seed draws a window of consecutive jobs, of several files from one after the other, and no two
windows overlap where the trace is long enough; every policy replays the same windows, and the means
over them are shown with 95 % intervals. Windows differ more than policies do, so each policy is
compared with the first one in the same window: by the difference of mean waits, and by their ratio,
whose geometric mean is not dominated by a single window.

All seconds are virtual: the machine only affects how long a replay takes.
``--scale-load`` multiplies the rate of arrivals. Without ``--nodes`` there are as many as
``--load`` then needs, so a denser trace gets a larger cluster. The cluster is that of the trace
where its machines are known (alibaba-gpu-v2023), else of like nodes. A seed of ``deeprm`` draws its
jobs from that generator, a step being a second.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.traces import LoadReport, find_format, load, load_jobs
from benchmarks.traces.replay import Estimates, ReplayResult, Setup, replay
from benchmarks.traces.replay_plan import (
    Assumptions,
    JobPlan,
    offered_load,
    plan_jobs,
    poisson,
    sampled_nodes,
    uniform_nodes,
    with_load,
)
from benchmarks.traces.trace_records import JobGenerator, TraceJob, TraceNode
from benchmarks.traces.training_traces import deeprm_jobs
from hrm import policies
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.vocabulary.bounds import Bounds
from hrm.errors import HrmError, InvalidRequest, LimitReached, NotFound

__all__ = ["Shape", "benchmark", "interval", "main", "ratio"]

POLICIES = (
    "min-wait", "fifo", "centralized-drf", "best-fit", "worst-fit", "random", "round-robin",
)  # fmt: skip
CENTRAL = frozenset({"fifo", "centralized-drf"})
"""They stand for one central scheduler, and get one."""
_T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_SEED_STRIDE = 64
_QUICK_JOBS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """A node: cores, MiB, GPUs."""

    vcores: int
    memory_mib: int
    gpus: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        try:
            vcores, memory_mib, gpus = (int(part) for part in text.split(":"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no CORES:MIB:GPUS") from None
        return cls(vcores, memory_mib, gpus)

    def nodes(self, count: int) -> list[TraceNode]:
        return uniform_nodes(count, self.vcores, self.memory_mib, self.gpus)


_GENERATED = "deeprm"
_SHAPES = {
    "alibaba-v2018-dag": Shape(96, 393_216, 0),
    "google-2011-jobs": Shape(16, 65_536, 0),
    "decima-tpch": Shape(10, 40_960, 0),
    "deeprm": Shape(10, 10_240, 0),
    "pollux": Shape(48, 196_608, 4),
}
_GPU_SHAPE = Shape(64, 262_144, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The draw of one seed: jobs, and the nodes that they run on."""

    seed: int
    plans: Sequence[JobPlan]
    nodes: Sequence[TraceNode]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval (Student's t); not a number for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    degrees = len(values) - 1
    t = _T_95.get(degrees, 1.96 + 2.4 / degrees)
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def ratio(values: Sequence[float], others: Sequence[float]) -> tuple[float, float, float] | None:
    """Geometric mean of ``values`` over ``others``, one by one, and both ends of its 95 % interval;
    None where one of them is 0."""
    if not values or min(*values, *others) <= 0:
        return None
    logs = [math.log(a / b) for a, b in zip(values, others, strict=True)]
    mean, half = interval(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _machines(name: str, path: Path) -> list[TraceNode]:
    """The trace's own machines, if it has them."""
    if name != "alibaba-gpu-v2023":
        return []
    try:
        nodes, _ = load(f"{name}-nodes", path if path.is_dir() else path.parent)
    except (NotFound, InvalidRequest):
        return []
    return [node for node in nodes if isinstance(node, TraceNode)]


def _read(given: argparse.Namespace) -> tuple[list[Sequence[TraceJob]], LoadReport]:
    """The jobs of each window's source, one for each seed, and the report of all rows."""
    if given.format == _GENERATED:
        records, report = load(given.format, given.path[0])
        return [_drawn(records[0], given.jobs, seed) for seed in range(given.seeds)], report
    files = [load_jobs(given.format, path) for path in given.path[: given.seeds]]
    report = sum((each for _, each in files), LoadReport())
    return [files[seed % len(files)][0] for seed in range(given.seeds)], report


def _drawn(generator: Any, jobs: int, seed: int) -> list[TraceJob]:
    assert isinstance(generator, JobGenerator)
    steps = math.ceil(2 * jobs / generator.arrival_probability)
    return list(deeprm_jobs(generator, steps, seed))[:jobs]


def _windows(
    given: argparse.Namespace,
    sources: Sequence[Sequence[TraceJob]],
    machines: Sequence[TraceNode],
) -> list[Window]:
    """A window of jobs for each seed, and the nodes for it."""
    assumed = Assumptions(containers_per_task=given.containers_per_task)
    drawn: list[list[JobPlan]] = []
    for seed, jobs in enumerate(sources):
        if not jobs:
            plans = plan_jobs(jobs, assumed)  # raises if it is invalid
        elif jobs[0].arrival_s == jobs[-1].arrival_s:
            plans = poisson(plan_jobs(jobs, assumed), given.jobs, given.gap_s, seed)
        else:
            # Seeds that draw from one file each have a part of it.
            parts = sum(other is jobs for other in sources)
            part = sum(other is jobs for other in sources[:seed])
            plans = plan_jobs(_window(jobs, given.jobs, part, parts, seed), assumed)
        drawn.append(with_load(plans, given.scale_load))
    shape = given.node or _SHAPES.get(given.format, _GPU_SHAPE)

    def cluster(count: int) -> list[TraceNode]:
        return sampled_nodes(machines, count) if machines else shape.nodes(count)

    windows = []
    for seed, plans in enumerate(drawn):
        count = given.nodes or _sized(plans, given.load, cluster, assumed.gpu_memory_mib)
        windows.append(Window(seed=seed, plans=plans, nodes=cluster(count)))
    return windows


def _window(
    jobs: Sequence[TraceJob], count: int, part: int, parts: int, seed: int
) -> Sequence[TraceJob]:
    """``count`` consecutive jobs, drawn from the ``part``-th of as many equal parts."""
    begin, end = part * len(jobs) // parts, (part + 1) * len(jobs) // parts
    last = min(max(begin, end - count), max(0, len(jobs) - count))
    first = random.Random(seed).randint(min(begin, last), last)
    return jobs[first : first + count]


def _sized(plans: Sequence[JobPlan], wanted: float, cluster: Any, gpu_memory_mib: int) -> int:
    """The fewest nodes on which the offered load is at most ``wanted``."""
    low, high = 1, 2
    while offered_load(plans, cluster(high), gpu_memory_mib) > wanted:
        low, high = high, 2 * high
        if high > 100_000:
            raise InvalidRequest(
                "no number of such nodes can serve this trace; name another --node"
            )
    while low < high:
        middle = (low + high) // 2
        if offered_load(plans, cluster(middle), gpu_memory_mib) > wanted:
            low = middle + 1
        else:
            high = middle
    return high


def _policy(name: str, seed: int, index: int) -> PlacementPolicy:
    """A policy whose starting position and random choices differ between seeds."""
    return policies.load(name, seed * _SEED_STRIDE + index)


def _run(given: argparse.Namespace, policy: str, window: Window) -> ReplayResult | None:
    """The result; None, with a message, if the jobs do not end."""
    began_s = time.perf_counter()
    setup = Setup(
        policy=partial(_policy, policy, window.seed),
        schedulers=1 if policy in CENTRAL else given.schedulers,
        estimates=Estimates(given.estimates),
        bounds=Bounds(waiting_limit=given.waiting_limit),
    )
    try:
        result = replay(window.plans, window.nodes, setup)
    except LimitReached as error:
        CONSOLE.print(f"{policy}, seed {window.seed}: {error.message}", style="red", markup=False)
        return None
    CONSOLE.print(
        f"{policy}, seed {window.seed}: {result.containers} containers on {len(window.nodes)} "
        f"nodes, load {result.offered_load:.2f}, mean wait {result.wait.mean:.1f} s "
        f"({time.perf_counter() - began_s:.1f} s here)"
    )
    return result


def _cell(values: Sequence[float], digits: int = 1) -> str:
    mean, half = interval(values)
    if math.isnan(half):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _against(
    runs: Sequence[ReplayResult | None], others: Sequence[ReplayResult | None]
) -> str | None:
    """Mean wait less that of the others in the same window: windows differ more than policies."""
    pairs = [(a, b) for a, b in zip(runs, others, strict=True) if a is not None and b is not None]
    return _cell([a.wait.mean - b.wait.mean for a, b in pairs]) if pairs else None


def _times(
    runs: Sequence[ReplayResult | None],
    others: Sequence[ReplayResult | None],
    value: Callable[[ReplayResult], float],
) -> str | None:
    """The ratio of a value in the same window, where all of them ended and none is 0."""
    pairs = [(a, b) for a, b in zip(runs, others, strict=True) if a is not None and b is not None]
    record = ratio([value(a) for a, _ in pairs], [value(b) for _, b in pairs])
    if record is None or len(pairs) < len(runs):
        return None
    mean, low, high = record
    return f"{mean:.2f}" if math.isnan(low) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _row(
    policy: str, runs: Sequence[ReplayResult | None], first: Sequence[ReplayResult | None]
) -> list[object]:
    results = [run for run in runs if run is not None]
    if len(results) < len(runs):
        stuck = f"{policy}: {len(runs) - len(results)} of {len(runs)} windows never end"
        return [stuck, *[None] * (len(_HEADER) - 1)]
    gpus = any(result.gpu_utilisation for result in results)
    used = [r.gpu_utilisation if gpus else r.vcore_utilisation for r in results]
    return [
        policy,
        _cell([r.wait.mean for r in results]),
        None if runs is first else _against(runs, first),
        None if runs is first else _times(runs, first, lambda run: run.wait.mean),
        _cell([r.wait.p50 for r in results]),
        _cell([r.wait.p95 for r in results]),
        _cell([r.wait.p99 for r in results]),
        _cell([r.completion.mean for r in results], 0),
        None if runs is first else _times(runs, first, lambda run: run.completion.mean),
        _cell([r.makespan_s / 3600 for r in results], 2),
        _cell([100 * u for u in used]),
        _cell([100 * r.fragmentation for r in results]),
        sum(r.jobs_refused for r in results),
    ]


_HEADER = (
    "policy", "wait, mean s", "wait less the first's", "wait times the first's",
    "p50 s", "p95 s", "p99 s", "job completion, mean s", "completion times the first's",
    "makespan h", "used %", "fragmented %", "refused",
)  # fmt: skip


def benchmark(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Replay; the document of numbers and the report's text."""
    provenance = common.provenance("benchmarks.traces", ["numpy"])
    sources, report = _read(given)
    if report.rows_bad:
        CONSOLE.print(f"{report.rows_bad} bad rows, the first: {report.messages[0]}")
    machines = [] if given.node else _machines(given.format, given.path[0])
    windows = _windows(given, sources, machines)
    results = {name: [_run(given, name, window) for window in windows] for name in given.policies}
    document = {
        "benchmark": "traces",
        "format": given.format,
        "origin": find_format(given.format).origin,
        "rows": report.as_json(),
        "provenance": provenance,
        "seeds": list(range(given.seeds)),
        "jobs_each": given.jobs,
        "nodes": [len(window.nodes) for window in windows],
        "estimates": given.estimates,
        "schedulers": given.schedulers,
        "containers_per_task": given.containers_per_task,
        "waiting_limit": given.waiting_limit,
        "scale_load": given.scale_load,
        "results": {
            name: [None if run is None else asdict(run) for run in runs]
            for name, runs in results.items()
        },
    }
    table = common.table(
        _HEADER, [_row(name, runs, results[given.policies[0]]) for name, runs in results.items()]
    )
    return document, f"{_about(given, windows, report)}\n\n{table}"


def _about(
    given: argparse.Namespace,
    windows: Sequence[Window],
    report: LoadReport,
) -> str:
    mib = Assumptions().gpu_memory_mib
    loads = _cell([offered_load(window.plans, window.nodes, mib) for window in windows], 2)
    nodes = " / ".join(str(len(window.nodes)) for window in windows)
    jobs = " / ".join(dict.fromkeys(str(len(window.plans)) for window in windows))
    containers = " / ".join(str(sum(p.containers for p in w.plans)) for w in windows)
    return (
        f"{given.format}: {report.rows_read} rows read, {report.rows_bad} bad, "
        f"{report.rows_left_out} left out. {given.seeds} windows of {jobs} jobs "
        f"({containers} containers), {nodes} nodes, offered load {loads}; run times known: "
        f"{given.estimates}; {given.schedulers} schedulers, central policies one; at most "
        f"{given.waiting_limit} containers wait at a unit. Seconds are "
        f"virtual; means over windows ± half of the 95 % interval; against the first policy "
        f"in the same window, ratios as geometric means with their 95 % intervals. Used: of GPUs "
        f"where the trace "
        f"has some, else of vcores; used and fragmented from the first to the last arrival."
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.traces",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--format", required=True, help="benchmarks.traces.show lists them")
    parser.add_argument(
        "--path", type=Path, nargs="+", required=True, help="the file, or its directory; or several"
    )  # fmt: skip
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=list(POLICIES),
        help=f"comma-separated (default: {','.join(POLICIES)})",
    )
    parser.add_argument("--jobs", type=int, default=2_000, help="in a window (default 2000)")
    parser.add_argument("--nodes", type=int, help="default: as many as give --load")
    parser.add_argument("--node", type=Shape.parse, metavar="CORES:MIB:GPUS", help="of a node")
    parser.add_argument("--load", type=float, default=0.9, help="offered load (default 0.9)")
    parser.add_argument("--scale-load", type=float, default=1.0, help="arrivals times this")
    parser.add_argument("--seeds", type=int, default=3, help="windows (default 3)")
    parser.add_argument("--schedulers", type=int, default=4, help="in parallel (default 4)")
    parser.add_argument("--estimates", choices=[x.value for x in Estimates], default="exact")
    parser.add_argument("--containers-per-task", type=int, default=4, help="at most (default 4)")
    parser.add_argument("--waiting-limit", type=int, default=64, help="at a unit (default 64)")
    parser.add_argument("--gap-s", type=float, default=25.0, help="between jobs without arrivals")
    parser.add_argument("--name", help="write results/NAME.md and .json (default: traces-FORMAT)")
    common.add_common_arguments(parser)
    given = parser.parse_args(arguments)
    given.format = given.format.replace("_", "-")
    if given.quick:
        given.jobs, given.seeds = min(given.jobs, _QUICK_JOBS), 1
    for name in ("jobs", "seeds", "schedulers", "containers_per_task", "load", "gap_s"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, print the table, write the results; the exit status."""
    given = parse_arguments(arguments)
    try:
        document, body = benchmark(given)
    except HrmError as error:
        CONSOLE.print(f"error: {error.message}", style="red", markup=False)
        return 1
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        name = given.name or f"traces-{given.format}"
        for path in common.write_results(name, f"Replay of {given.format}", document, body):
            CONSOLE.print(f"written: {path}")
    return 0
