"""Neural collaborative filtering, as far as scheduling needs it: inference and the fit of one row.

Every row and every column of the table has a short vector (``SIZE`` numbers). Both pass, one after
the other, through a small network, 128, 64 and 32 wide, whose last step is ``sigmoid(h . z)``: the
predicted cell, in 0..1. A row that the network was not trained with starts at the mean of the
trained rows that are closest in its measured cells; then only this vector is fitted, because two
cells can determine a vector of 8 numbers and not more.

Training is ``benchmarks.paper.filter_training``. The loss that it lowers is ``loss``: over measured
cells alone.

Source: LDWP + IAWP, section 3.3, with the loss as repaired there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun.predictors import Floats, column_means, distances

__all__ = ["SIZE", "Network", "NeuralFilter", "fit_rows", "load_network", "loss", "save_network"]

SIZE = 8
HIDDEN = (128, 64, 32)
CLOSEST = 5
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The numbers of one trained network.

    ``rows`` (rows, SIZE), ``columns`` (columns, SIZE); ``weights`` and ``biases`` of each layer,
    (in, out) and (out,); ``out`` (32,); ``table`` (rows, columns): what it was trained with, NaN
    where unknown.
    """

    rows: Floats
    columns: Floats
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    out: Floats
    table: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def parameters(self) -> int:
        parts = (self.rows, self.columns, self.out, *self.weights, *self.biases)
        return sum(part.size for part in parts)

    def forward(self, rows: Floats, columns: Floats) -> Floats:
        """Cells from vectors of rows and columns, (cells, SIZE) each; returns (cells,)."""
        z = np.concatenate([rows, columns], axis=1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            z = np.maximum(z @ weight + bias, 0.0)
        cells: Floats = 1.0 / (1.0 + np.exp(-(z @ self.out)))
        return cells

    def cells(self) -> Floats:
        """All cells of the trained rows, shape (rows, columns)."""
        rows, columns = len(self.rows), len(self.columns)
        flat = self.forward(np.repeat(self.rows, columns, axis=0), np.tile(self.columns, (rows, 1)))
        return flat.reshape(rows, columns)

    def row(self, vector: Floats) -> Floats:
        """The cells of a row of which only the vector is known, shape (columns,)."""
        return self.forward(np.tile(vector, (len(self.columns), 1)), self.columns)


def loss(network: Network, predicted: Floats, table: Floats, decay: float) -> float:
    """Squared error over the known cells of ``table`` and decay of all weights, over 2 x cells."""
    known = np.isfinite(table)
    errors = float(((predicted[known] - table[known]) ** 2).sum())
    squares = sum(float((weight**2).sum()) for weight in (*network.weights, network.out))
    return (errors + decay * squares) / (2 * int(known.sum()))


def fit_rows(network: Network, known: Floats, *, steps: int = 200, rate: float = 0.5) -> Floats:
    """The vectors of new rows with the cells ``known`` (rows, columns), NaN where unknown.

    Gradient descent on these vectors alone, each from the mean of the closest trained rows. Returns
    shape (rows, SIZE).
    """
    vectors = np.stack([_start(network, row) for row in known])
    rows, columns = np.nonzero(np.isfinite(known))
    if not len(rows):
        return vectors
    wanted = known[rows, columns]
    share = 1.0 / np.bincount(rows, minlength=len(known))[rows]
    for _ in range(steps):
        change = _gradient(network, vectors[rows], network.columns[columns], wanted, share)
        moved = np.zeros_like(vectors)
        np.add.at(moved, rows, change)
        vectors = vectors - rate * moved
    return vectors


def _start(network: Network, known: Floats) -> Floats:
    far = distances(network.table, known)
    order = np.argsort(far, kind="stable")[:CLOSEST]
    order = order[np.isfinite(far[order])]
    chosen = network.rows[order] if len(order) else network.rows
    mean: Floats = chosen.mean(axis=0)
    return mean


def _gradient(
    network: Network, rows: Floats, columns: Floats, wanted: Floats, share: Floats
) -> Floats:
    """Of half the mean squared error of each row, cell by cell, by the row's vector."""
    z = np.concatenate([rows, columns], axis=1)
    layers = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        z = np.maximum(z @ weight + bias, 0.0)
        layers.append(z)
    cells = 1.0 / (1.0 + np.exp(-(z @ network.out)))
    back = ((cells - wanted) * cells * (1 - cells) * share)[:, None] * network.out
    for weight, z in zip(reversed(network.weights), reversed(layers), strict=True):
        back = (back * (z > 0)) @ weight.T
    gradient: Floats = back[:, : rows.shape[1]]
    return gradient


class NeuralFilter:
    """``Predictor`` by a trained network; ``fit`` keeps it as it is."""

    name = "ncf"

    def __init__(self, network: Network | Path, steps: int = 200, rate: float = 0.5) -> None:
        self.network = load_network(network) if isinstance(network, Path) else network
        self._steps = steps
        self._rate = rate
        self._means = column_means(self.network.table)

    def fit(self, table: Floats) -> None:
        if table.shape[1] != len(self.network.columns):
            raise InvalidRequest(
                f"the network knows {len(self.network.columns)} metrics, the table has "
                f"{table.shape[1]}; train it with this table"
            )

    def predict(self, known: Floats) -> Floats:
        vector = fit_rows(self.network, known[None, :], steps=self._steps, rate=self._rate)[0]
        cells = np.where(np.isfinite(self._means), self.network.row(vector), np.nan)
        return np.where(np.isfinite(known), known, cells)


def save_network(path: Path, network: Network, about: dict[str, Any]) -> None:
    """Write ``path`` (.npz, no pickles) with ``about`` as JSON."""
    arrays = {f"weight{i}": weight for i, weight in enumerate(network.weights)}
    arrays |= {f"bias{i}": bias for i, bias in enumerate(network.biases)}
    meta = {"version": _VERSION, "layers": len(network.weights), "about": about}
    with path.open("wb") as file:
        np.savez(
            file,
            meta=np.array(json.dumps(meta)),
            rows=network.rows,
            columns=network.columns,
            out=network.out,
            table=network.table,
            **arrays,  # type: ignore[arg-type]
        )


def load_network(path: Path) -> Network:
    """What ``save_network`` wrote.

    Raises:
        InvalidRequest: no such file, not one of these, or its shapes do not go together.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            if meta["version"] != _VERSION:
                raise ValueError(f"its version is {meta['version']}, this HRM reads {_VERSION}")
            layers = range(int(meta["layers"]))
            network = Network(
                rows=_finite(file["rows"]),
                columns=_finite(file["columns"]),
                weights=tuple(_finite(file[f"weight{i}"]) for i in layers),
                biases=tuple(_finite(file[f"bias{i}"]) for i in layers),
                out=_finite(file["out"]),
                table=np.asarray(file["table"], np.float64),
            )
        _check(network)
    except Exception as error:
        raise InvalidRequest(
            f"{path} holds no network of interference estimates: {type(error).__name__}: {error}; "
            f"train one anew"
        ) from error
    return network


def _finite(array: Any) -> Floats:
    values: Floats = np.asarray(array, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    return values


def _check(network: Network) -> None:
    width = network.rows.shape[1] + network.columns.shape[1]
    for weight, bias in zip(network.weights, network.biases, strict=True):
        if weight.shape != (width, len(bias)):
            raise ValueError(f"a layer of {weight.shape} follows one of {width}")
        width = len(bias)
    if network.out.shape != (width,):
        raise ValueError(f"the last layer has {width} outputs, {network.out.shape} are used")
    if network.table.shape != (len(network.rows), len(network.columns)):
        raise ValueError(f"a table of {network.table.shape} for other rows and columns")
