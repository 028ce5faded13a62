"""One suite for every isolation driver; those that cannot work here give the reason.

The v2 driver runs on this machine's kernel where that has the controllers. Where memory and cpu are
v1's, as on hybrid machines, it runs on the real hierarchy without its limits, and on files that
imitate the kernel's (``fake_cgroup2``), which show the limits that it writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers import shim
from hrm.agent.isolation import (
    DRIVERS,
    Cgroup1,
    Cgroup2,
    ContainerLimits,
    DeviceNumbers,
    GroupIsolation,
    Isolation,
    cgroup2,
    detect,
    sweep,
)
from hrm.agent.isolation.base import mounts
from hrm.errors import InvalidConfig, LaunchFailed
from tests.agent.fake_cgroup2 import FakeCgroup2

Eventually = Callable[..., Any]
CPUS = "cpuset.cpus"
LIMITS = ContainerLimits(vcores=1, memory_mib=64)
JOIN = "import os, sys\nfor path in sys.argv[1:]: open(path, 'a').write(f'{os.getpid()}\\n')\n"
ON_FILES = "cgroup2 on files"
WITHOUT_LIMITS = "cgroup2 without limits"
HANDED_DOWN = "hugetlb"
HOLD = "print('in', flush=True)\nimport time; time.sleep(600)"


def working(name: str) -> Isolation:
    try:
        return detect(name, f"test-{uuid.uuid4().hex[:12]}", vcores=2).driver
    except InvalidConfig as error:
        pytest.skip(error.message)


class Cgroup2WithoutLimits(Cgroup2):
    """A kernel's v2 hierarchy where memory and cpu are v1's: the whole driver except limits.

    Groups, their members, killing, freezing, adoption and sweeping are the kernel's. So is what it
    lets a parent delegate, shown with ``HANDED_DOWN``, which is v2's where it is not mounted in v1.
    """

    enforces_memory = False

    def _set_cpu_weight(self, parent: Path) -> None:
        assert (parent / "cgroup.kill").exists()

    def _limit(self, root: Path, group: Path, limits: ContainerLimits) -> None:
        assert HANDED_DOWN in self._controllers(group)


@pytest.fixture
def without_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cgroup2]:
    """On the real hierarchy, which is left as it was found."""
    if isinstance(detect("auto", "test-auto", vcores=2).driver, Cgroup2):
        pytest.skip("this machine's v2 hierarchy has all controllers: the driver itself is tested")
    driver = Cgroup2WithoutLimits(f"test-{uuid.uuid4().hex[:12]}", 2)
    if driver._root is None or not os.access(driver._root, os.W_OK):
        pytest.skip("no v2 hierarchy that may be written is mounted")
    if HANDED_DOWN not in driver._controllers(driver._root):
        pytest.skip(f"the v2 hierarchy at {driver._root} has no controller {HANDED_DOWN}")
    monkeypatch.setattr(cgroup2, "_REQUIRED", (HANDED_DOWN,))
    switch = driver._root / "cgroup.subtree_control"
    was_on = HANDED_DOWN in switch.read_text().split()
    driver.check()
    yield driver
    if not was_on:
        with contextlib.suppress(OSError):  # another process has begun to use it
            switch.write_text(f"-{HANDED_DOWN}")


@pytest.fixture(params=[*DRIVERS, ON_FILES, WITHOUT_LIMITS])
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Isolation]:
    if request.param == ON_FILES:
        fake = FakeCgroup2(tmp_path / "cgroup2", monkeypatch)
        driver: Isolation = Cgroup2("test", 2, root=fake.root)
        driver.check()
    elif request.param == WITHOUT_LIMITS:
        driver = request.getfixturevalue("without_limits")
    else:
        driver = working(request.param)
    yield driver
    for container_id in driver.existing():
        assert driver.remove(container_id)
    driver.close()


def is_fake(driver: Isolation) -> bool:
    return isinstance(driver, Cgroup2) and driver._identity == "test"


def heir_of(driver: GroupIsolation, identity: str = "") -> GroupIsolation:
    """The driver of the next agent on the same work directory, or of an agent on another one."""
    if isinstance(driver, Cgroup2):
        return type(driver)(identity or driver._identity, 2, root=driver._root)
    return type(driver)(identity or driver._identity, 2, "shares")


@pytest.fixture
def run_in() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start Python code that has joined the groups before it does anything else."""
    started: list[subprocess.Popen[bytes]] = []

    def run(files: tuple[Path, ...], code: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", JOIN + code, *map(str, files)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_container_comes_and_goes(driver: Isolation, run_in: Any) -> None:
    files = driver.create("app-1-x1", LIMITS)
    process = run_in(files, "print('in', flush=True)\nimport time; time.sleep(600)")
    assert process.stdout.readline() == b"in\n"
    if isinstance(driver, GroupIsolation):
        assert files == driver.join_files("app-1-x1")
        assert driver.members("app-1-x1") == {process.pid}
        assert driver.existing() == ("app-1-x1",)
    assert driver.memory_kills("app-1-x1") == 0
    if not isinstance(driver, GroupIsolation):
        process.kill()  # without groups, processes are the shim's to end
    assert driver.remove("app-1-x1")
    assert process.wait(10) == -9
    assert driver.existing() == ()
    if isinstance(driver, GroupIsolation):
        assert driver.members("app-1-x1") == frozenset()


def test_removing_what_is_not_there_is_no_error(driver: Isolation) -> None:
    assert driver.remove("app-1-x1")
    assert driver.remove("app-1-x1")


def test_creating_twice_gives_the_same(driver: Isolation) -> None:
    assert driver.create("app-1-x1", LIMITS) == driver.create("app-1-x1", LIMITS)


def test_many_begin_at_once(driver: Isolation, run_in: Any) -> None:
    """No process enters a group whose parent is still being prepared by another."""
    names = [f"app-1-x{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda name: driver.create(name, LIMITS), names))
    processes = [run_in(files, "print('in', flush=True)") for files in made]
    assert [process.stdout.readline() for process in processes] == [b"in\n"] * len(names)


def test_groups_that_the_container_made_go_too(driver: Isolation, run_in: Any) -> None:
    files = driver.create("app-1-x1", LIMITS)
    if not files:
        pytest.skip(f"{driver.name} has no groups")
    nested = files[0].parent / "nested" / "deeper"
    nested.mkdir(parents=True)
    assert driver.remove("app-1-x1")
    assert not nested.parent.parent.exists()


def test_an_identity_sees_only_its_own(driver: Isolation) -> None:
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} has no groups")
    other = heir_of(driver, f"other-{uuid.uuid4().hex[:12]}")
    driver.create("app-1-x1", LIMITS)
    assert other.existing() == ()
    assert other.remove("app-1-x1")
    assert driver.existing() == ("app-1-x1",)


def test_memory_beyond_the_limit_is_counted(driver: Isolation, run_in: Any) -> None:
    if not driver.enforces_memory:
        pytest.skip(f"{driver.name} leaves the memory limit to the tracker")
    if is_fake(driver):
        pytest.skip("files limit nobody")
    files = driver.create("app-1-x1", LIMITS)
    process = run_in(files, "bytearray(200 << 20)")
    assert process.wait(30) == -9
    assert driver.memory_kills("app-1-x1") >= 1


def test_memory_used_is_what_the_container_holds(driver: Isolation, run_in: Any) -> None:
    files = driver.create("app-1-x1", LIMITS)
    code = "x = bytearray(b'x' * (20 << 20))\nprint('in', flush=True)\nimport time; time.sleep(600)"
    process = run_in(files, code)
    assert process.stdout.readline() == b"in\n"
    used_mib = driver.memory_used_mib("app-1-x1")
    if is_fake(driver):
        assert used_mib is None, "an empty memory.stat says nothing"
    elif driver.enforces_memory:
        assert used_mib is not None
        assert 20 <= used_mib <= 64
    else:
        assert used_mib is None


@pytest.mark.parametrize("bad", ["..", ".", "a/b", "", "../../escape", "x" * 300])
def test_an_id_cannot_leave_its_place(driver: Isolation, bad: str) -> None:
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} makes no directories")
    with pytest.raises(LaunchFailed):
        driver.create(bad, LIMITS)


