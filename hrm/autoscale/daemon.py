"""``hrm autoscale``: every few seconds reads the pool, lets the scaler decide, carries it out.

One thread, one thing at a time: a hook that hangs delays the next look at the pool by its time
limits, and nothing else. Every outcome is in the log and in a file, from which ``hrm forecast``
shows it. An outage of the master is waited out.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import grpc
import structlog

from hrm import rpc, tls
from hrm.autoscale.feed import MasterFeed
from hrm.autoscale.files import ForecastFiles, KeptHistory
from hrm.autoscale.hook import HookOutcome, HookRunner
from hrm.autoscale.metrics import PoolMetrics
from hrm.config import AutoscaleSettings
from hrm.core.pool.scaler import (
    CallHook,
    DrainNodes,
    ReturnNodes,
    Scaler,
    ScalerBounds,
    ScalerOrder,
)
from hrm.errors import HrmError, InvalidConfig, InvalidRequest, PermissionDenied, TlsFailed
from hrm.forecast.history import CLOCK_TOLERANCE_S
from hrm.forecast.pool import PoolBounds
from hrm.forecast.report import forecast, pool_report
from hrm.forecast.steps import STEPS

__all__ = ["Autoscaler", "open_feed", "run"]

CALL_TIMEOUT_S = 30.0
GAP_S = 180.0
"""A hook, or models of a forecast, may take this long from one look to the next."""
POOL_LEADS = 2
"""The interval that has begun, and the next one: nodes take time to come."""

log = structlog.get_logger("autoscale")


def run(settings: AutoscaleSettings) -> int:
    """Scale until SIGTERM or SIGINT; returns the exit status.

    Raises:
        InvalidConfig: settings that contradict each other, or no token.
        HrmError: the master refuses this process for good.
    """
    autoscaler = Autoscaler(settings)
    stop = threading.Event()
    serving = autoscaler.metrics.serving(settings.host, settings.metrics_port)
    with _signalled(stop), serving as address:
        if address:
            log.info("serving metrics", address=address)
        _scale(settings, autoscaler, stop)
    log.info("stopped")
    return 0


@contextmanager
def _signalled(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``; afterwards they are handled as before."""
    before = [(x, signal.getsignal(x)) for x in (signal.SIGTERM, signal.SIGINT)]
    for signum, _ in before:
        signal.signal(signum, lambda *_: stop.set())
    try:
        yield
    finally:
        for signum, handler in before:
            signal.signal(signum, handler)


def _scale(settings: AutoscaleSettings, autoscaler: Autoscaler, stop: threading.Event) -> None:
    been_up = False
    while not stop.is_set():
        try:
            with open_feed(settings) as feed:
                autoscaler.tick(feed, time.time())
            been_up = True
        except (PermissionDenied, TlsFailed, InvalidConfig):
            if not been_up:
                raise
            autoscaler.metrics.look_failed()
            log.exception("the master refuses")
        except HrmError as error:
            autoscaler.metrics.look_failed()
            log.warning("the pool cannot be seen", error=error.message)
        stop.wait(settings.interval_s)


@contextmanager
def open_feed(settings: AutoscaleSettings) -> Iterator[MasterFeed]:
    """A connection for one look; failed calls leave it as ``HrmError``."""
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.queues_pb2_grpc import QueueServiceStub

    token = rpc.read_token(settings.token_file)
    ca = tls.read_ca(tls.ca_file(settings.token_file, settings.tls_ca))
    with rpc.sync_channel(
        settings.master, token, ca, allow_clear_text=settings.allow_clear_text
    ) as channel:
        try:
            yield MasterFeed(
                AdminServiceStub(channel),
                EventServiceStub(channel),
                QueueServiceStub(channel),
                CALL_TIMEOUT_S,
            )
        except grpc.RpcError as error:
            raise rpc.error_from(error, settings.master) from error


