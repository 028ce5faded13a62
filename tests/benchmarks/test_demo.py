"""What the demo reports of the master's replies, and that it does not accept wrong ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

pytest.importorskip("pyspark")

from benchmarks import checks, demo
from benchmarks.apps.topk_stream import key_of_value
from benchmarks.apps.word_blocks import WORDS, blocks_of
from hrm.v1 import admin_pb2, common_pb2


def _container(number: int, started_at_s: float) -> common_pb2.ContainerStatus:
    return common_pb2.ContainerStatus(
        executor_id=str(number),
        resources=common_pb2.Resources(vcores=1, memory_mib=1536),
        state=common_pb2.CONTAINER_STATE_ENDED,
        node="node-1",
        resource_unit_id="cpu-0",
        requested_at_s=100.0,
        started_at_s=started_at_s,
        ended_at_s=130.0,
        end=common_pb2.ContainerEnd(cause=common_pb2.END_CAUSE_RELEASED),
    )


@pytest.fixture
def applications() -> dict[str, admin_pb2.Application]:
    shared: dict[str, Any] = {
        "state": common_pb2.APPLICATION_STATE_SUCCEEDED,
        "submitted_at_s": 99.0,
        "first_running_at_s": 102.0,
        "ended_at_s": 131.0,
    }
    return {
        demo.STREAM: admin_pb2.Application(
            name=demo.STREAM,
            workload_class=common_pb2.WORKLOAD_CLASS_STREAM,
            class_evidence="query topk, trigger 1 seconds",
            containers=[_container(1, 102.0)],
            **shared,
        ),
        demo.WORDCOUNT: admin_pb2.Application(
            name=demo.WORDCOUNT,
            workload_class=common_pb2.WORKLOAD_CLASS_BATCH,
            containers=[_container(1, 103.0), _container(2, 0.0)],
            **shared,
        ),
    }


def _history(applications: dict[str, admin_pb2.Application]) -> demo.History:
    history = demo.History()
    history.add(applications.values())
    history.add(applications.values())
    assert [len(classes) for classes in history.classes.values()] == [1, 1]
    return history


def _text(table: Table) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_tables_name_class_evidence_place_and_wait(
    applications: dict[str, admin_pb2.Application],
) -> None:
    text = _text(_history(applications).table())
    assert "STREAM" in text
    assert "query topk, trigger 1 seconds" in text
    assert "no streaming query seen" in text
    text = _text(demo.application_table(applications.values()))
    assert "3.0 s" in text
    assert "32.0 s" in text
    text = _text(demo.container_table(applications.values()))
    assert "cpu-0" in text
    assert "30.0 s, never started" in text
    assert "28.0 s" in text
    assert "released" in text


def test_every_part_that_failed_is_a_complaint(
    applications: dict[str, admin_pb2.Application],
) -> None:
    words = checks.expected_words(["a b a"])
    counts = Counter(key_of_value(value) for value in range(500))
    ranked = [[key, n] for key, n in sorted(counts.items(), key=lambda p: (-p[1], p[0]))]
    top: dict[str, Any] = {"batches": 1, "last": [{"batch": 0, "top": ranked}]}
    history = _history(applications)
    assert demo.complaints_of(applications, history, words, top, [words], words) == []
    applications[demo.STREAM].workload_class = common_pb2.WORKLOAD_CLASS_BATCH
    history.add(applications.values())  # the query has ended: no complaint
    assert demo.complaints_of(applications, history, words, top, [words], words) == []
    history = _history(applications)
    applications[demo.WORDCOUNT].state = common_pb2.APPLICATION_STATE_FAILED
    applications[demo.WORDCOUNT].message = "driver lost"
    wrong = demo.complaints_of(
        applications, history, {**words, "words": 4}, {"last": []}, [], words
    )
    assert len(wrong) == 5
    assert any("classed BATCH, not STREAM" in text for text in wrong)
    assert any("driver lost" in text for text in wrong)


def test_blocks_are_whole_lines_and_the_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("".join(f"line {'word ' * (number % 7)}\n" for number in range(200)))
    blocks = blocks_of(path, 9)
    read = [WORDS.steps["read"](block) for block in blocks]
    assert b"".join(read) == path.read_bytes()
    assert all(text.endswith(b"\n") for text in read if text)
    counted = [WORDS.run_here(block)["words"] for block in blocks]
    with path.open() as lines:
        assert sum(counted) == checks.expected_words(lines)["words"]
