"""Inference of the neural filter, against cells computed by hand, and its files."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.neural_filter import (
    HIDDEN,
    SIZE,
    Network,
    NeuralFilter,
    fit_rows,
    load_network,
    loss,
    save_network,
)
from hrm.errors import InvalidRequest

TINY = Network(
    rows=np.array([[1.0, -1.0]]),
    columns=np.array([[0.5, 2.0]]),
    weights=(np.array([[0.5, -1.0], [1.0, 0.0], [0.0, 1.0], [0.25, -0.5]]),),
    biases=(np.array([0.1, 0.2]),),
    out=np.array([2.0, 3.0]),
    table=np.array([[0.6]]),
)


def random_network(rows: int = 16, columns: int = 10, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    widths = (2 * SIZE, *HIDDEN)
    return Network(
        rows=rng.normal(0, 0.5, (rows, SIZE)),
        columns=rng.normal(0, 0.5, (columns, SIZE)),
        weights=tuple(rng.normal(0, np.sqrt(2 / a), (a, b)) for a, b in pairwise(widths)),
        biases=tuple(np.zeros(width) for width in HIDDEN),
        out=rng.normal(0, 0.5, HIDDEN[-1]),
        table=rng.random((rows, columns)),
    )


def test_one_cell_by_hand() -> None:
    assert TINY.cells()[0, 0] == pytest.approx(0.549834, abs=5e-7)
    assert loss(TINY, TINY.cells(), TINY.table, 0.01) == pytest.approx(0.0840708, abs=5e-8)


def test_the_loss_counts_measured_cells_alone() -> None:
    unknown = np.nan
    table = np.array([[0.2, unknown, 0.9], [unknown, 0.5, unknown]])
    result = np.array([[0.3, 0.4, 0.7], [0.8, 0.5, 0.1]])
    assert loss(TINY, result, table, 0.0) == pytest.approx(0.05 / 6, abs=1e-12)


def test_sizes() -> None:
    network = random_network()
    assert network.parameters == 12_752
    assert random_network(columns=11).parameters == 12_760
    batch = network.forward(np.repeat(network.rows, 10, axis=0), np.tile(network.columns, (16, 1)))
    assert batch.shape == (160,)
    assert np.allclose(batch.reshape(16, 10), network.cells())
    assert np.allclose(network.row(network.rows[3]), network.cells()[3])


def test_a_new_row_starts_at_the_five_closest() -> None:
    network = random_network()
    known = np.full(10, np.nan)
    known[[2, 7]] = network.table[4, [2, 7]]
    far = np.sqrt(((network.table[:, [2, 7]] - known[[2, 7]]) ** 2).mean(axis=1))
    closest = np.argsort(far)[:5]
    assert 4 in closest
    assert np.allclose(
        fit_rows(network, known[None], steps=0)[0], network.rows[closest].mean(axis=0)
    )


def test_fitting_a_row_lowers_its_error_and_follows_the_gradient() -> None:
    network = random_network()
    known = np.full((2, 10), np.nan)
    known[0, [1, 8]] = [0.9, 0.2]
    known[1, 3] = 0.5

    def half_error(vectors: np.ndarray, row: int) -> float:
        has = np.isfinite(known[row])
        return float(((network.row(vectors[row])[has] - known[row, has]) ** 2).mean() / 2)

    start = fit_rows(network, known, steps=0)
    step = fit_rows(network, known, steps=1, rate=1e-3)
    for row in range(2):
        for axis in range(SIZE):
            moved = start.copy()
            moved[row, axis] += 1e-6
            slope = (half_error(moved, row) - half_error(start, row)) / 1e-6
            assert (start - step)[row, axis] / 1e-3 == pytest.approx(slope, abs=1e-5)
        fitted = fit_rows(network, known, steps=200)
        assert half_error(fitted, row) < 0.2 * half_error(start, row)


def test_it_predicts_what_is_unknown_and_keeps_the_rest() -> None:
    network = random_network()
    known = np.full(10, np.nan)
    known[[0, 5]] = [0.25, 0.75]
    model = NeuralFilter(network)
    model.fit(network.table)
    found = model.predict(known)
    assert (found[0], found[5]) == (0.25, 0.75)
    assert ((found > 0) & (found < 1)).all()
    with pytest.raises(InvalidRequest, match="10 metrics, the table has 12"):
        model.fit(np.zeros((3, 12)))


def test_a_file_brings_the_same_network(tmp_path: Path) -> None:
    network = random_network()
    save_network(tmp_path / "ncf.npz", network, {"date": "today"})
    again = load_network(tmp_path / "ncf.npz")
    assert np.array_equal(again.cells(), network.cells())
    assert np.array_equal(again.table, network.table)
    assert NeuralFilter(tmp_path / "ncf.npz").network.cells().shape == network.cells().shape


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"out": np.zeros(7)}, "32 outputs"),
        ({"rows": np.full((16, SIZE), np.nan)}, "not finite"),
        ({"table": np.zeros((2, 2))}, "other rows"),
        ({"weights": random_network().weights[1:]}, "layer"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, broken: dict[str, object], why: str
) -> None:
    network = replace(random_network(), **broken)  # type: ignore[arg-type]
    save_network(tmp_path / "ncf.npz", network, {})
    with pytest.raises(InvalidRequest, match=rf"(?s)ncf\.npz.*{why}"):
        load_network(tmp_path / "ncf.npz")


def test_a_corrupt_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ncf.npz"
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidRequest, match="train one anew"):
        load_network(path)
    with pytest.raises(InvalidRequest, match="no network"):
        load_network(tmp_path / "nothing.npz")
