"""Disk use: what is counted, which containers are over a limit, and what happens to them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent import disk_watch
from hrm.agent.disk_watch import DiskUse, DiskWatch, Measured, measure
from hrm.core.vocabulary.model import EndCause
from hrm.v1 import common_pb2
from tests.agent.conftest import ENDED, RUNNING, Master, StartAgent

Eventually = Callable[..., Any]
MIB = 1 << 20


def fill(path: Path, mib: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(MIB) * mib)
    return path


def measured(directory: Path, **more: int) -> Measured:
    return measure(directory, threading.Event(), **more)


def test_blocks_count_wherever_they_are(tmp_path: Path) -> None:
    fill(tmp_path / "local/blockmgr-1/0a/shuffle_0_0_0.data", 3)
    fill(tmp_path / "stdout", 2)
    assert measured(tmp_path) == Measured(5, whole=True)


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    os.link(fill(tmp_path / "a", 3), tmp_path / "b")
    assert measured(tmp_path).mib == 3


def test_a_sparse_file_counts_what_is_on_disk(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measured(tmp_path).mib == 0


def test_links_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere/data", 4)
    here = tmp_path / "here"
    here.mkdir()
    (here / "link").symlink_to(tmp_path / "elsewhere")
    (here / "loop").symlink_to(here)
    assert measured(here).mib == 0


def test_what_is_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    assert measured(tmp_path / "gone") == Measured(0, whole=True)


def test_more_files_than_are_examined_are_reported(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert not measured(tmp_path, entries_max=19).whole
    assert measured(tmp_path, entries_max=20).whole


def test_directories_too_deep_to_walk_are_reported(tmp_path: Path) -> None:
    before = Path.cwd()
    deep = tmp_path
    try:
        for _ in range(25):
            os.chdir(deep)
            deep = Path("x" * 200)
            deep.mkdir()
    finally:
        os.chdir(before)
    assert not measured(tmp_path).whole


def watch(directory: Path, **limits: Any) -> DiskWatch:
    return DiskWatch(directory, interval_s=60.0, **limits)


def test_a_sweep_has_every_container_and_what_is_free(tmp_path: Path) -> None:
    fill(tmp_path / "app-1-x1/local/block", 3)
    fill(tmp_path / "app-1-x2/stdout", 1)
    use = watch(tmp_path).sweep()
    assert use.containers == {"app-1-x1": Measured(3), "app-1-x2": Measured(1)}
    assert use.total_mib == 4
    assert use.free_mib > 0
    assert watch(tmp_path / "absent").sweep() == DiskUse()


def test_ended_containers_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[str] = []

    def spy(directory: Path, ending: threading.Event) -> Measured:
        sampled.append(directory.name)
        return measure(directory, ending)

    monkeypatch.setattr(disk_watch, "measure", spy)
    fill(tmp_path / "ended/stdout", 1)
    (tmp_path / "ended/exit.json").touch()
    fill(tmp_path / "live/stdout", 1)
    sweeps = watch(tmp_path)
    assert sweeps.sweep() == sweeps.sweep()
    assert sorted(sampled) == ["ended", "live", "live"]
    (tmp_path / "ended/stdout").unlink()
    assert sweeps.sweep().containers["ended"] == Measured(0), "its logs were cleared away"


def test_one_over_its_own_bound_is_named_with_the_setting(tmp_path: Path) -> None:
    fill(tmp_path / "a/x", 3)
    fill(tmp_path / "b/x", 2)
    bounded = watch(tmp_path, limit_mib=2)
    bounded.sweep()
    breaches = bounded.too_much(["a", "b"])
    assert list(breaches) == ["a"], "at the bound is inside"
    assert "used 3 MiB of disk, and a container may use 2 (disk_limit_mib" in breaches["a"]
    assert bounded.too_much(["b"]) == {}, "one that has ended uses what it uses"
    assert watch(tmp_path).too_much(["a", "b"]) == {}, "off by default"


def test_shuffle_files_of_one_that_runs_count(tmp_path: Path) -> None:
    containers, shuffle_dir = tmp_path / "containers", tmp_path / "shuffle"
    fill(containers / "a/x", 1)
    fill(shuffle_dir / "app-1/a/blockmgr-1/0a/shuffle_0_0_0.data", 2)
    bounded = DiskWatch(containers, interval_s=60.0, limit_mib=2, shuffle_dirs=(shuffle_dir,))
    assert bounded.sweep().containers == {"a": Measured(3)}
    assert list(bounded.too_much(["a"])) == ["a"]
    (containers / "a/exit.json").touch()
    assert bounded.sweep().containers == {"a": Measured(1)}, "then they are nobody's"


def test_over_the_nodes_bound_the_largest_goes_first(tmp_path: Path) -> None:
    fill(tmp_path / "a/x", 2)
    fill(tmp_path / "b/x", 3)
    fill(tmp_path / "ended/x", 9)
    bounded = watch(tmp_path, node_limit_mib=4)
    bounded.sweep()
    breaches = bounded.too_much(["a", "b"])
    assert list(breaches) == ["b"]
    assert "together used 5 of 4 MiB (disk_node_limit_mib" in breaches["b"]
    assert bounded.too_much(["a"]) == {}


def test_what_cannot_be_measured_is_too_much_where_there_is_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(disk_watch, "measure", lambda *_: Measured(0, whole=False))
    bounded, free = watch(tmp_path, limit_mib=100), watch(tmp_path)
    bounded.sweep()
    free.sweep()
    assert "cannot be measured" in bounded.too_much(["a"])["a"]
    assert free.too_much(["a"]) == {}


class FileSystem:
    """In place of ``shutil.disk_usage``."""

    def __init__(self, total_mib: int, free_mib: int) -> None:
        self.total_mib, self.free_mib = total_mib, free_mib

    def __call__(self, path: Path) -> tuple[int, int, int]:
        used_mib = self.total_mib - self.free_mib
        return self.total_mib * MIB, used_mib * MIB, self.free_mib * MIB


def test_too_little_free_space_is_reported_until_there_is_clearly_more(tmp_path: Path) -> None:
    system = FileSystem(1000, 100)
    floored = watch(tmp_path, free_min_mib=100, usage=system)
    output = []
    for system.free_mib in (100, 99, 101, 124, 125, 101):
        floored.sample_free()
        output.append(bool(floored.low))
    assert output == [False, True, True, True, False, False]
    system.free_mib = 99
    floored.sample_free()
    assert "less than 100 MiB are free" in floored.low
    assert "disk_free_min_mib" in floored.low


def test_the_floor_is_a_quarter_of_a_small_file_system_and_nothing_where_it_is_off(
    tmp_path: Path,
) -> None:
    small = watch(tmp_path, free_min_mib=2048, usage=FileSystem(64, 15))
    small.sample_free()
    assert "less than 16 MiB" in small.low
    off = watch(tmp_path, usage=FileSystem(64, 0))
    off.sample_free()
    assert off.low == ""


def test_the_one_that_uses_most_ends_for_the_floor_and_the_next_only_if_that_was_not_enough(
    tmp_path: Path,
) -> None:
    for name, mib in (("a", 3), ("b", 5), ("c", 4)):
        fill(tmp_path / name / "x", mib)
    system = FileSystem(1000, 90)
    floored = watch(tmp_path, free_min_mib=100, usage=system)
    floored.sample_free()
    assert floored.too_much("abc") == {}, "nothing has been measured yet"
    floored.sweep()
    breaches = floored.too_much("abc")
    assert list(breaches) == ["b"]
    assert breaches["b"].startswith(
        "used 5 MiB of disk, the most of 3 containers, and its fair share was 0 MiB, on a node "
        "with 90 MiB free where 100 must stay (disk_free_min_mib of the agent)"
    )
    floored.sweep()
    assert floored.too_much("abc") == {}, "it is on its way"
    system.free_mib = 95
    assert floored.too_much("ac") == {}, "what it held is free by now, but nobody has looked"
    floored.sweep()
    assert list(floored.too_much("ac")) == ["c"]
    floored.sweep()
    system.free_mib = 99
    floored.sample_free()
    assert floored.too_much("a") == {}
    system.free_mib = 104
    floored.sweep()
    assert floored.low, "nobody starts"
    assert floored.too_much("a") == {}, "and nobody ends"


def test_no_container_ends_for_what_the_removal_of_ended_ones_frees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the next one while what the last held is being removed."""
    for name, mib in (("live", 8), ("other", 7), ("ended", 6)):
        fill(tmp_path / name / "x", mib)
    (tmp_path / "ended/exit.json").touch()
    system, leaving, now = FileSystem(1000, 95), {"ended"}, 1000.0
    monkeypatch.setattr("hrm.agent.disk_floor.time.monotonic", lambda: now)
    floored = watch(tmp_path, free_min_mib=100, usage=system, leaving=lambda: tuple(leaving))
    live = ["live", "other"]
    assert floored.sweep().containers["ended"].mib == 6
    assert floored.too_much(live) == {}, "6 of 5 MiB are about to be free"
    (tmp_path / "ended/x").unlink()
    fill(tmp_path / "ended/y/z", 4)
    floored.sweep()
    assert list(floored.too_much(live)) == ["live"], "4 of 5 are"
    (tmp_path / "live/exit.json").touch()
    leaving.add("live")
    floored.sweep()
    assert floored.too_much(["other"]) == {}
    now += 61.0
    floored.sweep()
    assert floored.too_much(["other"]) == {}, "it has not made room yet"
    system.free_mib = 69
    fill(tmp_path / "other/y", 24)
    floored.sweep()
    assert floored.too_much(["other"]) == {}, "nobody has looked since it was given up"
    floored.sweep()
    assert list(floored.too_much(["other"])) == ["other"], "the disk goes on filling"
    leaving.discard("live")
    floored.sweep()
    assert floored.too_much(["other"]) == {}, "it is on its way"


