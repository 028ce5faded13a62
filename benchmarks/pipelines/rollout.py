"""A learned cluster policy from shadow over a canary to on, on a real cluster, in 600 tasks.

A master and agents (``live``), each a process; tasks of five to seven steps that wait
(``steps/waiting_chains.py``). A third of them is submitted in each mode, which the operators' call
sets while the cluster runs. Every result is compared with what it must be, and every task must end
once. What the policy decided, and why its heuristic did where it did not, is what the master shows
(``hrm policy show``).

This is about the way up, not about what a placement is worth, which ``benchmarks.paper.ldwp``
measures.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.pipelines import live
from benchmarks.processes import BenchmarkError, interruptible
from hrm import rpc
from hrm.errors import HrmError
from hrm.pipelines import Client, Pipeline, Task
from hrm.pipelines.policies import corun
from hrm.policies.guard import GuardMode
from hrm.v1 import policy_pb2
from hrm.v1.policy_pb2_grpc import PolicyServiceStub

__all__ = ["Stage", "add_arguments", "chains", "main"]

POLICY = "ldwp-set"
MODES = (GuardMode.SHADOW, GuardMode.CANARY_50, GuardMode.ON)
TASKS, QUICK_TASKS = 600, 60
ARRIVAL_S = 0.4
STEP_S = (0.05, 0.4)
LIMIT_S = 300.0
CALL_S = 30.0
NAME = "pipelines-rollout"
_SEED = 1_000
_STEPS = Path(__file__).resolve().parent / "steps" / "waiting_chains.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What happened in one mode.

    Attributes:
        asked: questions to the guard; ``learned``: that the learned policy decided; ``shadowed``:
            that it was asked in shadow, and ``agreed``: of these as the heuristic did.
        fallbacks: why it did not decide, by reason.
        ratio_p95, reference_p95: response over what the heuristic had expected, of the learned
            policy's tasks and of the heuristic's so far; None: of too few.
        wrong, failed, lost, twice: tasks with another result, that failed, that did not end, that
            ended more than once at the client or the master.
    """

    mode: str
    tasks: int
    asked: int
    learned: int
    shadowed: int
    agreed: int
    fallbacks: dict[str, int]
    ratio_p95: float | None
    reference_p95: float | None
    response_p50_s: float
    response_p95_s: float
    wrong: int
    failed: int
    lost: int
    twice: int

    @property
    def good(self) -> bool:
        return not (self.wrong or self.failed or self.lost or self.twice)


