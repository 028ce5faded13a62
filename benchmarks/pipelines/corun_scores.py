"""Which co-run score ranks partners on a GPU best, by how the GPU is shared.

    python -m benchmarks.pipelines.corun_scores --data DIR [--lucid DIR] [--quick] [--json FILE]

``DIR`` has the directories ``igniter`` and ``gavel`` of ``docs/traces.md``; ``--lucid`` names that
of Lucid's two files, and ``--gavel`` another version of Gavel's measurements than ``DIR/gavel``.
What is no default is left out if it is not there, and the results state so.

A score is *chosen* on some tables and *reported* on others:

time slicing  chosen on Gavel's pairs on a K80; reported on those on a P100 and a V100, and on
              Lucid's on an RTX 3090, which have jobs, frameworks and a laboratory of their own
MPS           one data set has been published, iGniter's; so for each of its four networks chosen on
              the pairs without it, and reported on the pairs with it

For ``sensitivity`` the choice includes what its priors weigh. Target: a rank correlation with the
slow-downs of the jobs of at least 0.6 on every table that was not used to choose.

Halves of all sets tell what a score is worth where like sets have run: the same two programs with
other inputs, or other shares of the GPU. So halves of the *pairs of kinds* are measured as well:
there, no two programs that are judged together were seen together.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.pipelines.corun_tables import convert
from hrm.errors import HrmError, InvalidRequest
from hrm.pipelines.policies.corun import SCORES
from hrm.pipelines.policies.corun.corun_table import (
    CoRun,
    CoRunTable,
    TabledEstimates,
    read_table,
)
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.pair_effects import Ridges
from hrm.pipelines.policies.corun.score_quality import (
    Figure,
    ScoreQuality,
    halves_of,
    pair_of_kinds,
    qualities,
)
from hrm.pipelines.policies.corun.scores import progress

__all__ = ["Table", "choose", "curve", "gains", "main", "measure", "report", "unseen_pairs"]

TARGET = 0.6
RIDGES = tuple(
    Ridges(kind=kind, row=row, interaction=interaction)
    for (kind, row), interaction in itertools.product(((0.3, 1.0), (1.0, 3.0)), (1.0, 3.0, 10.0))
)
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
DIVISIONS = 10
"""Of pairs of kinds into halves; there are few pairs, so one division says little."""
GAINS = (-0.1, -0.05, 0.0, 0.05, 0.1, 0.2)
_CHOSEN_ON = "gavel-k80"
Table = tuple[str, CoRunTable]


def choose(table: CoRunTable, seeds: int) -> tuple[str, bool, Ridges, float]:
    """The score, whether it learns, its ridges, and its rank correlation with the slow-downs of
    jobs, that is greatest on ``table``; the mean over ``seeds`` divisions into halves."""
    best: tuple[float, str, bool, Ridges] = (-np.inf, "", False, Ridges())
    for ridges in RIDGES:
        names = SCORES if ridges == RIDGES[0] else {"sensitivity": SCORES["sensitivity"]}
        found: dict[tuple[str, bool], list[float]] = {}
        for seed in range(seeds):
            for one in qualities(table, names, resamples=1, seed=seed, ridges=ridges):
                value = -np.inf if one.each is None else one.each.value
                found.setdefault((one.score, one.seen), []).append(value)
        for (name, seen), values in found.items():
            mean = float(np.mean(values))
            if mean > best[0]:
                best = (mean, name, seen, ridges)
    return best[1], best[2], best[3], best[0]


def measure(name: str, table: CoRunTable, ridges: Ridges, resamples: int, seeds: int) -> Any:
    """What each score is worth on ``table``: intervals of the first division into halves, and the
    mean over ``seeds`` of them."""
    found: list[list[ScoreQuality]] = [
        qualities(table, SCORES, resamples=resamples if seed == 0 else 1, seed=seed, ridges=ridges)
        for seed in range(seeds)
    ]
    rows = []
    for of_score in zip(*found, strict=True):
        first = of_score[0]
        rows.append(
            {
                "score": first.score,
                "seen": first.seen,
                "sharing": first.sharing.value,
                **{
                    what: _mean([getattr(one, what) for one in of_score])
                    for what in ("each", "joint", "regret")
                },
            }
        )
    return {
        "table": name,
        "features": list(table.features),
        "jobs": len({row for run in table.runs for row in run.rows}),
        "runs": len(table.runs),
        "scores": rows,
    }


def _mean(figures: Sequence[Figure | None]) -> dict[str, float] | None:
    """The mean value, with the interval of the first around it."""
    known = [one for one in figures if one is not None]
    if not known:
        return None
    value = float(np.mean([one.value for one in known]))
    first = known[0]
    return {
        "value": value,
        "low": value + first.low - first.value,
        "high": value + first.high - first.value,
    }


def unseen_pairs(table: CoRunTable, ridges: Ridges, divisions: int) -> dict[str, Any]:
    """``sensitivity`` on pairs of kinds of which it saw each kind at most with others; the mean,
    the least and the greatest of ``divisions`` into halves."""
    names = {"sensitivity": SCORES["sensitivity"]}
    seen = [
        one
        for seed in range(divisions)
        for one in qualities(
            table, names, resamples=1, seed=seed, ridges=ridges, together=pair_of_kinds
        )
        if one.seen
    ]
    found: dict[str, Any] = {"pairs": len({pair_of_kinds(run) for run in table.runs})}
    for what, nothing in (("each", 0.0), ("joint", 0.0), ("regret", 1.0)):
        values = [_or(getattr(one, what), nothing) for one in seen]
        found[what] = {"value": float(np.mean(values)), "low": min(values), "high": max(values)}
    return found


def curve(table: CoRunTable, ridges: Ridges, seeds: int) -> list[dict[str, float]]:
    """``sensitivity`` after ever more co-runs; the mean over ``seeds``."""
    names = {"sensitivity": SCORES["sensitivity"]}
    found = []
    for share in SHARES:
        seen = [
            one
            for seed in range(seeds)
            for one in qualities(table, names, resamples=1, seed=seed, ridges=ridges, share=share)
            if one.seen
        ]
        jobs = len({row for run in table.runs for row in run.rows})
        per_job = share * sum(len(run.rows) for run in table.runs) / 2 / jobs
        found.append(
            {
                "share": share / 2,
                "co_runs_per_job": per_job,
                "each": float(np.mean([_or(one.each, 0.0) for one in seen])),
                "joint": float(np.mean([_or(one.joint, 0.0) for one in seen])),
                "regret": float(np.mean([_or(one.regret, 1.0) for one in seen])),
            }
        )
    return found


def _or(figure: Figure | None, nothing: float) -> float:
    """What ranks nothing has no correlation, and chooses at random."""
    return nothing if figure is None else figure.value


def gains(table: CoRunTable, ridges: Ridges, seeds: int) -> dict[str, Any]:
    """Work done together in a second, in seconds alone, by whether sets run together or in turn.

    Each set is judged after the other half was seen; one that does not run together does 1.
    """
    (mode,) = table.modes()
    together, expected = [], []
    for seed in range(seeds):
        halves = halves_of(table.runs, np.random.default_rng([seed, 0x6A]))
        for half in range(2):
            estimates = TabledEstimates(table, mode, ridges)
            estimates.observe([r for r, of in zip(table.runs, halves, strict=True) if of != half])
            for run, of in zip(table.runs, halves, strict=True):
                if of == half:
                    together.append(sum(1.0 / one for one in run.slowdowns))
                    expected.append(progress(run.rows, estimates))
    measured, predicted = np.array(together), np.array(expected)
    return {
        "always": float(measured.mean()),
        "oracle": float(np.maximum(1.0, measured).mean()),
        "harmful": float((measured < 1.0).mean()),
        "by_gain": {
            f"{gain:g}": float(np.where(predicted >= 1.0 + gain, measured, 1.0).mean())
            for gain in GAINS
        },
    }


def part(table: CoRunTable, keep: Callable[[CoRun], bool]) -> CoRunTable:
    """The table with those of its runs that ``keep`` allows."""
    return replace(table, runs=tuple(run for run in table.runs if keep(run)))


def _by_model(table: CoRunTable) -> dict[str, tuple[CoRunTable, CoRunTable]]:
    """Of each kind the runs without it, and those with it."""

    def has(kind: str) -> Callable[[CoRun], bool]:
        return lambda run: any(row.kind == kind for row in run.rows)

    found = {}
    for kind in sorted({row.kind for row in table.loads}):
        is_in = has(kind)
        without = tuple(run for run in table.runs if not is_in(run))
        found[kind] = replace(table, runs=without), part(table, is_in)
    return found


def _tables(given: argparse.Namespace, directory: Path) -> tuple[dict[str, CoRunTable], list[str]]:
    """What there is, and what is missing."""
    gavel = given.gavel or given.data / "gavel"
    wanted: dict[str, Path | None] = {
        "igniter": given.data / "igniter",
        **{f"gavel-{gpu}": gavel for gpu in ("k80", "p100", "v100")},
        "lucid": given.lucid,
    }
    found, missing = {}, []
    for name, path in wanted.items():
        try:
            if path is None:
                raise InvalidRequest("not named")
            found[name] = read_table(convert(name, path, directory / name))
        except HrmError as error:
            if name in ("igniter", _CHOSEN_ON, "gavel-p100"):
                raise
            missing.append(f"{name} ({error.message})")
    return found, missing


def _time_slicing(
    tables: Mapping[str, CoRunTable], seeds: int, resamples: int, divisions: int
) -> dict[str, Any]:
    score, seen, ridges, rank = choose(tables[_CHOSEN_ON], seeds)
    CONSOLE.print(f"time slicing: {score} {ridges}, {rank:.3f} on {_CHOSEN_ON}")
    kept = {
        name: table for name, table in tables.items() if GpuSharing.TIME_SLICING in table.modes()
    }
    return {
        "chosen": _chosen(score, seen, ridges, rank, _CHOSEN_ON),
        "tables": [
            {
                **measure(name, table, ridges, resamples, seeds),
                "held_out": name != _CHOSEN_ON,
                "unseen_pairs": unseen_pairs(table, ridges, divisions),
                "curve": curve(table, ridges, seeds),
                "gains": gains(table, ridges, seeds),
            }
            for name, table in kept.items()
        ],
    }


def _mps(table: CoRunTable, seeds: int, resamples: int, divisions: int) -> dict[str, Any]:
    chosen, rows = [], []
    for kind, (without, with_it) in _by_model(table).items():
        score, seen, ridges, rank = choose(without, seeds)
        CONSOLE.print(f"MPS, without {kind}: {score} {ridges}, {rank:.3f}")
        chosen.append(_chosen(score, seen, ridges, rank, f"igniter without {kind}"))
        rows.append(
            {
                **measure(f"igniter, pairs with {kind}", with_it, ridges, resamples, seeds),
                "unseen_pairs": unseen_pairs(with_it, ridges, divisions),
                "held_out": True,
                "chosen": score,
            }
        )
    ridges = Ridges()
    return {
        "chosen": chosen,
        "tables": rows,
        "whole": {
            **measure("igniter, all pairs", table, ridges, resamples, seeds),
            "unseen_pairs": unseen_pairs(table, ridges, divisions),
        },
        "curve": curve(table, ridges, seeds),
        "gains": gains(table, ridges, seeds),
    }


def _chosen(score: str, seen: bool, ridges: Ridges, rank: float, on: str) -> dict[str, Any]:
    return {
        "score": score,
        "seen": seen,
        "kind": ridges.kind,
        "row": ridges.row,
        "interaction": ridges.interaction,
        "rank_each": rank,
        "on": on,
    }


def _headline(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of the chosen score, on each table that was not used to choose it."""
    found = {}
    sliced, shared = document["time_slicing"], document["mps"]
    for table in sliced["tables"]:
        if table["held_out"]:
            found[table["table"]] = _row(table, sliced["chosen"]["score"], sliced["chosen"]["seen"])
    for table, chosen in zip(shared["tables"], shared["chosen"], strict=True):
        found[table["table"]] = _row(table, chosen["score"], chosen["seen"])
    ranks = {name: row["each"]["value"] for name, row in found.items()}
    held_out = [table for table in (*sliced["tables"], *shared["tables"]) if table["held_out"]]
    unseen = {table["table"]: table["unseen_pairs"]["each"]["value"] for table in held_out}
    return {
        "unseen_pairs_rank_each": unseen,
        "unseen_pairs_missed": sorted(name for name, rank in unseen.items() if rank < TARGET),
        "held_out_rank_each": ranks,
        "least": min(ranks.values()),
        "target": TARGET,
        "reached": sorted(name for name, rank in ranks.items() if rank >= TARGET),
        "missed": sorted(name for name, rank in ranks.items() if rank < TARGET),
    }


