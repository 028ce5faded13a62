"""Metrics of queues: what Prometheus reads, and what it may not reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hrm.config import MasterSettings
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
from hrm.core.tenancy.queue_status import QueueStatus, QueueWait, WaitReason
from hrm.core.tenancy.waiting_times import WaitSummary
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import Unavailable
from hrm.master import metrics_page
from hrm.master.metrics_page import QUEUES_MAX, MetricsPage, metrics_text

NOTHING = (0.0, 0.0, 0.0)
NONE = FairnessSummary(half_life_s=600.0)


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


def samples(text: str) -> dict[str, float]:
    """As Prometheus reads them: the value of each, by its name with labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


def test_amounts_are_in_base_units_and_every_reason_is_there() -> None:
    text = metrics_text(
        [
            status("root", is_leaf=False),
            status("root.a", WaitReason.MAX_RUNNING, WaitReason.NO_PLACE, WaitReason.NO_PLACE),
        ],
        NONE,
    )
    found = samples(text)
    assert found['hrm_queue_guaranteed{queue="root.a",resource="cores"}'] == 2.5
    assert found['hrm_queue_used{queue="root.a",resource="memory_bytes"}'] == 536870912
    assert found['hrm_queue_guaranteed{queue="root",resource="gpu_memory_bytes"}'] == 1048576
    assert found['hrm_queue_applications_waiting{queue="root.a",reason="no-place"}'] == 2
    assert found['hrm_queue_applications_waiting{queue="root.a",reason="gang"}'] == 0
    assert found['hrm_queue_applications{queue="root"}'] == 5
    assert found['hrm_queue_applications_running{queue="root"}'] == 3
    assert not [x for x in found if 'queue="root",reason' in x], "only leaves have them"
    assert text.endswith("\n")
    lines = text.splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    helped = [line for line in lines if line.startswith("# HELP")]
    assert "# HELP hrm_queue_share What the queue may have now, by what all want." in helped
    assert len(helped) == len(names)
    assert all(name.startswith("hrm_") for name in names), "nothing of the process"


def test_how_queues_were_served_is_there_of_leaves_of_which_it_is_known() -> None:
    seen = LeafObservation(
        takes_part=True, throughput=0.5, entitled=8.0, held=4.0, speed=None, busy=0.75,
        waits=WaitSummary(
            p50_s=1.0, p90_s=2.0, p99_s=3.0, starts=4.0,
            buckets=(1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1), total_s=20_000.5,
        ),
    )  # fmt: skip
    between = FairnessSummary(half_life_s=600.0, queues=2, fairness=0.5, jain=0.8, spread=3.0)
    leaf = replace(status("root.a"), observed=seen, longest_wait_s=33.0)
    idle = replace(status("root.b"), observed=replace(seen, takes_part=False, busy=None))

    found = samples(metrics_text([leaf, idle, status("root.c")], between))

    assert found["hrm_fairness"] == 0.5
    assert found["hrm_fairness_queues"] == 2
    throughputs = {x: y for x, y in found.items() if "normalised_throughput" in x}
    assert throughputs == {'hrm_queue_normalised_throughput{queue="root.a"}': 0.5}
    assert found['hrm_queue_due_cores{queue="root.a"}'] == 8
    assert found['hrm_queue_busy_ratio{queue="root.a"}'] == 0.75
    assert 'hrm_queue_busy_ratio{queue="root.b"}' not in found
    assert found['hrm_queue_longest_wait_seconds{queue="root.a"}'] == 33
    bucket = 'hrm_queue_wait_seconds_bucket{le="%s",queue="root.a"}'
    assert [found[bucket % x] for x in ("0.1", "0.5", "15.0", "60.0", "14400.0", "+Inf")] == [
        1, 3, 3, 6, 6, 7,
    ]  # fmt: skip
    assert found['hrm_queue_wait_seconds_count{queue="root.a"}'] == 7
    assert found['hrm_queue_wait_seconds_sum{queue="root.a"}'] == 20_000.5
    assert 'hrm_queue_wait_seconds_count{queue="root.c"}' not in found


def test_unknown_fairness_has_no_value() -> None:
    found = samples(metrics_text([status("root")], NONE))
    assert "hrm_fairness" not in found
    assert found["hrm_fairness_queues"] == 0


def test_the_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    many = [status(f"root.a.q{number}") for number in range(QUEUES_MAX + 5)]
    found = samples(metrics_text([*many, status("root"), status("root.a")], NONE))
    assert found["hrm_queues_left_out"] == 7
    assert sum(x.startswith("hrm_queue_applications{") for x in found) == QUEUES_MAX
    assert 'hrm_queue_applications{queue="root.a"}' in found, "those near the root come first"


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    page = MetricsPage(lambda: [status("root")], lambda: NONE)
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
        assert found.endswith("hrm_queues_left_out 0.0\n")
        head = await fetch(port, "HEAD /metrics?x=1 HTTP/1.1\r\n\r\n")
        assert head.endswith("\r\n\r\n")
        assert " 404 " in await fetch(port, "GET / HTTP/1.1\r\n\r\n")
        assert " 405 " in await fetch(port, "POST /metrics HTTP/1.1\r\n\r\n")
        assert " 400 " in await fetch(port, "nonsense\r\n\r\n")


async def test_the_master_goes_on_while_the_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def text(*_: object) -> str:
        begun.set()
        return "free" if goes_on.wait(10) else "held up"

    monkeypatch.setattr(metrics_page, "metrics_text", text)
    async with served() as port:
        fetching = asyncio.create_task(fetch(port, "GET /metrics HTTP/1.1\r\n\r\n"))
        await asyncio.to_thread(begun.wait, 10)
        goes_on.set()
        assert (await fetching).endswith("free")


async def test_a_port_in_use_is_named_with_the_setting(tmp_path: Path) -> None:
    async with served() as port:
        settings = MasterSettings(metrics_port=port, state_dir=tmp_path, token_file=tmp_path / "t")
        with pytest.raises(Unavailable, match=rf"metrics on 127.0.0.1:{port}: .*--metrics-port"):
            async with metrics_page.serving(settings, list, lambda: NONE, None):
                pass
