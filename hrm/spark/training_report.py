"""How a driver in Python reports what its model has come to: through py4j to the plugin.

The plugin keeps the report until the AppMaster fetches it (``TrainingReports.scala``), which sends
it to the master with its counts. Nothing waits for any of them. What a JVM's numbers cannot hold
becomes the nearest that they can, or infinite: the master refuses it and says why, and the program
goes on.
"""

from __future__ import annotations

import math
import numbers
import threading
import time
from typing import Any

__all__ = ["send"]

_LONG_MAX = 2**63 - 1
_lock = threading.Lock()
_reported_at_s: dict[str, float] = {}
"""By application, when it last reported. One driver has few of these."""


def send(epoch: int, loss: float, accuracy: float | None, epochs: int | None = None) -> bool:
    """See ``hrm.report``."""
    for name, count in (("epoch", epoch), ("epochs", 0 if epochs is None else epochs)):
        if not isinstance(count, numbers.Integral) or isinstance(count, bool):
            raise TypeError(f"{name} must be a whole number, not {count!r}")
        if count < 0:
            raise ValueError(f"{name} must not be negative: {count}")
    for name, value in (("loss", loss), ("accuracy", accuracy)):
        is_stated = value is not None or name == "loss"
        if is_stated and not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, not {value!r}; of a tensor: .item()")
    from py4j.java_gateway import JavaClass
    from pyspark import SparkContext

    # There is no public way to the context of this process that makes none where there is none.
    context: Any = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return False
    seconds = _since_last(context.applicationId)
    reports = context._jvm.org.apache.spark.scheduler.cluster.hrm.TrainingReports
    if not isinstance(reports, JavaClass):
        return False  # this Spark has no plugin of HRM, or an older one
    stated = math.nan if accuracy is None else _double(accuracy)
    number, most = (min(int(count), _LONG_MAX) for count in (epoch, epochs or 0))
    done = reports.report(context._jsc.sc(), number, _double(loss), stated, seconds, most)
    return bool(done)


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _since_last(application_id: str) -> float:
    now = time.monotonic()
    with _lock:
        before = _reported_at_s.get(application_id)
        _reported_at_s[application_id] = now
    return 0.0 if before is None else now - before
