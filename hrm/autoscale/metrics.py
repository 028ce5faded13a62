"""Metrics of ``hrm autoscale`` for Prometheus, at ``/metrics`` of a port of its own.

There is no token: the page has numbers of nodes and of calls, no names. A gauge is missing until
there is something to say: the forecast's until there is one, all of them before the first look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hrm.core.pool.scaler import PoolSample, Scaler
from hrm.errors import Unavailable

__all__ = ["PoolMetrics"]

_NODES = {
    "wanted": "What the present demand, the forecast and guarantees want, within the bounds.",
    "target": "What there should be in service.",
    "in_service": "Nodes that get new containers.",
    "known": "Nodes that the master knows and has not lost.",
    "leaving": "Nodes that are drained to be removed.",
    "needed": "For what runs and waits now.",
    "forecast": "For the P90 of the present and the next interval.",
    "guaranteed": "For what queues are guaranteed in numbers.",
}


class PoolMetrics:
    """The series of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._nodes = _Nodes()
        self.registry.register(self._nodes)
        self._calls = Counter(
            "hrm_autoscale_hook_calls", "Calls of the hook, by how they ended.", ("outcome",),
            registry=self.registry,
        )  # fmt: skip
        self._failures = Gauge(
            "hrm_autoscale_hook_failures_in_a_row", "Calls since the last that succeeded.",
            registry=self.registry,
        )  # fmt: skip
        self._looks = Counter(
            "hrm_autoscale_looks", "Looks at the pool, by how they ended.", ("outcome",),
            registry=self.registry,
        )  # fmt: skip
        for outcome in ("succeeded", "failed"):
            self._calls.labels(outcome)
            self._looks.labels(outcome)

    def looked(self, sample: PoolSample, scaler: Scaler) -> None:
        """After a look, whatever it has led to."""
        self._looks.labels("succeeded").inc()
        found = {
            "wanted": scaler.wanted(sample),
            "target": scaler.target,
            "in_service": sum(node.is_open for node in sample.nodes),
            "known": len(sample.nodes),
            "leaving": len(scaler.leaving),
            "needed": sample.needed_nodes,
            "forecast": sample.forecast_nodes,
            "guaranteed": sample.guaranteed_nodes,
        }
        self._nodes.found = {name: count for name, count in found.items() if count is not None}

    def look_failed(self) -> None:
        """The master could not be asked."""
        self._looks.labels("failed").inc()

    def called(self, *, ok: bool, failures_in_a_row: int) -> None:
        """The hook has ended."""
        self._calls.labels("succeeded" if ok else "failed").inc()
        self._failures.set(failures_in_a_row)

    @contextmanager
    def serving(self, host: str, port: int | None) -> Iterator[str]:
        """Serve them meanwhile; yields the page's address, empty where ``port`` is None.

        Raises:
            Unavailable: the port is in use.
        """
        if port is None:
            yield ""
            return
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise Unavailable(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; name another "
                "port with --metrics-port"
            ) from error
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=10.0)


class _Nodes(Collector):
    """``found``: numbers of nodes at the last look."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        for name, count in self.found.items():
            yield GaugeMetricFamily(f"hrm_autoscale_nodes_{name}", _NODES[name], value=count)
