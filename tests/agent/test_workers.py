"""What an agent starts as a worker of pipelines: its command, its document, its secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm.agent import daemon
from hrm.agent.workers import check_policy, worker_launch
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerSpec,
    Gpu,
    LaunchContext,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
)
from hrm.errors import InvalidConfig, LaunchFailed
from hrm.pipelines.core.node_messages import GpuCard
from hrm.pipelines.worker.document import WorkerDocument, read_document
from hrm.spark.launch import Launch

APPLICATION = ApplicationId("pipelines-1")
CARD = Gpu(index=3, memory_mib=9000, name="P4", uuid="GPU-3")


def spec(worker: str = '{"token": "of the application"}', gpu_memory_mib: int = 0) -> ContainerSpec:
    return ContainerSpec(
        container_id=container_id_of(APPLICATION, "1"),
        application_id=APPLICATION,
        executor_id="1",
        workload_class=WorkloadClass.BATCH,
        unit_id=ResourceUnitId("n1/cpu"),
        resource_profile_id=0,
        resources=Resources(2, 2048, gpu_memory_mib),
        launch=LaunchContext(worker=worker),
    )


def launched(directory: Path, what: ContainerSpec, *gpus: Gpu, **settings: Any) -> Launch:
    """As in the working directory ``directory``, with the files that belong there."""
    agent = AgentSettings(
        master="10.0.0.1:7077", work_dir=directory, token_file=directory / "agents-token",
        pipeline_path="/code", pipeline_cpu_speed=2.0, **settings,
    )  # fmt: skip
    launch = worker_launch(
        what, settings=agent, work_dir=directory, node=NodeName("n1"), gpus=gpus, platform="c5"
    )
    for name, content in launch.files.items():
        (directory / name).write_text(content)
    return launch


def document(launch: Launch) -> WorkerDocument:
    return read_document(Path(launch.argv[-1]))


def test_the_document_that_it_writes_is_the_one_that_a_worker_reads(tmp_path: Path) -> None:
    launch = launched(tmp_path, spec())
    assert launch.argv[-3:-1] == ("-m", "hrm.pipelines.worker")
    read = document(launch)
    assert (read.container_id, read.node, read.master) == ("pipelines-1-x1", "n1", "10.0.0.1:7077")
    assert (read.vcores, read.memory_mib, read.gpu_memory_mib) == (2, 2048, 0)
    assert (read.platform, read.speeds, read.import_path) == ("c5", (2.0, 1.0), "/code")
    assert read.token_file.read_text() == "of the application"
    assert read.tls_ca is None and not read.capacity.gpus


def test_it_has_the_part_of_a_gpu_that_it_asked_for_and_no_more(tmp_path: Path) -> None:
    launch = launched(tmp_path, spec(gpu_memory_mib=3000), CARD)
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    read = document(launch)
    assert read.gpu_device == 3
    assert read.capacity.gpus == (GpuCard(index=0, model="P4", memory_mib=3000),)
    on_a_cpu = launched(tmp_path, spec(), CARD)
    assert document(on_a_cpu).gpu_device is None
    assert on_a_cpu.environment.get("CUDA_VISIBLE_DEVICES", "") == ""


def test_behind_a_declared_gpu_is_no_device(tmp_path: Path) -> None:
    declared = Gpu(index=0, memory_mib=9000, name="P4", declared=True)
    read = document(launched(tmp_path, spec(gpu_memory_mib=3000), declared))
    assert (read.gpu_device, read.gpu_memory_mib) == (None, 3000)


def test_it_does_not_get_what_is_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_TOKEN_FILE", "/agents/token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "agents-token").write_text("a" * 40)
    launch = launched(tmp_path, spec())
    assert not {"HRM_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY"} & set(launch.environment)
    known = json.dumps([launch.argv, launch.files, launch.environment])
    assert "a" * 40 not in known and "agents-token" not in known
    assert "of the application" not in json.dumps([launch.argv, launch.environment])


@pytest.mark.parametrize("damage", ["nonsense", "[]", "{}"])
def test_a_worker_that_cannot_be_read_is_refused(tmp_path: Path, damage: str) -> None:
    with pytest.raises(LaunchFailed, match="pipelines-1-x1 is no readable worker"):
        launched(tmp_path, spec(damage))


@pytest.mark.parametrize("policy", ["mct", "pats", "iawp:cosine:guarded:gain=0.1", "dqngpu:sjf"])
def test_a_policy_that_there_is_is_taken(policy: str) -> None:
    check_policy(AgentSettings(pipeline_policy=policy))


@pytest.mark.parametrize("policy", ["mct:guarded", "dqngpu:foo", "iawp:", "nonsense"])
async def test_an_agent_does_not_start_with_a_policy_that_there_is_not(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its workers would fail, one after the other."""
    token = tmp_path / "token"
    token.write_text("x" * 43)
    token.chmod(0o600)
    work_dir = tmp_path / "work"
    with pytest.raises(InvalidConfig, match="pipeline_policy: "):
        check_policy(AgentSettings(pipeline_policy=policy))
    settings = AgentSettings(pipeline_policy=policy, token_file=token, work_dir=work_dir)
    assert await daemon.run(settings) == 2
    assert "hrm agent: pipeline_policy: " in capsys.readouterr().err
    assert not work_dir.exists()