def _row(table: Mapping[str, Any], score: str, seen: bool) -> Any:
    return next(r for r in table["scores"] if (r["score"], r["seen"]) == (score, seen))


def report(document: Mapping[str, Any]) -> str:
    """Markdown from the measurements."""
    head, sliced, shared = document["headline"], document["time_slicing"], document["mps"]
    parts = [
        "Rank: Spearman's correlation, *of each* of what a score says of a job in a set with its "
        "slow-down, *of sets* of the score of a set with what all in it lose. Regret: of the set "
        "that a job would choose by the score above its best set, relative to a random one (1). "
        f"Means over {document['seeds']} divisions into halves; in brackets 95 % over jobs drawn "
        "again, for the first division. *Seen*: after the co-runs of the other half.",
        f"**Least rank of each on tables that were not used to choose: {head['least']:.2f}** "
        f"(target {TARGET}); reached on {len(head['reached'])} of "
        f"{len(head['held_out_rank_each'])}"
        + (f", missed on {', '.join(head['missed'])}." if head["missed"] else "."),
        "**On pairs of kinds that were never seen together:** missed on "
        f"{', '.join(head['unseen_pairs_missed']) or 'none'}.",
    ]
    if document["missing"]:
        parts.append(f"Not there, so left out: {'; '.join(document['missing'])}.")
    parts += ["## Time slicing", _choice(sliced["chosen"])]
    for table in sliced["tables"]:
        role = "not used to choose" if table["held_out"] else "**chosen on this one**"
        parts += [_title(table, role), _scores(table)]
    parts += ["## MPS", *(_choice(one) for one in shared["chosen"])]
    for table in (*shared["tables"], shared["whole"]):
        role = "not used to choose" if table.get("held_out") else "defaults of the code"
        parts += [_title(table, role), _scores(table)]
    parts += [
        "## `sensitivity` on pairs of kinds that were never seen together",
        "As above, after the co-runs of half of the *pairs of kinds* (programs, networks) in place "
        "of half of the sets: what is judged ran at most with other kinds before. Mean of "
        f"{document['divisions']} divisions, in brackets the least and the greatest of them.",
        _unseen([*sliced["tables"], *shared["tables"], shared["whole"]]),
    ]
    curves = {one["table"]: one["curve"] for one in sliced["tables"]} | {"igniter": shared["curve"]}
    parts += ["## `sensitivity` after ever more co-runs", _curves(curves)]
    admitted = {one["table"]: one["gains"] for one in sliced["tables"]}
    parts += [
        "## Running together only above a predicted gain",
        "Work of a set in a second, in seconds alone: all sets together, those together that are "
        "expected to do at least 1 + the gain (the others in turn, which does 1), and with known "
        "slow-downs. *Harmful*: sets that do less than 1 together.",
        _gains(admitted | {"igniter": shared["gains"]}),
    ]
    return "\n\n".join(parts)


