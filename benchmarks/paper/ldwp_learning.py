"""Runs with learning: figure 3, and figure 13 with a network that continues to learn.

Figure 3: what pre-training saves. The paper's network learns on its cluster with and without it,
and at intervals the greedy policy is evaluated on validation seeds. Figure 13: what happens to the
paper's network, which has an output for each node, when nodes join: it may keep what it knows (the
transfer of section 3.2), or start from scratch. These runs learn while they are measured, on test
seeds; they are kept separate from all others, whose weights are frozen.

    python -m benchmarks.paper.ldwp_learning [--quick] [--json FILE] [--processes 1]

Source: LDWP + IAWP, section 5.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.paper.ldwp_plots import draw_learning
from benchmarks.paper.ldwp_report import cell, changes, changes_table
from benchmarks.paper.ldwp_runs import TEST_FIRST, Run, Setting, run_of, scenario_of
from benchmarks.pipelines.measured_run import simulate
from benchmarks.simulation.figures import interval
from hrm.pipelines.core.model import ClusterPolicy, PipelineClusterView
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.scenario import arrivals

__all__ = ["Curve", "Online", "curve_jobs", "curves", "main", "online", "plateau", "train_first"]

PLATEAU = 0.95
_NEW_NODES = "ldwp, new"
_ONLINE_POLICIES = ("ldwp, transfer", _NEW_NODES, "ldwp-set, frozen", "ect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One training. ``decisions``: of its own choice; ``every``: between two evaluations."""

    policy: str
    pretrained: bool
    seed: int
    decisions: int
    every: int
    pretrain: int
    tasks: int
    trial_seeds: int
    profiles: Path | None