@functools.cache
def chains() -> tuple[ModuleType, tuple[Pipeline, ...]]:
    """The pipelines, and their module. It has no package: its file alone is sent to the nodes."""
    spec = importlib.util.spec_from_file_location(_STEPS.stem, _STEPS)
    if spec is None or spec.loader is None:
        raise BenchmarkError(f"{_STEPS} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_STEPS.stem] = module
    spec.loader.exec_module(module)
    return module, module.PIPELINES


class _Flow:
    """Tasks of one mode: one every ``ARRIVAL_S``, until all have ended or time is up."""

    def __init__(self, client: Client, first: int, count: int) -> None:
        self._client = client
        self._numbers = range(first, first + count)
        self.tasks: list[Task] = []
        self.ends: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Submit, and wait; cancel what is too late."""
        began_s = time.monotonic()
        for number in self._numbers:
            due_s = began_s + ARRIVAL_S * len(self.tasks)
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._submit(number)
        while self._ended() < len(self.tasks) and time.monotonic() < began_s + LIMIT_S:
            time.sleep(0.05)
        if self._ended() < len(self.tasks):
            self._client.cancel_all(self.tasks, "the mode's time is over")

    def _submit(self, number: int) -> None:
        _, pipelines = chains()
        pipeline = pipelines[number % len(pipelines)]
        rng = np.random.default_rng([_SEED, number])
        seconds = rng.uniform(*STEP_S, len(pipeline.steps)).round(3).tolist()
        task = self._client.submit(pipeline, {"number": number, "seconds": seconds})
        self.tasks.append(task)
        task.when_done(lambda: self._end(task.task_id))

    def _end(self, task_id: str) -> None:
        with self._lock:
            self.ends[task_id] += 1

    def _ended(self) -> int:
        with self._lock:
            return len(self.ends)

    def checked(self, logged: Counter[str]) -> dict[str, Any]:
        """``Stage``'s figures of the tasks; ``logged``: ends in the master's log."""
        module, pipelines = chains()
        counts = dict.fromkeys(("wrong", "failed", "lost", "twice"), 0)
        taken_s = []
        for number, task in zip(self._numbers, self.tasks, strict=True):
            counts["twice"] += self.ends[task.task_id] > 1 or logged[task.task_id] > 1
            try:
                result = task.outcome(0.0)
            except (TimeoutError, HrmError) as error:
                counts["lost"] += 1
                CONSOLE.print(f"  {task.task_id}: {error}", markup=False)
                continue
            if not result.ok:
                counts["failed"] += 1
                CONSOLE.print(f"  {task.task_id}: {result.error}", markup=False)
                continue
            taken_s.append(result.response_s)
            steps = len(pipelines[number % len(pipelines)].steps)
            counts["wrong"] += result.value["number"] != module.result_of(number, steps)
        p50_s, p95_s = np.percentile(taken_s or [0.0], (50, 95))
        return {**counts, "response_p50_s": float(p50_s), "response_p95_s": float(p95_s)}


def _policy(cluster: live.Cluster, mode: GuardMode | None) -> policy_pb2.LearnedPolicy:
    """What the master shows of the policy; before that, its mode becomes ``mode``."""
    with rpc.sync_channel(cluster.address, rpc.read_token(cluster.token_file)) as channel:
        stub = PolicyServiceStub(channel)
        if mode is not None:
            order = policy_pb2.SetPolicyModeRequest(policy=POLICY, mode=mode.value)
            stub.SetPolicyMode(order, timeout=CALL_S)
        request = policy_pb2.ShowPoliciesRequest(policy=POLICY)
        shown: policy_pb2.LearnedPolicy = stub.ShowPolicies(request, timeout=CALL_S).policies[0]
    return shown


def _stage(cluster: live.Cluster, flow: _Flow, mode: GuardMode) -> Stage:
    before = _policy(cluster, mode)
    flow.run()
    after = _policy(cluster, None)
    fallbacks = Counter(dict(after.fallbacks))
    fallbacks.subtract(Counter(dict(before.fallbacks)))
    return Stage(
        mode=mode.value,
        tasks=len(flow.tasks),
        asked=after.asked - before.asked,
        learned=after.learned - before.learned,
        shadowed=after.shadowed - before.shadowed,
        agreed=after.agreed - before.agreed,
        fallbacks={reason: count for reason, count in sorted(fallbacks.items()) if count},
        ratio_p95=after.ratio_p95 if after.HasField("ratio_p95") else None,
        reference_p95=after.reference_p95 if after.HasField("reference_p95") else None,
        **flow.checked(cluster.ends_reported()),
    )


def _measured(directory: Path, tasks: int) -> tuple[list[Stage], policy_pb2.LearnedPolicy]:
    stages = []
    with (
        live.cluster(directory, POLICY, corun.HEURISTIC, mode=GuardMode.SHADOW) as cluster,
        Client(cluster.address, token_path=cluster.token_file) as client,
    ):
        cluster.join()
        each = tasks // len(MODES)
        for number, mode in enumerate(MODES):
            stages.append(_stage(cluster, _Flow(client, number * each, each), mode))
            CONSOLE.print(f"{mode.value}: {stages[-1].learned} of {stages[-1].asked} decided")
        last = _policy(cluster, None)
    return stages, last


def table(stages: Sequence[Stage]) -> str:
    """A row for each mode."""
    header = ["mode", "tasks", "asked", "by `ldwp-set`", "in shadow", "agreed", "fell back",
              "over expectation, p95", "heuristic's", "response p50, s", "p95, s", "wrong",
              "failed", "lost", "twice"]  # fmt: skip
    return common.table(
        header,
        [
            [s.mode, s.tasks, s.asked, s.learned, s.shadowed, s.agreed,
             ", ".join(f"{count} {reason}" for reason, count in s.fallbacks.items()) or "-",
             _known(s.ratio_p95), _known(s.reference_p95), f"{s.response_p50_s:.2f}",
             f"{s.response_p95_s:.2f}", s.wrong, s.failed, s.lost, s.twice]
            for s in stages
        ],
    )  # fmt: skip


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m benchmarks.pipelines rollout``."""
    parser.add_argument("--tasks", type=int, default=TASKS, help="of all modes (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TASKS} tasks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")


def main(options: argparse.Namespace) -> int:
    """Run the stages; 1 if a result is wrong, or a task was lost, failed or ended twice."""
    tasks = min(options.tasks, QUICK_TASKS) if options.quick else options.tasks
    try:
        with interruptible(), tempfile.TemporaryDirectory(prefix="hrm-") as directory:
            stages, last = _measured(Path(directory), tasks)
    except BenchmarkError as error:
        CONSOLE.print(f"error: {error}", markup=False)
        return 1
    document: dict[str, Any] = {
        "benchmark": "rollout",
        "provenance": common.provenance("benchmarks.pipelines", ["numpy"]),
        "policy": POLICY,
        "model": last.model,
        "mode_at_the_end": last.mode,
        "decide_p50_ms": 1e3 * last.seconds_p50,
        "decide_p99_ms": 1e3 * last.seconds_p99,
        "stages": [asdict(stage) for stage in stages],
        "good": all(stage.good for stage in stages),
    }
    body = _report(document, stages)
    print(body)
    if options.json:
        common.write_json(options.json, document)
    if not options.quick and tasks == TASKS:
        title = "A learned cluster policy from shadow to on"
        common.write_results(NAME, title, document, body)
    return 0 if document["good"] else 1


def _report(document: dict[str, Any], stages: Sequence[Stage]) -> str:
    return "\n".join(
        [
            f"`{document['model']}` on a real master and agents, all on one machine: "
            + "; ".join(map(str, live.nodes_of(POLICY)))
            + f". Every {ARRIVAL_S} s a task of five to seven steps that wait; the mode is set "
            "while the cluster runs.",
            "",
            table(stages),
            "",
            f"At the end the mode is `{document['mode_at_the_end']}`. A decision took "
            f"{document['decide_p50_ms']:.2f} ms (p50), {document['decide_p99_ms']:.2f} ms (p99) "
            f"of processor time. Tasks that are placed again are asked again.",
        ]
    )
