"""Held-out applications: how well each method fills in metrics and predicts interference.

One application is held out after another (of many, a quarter). Every method is tuned on the others
with the same number of trials, in each of which one is left out in turn; then it is fitted to all
of them and predicts the rows of the held-out application, from two random cells and the size of
each. The seed selects the cells and initialises the networks.

Interference is predicted from these metrics by ``Slowdowns``, fitted to pairs without the held-out
application, and compared with the measured slow-downs of its pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from benchmarks.paper.filter_training import Settings, train
from benchmarks.paper.ncf_data import SHARES, Measured, Pair
from benchmarks.paper.neural_filter import NeuralFilter
from benchmarks.paper.plain_predictors import MatrixFactors, Mean
from hrm.pipelines.policies.corun.predictors import (
    Floats,
    Gaussian,
    Neighbours,
    Predictor,
)
from hrm.pipelines.policies.corun.scores import cosine, joint_excess
from hrm.pipelines.policies.corun.slowdowns import Slowdowns

__all__ = [
    "METHODS",
    "REPORTED",
    "SCORES",
    "Fold",
    "choices",
    "folds",
    "half_seen_scores",
    "masked",
    "metric_errors",
    "pair_scores",
    "regret",
    "spearman",
    "tuned",
    "tuned_score",
    "victim_scores",
]

Mask: TypeAlias = npt.NDArray[np.bool_]
Options: TypeAlias = Mapping[str, Any]
_FOLDS_MAX = 4
_STEPS = 1200
_PATIENCE = 8

METHODS: dict[str, tuple[Options, ...]] = {
    "mean": ({},),
    "neighbours": tuple({"count": count} for count in (1, 5, 10, 20)),
    "matrix": tuple({"rank": rank, "ridge": ridge} for rank in (2, 3) for ridge in (0.03, 0.1)),
    "gaussian": tuple(
        {"ridge": ridge, "shrink": shrink} for ridge in (1e-4, 3e-3) for shrink in (0.01, 0.1)
    ),
    "ncf": (
        {"rate": 1e-3},
        {"rate": 3e-3},
        {"rate": 3e-3, "decay": 1e-2},
        {"rate": 3e-3, "decay": 1e-2, "fit_rate": 2.0},
    ),
}
"""The options tried for each. The mean has none."""

_PLAIN: dict[str, Callable[..., Predictor]] = {
    "mean": Mean,
    "neighbours": Neighbours,
    "matrix": MatrixFactors,
    "gaussian": Gaussian,
}


@dataclass(frozen=True, slots=True)
class Fold:
    """What is held out, and what the others are tuned on, one after another."""

    name: str
    test: Mask
    validation: tuple[Mask, ...]


def folds(measured: Measured) -> list[Fold]:
    """One for each application; of many applications, four for a quarter each."""
    of_row = np.array(measured.applications)
    names = sorted(set(measured.applications))
    groups = [names[i::_FOLDS_MAX] for i in range(_FOLDS_MAX)]
    if len(names) <= _FOLDS_MAX + 2:
        groups = [[name] for name in names]
    masks = [np.isin(of_row, group) for group in groups]
    return [
        Fold(", ".join(group), mask, tuple(m for m in masks if m is not mask))
        for group, mask in zip(groups, masks, strict=True)
    ]


def masked(rows: Floats, seed: int) -> Floats:
    """Two random cells of each row and its last, the size; NaN elsewhere."""
    rng = np.random.default_rng(seed)
    known = np.full_like(rows, np.nan)
    known[:, -1] = rows[:, -1]
    for index in range(len(rows)):
        chosen = rng.permutation(rows.shape[1] - 1)[:2]
        known[index, chosen] = rows[index, chosen]
    return known


def predicted(method: str, options: Options, table: Floats, known: Floats, seed: int) -> Floats:
    """The rows ``known``, filled in by ``method`` fitted to ``table``."""
    model = _fitted(method, options, table, seed)
    return np.stack([model.predict(row) for row in known])


def _fitted(method: str, options: Options, table: Floats, seed: int) -> Predictor:
    if method == "ncf":
        settings = replace(Settings(steps=_STEPS, patience=_PATIENCE), **options)
        network = train(table, settings, np.random.default_rng(seed)).network
        return NeuralFilter(network, settings.fit_steps, settings.fit_rate)
    model = _PLAIN[method](**options)
    model.fit(table)
    return model


def tuned(method: str, fold: Fold, table: Floats, trials: int) -> dict[str, Any]:
    """The options, of the first ``trials``, with the least error on the validation rows.

    Networks are trained until those do not improve; the final one gets the median of their steps.
    """
    best: tuple[float, dict[str, Any]] = (np.inf, {})
    for options in METHODS[method][:trials]:
        errors, steps = [], []
        for validation in fold.validation:
            rest = table[~fold.test & ~validation]
            if method == "ncf":
                settings = replace(Settings(steps=_STEPS, patience=_PATIENCE), **options)
                done = train(rest, settings, np.random.default_rng(0), table[validation])
                errors.append(done.error)
                steps.append(done.steps)
            else:
                known = masked(table[validation], 0)
                filled = predicted(method, options, rest, known, 0)
                errors.append(metric_error(filled, table[validation], known))
        found = {**options, "steps": int(np.median(steps))} if steps else dict(options)
        best = min(best, (float(np.mean(errors)), found), key=lambda one: one[0])
    return best[1]


def metric_error(filled: Floats, truth: Floats, known: Floats) -> float:
    """Mean absolute error over the cells that were not known."""
    return float(np.abs(filled - truth)[~np.isfinite(known)].mean())


def metric_errors(
    method: str, options: Options, fold: Fold, table: Floats, seed: int
) -> tuple[float, Floats]:
    """The error on the held-out rows, and the table with them as predicted."""
    known = masked(table[fold.test], seed)
    filled = predicted(method, options, table[~fold.test], known, seed)
    whole = table.copy()
    whole[fold.test] = filled
    return metric_error(filled, table[fold.test], known), whole


# -- interference ------------------------------------------------------------------------------

PRIOR: Options = {"overload": (0.6, 0.2, 0.4), "partner": (0.0, 0.05, 0.05)}
"""The same as the package's, for the three loads that are known of these pairs."""

