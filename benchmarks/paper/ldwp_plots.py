"""Plots of the pipeline experiments, legible at page width; from the document alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.paper.plots import HEIGHT_IN, STYLE, WIDTH_IN

__all__ = ["draw_all", "draw_learning"]

_COLOURS = ("#7f8c8d", "#b7950b", "#1e8449", "#6c3483", "#2471a3", "#c0392b", "#117864", "#a04000")
_MARKERS = ("x", "v", "^", "D", "o", "s", "P", "*")


def draw_all(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every plot, in ``folder``; returns the files."""
    made = []
    for name, draw in _PICTURES.items():
        path = folder / f"paper-ldwp-{name}.svg"
        with mpl.rc_context(STYLE):
            whole = plt.figure(figsize=(WIDTH_IN, HEIGHT_IN))
            draw(whole, document)
            whole.tight_layout()
            whole.savefig(path, metadata={"Date": None})
            plt.close(whole)
        made.append(path)
    return made


def draw_learning(document: Mapping[str, Any], folder: Path) -> Path:
    """Figure 3, and figure 13 with learning, side by side."""
    path = folder / "paper-ldwp-learning.svg"
    with mpl.rc_context(STYLE):
        whole = plt.figure(figsize=(WIDTH_IN, HEIGHT_IN))
        left, right = whole.subplots(1, 2)
        for place, one in enumerate(document["curves"]):
            words = "pre-trained" if one["pretrained"] else "from nothing"
            left.plot(
                one["decisions"], one["reward"], color=_COLOURS[4 + place // 2],
                linestyle="-" if one["pretrained"] else ":", label=f"{one['policy']}, {words}",
            )  # fmt: skip
        left.set_xlabel("decisions")
        left.set_ylabel("reward of a greedy trial")
        left.legend(fontsize=6.5)
        _fluctuations(right, document["fluctuations"])
        whole.tight_layout()
        whole.savefig(path, metadata={"Date": None})
        plt.close(whole)
    return path


def _rows(document: Mapping[str, Any], setting: str) -> list[Mapping[str, Any]]:
    return [row for row in document["points"] if row["setting"] == setting]


def _lines(panel: Any, rows: Sequence[Mapping[str, Any]], figure: str) -> None:
    for place, pair in enumerate(dict.fromkeys(row["pair"] for row in rows)):
        own = sorted((row for row in rows if row["pair"] == pair), key=lambda row: row["x"])
        values = [row["figures"][figure] for row in own]
        panel.errorbar(
            [row["x"] for row in own],
            [one["mean"] for one in values],
            yerr=[one["high"] - one["mean"] for one in values],
            color=_COLOURS[place % len(_COLOURS)],
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=4,
            capsize=2,
            linewidth=1.1,
            label=pair,
        )
    panel.set_ylim(bottom=0)


def _throughput(setting: str, x_name: str) -> Callable[[Any, Mapping[str, Any]], None]:
    def draw(whole: Any, document: Mapping[str, Any]) -> None:
        rows = _rows(document, setting)
        left, right = whole.subplots(1, 2)
        for panel, figure, title in (
            (left, "throughput", "all nodes"),
            (right, "worker_1_throughput", "worker 1"),
        ):
            _lines(panel, rows, figure)
            panel.set_title(title, fontsize=9)
            panel.set_xlabel(x_name)
        first = rows[0]["pair"]
        bound = sorted((row for row in rows if row["pair"] == first), key=lambda row: row["x"])
        xs = [row["x"] for row in bound]
        cap = [row["figures"]["arrival_cap"]["mean"] for row in bound]
        fluid = [row["figures"]["fluid_bound"]["mean"] for row in bound]
        left.plot(xs, cap, color="black", linestyle=":", label="arrived")
        left.plot(xs, fluid, color="black", linestyle="--", label="fluid bound")
        left.set_ylabel("tasks a minute")
        left.legend(fontsize=6.5)

    return draw


def _gpu(whole: Any, document: Mapping[str, Any]) -> None:
    rows = _rows(document, "node policies")
    left, right = whole.subplots(1, 2, sharey=True)
    names = [row["pair"].partition("+")[2] for row in rows]
    for panel, figure, title in (
        (left, "gpu_utilisation", "GPU use"),
        (right, "worker_1_gpu", "GPU use, worker 1"),
    ):
        values = [row["figures"][figure] for row in rows]
        panel.barh(
            names,
            [100 * one["mean"] for one in values],
            xerr=[100 * (one["high"] - one["mean"]) for one in values],
            color=_COLOURS[4],
            capsize=2,
        )
        panel.set_xlabel(f"{title}, %")
    left.invert_yaxis()


def _sizes(whole: Any, document: Mapping[str, Any]) -> None:
    left, right = whole.subplots(1, 2)
    for panel, what in ((left, "idle"), (right, "loaded")):
        rows = _rows(document, f"sizes, {what}")
        base = {
            row["x"]: row["figures"]["response_p50_s"]["mean"]
            for row in rows
            if row["pair"] == document["random"]
        }
        pairs = [p for p in dict.fromkeys(row["pair"] for row in rows) if p != document["random"]]
        for place, pair in enumerate(pairs):
            own = sorted((row for row in rows if row["pair"] == pair), key=lambda row: row["x"])
            gains = [base[r["x"]] / r["figures"]["response_p50_s"]["mean"] for r in own]
            panel.plot(
                [row["x"] for row in own], gains, color=_COLOURS[(place + 1) % len(_COLOURS)],
                marker=_MARKERS[(place + 1) % len(_MARKERS)], markersize=4, label=pair,
            )  # fmt: skip
        panel.axhline(1.0, color="black", linestyle=":")
        panel.set_title(f"{what} cluster", fontsize=9)
        panel.set_xlabel("size, MB")
        panel.set_ylim(bottom=0)
    left.set_ylabel("time of random over time")
    left.legend(fontsize=6.5)


def _balance(whole: Any, document: Mapping[str, Any]) -> None:
    panel = whole.subplots()
    pairs = dict.fromkeys(one["pair"] for one in document["load_balance"])
    for place, pair in enumerate(pairs):
        own = [one for one in document["load_balance"] if one["pair"] == pair]
        panel.plot(
            [one["tasks"] for one in own], [one["degree"]["mean"] for one in own],
            color=_COLOURS[place % len(_COLOURS)], marker=_MARKERS[place % len(_MARKERS)],
            markersize=4, label=pair,
        )  # fmt: skip
    panel.set_xlabel("tasks")
    panel.set_ylabel("degree of load balance")
    panel.legend(fontsize=7)


def _changes(whole: Any, document: Mapping[str, Any]) -> None:
    _fluctuations(whole.subplots(), document["fluctuations"])


def _fluctuations(panel: Any, several: Sequence[Mapping[str, Any]]) -> None:
    for place, one in enumerate(several):
        panel.plot(
            range(1, len(one["series"]) + 1), one["series"],
            color=_COLOURS[(place + 4) % len(_COLOURS)], label=one["pair"],
        )  # fmt: skip
    for at, words in ((10, "+3 nodes"), (20, "-2 nodes")):
        panel.axvline(at, color="black", linestyle=":")
        panel.text(at + 0.2, 2, words, fontsize=8)
    panel.set_xlabel("minutes")
    panel.set_ylabel("tasks that ended in the minute")
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=7)


_PICTURES: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "rates": _throughput("rates", "tasks that arrive in a minute"),
    "nodes": _throughput("nodes", "nodes"),
    "gpu": _gpu,
    "balance": _balance,
    "sizes": _sizes,
    "changes": _changes,
}
