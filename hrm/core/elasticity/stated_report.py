"""What a driver states of an epoch, before it counts: can it be so, and how good is its loss?

A driver may state anything, such as the loss of a model that has diverged. What cannot be is
refused here, in the driver's own terms, and nothing else becomes of it: neither the application nor
its session ends.

A loss without an accuracy counts by the part of the greatest loss that is gone. A single epoch may
go astray and have a loss of any size; measured by that, all that the model learns later would be
nothing. So a loss counts as the greatest once two reports in a row have had as much.

Limits: a model that is astray for two epochs spoils the scale until it ends. A loss may be below 0,
as a log-likelihood is; then nothing says how much of it is left, and an accuracy is needed.
"""

from __future__ import annotations

import math

from hrm.core.vocabulary.model import TrainingReport

__all__ = ["EPOCHS_MAX", "EPOCH_S_MAX", "LossScale", "fraction_problem", "problem_in"]

EPOCHS_MAX = 10**9
"""Of one training; the arithmetic on numbers of epochs is exact up to far beyond it."""
EPOCH_S_MAX = 366 * 86_400.0


def problem_in(report: TrainingReport) -> str:
    """Why this is a report of no training, for people; empty: it may be one."""
    number = f"a whole number from 0 to {EPOCHS_MAX}"
    if not 0 <= report.epoch <= EPOCHS_MAX:
        return f"epoch is {report.epoch}: report {number}"
    if not 0 <= report.epochs <= EPOCHS_MAX:
        return f"epochs is {report.epochs}: state {number}, 0 where it is not known"
    if not 0.0 <= report.seconds <= EPOCH_S_MAX:
        return (
            f"seconds is {report.seconds:g}: report those that the epoch took, up to "
            f"{EPOCH_S_MAX:.0f}, or 0 where they are not known"
        )
    if not math.isfinite(report.loss):
        return f"loss is {report.loss}: report a finite number, or skip this epoch"
    if report.accuracy is not None:
        return fraction_problem("accuracy", report.accuracy)
    if report.loss < 0.0:
        return (
            f"loss is {report.loss:g}, and without an accuracy one below 0 does not say how far "
            f"the model is: report an accuracy, too, a fraction from 0 to 1"
        )
    return ""


def fraction_problem(name: str, value: float) -> str:
    """Why ``value`` is no fraction; empty: it is one."""
    return "" if 0.0 <= value <= 1.0 else f"{name} is {value}: report a fraction, 0 to 1"


class LossScale:
    """Turns losses, none below 0, into accuracies. One that is not accepted leaves no trace."""

    def __init__(self) -> None:
        self._accepted: tuple[float, float] | None = None
        """The latest, and the greatest."""
        self._is_second = False
        """Whether the next one is."""

    def accuracy(self, loss: float) -> float:
        """The part of the greatest loss that is gone, 0 to 1."""
        greatest = self._greatest_with(loss)
        return 1.0 - min(1.0, loss / greatest) if greatest > 0.0 else 1.0

    def accept(self, loss: float) -> None:
        """It counts."""
        is_first = self._accepted is None
        self._accepted = loss, self._greatest_with(loss)
        self._is_second = is_first

    def _greatest_with(self, loss: float) -> float:
        if self._accepted is None:
            return loss
        latest, greatest = self._accepted
        both = min(latest, loss)
        return both if self._is_second else max(greatest, both)
