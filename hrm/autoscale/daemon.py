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
from contextlib import contextmanager, nullcontext
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
from hrm.errors import (
    HrmError,
    InvalidConfig,
    InvalidRequest,
    NotAllowed,
    PermissionDenied,
    TlsFailed,
    Unavailable,
)
from hrm.forecast.history import CLOCK_TOLERANCE_S
from hrm.forecast.pool import PoolBounds
from hrm.forecast.report import forecast, pool_report
from hrm.forecast.steps import STEPS
from hrm.identity.roles import AccessRole

__all__ = ["Autoscaler", "check_role", "open_feed", "run"]

CALL_TIMEOUT_S = 30.0
DRAINED_AT_ONCE = 10_000
"""Names in one call, by the master's bounds on requests."""
ROLES = (AccessRole.OPERATOR.value, AccessRole.ADMIN.value)
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
    _check(settings)
    files, stop = ForecastFiles(settings.master), threading.Event()
    with nullcontext() if settings.dry_run else files.held():
        autoscaler = Autoscaler(settings, files, stop=stop)
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
                if not been_up:
                    check_role(feed, settings)
                autoscaler.tick(feed, time.time())
            been_up = True
        except (PermissionDenied, TlsFailed, InvalidConfig) as error:
            if not been_up:
                raise
            autoscaler.metrics.look_failed()
            log.error("the master refuses; the pool stays as it is", error=error.message)
        except HrmError as error:
            autoscaler.metrics.look_failed()
            log.warning("this look has failed; the pool stays as it is", error=error.message)
        stop.wait(settings.interval_s)


@contextmanager
def open_feed(settings: AutoscaleSettings) -> Iterator[MasterFeed]:
    """A connection for one look; failed calls leave it as ``HrmError``."""
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.identity_pb2_grpc import IdentityServiceStub
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
                IdentityServiceStub(channel),
            )
        except grpc.RpcError as error:
            raise rpc.error_from(error, settings.master) from error


def check_role(feed: MasterFeed, settings: AutoscaleSettings) -> None:
    """May this process drain nodes? It is to be known before the first is needed, or goes.

    Raises:
        NotAllowed: its token is of another role.
    """
    role = feed.role()
    if role not in ROLES and not settings.dry_run:
        raise NotAllowed(
            f"the token in {settings.token_file} is of role {role}, and hrm autoscale drains "
            "nodes: that takes role operator. On the master's machine type: hrm token create "
            "--service autoscale --role operator --file autoscale.token, and start with "
            "--token-file autoscale.token; or see what it would do with --dry-run true"
        )


class Autoscaler:
    """What lives from look to look. ``clock``: seconds that never go back, for time limits.
    ``stop``: ends what takes long, when the process is to end."""

    def __init__(
        self,
        settings: AutoscaleSettings,
        files: ForecastFiles | None = None,
        hook: HookRunner | None = None,
        clock: Callable[[], float] = time.monotonic,
        stop: threading.Event | None = None,
    ) -> None:
        _check(settings)
        self._settings = settings
        self._files = files or ForecastFiles(settings.master)
        self._stop = stop or threading.Event()
        self._hook = hook or HookRunner(
            command=settings.command,
            url=settings.url,
            timeout_s=settings.timeout_s,
            tries=settings.tries,
            stop=self._stop,
            note=self._files.hook_path,
        )
        self._clock = clock
        self.metrics = PoolMetrics()
        self._scaler = Scaler(_bounds(settings))
        self._last_call: dict[str, Any] = {}
        self._take_over()
        self._failures = 0
        self._forecast_nodes: int | None = None
        self._forecast_why = ""
        self._forecast_for: int | None = None

    def _take_over(self) -> None:
        """Go on with what an earlier process has begun; a dry run leaves its file alone."""
        if self._settings.dry_run:
            kept, damage = self._files.read_scaler(), ""
        else:
            kept, damage = self._files.take_scaler_over()
        try:
            self._scaler.restore(kept.get("scaler", {}))
        except ValueError as error:
            damage = f"the state of the scaler in {self._files.scaler_path} is none ({error})"
        if damage:
            log.error(
                "the state of the last process is lost: nodes that it had drained stay drained, as "
                "an administrator's; see hrm nodes, and type hrm node drain NAME --undo",
                damage=damage,
            )
        self._last_call = kept.get("last_call", {})

    def tick(self, feed: MasterFeed, now: float) -> None:
        """Look at the pool, decide, carry out. Nothing is carried out that is not written first.

        Raises:
            grpc.RpcError: the master could not be asked.
            Unavailable: what is begun cannot be written.
        """
        self._renew_forecast(feed, now)
        sample = feed.sample(now, self._forecast_nodes)
        orders = self._scaler.sampled(sample)
        try:
            if orders:
                self._write(now, wanted=self._scaler.wanted(sample))
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
                log.info(self._would("nodes leave"), nodes=order.names)
                self._drain(feed, order.names, f"hrm autoscale: {order.reason}", undo=False)
            case ReturnNodes():
                log.info(self._would("nodes are back in service"), nodes=order.names)
                self._drain(feed, order.names, f"hrm autoscale: {order.reason}", undo=True)
            case CallHook():
                outcome = self._call(order)
                for following in self._scaler.hook_ended(outcome.ok, time.time()):
                    self._carry_out(feed, following)

    def _drain(self, feed: MasterFeed, names: tuple[str, ...], reason: str, *, undo: bool) -> None:
        from hrm.v1.admin_pb2 import DrainNodesRequest

        if self._settings.dry_run:
            return
        for first in range(0, len(names), DRAINED_AT_ONCE):
            some = names[first : first + DRAINED_AT_ONCE]
            request = DrainNodesRequest(names=some, undo=undo, reason=reason)
            feed.admin.DrainNodes(request, timeout=CALL_TIMEOUT_S)

    def _would(self, what: str) -> str:
        return f"would be done, but for the dry run: {what}" if self._settings.dry_run else what

    def _call(self, call: CallHook) -> HookOutcome:
        if self._settings.dry_run:
            log.info(self._would("the hook is called"), **asdict(call))
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
        self._forecast_nodes = None
        try:
            kept = self._read(feed, now)
        except (HrmError, grpc.RpcError) as error:
            known = error if isinstance(error, HrmError) else rpc.error_from(error, settings.master)
            self._forecast_why = known.message
            log.warning("no forecast", why=known.message)
            return
        self._forecast_for = interval
        until_s = self._clock() + settings.forecast_limit_s
        try:
            report = forecast(
                kept.history.volumes(step),
                POOL_LEADS,
                out_of_time=lambda: self._clock() > until_s or self._stop.is_set(),
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

    def _read(self, feed: MasterFeed, now: float) -> KeptHistory:
        """The history up to now. As far as it comes it is kept, so that a journal that takes longer
        to read than a call may is read in several; one that cannot be kept is of use for once.

        Raises:
            grpc.RpcError: the journal could not be read to its end.
            Unavailable: the file cannot be read, nor set aside.
        """
        kept, damage = self._files.read_history()
        remarks = [damage]
        try:
            remarks.append(feed.update(kept, now))
        finally:
            try:
                self._files.write_history(kept)
            except Unavailable as error:
                remarks.append(error.message)
            for each in filter(None, remarks):
                log.warning("history", remark=each)
        return kept

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
