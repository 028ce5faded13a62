"""LDWP + IAWP against all there is without learning, at equal node policy and under overload.

    python -m benchmarks.paper.ldwp [--quick] [--json FILE] [--seeds 10] [--runs FILE]
                                    [--only cells,overload,pairs,published,source]

- ``cells``: cores 2, 4, 16, by length of tasks 3, 12, 48, 192, at 0.8 of the fluid bound, node
  policy ``mct``: does ``ldwp-set`` decide, and is it better than the best heuristic of the cell, in
  hindsight?
- ``overload``: an hour at 1.5 times the fluid bound of four nodes.
- ``pairs``: every cluster policy with every node policy, where interference matters; the co-run
  oracle first, which says what there is to gain.
- ``published``: what the source compares, Random, ECT and PATS, at 10 to 120 tasks a minute.
- ``source``: its reward (``delta``) and its features (table 1), as they are.

Weights are frozen and were trained on seeds 0 to 99; these are 1000 and up. ``--runs FILE`` keeps
every run and goes on where it was stopped. The figures of the paper are
``benchmarks.paper.ldwp_figures``.

Source: LDWP + IAWP, sections 4 to 6.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.paired_runs import holm, paired, run_kept
from benchmarks.paper.ldwp_cases import Case, Found, run_case, scenario_of
from benchmarks.paper.ldwp_summary import report
from benchmarks.pipelines.measured_run import simulate
from benchmarks.simulation.figures import interval
from hrm.pipelines.policies import cluster as cluster_policies
from hrm.pipelines.policies import corun
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.policies import policies
from hrm.policies import model_files

__all__ = ["cases_of", "document_of", "main"]

TEST_FIRST = 1_000
LEARNED = "ldwp-set"
CORES, TIME_SCALES = (2, 4, 16), (3.0, 12.0, 48.0, 192.0)
HEURISTICS = ("least-loaded", "min-wait", "ect")
DEFAULT_PAIR = f"{cluster_policies.HEURISTIC}+{corun.HEURISTIC}"
RIVAL = "ect+min-min"
NODE_POLICIES = ("random", "mct", "min-min", "pats", "iawp:cosine", "iawp:guarded")
ORACLES = ("iawp:oracle", "iawp:oracle:guarded")
WORLDS = ("measured", "measured-mps")
PUBLISHED = ("random+random", "ect+mct", "demand+pats", f"{LEARNED}+iawp:cosine")
PUBLISHED_RATES = (10.0, 20.0, 40.0, 60.0, 90.0, 120.0)
WORSE = 0.05
EXPERIMENTS = ("cells", "overload", "pairs", "published", "source")
HEADLINE = ("cells", "overload")
"""Without these nothing is written to the results."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent: seeds of each experiment, tasks of a cell by cores, minutes of overload."""

    cells: int
    overload: int
    pairs: int
    published: int
    tasks: Mapping[int, int]
    minutes: float
    pair_tasks: int
    published_tasks: int
    scales: Sequence[float]
    cores: Sequence[int]
    source_decisions: int


FULL = Plan(10, 3, 3, 2, {2: 300, 4: 150, 16: 200}, 60.0, 250, 300, TIME_SCALES, CORES, 1_500)
QUICK = Plan(2, 1, 1, 1, {2: 80, 4: 80, 16: 80}, 6.0, 40, 40, (12.0,), (2, 4), 300)


class Job(NamedTuple):
    """A case and a seed."""

    case: Case
    seed: int


def cases_of(plan: Plan, only: Sequence[str]) -> list[tuple[Case, int]]:
    """Every case, with its number of seeds."""
    found: list[tuple[Case, int]] = []
    if "cells" in only:
        pairs = tuple(f"{name}+{corun.HEURISTIC}" for name in (*HEURISTICS, LEARNED))
        found += [
            (
                Case(
                    experiment="cells", name=f"{cores} cores, time x {scale:g}", pairs=pairs,
                    tasks=plan.tasks[cores], cores=cores, time_scale=scale, load=0.8,
                ),
                plan.cells,
            )
            for cores in plan.cores
            for scale in plan.scales
        ]  # fmt: skip
    if "overload" in only:
        # Four of the paper's nodes can do 32 tasks a minute.
        case = Case(
            experiment="overload", name="four nodes at 1.5 x", tasks=round(48 * plan.minutes),
            pairs=(DEFAULT_PAIR, RIVAL), load=1.5,
        )  # fmt: skip
        found.append((case, plan.overload))
    if "pairs" in only:
        names = (*(name for name in cluster_policies.HEURISTICS if name != "min-min"), LEARNED)
        pairs = tuple(f"{name}+{node}" for node in NODE_POLICIES for name in names)
        pairs += tuple(f"ect+{node}" for node in ORACLES)
        found += [
            (
                Case(
                    experiment="pairs", name=f"world {world}, 2 cores{cold}", pairs=pairs,
                    tasks=plan.pair_tasks, cores=2, time_scale=48.0, load=0.8, world=world,
                    known=not cold,
                ),
                plan.pairs,
            )
            for world, cold in (*((world, "") for world in WORLDS), ("measured", ", cold"))
        ]  # fmt: skip
    if "published" in only:
        found += [
            (
                Case(
                    experiment="published", name=f"{rate:g}/min", pairs=PUBLISHED, nodes=11,
                    tasks=plan.published_tasks, rate_per_min=rate,
                ),
                plan.published,
            )
            for rate in PUBLISHED_RATES
        ]  # fmt: skip
    return found


