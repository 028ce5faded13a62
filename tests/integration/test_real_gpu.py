"""Containers on a real GPU of a live cluster: what they see, what they may take, what ends them.

They hold device memory through CUDA's driver (``apps/device_memory.py``) in place of Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hrm.agent.run_as import may_switch
from hrm.v1 import admin_pb2, common_pb2
from tests.agent import fake_nvml
from tests.hostile.application import ENDED, RUNNING, Application
from tests.hostile.cluster import START_S, Cluster, Daemon, wait_until
from tests.integration.conftest import APPS
from tests.real_gpu import Card, card_or_skip, nvidia_smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

WAIT_S = 40.0
CONTEXT_MAX_MIB = 1_500
"""More than a CUDA context takes of any card."""
MPS = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="no nvidia-cuda-mps-control here"
)
USER = "daemon"
GPU_MEMORY_LIMIT = common_pb2.END_CAUSE_GPU_MEMORY_LIMIT


@pytest.fixture
def card() -> Iterator[Card]:
    """A test leaves as much device memory as it has found."""
    found = card_or_skip()
    before_mib = found.used_mib()
    yield found
    wait_until(lambda: found.used_mib() < before_mib + 64, "device memory is free again", WAIT_S)
    pynvml.nvmlShutdown()


class GpuCluster(Cluster):
    """A master and one agent, whose containers hold as much device memory as the test says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.held = directory / "held"
        self.held.mkdir()
        self.python, self.program = sys.executable, APPS / "device_memory.py"

    def start_agent(self, name: str = "node-1", *, wait: bool = True, **settings: Any) -> Daemon:
        work_dir = self.directory / name
        values = {
            "master": self.address,
            "name": name,
            "work_dir": str(work_dir),
            "token_file": str(self.token_file),
            "cores": 4,
            "memory_mib": 8192,
            "disk_free_min_mib": 0,
            "run_as": "off",
            "usage_interval_s": 0.25,
            "mps": "off",
            **settings,
        }
        daemon = self.start(name, "-m", "tests.agent.plain_agent", json.dumps(values))
        if wait:
            wait_until(
                lambda: name in self.alive_nodes() or not daemon.alive(), "it joins", START_S
            )
            assert daemon.alive(), daemon.log()
        return daemon

    def application(self, before: str = "", user: str = "somebody") -> Application:
        """``before``: what the shell does first."""
        program = f'exec {self.python} {self.program} {self.held} "$HRM_CONTAINER_ID"'
        inherited = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        launch = common_pb2.SparkLaunch(environment={"COMMAND": before + program, **inherited})
        return Application(self.address, self.token, user=user, launch=launch)

    def state(self, container_id: str) -> dict[str, Any]:
        """What the container has written; {} before."""
        path = self.held / f"{container_id}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def want(self, container_id: str, mib: int) -> None:
        """Have a container try to hold so much."""
        made = self.held / f"{container_id}.making"
        made.write_text(str(mib))
        made.rename(self.held / f"{container_id}.wanted")

    def hold(self, container_id: str, mib: int) -> dict[str, Any]:
        """The same, and its state when it has tried."""
        self.want(container_id, mib)
        state: dict[str, Any] = wait_until(
            lambda: (found := self.state(container_id)).get("wanted_mib") == mib and found,
            f"{container_id} tries to hold {mib} MiB",
            WAIT_S,
        )
        return state

    def usage_mib(self, app: Application, executor_id: str) -> int:
        """Device memory of a container as its agent has reported it."""
        request = admin_pb2.GetApplicationRequest(application_id=app.application_id)
        shown = self.admin.GetApplication(request, timeout=20)
        (found,) = [x for x in shown.containers if x.executor_id == executor_id]
        return int(found.usage.gpu_memory_mib)

    def wait_used(self, app: Application, executor_id: str, held_mib: int) -> int:
        """Wait until a container is seen to use what it holds and a context's memory; returns
        what is seen."""

        def seen_mib() -> int:
            used_mib = self.usage_mib(app, executor_id)
            return used_mib if held_mib < used_mib <= held_mib + CONTEXT_MAX_MIB else 0

        used_mib: int = wait_until(seen_mib, f"{executor_id} uses {held_mib} MiB", WAIT_S)
        return used_mib


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach, with a short path."""
    path = Path(tempfile.mkdtemp(prefix="hrm-gpu-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cluster(
    card: Card, open_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GpuCluster]:
    # Not the test's own directory: MPS makes sockets below it, whose paths must be short.
    subject = GpuCluster(tmp_path_factory.mktemp("g"))
    with subject:
        subject.start_master()
        yield subject
        assert not subject.unhandled()


def started(cluster: GpuCluster, app: Application, *executor_ids: str) -> list[str]:
    """Their container ids, once each has written what it sees."""
    app.wait_running(len(executor_ids))
    ids = [app.containers[x].container_id for x in executor_ids]
    wait_until(lambda: all(map(cluster.state, ids)), "the containers are there", WAIT_S)
    return ids


def ended(app: Application, executor_id: str) -> common_pb2.ContainerEnd:
    wait_until(
        lambda: app.containers[executor_id].state == ENDED, f"{executor_id} has ended", WAIT_S
    )
    return app.containers[executor_id].end


def test_a_node_shows_the_gpu_that_its_driver_reports(cluster: GpuCluster, card: Card) -> None:
    cluster.start_agent()
    shown = json.loads(cluster.hrm("node", "show", "node-1", "--output", "json").stdout)
    (gpu,) = [x["unit"]["gpu"] for x in shown["resource_units"] if "gpu" in x["unit"]][:1]
    assert (gpu["uuid"], gpu["name"]) == (card.uuid, card.name)
    assert int(gpu["memory_mib"]) == card.memory_mib
    assert not gpu.get("declared")
    remarks = " ".join(shown["remarks"])
    assert "device memory: watched through NVML" in remarks
    table = cluster.hrm("node", "show", "node-1").stdout.decode()
    assert "declared" not in table and "watched through NVML" in " ".join(table.split()), table
    if known := nvidia_smi("uuid,name,memory.total,memory.reserved"):
        assert known[:2] == [card.uuid, card.name]
        assert int(known[2]) - int(known[3]) == pytest.approx(card.memory_mib, abs=2)


@pytest.mark.parametrize("mps", ["off", pytest.param("auto", marks=MPS)])
def test_containers_share_a_gpu_and_each_is_counted_by_itself(
    cluster: GpuCluster, card: Card, mps: str, figure: Callable[[str, object], None]
) -> None:
    cluster.start_agent(mps=mps)
    share_mib = card.memory_mib * 2 // 5
    before_mib = card.used_mib()
    with cluster.application() as app:
        app.request("1", "2", "3", memory_mib=2048, gpu_memory_mib=share_mib)
        wait_until(lambda: len(app.running()) == 2, "two of three run", WAIT_S)
        first, second = app.running()
        (third,) = {"1", "2", "3"} - {first, second}
        ids = started(cluster, app, first, second)
        for each in ids:
            state = cluster.state(each)
            assert state["devices"] == [card.uuid], state
            assert state["environment"] == [card.uuid, "0", str(share_mib)]
        held = {first: 1_000, second: 2_000}
        for executor_id, mib in held.items():
            state = cluster.hold(app.containers[executor_id].container_id, mib)
            assert (state["error"], state["held_mib"]) == (0, mib), state
            used_mib = cluster.wait_used(app, executor_id, mib)
            figure(f"context_mib_{executor_id}", used_mib - mib)
        assert card.used_mib() - before_mib >= 3_000
        assert third not in app.running(), "the third waits for device memory"
        (cluster.held / f"{ids[0]}.end").touch()
        assert ended(app, first).cause == common_pb2.END_CAUSE_EXITED
        wait_until(lambda: third in app.running(), "the third has the place of the first", WAIT_S)
        assert set(app.running()) == {second, third}


def test_two_halves_of_the_gpu_can_both_be_filled(cluster: GpuCluster, card: Card) -> None:
    """What the agent offers is there: none of it is the driver's own."""
    cluster.start_agent()
    half_mib = card.memory_mib // 2
    with cluster.application() as app:
        app.request("1", "2", memory_mib=2048, gpu_memory_mib=half_mib)
        first, second = started(cluster, app, "1", "2")
        for executor_id in app.running():
            seen = partial(cluster.usage_mib, app, executor_id)
            wait_until(seen, "its context is seen", WAIT_S)
        mib = half_mib - max(cluster.usage_mib(app, x) for x in ("1", "2")) - 64
        for each in (first, second):
            state = cluster.hold(each, mib)
            assert (state["error"], state["held_mib"]) == (0, mib), state
        assert sorted(app.running()) == ["1", "2"]


