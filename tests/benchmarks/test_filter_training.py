"""Training of the neural filter: the loss, pre-training, online steps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.paper.filter_training import (
    Settings,
    _parameters,
    fresh,
    learn_cells,
    torch_loss,
    train,
)
from benchmarks.paper.neural_filter import NeuralFilter, loss
from tests.benchmarks.test_neural_filter import TINY, random_network
from tests.policies.corun.test_predictors import low_rank

SMALL = Settings(hidden=(16, 8), steps=600, rate=1e-2, round_steps=20, patience=5)


def test_the_loss_is_the_one_by_hand() -> None:
    zero = np.array([0])
    found = torch_loss(_parameters(TINY), zero, zero, np.array([0.6]), decay=0.01)
    assert found.item() == pytest.approx(0.0840708, abs=5e-8)


def test_the_loss_is_that_of_inference() -> None:
    network = random_network()
    table = np.where(np.random.default_rng(2).random((16, 10)) < 0.5, np.nan, network.table)
    rows, columns = np.nonzero(np.isfinite(table))
    found = torch_loss(_parameters(network), rows, columns, table[rows, columns], decay=1e-2)
    assert found.item() == pytest.approx(loss(network, network.cells(), table, 1e-2), abs=1e-12)


def test_a_fresh_network_has_the_papers_size() -> None:
    table = np.zeros((16, 10))
    assert fresh(table, Settings(), np.random.default_rng(0)).parameters == 12_752


def test_training_beats_the_means_on_rows_that_it_never_saw() -> None:
    whole = low_rank(90)
    table, early, rows = whole[:50], whole[50:70], whole[70:]
    trained = train(table, SMALL, np.random.default_rng(0), early)
    assert 0 < trained.steps <= SMALL.steps
    model = NeuralFilter(trained.network)
    known = rows.copy()
    known[:, 2:] = np.nan
    result = np.stack([model.predict(row) for row in known])
    assert (
        np.abs(result - rows)[:, 2:].mean() < 0.6 * np.abs(rows - table.mean(axis=0))[:, 2:].mean()
    )


def test_the_same_seed_trains_the_same_network() -> None:
    settings = Settings(hidden=(8,), steps=20)
    one, other = (train(low_rank(8), settings, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one.network.cells(), other.network.cells())
    assert np.isnan(one.error)


def test_online_steps_move_towards_what_is_measured() -> None:
    network = random_network()
    before = network.cells()[2, 3]
    wanted = 0.0 if before > 0.5 else 1.0
    after = learn_cells(network, [(2, 3, wanted)] * 50)
    assert abs(after.cells()[2, 3] - wanted) < 0.5 * abs(before - wanted)
    assert after.table[2, 3] == wanted
    assert network.table[2, 3] != wanted, "the old network stays as it is"
