"""The part of a GPU that an executor has, shared by its processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from hrm.errors import Unavailable, Unsatisfiable
from hrm.pipelines.client.local import MEMORY_VARIABLE, LocalGpus


def test_an_executor_without_device_memory_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    gpus = LocalGpus()
    assert not gpus.there
    with pytest.raises(Unavailable, match=r"spark\.hrm\.executor\.gpu\.memory"), gpus.share("k"):
        pass


def test_its_part_is_what_its_container_was_requested_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "4096")
    gpus = LocalGpus(tmp_path)
    assert gpus.memory_mib == 4096
    with (
        pytest.raises(Unsatisfiable, match="5000 MiB"),
        gpus.share("k", gpu_memory_mib=5000),
    ):
        pass


@pytest.mark.parametrize(("need_mib", "many"), [(500, 4), (1024, 4), (1025, 2), (3000, 1), (0, 1)])
def test_as_many_steps_at_a_time_as_fit_and_no_more_than_four(
    tmp_path: Path, need_mib: int, many: int
) -> None:
    held: list[Callable[[], None]] = []
    for _ in range(many):
        gpus = LocalGpus(tmp_path, 4096)
        share = gpus.share("k", gpu_memory_mib=need_mib, wait_s=0.0)
        share.__enter__()
        held.append(lambda share=share: share.__exit__(None, None, None))  # type: ignore[misc]
    with (
        pytest.raises(Unavailable, match="no part of this executor's GPU was free for k"),
        LocalGpus(tmp_path, 4096).share("k", gpu_memory_mib=need_mib, wait_s=0.05),
    ):
        pass
    held.pop()()
    with LocalGpus(tmp_path, 4096).share("k", gpu_memory_mib=need_mib, wait_s=0.0):
        pass
    for release in held:
        release()


def _hold(directory: Path, begun: object, end: object) -> None:
    with LocalGpus(directory, 4096).share("k", wait_s=0.0):
        begun.set()  # type: ignore[attr-defined]
        end.wait(30)  # type: ignore[attr-defined]


def test_a_process_that_dies_gives_back_what_it_held(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    begun, end = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, begun, end))
    other.start()
    try:
        assert begun.wait(30)
        with pytest.raises(Unavailable), LocalGpus(tmp_path, 4096).share("k", wait_s=0.0):
            pass
        other.kill()
        other.join(30)
        with LocalGpus(tmp_path, 4096).share("k", wait_s=10.0):
            pass
    finally:
        other.kill()
        other.join(30)
