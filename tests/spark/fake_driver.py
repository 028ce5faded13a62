"""The driver as an AppMaster sees it, without Spark and without a JVM.

A real AppMaster process on one side, and on the other as much of a py4j gateway as its bridge
needs: one entry point whose methods take texts and numbers and return a text or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.fake_master import FakeMaster, until

__all__ = ["FakeDriver", "fake_driver", "progress", "target", "until_registered"]

AUTH_TOKEN = "fake-driver"


def target(count: int) -> dict[str, Any]:
    sizes = {"vcores": 1, "heap_mib": 512, "memory_mib": 896}
    return {"event": "targets", "targets": [{"profile": 0, "count": count, **sizes}]}


def progress(completed: int) -> dict[str, Any]:
    counts = ("active_jobs", "active_stages", "completed_stages")
    tasks = {"tasks_total": 0, "tasks_running": 0, "tasks_completed": completed, "tasks_failed": 0}
    rest: dict[str, Any] = {"mean_task_s": 0.1, "streaming_queries": [], "stages": []}
    return {"event": "progress", **dict.fromkeys(counts, 0), **tasks, **rest}


@dataclass
class FakeDriver:
    """Calls of the AppMaster in ``calls``; ``send`` queues events for it."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    process: asyncio.subprocess.Process = field(init=False)
    _events: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    _connections: set[asyncio.Task[None] | None] = field(default_factory=set)

    def send(self, *events: dict[str, Any]) -> None:
        for event in events:
            self._events.put_nowait(event)

    def finish(self, state: str = "SUCCEEDED") -> None:
        self.send({"event": "finish", "state": state, "message": ""})

    def calls_of(self, method: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == method]

    async def end(self, timeout_s: float = 20.0) -> int:
        return await asyncio.wait_for(self.process.wait(), timeout_s)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await self._line(reader) == "A"
            assert await self._line(reader) == AUTH_TOKEN
            writer.write(b"!yv\n")
            while True:
                kind, _owner, method = [await self._line(reader) for _ in range(3)]
                arguments = []
                while (part := await self._line(reader)) != "e":
                    arguments.append(part[1:])
                if kind == "c" and method == "nextEvents":
                    text = json.dumps(await self._next_events()).replace("\\", "\\\\")
                    writer.write(f"!ys{text}\n".encode())
                else:
                    self.calls.append((method, *arguments))
                    writer.write(b"!yv\n")
        writer.close()

    async def close(self) -> None:
        """Lets the AppMaster's last poll end, and its connections with it."""
        self.send({"event": "over"})
        await asyncio.wait_for(asyncio.gather(*filter(None, self._connections)), 5)

    @staticmethod
    async def _line(reader: asyncio.StreamReader) -> str:
        return (await reader.readuntil()).decode().rstrip("\n")

    async def _next_events(self) -> list[dict[str, Any]]:
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events


@contextlib.asynccontextmanager
async def fake_driver(
    master: FakeMaster, directory: Path, *, setup: str = "", **changes: Any
) -> AsyncIterator[FakeDriver]:
    """A driver with an AppMaster; ``setup`` is Python that runs in the AppMaster first."""
    driver = FakeDriver()
    gateway = await asyncio.start_server(driver.serve, "127.0.0.1", 0)
    introduction: dict[str, Any] = {
        "port": gateway.sockets[0].getsockname()[1], "auth_token": AUTH_TOKEN,
        "application_id": "", "executors": {}, "max_failures": 0, "failures_validity_ms": 3_600_000,
        "retry_delay_ms": 100, "retry_delay_max_ms": 10_000, "locality_wait_ms": 3_000,
        "class": "", "master": master.address, "token_file": str(master.token_file), "tls_ca": "",
        "allow_clear_text": "",
        "master_timeout_ms": 60_000, "registration_timeout_ms": 20_000, "stop_timeout_ms": 5_000,
        "name": "n", "user": "u", "queue": "", "spark_version": "4.3.0", "driver_host": "h",
        "web_url": "", "submission_key": "k", "ownership_key": "k" * 64,
        "launch": {
            "driver_url": "spark://x", "spark_version": "4.3.0", "environment": {},
            "java_options": [], "extra_class_path": [], "decommissions": True,
        },
    }  # fmt: skip
    program = f"import os\nfrom hrm.spark import appmaster\n{setup}\nos._exit(appmaster.main())\n"
    with (directory / "appmaster.log").open("wb") as log:
        driver.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
        )
    assert driver.process.stdin is not None
    driver.process.stdin.write(json.dumps(introduction | changes).encode() + b"\n")
    try:
        yield driver
    finally:
        if driver.process.returncode is None:
            os.kill(driver.process.pid, signal.SIGKILL)
            await driver.process.wait()
        gateway.close()
        await driver.close()


async def until_registered(driver: FakeDriver) -> None:
    await until(lambda: driver.calls_of("registered"), 20, "registered")
