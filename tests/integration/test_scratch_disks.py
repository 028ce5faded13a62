"""Scratch space on two disks (``work_dirs``), with a real Spark: with the shuffle service, and with
containers that run as their submitter. (``test_localisation`` has it alone.)"""

from __future__ import annotations

import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.run_as import may_switch
from tests.integration.conftest import APPS, Cluster, executors_of
from tests.integration.test_run_as import PYTHON_PATH, USER, open_python
from tests.integration.test_shuffle_service import SUM, free_port
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SERVICE_S = 200.0  # the plugin is compiled first
ALONE, PASSED_THROUGH = 0o700, 0o711

Disks = tuple[Path, Path]
Eventually = Callable[..., Any]


def two_disks(below: Path) -> Disks:
    for name in ("disk-1", "disk-2"):
        (below / name).mkdir()
        (below / name).chmod(0o755)
    return below / "disk-1", below / "disk-2"


def files_below(directories: list[Path], pattern: str) -> list[list[Path]]:
    """The files of this pattern, of each of these directories."""
    return [[path for path in x.rglob(pattern) if path.is_file()] for x in directories]


@pytest.fixture
def served(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Eventually
) -> Iterator[tuple[Cluster, int, Disks]]:
    """A node with a shuffle service whose files are on two disks."""
    disks, port = two_disks(tmp_path_factory.mktemp("disks")), free_port()
    subject = Cluster(tmp_path_factory.mktemp("served"), _tools)
    subject.environment |= {
        "HRM_AGENT_WORK_DIRS": ",".join(map(str, disks)),
        "HRM_AGENT_SHUFFLE_SERVICE": "true",
        "HRM_AGENT_SHUFFLE_SERVICE_PORT": str(port),
        "HRM_AGENT_SHUFFLE_SERVICE_MEMORY_MIB": "128",
    }
    subject.up("--nodes", "1", "--cores", "2", "--memory", "3g")
    try:
        log = subject.state / "logs" / "node-1.log"
        up = "the shuffle service is up"
        eventually(lambda: up in log.read_text(), SERVICE_S, "it is up")
        yield subject, port, disks
    finally:
        subject.down()


def test_the_shuffle_service_serves_files_of_a_dead_executor_from_both_disks(
    served: tuple[Cluster, int, Disks], tmp_path: Path, eventually: Eventually
) -> None:
    cluster, port, disks = served
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1", "--conf", "spark.shuffle.service.enabled=true"),
        *("--conf", f"spark.shuffle.service.port={port}", str(APPS / "keeper.py"), str(tmp_path)),
    )
    (tmp_path / "compute").touch()
    eventually((tmp_path / "ready").exists, 240.0, "the shuffle is written")
    shown = cluster.application("keeper")
    assert shown is not None
    kept = [path for disk in disks for path in disk.glob(f"*/shuffle/{shown['application_id']}")]
    assert [path.parents[2] for path in kept] == list(disks)
    on_each = files_below(kept, "shuffle_*.data")
    assert all(on_each), f"files of the shuffle on each disk: {on_each}"
    assert not list(cluster.state.glob("nodes/*/**/shuffle_*.data")), "none in the work directory"
    (victim,) = executors_of(shown["application_id"])
    victim.kill()
    (tmp_path / "finish").touch()
    assert app.wait(300.0) == 0, app.output()[-4000:]
    assert f"SHUFFLED {SUM} COMPUTED 1000" in app.output(), "no file of either disk was missed"
    assert "FetchFailed" not in app.output()
    eventually(lambda: not any(path.exists() for path in kept), 20.0, "both are cleared")


@pytest.fixture
def shared(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, eventually: Eventually
) -> Iterator[tuple[Cluster, Disks]]:
    """A node of root's, with two disks that every user can reach."""
    open_dir = Path(tempfile.mkdtemp(prefix="hrm-disks-", dir="/tmp"))
    open_dir.chmod(PASSED_THROUGH)
    disks, directory = two_disks(open_dir), tmp_path_factory.mktemp("cluster")
    cluster = Cluster(directory, _tools)
    cluster.up("--nodes", "1", "--cores", "1", "--memory", "1g")
    agent = cluster.start(
        directory / "agent.log",
        *("agent", "--name", "shared", "--master", cluster.address, "--run-as", "submitter"),
        *("--work-dir", str(open_dir / "work"), "--work-dirs", ",".join(map(str, disks))),
        *("--cores", "2", "--memory-mib", "2048", "--token-file", str(cluster.state / "token")),
        *("--run-as-uid-min", "1", "--java-home", str(_tools.machines_java)),
        program=(open_python(), "-P", "-m", "hrm.cli"),
        environment={"PYTHONPATH": PYTHON_PATH},
    )
    try:
        eventually(lambda: len(cluster.ask("nodes")["nodes"]) == 2, 30.0, "the node is there")
        drained = cluster.run("node", "drain", "node-1", "--master", cluster.address)
        assert drained.returncode == 0, drained.stderr
        yield cluster, disks
    finally:
        agent.terminate()
        agent.wait(60)
        cluster.down()
        shutil.rmtree(open_dir)


def status_of(path: Path) -> tuple[int, int]:
    """Its owner and its mode."""
    status = path.stat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


@pytest.mark.skipif(not may_switch(), reason="only root can become another user")
@pytest.mark.skipif("USER == 'nobody'", reason="no user of this system lacks a home")
@pytest.mark.skipif("not open_python()", reason="other users can run no Python with HRM and Spark")
def test_the_submitters_blocks_are_the_submitters_alone_on_both_disks(
    shared: tuple[Cluster, Disks], tmp_path: Path, eventually: Eventually
) -> None:
    cluster, disks = shared
    uid = pwd.getpwnam(USER).pw_uid
    app = cluster.submit(
        *("--conf", "spark.executor.instances=1", str(APPS / "block_places.py"), str(tmp_path)),
        environment={"SPARK_USER": USER},
    )
    eventually((tmp_path / "ready").exists, 240.0, "the blocks are written")
    listed = cluster.application("block-places")
    assert listed is not None
    pattern = f"*/containers/{listed['application_id']}-*"
    directories = [path for disk in disks for path in disk.glob(pattern)]
    assert [path.parents[2] for path in directories] == list(disks), "one on each disk"
    assert {status_of(path) for path in directories} == {(uid, ALONE)}
    above = [parent for path in directories for parent in path.parents[:2]]
    assert {status_of(path) for path in above} == {(0, PASSED_THROUGH)}, "passed through by all"
    for name in ("rdd_*", "shuffle_*.data"):
        on_each = files_below(directories, name)
        assert all(on_each), f"{name} on each disk: {on_each}"
        assert {path.stat().st_uid for paths in on_each for path in paths} == {uid}
    (tmp_path / "end").touch()
    assert app.wait() == 0, app.output()[-4000:]
    eventually(lambda: not any(path.exists() for path in directories), 60.0, "all is gone")