def test_the_removal_of_ended_ones_is_not_waited_for_for_ever_nor_until_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mib in (("live", 8), ("ended", 90)):
        fill(tmp_path / name / "x", mib)
    (tmp_path / "ended/exit.json").touch()
    now = 1000.0
    monkeypatch.setattr("hrm.agent.disk_floor.time.monotonic", lambda: now)
    for after_s, free_mib, ends in ((59.0, 95, []), (61.0, 95, ["live"]), (1.0, 69, ["live"])):
        system = FileSystem(1000, 95)
        floored = watch(tmp_path, free_min_mib=100, usage=system, leaving=lambda: ["ended"])
        floored.sweep()
        assert floored.too_much(["live"]) == {}
        now += after_s
        system.free_mib = free_mib
        fill(tmp_path / "live/y", 25)
        floored.sweep()
        assert list(floored.too_much(["live"])) == ends


@pytest.mark.parametrize(
    ("free_mib", "after_s", "next_one"), [(5, 61.0, True), (20, 61.0, False), (20, 661.0, True)]
)
def test_the_removal_of_what_the_last_one_held_has_limits_on_a_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, after_s: float, next_one: bool
) -> None:
    """80 of 100 MiB lack when it ends; more than 90 must never do so, nor for ever as many."""
    for name, mib in (("live", 50), ("other", 40)):
        fill(tmp_path / name / "x", mib)
    system, leaving, now = FileSystem(1000, 20), set[str](), 1000.0
    monkeypatch.setattr("hrm.agent.disk_floor.time.monotonic", lambda: now)
    floored = watch(tmp_path, free_min_mib=100, usage=system, leaving=lambda: tuple(leaving))
    floored.sweep()
    assert list(floored.too_much(["live", "other"])) == ["live"]
    (tmp_path / "live/exit.json").touch()
    for inside in (tmp_path / "live").glob("x*"):
        inside.unlink()  # little of it is left to be removed, and that hangs
    leaving.add("live")
    system.free_mib = free_mib
    fill(tmp_path / "other/y", 55)
    now += after_s
    floored.sweep()
    floored.too_much(["other"])
    floored.sweep()
    assert bool(floored.too_much(["other"])) is next_one


