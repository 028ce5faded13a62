"""Inputs and results of pipeline tasks on the master's disk: bounds, slow and full disks."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from hrm.errors import LimitReached, NotFound
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.master import result_files as pipeline_files
from hrm.pipelines.master.result_files import PipelineFiles


async def content(files: PipelineFiles, task: str, what: str = "out") -> bytes:
    return b"".join([data async for data in files.chunks(TaskId(task), what)])


async def test_files_keep_their_bound(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path / "p", 10)
    await files.put_input(TaskId("a"), b"1234")
    await files.add(TaskId("a"), 1, 0, b"12")
    await files.add(TaskId("a"), 1, 0, b"123")
    await files.add(TaskId("a"), 1, 3, b"4")
    assert files.held_bytes == 8
    with pytest.raises(LimitReached, match="pipeline_held_mib"):
        await files.add(TaskId("a"), 1, 4, b"567")
    assert not files.finish(TaskId("a"), 1, 7)
    assert files.finish(TaskId("a"), 1, 4)
    files.drop(TaskId("a"), result=False)
    assert (files.held_bytes, await content(files, "a")) == (4, b"1234")
    files.drop(TaskId("a"))
    with pytest.raises(NotFound):
        await content(files, "a")
    await emptied(tmp_path / "p")


async def emptied(directory: Path) -> None:
    async with asyncio.timeout(10.0):
        while list(directory.iterdir()):  # noqa: ASYNC110, ASYNC240 - threads empty it
            await asyncio.sleep(0.01)


class SlowDisk:
    """Delays the writing of one task's files; others' are written immediately."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
        self._writing, self.go_on = threading.Event(), threading.Event()
        write = pipeline_files._write

        def slowly(path: Path, data: bytes, mode: str) -> int:
            if path.name.startswith(f"{task}."):
                self._writing.set()
                assert self.go_on.wait(10.0)
            return write(path, data, mode)

        monkeypatch.setattr(pipeline_files, "_write", slowly)

    async def writing(self) -> None:
        assert await asyncio.to_thread(self._writing.wait, 10.0)


async def test_a_slow_disk_delays_its_writer_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "slow")
    files = PipelineFiles(tmp_path / "p", 10)
    slow = asyncio.create_task(files.put_input(TaskId("slow"), b"1234"))
    await disk.writing()
    assert files.held_bytes == 4, "room that is promised"
    await files.put_input(TaskId("quick"), b"5678")
    assert await content(files, "quick", "in") == b"5678"
    with pytest.raises(LimitReached):
        await files.put_input(TaskId("third"), b"9ab")
    reading = asyncio.create_task(content(files, "slow", "in"))
    disk.go_on.set()
    assert await reading == b"1234", "it waits for who writes"
    await slow


async def test_what_is_dropped_while_it_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    files = PipelineFiles(tmp_path / "p", 10)
    adding = asyncio.create_task(files.add(TaskId("t"), 1, 0, b"1234"))
    await disk.writing()
    adding.cancel()
    files.drop(TaskId("t"))
    assert files.held_bytes == 0
    disk.go_on.set()
    await asyncio.gather(adding, return_exceptions=True)
    await emptied(tmp_path / "p")
    assert files.held_bytes == 0


async def test_old_results_make_capacity_and_young_ones_do_not(tmp_path: Path) -> None:
    now = 0.0
    files = PipelineFiles(tmp_path / "p", 10, now_s=lambda: now)
    for name in ("a", "b"):
        await files.add(TaskId(name), 1, 0, b"1234")
        assert files.finish(TaskId(name), 1, 4)
        now += 30.0
    now = 59.0
    with pytest.raises(LimitReached, match="pipeline_held_mib"):
        await files.put_input(TaskId("c"), b"1234")
    now = 61.0
    await files.put_input(TaskId("c"), b"1234")
    with pytest.raises(NotFound, match="evicted for newer ones"):
        await content(files, "a")
    assert await content(files, "b") == b"1234"
    assert files.held_bytes == 8
    now = 1000.0
    with pytest.raises(LimitReached):
        await files.put_input(TaskId("d"), b"x" * 7)
    assert files.held_bytes == 4, "inputs of live tasks stay"


async def test_a_disk_that_is_full_refuses_and_keeps_nothing(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path / "p", 10)
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(LimitReached, match="free space on the master"):
        await files.put_input(TaskId("a"), b"1")
    with pytest.raises(LimitReached, match="free space on the master"):
        await files.add(TaskId("a"), 1, 0, b"1")
    assert files.held_bytes == 0
