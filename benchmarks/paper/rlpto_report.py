"""The report of RLPTO's experiments, from the document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import table
from benchmarks.paper.rlpto_methods import BETAS, REPORTED, SIMULATED
from benchmarks.paper.rlpto_source import SOURCE, TIMES_S
from hrm.learn.training_workloads import COMBINATIONS

__all__ = ["body_of"]

HEADROOM_LEAST = 0.05


def body_of(document: Mapping[str, Any]) -> str:
    """Markdown, without the head that has command and machine."""
    parts = []
    if "measured" in document:
        parts.append(_measured(document["measured"]))
    if "source" in document:
        parts += [_tables(document["source"]), _scales(document["source"])]
        parts.append(_mixes(document["source"]))
    if "ablations" in document:
        parts.append(_ablations(document["ablations"]))
    parts.append(_training(document["trained"]))
    return "\n\n".join(parts)


def _share(found: Mapping[str, float]) -> str:
    return f"{100 * found['mean']:.1f} % [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _measured(found: Mapping[str, Any]) -> str:
    best, gains = found["best"], found["gains"]
    beta = best["beta"]
    headroom = found["oracle"]["mean"]
    enough = headroom >= HEADROOM_LEAST
    first = (
        f"Headroom first: the oracle's jobs are delivered {_share(found['oracle'])} sooner than "
        f"under the tuned beta rule ({beta}), "
        f"{'5 % or more, so there is something to learn' if enough else 'less than 5 %'}. "
        f"{_verdict(found)}"
    )
    rows: list[Sequence[object]] = [
        ("oracle", _share(found["oracle"])),
        *((f"{name} (a rule)", _share(value)) for name, value in found["rule_gains"].items()),
        ("rlpto, all trainings", _share(gains[beta])),
        ("of that, by learning", _share(found["gain_by_learning"])),
        ("rlpto, mean completion", _share(found["completion_gain"])),
    ]
    over = [(name, _share(value)) for name, value in gains.items()]
    lines = [
        "## Measured curves",
        first,
        f"Time to delivery, gain over {beta}, paired, 95 % bootstrap intervals over "
        f"{found['seeds']} seeds (and trainings), a third of them at each load:",
        table(("method", f"gain over {beta}"), rows),
        "What `rlpto` gains over each rule:",
        table(("over", "gain"), over),
        "What the rule of speed-ups gains over the others:",
        table(
            ("figure", *found["rule_over"]["time to delivery"]),
            [(figure, *(_share(value) for value in held.values()))
             for figure, held in found["rule_over"].items()],
        ),
        "`rlpto` by load:",
        table(
            ("load", *(f"over {name}" for name in gains)),
            [(load, *(_share(value) for value in held.values()))
             for load, held in found["by_load"].items()],
        ),
        _outside(found["found"]),
        "Other clusters, load 0.8, nothing trained for them, gain over the tuned beta rule:",
        _nodes(found["nodes"]),
        "Other worlds: what the rule of speed-ups gains in time to delivery over rules as above, "
        "where a resize stops a job for so many times as long, and jobs may have so many workers:",
        _worlds(found["worlds"]),
        "Scores of rules on validation seeds (mean time to delivery, s): "
        + ", ".join(f"{name} {value:.0f}" for name, value in found["tuned"].items())
        + ".",
    ]  # fmt: skip
    return "\n\n".join(lines)


def _verdict(found: Mapping[str, Any]) -> str:
    """What follows, by the intervals alone."""
    best, gains = found["best"], found["gains"]
    names = [best[family] for family in ("beta", "on-demand", "constant", "speed-up")]
    won = [name for name in names if gains[name]["low"] > 0.0]
    lost = [name for name in names if name not in won]
    if not lost:
        return "`rlpto` is above all four rules, each interval above zero."
    above = f"above {', '.join(won)}" if won else "above none of the rules"
    return f"`rlpto` is {above}; not above {', '.join(lost)}. So a rule is what ships."


def _outside(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Outside metrics, means over loads, seeds and trainings."""
    names = list(next(iter(found.values())))
    keys = ("delivery_s", "completion_mean_s", "completion_p95_s", "almost_s", "accuracy",
            "points_per_node_hour", "resizes", "interruptions", "late")  # fmt: skip
    rows = []
    for name in names:
        each = [rows for held in found.values() for rows in [held[name]]]
        flat = [row for one in each for row in (one if isinstance(one, list) else [one])]
        rows.append((name, *(f"{sum(r[k] for r in flat) / len(flat):.4g}" for k in keys)))
    heads = ("method", "time to delivery, s", "completion, s", "p95, s", "to 95 %, s", "accuracy",
             "points per node-hour", "resizes", "interruptions", "late")  # fmt: skip
    return table(heads, rows)


