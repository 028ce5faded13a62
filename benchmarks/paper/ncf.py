"""Which method fills in unmeasured metrics and predicts interference best: the neural filter or a
baseline.

    python -m benchmarks.paper.ncf --data DIR [--quick] [--json FILE]

``DIR``: the measurements of ``ncf_data``. Subtask profiles (``benchmarks/pipelines``) are a second
table if their file exists. Every method gets the same held-out applications, the same known cells
and the same number of trials; ``hrm.pipelines.policies.corun`` ships the best.

Source: LDWP + IAWP, section 3.3 and figure 4; required figures, section 6.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.paper import ncf_methods as methods
from benchmarks.paper.ncf_curve import STEPS, curve
from benchmarks.paper.ncf_data import Measured, read_igniter, read_profiles
from benchmarks.paper.ncf_plot import draw
from hrm.errors import HrmError

__all__ = ["interval", "main", "measure_metrics", "measure_scores", "report"]

PROFILES = common.REPOSITORY / "benchmarks" / "pipelines" / "profiles.json"
_RESAMPLES = 400
_NAMES = {
    "mean": "column mean",
    "neighbours": "nearest rows",
    "matrix": "matrix factorisation",
    "gaussian": "conditional Gaussian",
    "ncf": "NCF",
    "measured": "the metrics as measured",
}


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and half of the 95 % Student t interval."""
    mean = float(np.mean(values))
    count = len(values)
    if count < 2:
        return {"mean": mean, "half": float("nan")}
    spread = float(np.std(values, ddof=1)) / np.sqrt(count)
    return {"mean": mean, "half": float(student.ppf(0.975, count - 1)) * spread}


def measure_metrics(measured: Measured, seeds: int, trials: int) -> dict[str, Any]:
    """The errors of each method, and the rank correlations of interference predicted from them."""
    errors: dict[str, dict[str, list[float]]] = {}
    ranks: dict[str, list[list[float]]] = {}
    tuning: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    for fold in methods.folds(measured):
        rest, tests = methods.split(fold, measured)
        predicted = methods.tuned_score("learned", fold, measured, trials) if tests else {}
        tables: dict[str, list[Any]] = {"measured": [measured.table]}
        for method in methods.METHODS:
            begun = time.process_time()
            options = methods.tuned(method, fold, measured.table, trials)
            tuning.setdefault(method, {})[fold.name] = options
            for seed in range(seeds):
                error, table = methods.metric_errors(method, options, fold, measured.table, seed)
                errors.setdefault(method, {}).setdefault(fold.name, []).append(error)
                tables.setdefault(method, []).append(table)
            seconds[method] = seconds.get(method, 0.0) + time.process_time() - begun
            mean = np.mean(errors[method][fold.name])
            CONSOLE.print(
                f"{measured.source.partition(' (')[0]}: {fold.name}, {method}: {mean:.4f}"
            )
        for method, seen in tables.items() if tests else ():
            found = [
                methods.spearman(*methods.victim_scores(predicted, measured, rest, tests, table))
                for table in seen
            ]
            ranks.setdefault(method, []).append(found * (seeds if len(found) < seeds else 1))
    return {
        "errors": {method: _by_seed(list(by_fold.values())) for method, by_fold in errors.items()},
        "by_application": {
            method: {name: interval(values) for name, values in by_fold.items()}
            for method, by_fold in errors.items()
        },
        "versus_ncf": {
            method: _by_seed(
                [list(np.subtract(values, errors["ncf"][name])) for name, values in by_fold.items()]
            )
            for method, by_fold in errors.items()
            if method != "ncf"
        },
        "spearman": {method: _by_seed(by_fold) for method, by_fold in ranks.items()},
        "options": tuning,
        "cpu_s": {method: round(value, 1) for method, value in seconds.items()},
    }


def _by_seed(by_fold: Sequence[Sequence[float]]) -> dict[str, float]:
    """The interval over seeds of the mean over held-out applications."""
    return interval(list(np.mean(np.array(by_fold), axis=0)))