def test_impossible_limits_leave_nothing_behind(driver: Isolation) -> None:
    if not driver.enforces_memory:
        pytest.skip(f"{driver.name} sets no limits here")
    if is_fake(driver):
        pytest.skip("files take any value")
    with pytest.raises(LaunchFailed, match="app-1-x1"):
        driver.create("app-1-x1", ContainerLimits(vcores=1, memory_mib=64, cpus=(100_000,)))
    assert driver.existing() == ()


def test_a_container_is_held_on_its_cpus(driver: Isolation, run_in: Any) -> None:
    if not driver.pins_cpus:
        pytest.skip(f"{driver.name} cannot pin here")
    last = max(os.sched_getaffinity(0))
    files = driver.create("app-1-x1", ContainerLimits(vcores=1, memory_mib=64, cpus=(last,)))
    if is_fake(driver):
        assert (files[0].parent / "cpuset.cpus").read_text() == str(last)
        return
    process = run_in(files, "print(*os.sched_getaffinity(0), flush=True)")
    assert process.stdout.readline() == f"{last}\n".encode()


def test_a_container_that_runs_is_held_on_other_cpus(driver: Isolation, run_in: Any) -> None:
    """With what it has started, in a group of its own, too."""
    if not driver.pins_cpus:
        driver.pin("app-1-x1", (0,))  # it is asked for nothing that it cannot do
        return
    every = sorted(os.sched_getaffinity(0))
    first, last = every[0], every[-1]
    files = driver.create("app-1-x1", ContainerLimits(vcores=1, memory_mib=64, cpus=(last,)))
    if is_fake(driver):
        driver.pin("app-1-x1", (first,))
        assert (files[0].parent / CPUS).read_text() == str(first)
        driver.pin("app-1-x1", ())
        assert (files[0].parent / CPUS).read_text() == ",".join(map(str, every))
        return
    process = run_in(files, "print('in', flush=True)\nimport time; time.sleep(600)")
    assert process.stdout.readline() == b"in\n"
    inner = [file.parent / "inner" / "deep" for file in files if (file.parent / CPUS).exists()]
    for group in inner:
        for each in (group.parent, group):
            each.mkdir()
            if isinstance(driver, Cgroup1):
                (each / CPUS).write_text(str(last))
    driver.pin("app-1-x1", (first,))
    assert os.sched_getaffinity(process.pid) == {first}
    if isinstance(driver, Cgroup1):
        assert [(group / CPUS).read_text() for group in inner] == [f"{first}\n"]
    driver.pin("app-1-x1", ())
    assert os.sched_getaffinity(process.pid) == set(every)
    driver.pin("app-1-x2", (first,))  # one that has ended meanwhile