def _nodes(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    names = list(next(iter(found.values())))
    return table(
        ("workers", *names),
        [(workers, *(_share(held[name]) for name in names)) for workers, held in found.items()],
    )


def _worlds(found: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("standstill", "workers of a job", "load", *(f"over {name}" for name in found[0]["gains"])),
        [
            (f"{world['standstill']:g}", world["workers_max"], world["load"],
             *(_share(value) for value in world["gains"].values()))
            for world in found
        ],
    )  # fmt: skip


def _tables(found: Mapping[str, Any]) -> str:
    lines = ["## Tables II and III", f"{found['seeds']} seeds, means with 95 % intervals (t)."]
    for name, held in found["tables"].items():
        rows = []
        for method, row in held.items():
            printed = REPORTED[name].get(method, (None, None))
            fit = SIMULATED.get(method) if name == "II" else None
            rows.append((
                method, _pm(row["accuracy"], 2), printed[0], None if fit is None else fit[0],
                _pm(row["total_s"], 0), printed[1], None if fit is None else fit[2],
                f"{row['resizes']:.1f}",
            ))  # fmt: skip
        heads = ("method", "accuracy, %", "printed", "the fit's", "total, s", "printed",
                 "the fit's", "resizes of a job")  # fmt: skip
        lines += [f"Table {name}:", table(heads, rows)]
    claims = [
        (claim, *(_yes(found["checks_printed"][t][claim]) for t in ("II", "III")),
         *(_yes(found["checks"][t][claim]) for t in ("II", "III")))
        for claim in found["checks"]["II"]
    ]  # fmt: skip
    columns = ("claim", "printed II", "printed III", "simulated II", "simulated III")
    lines += ["What the source says of them, tested on both; RLPTO stands for the beta rule alone:",
              table(columns, claims)]  # fmt: skip
    return "\n\n".join(lines)


def _scales(found: Mapping[str, Any]) -> str:
    held = found["tables"]["II"]
    names = [*SOURCE, "beta-0.0001", "beta-0.0003", "beta-0.001"]
    rows = []
    for name in names:
        cells = (
            f"{scale['accuracy']:.2f} %, {scale['run_s']:.0f} s, {scale['workers']:.1f}"
            for scale in held[name]["scales"].values()
        )
        rows.append((name, *cells))
    sweep = []
    for scale in held["beta-0.0001"]["scales"]:
        own = [held[f"beta-{beta:g}"]["scales"][scale] for beta in BETAS]
        low, high = (f(x["accuracy"] for x in own) for f in (min, max))
        quick, slow = (f(x["run_s"] for x in own) for f in (min, max))
        sweep.append((scale, f"{high - low:.2f}", f"{100 * (1 - quick / slow):.0f}"))
    workers = [
        (int(row["workers"]), f"{row['time_s']:.0f}", f"{row['accuracy']:.2f}")
        for row in found["workers"]
    ]
    return "\n\n".join([
        "## Figures 7 to 9",
        "Figure 7, table II's runs by scale: accuracy, run time and mean workers of a job.",
        table(("method", "small", "medium", "big"), rows),
        "Figure 8 and table IV: what beta changes, of one kind of model (the source has two).",
        table(("scale", "range of accuracy, points", "range of run time, % of the longest"), sweep),
        "Figure 9, one medium job of 110 epochs:",
        table(("workers", "time, s", "accuracy, %"), workers),
    ])  # fmt: skip


def _mixes(found: Mapping[str, Any]) -> str:
    lines = ["## Figures 10 and 11, table V", _first(found)]
    for queue, words in (("own", "each method's own queue"), ("one", "one queue, by priority")):
        methods = list(dict.fromkeys(row["method"] for row in found["mixes"]))
        held = {
            (row["method"], row["combination"]): row
            for row in found["mixes"]
            if row["queue"] == queue
        }
        rows = [
            (method, *(_pm(held[method, n]["mean_points"], 1) for n in COMBINATIONS),
             f"{sum(held[method, n]['accuracy'] for n in COMBINATIONS) / len(COMBINATIONS):.2f}")
            for method in methods
        ]  # fmt: skip
        heads = ("method", *(f"mix {n}" for n in COMBINATIONS), "accuracy, %")
        lines += [f"Mean reward over two hours, {words}:", table(heads, rows)]
        points = [
            (n, method, *(f"{x:.0f}" for x in held[method, n]["points"]))
            for n in COMBINATIONS
            for method in (*SOURCE, "beta-0.0003", "on-demand", "speed-up", "rlpto-0")
            if (method, n) in held
        ]
        times = ("mix", "method", *(f"{int(at):,} s" for at in TIMES_S))
        lines += [f"Points so far, {words}:", table(times, points)]
    return "\n\n".join(lines)


def _first(found: Mapping[str, Any]) -> str:
    def named(mixes: Sequence[int]) -> str:
        return f"mixes {', '.join(str(n) for n in mixes)}" if mixes else "no mix"

    return (
        f"`rlpto`, the mean of its trainings, has the highest mean reward of the source's methods "
        f"in {named(found['first']['one'])} with one queue for all, and in "
        f"{named(found['first']['own'])} with each method's own; leaving out TRADL, whose points "
        f"count at 97 % of the final accuracy, in {named(found['first_but_tradl'])} (one queue)."
    )


def _ablations(found: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(name, _share(value)) for name, value in found.items()]
    return "\n\n".join([
        "## Ablations",
        "One training of each, shorter than the main ones; gain in time to delivery over the beta "
        "rule at 0.0003 on measured curves, all loads. The interval is over seeds alone.",
        table(("variant", "gain"), rows),
    ])  # fmt: skip


def _training(trained: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in trained:
        best = min(one["trials"], key=lambda trial: trial["delivery"])
        rows.append((
            f"`{one['command']}`", f"{one['trials'][0]['delivery']:.3f}",
            f"{best['delivery']:.3f}", f"{best['decisions']:.0f}",
            f"{one['trials'][-1]['delivery']:.3f}", f"{one['trained_s']:.0f}",
        ))  # fmt: skip
    heads = ("command", "untrained", "best", "after decisions", "last", "CPU s")
    return "\n\n".join([
        "## Training",
        "On drawn curves; time to delivery over that of the beta rule on validation episodes. The "
        "best is what was used; untrained, the network is the rule of speed-ups.",
        table(heads, rows),
    ])  # fmt: skip


def _pm(found: Mapping[str, float], digits: int) -> str:
    return f"{found['mean']:.{digits}f} ± {found['high'] - found['mean']:.{digits}f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
