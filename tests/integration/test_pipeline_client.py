"""Clients of pipelines: programs and the shell, on a real master and real agents."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import sample_steps

from hrm.errors import InvalidRequest, PermissionDenied, Unavailable
from hrm.pipelines import Client, Pipeline, TaskFailed
from tests.conftest import PYTHON_PATH
from tests.integration.test_pipelines import REPOSITORY, PipelineCluster

LIMIT_S = 60.0

SCRIPT = """
import sys
from pathlib import Path
from hrm.pipelines import Client, Pipeline

shifting = Pipeline("shifting")

@shifting.subtask()
def shift(value):
    return value + 1

@shifting.subtask(after=shift)
def name(value):
    return f"number {value}"

if __name__ == "__main__":
    with Client(sys.argv[1], token_path=Path(sys.argv[2])) as client:
        for result in client.map(shifting, range(3)):
            print(result.value)
"""


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
    with Client(cluster.address, token_path=cluster.token_file, patience_s=30.0) as client:
        yield client


def test_results_come_in_order_with_where_and_how_long(
    cluster: PipelineCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.agent("n1", gpus=1)
    cluster.agent("n2")
    results = list(client.map(sample_steps.arithmetic, range(12), in_flight=5, progress=True))
    assert [one.value for one in results] == [
        sample_steps.arithmetic.run_here(value) for value in range(12)
    ]
    assert {one.node for one in results} <= {"n1", "n2"}
    for one in results:
        assert sorted(run.subtask for run in one.runs) == ["add", "double", "negate", "square"]
        assert all(run.ok and run.node == one.node and run.ran_s >= 0 for run in one.runs)
        assert one.response_s >= max(run.ran_s for run in one.runs)
    assert "arithmetic" in capsys.readouterr().err


def test_a_failed_task_names_its_subtask_and_the_rest_goes_on(
    cluster: PipelineCluster, client: Client
) -> None:
    cluster.agent("n1")
    good = client.submit(sample_steps.arithmetic, 4)
    bad = client.submit(sample_steps.raising, 4)
    with pytest.raises(TaskFailed, match=r"'divide'.*n1.*ZeroDivisionError") as caught:
        bad.result(LIMIT_S)
    assert [run.outcome for run in caught.value.result.runs] == ["raised", "raised"]
    assert good.result(LIMIT_S).value == sample_steps.arithmetic.run_here(4)
    kept = list(client.map(sample_steps.raising, [1, 2], keep_failures=True))
    assert [one.ok for one in kept] == [False, False]


def test_a_task_of_a_closed_client_reports_it(cluster: PipelineCluster) -> None:
    with Client(cluster.address, token_path=cluster.token_file) as closed:
        task = closed.submit(sample_steps.slow, 300.0)
    with pytest.raises(Unavailable, match="client was closed"):
        task.outcome(LIMIT_S)
    with pytest.raises(Unavailable, match="client was closed"):
        task.result(LIMIT_S)


def test_a_map_that_is_given_up_cancels_what_is_on_its_way(
    cluster: PipelineCluster, client: Client
) -> None:
    cluster.agent("n1", cores=4)
    results = client.map(sample_steps.slow, [0.0, 300.0, 300.0])
    assert next(results).ok
    results.close()
    listed = client.tasks(everything=True).tasks
    states = sorted(outcome_name(one.outcome) for one in listed)
    assert states == ["CANCELLED", "CANCELLED", "DONE"]


def outcome_name(number: Any) -> str:
    from hrm.v1 import pipeline_pb2 as pb

    return pb.PipelineTaskOutcome.Name(number).removeprefix("PIPELINE_TASK_OUTCOME_")


def test_a_master_that_is_killed_loses_no_task(cluster: PipelineCluster, client: Client) -> None:
    cluster.agent("n1")
    values = [0.2 + 0.001 * number for number in range(12)]
    results = client.map(sample_steps.slow, values, in_flight=12)
    first = next(results)
    assert cluster.master is not None
    os.killpg(cluster.master.pid, signal.SIGKILL)
    cluster.master.wait(10)
    state = cluster.directory / "master"
    cluster.master = cluster._start(
        "master-again",
        *("-m", "hrm.cli", "master", "--port", cluster.address.rpartition(":")[2]),
        *("--state-dir", str(state), "--token-file", str(cluster.token_file)),
        *("--node-timeout-s", "2", "--heartbeat-interval-s", "0.2"),
    )
    assert [one.value[0] for one in [first, *results]] == values


def test_a_script_runs_where_it_is_not_installed(cluster: PipelineCluster, tmp_path: Path) -> None:
    cluster.agent("n1")
    script = tmp_path / "elsewhere" / "my_script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), cluster.address, str(cluster.token_file)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["number 1", "number 2", "number 3"], done.stderr


@pytest.fixture
def hrm(cluster: PipelineCluster) -> Callable[..., Any]:
    def run(*arguments: str, here: Path = REPOSITORY) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HRM_")}
        return subprocess.run(
            [sys.executable, "-m", "hrm.cli", *arguments],
            env={
                **kept, "PYTHONPATH": PYTHON_PATH, "HRM_MASTER": cluster.address,
                "HRM_TOKEN_FILE": str(cluster.token_file),
            },
            capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=here,
        )  # fmt: skip

    return run


def test_the_shell_runs_lists_and_saves(
    cluster: PipelineCluster, hrm: Callable[..., Any], tmp_path: Path
) -> None:
    cluster.agent("n1", gpus=1)
    arithmetic = "pipeline_samples.sample_steps:arithmetic"
    inputs = ["--as", "json", "-i", "3", "-i", "4"]
    saved = tmp_path / "saved"
    done = hrm("pipeline", "run", arithmetic, *inputs, "-o", "json", "--save", str(saved))
    assert done.returncode == 0, done.stderr
    response = json.loads(done.stdout)["results"]
    wanted = [sample_steps.arithmetic.run_here(value) for value in (3, 4)]
    assert [one["value"] for one in response] == wanted
    assert [pickle.loads((saved / f"{n}.pickle").read_bytes()) for n in (0, 1)] == wanted
    here = hrm("pipeline", "run", arithmetic, *inputs, "-o", "json", "--here")
    assert [one["value"] for one in json.loads(here.stdout)["results"]] == wanted
    table = hrm("pipeline", "run", arithmetic, *inputs).stdout
    assert "double" in table and "n1" in table
    listed = hrm("pipeline", "list", "--all")
    assert "arithmetic" in listed.stdout and "min-wait" in listed.stdout
    tasks = json.loads(hrm("pipeline", "list", "--all", "-o", "json").stdout)["tasks"]
    why = hrm("app", "why", tasks[0]["task_id"])
    assert "done" in why.stdout and "its worker was chosen by min-wait" in why.stdout, why.stderr
    assert "double on " in why.stdout, "and each step's device"

    failed = hrm(
        "pipeline", "run", "pipeline_samples.sample_steps:raising", "--as", "json", "-i", "3"
    )
    assert failed.returncode == 1
    assert "'divide'" in failed.stderr and "failed" in failed.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "absent:p", "-i", "README.md"], "the module 'absent'"),
        (["run", "pipeline_samples.sample_steps:slow", "-i", "no-such-file"], "there is no file"),
        (["run", "pipeline_samples.sample_steps:slow", "--as", "json", "-i", "{"], "is no JSON"),
        (["cancel", "nobody"], "nobody"),
    ],
)
def test_bad_input_in_the_shell_is_one_line(
    hrm: Callable[..., Any], arguments: list[str], words: str
) -> None:
    done = hrm("pipeline", *arguments)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0]


def test_what_cannot_be_sent_is_refused_at_once(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be pickled"):
        client.submit(sample_steps.arithmetic, lambda: None)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-token-of-the-tests\n")
    wrong.chmod(0o600)
    with Client(client.target, token_path=wrong, patience_s=0.0) as unauthorized:
        task = unauthorized.submit(sample_steps.arithmetic, 1)
        with pytest.raises(PermissionDenied, match="token"):
            task.result(LIMIT_S)


def test_a_pipeline_that_is_no_dag_is_refused_before_it_is_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Pipeline("ring")
    ring.subtask("a", after="b")(abs)
    ring.subtask("b", after="a")(abs)
    monkeypatch.setattr(sample_steps, "ring", ring, raising=False)
    with pytest.raises(InvalidRequest, match="cycle: "):
        client.submit(ring, 1)