FORKS = """
for _ in range(20):
    if os.fork() == 0:
        break
print('in', flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
    else:
        os._exit(0)
"""


def test_a_container_that_forks_for_its_life_is_killed(driver: Isolation, run_in: Any) -> None:
    """Every process leaves a child in a session of its own and ends: no list of them is current."""
    frozen = isinstance(driver, Cgroup2) or "freezer" in getattr(driver, "_mounts", {})
    if not frozen or is_fake(driver):
        pytest.skip(f"{driver.name} kills one process after the other here")
    assert isinstance(driver, GroupIsolation)
    files = driver.create("app-1-x1", LIMITS)
    process = run_in(files, FORKS)
    assert process.stdout.readline() == b"in\n"
    assert driver.members("app-1-x1")
    began_s = time.monotonic()
    assert driver.remove("app-1-x1")
    assert time.monotonic() - began_s < 4
    assert driver.existing() == ()


def test_the_next_agent_takes_over(driver: Isolation, run_in: Any) -> None:
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} keeps nothing")
    files = driver.create("app-1-x1", LIMITS)
    process = run_in(files, HOLD)
    assert process.stdout.readline() == b"in\n"
    heir = heir_of(driver)
    assert heir.existing() == ("app-1-x1",)
    assert heir.join_files("app-1-x1") == files
    assert heir.members("app-1-x1") == {process.pid}
    heir.close()
    assert shim.start_ticks(process.pid) is not None, "closing harms no container"
    if driver.enforces_memory and not is_fake(driver):
        assert heir.memory_used_mib("app-1-x1") is not None
    assert heir.memory_kills("app-1-x1") == 0
    assert heir.remove("app-1-x1")
    assert process.wait(10) == -9
    assert driver.existing() == ()