SCORES: dict[str, tuple[Options, ...]] = {
    "cosine": tuple(
        {"columns": columns} for columns in ((1, 2), (0, 1, 2), (1, 2, 3), (0, 1, 2, 3))
    ),
    "overload": tuple({"limit": limit} for limit in (1.0, 0.8, 0.5, 0.2)),
    "belief": ({},),
    "learned": tuple({"strength": strength} for strength in (1.0, 10.0, 30.0, 100.0)),
}
"""``belief``: the learned score before any observation."""

REPORTED = (*SCORES, "seen")
"""``seen``: the learned score after half of the held-out application's own pairs."""


def features(table: Floats, row: int, share: int) -> Floats:
    """SM, L2, DRAM and size of a row that has ``share`` percent of the processors."""
    at = SHARES.index(share)
    return np.array([share / 100, table[row, at], table[row, len(SHARES) + at], table[row, -1]])


def _both(table: Floats, pair: Pair) -> tuple[Floats, Floats]:
    first = features(table, pair.first, pair.share)
    return first, features(table, pair.second, 100 - pair.share)


def learned_from(table: Floats, pairs: Sequence[Pair], options: Options) -> Slowdowns:
    """The regression after it has seen ``pairs``, both sides of each."""
    model = Slowdowns(**PRIOR, **options)
    for pair in pairs:
        first, second = (side[:3] for side in _both(table, pair))
        model.observe(first, second, pair.slowdown_first)
        model.observe(second, first, pair.slowdown_second)
    return model


def _score_of(
    name: str, options: Options, table: Floats, pairs: Sequence[Pair]
) -> Callable[[Floats, Floats], float]:
    if name == "cosine":
        columns = list(options["columns"])
        return lambda one, other: cosine(one[columns], other[columns])
    if name == "overload":
        limit = options["limit"]
        return lambda one, other: float(np.maximum(0, one[:3] + other[:3] - limit).sum())
    seen = [] if name == "belief" else pairs
    model = learned_from(table, seen, options)
    return lambda one, other: joint_excess(model, np.stack([one[:3], other[:3]]))


