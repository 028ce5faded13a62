"""The data, and what the models must be: trained in this process, without Spark.

Rows are normally distributed; their classes are those of a small random network, a twentieth of
them drawn at random. No model can be right about these, so accuracies level off below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.apps.torch_training import Gradient, Recipe, Weights, gradient, train
from benchmarks.elastic.plan import Plan, Training

__all__ = ["Expected", "prepare", "recipe_of"]

_TEACHER_UNITS = 10
_TEACHER_SCALE = 0.4
_WRONG = 0.05


@dataclass(frozen=True, slots=True)
class Expected:
    """Accuracy after each epoch, a share of 1, and the milliseconds of one gradient of a shard."""

    accuracies: tuple[float, ...]
    gradient_ms: float

    @property
    def final(self) -> float:
        return self.accuracies[-1]


def recipe_of(plan: Plan, training: Training) -> Recipe:
    """As the application takes it."""
    return Recipe(
        training.hidden, training.learning_rate, training.epochs, plan.patience, plan.better
    )


def prepare(plan: Plan, directory: Path) -> dict[str, Expected]:
    """Write the data; what each training must find, by its name."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(plan.seed)
    scaled = generator.normal(size=(plan.features, _TEACHER_UNITS)) * _TEACHER_SCALE
    teacher = scaled, generator.normal(size=(_TEACHER_UNITS, plan.classes))
    for number in range(plan.tasks):
        _write(directory / f"shard-{number:02}.npz", plan, plan.rows, teacher, generator)
    _write(directory / "held-out.npz", plan, plan.held_out, teacher, generator)
    return {each.name: _expected(plan, each, directory) for each in plan.trainings}


def _write(
    path: Path, plan: Plan, count: int,
    teacher: tuple[NDArray[np.float64], NDArray[np.float64]], generator: np.random.Generator,
) -> None:  # fmt: skip
    rows = generator.normal(size=(count, plan.features)).astype(np.float32)
    classes = (np.tanh(rows @ teacher[0]) @ teacher[1]).argmax(axis=1)
    wrong = generator.random(count) < _WRONG
    classes[wrong] = generator.integers(0, plan.classes, int(wrong.sum()))
    np.savez(path, x=rows, y=classes)


def _expected(plan: Plan, training: Training, directory: Path) -> Expected:
    shards = sorted(directory.glob("shard-*.npz"))

    def gradients(weights: Weights, classes: int) -> Sequence[Gradient]:
        return [gradient(shard, training.hidden, weights, classes) for shard in shards]

    epochs = train(directory, recipe_of(plan, training), gradients, lambda *_: None)
    milliseconds = [1e3 * epoch["compute_s"] / len(shards) for epoch in epochs]
    return Expected(
        tuple(epoch["accuracy"] for epoch in epochs), round(float(np.median(milliseconds)), 3)
    )
