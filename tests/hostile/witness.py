"""The effect of an attack on others: memory of the attacked process, and its callers' waits.

``with Witness(pid, target, token) as seen: attack(...)``, then ``seen.grown_mib`` and
``seen.worst_s``. The caller is an ordinary client that queries the cluster every 100 ms.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import grpc
import psutil

from hrm import rpc

__all__ = ["Witness"]

_PERIOD_S = 0.1
_MIB = 1024 * 1024


class Witness:
    """Samples memory always; calls ``ask(channel)``, if one is given, on a channel of its own.
    A call that fails counts with the time that it took, and in ``failures``."""

    def __init__(
        self,
        pid: int,
        target: str,
        token: str,
        ask: Any = None,
        *,
        limit_s: float = 30.0,
        ca: bytes | None = None,
    ) -> None:
        self._process = psutil.Process(pid)
        self._target, self._token, self._ca = target, token, ca
        self._ask, self._limit_s = ask, limit_s
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._measure, daemon=True)]
        if ask is not None:
            self._threads.append(threading.Thread(target=self._call, daemon=True))
        self.before_mib = self.peak_mib = self._rss_mib()
        self.waits_s: list[float] = []
        self.failures: list[str] = []

    @property
    def grown_mib(self) -> float:
        """At its largest, beyond what it was before."""
        return self.peak_mib - self.before_mib

    @property
    def worst_s(self) -> float:
        return max(self.waits_s, default=0.0)

    def left_mib(self) -> float:
        """What it holds now, beyond what it was before."""
        return self._rss_mib() - self.before_mib

    def __enter__(self) -> Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(self._limit_s + 5.0)

    def _rss_mib(self) -> float:
        return float(self._process.memory_info().rss) / _MIB

    def _measure(self) -> None:
        while not self._ending.wait(0.02):
            try:
                self.peak_mib = max(self.peak_mib, self._rss_mib())
            except psutil.Error:
                self.failures.append("the process is gone")
                return

    def _call(self) -> None:
        with rpc.sync_channel(self._target, self._token, self._ca) as channel:
            while not self._ending.wait(_PERIOD_S):
                began_s = time.monotonic()
                try:
                    self._ask(channel, self._limit_s)
                except grpc.RpcError as error:
                    self.failures.append(str(error.code()))
                self.waits_s.append(time.monotonic() - began_s)
