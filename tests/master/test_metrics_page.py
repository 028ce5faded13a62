"""Metrics of queues: what Prometheus reads, and what it may not reach."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hrm.config import MasterSettings
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
from hrm.core.tenancy.queue_status import QueueStatus, QueueWait, WaitReason
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import Unavailable
from hrm.master import metrics_page
from hrm.master.metrics_page import QUEUES_MAX, MetricsPage, metrics_text

NOTHING = (0.0, 0.0, 0.0)
LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]+"(,[a-z]+="[^"]+")?\})? -?[0-9.e+]+')


def status(name: str, *reasons: WaitReason, is_leaf: bool = True) -> QueueStatus:
    waiting = tuple(
        QueueWait(
            application_id=ApplicationId(f"app-{number}"), user="ana", position=number,
            containers=1, reason=reason, why="",
        )
        for number, reason in enumerate(reasons, 1)
    )  # fmt: skip
    return QueueStatus(
        spec=QueueSpec(name=QueueName(name)), is_leaf=is_leaf, guaranteed=(2.5, 1024.0, 1.0),
        maximum=NOTHING, share=NOTHING, used=(1.0, 512.0, 0.0), borrowed=NOTHING, pending=NOTHING,
        running=3, applications=5, waiting=waiting,
    )  # fmt: skip


def test_amounts_are_in_base_units_and_every_reason_is_there() -> None:
    text = metrics_text(
        [
            status("root", is_leaf=False),
            status("root.a", WaitReason.MAX_RUNNING, WaitReason.NO_PLACE, WaitReason.NO_PLACE),
        ]
    )
    lines = text.splitlines()
    assert 'hrm_queue_guaranteed{queue="root.a",resource="cores"} 2.5' in lines
    assert 'hrm_queue_used{queue="root.a",resource="memory_bytes"} 536870912' in lines
    assert 'hrm_queue_guaranteed{queue="root",resource="gpu_memory_bytes"} 1048576' in lines
    assert 'hrm_queue_applications_waiting{queue="root.a",reason="no-place"} 2' in lines
    assert 'hrm_queue_applications_waiting{queue="root.a",reason="gang"} 0' in lines
    assert 'hrm_queue_applications_running{queue="root"} 3' in lines
    assert not [line for line in lines if 'queue="root",reason' in line], "only leaves have them"
    assert all(line.startswith("# ") or LINE.fullmatch(line) for line in lines)
    assert text.endswith("\n")
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_the_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    many = [status(f"root.a.q{number}") for number in range(QUEUES_MAX + 5)]
    text = metrics_text([*many, status("root"), status("root.a")])
    assert "hrm_queues_left_out 7\n" in text
    assert text.count('hrm_queue_applications{queue="root') == QUEUES_MAX
    assert 'hrm_queue_applications{queue="root.a"}' in text, "those near the root come first"


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    page = MetricsPage(lambda: [status("root")])
    server = await page.start("127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def fetch(port: int, request: str) -> str:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        received = await reader.read()
        writer.close()
    return received.decode()


async def test_the_page_is_served_in_prometheus_format() -> None:
    async with served() as port:
        found = await fetch(port, "GET /metrics HTTP/1.1\r\n\r\n")
        assert found.startswith("HTTP/1.1 200 OK\r\n")
        assert "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in found
        assert found.endswith("hrm_queues_left_out 0\n")
        head = await fetch(port, "HEAD /metrics?x=1 HTTP/1.1\r\n\r\n")
        assert head.endswith("\r\n\r\n")
        assert " 404 " in await fetch(port, "GET / HTTP/1.1\r\n\r\n")
        assert " 405 " in await fetch(port, "POST /metrics HTTP/1.1\r\n\r\n")
        assert " 400 " in await fetch(port, "nonsense\r\n\r\n")


async def test_a_port_in_use_is_named_with_the_setting(tmp_path: Path) -> None:
    async with served() as port:
        settings = MasterSettings(metrics_port=port, state_dir=tmp_path, token_file=tmp_path / "t")
        with pytest.raises(Unavailable, match=rf"metrics on 127.0.0.1:{port}: .*--metrics-port"):
            async with metrics_page.serving(settings, list, None):
                pass
