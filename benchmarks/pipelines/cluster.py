"""Mixed tasks of the real pipelines on a real cluster, with every pair of policies; one agent dies.

Each pair gets a new cluster (``live``): a master and two agents. The same tasks are submitted
through ``hrm.pipelines.Client``, some at a time; when half of them have ended and the second node
has work, its agent and its workers are killed with SIGKILL and stay away. Every result is compared
with that of ``Pipeline.run_here`` (``outputs``), and every task must end once: at the client, and
in the master's log.

The GPUs are declared: GPU versions run on the CPU, and the times say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.pipelines import PIPELINES, live, profile
from benchmarks.pipelines.live import Cluster, Decisions
from benchmarks.pipelines.outputs import OUTPUTS, Output, same
from benchmarks.processes import BenchmarkError, interruptible
from hrm.errors import HrmError, InvalidConfig
from hrm.pipelines import Client, Pipeline, Task, TaskResult
from hrm.pipelines.core.model import Device
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.cluster import HEURISTIC, HEURISTICS, LEARNED
from hrm.policies import model_files

__all__ = ["Job", "Pair", "Run", "add_arguments", "main", "pairs", "run_pair"]

WINDOW = 24
"""Tasks submitted at a time."""
VICTIM = "n2"
KILL_SHARE = 0.5
QUICK = ("min-wait/mct", "min-wait/iawp:guarded")
QUICK_TASKS = 40
LIMIT_S = 600.0
SIZES_MB = {"intrusion-detection": (6, 7, 8)}
SIZES_ELSE_MB = (2, 3, 4)
"""Small: a random node policy runs half of the steps in their GPU versions, which take several
times as long on a CPU. Intruders appear late in a clip: shorter ones have none."""
SEEDS = 2
NAME = "pipelines-cluster"
DECLARED = (
    "The GPUs are declared, not real: no device stands behind them and GPU versions run on the "
    "CPU, in PyTorch. The times compare nothing but this machine's work under each pair, imports "
    "of a new cluster's workers included."
)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One input, and the result that every run of it must return."""

    pipeline: Pipeline
    value: Any
    size_mb: float
    output: Output
    canonical: Callable[[Any], Output]


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Names of a cluster policy and a node policy."""

    cluster: str
    node: str

    def __str__(self) -> str:
        return f"{self.cluster}/{self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pair. Times in seconds.

    Attributes:
        on_victim: tasks that the killed agent had at that moment.
        again: tasks that were placed more than once.
        refusals: starts of node policies that were not allowed, or calls that failed.
        learned: for each learned policy, the cluster's or the living nodes', its calls, its own
            decisions, and those of its heuristic instead, by reason.
        wrong: results that differ. ``failed``: tasks that ended without one. ``lost``: that did
            not end. ``repeated``: that did not end exactly once, at the client and the master.
        why: the first failures, in words.
    """

    tasks: int
    seconds: float
    tasks_per_min: float
    p50_s: float
    p95_s: float
    gpu_share: float
    on_victim: int
    again: int
    refusals: int
    learned: dict[str, Decisions]
    wrong: int
    failed: int
    lost: int
    repeated: int
    why: tuple[str, ...] = field(default=())

    @property
    def good(self) -> bool:
        return not (self.wrong or self.failed or self.lost or self.repeated)


def pairs() -> tuple[Pair, ...]:
    """Every heuristic for nodes with ``HEURISTIC``, every node policy under the cluster's, and
    ``learned_pairs``."""
    found = [Pair(name, corun.HEURISTIC) for name in HEURISTICS]
    found += [Pair(HEURISTIC, name) for name in (*corun.known(), "iawp:guarded")]
    return tuple(dict.fromkeys((*found, *learned_pairs())))


def learned_pairs() -> tuple[Pair, ...]:
    """Every learned cluster policy with ``HEURISTIC``, and the last one with ``iawp``, too."""
    learned = [name for name in LEARNED if model_files.listed(name)]
    found = [
        Pair(name, node) for name in learned[-1:] for node in (corun.HEURISTIC, "iawp:guarded")
    ]
    return (*found, *(Pair(name, corun.HEURISTIC) for name in learned[:-1]))