def _choice(one: Mapping[str, Any]) -> str:
    state = "seen" if one["seen"] else "cold"
    return (
        f"Chosen on {one['on']}: `{one['score']}`, {state}, ridges {one['kind']:g} (kind), "
        f"{one['row']:g} (row), {one['interaction']:g} (interaction); rank of each "
        f"{one['rank_each']:.3f} there."
    )


def _title(table: Mapping[str, Any], role: str) -> str:
    features = ", ".join(table["features"]) or "none"
    return (
        f"### {table['table']}\n\n{table['runs']} sets of {table['jobs']} jobs; features: "
        f"{features}; {role}."
    )


def _scores(table: Mapping[str, Any]) -> str:
    rows = [
        [
            f"`{row['score']}`",
            "half" if row["seen"] else "none",
            *(_words(row[what]) for what in ("each", "joint", "regret")),
        ]
        for row in table["scores"]
    ]
    header = ("score", "co-runs seen", "rank of each", "rank of sets", "regret")
    return common.table(header, rows)


def _words(figure: Mapping[str, float] | None) -> str | None:
    if figure is None:
        return None
    return f"{figure['value']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"


def _unseen(tables: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["table"], one["unseen_pairs"]["pairs"]]
        + [_words(one["unseen_pairs"][what]) for what in ("each", "joint", "regret")]
        for one in tables
    ]
    header = ("table", "pairs of kinds", "rank of each", "rank of sets", "regret")
    return common.table(header, rows)


