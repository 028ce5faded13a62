"""Executors of other users than the agent's request GPUs, each through a socket of their own."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hrm.agent.gpu import sockets as gpu_sockets
from hrm.agent.gpu.sockets import GpuSockets
from hrm.agent.run_as import Account, may_switch
from hrm.config import AgentSettings
from hrm.pipelines.agent.gpu_service import GpuService
from hrm.pipelines.client.local import LocalGpus
from hrm.v1 import pipeline_pb2, pipeline_pb2_grpc
from tests.agent.conftest import ENDED, RUNNING, Master, StartAgent
from tests.spark.fake_master import until

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
        "pipeline_gpus": 1, "gpus": [{"memory_mib": 1024}],
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


class _Full:
    """Of a node's pipelines, what claims need: GPUs that are never free."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    async def acquire(self, asked: Any) -> int:
        self.waiting.add(asked.holder)
        await asyncio.Event().wait()
        return 0

    def release(self, holder: str) -> None:
        self.waiting.discard(holder)


async def test_the_claims_of_one_user_are_bounded_and_those_of_others_go_on(work: Path) -> None:
    full = _Full()
    sockets = GpuSockets(AgentSettings(work_dir=work, gpu_claims_per_user=2), lambda _user: None)
    await sockets.serve(GpuService(full))  # type: ignore[arg-type] # all that it calls is there
    account = Account(name="u", uid=os.getuid(), gid=os.getgid(), groups=(), home="/")
    await sockets.environment_of(account)
    ask = pipeline_pb2.AcquireGpuRequest(kind="k", gpu_memory_mib=1, wait_s=600.0)

    def claim(channel: grpc.aio.Channel) -> Any:
        stub: Any = pipeline_pb2_grpc.GpuServiceStub(channel)
        return stub.Acquire(ask)

    async def until_waiting(count: int) -> None:
        await until(lambda: len(full.waiting) == count)

    try:
        async with (
            grpc.aio.insecure_channel(f"unix:{sockets.path_of(account)}") as of_user,
            grpc.aio.insecure_channel(f"unix:{sockets.path_of(None)}") as shared,
        ):
            held = [claim(of_user) for _ in range(2)]
            waits = [asyncio.ensure_future(x.read()) for x in held]
            await until_waiting(2)
            with pytest.raises(grpc.aio.AioRpcError, match="gpu_claims_per_user") as refused:
                await claim(of_user).read()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(full.waiting) == 2
            more = [claim(shared) for _ in range(5)]
            waits += [asyncio.ensure_future(x.read()) for x in more]
            await until_waiting(7)
            held[0].cancel()
            await until_waiting(6)
            again = claim(of_user)
            waits.append(asyncio.ensure_future(again.read()))
            await until_waiting(7)
            for one in (*held, *more, again):
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
    finally:
        await sockets.close()