def pair_scores(
    name: str,
    options: Options,
    measured: Measured,
    train_pairs: Sequence[Pair],
    test_pairs: Sequence[Pair],
    seen: Floats,
) -> Floats:
    """The score of each of ``test_pairs`` from the metrics ``seen``, fitted to ``train_pairs``."""
    score = _score_of(name, options, measured.table, train_pairs)
    return np.array([score(*_both(seen, pair)) for pair in test_pairs])


def half_seen_scores(
    options: Options,
    measured: Measured,
    train_pairs: Sequence[Pair],
    test_pairs: Sequence[Pair],
    seen: Floats,
) -> Floats:
    """As ``pair_scores`` of ``learned``, each half fitted to the other half, too."""
    half = np.random.default_rng(0).permutation(len(test_pairs)) % 2 == 0
    scores = np.empty(len(test_pairs))
    for one in (half, ~half):
        tests = [pair for pair, is_in in zip(test_pairs, one, strict=True) if is_in]
        known = [pair for pair, is_in in zip(test_pairs, one, strict=True) if not is_in]
        scores[one] = pair_scores("learned", options, measured, [*train_pairs, *known], tests, seen)
    return scores


def victim_scores(
    options: Options,
    measured: Measured,
    train_pairs: Sequence[Pair],
    test_pairs: Sequence[Pair],
    seen: Floats,
) -> tuple[Floats, Floats]:
    """Predicted excess and measured slow-down of either side of each of ``test_pairs``."""
    model = learned_from(measured.table, train_pairs, options)
    sides = [_both(seen, pair) for pair in test_pairs]
    first = np.array([side[0][:3] for side in sides])
    second = np.array([side[1][:3] for side in sides])
    predicted_excess = np.concatenate([model.excess(first, second), model.excess(second, first)])
    truth = [pair.slowdown_first for pair in test_pairs]
    return predicted_excess, np.array(truth + [pair.slowdown_second for pair in test_pairs])


def tuned_score(name: str, fold: Fold, measured: Measured, trials: int) -> Options:
    """The options with the best rank correlation on pairs of the validation applications."""
    best: tuple[float, Options] = (-np.inf, SCORES[name][0])
    for options in SCORES[name][:trials]:
        found = []
        for validation in fold.validation:
            kept = [p for p in measured.pairs if not _touches(p, fold.test)]
            rest = [p for p in kept if not _touches(p, validation)]
            tests = [p for p in kept if _touches(p, validation)]
            scores = pair_scores(name, options, measured, rest, tests, measured.table)
            found.append(spearman(scores, totals(tests)))
        best = max(best, (float(np.mean(found)), options), key=lambda one: one[0])
    return best[1]


def split(fold: Fold, measured: Measured) -> tuple[list[Pair], list[Pair]]:
    """Pairs without, and pairs with, held-out rows."""
    with_it = [pair for pair in measured.pairs if _touches(pair, fold.test)]
    return [pair for pair in measured.pairs if not _touches(pair, fold.test)], with_it


def _touches(pair: Pair, rows: Mask) -> bool:
    return bool(rows[pair.first] or rows[pair.second])


def totals(pairs: Sequence[Pair]) -> Floats:
    """The joint loss of each pair."""
    return np.array([pair.slowdown_first + pair.slowdown_second - 2 for pair in pairs])


def spearman(one: Floats, other: Floats) -> float:
    """Rank correlation; 0 if one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one, other).statistic)


def choices(pairs: Sequence[Pair]) -> list[list[int]]:
    """Pairs to choose between: the same one at the same share, with several partners."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault((pair.first, pair.share), []).append(index)
        groups.setdefault((pair.second, 100 - pair.share), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def regret(scores: Floats, truth: Floats, groups: Sequence[Sequence[int]]) -> float:
    """The loss of the choice by ``scores`` over the best, relative to a random choice: 1 is as bad.

    Partners of equal score are as likely as each other.
    """
    lost = at_random = 0.0
    for group in groups:
        own = truth[list(group)]
        of_group = scores[list(group)]
        chosen = own[of_group <= of_group.min() + 1e-12]
        lost += float(chosen.mean() - own.min())
        at_random += float(own.mean() - own.min())
    return lost / at_random if at_random > 0 else 0.0
