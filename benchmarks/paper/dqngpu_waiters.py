"""What it is worth to order a node's queue by recorded uses: DqnGPU's workloads through NodeCore.

    python -m benchmarks.paper.dqngpu_waiters --data DIR    # writes results/paper-dqngpu-waiters.*
    python -m benchmarks.paper.dqngpu_waiters --data DIR --quick --json FILE

Thirty jobs of each of the paper's five workloads (``benchmarks.paper.dqngpu_workloads``) are
containers that wait at one unit with one GPU of 12,288 MiB and eight slots. The node is the
production's own core: stream queue over batch queue, reservations, the bounds of overtaking. Each
container requests the most memory that its application ever has, and is expected to take as long as
it does alone. Compared with the line's order (``queue``) are the policies that the setting
``gpu_waiters`` offers, which know each application by its recorded use, in 16 parts of its life.

Two worlds: what shares the GPU is slowed down as pairs were measured (Gavel's data), or by what it
uses beyond the card. All jobs wait at first, or they arrive at 70 % load. In the JSON, by world,
arrivals, workload and policy: ``makespan_gain`` and ``response_gain``, by how much the makespan and
the mean response (over the time alone) are less than with ``queue``, each with its 95 % interval
over sets of jobs, and ``passed_max``, how often one container was passed at most.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE, note
from benchmarks.fairness import measured
from benchmarks.paper.dqngpu_workloads import (
    POOLS,
    TICK_S,
    Kinds,
    job_set,
    kinds_of,
)
from benchmarks.simulation.figures import interval
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.learn.shared_gpu import SimulatedGpuJob
from hrm.policies.shared_gpu.container_uses import ContainerKind, ContainerUses
from hrm.policies.shared_gpu.interference import AdditiveOverload, GpuInterference
from hrm.policies.shared_gpu.profiles import MEMORY, GpuUseProfile
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.policies.shared_gpu.registry import HEURISTICS
from hrm.policies.shared_gpu.waiters import ProfiledWaiters

__all__ = ["NodeRun", "main", "run_set", "summarised"]

DATA = Path("../shared/data/gavel")
FIRST_SEED = 2_000
"""Of the sets that are measured; others were looked at while this was written."""
MIB = 12_288
SLOTS = 8
LINE = "queue"
SHIPS = "look-ahead"
COMPARED = (LINE, SHIPS, "sjf-packed", "ljf-packed", "tetris")
LOADS: dict[str, float | None] = {"all at once": None, "arrivals at 70 % load": 0.7}
STEPS_MAX = 5_000
_UNIT = ResourceUnitId("n1/gpu0")
_DONE = 1e-9


@dataclass(frozen=True, slots=True)
class NodeRun:
    """``makespan_s``: from the first arrival to the last end. ``response``: mean over jobs of the
    time from arrival to end, over the time alone. ``passed_max``: of one container, by later
    ones."""

    makespan_s: float
    response: float
    passed_max: int


@dataclass(slots=True)
class _Job:
    job: SimulatedGpuJob
    done: float = 0.0


def _uses(jobs: Sequence[SimulatedGpuJob]) -> ContainerUses:
    """Each application's use as a node has recorded it."""
    profiles = {job.name: job.true for job in jobs}
    return ContainerUses(
        (_kind(name, profile), RecordedUse(_parts(profile))) for name, profile in profiles.items()
    )


def _kind(name: str, profile: GpuUseProfile) -> ContainerKind:
    return ContainerKind("user", name, "executor", 0, _requested_mib(profile))


def _requested_mib(profile: GpuUseProfile) -> int:
    return int(np.ceil(profile.peak[MEMORY] * MIB - _DONE))


def _parts(profile: GpuUseProfile) -> tuple[GpuUsePart, ...]:
    edges = np.linspace(0.0, len(profile), USE_PARTS + 1)
    found = []
    for first, last in itertools.pairwise(edges.tolist()):
        part = profile.uses[int(first + _DONE) : max(int(np.ceil(last - _DONE)), int(first) + 1)]
        gpu, memory, cores, pcie = part.max(axis=0).tolist()
        found.append(GpuUsePart(gpu, memory * MIB, cores, pcie))
    return tuple(found)


def _spec(number: int, job: SimulatedGpuJob) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(f"job-{number}"),
        application_id=ApplicationId(f"app-{number}"),
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(1, 256, _requested_mib(job.true)),
        unit_id=_UNIT,
        expected_duration_s=TICK_S * len(job.true),
        user="user",
        application_name=job.name,
    )