def test_what_was_removed_since_the_latest_sample_is_held_against_nobody(tmp_path: Path) -> None:
    fill(tmp_path / "live/x", 8)
    system = FileSystem(1000, 95)
    floored = watch(tmp_path, free_min_mib=100, usage=system)
    floored.sweep()
    system.free_mib = 130
    assert floored.too_much(["live"]) == {}
    system.free_mib = 95
    floored.sweep()
    assert list(floored.too_much(["live"])) == ["live"]


def test_the_scratch_space_of_ended_ones_counts_until_it_is_removed(tmp_path: Path) -> None:
    containers, scratch = tmp_path / "containers", tmp_path / "scratch"
    for name in ("live", "ended"):
        fill(containers / name / "x", 1)
        fill(scratch / name / "block", 6)
    (containers / "ended/exit.json").touch()
    leaving = ["ended"]
    floored = watch(
        containers,
        free_min_mib=100,
        usage=lambda path: FileSystem(1000, 95 if path == scratch else 500)(path),
        scratch_dirs=(scratch,),
        leaving=lambda: leaving,
    )
    leaving.clear()
    floored.sweep()
    leaving.append("ended")
    assert floored.too_much(["live"]) == {}, "it was about to be removed"
    floored.sweep()
    assert floored.too_much(["live"]) == {}
    (scratch / "ended/block").unlink()
    (scratch / "ended").rmdir()
    leaving.clear()
    assert floored.sweep().containers["ended"] == Measured(1)
    assert list(floored.too_much(["live"])) == ["live"]