def jobs_of_pipelines() -> list[Job]:
    """Every pipeline with some inputs of its own, drawn into the cache, and its results here."""
    found = []
    for name in PIPELINES:
        pipeline, canonical = profile.load(name), OUTPUTS[name]
        for size_mb in SIZES_MB.get(name, SIZES_ELSE_MB):
            for seed in range(SEEDS):
                profile.input_of(name, size_mb, seed)
                value = f"synthetic:mb={size_mb},seed={seed}"
                output = canonical(pipeline.run_here(value))
                found.append(Job(pipeline, value, size_mb, output, canonical))
    return found


def mixed(jobs: Sequence[Job], count: int) -> list[Job]:
    """``count`` jobs, each as often as the others, in an order that is always the same."""
    rng = np.random.default_rng(5)
    rounds = -(-count // len(jobs))
    order = np.concatenate([rng.permutation(len(jobs)) for _ in range(rounds)])
    return [jobs[int(number)] for number in order[:count]]


class _Flow:
    """Submitted tasks: never more than ``WINDOW``, with each end counted."""

    def __init__(self, client: Client, jobs: Sequence[Job]) -> None:
        self.tasks: list[Task] = []
        self.ends = [0] * len(jobs)
        self._client = client
        self._jobs = jobs
        self._changed = threading.Condition()

    def ended(self) -> int:
        with self._changed:
            return sum(count > 0 for count in self.ends)

    def _end(self, number: int) -> None:
        with self._changed:
            self.ends[number] += 1
            self._changed.notify_all()

    def advance(self) -> None:
        """Submit as many tasks as the window allows, then wait a little for an end."""
        while len(self.tasks) < min(len(self._jobs), self.ended() + WINDOW):
            number = len(self.tasks)
            job = self._jobs[number]
            task = self._client.submit(job.pipeline, job.value, size_mb=job.size_mb)
            self.tasks.append(task)
            task.when_done(lambda number=number: self._end(number))  # type: ignore[misc]
        with self._changed:
            self._changed.wait(0.1)


def run_pair(directory: Path, pair: Pair, jobs: Sequence[Job], limit_s: float = LIMIT_S) -> Run:
    """Run ``jobs`` on a new cluster under ``pair``, and kill an agent midway.

    Raises:
        BenchmarkError: the cluster does not come up, or a daemon ends by itself.
    """
    with live.cluster(directory, pair.cluster, pair.node) as cluster:
        with Client(cluster.address, token_path=cluster.token_file) as client:
            cluster.join()
            flow = _Flow(client, jobs)
            on_victim = -1
            started_s = time.monotonic()
            while flow.ended() < len(jobs) and time.monotonic() < started_s + limit_s:
                flow.advance()
                if on_victim < 0 and flow.ended() >= KILL_SHARE * len(jobs):
                    on_victim = _kill_if_busy(cluster, client, flow.ended() >= 0.9 * len(jobs))
            seconds = time.monotonic() - started_s
            learned = asyncio.run(cluster.decisions())
        # After the agents' last messages.
        cluster.close()
        return _checked(cluster, flow, jobs, seconds, on_victim, learned)


def _kill_if_busy(cluster: Cluster, client: Client, anyway: bool) -> int:
    """Kill the agent and its workers if they have tasks; returns how many, -1: it lives."""
    has = sum(
        one.tasks
        for one in client.tasks().nodes
        if one.tasks and cluster.has(VICTIM, one.capacity.node)
    )
    if not has and not anyway:
        return -1
    cluster.kill(VICTIM)
    return has


def _checked(
    cluster: Cluster,
    flow: _Flow,
    jobs: Sequence[Job],
    seconds: float,
    on_victim: int,
    learned: dict[str, Decisions],
) -> Run:
    results: dict[int, TaskResult] = {}
    why: list[str] = []
    for number, task in enumerate(flow.tasks):
        try:
            results[number] = task.outcome(0)
        except (TimeoutError, HrmError) as error:
            why.append(str(error))
    ends_seen = cluster.ends_reported()
    repeated = [
        task.task_id
        for number, task in enumerate(flow.tasks)
        if number in results and (flow.ends[number], ends_seen[task.task_id]) != (1, 1)
    ]
    repeated += [one for one in ends_seen if one not in {task.task_id for task in flow.tasks}]
    wrong = [
        number
        for number, result in results.items()
        if result.ok and not same(jobs[number].canonical(result.value), jobs[number].output)
    ]
    why += [result.error for result in results.values() if not result.ok]
    why += [f"{results[one].task_id} ({jobs[one].value}): another answer" for one in wrong]
    why += [f"{one} ended {ends_seen[one]} times" for one in repeated]
    response_s = [result.response_s for result in results.values() if result.ok] or [0.0]
    runs = [run for result in results.values() for run in result.runs if run.ok]
    on_gpu = sum(run.device is Device.GPU for run in runs)
    return Run(
        tasks=len(jobs),
        seconds=seconds,
        tasks_per_min=60 * sum(result.ok for result in results.values()) / seconds,
        p50_s=float(np.percentile(response_s, 50)),
        p95_s=float(np.percentile(response_s, 95)),
        gpu_share=on_gpu / max(1, len(runs)),
        on_victim=max(0, on_victim),
        again=sum(result.attempt > 1 for result in results.values()),
        refusals=cluster.refusals(),
        learned=learned,
        wrong=len(wrong),
        failed=sum(not result.ok for result in results.values()),
        lost=len(jobs) - len(results),
        repeated=len(repeated),
        why=tuple(why[:5]),
    )


def table(runs: dict[str, Run]) -> str:
    """The figures, one pair per row."""
    header = ["cluster/node policy", "tasks", "tasks/min", "response p50, s", "p95, s",
              "runs on GPUs, %", "on the killed node", "placed again",
              "refusals", "decided by what has learned", "wrong", "failed", "lost",
              "not once"]  # fmt: skip
    rows = [
        [name, one.tasks, f"{one.tasks_per_min:.0f}", f"{one.p50_s:.1f}", f"{one.p95_s:.1f}",
         f"{100 * one.gpu_share:.0f}", one.on_victim, one.again, one.refusals,
         _decided(one),          one.wrong, one.failed, one.lost, one.repeated]
        for name, one in runs.items()
    ]  # fmt: skip
    return common.table(header, rows)


def _decided(run: Run) -> str:
    ends_seen = []
    for name, one in run.learned.items():
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(one.fallbacks.items()))
        ends_seen.append(f"{name} {one.learned} of {one.asked}{f' ({why})' if why else ''}")
    return "; ".join(ends_seen) or "-"


