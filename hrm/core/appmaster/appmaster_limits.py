"""What bounds an AppMaster's patience with executors that fail, and with a master that is new."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAILURES_SETTING", "AppMasterLimits"]

FAILURES_SETTING = "spark.hrm.executor.maxFailures"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMasterLimits:
    """The bounds of failure handling.

    Attributes:
        failures_max: failures within the window that end the application
            (``spark.hrm.executor.maxFailures``); 0: twice the highest target, at least 3.
        failures_window_s: age at which a failure is forgotten
            (``spark.hrm.executor.failures.validityInterval``).
        failures_setting: the name under which the user has set ``failures_max``.
        backoff_s: first pause before executors that ended are replaced
            (``spark.hrm.executor.retry.delay``).
        backoff_max_s: the longest such pause (``spark.hrm.executor.retry.delayMax``).
        locality_wait_s: how long an executor may wait for capacity near its data
            (``spark.hrm.locality.wait``).
        settled_s: an executor that ran this long shows that its profile can run: the back-off
            starts again from ``backoff_s``.
        confirm_s: time that a master has to find a running executor again, when it is of a new
            epoch or the executor was adopted.
    """

    failures_max: int = 0
    failures_window_s: float = 3600.0
    failures_setting: str = FAILURES_SETTING
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    locality_wait_s: float = 3.0
    settled_s: float = 60.0
    confirm_s: float = 30.0
