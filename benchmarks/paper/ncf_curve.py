"""Figure 4: how fast the neural filter learns a new application, with and without pre-training.

Half of the cells of a held-out application's rows are measured one after another, in random order
and repeatedly; each is a step of plain gradient descent, as online. The network was trained on the
other applications before, or is only initialised. Two errors: of the cells that it learns from (the
loss, mean square), and of the other half (mean absolute). The closed form (conditional Gaussian),
fitted to the other applications and given the same half, needs no steps: it is a line.

Source: LDWP + IAWP, section 5, figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.paper.filter_training import Settings, fresh, learn_cells, train
from benchmarks.paper.ncf_data import Measured
from benchmarks.paper.ncf_methods import Fold, folds
from benchmarks.paper.neural_filter import Network
from hrm.pipelines.policies.corun.predictors import Floats, Gaussian

__all__ = ["STEPS", "curve"]

STEPS = (0, 25, 50, 100, 200, 400, 800)
_RATE = 3e-3
_PRETRAIN_STEPS = 1_000


def curve(measured: Measured, seeds: int, steps: Sequence[int] = STEPS) -> dict[str, Any]:
    """Means over held-out applications and seeds, by number of steps; and the closed form's."""
    found: dict[str, list[Any]] = {"pretrained": [], "fresh": [], "gaussian": []}
    for fold in folds(measured):
        for seed in range(seeds):
            for name, value in _one(measured.table, fold, seed, steps).items():
                found[name].append(value)
    return {
        "steps": list(steps),
        **{
            name: {"loss": means[0], "error": means[1]}
            for name in ("pretrained", "fresh")
            for means in [np.mean(found[name], axis=0).T.tolist()]
        },
        "gaussian_error": float(np.mean(found["gaussian"])),
    }


def _one(table: Floats, fold: Fold, seed: int, steps: Sequence[int]) -> Mapping[str, Any]:
    """For one held-out application: (steps, 2) of loss and error, and the closed form's error."""
    rng = np.random.default_rng([seed, 0xF4])
    learned = rng.random(table.shape) < 0.5
    learned[:, -1] = True  # the size is always known
    ours = np.zeros(table.shape, dtype=np.bool_)
    ours[fold.test] = True
    known = np.where(ours & ~learned, np.nan, table)
    settings = replace(Settings(steps=_PRETRAIN_STEPS), rate=_RATE)
    before = np.where(ours, np.nan, table)
    # The held-out rows are in the network from the start, with untrained vectors.
    trained = train(before, settings, np.random.default_rng(seed)).network
    drawn = fresh(before, settings, np.random.default_rng(seed))
    cells = np.argwhere(ours & learned)
    order = np.concatenate([rng.permutation(cells) for _ in range(steps[-1] // len(cells) + 1)])
    scores = [(int(row), int(column), float(table[row, column])) for row, column in order]
    model = Gaussian()
    model.fit(table[~fold.test])
    filled = np.stack([model.predict(row) for row in known[fold.test]])
    hidden = ~learned[fold.test]
    return {
        "pretrained": _followed(trained, table, ours, learned, scores, steps),
        "fresh": _followed(drawn, table, ours, learned, scores, steps),
        "gaussian": float(np.abs(filled - table[fold.test])[hidden].mean()),
    }


def _followed(
    network: Network,
    table: Floats,
    ours: Any,
    learned: Any,
    scores: Sequence[tuple[int, int, float]],
    steps: Sequence[int],
) -> list[tuple[float, float]]:
    found, done = [], 0
    for count in steps:
        network = learn_cells(network, scores[done:count]) if count > done else network
        done = count
        wrong = network.cells() - table
        loss = float((wrong[ours & learned] ** 2).mean())
        found.append((loss, float(np.abs(wrong[ours & ~learned]).mean())))
    return found