def run_set(jobs: Sequence[SimulatedGpuJob], world: GpuInterference, policy: str) -> NodeRun:
    """Let a node run ``jobs``, whose GPU a container without a record holds until the first arrive.

    In each tick all that run advance by their speeds; what has ended is then reported, and what
    arrives is assigned.
    """
    unit = ResourceUnit(
        unit_id=_UNIT, capacity=Resources(SLOTS, 64_000, MIB), run_limit=SLOTS,
        gpu=Gpu(index=0, memory_mib=MIB),
    )  # fmt: skip
    order = None if policy == LINE else ProfiledWaiters(_uses(jobs), HEURISTICS[policy]())
    core = NodeCore(NodeName("n1"), (unit,), gpu_waiters=order)
    running: dict[ContainerId, _Job] = {}
    passed_max, tick = 0, 0

    def feed(event: e.NodeEvent) -> None:
        nonlocal passed_max
        for command in core.handle(event):
            if isinstance(command, c.StartProcess) and command.spec.application_name:
                number = int(command.spec.container_id.removeprefix("job-"))
                running[command.spec.container_id] = _Job(jobs[number])
        waiting = core.units[_UNIT].batch_waiting.values()
        passed_max = max(passed_max, *(x.passed for x in waiting), 0)

    def now() -> float:
        return tick * TICK_S

    whole = replace(_spec(0, jobs[0]), resources=Resources(1, 256, MIB), application_name="")
    blocker = replace(whole, container_id=ContainerId("blocker"))
    feed(e.AssignReceived(now=0.0, epoch=1, spec=blocker))
    ended_s: dict[ContainerId, float] = {}
    coming = sorted(range(len(jobs)), key=lambda n: (jobs[n].arrives, n))
    done = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    while len(ended_s) < len(jobs):
        assert tick < STEPS_MAX, "the jobs do not end"
        while coming and jobs[coming[0]].arrives <= tick:
            number = coming.pop(0)
            feed(e.AssignReceived(now=now(), epoch=1, spec=_spec(number, jobs[number])))
        if tick == 0:
            feed(e.ProcessEnded(now=0.0, container_id=blocker.container_id, end=done))
        if running:
            each = list(running.values())
            uses = np.array([x.job.true.uses[int(x.done + _DONE)] for x in each])
            speeds = world.speeds([x.job.kind for x in each], uses)
            for (name, one), speed in zip(list(running.items()), speeds, strict=True):
                left = len(one.job.true) - one.done
                one.done += speed
                if left - speed <= _DONE:
                    ended_s[name] = (tick + left / speed) * TICK_S
        tick += 1
        for name in [x for x in running if x in ended_s]:
            del running[name]
            feed(e.ProcessEnded(now=now(), container_id=name, end=done))
    return NodeRun(
        makespan_s=max(ended_s.values()),
        response=float(
            np.mean([
                (ended_s[ContainerId(f"job-{n}")] - TICK_S * job.arrives)
                / (TICK_S * len(job.true))
                for n, job in enumerate(jobs)
            ])
        ),
        passed_max=passed_max,
    )  # fmt: skip


def measure(kinds: Kinds, sets: int, workloads: Sequence[str]) -> dict[str, Any]:
    """By world, arrivals, workload and policy the runs of all sets."""
    worlds: dict[str, GpuInterference] = {"pairs": kinds.world(), "overload": AdditiveOverload()}
    found: dict[str, Any] = {}
    for name, world in worlds.items():
        for arrivals, load in LOADS.items():
            for workload in workloads:
                runs: dict[str, list[NodeRun]] = {policy: [] for policy in COMPARED}
                for seed in range(FIRST_SEED, FIRST_SEED + sets):
                    jobs = job_set(workload, seed, kinds, load=load)
                    for policy in COMPARED:
                        runs[policy].append(run_set(jobs, world, policy))
                by_workload = found.setdefault(name, {}).setdefault(arrivals, {})
                by_workload[workload] = summarised(runs)
                note(f"{name}, {arrivals}: {workload}")
    return found


def summarised(runs: dict[str, list[NodeRun]]) -> dict[str, Any]:
    """By policy the gains over the line's order, set by set."""
    found: dict[str, Any] = {}
    for policy, some in runs.items():
        pairs = list(zip(some, runs[LINE], strict=True))
        makespans = [1.0 - one.makespan_s / line.makespan_s for one, line in pairs]
        responses = [1.0 - one.response / line.response for one, line in pairs]
        found[policy] = {
            "makespan_s": float(np.mean([one.makespan_s for one in some])),
            "response": float(np.mean([one.response for one in some])),
            "makespan_gain": interval(makespans).as_json(),
            "response_gain": interval(responses).as_json(),
            "passed_max": max(one.passed_max for one in some),
        }
    return found


def body_of(document: dict[str, Any]) -> str:
    """Tables in Markdown."""
    lines = [
        f"{document['sets']} sets of 30 jobs each; gains over the line's order, 95 % intervals "
        f'over sets; `{SHIPS}` is what `gpu_waiters = "dqngpu"` is.',
    ]
    for world, by_arrivals in document["gains"].items():
        for arrivals, by_workload in by_arrivals.items():
            lines += [
                "", f"## {world}, {arrivals}", "",
                "| workload | policy | makespan, s | less | mean response | less | passed |",
                "|---|---|---|---|---|---|---|",
            ]  # fmt: skip
            for workload, policies in by_workload.items():
                for policy, one in policies.items():
                    lines.append(
                        f"| {workload} | {policy} | {one['makespan_s']:,.0f} | "
                        f"{_percent(one['makespan_gain'])} | {one['response']:.1f} | "
                        f"{_percent(one['response_gain'])} | {one['passed_max']} |"
                    )
    return "\n".join(lines)


def _percent(gain: dict[str, Any]) -> str:
    low, high = gain["low"], gain["high"]
    return f"{100 * gain['mean']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; exit status 2 where the data is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.dqngpu_waiters", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    common.add_common_arguments(parser)
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR",
        help="the folder that has Gavel's measurements (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        kinds = kinds_of(measured.load(args.data))
    except FileNotFoundError as error:
        CONSOLE.print(
            f"no {error.filename}: slowdowns are not made up here; pass --data with the folder "
            "that has Gavel's measurements"
        )
        return 2
    sets, workloads = (3, ("random",)) if args.quick else (20, tuple(POOLS))
    document = {
        "benchmark": "paper.dqngpu_waiters",
        "provenance": common.provenance("benchmarks.paper.dqngpu_waiters", ["numpy"]),
        "sets": sets,
        "gains": measure(kinds, sets, workloads),
    }
    body = body_of(document)
    CONSOLE.print(body, markup=False)
    if args.json is not None:
        common.write_json(args.json, document)
    if not args.quick:
        title = "Batch that waits for a shared GPU: the line's order and recorded uses"
        for path in common.write_results("paper-dqngpu-waiters", title, document, body):
            note(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