def test_groups_that_nothing_knows_are_emptied(driver: Isolation, run_in: Any) -> None:
    """What an agent does with groups of its identity that have no container."""
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} has no groups")
    running = {name: run_in(driver.create(name, LIMITS), HOLD) for name in ("stale-1", "stale-2")}
    for process in running.values():
        assert process.stdout.readline() == b"in\n"
    driver.create("empty", LIMITS)
    heir = heir_of(driver)
    assert heir.existing() == ("empty", "stale-1", "stale-2")
    assert all(heir.remove(name) for name in heir.existing())
    assert [process.wait(10) for process in running.values()] == [-9, -9]
    heir.close()
    assert heir.existing() == ()


TRY = "try: open('/dev/full').close(); print('open')\nexcept PermissionError: print('closed')"
FULL = DeviceNumbers(1, 7)  # Linux has given these numbers to /dev/full permanently


def test_a_closed_device_cannot_be_opened(driver: Isolation, run_in: Any) -> None:
    limits = ContainerLimits(vcores=1, memory_mib=64, closed=(FULL,))
    process = run_in(driver.create("app-1-x1", limits), TRY)
    output = process.stdout.readline()
    assert output == (b"closed\n" if driver.restricts_devices else b"open\n")
    other = run_in(driver.create("app-1-x2", LIMITS), TRY)
    assert other.stdout.readline() == b"open\n", "it is closed to the one container alone"


def test_a_whole_major_number_is_closed(driver: Isolation, run_in: Any) -> None:
    if not driver.restricts_devices:
        pytest.skip(f"{driver.name} cannot close devices")
    limits = ContainerLimits(vcores=1, memory_mib=64, closed=(DeviceNumbers(FULL.major),))
    process = run_in(driver.create("app-1-x1", limits), TRY)
    assert process.stdout.readline() == b"closed\n"


def test_closing_leaves_no_trace(driver: Isolation) -> None:
    files = driver.create("app-1-x1", LIMITS)
    assert driver.remove("app-1-x1")
    driver.close()
    assert not any(path.parent.parent.exists() for path in files)


def test_cgroup1_writes_the_limits_given() -> None:
    working("cgroup1")
    driver = Cgroup1(f"test-{uuid.uuid4().hex[:12]}", 2, "quota")
    limits = ContainerLimits(vcores=2, memory_mib=96, cpus=(0,))
    try:
        groups = {p.parent.parts[4]: p.parent for p in driver.create("c1", limits)}
        assert (groups["memory"] / "memory.limit_in_bytes").read_text() == f"{96 << 20}\n"
        assert (groups["cpu"] / "cpu.shares").read_text() == "2048\n"
        assert (groups["cpu"] / "cpu.cfs_quota_us").read_text() == "200000\n"
        assert (groups["cpuset"] / "cpuset.cpus").read_text() == "0\n"
    finally:
        assert driver.remove("c1")
        driver.close()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"\xc3\xa4\\040\xc3\xbc", b"\xc3\xa4 \xc3\xbc"),
        (b"tab\\011here\\134012", b"tab\there\\012"),
        (b"caf\xe9\x85", b"caf\xe9\x85"),
        (b"line\xe2\x80\xa8separator", b"line\xe2\x80\xa8separator"),
    ],
)
def test_mount_points_are_bytes_in_whatever_encoding(
    tmp_path: Path, written: bytes, name: bytes
) -> None:
    table = tmp_path / "mountinfo"
    lines = b"25 1 8:1 / /caf\xe9 rw - ext4 /dev/sda rw\n26 25 0:26 / /m/%s rw - cgroup cgroup %s\n"
    table.write_bytes(lines % (written, b"rw,memory"))
    ((point, kind, options),) = mounts(table)
    assert os.fsencode(point) == b"/m/" + name
    assert (kind, options) == ("cgroup", frozenset({"rw", "memory"}))


def test_an_offer_of_more_cores_than_there_are_weighs_as_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    root = FakeCgroup2(tmp_path / "cgroup2", monkeypatch).root
    (join,) = Cgroup2("me", 18, "shares", root=root).create(
        "c1", ContainerLimits(vcores=3, memory_mib=512)
    )
    assert (root / "hrm-me" / "cpu.weight").read_text() == "200"
    assert (join.parent / "cpu.weight").read_text() == "300", "containers, among themselves"


