"""A classifier of PyTorch, trained by gradients that Spark's tasks compute: one job an epoch.

    spark-submit benchmarks/apps/torch_training.py --name wide --data DIR --hidden 64 \
        --learning-rate 0.001 --epochs 160 --patience 30 --device-s 0.3 --executors 3 \
        --ready READY --go GO

DIR has a ``shard-NN.npz`` for each task of an epoch and ``held-out.npz``, with arrays ``x`` and
``y``. A task loads its shard, computes the gradient of the summed loss, and then holds its slot
until ``--device-s`` seconds have passed since it began: an emulated accelerator. The driver adds
the gradients up in the order of the shards, so that sums are the same to the bit wherever tasks
run, takes a step of Adam, and reports loss and accuracy to HRM. READY is written once so many
executors are there and have started their Python; with GO it begins. The last line printed is JSON.

``train`` needs no Spark: with ``map`` over the shards it is the reference of the benchmark.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.apps.tenant import await_executors, await_file

__all__ = ["Gradient", "Recipe", "gradient", "model_of", "train"]

_WARM_UP_S = 0.5

Weights = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained; see the module and ``benchmarks.elastic.plan``."""

    hidden: int
    learning_rate: float
    epochs: int
    patience: int
    better: float


class Gradient(NamedTuple):
    """Of one shard: the sum of its rows' losses, and that sum's gradient for each weight."""

    loss: float
    rows: int
    by_weight: Weights
    compute_s: float


def model_of(features: int, classes: int, hidden: int) -> torch.nn.Sequential:
    """The untrained model, always the same."""
    torch.manual_seed(0)
    if not hidden:
        return torch.nn.Sequential(torch.nn.Linear(features, classes))
    return torch.nn.Sequential(
        torch.nn.Linear(features, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and their classes."""
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])


def gradient(shard: Path, hidden: int, weights: Weights, classes: int) -> Gradient:
    """What one task computes."""
    begun_s = time.perf_counter()
    torch.set_num_threads(1)
    rows, labels = load(shard)
    model = model_of(rows.shape[1], classes, hidden)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(value))
    loss = torch.nn.functional.cross_entropy(model(rows), labels, reduction="sum")
    by_parameter = torch.autograd.grad(loss, list(model.parameters()))
    found = [each.numpy() for each in by_parameter]
    return Gradient(float(loss.detach()), len(labels), found, time.perf_counter() - begun_s)


def train(
    data: Path,
    recipe: Recipe,
    gradients: Callable[[Weights, int], Sequence[Gradient]],
    report: Callable[[int, float, float], object],
) -> list[dict[str, Any]]:
    """Train until the recipe says so; the epochs.

    Args:
        gradients: of all shards in their order, at these weights, for so many classes.
        report: takes epoch, mean loss of a row, and accuracy.
    """  # fmt: skip
    torch.set_num_threads(1)
    rows, labels = load(data / "held-out.npz")
    classes = int(labels.max()) + 1
    model = model_of(rows.shape[1], classes, recipe.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    epochs: list[dict[str, Any]] = []
    best, best_epoch = -1.0, 0
    for epoch in range(1, recipe.epochs + 1):
        weights = [each.detach().numpy().copy() for each in model.parameters()]
        parts = gradients(weights, classes)
        count = sum(part.rows for part in parts)
        for place, parameter in enumerate(model.parameters()):
            total = np.sum([part.by_weight[place] for part in parts], axis=0, dtype=np.float64)
            parameter.grad = torch.from_numpy((total / count).astype(np.float32))
        optimizer.step()
        loss = sum(part.loss for part in parts) / count
        with torch.no_grad():
            accuracy = float((model(rows).argmax(1) == labels).double().mean())
        report(epoch, loss, accuracy)
        epochs.append(
            {
                "ended_s": time.time(),
                "loss": loss,
                "accuracy": accuracy,
                "compute_s": sum(part.compute_s for part in parts),
            }
        )
        if accuracy >= best + recipe.better:
            best, best_epoch = accuracy, epoch
        if epoch - best_epoch >= recipe.patience:
            break
    return epochs


def warm_up(context: Any, executors: int) -> None:
    """Import PyTorch on each of so many executors."""

    def task(_: int) -> int:
        time.sleep(_WARM_UP_S)
        return int(torch.get_num_threads())

    context.parallelize(range(4 * executors), 4 * executors).map(task).count()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A classifier of PyTorch on Spark")
    parser.add_argument("--name", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--patience", type=int, required=True)
    parser.add_argument("--better", type=float, default=0.001)
    parser.add_argument("--device-s", type=float, required=True, help="a task holds its slot for")
    parser.add_argument("--executors", type=int, required=True, help="to begin with")
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--go", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=300.0, help="of each wait, seconds")
    return parser.parse_args()


def main() -> None:
    """Train on Spark, print the result line."""
    from pyspark import SparkContext

    import hrm

    given = _arguments()
    shards = sorted(given.data.glob("shard-*.npz"))
    if not shards:
        raise RuntimeError(f"no shard-*.npz in {given.data}: name a directory that has some")
    recipe = Recipe(given.hidden, given.learning_rate, given.epochs, given.patience, given.better)
    context = SparkContext(appName=given.name)
    device_s, hidden = given.device_s, given.hidden

    def gradients(weights: Weights, classes: int) -> list[Gradient]:
        def task(shard: Path) -> tuple[Any, ...]:
            free_s = time.monotonic() + device_s
            found = gradient(shard, hidden, weights, classes)
            if not gc.get_freeze_count():
                # PySpark collects garbage after each task: a tenth of a second with PyTorch.
                gc.freeze()
            time.sleep(max(0.0, free_s - time.monotonic()))
            return tuple(found)

        parts = context.parallelize(shards, len(shards)).map(task).collect()
        return [Gradient(*part) for part in parts]

    def report(epoch: int, loss: float, accuracy: float) -> None:
        hrm.report(epoch=epoch, loss=loss, accuracy=accuracy, epochs=recipe.epochs)

    await_executors(context, given.executors, given.timeout)
    warm_up(context, given.executors)
    given.ready.touch()
    await_file(given.go, given.timeout)
    begun_s = time.time()
    epochs = train(given.data, recipe, gradients, report)
    ended_s = time.time()
    context.stop()
    print(
        json.dumps(
            {
                "app": "torch_training",
                "begun_s": begun_s,
                "ended_s": ended_s,
                "epochs": epochs,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
