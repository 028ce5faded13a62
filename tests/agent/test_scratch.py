"""Scratch space on several disks: who gets which, what is left out, what goes when."""

from __future__ import annotations

import asyncio
import os
import pwd
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hrm.agent.containers.container_dir import remove_tree
from hrm.agent.containers.containers import ContainerSupervisor, Ended
from hrm.agent.containers.scratch import Scratch, local_dirs
from hrm.agent.disk_watch import DiskWatch, Measured
from hrm.agent.isolation import Isolation
from hrm.agent.run_as import Account, may_switch
from hrm.config import AgentSettings
from hrm.errors import InvalidConfig, LaunchFailed
from hrm.spark.launch import Launch
from tests.agent.test_containers import spec_of

MIB = 1 << 20
BOTH = {"SPARK_LOCAL_DIRS": "", "SPARK_EXECUTOR_DIRS": ""}
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


class Disks:
    """In place of ``shutil.disk_usage``: each of 1,000 MiB, by the path above the agent's home."""

    def __init__(self, **free_mib: int) -> None:
        self.free_mib = free_mib

    def __call__(self, path: Path) -> tuple[int, int, int]:
        names = [name for name in self.free_mib if name in path.parts]
        if not names:
            raise OSError(5, "Input/output error", str(path))
        free = self.free_mib[names[0]] * MIB
        return 1000 * MIB, 1000 * MIB - free, free


def settings(tmp_path: Path, *disks: str, **more: object) -> AgentSettings:
    for disk in disks:
        (tmp_path / disk).mkdir(exist_ok=True)
    dirs = ",".join(str(tmp_path / disk) for disk in disks)
    return AgentSettings(work_dir=tmp_path / "work", work_dirs=dirs, **more)  # type: ignore[arg-type]


def scratch_on(tmp_path: Path, disks: Disks, free_min_mib: int = 100) -> Scratch:
    homes = [tmp_path / name / "me" for name in disks.free_mib]
    for home in homes:
        (home / "containers").mkdir(parents=True)
    return Scratch(homes, free_min_mib=free_min_mib, usage=disks)


def names(scratch: Scratch) -> list[str]:
    return [place.parent.parent.name for place in scratch.usable()]


def left(tmp_path: Path) -> list[str]:
    """Directories of containers on the disks."""
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("?/me/containers/*"))


def test_variables_are_written_as_spark_reads_them() -> None:
    assert local_dirs([Path("/a"), Path("/b")]) == {
        "SPARK_LOCAL_DIRS": "/a,/b",
        "SPARK_EXECUTOR_DIRS": "/a:/b",
    }


@pytest.mark.parametrize("text", ["relative", "/with:colon", "/twice,/twice"])
def test_directories_that_spark_could_not_tell_apart_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"absolute path without|twice"):
        AgentSettings(work_dirs=text)  # type: ignore[arg-type]


def test_two_names_of_one_directory_are_not_two_disks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="twice, perhaps by way of a link"):
        AgentSettings(work_dirs=f"{tmp_path}/a,{tmp_path}/link")  # type: ignore[arg-type]


def test_more_memory_than_any_machine_has_is_refused() -> None:
    assert AgentSettings(memory_mib=1 << 30).memory_mib == 1 << 30
    with pytest.raises(ValueError, match="less than or equal to 1073741824"):
        AgentSettings(memory_mib=(1 << 30) + 1)


def test_a_container_has_a_directory_on_each_disk(tmp_path: Path) -> None:
    scratch = Scratch.of(settings(tmp_path, "a", "b"), "me", run_as=False)
    variables = scratch.prepare("c1", None, BOTH)
    places = [tmp_path / disk / "me/containers/c1" for disk in "ab"]
    assert variables == local_dirs(places)
    assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700, 0o700]
    assert scratch.prepare("c1", None, {"SPARK_LOCAL_DIRS": ""}) == {
        "SPARK_LOCAL_DIRS": variables["SPARK_LOCAL_DIRS"]
    }