def measure_scores(measured: Measured, trials: int) -> dict[str, Any]:
    """For each co-run score its rank correlation with the losses of pairs, and its regret."""
    cases = []
    tuning: dict[str, dict[str, Any]] = {}
    for fold in methods.folds(measured):
        rest, tests = methods.split(fold, measured)
        scores = {}
        for name in methods.SCORES:
            options = methods.tuned_score(name, fold, measured, trials)
            tuning.setdefault(name, {})[fold.name] = dict(options)
            scores[name] = methods.pair_scores(name, options, measured, rest, tests, measured.table)
        scores["seen"] = methods.half_seen_scores(
            tuning["learned"][fold.name], measured, rest, tests, measured.table
        )
        cases.append((scores, methods.totals(tests), methods.choices(tests)))
    found: dict[str, Any] = {"options": tuning, "choices": sum(len(case[2]) for case in cases)}
    for name in methods.REPORTED:
        ranks = [methods.spearman(scores[name], truth) for scores, truth, _ in cases]
        regrets = [methods.regret(scores[name], truth, groups) for scores, truth, groups in cases]
        found[name] = {
            "spearman": float(np.mean(ranks)),
            "spearman_by_application": ranks,
            "regret": float(np.mean(regrets)),
            **_resampled(name, cases),
        }
    return found


def _resampled(name: str, cases: Sequence[Any]) -> dict[str, list[float]]:
    """95 % intervals over resampled pairs and choices."""
    rng = np.random.default_rng(0)
    ranks, regrets = [], []
    for _ in range(_RESAMPLES):
        rank, lost = [], []
        for scores, truth, groups in cases:
            drawn = rng.integers(len(truth), size=len(truth))
            rank.append(methods.spearman(scores[name][drawn], truth[drawn]))
            some = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
            lost.append(methods.regret(scores[name], truth, some))
        ranks.append(np.mean(rank))
        regrets.append(np.mean(lost))
    return {
        "spearman_95": [float(q) for q in np.quantile(ranks, [0.025, 0.975])],
        "regret_95": [float(q) for q in np.quantile(regrets, [0.025, 0.975])],
    }


def report(document: Mapping[str, Any]) -> str:
    """Markdown from the measurements."""
    where = document["provenance"]
    parts = [
        "# Unmeasured metrics and interference: the neural filter and its baselines",
        f"`{where['command']}`; {where['date']}, commit {where['commit']}; "
        f"{where['machine']['cpu']}, {where['machine']['cores']} cores; {document['seeds']} seeds, "
        f"{document['trials']} trials for each method. Means ± half of the 95 % interval over "
        f"seeds (known cells, networks' starts); applications are the same in all.",
        "![what was measured](paper-ncf.svg)",
    ]
    for table in document["tables"]:
        parts += [
            f"## {table['source']}",
            f"{table['rows']} rows of {table['applications']} applications, {table['columns']} "
            f"columns, {table['pairs']} pairs; {len(table['problems'])} entries were ill-formed"
            + (f": {'; '.join(table['problems'][:5])}." if table["problems"] else "."),
            "A row of a held-out application is known in two random cells and its size. Error: "
            "mean absolute, on the scale 0..1, of the other cells. Rank: Spearman's, of the slow-"
            "down told from the predicted metrics with the one measured.",
            _metrics_table(table["metrics"]),
            _applications_table(table["metrics"]["by_application"]),
        ]
        parts += [
            "### Learning a new application (figure 4)",
            _CURVE_IS,
            _curve_table(table["curve"]),
        ]
        if table["scores"]:
            parts += ["### Co-run scores", _SCORES_ARE, _scores_table(table["scores"])]
    parts.append(f"Best: `{document['best']['predictor']}`, `{document['best']['score']}`.")
    return "\n\n".join(parts) + "\n"


_SCORES_ARE = (
    "With the metrics as measured. Rank: Spearman's, of the score with what both of a pair lose. "
    "Regret: of the partner with the best score over the best partner, relative to a random one "
    "(1). In brackets 95 % of resampled pairs. `belief` is the learned score before any co-run, "
    "`learned` after those of other applications, `seen` after half of this one's, too: that is "
    "not held out, but what a manager sees that has run for a while. A score that is the same for "
    "all pairs has rank 0."
)


_CURVE_IS = (
    "Half of a held-out application's cells are told one after the other, each a step of plain "
    "gradient descent, to a network that was trained on the other applications and to one that was "
    "only drawn. Loss: mean square, of the cells it learns from; error: mean absolute, of the "
    "other half. The closed form knows the same half."
)


def _curve_table(found: Mapping[str, Any]) -> str:
    rows = [
        [f"{step:,}"]
        + [f"{found[name][what][place]:.4f}" for what in ("loss", "error")
           for name in ("pretrained", "fresh")]
        + [f"{found['gaussian_error']:.4f}"]
        for place, step in enumerate(found["steps"])
    ]  # fmt: skip
    header = ["cells told", "loss, pre-trained", "loss, from nothing", "error, pre-trained",
              "error, from nothing", "error of the closed form"]  # fmt: skip
    return common.table(header, rows)


