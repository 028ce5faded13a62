"""Metrics of queues for Prometheus, as text over HTTP, at ``/metrics``.

There is no token: the page has names of queues and amounts, none of users or applications. The
number of series is bounded: of ``QUEUES_MAX`` queues at most, those nearest to ``root`` first, and
how many are left out is a metric of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import structlog

from hrm.config import MasterSettings
from hrm.core.tenancy.queue_status import QueueStatus, WaitReason
from hrm.core.tenancy.queue_tree import Governed
from hrm.errors import Unavailable
from hrm.http_pages import HttpPages, response
from hrm.tls_server import ServerTls

__all__ = ["MetricsPage", "metrics_text", "serving"]

log = structlog.get_logger("master")

QUEUES_MAX = 1_000
_KIND = "text/plain; version=0.0.4"
_MIB = 1 << 20
_RESOURCES = (("cores", 1), ("memory_bytes", _MIB), ("gpu_memory_bytes", _MIB))
_AMOUNTS: tuple[tuple[str, str, Callable[[QueueStatus], Governed]], ...] = (
    ("guaranteed", "What the queue can have back at any time.", lambda x: x.guaranteed),
    ("maximum", "What the queue never exceeds.", lambda x: x.maximum),
    ("share", "What the queue may have now, by what all want.", lambda x: x.share),
    ("used", "What its containers hold at nodes.", lambda x: x.used),
    ("borrowed", "What of that is beyond its guarantee.", lambda x: x.borrowed),
    ("pending", "What it waits for.", lambda x: x.pending),
)
_REASONS = tuple(reason for reason in WaitReason if reason is not WaitReason.NONE)


class MetricsPage(HttpPages):
    """``statuses``: of all queues, as they are now."""

    def __init__(
        self, statuses: Callable[[], list[QueueStatus]], secure: ServerTls | None = None
    ) -> None:
        super().__init__(secure.context() if secure is not None else None)
        self._statuses = statuses

    def page(self, target: str, *, wants_html: bool) -> bytes:
        if urlsplit(target).path != "/metrics":
            return response(404, "no such page; metrics are at /metrics\n")
        return response(200, metrics_text(self._statuses()), _KIND)


@asynccontextmanager
async def serving(
    settings: MasterSettings, statuses: Callable[[], list[QueueStatus]], secure: ServerTls | None
) -> AsyncIterator[None]:
    """Serve the page, where ``metrics_port`` is set.

    Raises:
        Unavailable: the port is in use.
    """
    host, port = settings.host, settings.metrics_port
    if port is None:
        yield
        return
    try:
        server = await MetricsPage(statuses, secure).start(host, port)
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}; name another port "
            f"with --metrics-port"
        ) from error
    scheme = "http" if secure is None else "https"
    port = server.sockets[0].getsockname()[1]
    log.info("serving metrics", address=f"{scheme}://{host}:{port}/metrics")
    try:
        yield
    finally:
        server.close()


def metrics_text(statuses: Iterable[QueueStatus]) -> str:
    """The metrics in Prometheus' text format."""
    listed = sorted(statuses, key=lambda x: (x.spec.name.count("."), x.spec.name))
    shown = listed[:QUEUES_MAX]
    return "\n".join([*_lines(shown, len(listed) - len(shown)), ""])


def _lines(statuses: list[QueueStatus], left_out: int) -> Iterator[str]:
    for name, what, of in _AMOUNTS:
        yield from _head(f"hrm_queue_{name}", what)
        for status in statuses:
            for (resource, unit), amount in zip(_RESOURCES, of(status), strict=True):
                labels = f'queue="{status.spec.name}",resource="{resource}"'
                yield f"hrm_queue_{name}{{{labels}}} {amount * unit:.15g}"
    yield from _head("hrm_queue_applications", "Live applications in the queue and below it.")
    for status in statuses:
        yield f'hrm_queue_applications{{queue="{status.spec.name}"}} {status.applications}'
    what = "Of these, those that hold containers or may get some."
    yield from _head("hrm_queue_applications_running", what)
    for status in statuses:
        yield f'hrm_queue_applications_running{{queue="{status.spec.name}"}} {status.running}'
    what = "Applications of which containers wait, by the reason of the first."
    yield from _head("hrm_queue_applications_waiting", what)
    for status in statuses:
        if status.is_leaf:
            yield from _waiting(status)
    yield from _head("hrm_queues_left_out", "Queues that have no series here.")
    yield f"hrm_queues_left_out {left_out}"


def _waiting(status: QueueStatus) -> Iterator[str]:
    counts = Counter(wait.reason for wait in status.waiting)
    for reason in _REASONS:
        labels = f'queue="{status.spec.name}",reason="{reason.value}"'
        yield f"hrm_queue_applications_waiting{{{labels}}} {counts[reason]}"


def _head(name: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} gauge"
