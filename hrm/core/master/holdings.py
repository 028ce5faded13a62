"""What applications hold of the master's memory, counted in bytes, and bounded.

Two sums are kept: of what live applications need to start their executors (environment, options, a
driver's document), and of what is kept of ended ones. An application that would exceed the first is
not admitted; beyond the second the oldest are forgotten.

Sizes are estimates: the characters of texts, and a flat amount for each record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    NO_LAUNCH,
    ContainerEnd,
    ContainerRequest,
    LaunchContext,
    Progress,
)
from hrm.core.vocabulary.records import ApplicationRecord

__all__ = ["Holdings", "kept_bytes", "launch_bytes"]

_RECORD_BYTES = 2_048
_CONTAINER_BYTES = 1_024
_MIB = 1024 * 1024


class _Container(Protocol):
    """What is counted of one that has ended."""

    request: ContainerRequest
    end: ContainerEnd | None
    stdout_url: str
    stderr_url: str


class _Application(Protocol):
    """What is counted of one, and given up at its end."""

    record: ApplicationRecord
    launch: LaunchContext
    progress: Progress | None
    refusal: str
    kept_bytes: int

    @property
    def ended(self) -> Iterable[_Container]: ...


class Holdings:
    """Invariants: ``live_bytes`` is the sum of ``launch_bytes`` over live applications,
    ``ended_bytes`` that of ``kept_bytes`` over ended ones. ``dropped_bytes``: launches, so far."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.live_bytes = 0
        self.ended_bytes = 0
        self.dropped_bytes = 0

    def refusal(self, app: _Application | None, launch: LaunchContext) -> str:
        """Why ``launch`` is more than may be held; empty if it is not. ``app``: its application, if
        there is one already."""
        more = launch_bytes(launch) - (launch_bytes(app.launch) if app is not None else 0)
        limit_mib = self._bounds.launches_held_mib
        if more <= 0 or self.live_bytes + more <= limit_mib * _MIB:
            return ""
        return (
            f"the environments and options of live applications may have {limit_mib} MiB together "
            f"(launches_held_mib), and {self.live_bytes / _MIB:.1f} MiB are held; wait for one to "
            f"end, send less, or raise it in hrm.toml [master]"
        )

    def took(self, app: _Application, launch: LaunchContext) -> None:
        """``launch`` is the one of a live application from now on."""
        before = launch_bytes(app.launch)
        self.live_bytes += launch_bytes(launch) - before
        self.dropped_bytes += before
        app.launch = launch

    def ended(self, app: _Application) -> None:
        """It has ended: what only a live one needs is dropped, the rest is counted."""
        self.took(app, NO_LAUNCH)
        if app.progress is not None:
            app.progress = replace(app.progress, streaming_queries=(), stages=())
        app.refusal = ""
        app.kept_bytes = kept_bytes(app)
        self.ended_bytes += app.kept_bytes

    def changed(self, app: _Application) -> None:
        """The record of one that had ended is another one."""
        self._count(app, kept_bytes(app) - app.kept_bytes)

    def container_ended(self, app: _Application, container: _Container) -> None:
        """One of an application that had ended before."""
        self._count(app, _container_bytes(container))

    def container_forgotten(self, app: _Application, container: _Container) -> None:
        self._count(app, -_container_bytes(container))

    def _count(self, app: _Application, size: int) -> None:
        if app.kept_bytes:
            app.kept_bytes += size
            self.ended_bytes += size

    def forgotten(self, app: _Application) -> None:
        self.ended_bytes -= app.kept_bytes
        app.kept_bytes = 0

    @property
    def too_many_ended(self) -> bool:
        return self.ended_bytes > self._bounds.ended_applications_mib * _MIB


def launch_bytes(launch: LaunchContext) -> int:
    """What a launch context holds, in characters."""
    if launch is NO_LAUNCH:
        return 0
    texts = (
        launch.driver_url, launch.spark_version, launch.driver, launch.worker,
        launch.decommission_signal,
        *launch.java_options, *launch.extra_class_path,
        *(text for file in launch.files for text in (file.sha256, file.name, file.archive)),
    )  # fmt: skip
    return sum(map(len, texts)) + sum(len(k) + len(v) for k, v in launch.environment)


def kept_bytes(app: _Application) -> int:
    """What an ended application holds: its record and its latest containers."""
    record = app.record
    texts = (
        record.name, record.user, record.queue, record.class_evidence, record.spark_version,
        record.driver_host, record.web_url, record.driver_start, record.message,
    )  # fmt: skip
    return _RECORD_BYTES + sum(map(len, texts)) + sum(map(_container_bytes, app.ended))


def _container_bytes(container: _Container) -> int:
    message = container.end.message if container.end is not None else ""
    urls = len(container.stdout_url) + len(container.stderr_url)
    hosts = sum(map(len, container.request.hosts))
    return _CONTAINER_BYTES + len(message) + urls + hosts
