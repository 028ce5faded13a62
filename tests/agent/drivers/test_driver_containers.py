"""What a driver's container is started with, and what of its document stays on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm import certificates
from hrm.agent.drivers.driver_process import driver_launch, files_of, without_secrets
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    LaunchContext,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import LaunchFailed
from hrm.spark.launch import Java, Spark
from hrm.spark.node_conf import NodeConf
from tests.agent.drivers.conftest import DIGEST

NODE_CONF = NodeConf(
    spark_conf_dir=Path("/etc/spark"),
    variables={"HADOOP_CONF_DIR": "/etc/hadoop", "SPARK_DIST_CLASSPATH": "/hadoop/*"},
)


def test_the_container_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    monkeypatch.setenv("HRM_EVENT_LOG_DIR", "/shared/logs")
    spark = Spark(home=tmp_path / "spark", version="4.3.0", python_path=())
    document = {
        "submission_id": "driver-1",
        "ownership_key": "k" * 64,
        "token": "secret-of-the-driver",
        "conf": [["spark.hrm.driverEnv.REGION", "north"]],
    }
    spec = ContainerSpec(
        container_id=ContainerId("driver-1-x2"),
        application_id=ApplicationId("driver-1"),
        executor_id="2",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(1, 1024),
        unit_id=ResourceUnitId("n/cpu"),
        heap_mib=512,
        launch=LaunchContext(driver=json.dumps(document)),
    )
    java = Java(command=Path("/jdk/bin/java"), home=Path("/jdk"), version="17")
    token = tmp_path / "cluster-token"
    token.write_text("secret-of-the-tests")
    token.chmod(0o600)
    settings = AgentSettings(
        work_dir=tmp_path / "agent", host="10.0.0.7", master="10.0.0.1:7480", token_file=token
    )

    def launch() -> Any:
        return driver_launch(
            spec, spark=spark, java=java, settings=settings, work_dir=tmp_path,
            cache_dir=tmp_path / "cache", stderr_url="http://e", conf=NODE_CONF,
        )  # fmt: skip

    with pytest.raises(LaunchFailed, match="--spark-home"):
        launch()
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "bin" / "spark-submit").touch()
    made = launch()
    program = ("-m", "hrm.agent.drivers.driver_runner", str(tmp_path / "driver.json"))
    assert made.argv[-3:] == program
    given = json.loads(made.files["driver.json"])
    assert (given["attempt"], given["master"]) == (2, "10.0.0.1:7480")
    assert given["host"] == "10.0.0.7"
    assert (given["cache_dir"], given["spark_conf_dir"]) == (str(tmp_path / "cache"), "/etc/spark")
    assert NODE_CONF.variables.items() <= made.environment.items()
    assert given["token_file"] == str(tmp_path / "token") == made.environment["HRM_TOKEN_FILE"]
    assert made.files["token"] == "secret-of-the-driver"
    assert "secret" not in f"{made.argv}{made.environment}{given}"
    key_file = made.environment["HRM_SUBMISSION_OWNERSHIP_KEY_FILE"]
    assert (key_file, made.files["ownership-key"]) == (str(tmp_path / "ownership-key"), "k" * 64)
    assert "k" * 64 not in str((made.argv, made.environment))
    assert given["tls_ca"] == "" == made.environment["HRM_TLS_CA"], (
        "clear text, whatever lies there"
    )
    certificates.make(tmp_path, ["node-1"])
    settings = settings.model_copy(update={"tls_ca": tmp_path / "ca.pem"})
    made = launch()
    given = json.loads(made.files["driver.json"])
    assert made.files["ca.pem"] == (tmp_path / "ca.pem").read_text()
    assert given["tls_ca"] == str(tmp_path / "ca.pem") == made.environment["HRM_TLS_CA"]
    assert made.environment["REGION"] == "north"
    assert made.environment["SPARK_DRIVER_LOG_URL_STDERR"] == "http://e"
    assert made.environment["HRM_SUBMISSION_ATTEMPT"] == "2"
    assert made.environment["HRM_EVENT_LOG_DIR"] == "/shared/logs", "as where one submits"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "SECRET_OF_THE_AGENT" not in made.environment


def test_what_of_a_document_may_stay_on_the_disk() -> None:
    resources = [{"sha256": DIGEST, "name": "a.jar"}, {"sha256": "", "uri": "hdfs://h/b.jar"}]
    document = json.dumps({"conf": [["spark.password", "s3cret"]], "resources": resources})
    assert files_of(document) == files_of(without_secrets(document)) == {DIGEST}
    assert "s3cret" not in without_secrets(document)
    assert without_secrets("") == "", "an executor is no driver"
    for unreadable in ("", "{", "[]", '{"resources": [7]}', '{"resources": 7}'):
        assert files_of(unreadable) == frozenset()