def test_a_container_over_its_share_is_ended_and_one_below_it_is_not(
    cluster: GpuCluster, card: Card, figure: Callable[[str, object], None]
) -> None:
    agent = cluster.start_agent()
    with cluster.application() as app:
        app.request("1", "2", memory_mib=2048, gpu_memory_mib=4096)
        greedy, modest = started(cluster, app, "1", "2")
        assert cluster.hold(modest, 2_500)["held_mib"] == 2_500
        assert cluster.hold(greedy, 2_000)["held_mib"] == 2_000
        cluster.wait_used(app, "1", 2_000)
        full_mib = card.used_mib()
        cluster.want(greedy, 5_000)

        def too_much() -> bool:
            return card.used_mib() > full_mib + 2_000 or app.containers["1"].state == ENDED

        wait_until(too_much, "it takes too much", WAIT_S)
        over_s = time.monotonic()
        end = ended(app, "1")
        figure("ended_after_s", round(time.monotonic() - over_s, 2))
        assert end.cause == GPU_MEMORY_LIMIT, end
        assert "MiB of device memory of 4096 MiB" in end.message
        wait_until(lambda: card.used_mib() < full_mib - 1_900, "its memory is free", WAIT_S)
        assert app.containers["2"].state == RUNNING
        assert cluster.hold(modest, 2_600)["held_mib"] == 2_600, "it goes on"
        app.request("3", memory_mib=2048, gpu_memory_mib=card.memory_mib - 4096)
        wait_until(lambda: "3" in app.running(), "what it held can be had", WAIT_S)
    assert agent.alive()


