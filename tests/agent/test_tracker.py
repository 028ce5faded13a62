"""The tracker on real processes, without a kernel that enforces anything."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hrm.agent.isolation import Isolation
from hrm.agent.tracker import Sample, Tracker, memory_message

Eventually = Callable[..., Any]
HOLD = "print('set', flush=True)\nimport time; time.sleep(600)"


@pytest.fixture
def run() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start Python code and wait until it reports that it is ready."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"set\n"
        return process

    yield begin
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


def sampled(limit_mib: int) -> Sample:
    """One sample of this test's own children, as if they were a container."""
    tracker = Tracker(60.0, lambda _: None)
    tracker.watch("c1", os.getpid(), Isolation(), limit_mib=limit_mib, heap_mib=32)
    return tracker.sample()


def test_usage_of_a_tree(run: Any) -> None:
    run(
        "x = b'x' * (40 << 20)\nimport os\nif os.fork() == 0: os.pause()\n".replace(
            "os.pause()", "__import__('signal').pause()"
        )
        + HOLD
    )
    usage = sampled(limit_mib=4096).containers["c1"]
    assert usage.processes == 2
    assert usage.memory_mib >= 40


def test_over_the_limit_is_reported_once_and_names_it(run: Any) -> None:
    run("x = b'x' * (80 << 20)\n" + HOLD)
    tracker = Tracker(60.0, lambda _: None)
    tracker.watch("c1", os.getpid(), Isolation(), limit_mib=64, heap_mib=32)
    (breach,) = tracker.sample().breaches
    assert breach.container_id == "c1"
    assert "of 64 MiB (spark.executor.memory of 32 MiB + overhead of 32 MiB); " in breach.message
    assert "raise spark.executor.memoryOverhead" in breach.message
    assert tracker.sample().breaches == ()


def test_shared_pages_count_once(run: Any) -> None:
    fork = "for _ in range(4):\n  if os.fork() == 0: signal.pause()\n"
    code = f"x = b'x' * (60 << 20)\nimport os, signal\n{fork}"
    run(code + HOLD)
    sample = sampled(limit_mib=200)  # resident sizes add up to 300
    assert sample.breaches == ()
    assert 60 <= sample.containers["c1"].memory_mib < 200


def test_cpu_is_percent_of_one_cpu(run: Any, eventually: Eventually) -> None:
    run("print('set', flush=True)\nwhile True: pass")
    tracker = Tracker(60.0, lambda _: None)
    tracker.watch("c1", os.getpid(), Isolation(), limit_mib=4096)
    assert tracker.sample().containers["c1"].cpu_percent == 0.0
    busy = eventually(lambda: tracker.sample().containers["c1"].cpu_percent > 5)
    assert busy


def test_samples_come_by_themselves_and_stop() -> None:
    seen = threading.Event()
    samples: list[Sample] = []

    def take(sample: Sample) -> None:
        samples.append(sample)
        if len(samples) == 1:
            raise RuntimeError("one bad sample must not end the watch")
        seen.set()

    tracker = Tracker(0.02, take)
    tracker.watch("gone", 2**22 + 1, Isolation(), limit_mib=64)
    tracker.start()
    assert seen.wait(10)
    tracker.stop()
    assert threading.active_count() == 1 or not tracker._thread.is_alive()
    assert samples[0].containers["gone"].processes == 0
    assert samples[0].node.memory_total_mib > samples[0].node.memory_mib > 0


def test_the_message_without_a_measurement() -> None:
    assert memory_message(None, 512).startswith("needed more than its 512 MiB (spark.executor.mem")
    assert memory_message(612, 512).startswith("used 612 MiB of 512 MiB (spark.executor.memory")