class Autoscaler:
    """What lives from look to look. ``clock``: seconds that never go back, for time limits."""

    def __init__(
        self,
        settings: AutoscaleSettings,
        files: ForecastFiles | None = None,
        hook: HookRunner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check(settings)
        self._settings = settings
        self._files = files or ForecastFiles(settings.master)
        self._hook = hook or HookRunner(
            command=settings.command,
            url=settings.url,
            timeout_s=settings.timeout_s,
            tries=settings.tries,
        )
        self._clock = clock
        self.metrics = PoolMetrics()
        self._scaler = Scaler(_bounds(settings))
        kept = self._files.read_scaler()
        try:
            self._scaler.restore(kept.get("scaler", {}))
        except ValueError as error:
            log.warning("the state of the last process is ignored", error=str(error))
        self._last_call: dict[str, Any] = kept.get("last_call", {})
        self._failures = 0
        self._forecast_nodes: int | None = None
        self._forecast_why = ""
        self._forecast_for: int | None = None

    def tick(self, feed: MasterFeed, now: float) -> None:
        """Look at the pool, decide, carry out; raises grpc.RpcError, HrmError."""
        self._renew_forecast(feed, now)
        sample = feed.sample(now, self._forecast_nodes)
        orders = self._scaler.sampled(sample)
        if orders:
            self._write(now, wanted=self._scaler.wanted(sample))
        try:
            for order in orders:
                self._carry_out(feed, order)
            self._scaler.carried_out()
        finally:
            self._scaler.interrupted()
            self.metrics.looked(sample, self._scaler)
            self._write(now, wanted=self._scaler.wanted(sample))

    def _carry_out(self, feed: MasterFeed, order: ScalerOrder) -> None:
        match order:
            case DrainNodes():
                log.info("nodes leave", nodes=order.names)
                self._drain(feed, order.names, f"hrm autoscale: {order.reason}", undo=False)
            case ReturnNodes():
                log.info("nodes are back in service", nodes=order.names)
                self._drain(feed, order.names, f"hrm autoscale: {order.reason}", undo=True)
            case CallHook():
                outcome = self._call(order)
                for following in self._scaler.hook_ended(outcome.ok, time.time()):
                    self._carry_out(feed, following)

    def _drain(self, feed: MasterFeed, names: tuple[str, ...], reason: str, *, undo: bool) -> None:
        from hrm.v1.admin_pb2 import DrainNodesRequest

        if not self._settings.dry_run:
            request = DrainNodesRequest(names=names, undo=undo, reason=reason)
            feed.admin.DrainNodes(request, timeout=CALL_TIMEOUT_S)

    def _call(self, call: CallHook) -> HookOutcome:
        if self._settings.dry_run:
            log.info("would call the hook", **asdict(call))
            return HookOutcome(ok=True, reason="", tries=0, took_s=0.0)
        outcome = self._hook.run(call)
        self._failures = 0 if outcome.ok else self._failures + 1
        self._last_call = {
            "at_s": time.time(),
            "call": asdict(call),
            "ok": outcome.ok,
            "reason": outcome.reason,
            "failures_in_a_row": self._failures,
        }
        self.metrics.called(ok=outcome.ok, failures_in_a_row=self._failures)
        tell = log.info if outcome.ok else log.error
        tell("hook", **asdict(call), ok=outcome.ok, why=outcome.reason, tries=outcome.tries)
        return outcome

    def _renew_forecast(self, feed: MasterFeed, now: float) -> None:
        """Once in each interval. Without one, what runs and waits decides alone."""
        settings = self._settings
        if settings.forecast_step == "none":
            return
        step = STEPS[settings.forecast_step]
        # The history of an interval is complete when clocks that differ have passed its end, too.
        interval = int((now - CLOCK_TOLERANCE_S) // step.seconds)
        if interval == self._forecast_for:
            return
        kept, damage = self._files.read_history()
        remark = self._update(feed, kept, now)
        for each in filter(None, (damage, remark)):
            log.warning("history", remark=each)
        self._forecast_for, self._forecast_nodes = interval, None
        until_s = self._clock() + settings.forecast_limit_s
        try:
            report = forecast(
                kept.history.volumes(step),
                POOL_LEADS,
                out_of_time=lambda: self._clock() > until_s,
            )
            bounds = PoolBounds(headroom=settings.headroom)
            pool = pool_report(report, kept.history.busy_nodes(step), bounds)
        except InvalidRequest as error:
            self._forecast_why = error.message
            log.info("no forecast", why=error.message)
            return
        except ImportError as error:
            self._forecast_why = f"{error}; pip install 'hrm-spark[forecast]'"
            log.warning("no forecast", why=self._forecast_why)
            return
        if pool is None:
            self._forecast_why = "no node has been busy in the history"
            return
        self._forecast_nodes, self._forecast_why = max(pool.nodes), ""
        log.info("forecast", nodes=self._forecast_nodes, tasks_per_node=pool.tasks_per_node)

    def _update(self, feed: MasterFeed, kept: KeptHistory, now: float) -> str:
        remark = feed.update(kept, now)
        self._files.write_history(kept)
        return remark

    def _write(self, now: float, *, wanted: int) -> None:
        document = {
            "at_s": now,
            "wanted_nodes": wanted,
            "forecast_nodes": self._forecast_nodes,
            "why_no_forecast": self._forecast_why,
            "scaler": self._scaler.as_json(),
            "last_call": self._last_call,
        }
        if not self._settings.dry_run:
            self._files.write_scaler(document)


def _bounds(settings: AutoscaleSettings) -> ScalerBounds:
    return ScalerBounds(
        nodes_min=settings.nodes_min,
        nodes_max=settings.nodes_max,
        down_after_s=settings.down_after_s,
        cooldown_s=settings.cooldown_s,
        boot_timeout_s=settings.boot_timeout_s,
        place_after_s=settings.place_after_s,
        retry_s=settings.retry_s,
        retry_max_s=settings.retry_max_s,
        shrink_part=settings.shrink_part,
        gap_s=max(GAP_S, 3 * settings.interval_s),
    )


def _check(settings: AutoscaleSettings) -> None:
    if settings.nodes_min > settings.nodes_max:
        raise InvalidConfig(
            f"nodes_min is {settings.nodes_min} and nodes_max {settings.nodes_max}; set nodes_min "
            "to at most nodes_max in hrm.toml [autoscale], or by --nodes-min"
        )
    if settings.command and settings.url:
        raise InvalidConfig("both command and url are set; leave one of them out")
    if not (settings.command or settings.url or settings.dry_run):
        raise InvalidConfig(
            "there is no hook that adds and removes machines; set command or url in hrm.toml "
            "[autoscale], or see what would be done with --dry-run true"
        )