def _curves(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = [
        [name, f"{one['share']:.1%}", f"{one['co_runs_per_job']:.1f}"]
        + [f"{one[what]:.2f}" for what in ("each", "joint", "regret")]
        for name, points in curves.items()
        for one in points
    ]
    header = ("table", "sets seen", "co-runs a job", "rank of each", "rank of sets", "regret")
    return common.table(header, rows)


def _gains(found: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [name, f"{one['harmful']:.0%}", f"{one['always']:.3f}"]
        + [f"{one['by_gain'][f'{gain:g}']:.3f}" for gain in GAINS]
        + [f"{one['oracle']:.3f}"]
        for name, one in found.items()
    ]
    header = ("table", "harmful", "always", *(f"gain {g:g}" for g in GAINS), "known slow-downs")
    return common.table(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines.corun_scores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), metavar="DIR")
    parser.add_argument("--gavel", type=Path, metavar="DIR", help="instead of DIR/gavel")
    parser.add_argument("--lucid", type=Path, metavar="DIR", help="Lucid's two CSV files")
    given = parser.parse_args(arguments)
    seeds, resamples, divisions = (1, 50, 2) if given.quick else (3, 400, DIVISIONS)
    try:
        with tempfile.TemporaryDirectory() as directory:
            tables, missing = _tables(given, Path(directory))
    except HrmError as error:
        common.note(error.message)
        return 2
    document: dict[str, Any] = {
        "benchmark": "pipelines-corun-scores",
        "provenance": common.provenance("benchmarks.pipelines.corun_scores", ["numpy"]),
        "seeds": seeds,
        "missing": missing,
        "divisions": divisions,
        "time_slicing": _time_slicing(tables, seeds, resamples, divisions),
        "mps": _mps(tables["igniter"], seeds, resamples, divisions),
    }
    document["headline"] = _headline(document)
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "Co-run scores by how a GPU is shared"
        for path in common.write_results("pipelines-corun-scores", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
