"""Executors of other users than the agent's request GPUs, each through a socket of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.gpu import sockets as gpu_sockets
from hrm.agent.gpu.sockets import GpuSockets
from hrm.agent.run_as import Account, may_switch
from hrm.config import AgentSettings
from hrm.pipelines.agent.gpu_service import GpuService
from hrm.pipelines.client.local import LocalGpus
from tests.agent.conftest import ENDED, RUNNING, Master, StartAgent

Eventually = Callable[..., Any]
ONE, OTHER = "daemon", "bin"
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")
CONNECT = (
    "for path in $HRM_AGENT_SOCKET $THEIRS; do /usr/bin/python3 -c '"
    'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print("open", '
    "sys.argv[1])' $path 2> /dev/null; done; echo $HRM_AGENT_SOCKET"
)


@pytest.fixture
def work() -> Iterator[Path]:
    """A work directory with a short path that every user can reach."""
    path = Path(tempfile.mkdtemp(prefix="hrm-gpus-", dir="/tmp"))
    path.chmod(0o711)
    yield path / "work"
    shutil.rmtree(path)


@as_root
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python")
async def test_each_user_has_a_socket_that_others_cannot_open(
    work: Path, master: Master, start_agent: StartAgent, eventually: Eventually
) -> None:
    settings = {
        "work_dir": str(work), "run_as": "submitter", "run_as_uid_min": 1,
        "pipeline_cores": 1, "pipeline_memory_mib": 128, "pipeline_gpus": 1,
        "gpus": [{"memory_mib": 1024}],
    }  # fmt: skip
    agent = start_agent(**settings)
    await master.until(lambda: master.registrations)
    paths = {x: work / "gpus" / f"{pwd.getpwnam(x).pw_uid}.sock" for x in (ONE, OTHER)}
    master.assign("app-1-x1", "exec sleep 600", user=ONE)
    await master.until_state("app-1-x1", RUNNING)
    eventually(paths[ONE].exists, 20.0)
    for path in (paths[ONE], work / "gpus.sock"):
        about = path.stat()
        uid = pwd.getpwnam(ONE).pw_uid if path == paths[ONE] else os.getuid()
        assert (about.st_uid, about.st_mode & 0o777) == (uid, 0o600), path
    await agent.kill()
    paths[ONE].unlink()
    start_agent(**settings)
    await master.until(lambda: len(master.registrations) == 2)
    eventually(paths[ONE].exists, 20.0, "the container that was adopted has its socket again")
    gpus = LocalGpus(str(paths[ONE]))
    with gpus.share("k", wait_s=5.0) as share:
        assert share.declared
    gpus.close()
    master.order_stop("app-1-x1", grace_s=0.5)
    await master.until_state("app-1-x1", ENDED)

    for user, theirs, opened in ((OTHER, ONE, OTHER), (ONE, ONE, ONE)):
        container = f"app-2-{user}-x1"
        master.assign(container, CONNECT, user=user, THEIRS=str(paths[theirs]))
        await master.until_state(container, ENDED)
        output = (work / "containers" / container / "stdout").read_text().splitlines()
        assert output[-1] == str(paths[user])
        assert set(output[:-1]) == {f"open {paths[opened]}"}, output


async def test_a_path_that_is_too_long_and_too_many_users_are_warnings(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: Any = GpuService(None)  # type: ignore[arg-type] # it gets no requests
    long = GpuSockets(AgentSettings(work_dir=tmp_path / ("x" * 100)), lambda _user: None)
    await long.serve(service)
    assert await long.environment_of(None) == {}
    monkeypatch.setattr(gpu_sockets, "SOCKETS_MAX", 2)
    sockets = GpuSockets(AgentSettings(work_dir=work), lambda _user: None)
    await sockets.serve(service)
    try:
        mine = os.getuid()
        users = [Account(name="u", uid=mine, gid=os.getgid(), groups=(), home="/")]
        assert len(await sockets.environment_of(users[0])) == 1
        other = Account(name="v", uid=mine + 1, gid=os.getgid(), groups=(), home="/")
        assert await sockets.environment_of(other) == {}, "one too many"
        assert len(await sockets.environment_of(users[0])) == 1
    finally:
        await sockets.close()
        await long.close()
