"""HRM: a cluster resource manager for Apache Spark.

``report`` is for the drivers of applications that train a model.

Importing this package imports nothing else, so that short-lived processes (the AppMaster, the
container supervisor, the plugin build) start quickly.
"""

from __future__ import annotations

__all__ = ["report"]

__version__ = "0.1.0"


def report(
    *, epoch: int, loss: float, accuracy: float | None = None, epochs: int | None = None
) -> bool:
    """Say how far a model has come, from the driver, once for each epoch.

    An application that reports is elastic: within its limits it gets executors while it learns, and
    gives them up once it does not (docs/elastic-training.md). It costs a call into the driver's
    JVM, and never raises for what the model has come to: a loss that is no number, or a number
    that is too large for a JVM, is passed on, and not counted.

    Args:
        epoch: a number that grows, from 0.
        loss: of this epoch.
        accuracy: a share of 1, on data that the model has not seen; None: only the loss counts.
        epochs: how many there will be at most; None: nobody knows.

    Returns:
        False where no application of this process runs on HRM; nothing happens then.

    Raises:
        TypeError, ValueError: these are no numbers, or a negative epoch.
    """
    from hrm.spark import training_report

    return training_report.send(epoch, loss, accuracy, epochs)