def _pair(text: str) -> Pair:
    cluster, _, node = text.partition("/")
    try:
        corun.parse(node)
        if cluster in (*HEURISTICS, *LEARNED) and node.partition(":")[0] in corun.known():
            return Pair(cluster, node)
    except InvalidConfig as error:
        raise argparse.ArgumentTypeError(error.message) from error
    raise argparse.ArgumentTypeError(
        f"{text!r} is no pair; write CLUSTER/NODE, as ect/pats: one of "
        f"{', '.join((*HEURISTICS, *LEARNED))} and one of {', '.join(corun.known())}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m benchmarks.pipelines cluster``."""
    parser.add_argument(
        "--tasks", type=int, default=300, help="of each pair (default: %(default)s)"
    )
    parser.add_argument(
        "--policies", type=_pair, nargs="+", metavar="CLUSTER/NODE", help="these pairs alone"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{', '.join(QUICK)} with {QUICK_TASKS} tasks each"
    )
    parser.add_argument(
        "--learned", action="store_true", help="the pairs with a learned cluster policy alone"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")


def main(options: argparse.Namespace) -> int:
    """Run the pairs; 1 if a result is wrong or a task was lost, failed or ended twice."""
    every = learned_pairs() if options.learned else pairs()
    chosen: tuple[Pair, ...] = tuple(options.policies or every)
    tasks = min(options.tasks, QUICK_TASKS) if options.quick else options.tasks
    if options.quick and not options.policies:
        chosen = tuple(pair for pair in chosen if str(pair) in QUICK)
    document: dict[str, Any] = {
        "provenance": common.provenance("benchmarks.pipelines", ["numpy", "torch"]),
        "gpus": DECLARED,
        "nodes": {
            str(pair): [node._asdict() for node in live.nodes_of(pair.cluster)] for pair in chosen
        },
        "killed": f"{VICTIM}, SIGKILL, after {KILL_SHARE:.0%} of the tasks",
        "window": WINDOW,
    }
    runs: dict[str, Run] = {}
    began_s = time.monotonic()
    try:
        with interruptible():
            CONSOLE.print("the answers of this process first")
            jobs = jobs_of_pipelines()
            for pair in chosen:
                with tempfile.TemporaryDirectory(prefix="hrm-") as directory:
                    run = run_pair(Path(directory), pair, mixed(jobs, tasks))
                runs[str(pair)] = run
                CONSOLE.print(f"{pair}: {run.tasks_per_min:.0f} tasks/min, wrong {run.wrong}")
                for line in run.why:
                    CONSOLE.print(f"  {line}", markup=False)
    except BenchmarkError as error:
        CONSOLE.print(f"error: {error}", markup=False)
        return 1
    bad = sum(not run.good for run in runs.values())
    document |= {
        "seconds": round(time.monotonic() - began_s, 1),
        "inputs": len(jobs),
        "digests": {f"{job.pipeline.name} {job.value}": job.output.digest for job in jobs},
        "pairs": {
            name: asdict(run) | {"learned": {of: d._asdict() for of, d in run.learned.items()}}
            for name, run in runs.items()
        },
        "bad_pairs": bad,
    }
    CONSOLE.print(DECLARED)
    print(table(runs))
    if options.json:
        common.write_json(options.json, document)
    if not (options.quick or options.policies or options.tasks < 300):
        name = f"{NAME}-learned" if options.learned else NAME
        common.write_results(name, "Pipelines on a real cluster", document, _report(document, runs))
    return 1 if bad else 0


def _report(document: dict[str, Any], runs: dict[str, Run]) -> str:
    nodes: dict[str, list[str]] = {}
    for name in runs:
        held = "; ".join(map(str, live.nodes_of(name.partition("/")[0])))
        nodes.setdefault(held, []).append(name)
    return "\n".join(
        [
            f"**{DECLARED}**",
            "",
            "A real `hrm master` and real agents on one machine, new for every pair. What nodes "
            "declare (cores that are not there, too: learned policies decide on nodes like those "
            "of their training):",
            "",
            *(f"- {', '.join(names)}: {held}" for held, names in nodes.items()),
            "",
            f"Tasks of the four pipelines in one order, {document['inputs']} inputs, "
            f"{WINDOW} on their way at a time. `{VICTIM}` is killed with SIGKILL when half of the "
            f"tasks have ended, and stays away.",
            "",
            table(runs),
            "",
            "`wrong`: the answer is not that of `Pipeline.run_here` for the same input: facts by "
            "digest, measures within the tolerance of the two versions "
            "(`benchmarks/pipelines/answers.py` lists both). `placed again`: tasks with a second "
            "placement. `refusals`: starts that a node policy named "
            "and the node refused, or failures of the policy. `decided by what has learned`: of "
            "all decisions that were asked of it, and why its heuristic made others; a policy "
            "that is on leaves a tenth to the heuristic until 20 of its tasks have ended. A "
            "node's are of those that live, and one decision is one dispatch. `not once`: tasks "
            "that did not end exactly once, at the client and in the master's log.",
            "",
            f"All of it took {document['seconds']:.0f} s.",
        ]
    )