def _key(job: Job) -> str:
    held = b"".join(
        path.read_bytes()
        for path in (*sorted(model_files.PACKAGE_DIR.glob("*.npz")), *tables.SHIPPED)
        if path.is_file()
    )
    return f"{hashlib.sha256(held).hexdigest()[:16]} {job!r}"


def _run(job: Job) -> list[Found]:
    return run_case(job.case, job.seed)


def _measure(plan: Plan, given: argparse.Namespace, only: Sequence[str]) -> list[Found]:
    jobs = [
        Job(case, TEST_FIRST + number)
        for case, seeds in cases_of(plan, only)
        for number in range(given.seeds or seeds)
    ]
    runs: list[Found] = []
    made = run_kept(
        jobs, _run, key=_key, processes=given.processes, kept=given.runs,
        dump=lambda several: [dataclasses.asdict(one) for one in several],
        load=lambda held: [Found(**one) for one in held],
    )  # fmt: skip
    for job, several in zip(jobs, made, strict=True):
        CONSOLE.print(f"{job.case.experiment}: {job.case.name}, seed {job.seed}")
        runs += several
    return runs


# --- comparison ----------------------------------------------------------------------------------


def _of(runs: Sequence[Found], case: str, pair: str, figure: str) -> dict[int, float]:
    return {
        run.seed: run.values[figure]
        for run in runs
        if (run.case, run.pair) == (case, pair) and figure in run.values
    }


def _best(runs: Sequence[Found], case: str, pairs: Sequence[str]) -> str:
    """The pair of the least mean slow-down, in hindsight."""

    def mean(pair: str) -> float:
        values = _of(runs, case, pair, "slowdown")
        return sum(values.values()) / len(values)

    return min(pairs, key=mean)


def _against(runs: Sequence[Found], case: str, ours: str, pairs: Sequence[str]) -> dict[str, Any]:
    """``ours`` against the best of ``pairs``: relative difference of the mean slow-down, paired by
    seed; below 0 is better."""
    theirs = _best(runs, case, pairs)
    own, other = (_of(runs, case, pair, "slowdown") for pair in (ours, theirs))
    decided = _of(runs, case, ours, "decided")
    return {
        "case": case,
        "best": theirs,
        "ours": interval(list(own.values())).as_json(),
        "theirs": interval(list(other.values())).as_json(),
        "difference": paired(own, other).as_json(),
        "decided": min(decided.values()) if decided else 0.0,
        "decided_mean": sum(decided.values()) / len(decided) if decided else 0.0,
    }


def document_of(runs: Sequence[Found], plan: Plan, only: Sequence[str]) -> dict[str, Any]:
    """All that the report needs, as JSON, the headline figures first."""
    cases = [case for case, _ in cases_of(plan, only)]
    cells = [
        _against(runs, c.name, c.pairs[-1], c.pairs[:-1]) for c in cases if c.experiment == "cells"
    ]
    for cell, p in zip(cells, holm([one["difference"]["p"] for one in cells]), strict=True):
        cell["p_holm"] = p
    gains = [-cell["difference"]["mean"] for cell in cells]
    overload, rival = (
        _of(runs, "four nodes at 1.5 x", pair, "of_bound") for pair in (DEFAULT_PAIR, RIVAL)
    )
    return {
        "equal_node_policy_gain": sum(gains) / len(gains) if gains else None,
        "cells_better": sum(cell["difference"]["high"] < 0.0 for cell in cells),
        "cells_worse": sum(cell["difference"]["mean"] > WORSE for cell in cells),
        "decided_least": min((cell["decided"] for cell in cells), default=None),
        "decided_mean": sum(cell["decided_mean"] for cell in cells) / len(cells) if cells else None,
        "overload_share_of_bound": sum(overload.values()) / len(overload) if overload else None,
        "overload_rival_share": sum(rival.values()) / len(rival) if rival else None,
        "default_pair": DEFAULT_PAIR,
        "experiments": list(only),
        "cells": cells,
        "equal_node_policy": [_equal(runs, c) for c in cases if c.experiment == "pairs"],
        "points": [_point(runs, case, pair) for case in cases for pair in case.pairs],
        "cpu_s": sum(run.values["cpu_s"] for run in runs),
    }


