"""CUDA MPS with a script in place of NVIDIA's control daemon: a declared fake, which records its
orders. Whether a real driver accepts them cannot be tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.agent.gpu.mps import Mps
from hrm.core.vocabulary.model import Gpu
from tests.agent import fake_nvml
from tests.agent.conftest import ENDED, Master, StartAgent

GPUS = (
    Gpu(index=0, memory_mib=16_000, uuid="GPU-a"),
    Gpu(index=1, memory_mib=8_000, uuid="GPU-b"),
)
CONTROL = """#!/bin/sh
# "Runs" once -d has been said, until quit.
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
said="$*$([ $# = 0 ] && cat)"
echo "$CUDA_VISIBLE_DEVICES $said" >> "{log}"
case "$said" in
    -d) {on_start} ;;
    quit) rm up ;;
    *) [ -f up ] || { echo "Cannot find MPS control daemon process"; exit 1; } ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "mps.log"


@pytest.fixture
def control(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_control(tmp_path, log, monkeypatch, "touch up")


def make_control(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, on_start: str) -> Path:
    path = tmp_path / "bin" / "nvidia-cuda-mps-control"
    path.parent.mkdir()
    path.write_text(CONTROL.replace("{log}", str(log)).replace("{on_start}", on_start))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


@pytest.fixture
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w")


def test_a_daemon_for_each_gpu_from_start_to_stop(work_dir: Path, control: Path, log: Path) -> None:
    mps = Mps("auto", work_dir, GPUS)
    mps.start()
    assert mps.remark == "MPS: on GPU 0, 1; a share of device memory is enforced"
    mps.stop()
    assert log.read_text().splitlines() == [
        "GPU-a get_server_list", "GPU-a -d", "GPU-a get_server_list",
        "GPU-b get_server_list", "GPU-b -d", "GPU-b get_server_list",
        "GPU-a quit", "GPU-b quit",
    ]  # fmt: skip
    assert mps.environment(GPUS[:1], 100) == {}, "nothing runs any more"


def test_a_share_becomes_limits(work_dir: Path, control: Path) -> None:
    mps = Mps("auto", work_dir, GPUS)
    mps.start()
    assert mps.environment(GPUS[:1], 4_000) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(work_dir / "mps" / "gpu0"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert mps.environment(GPUS[1:2], 10)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"
    assert mps.environment(GPUS[:1], 16_000) == {}, "a whole GPU is nobody else's"
    assert mps.environment((), 0) == {}


def test_the_next_agent_takes_the_daemons_over(work_dir: Path, control: Path, log: Path) -> None:
    Mps("auto", work_dir, GPUS[:1]).start()
    heir = Mps("auto", work_dir, GPUS[:1])
    heir.start()
    assert heir.environment(GPUS[:1], 1_000)
    assert log.read_text().split("\n").count("GPU-a -d") == 1


def test_a_daemon_that_does_not_start_is_reported(
    tmp_path: Path, work_dir: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_control(tmp_path, log, monkeypatch, "echo 'no such device'; exit 1")
    mps = Mps("auto", work_dir, GPUS[:1])
    mps.start()
    assert mps.remark == (
        "MPS: off (nvidia-cuda-mps-control: no such device): containers of one GPU take turns"
    )
    assert mps.environment(GPUS[:1], 1_000) == {}
    mps.stop()


def test_one_that_reports_that_it_started_and_does_not_reply_is_not_used(
    tmp_path: Path, work_dir: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_control(tmp_path, log, monkeypatch, "true")
    mps = Mps("auto", work_dir, GPUS[:1])
    mps.start()
    assert "Cannot find MPS control daemon" in mps.remark


def test_where_there_is_none_the_node_states_why(
    tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = (Gpu(index=0, memory_mib=1_000, declared=True),)
    assert "the GPUs are declared" in Mps("auto", tmp_path, declared).remark
    assert "(mps = off)" in Mps("off", tmp_path, GPUS).remark
    assert Mps("auto", tmp_path, ()).remark == "", "no GPU, nothing to say"
    long = Mps("auto", tmp_path / ("x" * 90), GPUS)
    long.start()
    assert "too long for its sockets" in long.remark
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "without nvidia-cuda-mps-control" in Mps("auto", tmp_path, GPUS).remark


def last_line(path: Path) -> str:
    return path.read_text().splitlines()[-1]


async def test_a_container_gets_its_share_and_the_daemons_end_with_the_agent(
    tmp_path: Path,
    work_dir: Path,
    control: Path,
    log: Path,
    master: Master,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "nvml.json"
    fake_nvml.write_state(path, [1000], {})
    monkeypatch.setenv(fake_nvml.VARIABLE, str(path))
    agent = start_agent(work_dir=str(work_dir), mps="auto")
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    assert any(remark.startswith("MPS: on GPU 0") for remark in registration.remarks)
    for name, mib in (("app-1-x1", 500), ("app-1-x2", 1000)):
        master.assign(name, "env | grep ^CUDA | sort", unit=1, gpu_memory_mib=mib)
        await master.until_state(name, ENDED)
    output = (agent.work_dir / "containers/app-1-x1/stdout").read_text().splitlines()
    assert output == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=500M",
        f"CUDA_MPS_PIPE_DIRECTORY={work_dir}/mps/gpu0",
        "CUDA_VISIBLE_DEVICES=GPU-0",
    ]
    alone = (agent.work_dir / "containers/app-1-x2/stdout").read_text()
    assert alone == "CUDA_VISIBLE_DEVICES=GPU-0\n"
    assert (await agent.end())[0] == 0
    assert last_line(log) == "GPU-0 quit"
