"""The formats of results, through a real master, agent and worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import sample_steps

from hrm.errors import InvalidConfig
from hrm.pipelines import Client, TaskFailed
from tests.integration.test_pipelines import PipelineCluster

LIMIT_S = 60.0


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    cluster = PipelineCluster(tmp_path)
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def client(cluster: PipelineCluster) -> Iterator[Client]:
    cluster.agent("n1", cores=1)
    with Client(cluster.address, token_path=cluster.token_file, patience_s=30.0) as client:
        yield client


def test_every_format_brings_back_what_was_returned(client: Client) -> None:
    wanted = sample_steps.arithmetic.run_here(4)
    for name in ("auto", "json", "pickle"):
        task = client.submit(sample_steps.arithmetic, 4, result_format=name)
        assert task.result(LIMIT_S).value == wanted
    value, pid = client.submit(sample_steps.slow, 0.0).result(LIMIT_S).value
    assert value == 0.0 and pid > 0, "a tuple is still one"


def test_what_is_no_data_fails_and_states_what_it_is(client: Client) -> None:
    with pytest.raises(TaskFailed, match=r"'emit'.*result_format is json, and .* is tuple"):
        client.submit(sample_steps.slow, 0.0, result_format="json").result(LIMIT_S)
    with pytest.raises(TaskFailed, match=r"'emit'.*result_format is arrow, and it returned tuple"):
        next(client.map(sample_steps.slow, [0.0], result_format="arrow"))
    with pytest.raises(InvalidConfig, match="'xml'"):
        client.submit(sample_steps.slow, 0.0, result_format="xml")


def test_the_command_line_asks_for_a_format_and_shows_whose_a_task_is(
    cluster: PipelineCluster, client: Client
) -> None:
    def hrm(*arguments: str) -> str:
        done = cluster.hrm(*arguments)
        return done.stdout + done.stderr

    client.submit(sample_steps.arithmetic, 1).result(LIMIT_S)
    run = ("run", "pipeline_samples.sample_steps:slow", "-i", "0", "--as", "json")
    assert "is tuple" in hrm(*run, "--result-format", "json")
    assert "it may be auto, pickle, json, arrow" in hrm(*run, "--result-format", "xml")
    listed = hrm("list", "--all")
    assert "user" in listed and "worker" in listed, listed
