"""Two users with tokens of their own on a real cluster, where one runs Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import rpc
from hrm.v1 import submission_pb2, submission_pb2_grpc
from tests.integration.conftest import APPS, BIN, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

WAIT_S = 240.0


@pytest.fixture
def people(cluster: Cluster, tmp_path: Path) -> dict[str, dict[str, str]]:
    """The variables of each."""
    found = {}
    for name in ("ada", "bob"):
        file = tmp_path / name
        made = cluster.run(
            *("token", "create", "--user", name, "--role", "submitter", "--file", str(file)),
            *("--master", cluster.address),
        )
        assert made.returncode == 0, made.stderr
        found[name] = {"HRM_TOKEN_FILE": str(file), "SPARK_USER": name}
    return found


def hrm(cluster: Cluster, variables: dict[str, str], *words: str) -> Any:
    return subprocess.run(
        [str(BIN / "hrm"), *words, "--master", cluster.address],
        env={**cluster.environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.core
def test_an_application_is_its_tokens_users(
    cluster: Cluster, people: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    one = ("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "2", "0.1")
    app = cluster.submit("--name", "of-ada", *one, environment=people["ada"])
    assert app.wait(WAIT_S) == 0, app.output()
    listed = [x for x in cluster.ask("apps", "--all")["applications"] if x["name"] == "total"]
    assert listed[-1]["user"] == "ada"
    pretends = {**people["ada"], "SPARK_USER": "bob"}
    refused = cluster.submit(*one, environment=pretends)
    assert refused.wait(WAIT_S) != 0
    assert "the token is that of user ada, and the application names the user 'bob'" in (
        refused.output()
    )
    application_id = listed[-1]["application_id"]
    theirs = hrm(cluster, people["bob"], "app", "logs", application_id)
    assert theirs.returncode == 1
    assert f"{application_id} belongs to ada" in theirs.stderr
    mine = hrm(cluster, people["ada"], "app", "logs", application_id)
    assert mine.returncode == 0, mine.stderr


@pytest.mark.core
def test_a_driver_on_a_node_has_its_submissions_token_and_no_other(
    cluster: Cluster,
    people: dict[str, dict[str, str]],
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    marker = tmp_path / "runs"
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--name", "drives", "--driver-memory", "600m"),
        *("--conf", "spark.executor.instances=1", str(APPS / "total.py"), "8", "1", str(marker)),
        environment=people["ada"],
    )
    eventually(marker.exists, WAIT_S, "its tasks run")
    (sent,) = [
        x for x in cluster.ask("submissions")["submissions"] if x["name"] == "drives"
    ]  # fmt: skip
    submission_id = sent["submission_id"]
    assert sent["user"] == "ada"
    (token_file,) = cluster.state.glob(f"nodes/*/containers/{submission_id}-*/token")
    token = token_file.read_text().strip()
    assert token.startswith(f"hrmapp_{submission_id}_")
    secrets = (cluster.state / "token", Path(people["ada"]["HRM_TOKEN_FILE"]))
    assert token not in {path.read_text().strip() for path in secrets}
    for command in (("submission", "kill"), ("submission", "logs")):
        theirs = hrm(cluster, people["bob"], *command, submission_id)
        assert theirs.returncode == 1
        assert f"{submission_id} belongs to ada" in theirs.stderr
    assert app.wait(WAIT_S) == 0, app.output()
    mine = hrm(
        cluster, people["ada"], "submission", "logs", submission_id, "--stream", "stdout"
    )  # fmt: skip
    assert "TOTAL 332833500" in mine.stdout, mine.stderr
    (application_id,) = cluster.ask("submission", "show", submission_id)["application_ids"]
    assert cluster.ask("app", "show", application_id)["user"] == "ada"
    with rpc.sync_channel(cluster.address, token) as channel:
        stub = submission_pb2_grpc.SubmissionServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="has ended with it"):
            stub.Get(submission_pb2.GetSubmissionRequest(submission_id=submission_id), timeout=20)