def curves(
    jobs: Sequence[Curve], *, processes: int, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Figure 3: of each policy, with and without pre-training, means over its seeds."""
    held: dict[tuple[str, bool], list[list[dict[str, Any]]]] = {}
    for job, trials in zip(jobs, _each(_learn, jobs, processes), strict=True):
        held.setdefault((job.policy, job.pretrained), []).append(trials)
        on_progress(
            f"learning curve of {job.policy}, seed {job.seed}, pre-trained: {job.pretrained}"
        )
    found = []
    for (policy, pretrained), several in held.items():
        decisions = [int(trial["decisions"]) for trial in several[0]]

        def mean(name: str, several: list[list[dict[str, Any]]] = several) -> list[float]:
            return np.mean([[t[name] for t in one] for one in several], axis=0).tolist()  # type: ignore[no-any-return]

        reward = [-value for value in mean("log_slowdown")]
        found.append(
            {
                "policy": policy,
                "pretrained": pretrained,
                "seeds": len(several),
                "decisions": decisions,
                "reward": reward,
                "tasks_per_min": mean("tasks_per_min"),
                "response_p95_s": mean("response_p95_s"),
                "plateau": plateau(decisions, reward),
            }
        )
    return found


def plateau(decisions: Sequence[int], reward: Sequence[float]) -> int:
    """Decisions after which it stays within 5 % of the gain from the worst value to the plateau.

    The plateau is the mean of the last third.
    """
    level = float(np.mean(reward[-max(1, len(reward) // 3) :]))
    least = level - (1.0 - PLATEAU) * max(0.0, level - min(reward))
    below = [place for place, value in enumerate(reward) if value < least]
    return decisions[min(below[-1] + 1, len(decisions) - 1)] if below else decisions[0]


def _learn(job: Curve) -> list[dict[str, Any]]:
    from hrm.learn.ldwp import Args, train

    options = f"nodes=11,tasks={job.tasks}"
    if job.profiles is not None:
        options += f",profiles={job.profiles}"
    with tempfile.TemporaryDirectory(prefix="hrm-") as folder:
        args = Args(
            options=options,
            out=Path(folder) / f"{job.policy}-1.npz",
            pretrain_decisions=job.pretrain if job.pretrained else 0,
            decisions=job.decisions,
            validate_every=job.every,
            validation_seeds=job.trial_seeds,
            seed=job.seed,
        )
        return list(train(args)["trials"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    """Figure 13 once more, with learning. ``model``: of ``ldwp`` on the first eight workers."""

    setting: Setting
    seed: int
    model: Path
    profiles: Path | None
    weights: Path | None


def train_first(folder: Path, *, decisions: int, tasks: int, profiles: Path | None) -> Path:
    """``ldwp`` for the eight workers with which the runs of figure 13 begin."""
    from hrm.learn.ldwp import Args, train

    out = folder / "ldwp-1.npz"
    options = f"nodes=8,tasks={tasks}"
    if profiles is not None:
        options += f",profiles={profiles}"
    train(
        Args(
            options=options,
            out=out,
            pretrain_decisions=decisions,
            decisions=decisions,
            validate_every=max(1, decisions // 2),
            validation_seeds=2,
        )
    )
    return out


def online(
    jobs: Sequence[Online], *, processes: int, on_progress: Callable[[str], None]
) -> list[Run]:
    """All runs of all jobs."""
    found = []
    for job, runs in zip(jobs, _each(_run_online, jobs, processes), strict=True):
        on_progress(f"nodes join and leave, learning, seed {job.seed}")
        found += runs
    return found


def _run_online(job: Online) -> list[Run]:
    scenario = scenario_of(job.setting, job.seed, job.profiles)
    work = arrivals(scenario)
    found = []
    for name in _ONLINE_POLICIES:
        policy = None
        if name.startswith("ldwp, "):
            policy = _agent(job.model, job.seed, new=name == _NEW_NODES)
        cluster = name.partition(",")[0]
        made = policies(cluster, "iawp:guarded", scenario, policy=policy, weights=job.weights)
        found.append(run_of(job.setting, job.seed, name, simulate(scenario, made, work), work))
    return found


def _agent(path: Path, seed: int, *, new: bool) -> ClusterPolicy:
    """The trained network of ``path``, which continues to learn; ``new``: other nodes, new weights.

    It explores no more than a network that has run for long (5 %); after a change of the nodes, as
    section 3.2 says, or, if all is new, as at the beginning.
    """
    import torch

    from hrm.learn.dqn import DqnAgent, Hyper
    from hrm.learn.q_networks import FlatQNetwork, fresh
    from hrm.learn.rewards import Rewards
    from hrm.pipelines.policies.cluster.features import Layout
    from hrm.pipelines.policies.cluster.networks import mlp_shapes
    from hrm.policies import model_files

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)

    class Forgetful(FlatQNetwork):
        def follow(self, view: PipelineClusterView) -> bool:
            changed = super().follow(view)
            if changed:
                self.weights = fresh(mlp_shapes(self.layout, len(self.nodes)), generator)
            return changed

    model = model_files.read(path, kind="ldwp")
    meta: Mapping[str, Any] = model.meta
    layout = Layout(meta["features"], tuple(meta["types"]), meta["history"])
    kind = Forgetful if new else FlatQNetwork
    network = kind(layout, [(name, platform) for name, platform in meta["nodes"]], generator)
    network.weights = {
        name: torch.tensor(model.arrays[name], requires_grad=True) for name in network.weights
    }
    first = Hyper().epsilon
    hyper = Hyper(epsilon=(0.05, 0.05, 0))
    if new:
        hyper = hyper._replace(epsilon_moved=first)
    rewards = Rewards("slowdown")
    rewards.kappa = float(meta["kappa"])
    return DqnAgent(network, rewards, hyper, np.random.default_rng(seed))


def _each(do: Callable[[Any], Any], jobs: Sequence[Any], processes: int) -> Iterator[Any]:
    if processes <= 1:
        yield from map(do, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(do, jobs)


def curve_jobs(
    *, seeds: int, decisions: int, every: int, pretrain: int, tasks: int, profiles: Path | None
) -> list[Curve]:
    """The paper's network, with and without pre-training, ``seeds`` times each."""
    plain = Curve(
        policy="ldwp", pretrained=True, seed=0, decisions=decisions, every=every,
        pretrain=pretrain, tasks=tasks, trial_seeds=2, profiles=profiles,
    )  # fmt: skip
    return [
        dataclasses.replace(plain, policy=policy, pretrained=pretrained, seed=seed)
        for policy in ("ldwp",)
        for pretrained in (False, True)
        for seed in range(seeds)
    ]


# -- report ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent. ``curve_``: figure 3; ``first``: decisions of the network that figure 13 begins
    with; ``online_``: figure 13. ``_tasks``: of a trace."""

    curve_seeds: int
    decisions: int
    every: int
    pretrain: int
    curve_tasks: int
    first: int
    first_tasks: int
    online_seeds: int
    online_tasks: int


FULL = Plan(1, 1_600, 200, 1_600, 200, 3_000, 400, 3, 1_350)
QUICK = Plan(1, 400, 200, 300, 60, 300, 60, 1, 60)


_FIGURES = {"throughput": "tasks/min", "slowdown": "over ideal", "response_p95_s": "p95, s"}


def report(document: Mapping[str, Any]) -> str:
    """Markdown."""
    curve_rows = [
        [one["policy"], "yes" if one["pretrained"] else "no", f"{count:,}", f"{reward:.3f}",
         f"{rate:.1f}", f"{p95:.0f}"]
        for one in document["curves"]
        for count, reward, rate, p95 in zip(
            one["decisions"], one["reward"], one["tasks_per_min"], one["response_p95_s"],
            strict=True,
        )
    ]  # fmt: skip
    plateaus = [
        [one["policy"], "yes" if one["pretrained"] else "no", one["seeds"], f"{one['plateau']:,}"]
        for one in document["curves"]
    ]
    parts = [
        "![learning curves, and nodes that join and leave](paper-ldwp-learning.svg)",
        "## With and without pre-training (figure 3)",
        "Eleven workers, 30 to 70 tasks a minute. Greedy trials on validation seeds; reward is "
        "the mean of -ln(response / ideal), without its scale. Decisions are those of the network "
        "itself; those of `ect` that pre-training watched, and the thousand random ones that set "
        "the scale of the rewards, are not among them. Paper: stable at 1,300 iterations without, "
        "at 700 with.",
        common.table(["policy", "pre-trained", "seeds", "decisions to 95 % of the plateau"],
                     plateaus),
        common.table(["policy", "pre-trained", "decisions", "reward", "tasks/min", "p95, s"],
                     curve_rows),
        "## Nodes join and leave, and the paper's network learns on (figure 13)",
        "Eight workers at 50/min, three join after 10 minutes, two leave after 20. `ldwp` was "
        "trained on the first eight and learns while this is measured, on test seeds: with "
        "`transfer` it keeps its parameters when nodes join (section 3.2), with `new` it begins "
        "anew. `ldwp-set` is the shipped one, with frozen weights, and `ect` learns nothing. Node "
        "policy: guarded IAWP. Paper: a plateau after about 12 minutes, and after about 10.",
        changes_table(document["fluctuations"]),
        _online_table(document["online"]),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _online_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [[one["pair"], *(cell(one["figures"][name]) for name in _FIGURES)] for one in rows]
    return common.table(["policy", *_FIGURES.values()], lines)


def _measure_online(
    plan: Plan, given: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    setting = Setting(
        name="changes", x=50, rate_per_min=50, nodes=8, changes=True, tasks=plan.online_tasks
    )
    with tempfile.TemporaryDirectory(prefix="hrm-") as folder:
        CONSOLE.print("ldwp for the first eight workers")
        model = train_first(
            Path(folder), decisions=plan.first, tasks=plan.first_tasks, profiles=given.profiles
        )
        jobs = [
            Online(setting=setting, seed=TEST_FIRST + number, model=model,
                   profiles=given.profiles, weights=None)
            for number in range(plan.online_seeds)
        ]  # fmt: skip
        runs = online(jobs, processes=given.processes, on_progress=CONSOLE.print)
    return summed(runs, whole=plan is FULL)


def summed(
    runs: Sequence[Run], *, whole: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Figures of each policy, and, if the runs are ``whole``, its response to changes of nodes."""
    rows, fluctuations = [], []
    for name in _ONLINE_POLICIES:
        own = [run for run in runs if run.pair == name]
        figures = {n: interval([run.values[n] for run in own]).as_json() for n in _FIGURES}
        rows.append({"pair": name, "seeds": len(own), "figures": figures})
        if whole:
            fluctuations.append(changes(own))
    return rows, fluctuations


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.ldwp_learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--profiles", type=Path, help="a table of subtask profiles")
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else FULL
    jobs = curve_jobs(
        seeds=plan.curve_seeds, decisions=plan.decisions, every=plan.every,
        pretrain=plan.pretrain, tasks=plan.curve_tasks, profiles=given.profiles,
    )  # fmt: skip
    rows, fluctuations = _measure_online(plan, given)
    document: dict[str, Any] = {
        "benchmark": "ldwp-learning",
        "provenance": common.provenance("benchmarks.paper.ldwp_learning", ["numpy", "torch"]),
        "curves": curves(jobs, processes=given.processes, on_progress=CONSOLE.print),
        "online": rows,
        "fluctuations": fluctuations,
    }
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "LDWP: learning, and learning on"
        for path in common.write_results("paper-ldwp-learning", title, document, body):
            CONSOLE.print(f"written: {path}")
        CONSOLE.print(f"written: {draw_learning(document, common.RESULTS_DIR)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
