"""Pipelines of several users on one node whose agent is root, for real: users of every machine."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import signal
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
                [candidate, "-P", "-c", "import hrm.pipelines.agent.worker, grpc"],
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


def pids_of(work: Path, user: str) -> list[int]:
    """Pids of the worker that runs ``staying``, and of the child that it has started."""
    path = work / "pipelines/scratch" / str(pwd.getpwnam(user).pw_uid) / "pids"
    return [int(one) for one in path.read_text().split()] if path.exists() else []


@as_root
def test_a_worker_is_its_submitters_and_has_nothing_of_the_agents(
    cluster: PipelineCluster, as_user: Callable[[str], Client], work: Path
) -> None:
    start(cluster, work, cores=1)
    found = {}
    for user in (ONE, OTHER, ONE):
        printed = as_user(user).submit(steps.identity, 0).result(LIMIT_S).value
        entry = pwd.getpwnam(user)
        assert printed["ids"] == [entry.pw_uid] * 3 + [entry.pw_gid] * 3
        assert printed["groups"] == sorted(set(os.getgrouplist(user, entry.pw_gid)) - {0})
        assert printed["umask"] == 0o077
        assert printed["cwd"] == str(work / "pipelines/scratch" / str(entry.pw_uid))
        status = printed["status"]
        assert status["NoNewPrivs"] == "1"
        held = {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}
        assert held == {0}
        environment = printed["environment"]
        assert (environment["USER"], environment["TMPDIR"]) == (user, printed["cwd"])
        ours = {name for name in environment if "HRM" in name or "SECRET" in name}
        assert ours == {"HRM_CONTAINER_ID"}, environment
        assert printed["pid"] not in found, "a worker of one user has served another"
        found[printed["pid"]] = user
    again = as_user(ONE).submit(steps.identity, 0).result(LIMIT_S).value
    assert found[again["pid"]] == ONE, "one of the same user is used again"


@as_root
def test_another_users_pipeline_reaches_nothing(
    cluster: PipelineCluster,
    as_user: Callable[[str], Client],
    work: Path,
    eventually: Eventually,
) -> None:
    start(cluster, work, cores=2)
    as_user(ONE).submit(steps.identity, 0).result(LIMIT_S)
    stays = as_user(ONE).submit(steps.staying, 0)
    pids = eventually(lambda: pids_of(work, ONE), LIMIT_S)
    theirs = pwd.getpwnam(ONE).pw_uid
    root = work / "pipelines"
    owned = [path for path in root.rglob("*") if path.stat().st_uid == theirs]
    names = {path.name for path in owned}
    assert {"secret", "input", "prying_steps.py"} <= names
    assert any(path.name == f"worker-{ONE}-cpu-0.log" for path in owned)
    for path in owned:
        assert path.stat().st_mode & 0o077 == 0 or "__pycache__" in str(path), path
    above = {path for path in root.rglob("*") if path.stat().st_uid == os.getuid()}
    for path in above | {root}:
        assert path.stat().st_mode & 0o066 == 0, path

    asked = {"paths": [str(one) for one in [*owned, *above, root]], "pids": pids}
    could = as_user(OTHER).submit(steps.prying, asked).result(LIMIT_S).value
    own = f"{pwd.getpwnam(OTHER).pw_uid}"
    assert [one for one in could if f"/{own}" not in one and f"-{OTHER}-" not in one] == []
    # Its own user does find something in the same places, so the test would notice a leak.
    could = as_user(ONE).submit(steps.prying, asked).result(LIMIT_S).value
    secret = root / "scratch" / str(theirs) / "secret"
    assert f"read {secret}" in could and f"read environ {pids[0]}" in could
    assert not any(one.endswith((str(root), "/tasks")) for one in could)
    stays.cancel()


@as_root
@pytest.mark.parametrize("how", ["cancelled", "agent killed", "agent printed to end"])
def test_all_of_a_users_run_ends_with_it(
    cluster: PipelineCluster,
    as_user: Callable[[str], Client],
    work: Path,
    eventually: Eventually,
    how: str,
) -> None:
    start(cluster, work, cores=1)
    task = as_user(ONE).submit(steps.staying, 0)
    worker, child = eventually(lambda: pids_of(work, ONE), LIMIT_S)
    tasks = work / "pipelines/tasks"
    assert list(tasks.iterdir())
    agent = cluster.agents["n1"]
    if how == "cancelled":
        task.cancel()
    else:
        os.killpg(agent.pid, signal.SIGKILL if how == "agent killed" else signal.SIGTERM)
    eventually(lambda: start_ticks(worker) is None, LIMIT_S, "the worker has ended")
    if how == "agent killed":
        agent.wait(LIMIT_S)
        assert start_ticks(child) is not None, "nobody was left to end it"
        start(cluster, work, cores=1)
    eventually(lambda: start_ticks(child) is None, LIMIT_S, "what it started has ended")
    if how == "cancelled":
        eventually(lambda: not list(tasks.iterdir()), LIMIT_S, "its files are gone")
        assert as_user(OTHER).submit(steps.identity, 0).result(LIMIT_S).ok


@as_root
@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("root", "user root may not own containers"),
        ("nixie-42", "user nixie-42 does not exist on this node"),
        ("../etc", "cannot name a user"),
        ("", "names no user"),
    ],
)
def test_one_that_is_refused_is_reported_as_with_containers(
    cluster: PipelineCluster, as_user: Callable[[str], Client], work: Path, user: str, why: str
) -> None:
    start(cluster, work)
    with pytest.raises(TaskFailed, match=f"node n1: pipelines run as their submitter.*{why}"):
        as_user(user).submit(steps.identity, 0).result(LIMIT_S)
    assert not list((work / "pipelines").rglob("worker-*.log")), "nothing was started"


@as_root
def test_what_is_reported_of_whose_the_workers_are_is_so(
    cluster: PipelineCluster, as_user: Callable[[str], Client], work: Path, eventually: Eventually
) -> None:
    start(cluster, work)
    cluster.agent("n2")
    client = as_user("root")
    eventually(lambda: len(client.tasks().nodes) == 2, LIMIT_S)
    printed = {one.capacity.node: one.runs_as for one in client.tasks().nodes}
    assert printed == {"n1": "submitter", "n2": "root"}
    shown = {name: remarks(cluster, name) for name in printed}
    assert "pipelines: workers run as their submitter, uid 1 to 60000" in shown["n1"]
    assert "pipelines: workers run as root (run_as = off)" in shown["n2"]


def remarks(cluster: PipelineCluster, name: str) -> str:
    command = [sys.executable, "-m", "hrm.cli", "node", "show", name, "--output", "json"]
    done = subprocess.run(
        [*command, "--master", cluster.address],
        env={**os.environ, "HRM_HOME": str(cluster.directory),
             "HRM_TOKEN_FILE": str(cluster.token_file)},
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return done.stdout
