"""RLPTO: training jobs that give up workers once they no longer learn, against plain rules.

    python -m benchmarks.paper.rlpto --data DIR             # writes results/paper-rlpto.*
    python -m benchmarks.paper.rlpto --data DIR --quick --json FILE
    python -m benchmarks.paper.rlpto --only source --quick

Part ``source`` repeats the source's experiments in simulation: tables II to V and figures 7 to 11,
the beta sweep, and four mixes of priorities, each method with its own queue and with one for all.
Part ``measured`` runs jobs with measured learning curves (Pollux's data; without it the part is
left out): what an oracle could gain over the beta rule, then several trainings of the network, the
rules, each tuned on other seeds, and clusters of 8 to 64 workers that training has not seen. Part
``ablations``, which is run only by its name, trains variants. Source: Lu et al., IEEE TPDS 2023,
section 5.

In the JSON: ``mixes_first``, in how many of the four mixes the network has the highest mean reward
of the source's methods, with one queue for all; ``gain_over_beta``, the share by which the time to
delivery is shorter than under the beta rule, tuned, on measured curves, with its 95 % interval over
seeds and trainings; ``gain_by_learning``, the same over the network before it is trained, which is
a rule, too; ``oracle_headroom``, of the oracle over the beta rule.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE, note
from benchmarks.paired_runs import run_kept
from benchmarks.paper.rlpto_curves import drawing_measured, load_measured
from benchmarks.paper.rlpto_measured import (
    LOADS,
    TEST_FIRST,
    Entry,
    World,
    compare,
    constants,
    gain,
    learned_entries,
    measure,
    oracle_entry,
    trained_models,
    tune,
)
from benchmarks.paper.rlpto_methods import REPORTED, Method, beta_method, oracle_method
from benchmarks.paper.rlpto_report import body_of
from benchmarks.paper.rlpto_source import (
    SOURCE,
    by_workers,
    checked,
    combined,
    first_of,
    tabled,
)
from hrm.core.elasticity.beta_rule import BetaRule
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.learn.training_workloads import COMBINATIONS, DrawCurve
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.model_files import Model

__all__ = ["ALONE", "PARTS", "QUICK", "Size", "main", "measured", "source"]

DATA = Path("../shared/data/pollux")
PARTS = ("measured", "source")
ALONE = "ablations"
"""A part of its own, for it trains as much as all the others."""
NODES = (8, 12, 16, 64)
WORLDS = tuple(
    (World(workers_max=most, standstill=standstill), load)
    for most, standstill, load in (
        (4, 1.0, 0.8), (4, 0.3, 0.8), (4, 2.0, 0.8), (4, 3.0, 0.8), (4, 5.0, 0.8),
        (12, 1.0, 0.5), (12, 1.0, 0.8), (12, 1.0, 1.1), (12, 3.0, 0.8),
    )
)  # fmt: skip
"""With loads."""
FAMILIES = ("beta", "on-demand", "constant", "speed-up")
"""Rules that are compared, each the best of its family."""
RULE = "speed-up"
BUT_TRADL = tuple(name for name in SOURCE if name != "tradl")
KEYS = {
    "source": ("mixes_first",),
    "measured": (
        "gain_over_beta",
        "gain_over_beta_ci95",
        "gain_by_learning",
        "oracle_headroom",
    ),
}
"""Of each part, what stands at the top of the document."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "printed reward": {"reward": "printed"},
    "smooth reward": {"reward": "smooth"},
    "net reward": {"reward": "net"},
    "delivered reward": {"reward": "delivered"},
    "clip": {"penalty": "clip"},
    "no mask": {"masked": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run. ``seeds`` of tables II and III, ``mixes`` of the four mixes; of measured
    curves ``tests`` of all loads together, and of each ``validations`` and, for other numbers of
    nodes and ablations, ``few``, or ``others`` over the number of nodes if that is more. ``worlds``
    of each of ``WORLDS``."""

    seeds: int = 20
    mixes: int = 5
    tests: int = 30
    validations: int = 2
    few: int = 2
    others: int = 160
    worlds: int = 20
    trainings: int = 5
    decisions: int = 16_384
    nodes: tuple[int, ...] = NODES
    ablated: int = 8_192


QUICK = Size(
    seeds=3, mixes=2, tests=3, validations=1, few=1, others=8, worlds=2, trainings=1,
    decisions=2_048,
    nodes=(8, 16),
    ablated=1_024,
)  # fmt: skip


def learned_methods(models: Sequence[Model], beta: float = 0.0003) -> list[Method]:
    """Each training in the place of the beta rule, and what else ends jobs as that does."""
    policies = [LearnedElasticity(model) for model in models]
    found = [
        beta_method(beta, name=f"rlpto-{n}", policy=lambda c, policy=policy: policy)  # type: ignore[misc]
        for n, policy in enumerate(policies)
    ]
    on_demand = beta_method(beta, name="on-demand", policy=lambda c: BetaRule(on_demand=True))
    speed_up = beta_method(beta, name=RULE, policy=lambda c: SpeedUpRule())
    return [*found, on_demand, speed_up, oracle_method(beta)]


def source(models: Sequence[Model], size: Size) -> dict[str, Any]:
    """The part ``source``."""
    seeds = range(size.seeds)
    learned = learned_methods(models)
    tables = tabled(learned, seeds)
    note("tables II and III are done")
    rows = combined(learned, range(size.mixes))
    ours = [f"rlpto-{n}" for n in range(len(models))]
    firsts = {
        queue: [n for n in COMBINATIONS if first_of(rows, ours, n, queue)]
        for queue in ("own", "one")
    }
    plain = {
        table: {
            name: (row["accuracy"]["mean"], row["total_s"]["mean"]) for name, row in held.items()
        }
        for table, held in tables.items()
    }
    return {
        "tables": tables,
        "checks": {table: checked(held) for table, held in plain.items()},
        "checks_printed": {table: checked(held) for table, held in REPORTED.items()},
        "workers": by_workers(seeds),
        "mixes": rows,
        "first": firsts,
        "first_but_tradl": [n for n in COMBINATIONS if first_of(rows, ours, n, "one", BUT_TRADL)],
        "mixes_first": len(firsts["one"]),
        "seeds": size.seeds,
    }


def measured(draw: DrawCurve, models: Sequence[Model], size: Size) -> dict[str, Any]:
    """The part ``measured``."""
    scores, best = tune(draw, size.validations)
    note("rules are tuned: " + ", ".join(best[name].name for name in ("beta", "constant")))
    learned = learned_entries(models)
    rules = [best[family] for family in FAMILIES]
    entries = [*rules, oracle_entry(), *learned]
    found = compare(entries, draw, size.tests)
    ours = [entry.name for entry in learned]
    names = [rule.name for rule in rules]
    beta = names[0]
    over = {name: gain(found, ours, name) for name in names}
    headroom = gain(found, ["oracle"], beta)
    return {
        "tuned": scores,
        "best": {family: entry.name for family, entry in best.items()},
        "found": found,
        "gains": over,
        "rule_gains": {name: gain(found, [name], beta) for name in names[1:]},
        "rule_over": {
            "time to delivery": {name: gain(found, [RULE], name) for name in names[:-1]},
            "mean completion": {
                name: gain(found, [RULE], name, "completion_mean_s") for name in names[:-1]
            },
            **{
                f"mean completion at load {load}": {
                    name: gain({load: held}, [RULE], name, "completion_mean_s")
                    for name in names[:-1]
                }
                for load, held in found.items()
            },
        },
        "gain_by_learning": over[RULE],
        "completion_gain": gain(found, ours, beta, "completion_mean_s"),
        "by_load": {
            load: {name: gain({load: held}, ours, name) for name in names}
            for load, held in found.items()
        },
        "oracle": headroom,
        "oracle_over": {name: gain(found, ["oracle"], name) for name in names[1:]},
        "gain_over_beta": over[beta]["mean"],
        "gain_over_beta_ci95": [over[beta]["low"], over[beta]["high"]],
        "oracle_headroom": headroom["mean"],
        "nodes": other_sizes(draw, best, learned, size),
        "worlds": other_worlds(draw, best, size),
        "seeds": size.tests,
    }


def other_sizes(
    draw: DrawCurve, best: dict[str, Entry], learned: Sequence[Entry], size: Size
) -> dict[str, Any]:
    """Gains over the tuned beta rule at the middle load, by number of workers."""
    rules = [best[family] for family in FAMILIES]
    found = {}
    for workers in size.nodes:
        seeds = range(
            TEST_FIRST + 1_000, TEST_FIRST + 1_000 + max(size.few, size.others // workers)
        )
        rows = {
            entry.name: measure(entry, draw, seeds, LOADS[1], world=World(workers))
            for entry in (*rules, *learned)
        }
        held = {"": rows}
        found[str(workers)] = {
            "rlpto": gain(held, [entry.name for entry in learned], rules[0].name),
            **{rule.name: gain(held, [rule.name], rules[0].name) for rule in rules[1:]},
            **{f"{RULE} over {rule.name}": gain(held, [RULE], rule.name) for rule in rules[1:-1]},
        }
        note(f"{workers} workers are done")
    return found


def other_worlds(draw: DrawCurve, best: dict[str, Entry], size: Size) -> list[dict[str, Any]]:
    """What the rule of speed-ups gains in time to delivery over rules that are tuned elsewhere and
    over constants, where jobs may be larger and resizes cost more."""
    seeds = range(TEST_FIRST + 2_000, TEST_FIRST + 2_000 + size.worlds)
    rules = [best["on-demand"], *constants()]
    found = []
    for world, load in WORLDS:
        held = {
            "": {
                entry.name: measure(entry, draw, seeds, load, world=world)
                for entry in (best[RULE], *rules)
            }
        }
        gains = {rule.name: gain(held, [RULE], rule.name) for rule in rules}
        found.append({**world._asdict(), "load": load, "gains": gains})
        note(f"{world} is done")
    return found


def ablated(draw: DrawCurve, size: Size, cache: Path) -> dict[str, Any]:
    """One training of each variant, as long as each other and shorter than the main ones, on a few
    test seeds at all loads: gain over the beta rule that is not tuned."""
    variants = {"as it is": {}, **ABLATIONS}
    entries = [Entry(name="beta", policy=lambda c: BetaRule())]
    for name, changes in variants.items():
        (model,) = trained_models(1, cache, decisions=size.ablated, **changes)
        policy = LearnedElasticity(model)
        entries.append(Entry(name=name, policy=lambda c, policy=policy: policy))  # type: ignore[misc]
    found = compare(entries, draw, len(LOADS) * size.few)
    return {name: gain(found, [name], "beta") for name in variants}


def document_of(args: argparse.Namespace, size: Size) -> dict[str, Any]:
    """All parts that are wanted."""
    parts = PARTS if args.only is None else (args.only,)
    draw = None
    try:
        draw = drawing_measured(load_measured(args.data))
    except FileNotFoundError as error:
        note(
            f"no {error.filename}: curves are not made up here; pass --data with the folder of "
            "Pollux's data for the parts 'measured' and 'ablations'"
        )
    cache = args.cache_dir / "rlpto"
    models = trained_models(size.trainings, cache, decisions=size.decisions)
    document: dict[str, Any] = {
        "benchmark": "paper.rlpto",
        "provenance": common.provenance("benchmarks.paper.rlpto", ["numpy", "torch"]),
        "trained": [
            {
                "command": model.meta["command"],
                "trials": model.meta["trials"],
                "trained_s": model.meta["trained_s"],
            }
            for model in models
        ],
    }
    jobs = [part for part in parts if part == "source" or draw is not None]

    def made(part: str) -> dict[str, Any]:
        note(f"part {part}")
        if part == "source":
            return source(models, size)
        assert draw is not None, "parts that need it are left out without it"
        return measured(draw, models, size) if part == "measured" else ablated(draw, size, cache)

    # A file of parts, so that an interrupted command continues: remove it after changes of code.
    found = run_kept(
        jobs, made, key=lambda part: f"{part} {size}", dump=lambda held: held,
        load=lambda held: held, processes=1, kept=cache / "parts.jsonl",
    )  # fmt: skip
    document |= dict(zip(jobs, found, strict=True))
    for part, keys in KEYS.items():
        document |= {key: document[part][key] for key in keys if part in document}
    return document


def kept_of(document: dict[str, Any]) -> dict[str, Any]:
    """What the results file has of it: means in place of every run."""
    kept = dict(document)
    if "measured" in kept:
        means = {
            load: {
                name: {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
                for name, rows in held.items()
            }
            for load, held in kept["measured"]["found"].items()
        }
        seeds = {
            load: {name: [round(row["delivery_s"], 1) for row in rows]
                   for name, rows in held.items()}
            for load, held in kept["measured"]["found"].items()
        }  # fmt: skip
        kept["measured"] = {**kept["measured"], "found": means, "delivery_s": seeds}
    return kept


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, print the report, and write it where the run is a whole one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.rlpto", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    common.add_common_arguments(parser)
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR",
        help="the folder that has Pollux's measurements (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--only", choices=(*PARTS, ALONE), help="one part; default: all but ablations"
    )
    args = parser.parse_args(argv)
    size = QUICK if args.quick else Size()
    document = document_of(args, size)
    body = body_of(document)
    CONSOLE.print(body, markup=False)
    kept = kept_of(document)
    if args.json is not None:
        common.write_json(args.json, kept)
    if not args.quick and args.only is None:
        from benchmarks.paper.rlpto_plots import draw_all

        title = "Elastic training jobs: RLPTO against plain rules"
        for path in common.write_results("paper-rlpto", title, kept, body):
            note(f"written: {path}")
        for path in draw_all(kept, common.RESULTS_DIR):
            note(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