def _equal(runs: Sequence[Found], case: Case) -> dict[str, Any]:
    """The learned gain at each node policy, and what the co-run oracle leaves to gain."""
    found: dict[str, Any] = {"case": case.name, "gains": []}
    for node in NODE_POLICIES:
        own = [pair for pair in case.pairs if pair.partition("+")[2] == node]
        learned = f"{LEARNED}+{node}"
        others = [pair for pair in own if pair != learned]
        found["gains"].append({"node": node, **_against(runs, case.name, learned, others)})
    found["headroom"] = [
        {"node": oracle, **_against(runs, case.name, f"ect+{oracle}", [f"ect+{plain}"])}
        for oracle, plain in zip(ORACLES, NODE_POLICIES[-2:], strict=True)
    ]
    everything = [p for p in case.pairs if not p.startswith(LEARNED) and "oracle" not in p]
    found["best"] = _best(runs, case.name, everything)
    return found


def _point(runs: Sequence[Found], case: Case, pair: str) -> dict[str, Any]:
    own = [run for run in runs if (run.case, run.pair) == (case.name, pair)]
    names = [name for name in own[0].values if all(name in run.values for run in own)]
    return {
        "experiment": case.experiment,
        "case": case.name,
        "pair": pair,
        "seeds": len(own),
        "figures": {n: interval([run.values[n] for run in own]).as_json() for n in names},
    }


def _source(plan: Plan, seeds: int) -> list[dict[str, Any]]:
    """The source's own reward and features: trained once, and measured at 50 a minute."""
    from hrm.learn.ldwp import Args, train

    case = Case(
        experiment="source", name="50/min", pairs=(), nodes=11, tasks=plan.published_tasks,
        rate_per_min=50.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hrm-") as folder:
        args = Args(
            options=f"nodes=11,tasks={plan.published_tasks}", out=Path(folder) / "ldwp-1.npz",
            features="paper", reward="delta", target="dqn", loss="squared", clip=1e9,
            pretrain_decisions=plan.source_decisions, decisions=plan.source_decisions,
            validate_every=plan.source_decisions, validation_seeds=2,
        )  # fmt: skip
        train(args)
        model = model_files.read(args.out, kind="ldwp")
    rows = []
    for name in ("random", "ldwp", "ect"):
        slowdowns, throughputs = [], []
        for number in range(seeds):
            scenario = scenario_of(case, TEST_FIRST + number)
            policy = None
            if name == "ldwp":
                policy = cluster_policies.load("ldwp", rng=_rng(), model=model, guarded=False)
            result = simulate(scenario, policies(name, "mct", scenario, policy=policy))
            values = result.values()
            slowdowns.append(values["slowdown"])
            throughputs.append(values["throughput"])
        rows.append(
            {
                "policy": "ldwp, delta, table 1" if name == "ldwp" else name,
                "slowdown": interval(slowdowns).as_json(),
                "throughput": interval(throughputs).as_json(),
            }
        )
    return rows


def _rng() -> Any:
    import numpy as np

    return np.random.default_rng(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.ldwp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=0, help="test seeds of each case")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, help="keep runs in this file, and go on from it")
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="experiments, by name")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write; the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    only = [name.strip() for name in given.only.split(",") if name.strip()]
    if not only or not set(only) <= set(EXPERIMENTS):
        parser.error(f"--only {given.only}: name some of {', '.join(EXPERIMENTS)}")
    plan = QUICK if given.quick else FULL
    runs = _measure(plan, given, only)
    document = {
        "benchmark": "ldwp",
        "provenance": common.provenance("benchmarks.paper.ldwp", ["numpy", "scipy"]),
        **document_of(runs, plan, only),
    }
    if "source" in only:
        document["source"] = _source(plan, given.seeds or plan.published)
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not (given.quick or given.seeds) and set(HEADLINE) <= set(only):
        title = "LDWP + IAWP: learned placement against all heuristics, at equal node policy"
        for path in common.write_results("paper-ldwp", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
