"""Results that stay in a directory which nodes share, through a real master, agent and worker."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pipeline_samples import sample_steps

from hrm.errors import NotFound, PermissionDenied
from hrm.pipelines import Client, ResultFile, TaskFailed
from tests.integration.test_pipelines import PipelineCluster

LIMIT_S = 60.0
MANY = 300_000
"""As JSON more than a master's message may have."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PipelineCluster]:
    cluster = PipelineCluster(tmp_path)
    try:
        await cluster.start()
        cluster.agent("n1", cores=2)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


@pytest.fixture
def client(cluster: PipelineCluster, shared: Path) -> Iterator[Client]:
    with Client(
        cluster.address, token_path=cluster.token_file, patience_s=30.0, result_dir=shared
    ) as client:
        yield client


def held_by_the_master(cluster: PipelineCluster) -> list[str]:
    files = cluster.directory / "master" / "pipelines" / "files"
    return [path.name for path in files.iterdir() if path.name.endswith((".out", ".part"))]


def test_a_result_stays_where_its_task_put_it(
    cluster: PipelineCluster, client: Client, shared: Path
) -> None:
    task = client.submit(sample_steps.numbers, MANY)
    found = task.result(LIMIT_S).value

    assert isinstance(found, ResultFile)
    assert found.path.parent == shared and found.path.name.startswith(task.task_id)
    assert found.size == found.path.stat().st_size > 1 << 20
    assert held_by_the_master(cluster) == []
    assert [path.name for path in shared.iterdir()] == [found.path.name]
    assert found.load() == list(range(MANY))
    assert str(found.key) not in repr(found)


def test_the_next_pipeline_reads_it_on_its_node(client: Client) -> None:
    made = client.submit(sample_steps.numbers, 1000).result(LIMIT_S).value
    added = client.submit(sample_steps.reading, made).result(LIMIT_S).value
    assert added.load() == sum(range(1000))


def test_what_was_changed_or_is_gone_is_not_read(client: Client) -> None:
    found = client.submit(sample_steps.numbers, 10).result(LIMIT_S).value
    before = found.path.read_bytes()
    found.path.write_bytes(before.replace(b"9", b"7"))
    with pytest.raises(PermissionDenied, match="is not what a worker with the task's key returned"):
        found.load()
    found.path.unlink()
    with pytest.raises(NotFound, match=r"there is no file .*; mount it here"):
        found.load()


def test_where_the_node_has_no_such_directory_the_task_fails_and_says_so(
    cluster: PipelineCluster, shared: Path
) -> None:
    with Client(
        cluster.address, token_path=cluster.token_file, result_dir=shared / "absent"
    ) as client:
        task = client.submit(sample_steps.numbers, 10)
        with pytest.raises(
            TaskFailed, match=r"refused.* 3 times.*n1: result_dir .*/absent: No such file or dir"
        ) as failed:
            task.result(LIMIT_S)
    assert not failed.value.result.runs, "no step has run"


def test_a_ticket_gets_it_also_from_another_client_and_the_shell(
    cluster: PipelineCluster, client: Client, shared: Path
) -> None:
    ticket = client.send(sample_steps.numbers, 10)
    with Client(cluster.address, token_path=cluster.token_file) as other:
        found = other.attach(ticket).result(LIMIT_S).value
    assert found.load() == list(range(10))

    def hrm(*arguments: str) -> str:
        done = cluster.hrm(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    numbers = ("pipeline_samples.sample_steps:numbers", "-i", "10", "--as", "json")
    task_id = hrm("submit", *numbers, "--detach", "--result-dir", str(shared)).strip()
    saved = shared / "saved.pickle"
    shown = hrm("result", task_id, "-o", "json", "--save", str(saved))
    (value,) = [one["value"] for one in json.loads(shown)["results"]]
    assert value["path"].startswith(f"{shared}/")
    assert pickle.loads(saved.read_bytes()) == list(range(10))
    ran = hrm("run", *numbers, "-o", "json", "--result-dir", str(shared))
    assert str(shared) in ran
