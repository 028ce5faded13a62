"""Metrics of queues for Prometheus, as text over HTTP, at ``/metrics``.

There is no token: the page has names of queues and amounts, none of users or applications. The
number of series is bounded: of ``QUEUES_MAX`` queues at most, those nearest to ``root`` first, and
how many are left out is a metric of its own. Each reading is made of the queues as they are then,
in a registry of its own: nothing of this process is in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hrm.config import MasterSettings
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation
from hrm.core.tenancy.queue_status import QueueStatus, WaitReason
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.tenancy.waiting_times import BUCKETS_S
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
_OBSERVED: tuple[tuple[str, str, Callable[[LeafObservation], float | None]], ...] = (
    (
        "normalised_throughput",
        "What a leaf has done lately over what its due cores would have on its fastest platform.",
        lambda x: x.throughput if x.takes_part else None,
    ),
    ("due_cores", "Cores due to a leaf lately, by guarantees and weights.", lambda x: x.entitled),
    (
        "busy_ratio",
        "Part of the time of its cores in which tasks ran.",
        lambda x: x.busy,
    ),
)
_REASONS = tuple(reason for reason in WaitReason if reason is not WaitReason.NONE)


class MetricsPage(HttpPages):
    """``statuses``: of all queues, as they are now; ``fairness``: between them."""

    def __init__(
        self,
        statuses: Callable[[], list[QueueStatus]],
        fairness: Callable[[], FairnessSummary],
        secure: ServerTls | None = None,
    ) -> None:
        super().__init__(secure.context() if secure is not None else None)
        self._statuses = statuses
        self._fairness = fairness
        self._one = asyncio.Lock()

    async def page(self, target: str, *, wants_html: bool) -> bytes:
        if urlsplit(target).path != "/metrics":
            return response(404, "no such page; metrics are at /metrics\n")
        async with self._one:
            # The text of a thousand queues takes half a second: the master goes on meanwhile.
            text = await asyncio.to_thread(metrics_text, self._statuses(), self._fairness())
        return response(200, text, _KIND)


@asynccontextmanager
async def serving(
    settings: MasterSettings,
    statuses: Callable[[], list[QueueStatus]],
    fairness: Callable[[], FairnessSummary],
    secure: ServerTls | None,
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
        server = await MetricsPage(statuses, fairness, secure).start(host, port)
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


def metrics_text(statuses: Iterable[QueueStatus], fairness: FairnessSummary) -> str:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_QueueMetrics(statuses, fairness))
    return generate_latest(registry).decode()


class _QueueMetrics(Collector):
    """What is shown of these queues."""

    def __init__(self, statuses: Iterable[QueueStatus], fairness: FairnessSummary) -> None:
        listed = sorted(statuses, key=lambda x: (x.spec.name.count("."), x.spec.name))
        self._shown = listed[:QUEUES_MAX]
        self._left_out = len(listed) - len(self._shown)
        self._fairness = fairness

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry has no other metrics, which could have the same names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, what, of in _AMOUNTS:
            gauge = GaugeMetricFamily(f"hrm_queue_{name}", what, labels=("queue", "resource"))
            for status in self._shown:
                for (resource, unit), amount in zip(_RESOURCES, of(status), strict=True):
                    gauge.add_metric((status.spec.name, resource), amount * unit)
            yield gauge
        yield self._counts(
            "applications", "Live applications in the queue and below it.", lambda x: x.applications
        )
        yield self._counts(
            "applications_running",
            "Of these, those that hold containers or may get some.",
            lambda x: x.running,
        )
        leaves = [status for status in self._shown if status.is_leaf]
        yield _waiting(leaves)
        yield from _observed(leaves)
        yield from self._of_all()

    def _counts(self, name: str, what: str, of: Callable[[QueueStatus], int]) -> Metric:
        gauge = GaugeMetricFamily(f"hrm_queue_{name}", what, labels=("queue",))
        for status in self._shown:
            gauge.add_metric((status.spec.name,), of(status))
        return gauge

    def _of_all(self) -> Iterator[Metric]:
        fairness = self._fairness
        gauge = GaugeMetricFamily(
            "hrm_fairness",
            "1 - std/mean of the normalised throughputs of the queues that take part.",
        )
        if fairness.fairness is not None:
            gauge.add_metric((), fairness.fairness)
        yield gauge
        what = "Queues that take part in the fairness between queues."
        yield GaugeMetricFamily("hrm_fairness_queues", what, value=fairness.queues)
        what = "Queues that have no series here."
        yield GaugeMetricFamily("hrm_queues_left_out", what, value=self._left_out)


def _waiting(leaves: Sequence[QueueStatus]) -> Metric:
    gauge = GaugeMetricFamily(
        "hrm_queue_applications_waiting",
        "Applications of which containers wait, by the reason of the first.",
        labels=("queue", "reason"),
    )
    for status in leaves:
        counts = Counter(wait.reason for wait in status.waiting)
        for reason in _REASONS:
            gauge.add_metric((status.spec.name, reason.value), counts[reason])
    return gauge


def _observed(leaves: Sequence[QueueStatus]) -> Iterator[Metric]:
    """How leaves have been served, of those of which that is known."""
    for name, what, of in _OBSERVED:
        gauge = GaugeMetricFamily(f"hrm_queue_{name}", what, labels=("queue",))
        for status in leaves:
            value = None if status.observed is None else of(status.observed)
            if value is not None:
                gauge.add_metric((status.spec.name,), value)
        yield gauge
    waits = HistogramMetricFamily(
        "hrm_queue_wait_seconds",
        "From the request of a container to its start, since the master started.",
        labels=("queue",),
    )
    for status in leaves:
        found = None if status.observed is None else status.observed.waits
        if found is not None:
            counts = accumulate(found.buckets)
            names = (*map(repr, BUCKETS_S), "+Inf")
            waits.add_metric(
                (status.spec.name,), list(zip(names, counts, strict=True)), found.total_s
            )
    yield waits
    longest = GaugeMetricFamily(
        "hrm_queue_longest_wait_seconds",
        "Of the containers that have not started yet.",
        labels=("queue",),
    )
    for status in leaves:
        longest.add_metric((status.spec.name,), status.longest_wait_s)
    yield longest