@as_root
def test_another_users_directories_are_that_users_alone(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account(name="u", uid=4711, gid=nobody.pw_gid, groups=(), home="/")
    Scratch.of(settings(tmp_path, "a"), "me", run_as=False).prepare("c1", account, BOTH)
    status = (tmp_path / "a/me/containers/c1").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (4711, 0o700)


def test_a_disk_that_is_closed_to_other_users_is_refused_where_they_have_containers(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    configured = settings(tmp_path, "a")
    (tmp_path / "a").chmod(0o700)
    Scratch.of(configured, "me", run_as=False)
    with pytest.raises(InvalidConfig, match=r"cannot reach .*/a \(work_dirs\)"):
        Scratch.of(configured, "me", run_as=True)


def test_a_disk_that_is_missing_is_left_out_and_none_is_an_error(tmp_path: Path) -> None:
    configured = settings(tmp_path, "a", "b")
    (tmp_path / "b").rmdir()
    assert len(Scratch.of(configured, "me", run_as=False).places) == 1
    (tmp_path / "a/me").rename(tmp_path / "gone")
    (tmp_path / "a").rmdir()
    with pytest.raises(InvalidConfig, match="none of work_dirs can be written"):
        Scratch.of(configured, "me", run_as=False)


def test_a_full_disk_is_left_out_as_long_as_another_has_space(tmp_path: Path) -> None:
    disks = Disks(a=200, b=99, c=100)
    scratch = scratch_on(tmp_path, disks)
    assert names(scratch) == ["a", "c"]
    disks.free_mib |= {"a": 50, "c": 20}
    assert names(scratch) == ["b"], "the one with most, until the node closes"
    del disks.free_mib["b"]
    assert names(scratch) == ["a"], "a disk that cannot be asked is not used"


def test_a_disk_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    scratch = scratch_on(tmp_path, Disks(a=200, b=200))
    (tmp_path / "a/me/containers").rmdir()
    assert scratch.prepare("c1", None, BOTH) == local_dirs([tmp_path / "b/me/containers/c1"])
    (tmp_path / "b/me/containers/c1").rmdir()
    (tmp_path / "b/me/containers").rmdir()
    with pytest.raises(
        LaunchFailed, match=r"no scratch directory .*\(work_dirs\) works: .*No such"
    ):
        scratch.prepare("c1", None, BOTH)


def watch(tmp_path: Path, scratch: Scratch, disks: Disks) -> DiskWatch:
    (tmp_path / "work/containers").mkdir(parents=True, exist_ok=True)
    return DiskWatch(
        tmp_path / "work/containers",
        interval_s=60.0,
        free_min_mib=100,
        scratch_dirs=scratch.places,
        usage=disks,
    )


def test_a_node_closes_when_all_of_its_scratch_disks_are_full(tmp_path: Path) -> None:
    disks = Disks(a=99, b=100, work=500)
    scratch = scratch_on(tmp_path, Disks(a=0, b=0))
    watching = watch(tmp_path, scratch, disks)
    watching.sample_free()
    assert watching.low == ""
    disks.free_mib["b"] = 99
    watching.sample_free()
    assert "each scratch directory (work_dirs)" in watching.low
    disks.free_mib["a"] = 125
    watching.sample_free()
    assert watching.low == ""
    disks.free_mib["work"] = 99
    watching.sample_free()
    assert "the work directory" in watching.low


def test_scratch_counts_for_its_container_and_the_largest_ends_where_all_are_full(
    tmp_path: Path,
) -> None:
    disks = Disks(a=99, b=98, work=500)
    scratch = scratch_on(tmp_path, Disks(a=0, b=0))
    watching = watch(tmp_path, scratch, disks)
    for name, mib in (("c1", 2), ("c2", 3)):
        (tmp_path / "work/containers" / name).mkdir()
        for place in scratch.places:
            (place / name).mkdir()
            (place / name / "block").write_bytes(os.urandom(mib * MIB))
    (tmp_path / "work/containers/c1/log").write_bytes(os.urandom(4 * MIB))
    watching.sample_free()
    assert watching.sweep().containers == {"c1": Measured(8), "c2": Measured(6)}
    breaches = watching.too_much(["c1", "c2"])
    assert list(breaches) == ["c2"], "the other has more, but not on these disks"
    assert breaches["c2"].startswith("used 6 MiB of disk, the most of 2 containers")
    (tmp_path / "work/containers/c2/exit.json").write_text("{}")
    for place in scratch.places:
        remove_tree(place / "c2")
    assert watching.sweep().scratch == {"c1": Measured(4)}


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[ContainerSupervisor]:
    scratch = Scratch.of(settings(tmp_path, "a", "b"), "me", run_as=False)
    ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()
    subject = ContainerSupervisor(
        tmp_path / "work",
        Isolation(),
        rebuild=lambda _name: Isolation(),
        log_bytes_max=65536,
        log_files_max=1,
        on_end=lambda name, ended: ends.put_nowait((name, ended)),
        scratch=scratch,
    )
    yield subject
    assert await subject.drain(20)
    await subject.close()


async def test_a_container_finds_its_directories_and_they_go_with_it(
    containers: ContainerSupervisor, tmp_path: Path
) -> None:
    local = str(containers.work_dir("c1") / "local")
    script = 'echo "$SPARK_LOCAL_DIRS" "$SPARK_EXECUTOR_DIRS"; touch ${SPARK_LOCAL_DIRS#*,}/x'
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(BOTH, local)}
    launch = Launch(argv=("sh", "-c", script), environment=environment)
    await containers.start(spec_of("c1"), launch)
    assert await containers.drain(20)
    variables = local_dirs([tmp_path / disk / "me/containers/c1" for disk in "ab"])
    out = (containers.work_dir("c1") / "stdout").read_text()
    assert out == " ".join(variables.values()) + "\n"
    assert left(tmp_path) == []


async def test_a_place_of_the_shuffle_service_is_left_as_it_is(
    containers: ContainerSupervisor,
) -> None:
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(BOTH, "/kept/app/c1")}
    launch = Launch(argv=("sh", "-c", 'echo "$SPARK_LOCAL_DIRS"'), environment=environment)
    await containers.start(spec_of("c1"), launch)
    assert await containers.drain(20)
    assert (containers.work_dir("c1") / "stdout").read_text() == "/kept/app/c1\n"


async def test_what_a_crash_left_goes_when_the_agent_starts_again(
    containers: ContainerSupervisor, tmp_path: Path
) -> None:
    local = str(containers.work_dir("c1") / "local")
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(BOTH, local)}
    launch = Launch(argv=("sh", "-c", "read x < fifo"), environment=environment)
    os.mkfifo(tmp_path / "fifo")
    launch = Launch(argv=("sh", "-c", f"read x < {tmp_path}/fifo"), environment=environment)
    await containers.start(spec_of("c1"), launch)
    (tmp_path / "a/me/containers/old/blockmgr").mkdir(parents=True)
    again = ContainerSupervisor(
        tmp_path / "work",
        Isolation(),
        rebuild=lambda _name: Isolation(),
        log_bytes_max=65536,
        log_files_max=1,
        on_end=lambda *_: None,
        scratch=Scratch.of(settings(tmp_path, "a", "b"), "me", run_as=False),
    )
    await again.adopt()
    await again._removal.wait()
    assert left(tmp_path) == ["a/me/containers/c1", "b/me/containers/c1"]
    (tmp_path / "fifo").write_text("end\n")
    assert await again.drain(20)
    await again.close()
