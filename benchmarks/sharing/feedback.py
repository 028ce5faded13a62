"""The feedback gap: how long a node's capacity stays free between two containers.

Where a container waits at the node, the next one begins when the last has ended, with no message to
anyone. Where none may wait there (``waiting_limit`` 0), the end travels to the master, a scheduler
claims what is free, and the order travels back. Both are measured on the same node: one application
has far more executors requested than fit, and one running executor after another is killed.

The gap is taken apart at four moments, all by the node's own clock and records: the last process of
a container is gone (``exit.json``); the node starts the next (``started_at_s`` of its report); it
begins to launch it (``container.json`` is written); its process runs (``process.json``). The first
step contains that the node learns of the end, with queues and without: what queues save is the
difference.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clusters import Shape
from benchmarks.demo import Admin
from benchmarks.processes import wait_until
from benchmarks.startup import Started
from hrm.v1 import common_pb2

__all__ = ["Gap", "Records", "await_queue", "gaps_of", "measure"]

_APP = Path(__file__).resolve().parent.parent / "apps" / "hold.py"
_SLOTS = 2
_START_LIMIT_S = 120.0
_NEXT_LIMIT_S = 60.0
_REGISTER_S = 4.0
"""A JVM that starts takes the cores for about so long."""


class _Queueing(Started):
    """HRM with one node, at which so many containers may wait."""

    waiting_limit = 64

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HRM_MASTER_WAITING_LIMIT": str(self.waiting_limit),
            "HRM_MASTER_NODE_FAILURES": "0",  # executors are killed on purpose
        }


class _Direct(_Queueing):
    """The same, and none may wait there."""

    waiting_limit = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Between two containers, seconds: from the end of the first until the node started the second
    (``decide_s``), until it began to launch it (``launch_s``), and until its process ran
    (``start_s``)."""

    decide_s: float
    launch_s: float
    start_s: float

    @property
    def node_s(self) -> float:
        """From one container gone until the next is being launched."""
        return self.decide_s + self.launch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Of one container, seconds since the epoch, None: not yet."""

    container: str
    pid: int = 0
    decided_s: float | None = None
    launched_s: float
    runs_s: float | None = None
    gone_s: float | None = None


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(path.read_text())
        if isinstance(document, dict):
            return document
    return {}


def read_records(state_dir: Path, decided: Mapping[str, float] | None = None) -> list[Records]:
    """Of every container that a node has begun to launch. ``decided``: when it started each, as it
    has reported."""
    found = []
    for path in state_dir.glob("nodes/*/containers/*/container.json"):
        process, ended = _json(path.with_name("process.json")), _json(path.with_name("exit.json"))
        found.append(
            Records(
                container=path.parent.name,
                pid=process.get("pid", 0),
                decided_s=(decided or {}).get(path.parent.name),
                launched_s=path.stat().st_mtime_ns / 1e9,
                runs_s=process.get("started_at_s"),
                gone_s=ended.get("ended_at_s"),
            )
        )
    return found


def gaps_of(records: Iterable[Records]) -> list[Gap]:
    """The gaps before all launches that an end made possible.

    One container is ended at a time, so that is the last end before the node decided.
    """
    known = list(records)
    found = []
    for each in known:
        if each.decided_s is None or each.runs_s is None:
            continue
        ends = [x.gone_s for x in known if x.gone_s is not None and x.gone_s <= each.decided_s]
        if not ends:
            continue
        # Stamps of files are up to a tick of the kernel too early.
        launched_s = max(each.launched_s, each.decided_s)
        found.append(
            Gap(
                decide_s=each.decided_s - max(ends),
                launch_s=launched_s - each.decided_s,
                start_s=each.runs_s - launched_s,
            )
        )
    return found


def _containers(cluster: Started) -> list[common_pb2.ContainerStatus]:
    """All of the master's."""
    admin = Admin(cluster.master.removeprefix("hrm://"), cluster.token_file)
    try:
        return [each for app in admin.applications().values() for each in app.containers]
    finally:
        admin.close()


def await_queue(
    containers: Callable[[], Iterable[common_pb2.ContainerStatus]],
    *,
    queues: bool,
    limit_s: float = _NEXT_LIMIT_S,
) -> None:
    """Until a container waits at the unit, or, without ``queues``, until none does.

    Raises:
        BenchmarkError: what is measured would not be what it is called.
    """

    def waits() -> bool:
        return any(x.state == common_pb2.CONTAINER_STATE_WAITING for x in containers())

    what = "a container to wait at the unit" if queues else "no container to wait at the unit"
    wait_until(lambda: waits() is queues, limit_s, what)


def measure(directory: Path, count: int, *, queues: bool) -> list[Gap]:
    """End ``count`` executors one by one, with or without ``queues`` at the node.

    Raises:
        BenchmarkError: something did not happen within its limit, or a container waited at the
            unit where none may, or none where they may.
    """
    shape = Shape(
        nodes=1, cores_per_node=_SLOTS, memory_per_node_mib=_SLOTS * 1024,
        executor_memory_mib=512, executor_overhead_mib=384, executors=_SLOTS + 2 * count,
        executor_cores=1,
    )  # fmt: skip
    kind = _Queueing if queues else _Direct
    with kind(shape, directory / f"feedback-{'queues' if queues else 'direct'}") as cluster:
        until = directory / f"until-{queues}"
        where = directory / f"hold-{queues}"
        settings = cluster.submit_settings()
        settings |= {
            "spark.hrm.executor.maxFailures": "1000",
            "spark.eventLog.dir": (where / "events").as_uri(),
        }
        submission = cluster.submit(_APP, ["--until", until], where, settings)

        def running() -> list[Records]:
            records = read_records(cluster.state_dir)
            return [x for x in records if x.runs_s is not None and x.gone_s is None]

        wait_until(lambda: len(running()) == _SLOTS, _START_LIMIT_S, "the first executors")
        for _ in range(count):
            await_queue(lambda: _containers(cluster), queues=queues)
            # Until the last start's processor time is spent; there is no event for that.
            time.sleep(_REGISTER_S)
            oldest = min(running(), key=lambda each: each.launched_s)
            os.kill(oldest.pid, signal.SIGKILL)

            def replaced(gone: int = oldest.pid) -> bool:
                pids = [each.pid for each in running()]
                return len(pids) == _SLOTS and gone not in pids

            wait_until(replaced, _NEXT_LIMIT_S, "the next executor to start")
        decided = {x.container_id: x.started_at_s for x in _containers(cluster) if x.started_at_s}
        found = gaps_of(read_records(cluster.state_dir, decided))
        until.touch()
        submission.result(_NEXT_LIMIT_S)
    return found