def test_no_container_ends_for_a_disk_that_others_have_filled(tmp_path: Path) -> None:
    fill(tmp_path / "a/x", 3)
    fill(tmp_path / "b/x", 2)
    floored = watch(tmp_path, free_min_mib=100, usage=FileSystem(1000, 94))
    floored.sweep()
    assert floored.too_much(["a", "b"]) == {}, "without both there would be 99"
    floored = watch(tmp_path, free_min_mib=100, usage=FileSystem(1000, 95))
    floored.sweep()
    assert list(floored.too_much(["a", "b"])) == ["a"]


def test_one_that_cannot_be_measured_ends_first_for_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    sizes = {"a": Measured(0, whole=False), "b": Measured(900)}
    monkeypatch.setattr(disk_watch, "measure", lambda directory, _: sizes[directory.name])
    floored = watch(tmp_path, free_min_mib=100, usage=FileSystem(1000, 50))
    floored.sweep()
    assert list(floored.too_much("ab")) == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only who may mount has a small disk")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


async def test_by_default_no_container_can_fill_the_disk_of_its_node(
    master: Master, start_agent: StartAgent, small_disk: Path
) -> None:
    agent = start_agent(work_dir=str(small_disk / "work"))
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "head -c 2000000 /dev/urandom > local/block; exec sleep 600")
    await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", "head -c 52000000 /dev/zero > local/block; exec sleep 600")
    end = (await master.until_state("app-1-x2", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_DISK_LIMIT
    assert "MiB of disk, the most of 2 containers, and its fair share was" in end.message
    await master.until(lambda: not (agent.work_dir / "containers/app-1-x2/local").exists())

    await master.until(lambda: not master.registrations[-1].resource_units[0].draining)
    ballast = small_disk / "of-somebody-else"
    ballast.write_bytes(bytes(52_000_000))
    await master.until(lambda: master.registrations[-1].resource_units[0].draining)
    assert any(
        remark.startswith("closed: no container starts here: less than 16 MiB are free")
        for remark in master.registrations[-1].remarks
    )
    master.assign("app-1-x3", "exec sleep 600")
    end = (await master.until_state("app-1-x3", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_PREEMPTED
    assert "node-1 takes no containers: less than 16 MiB are free" in end.message
    ballast.unlink()
    await master.until(lambda: not master.registrations[-1].resource_units[0].draining)
    assert not any(remark.startswith("closed") for remark in master.registrations[-1].remarks)
    master.assign("app-1-x4", "exec sleep 600")
    await master.until_state("app-1-x4", RUNNING)
    assert master.statuses["app-1-x1"].state == RUNNING, "it was never over its share"
    await agent.end()


async def test_a_container_over_its_disk_ends_with_the_reason_and_leaves_nothing(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(disk_limit_mib=8, disk_interval_s=0.1)
    await master.until(lambda: master.registrations)
    memory_filler = "head -c 20000000 /dev/urandom > local/block; exec sleep 600"
    master.assign("app-1-x1", memory_filler)
    master.assign("app-1-x2", "head -c 2000000 /dev/urandom > local/block; exec sleep 600")
    end = (await master.until_state("app-1-x1", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_DISK_LIMIT
    assert "and a container may use 8 (disk_limit_mib of the agent)" in end.message
    await master.until(lambda: not (agent.work_dir / "containers/app-1-x1/local").exists())
    await master.until(lambda: master.statuses["app-1-x2"].usage.disk_mib >= 1)
    await master.until(
        lambda: (
            1 <= master.heartbeats[-1].usage.disk_used_mib < 8
            and master.heartbeats[-1].usage.disk_free_mib > 0
        )
    )
    assert master.statuses["app-1-x2"].state != ENDED


def test_the_causes_have_readable_names() -> None:
    assert EndCause.DISK_LIMIT.value == "disk-limit"
    assert EndCause.GPU_MEMORY_LIMIT.value == "gpu-memory-limit"
