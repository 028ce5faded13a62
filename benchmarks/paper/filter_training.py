"""Training of the neural collaborative filter of ``benchmarks.paper.neural_filter``.

Pre-training lowers the loss over batches of measured cells with Adam, until the error of held-out
rows has not improved for ``patience`` rounds of ``round_steps``. A held-out row is treated like a
new row: two of its cells are known, its vector starts at the closest rows and is fitted alone.
Online, single cells follow with plain SGD.

PyTorch does the training and is imported only here.

Source: LDWP + IAWP, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.neural_filter import HIDDEN, SIZE, Network, fit_rows
from hrm.pipelines.policies.corun.predictors import Floats

__all__ = ["Settings", "Trained", "fresh", "learn_cells", "torch_loss", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``rate``: of Adam; ``decay``: lambda; ``batch``: cells a step; ``patience``: in rounds."""

    size: int = SIZE
    hidden: tuple[int, ...] = HIDDEN
    rate: float = 1e-3
    decay: float = 1e-4
    batch: int = 160
    steps: int = 3000
    patience: int = 20
    round_steps: int = 50
    fit_steps: int = 60
    fit_rate: float = 0.5


def fresh(table: Floats, settings: Settings, rng: np.random.Generator) -> Network:
    """An untrained network for ``table``."""
    width = 2 * settings.size
    weights, biases = [], []
    for wide in settings.hidden:
        weights.append(rng.normal(0.0, np.sqrt(2.0 / width), (width, wide)))
        biases.append(np.zeros(wide))
        width = wide
    return Network(
        rows=rng.normal(0.0, 0.3, (table.shape[0], settings.size)),
        columns=rng.normal(0.0, 0.3, (table.shape[1], settings.size)),
        weights=tuple(weights),
        biases=tuple(biases),
        out=rng.normal(0.0, np.sqrt(1.0 / width), width),
        table=table.copy(),
    )


@dataclass(frozen=True, slots=True)
class Trained:
    """A network, the number of steps that it took, and its error on held-out rows."""

    network: Network
    steps: int
    error: float


def train(
    table: Floats, settings: Settings, rng: np.random.Generator, held_out: Floats | None = None
) -> Trained:
    """Pre-train on ``table`` (rows, columns), NaN where unknown.

    ``held_out``: complete rows that end the training; without them it runs ``settings.steps``, and
    the error is NaN. In single precision: more costs time and gains nothing.
    """
    import torch

    network = fresh(table, settings, rng)
    parameters = _parameters(network, torch.float32)
    optimiser = torch.optim.Adam(_flat(parameters), lr=settings.rate)
    cells = _cells(table)
    best, since = Trained(network, 0, np.inf), 0
    checks = None if held_out is None else _with_two_known(held_out, rng)
    for step in range(1, settings.steps + 1):
        optimiser.zero_grad()
        some = rng.integers(len(cells[0]), size=min(settings.batch, len(cells[0])))
        batch = (cells[0][some], cells[1][some], cells[2][some])
        torch_loss(parameters, *batch, decay=settings.decay).backward()
        optimiser.step()
        if checks is None or step % settings.round_steps:
            continue
        now = _network(parameters, table)
        error = _error(now, *checks, settings)
        if error < best.error:
            best, since = Trained(now, step, error), 0
        else:
            since += 1
        if since >= settings.patience:
            break
    if checks is not None:
        return best
    return Trained(_network(parameters, table), settings.steps, np.nan)


def learn_cells(
    network: Network,
    cells: Iterable[tuple[int, int, float]],
    *,
    rate: float = 0.05,
    decay: float = 1e-4,
) -> Network:
    """Online: one SGD step for each measured cell (row, column, value), in this order."""
    import torch

    parameters = _parameters(network)
    optimiser = torch.optim.SGD(_flat(parameters), lr=rate)
    table = network.table.copy()
    for row, column, value in cells:
        table[row, column] = value
        optimiser.zero_grad()
        one = (np.array([row]), np.array([column]), np.array([value]))
        torch_loss(parameters, *one, decay=decay).backward()
        optimiser.step()
    return _network(parameters, table)


def torch_loss(
    parameters: dict[str, Any],
    rows: npt.NDArray[np.intp],
    columns: npt.NDArray[np.intp],
    values: Floats,
    *,
    decay: float,
) -> Any:
    """The loss of ``ncf.loss`` as a tensor, over the cells (rows[i], columns[i])."""
    import torch

    z = torch.cat([parameters["rows"][rows], parameters["columns"][columns]], dim=1)
    for weight, bias in zip(parameters["weights"], parameters["biases"], strict=True):
        z = torch.relu(z @ weight + bias)
    cells = torch.sigmoid(z @ parameters["out"])
    errors = ((cells - torch.as_tensor(values, dtype=cells.dtype)) ** 2).sum()
    squares = sum((weight**2).sum() for weight in (*parameters["weights"], parameters["out"]))
    return (errors + decay * squares) / (2 * len(values))


def _parameters(network: Network, precision: Any = None) -> dict[str, Any]:
    import torch

    def leaf(array: Floats) -> Any:
        return torch.tensor(array, dtype=precision or torch.float64, requires_grad=True)

    return {
        "rows": leaf(network.rows),
        "columns": leaf(network.columns),
        "out": leaf(network.out),
        "weights": [leaf(weight) for weight in network.weights],
        "biases": [leaf(bias) for bias in network.biases],
    }


def _flat(parameters: dict[str, Any]) -> list[Any]:
    alone = [parameters[name] for name in ("rows", "columns", "out")]
    return [*alone, *parameters["weights"], *parameters["biases"]]


def _network(parameters: dict[str, Any], table: Floats) -> Network:
    def array(tensor: Any) -> Floats:
        copied: Floats = tensor.detach().numpy().astype(np.float64)
        return copied

    return Network(
        rows=array(parameters["rows"]),
        columns=array(parameters["columns"]),
        weights=tuple(array(weight) for weight in parameters["weights"]),
        biases=tuple(array(bias) for bias in parameters["biases"]),
        out=array(parameters["out"]),
        table=table.copy(),
    )


def _cells(table: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats]:
    rows, columns = np.nonzero(np.isfinite(table))
    return rows, columns, table[rows, columns]


def _with_two_known(rows: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """``rows`` with all but two random cells of each removed, and as they were."""
    known = np.full_like(rows, np.nan)
    for index, row in enumerate(rows):
        has = rng.permutation(np.flatnonzero(np.isfinite(row)))[:2]
        known[index, has] = row[has]
    return known, rows


def _error(network: Network, known: Floats, rows: Floats, settings: Settings) -> float:
    """Mean absolute error over the removed cells of held-out rows."""
    vectors = fit_rows(network, known, steps=settings.fit_steps, rate=settings.fit_rate)
    predicted = np.stack([network.row(vector) for vector in vectors])
    lacks = np.isfinite(rows) & ~np.isfinite(known)
    return float(np.abs(predicted - rows)[lacks].mean())