@MPS
def test_with_mps_an_allocation_over_the_share_fails_and_the_container_goes_on(
    cluster: GpuCluster, card: Card
) -> None:
    agent = cluster.start_agent(mps="auto")
    shown = json.loads(cluster.hrm("node", "show", "node-1", "--output", "json").stdout)
    assert any(x.startswith("MPS: on GPU 0") for x in shown["remarks"]), agent.log()
    with cluster.application() as app:
        app.request("1", "2", memory_mib=2048, gpu_memory_mib=4096)
        greedy, modest = started(cluster, app, "1", "2")
        assert cluster.hold(modest, 2_500)["held_mib"] == 2_500
        state = cluster.hold(greedy, 5_000)
        assert state["error"] and not state["held_mib"], state
        assert cluster.hold(greedy, 2_500)["held_mib"] == 2_500
        assert sorted(app.running()) == ["1", "2"]


def test_a_container_without_a_gpu_sees_none_and_may_use_none(
    cluster: GpuCluster, card: Card, figure: Callable[[str, object], None]
) -> None:
    """The second takes the variable that hides the GPU away."""
    cluster.start_agent()
    with cluster.application() as app:
        app.request("1", memory_mib=2048)
        (blind,) = started(cluster, app, "1")
        assert cluster.state(blind)["devices"] == []
    with cluster.application("export CUDA_VISIBLE_DEVICES=0; ") as app:
        app.request("1", memory_mib=2048)
        app.wait_running(1)
        container_id = app.containers["1"].container_id

        def closed_or_ended() -> bool:
            state = cluster.state(container_id)
            return bool(state and not state["devices"]) or app.containers["1"].state == ENDED

        wait_until(closed_or_ended, "it cannot open the device, or it is ended", WAIT_S)
        figure("state", cluster.state(container_id))
        if app.containers["1"].state == ENDED:
            end = app.containers["1"].end
            assert end.cause == GPU_MEMORY_LIMIT, end
            assert "of device memory and holds none" in end.message


@pytest.mark.skipif(not may_switch(), reason="only root can become another user")
@pytest.mark.parametrize("mps", ["off", pytest.param("auto", marks=MPS)])
def test_a_container_of_another_user_has_its_share_of_the_gpu(
    cluster: GpuCluster, card: Card, mps: str, open_dir: Path
) -> None:
    cluster.program = Path(shutil.copy(cluster.program, open_dir))
    cluster.held = open_dir / "held"
    cluster.held.mkdir()
    for path in (cluster.held, cluster.program):
        path.chmod(0o777)
    cluster.python = "/usr/bin/python3"
    cluster.start_agent(work_dir=str(open_dir / "w"), run_as="submitter", run_as_uid_min=1, mps=mps)
    with cluster.application(user=USER) as app:
        app.request("1", memory_mib=2048, gpu_memory_mib=4096)
        (held,) = started(cluster, app, "1")
        assert cluster.state(held)["devices"] == [card.uuid]
        assert cluster.hold(held, 2_000)["held_mib"] == 2_000
        cluster.wait_used(app, "1", 2_000)
        if mps == "auto":
            assert cluster.hold(held, 5_000)["error"] and app.running() == ["1"]
        else:
            cluster.want(held, 5_000)
            assert ended(app, "1").cause == GPU_MEMORY_LIMIT


def test_an_agent_outlives_its_driver_and_watches_again_once_it_is_back(
    cluster: GpuCluster, card: Card
) -> None:
    lost = cluster.directory / "nvml-lost"
    cluster.environment[fake_nvml.LOSE_VARIABLE] = str(lost)
    agent = cluster.start_agent()
    with cluster.application() as app:
        app.request("1", memory_mib=2048, gpu_memory_mib=4096)
        (held,) = started(cluster, app, "1")
        cluster.hold(held, 2_000)
        cluster.wait_used(app, "1", 2_000)
        lost.touch()
        wait_until(lambda: "device memory is not watched" in agent.log(), "it is said", WAIT_S)
        wait_until(lambda: not cluster.usage_mib(app, "1"), "nothing is seen", WAIT_S)
        assert agent.alive() and app.containers["1"].state == RUNNING
        lost.unlink()
        cluster.wait_used(app, "1", 2_000)
        cluster.want(held, 5_000)
        assert ended(app, "1").cause == GPU_MEMORY_LIMIT


def test_containers_that_outlive_their_agent_are_watched_by_the_next(
    cluster: GpuCluster, card: Card
) -> None:
    agent = cluster.start_agent(keep_containers=True)
    with cluster.application() as app:
        app.request("1", memory_mib=2048, gpu_memory_mib=4096)
        (held,) = started(cluster, app, "1")
        cluster.hold(held, 2_000)
        agent.kill()
        cluster.start_agent(keep_containers=True)
        cluster.wait_used(app, "1", 2_000)
        cluster.want(held, 5_000)
        assert ended(app, "1").cause == GPU_MEMORY_LIMIT
