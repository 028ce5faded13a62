"""One suite for every isolation driver; those that cannot work here say why."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.isolation import (
    DRIVERS,
    Cgroup1,
    Cgroup2,
    GroupIsolation,
    Isolation,
    Limits,
    detect,
    sweep,
)
from hrm.errors import InvalidConfig, LaunchFailed

Eventually = Callable[..., Any]
LIMITS = Limits(vcores=1, memory_mib=64)
JOIN = "import sys\nfor path in sys.argv[1:]: open(path, 'w').write('0')\n"


def working(name: str) -> Isolation:
    try:
        return detect(name, f"test-{uuid.uuid4().hex[:12]}", vcores=2).driver
    except InvalidConfig as error:
        pytest.skip(error.message)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Iterator[Isolation]:
    driver = working(request.param)
    yield driver
    for container_id in driver.existing():
        assert driver.remove(container_id)
    driver.close()


@pytest.fixture
def run_in() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start python code that has joined the groups before it does anything else."""
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
    assert files == driver.join_files("app-1-x1")
    process = run_in(files, "print('in', flush=True)\nimport time; time.sleep(600)")
    assert process.stdout.readline() == b"in\n"
    if isinstance(driver, GroupIsolation):
        assert driver.members("app-1-x1") == {process.pid}
        assert driver.existing() == ("app-1-x1",)
    assert driver.memory_kills("app-1-x1") == 0
    if not isinstance(driver, GroupIsolation):
        process.kill()  # without groups, processes are the shim's to end
    assert driver.remove("app-1-x1")
    assert process.wait(10) == -9
    assert driver.existing() == ()
    assert driver.members("app-1-x1") == frozenset()


def test_removing_what_is_not_there_is_no_error(driver: Isolation) -> None:
    assert driver.remove("app-1-x1")
    assert driver.remove("app-1-x1")


def test_creating_twice_gives_the_same(driver: Isolation) -> None:
    assert driver.create("app-1-x1", LIMITS) == driver.create("app-1-x1", LIMITS)


def test_many_begin_at_once(driver: Isolation, run_in: Any) -> None:
    """Nobody enters a group whose parent somebody else is still preparing."""
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
    other = working(driver.name)
    driver.create("app-1-x1", LIMITS)
    assert other.existing() == ()
    assert other.remove("app-1-x1")
    if isinstance(driver, GroupIsolation):
        assert driver.existing() == ("app-1-x1",)


def test_memory_beyond_the_limit_is_counted(driver: Isolation, run_in: Any) -> None:
    if not driver.enforces_memory:
        pytest.skip(f"{driver.name} leaves the memory limit to the tracker")
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
    if driver.enforces_memory:
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
    if not isinstance(driver, GroupIsolation):
        pytest.skip(f"{driver.name} sets no limits")
    with pytest.raises(LaunchFailed, match="app-1-x1"):
        driver.create("app-1-x1", Limits(vcores=1, memory_mib=64, cpus=(100_000,)))
    assert driver.existing() == ()


def test_closing_leaves_no_trace(driver: Isolation) -> None:
    files = driver.create("app-1-x1", LIMITS)
    assert driver.remove("app-1-x1")
    driver.close()
    assert not any(path.parent.parent.exists() for path in files)


def test_cgroup1_writes_what_it_was_told() -> None:
    working("cgroup1")
    driver = Cgroup1(f"test-{uuid.uuid4().hex[:12]}", 2, "quota")
    limits = Limits(vcores=2, memory_mib=96, cpus=(0,))
    try:
        groups = {p.parent.parts[4]: p.parent for p in driver.create("c1", limits)}
        assert (groups["memory"] / "memory.limit_in_bytes").read_text() == f"{96 << 20}\n"
        assert (groups["cpu"] / "cpu.shares").read_text() == "2048\n"
        assert (groups["cpu"] / "cpu.cfs_quota_us").read_text() == "200000\n"
        assert (groups["cpuset"] / "cpuset.cpus").read_text() == "0\n"
    finally:
        assert driver.remove("c1")
        driver.close()


def test_cgroup2_writes_what_it_was_told(tmp_path: Path) -> None:
    """On plain files that play the kernel's: it shows the values, not that a kernel takes them."""
    controllers = "cpuset cpu io memory pids"
    group = tmp_path / "hrm-me" / "c1"
    group.mkdir(parents=True)
    for parent in (tmp_path, tmp_path / "hrm-me"):
        (parent / "cgroup.controllers").write_text(controllers)
        (parent / "cgroup.subtree_control").write_text("")
    names = ("memory.max", "memory.oom.group", "memory.swap.max", "cpu.weight", "cpu.max")
    for name in (*names, "cpuset.cpus"):
        (group / name).touch()
    driver = Cgroup2("me", 4, "quota", root=tmp_path)
    assert driver.create("c1", Limits(vcores=3, memory_mib=512, cpus=(1, 2))) == (
        group / "cgroup.procs",
    )
    written = {name: (group / name).read_text() for name in (*names, "cpuset.cpus")}
    assert written == {
        "memory.max": str(512 << 20),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "cpu.weight": "300",
        "cpu.max": "300000 100000",
        "cpuset.cpus": "1,2",
    }
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +cpu +cpuset +pids"
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    (group / "memory.stat").write_text(f"anon {30 << 20}\nfile 5\nshmem {2 << 20}\n")
    assert (driver.memory_kills("c1"), driver.memory_used_mib("c1")) == (3, 32)


def test_cgroup2_needs_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb")
    driver = Cgroup2("me", 4, root=tmp_path)
    with pytest.raises(Exception, match=r"no controller memory, cpu \(it has: hugetlb\)"):
        driver.check()


def test_auto_takes_the_best_that_works_and_says_why() -> None:
    detection = detect("auto", "test-auto", vcores=2)
    order = list(DRIVERS)
    better = order[: order.index(detection.driver.name)]
    assert list(detection.passed_over) == better
    assert all(detection.passed_over.values())
    assert detection.explanation.startswith(detection.driver.name)
    assert detection.driver.existing() == ()


def test_a_sweep_ends_what_an_agent_left(run_in: Any) -> None:
    identity = f"test-{uuid.uuid4().hex[:12]}"
    driver = detect("auto", identity, vcores=2).driver
    files = driver.create("app-1-x1", LIMITS)
    if not files:
        pytest.skip("no cgroups on this machine")
    process = run_in(files, "print('in', flush=True)\nimport time; time.sleep(600)")
    assert process.stdout.readline() == b"in\n"
    assert sweep(identity) == ("app-1-x1",)
    assert process.wait(10) == -9
    assert not files[0].parent.parent.exists()
    assert sweep(identity) == ()


def test_a_forced_driver_that_does_not_work_is_an_error() -> None:
    failing = list(detect("auto", "test-auto", vcores=2).passed_over)
    if not failing:
        pytest.skip("every driver works on this machine")
    with pytest.raises(InvalidConfig, match=f"isolation {failing[0]} does not work on this"):
        detect(failing[0], "test-auto", vcores=2)


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="choose auto, cgroup2, cgroup1, none"):
        detect("chroot", "test-auto", vcores=2)
