"""The client without a cluster."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hrm.pipeline.client import Client, Task, TaskResult
from hrm.v1 import pipeline_pb2 as pb


class _Away:
    """A stub of a master that answers nobody before all have asked."""

    def __init__(self, asking: int) -> None:
        self._all = asyncio.Barrier(asking)
        self.cancelled: list[str] = []

    async def Cancel(self, request: Any, timeout: float) -> None:  # noqa: N802
        async with asyncio.timeout(5.0):
            await self._all.wait()
        self.cancelled.append(request.task_id)


def test_many_are_cancelled_at_once_and_not_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 40 + "\n")
    token.chmod(0o600)
    with Client("127.0.0.1:1", token_path=token, patience_s=0.0) as client:
        away = _Away(3)
        monkeypatch.setattr(client, "_stub", away)
        done: Future[TaskResult] = Future()
        done.set_result(TaskResult(task_id="done", value=1))
        tasks = [
            Task(client, pb.SubmitPipelineTaskRequest(task_id=name), future)
            for name, future in [("a", Future()), ("done", done), ("b", Future()), ("c", Future())]
        ]
        client.cancel_all(tasks, "no more")
        assert sorted(away.cancelled) == ["a", "b", "c"]
