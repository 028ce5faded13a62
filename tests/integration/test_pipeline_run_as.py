"""Pipelines of several users on one node whose agent is root, for real: users of every machine."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from pipeline_samples import prying_steps as steps

from hrm.agent.containers.shim import start_ticks
from hrm.agent.run_as import may_switch
from hrm.pipelines import Client, TaskFailed
from tests.conftest import SAMPLES
from tests.integration.test_pipelines import REPOSITORY, PipelineCluster

Eventually = Callable[..., Any]
ONE, OTHER = "daemon", "bin"
LIMIT_S = 60.0
PYTHON_PATH = os.pathsep.join(map(str, (REPOSITORY, SAMPLES, Path(numpy.__file__).parents[1])))
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


@pytest.fixture
def work() -> Iterator[Path]:
    """A work directory that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hrm-pipes-", dir="/tmp"))
    path.chmod(0o711)
    yield path / "work"
    shutil.rmtree(path)


@pytest.fixture
async def cluster(tmp_path: Path, work: Path) -> Any:
    """It ends before its agent's directory does."""
    cluster = PipelineCluster(tmp_path)
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def as_user(cluster: PipelineCluster) -> Iterator[Callable[[str], Client]]:
    clients: list[Client] = []

    def connect(user: str) -> Client:
        client = Client(cluster.address, token_path=cluster.token_file, user=user)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


@functools.cache
def open_python() -> str:
    """A Python of this version that others can run with HRM; empty if there is none.

    The tests' own may be below a home that is closed to them; the system's is open to all.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            subprocess.run(
                [candidate, "-P", "-c", "import hrm.pipelines.worker.runtime, grpc"],
                env={"PYTHONPATH": PYTHON_PATH}, user=ONE, group=pwd.getpwnam(ONE).pw_gid,
                extra_groups=[], cwd="/", check=True, timeout=60, capture_output=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    return ""


def start(cluster: PipelineCluster, work: Path, **more: Any) -> None:
    python = open_python()
    if not python:
        pytest.skip(f"user {ONE} can run no Python with {PYTHON_PATH}")
    more = {"run_as": "submitter", "run_as_uid_min": 1, "work_dir": work, **more}
    environment = {"SECRET_OF_THE_AGENT": "hush", "PYTHONPATH": PYTHON_PATH}
    cluster.agent("n1", python=python, environment=environment, **more)


def directories_of(work: Path, user: str) -> list[Path]:
    """The working directories of a user's workers."""
    uid = pwd.getpwnam(user).pw_uid
    return [x for x in (work / "containers").glob("pipelines-*/work") if x.stat().st_uid == uid]


def pids_of(work: Path, user: str) -> list[int]:
    """Pids of the process that runs ``staying``, and of the child that it has started."""
    for directory in directories_of(work, user):
        if (directory / "pids").exists():
            return [int(one) for one in (directory / "pids").read_text().split()]
    return []


@as_root
def test_a_worker_is_its_submitters_and_has_nothing_of_the_agents(
    cluster: PipelineCluster, as_user: Callable[[str], Client], work: Path
) -> None:
    start(cluster, work, cores=2)
    found = {}
    for user in (ONE, OTHER):
        printed = as_user(user).submit(steps.identity, 0).result(LIMIT_S).value
        entry = pwd.getpwnam(user)
        assert printed["ids"] == [entry.pw_uid] * 3 + [entry.pw_gid] * 3
        assert printed["groups"] == sorted(set(os.getgrouplist(user, entry.pw_gid)) - {0})
        assert printed["umask"] == 0o077
        directory = Path(printed["cwd"]).parent
        assert directory.parent == work / "containers"
        assert directory.name.startswith("pipelines-")
        status = printed["status"]
        assert status["NoNewPrivs"] == "1"
        held = {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}
        assert held == {0}
        environment = printed["environment"]
        assert environment["USER"] == user
        assert Path(environment["TMPDIR"]).is_relative_to(directory)
        ours = {name for name in environment if "HRM" in name or "SECRET" in name}
        assert ours == {"HRM_CONTAINER_ID"}, environment
        assert environment["HRM_CONTAINER_ID"] == directory.name
        assert printed["pid"] not in found, "a process of one user has served another"
        found[printed["pid"]] = user


@as_root
def test_another_users_pipeline_reaches_nothing(
    cluster: PipelineCluster,
    as_user: Callable[[str], Client],
    work: Path,
    eventually: Eventually,
) -> None:
    start(cluster, work, cores=4)
    stays = as_user(ONE).submit(steps.staying, 0)
    pids = eventually(lambda: pids_of(work, ONE), LIMIT_S)
    theirs = pwd.getpwnam(ONE).pw_uid
    root = work / "containers"
    owned = [path for path in root.rglob("*") if path.stat().st_uid == theirs]
    names = {path.name for path in owned}
    assert {"secret", "input", "prying_steps.py", "token", "worker.json"} <= names
    for path in owned:
        assert path.stat().st_mode & 0o077 == 0 or "__pycache__" in str(path), path

    asked = {"paths": [str(one) for one in [*owned, root]], "pids": pids}
    could = as_user(OTHER).submit(steps.prying, asked).result(LIMIT_S).value
    assert could == []
    # Its own user does find something in the same places, so the test would notice a leak.
    could = as_user(ONE).submit(steps.prying, asked).result(LIMIT_S).value
    (secret,) = [path for path in owned if path.name == "secret"]
    assert f"read {secret}" in could and f"read environ {pids[0]}" in could
    assert not any(one.endswith(f" {root}") for one in could)
    stays.cancel()


@as_root
@pytest.mark.parametrize("how", ["cancelled", "application killed"])
def test_all_of_a_users_run_ends_with_it(
    cluster: PipelineCluster,
    as_user: Callable[[str], Client],
    work: Path,
    eventually: Eventually,
    how: str,
) -> None:
    start(cluster, work, cores=1)
    client = as_user(ONE)
    task = client.submit(steps.staying, 0)
    step, child = eventually(lambda: pids_of(work, ONE), LIMIT_S)
    (listed,) = client.tasks().tasks
    if how == "cancelled":
        task.cancel()
    else:
        hrm(cluster, "app", "kill", listed.application_id)
    eventually(lambda: start_ticks(step) is None, LIMIT_S, "the process has ended")
    eventually(lambda: start_ticks(child) is None, LIMIT_S, "what it started has ended")
    assert "cancel" in task.outcome(LIMIT_S).error or how != "cancelled"
    assert as_user(OTHER).submit(steps.identity, 0).result(LIMIT_S).ok


@as_root
@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("root", "user root may not own containers"),
        ("nixie-42", "user nixie-42 does not exist on this node"),
    ],
)
def test_one_that_is_refused_is_reported_as_with_containers(
    cluster: PipelineCluster, as_user: Callable[[str], Client], work: Path, user: str, why: str
) -> None:
    start(cluster, work)
    with pytest.raises(TaskFailed, match=f"workers in a row have failed.*{why}"):
        as_user(user).submit(steps.identity, 0).result(LIMIT_S)


def hrm(cluster: PipelineCluster, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hrm.cli", *arguments, "--master", cluster.address],
        env={**os.environ, "HRM_HOME": str(cluster.directory),
             "HRM_TOKEN_FILE": str(cluster.token_file)},
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return done.stdout