def test_cgroup2_writes_the_limits_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    root = FakeCgroup2(tmp_path / "cgroup2", monkeypatch).root
    driver = Cgroup2("me", 4, "quota", root=root)
    (join,) = driver.create("c1", ContainerLimits(vcores=3, memory_mib=512, cpus=(1, 2)))
    group = join.parent
    assert join == root / "hrm-me" / "c1" / "cgroup.procs"
    found = {path.name: path.read_text() for path in group.iterdir()}
    assert found.pop("cpuset.cpus.effective")
    assert {name: text for name, text in found.items() if text} == {
        "cgroup.controllers": "memory cpu cpuset pids",
        "memory.max": str(512 << 20),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "cpu.weight": "300",
        "cpu.max": "300000 100000",
        "cpuset.cpus": "1,2",
    }
    assert (root / "cgroup.subtree_control").read_text() == "memory cpu cpuset pids"
    assert (root / "hrm-me" / "cpu.weight").read_text() == "400"
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    (group / "memory.stat").write_text(f"anon {30 << 20}\nfile 5\nshmem {2 << 20}\n")
    assert (driver.memory_kills("c1"), driver.memory_used_mib("c1")) == (3, 32)


def test_cgroup2_freezes_where_it_cannot_kill_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_in: Any
) -> None:
    """Before Linux 5.14 there is no cgroup.kill."""
    root = FakeCgroup2(tmp_path / "cgroup2", monkeypatch).root
    driver = Cgroup2("me", 4, root=root)
    files = driver.create("c1", LIMITS)
    process = run_in(files, HOLD)
    assert process.stdout.readline() == b"in\n"
    (files[0].parent / "cgroup.kill").unlink()
    driver._kill("c1")
    assert process.wait(10) == -9
    assert (files[0].parent / "cgroup.freeze").read_text() == "1"


def test_cgroup2_ends_what_is_frozen(
    without_limits: Cgroup2, monkeypatch: pytest.MonkeyPatch, run_in: Any
) -> None:
    """The same on a real kernel, where ``cgroup.kill`` is hidden."""

    def write(path: Path, text: str) -> None:
        if path.name == "cgroup.kill":
            raise OSError(errno.ENOENT, "no such control file", str(path))
        path.write_text(text)

    monkeypatch.setattr(cgroup2, "_write", write)
    files = without_limits.create("c1", LIMITS)
    process = run_in(files, FORKS)
    assert process.stdout.readline() == b"in\n"
    began_s = time.monotonic()
    assert without_limits.remove("c1")
    assert time.monotonic() - began_s < 4
    assert without_limits.existing() == ()
    without_limits.close()


def test_cgroup2_needs_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb")
    driver = Cgroup2("me", 4, root=tmp_path)
    with pytest.raises(Exception, match=r"no controller memory, cpu \(it has: hugetlb\)"):
        driver.check()


def test_auto_takes_the_best_that_works_and_states_why() -> None:
    detection = detect("auto", "test-auto", vcores=2)
    order = list(DRIVERS)
    better = order[: order.index(detection.driver.name)]
    assert list(detection.passed_over) == better
    assert all(detection.passed_over.values())
    assert detection.explanation.startswith(detection.driver.name)
    assert detection.driver.existing() == ()


def test_a_sweep_ends_what_an_agent_left(driver: Isolation, run_in: Any) -> None:
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} has no groups")
    if is_fake(driver):
        pytest.skip("a sweep goes over what is mounted")
    files = driver.create("app-1-x1", LIMITS)
    process = run_in(files, HOLD)
    assert process.stdout.readline() == b"in\n"
    assert sweep(driver._identity) == ("app-1-x1",)
    assert process.wait(10) == -9
    assert not files[0].parent.parent.exists()
    assert sweep(driver._identity) == ()


def test_a_forced_driver_that_does_not_work_is_an_error() -> None:
    failing = list(detect("auto", "test-auto", vcores=2).passed_over)
    if not failing:
        pytest.skip("every driver works on this machine")
    with pytest.raises(InvalidConfig, match=f"isolation {failing[0]} does not work on this"):
        detect(failing[0], "test-auto", vcores=2)


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="choose auto, cgroup2, cgroup1, none"):
        detect("chroot", "test-auto", vcores=2)