def _cell(value: Mapping[str, float] | None) -> str:
    return "-" if value is None else f"{value['mean']:.4f} ± {value['half']:.4f}"


def _metrics_table(found: Mapping[str, Any]) -> str:
    lines = [
        [
            _NAMES[method],
            _cell(found["errors"].get(method)),
            _cell(found["versus_ncf"].get(method)),
            _cell(found["spearman"].get(method)),
            f"{found['cpu_s'].get(method, 0)}",
        ]
        for method in [*found["errors"], *(["measured"] if found["spearman"] else [])]
    ]
    names = ["", "error", "error less NCF's", "rank of interference", "processor, s"]
    return common.table(names, lines)


def _applications_table(by_application: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    applications = list(next(iter(by_application.values())))
    lines = [
        [_NAMES[method], *(_cell(found[name]) for name in applications)]
        for method, found in by_application.items()
    ]
    return common.table(["error, held out:", *applications], lines)


def _scores_table(found: Mapping[str, Any]) -> str:
    lines = []
    for name in methods.REPORTED:
        one = found[name]
        rank, lost = one["spearman_95"], one["regret_95"]
        lines.append(
            [
                f"`{name}`",
                f"{one['spearman']:.3f} [{rank[0]:.3f}, {rank[1]:.3f}]",
                f"{one['regret']:.2f} [{lost[0]:.2f}, {lost[1]:.2f}]",
            ]
        )
    return common.table(["score", "rank", f"regret, {found['choices']} choices"], lines)


def _tables(arguments: argparse.Namespace) -> list[Measured]:
    tables = []
    if arguments.data is not None:
        tables.append(read_igniter(arguments.data))
    if arguments.profiles is not None:
        tables.append(read_profiles(arguments.profiles))
    return tables


def _measured(table: Measured, seeds: int, trials: int, quick: bool) -> dict[str, Any]:
    for problem in table.problems[:10]:
        CONSOLE.print(f"left out: {problem}")
    return {
        "source": table.source,
        "rows": len(table.rows),
        "applications": len(set(table.applications)),
        "columns": len(table.columns),
        "pairs": len(table.pairs),
        "problems": list(table.problems),
        "metrics": measure_metrics(table, seeds, trials),
        "scores": measure_scores(table, trials) if table.pairs else None,
        "curve": curve(table, seeds, STEPS[:3] if quick else STEPS),
    }


def _best(tables: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """The least error and the highest rank, summed over tables."""
    names = list(methods.METHODS)
    error = {n: sum(t["metrics"]["errors"][n]["mean"] for t in tables) for n in names}
    scored = [t["scores"] for t in tables if t["scores"]]
    rank = {n: sum(s[n]["spearman"] for s in scored) for n in ("cosine", "overload", "learned")}
    return {
        "predictor": min(error, key=lambda name: error[name]),
        "score": max(rank, key=lambda name: rank[name]) if scored else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.ncf")
    common.add_common_arguments(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the measurements of iGniter")
    parser.add_argument(
        "--profiles",
        type=Path,
        metavar="FILE",
        default=PROFILES if PROFILES.exists() else None,
        help="subtask profiles (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    options = parser.parse_args(arguments)
    seeds, trials = (2, 2) if options.quick else (options.seeds, 4)
    try:
        tables = _tables(options)
    except HrmError as error:
        CONSOLE.print(f"[red]{error}[/]")
        return 2
    if not tables:
        CONSOLE.print("nothing to measure: name a folder with --data or profiles with --profiles")
        return 2
    measured = [_measured(table, seeds, trials, options.quick) for table in tables]
    provenance = common.provenance("benchmarks.paper.ncf", ("numpy", "scipy", "torch"))
    if options.data is not None:
        # The location of the data is specific to this machine.
        provenance["command"] = provenance["command"].replace(str(options.data), "DIR")
    document = {
        "provenance": provenance,
        "quick": options.quick,
        "seeds": seeds,
        "trials": trials,
        "tables": measured,
        "best": _best(measured),
    }
    text = report(document)
    if not options.quick:
        common.RESULTS_DIR.joinpath("paper-ncf.md").write_text(text)
        common.write_json(common.RESULTS_DIR / "paper-ncf.json", document)
        draw(common.RESULTS_DIR / "paper-ncf.svg", document, _NAMES)
    if options.json is not None:
        common.write_json(options.json, document)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
