"""What a driver is started with: settings of submitter and node, a server's address."""

from __future__ import annotations

import hashlib
import io
import socket
import zipfile

import pytest

from hrm.agent.drivers import driver_runner
from hrm.spark.conf import conf_dir
from hrm.spark.submit_conf import BYTES_MAX
from hrm.spark_servers import CONNECT_CLASS, INTERNAL, THRIFT_CLASS
from tests.agent.drivers.conftest import DIGEST, FakeMaster, Node


def send_settings(master: FakeMaster, node: Node, files: dict[str, str]) -> None:
    """Put an archive of settings into the submission."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    master.settings[digest] = packed.getvalue()
    node.document["resources"].append(
        {"role": "conf", "name": "__spark_conf__.zip", "sha256": digest, "uri": "", "fragment": ""}
    )


SHOW_CONF = """
echo "$SPARK_CONF_DIR"; echo "${HADOOP_CONF_DIR-unset} ${YARN_CONF_DIR-unset}"
cd "$SPARK_CONF_DIR" && for each in *; do echo "$each $(cat "$each")"; done; ls ..
"""


def test_settings_of_the_submitter_go_before_those_of_the_node(
    node: Node, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/of/the/node")
    monkeypatch.setenv("YARN_CONF_DIR", "/of/the/node")
    of_node = node.directory / "node-conf"
    of_node.mkdir()
    for name in ("hive-site.xml", "metrics.properties", "spark-env.sh", "spark-defaults.conf"):
        (of_node / name).write_text("of the node")
    node.document["spark_conf_dir"] = str(of_node)
    send_settings(master, node, {"spark/hive-site.xml": "sent", "hadoop/core-site.xml": "sent"})
    code, out, err = node.run(SHOW_CONF)
    assert code == 0, err
    place, hadoop, *rest = out.splitlines()
    assert place == str(node.work_dir / "conf" / "spark")
    assert hadoop == f"{node.work_dir}/conf/hadoop unset", "Hadoop's settings belong together"
    ours = conf_dir() / "spark-env.sh"
    assert rest == [
        "hive-site.xml sent", "metrics.properties of the node",
        f"spark-env.sh . {ours}", "hadoop", "spark",
    ]  # fmt: skip
    assert (node.work_dir / "conf/hadoop/core-site.xml").stat().st_mode & 0o777 == 0o600
    assert not (node.work_dir / "app" / "__spark_conf__.zip").exists()
    kept = {path.name for path in (node.directory / "cache").iterdir()}
    assert kept == {DIGEST}, "the settings may hold secrets"


def test_settings_of_the_node_count_where_none_were_sent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/of/hrm")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/of/the/node")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    show = 'echo "$SPARK_CONF_DIR $HADOOP_CONF_DIR"'
    assert node.run(show)[1] == "/of/hrm /of/the/node\n", "it has none"
    node.document["spark_conf_dir"] = str(node.directory)  # with files of this test
    assert node.run(show)[1] == f"{node.work_dir}/conf/spark /of/the/node\n"


def test_files_of_the_application_go_before_all_settings(
    node: Node, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on YARN, where the working directory begins the class path."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/of/the/node/*")
    of_node = node.directory / "node-conf"
    of_node.mkdir()
    for name in ("log4j2.properties", "hive-site.xml", "metrics.properties"):
        (of_node / name).write_text("of the node\n")
    node.document["spark_conf_dir"] = str(of_node)
    send_settings(master, node, {"spark/hive-site.xml": "sent\n"})
    files = {"x.txt": "log4j2.properties", "hive-site.xml": "", "spark-env.sh": ""}
    for name, fragment in files.items():
        node.document["resources"].append(
            {"role": "file", "name": name, "sha256": DIGEST, "uri": "", "fragment": fragment}
        )
    show = 'head -qn1 "$SPARK_CONF_DIR"/*.*; ls "$SPARK_CONF_DIR"; '
    code, out, err = node.run(show + 'echo "$SPARK_DIST_CLASSPATH"')
    assert code == 0, err
    assert out.splitlines() == [
        "x = 1", "x = 1", "of the node", f". {conf_dir()}/spark-env.sh",
        "hive-site.xml", "log4j2.properties", "metrics.properties", "spark-env.sh",
        f"/of/the/node/*:{node.work_dir}/app/",
    ]  # fmt: skip


def test_a_variable_that_the_user_sets_counts_most(
    node: Node, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/mine")  # as the agent does for this setting
    node.document["conf"].append(["spark.hrm.driverEnv.HADOOP_CONF_DIR", "/mine"])
    send_settings(master, node, {"hadoop/core-site.xml": "sent"})
    assert node.run('echo "$HADOOP_CONF_DIR"')[1] == "/mine\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("spark/spark-env.sh", "exit 3", ""),
        ("elsewhere/x", "", "'elsewhere/x' is no file of a settings directory"),
        ("spark/../x", "", "'spark/../x' is no file"),
        ("spark/x", "x" * (BYTES_MAX + 1), "larger than 1536 KiB"),
    ],
)
def test_what_no_client_sends_is_refused(
    node: Node, master: FakeMaster, name: str, text: str, why: str
) -> None:
    send_settings(master, node, {name: text})
    code, _, err = node.run("exit 0")
    assert (code, why in err) == (driver_runner.FAILED if why else 0, True), err
    assert not (node.work_dir / "conf" / "spark").exists(), "no script, and nothing half"


@pytest.mark.parametrize(
    ("conf", "option"),
    [
        ([], ""),
        ([["spark.driver.limitActiveProcessorCount.enabled", "false"]], ""),
        (
            [
                ["spark.driver.limitActiveProcessorCount.enabled", "true"],
                ["spark.driver.cores", "3"],
            ],
            "-XX:ActiveProcessorCount=3",
        ),
    ],
)
def test_a_driver_counts_its_own_cores_where_it_is_asked_to(
    node: Node, conf: list[list[str]], option: str
) -> None:
    node.document["conf"] += [*conf, ["spark.driver.extraJavaOptions", "-Dmine=1"]]
    assert node.run("exit 0")[0] == 0
    lines = (node.work_dir / "spark.properties").read_text().splitlines()
    (options,) = (line for line in lines if line.startswith("spark.driver.extraJavaOptions="))
    own, *rest = options.partition("=")[2].split()
    assert own.startswith("-Djava.io.tmpdir=")
    assert rest == [*filter(None, [option]), "-Dmine=1"]


def test_a_python_that_the_node_does_not_have_is_an_error(node: Node) -> None:
    node.document["resources"][0]["name"] = "a.py"
    node.document["conf"].append(["spark.pyspark.python", "/no/python"])
    code, _, err = node.run("exit 0")
    assert code == 1
    assert "the driver's Python, /no/python, cannot be run on this node" in err


def a_server(node: Node, port: int) -> None:
    node.document["main_class"] = CONNECT_CLASS
    node.document["conf"].append(["spark.connect.grpc.binding.port", str(port)])
    node.document["arguments"] = ["--own", "option"]
    node.document["resources"] = [
        {"role": "main", "name": "", "sha256": "", "size": 0, "uri": INTERNAL, "fragment": ""}
    ]


def test_a_server_listens_at_the_address_that_is_shown(node: Node, master: FakeMaster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    a_server(node, port)
    code, out, err = node.run('printf "%s\\n" "$@"')
    assert code == 0, err
    assert out.splitlines()[-4:] == ["--class", CONNECT_CLASS, "--own", "option"]
    text = (node.work_dir / "spark.properties").read_text()
    assert "spark.connect.grpc.binding.address=127.0.0.1\n" in text
    assert "spark.connect.grpc.port.maxRetries=0\n" in text
    assert "spark.submit.callSystemExitOnMainExit=false\n" in text, "main may only start it"


def test_the_thrift_server_gets_its_address_in_its_environment(
    node: Node, master: FakeMaster
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    a_server(node, 0)
    node.document["main_class"] = THRIFT_CLASS
    node.document["arguments"] = ["--hiveconf", f"hive.server2.thrift.port={port}"]
    code, out, err = node.run("echo $HIVE_SERVER2_THRIFT_BIND_HOST $HIVE_SERVER2_THRIFT_PORT")
    assert (code, out) == (0, f"127.0.0.1 {port}\n"), err


def test_a_server_whose_port_is_taken_does_not_start(node: Node, master: FakeMaster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        a_server(node, port)
        code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert f"cannot listen at 127.0.0.1:{port} of this node: Address already in use" in err
    assert "spark.connect.grpc.binding.port" in err
    assert not master.asked, "it never had a lease"
