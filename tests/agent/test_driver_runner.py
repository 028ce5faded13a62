"""The runner of a driver as a process: what it fetches, when it starts and kills, how it ends.

The master only replies; "spark-submit" is a shell script.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import certificates
from hrm.agent.drivers import driver_runner
from hrm.agent.drivers.driver_files import bring
from hrm.agent.drivers.driver_process import driver_launch, files_of, without_secrets
from hrm.agent.drivers.driver_runner import spark_submit_arguments
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
from hrm.errors import HrmError, LaunchFailed, NotFound, Unavailable
from hrm.spark.conf import conf_dir
from hrm.spark.launch import Java, Spark
from hrm.spark.node_conf import NodeConf
from hrm.spark.submit_conf import BYTES_MAX
from hrm.spark_servers import CONNECT_CLASS, INTERNAL, THRIFT_CLASS
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

NODE_CONF = NodeConf(
    spark_conf_dir=Path("/etc/spark"),
    variables={"HADOOP_CONF_DIR": "/etc/hadoop", "SPARK_DIST_CLASSPATH": "/hadoop/*"},
)
DATA = b"x = 1\n" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


class FakeMaster(submission_pb2_grpc.SubmissionServiceServicer):
    """Grants leases until it is ordered not to; has one file, and ``more``."""

    def __init__(self) -> None:
        self.lease_s = 0.0
        self.refuses = ""
        self.silent = False
        self.asked: list[pb.LeaseDriverRequest] = []
        self.fetched: list[int] = []
        self.settings: dict[str, bytes] = {}
        self.stalls = False
        self.more = b""
        self.over = threading.Event()
        self.tokens = b""

    def GetTokens(self, request: Any, context: Any) -> pb.GetTokensResponse:  # noqa: N802
        assert self.asked, "not before the lease"
        if not self.tokens or request.ownership_key != "proof":
            context.abort(grpc.StatusCode.NOT_FOUND, "the tokens are gone")
        return pb.GetTokensResponse(tokens=self.tokens)

    def Lease(self, request: Any, context: Any) -> pb.LeaseDriverResponse:  # noqa: N802
        if self.silent:
            context.abort(grpc.StatusCode.UNAVAILABLE, "out of reach")
        self.asked.append(request)
        if self.refuses and not request.gone:
            context.abort(grpc.StatusCode.ABORTED, self.refuses)
        return pb.LeaseDriverResponse(lease_s=self.lease_s, renew_s=0.1)

    def GetFile(self, request: Any, context: Any) -> Iterator[pb.FilePiece]:  # noqa: N802
        if request.sha256 in self.settings:
            yield pb.FilePiece(data=self.settings[request.sha256])
            return
        self.fetched.append(request.offset)
        if request.sha256 == hashlib.sha256(self.more).hexdigest():
            yield pb.FilePiece(data=self.more[request.offset :])
            return
        if request.sha256 != DIGEST:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such file")
        if self.stalls:
            yield pb.FilePiece(data=DATA[:1])
            self.over.wait(60.0)
        yield pb.FilePiece(data=DATA[request.offset :])


class Node:
    """A node's directories, and runners in them."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.work_dir = directory / "work"
        (self.work_dir / "tmp").mkdir(parents=True)
        token = directory / "token"
        token.write_text("secret-of-the-tests\n")
        self.program = directory / "spark-submit"
        self.document: dict[str, Any] = {
            "submission_id": "driver-1", "attempt": 2, "name": "app", "master": f"127.0.0.1:{port}",
            "token_file": str(token), "tls_ca": "", "host": "127.0.0.1",
            "spark_submit": str(self.program),
            "cache_dir": str(directory / "cache"), "heap_mib": 512,
            "main_class": "a.B", "arguments": ["one", "two words"], "options": [],
            "conf": [["spark.x", "y z"], ["spark.driver.host", "the-client"]],
            "resources": [
                {"role": "main", "name": "a.jar", "sha256": DIGEST, "size": len(DATA), "uri": "",
                 "fragment": ""},
                {"role": "jar", "name": "", "sha256": "", "size": 0, "uri": "hdfs://h/b.jar",
                 "fragment": ""},
            ],
        }  # fmt: skip

    def start(self, script: str) -> subprocess.Popen[str]:
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)
        path = self.directory / "driver.json"
        path.write_text(json.dumps(self.document))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hrm.agent.drivers.driver_runner", str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            cwd=self.work_dir,
        )  # fmt: skip

    def run(self, script: str) -> tuple[int, str, str]:
        runner = self.start(script)
        out, err = runner.communicate(timeout=60)
        return runner.returncode, out, err


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    subject = FakeMaster()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(subject, server)
    subject.port = server.add_insecure_port("127.0.0.1:0")  # type: ignore[attr-defined]
    server.start()
    yield subject
    subject.over.set()
    server.stop(None).wait(10)


@pytest.fixture
def node(tmp_path: Path, master: FakeMaster) -> Node:
    return Node(tmp_path, master.port)  # type: ignore[attr-defined]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_a_driver_gets_its_files_and_its_settings(node: Node, master: FakeMaster) -> None:
    code, out, err = node.run('pwd; cat a.jar | wc -c; printf "%s\\n" "$@"; exit 7')
    assert code == 7, err
    directory, size, *arguments = out.splitlines()
    assert directory == str(node.work_dir / "app")
    assert int(size) == len(DATA)
    properties = node.work_dir / "spark.properties"
    assert arguments == [
        "--master", f"hrm://127.0.0.1:{master.port}",  # type: ignore[attr-defined]
        "--deploy-mode", "client", "--properties-file", str(properties), "--name", "app",
        "--class", "a.B", "--jars", "hdfs://h/b.jar", str(node.work_dir / "app" / "a.jar"),
        "one", "two words",
    ]  # fmt: skip
    text = properties.read_text()
    assert "spark.x=y z\n" in text
    assert "spark.driver.host=127.0.0.1\n" in text
    assert "the-client" not in text
    assert properties.stat().st_mode & 0o077 == 0
    assert (node.work_dir / "exit-code").read_text() == "7"
    assert [(x.submission_id, x.attempt, x.gone) for x in (master.asked[0], master.asked[-1])] == [
        ("driver-1", 2, False), ("driver-1", 2, True),
    ]  # fmt: skip


def test_tokens_are_in_memory_alone_and_of_the_drivers_programs_too(
    node: Node, master: FakeMaster
) -> None:
    node.document |= {"has_tokens": True, "ownership_key": "proof"}
    master.tokens = b"HDTS-tokens"
    code, out, err = node.run(
        'echo "$KRB5CCNAME"; sh -c \'test -f "$HADOOP_TOKEN_FILE_LOCATION" && '
        'cat "$HADOOP_TOKEN_FILE_LOCATION" "$HADOOP_TOKEN_FILE_LOCATION"\''
    )
    assert code == 0, err
    assert out == f"{node.work_dir}/no-tickets\nHDTS-tokensHDTS-tokens"
    for path in filter(Path.is_file, node.directory.rglob("*")):
        assert b"HDTS" not in path.read_bytes(), f"{path} has them"


def test_a_driver_whose_tokens_are_gone_is_not_started(node: Node, master: FakeMaster) -> None:
    node.document |= {"has_tokens": True, "ownership_key": "proof"}
    code, out, err = node.run("echo started")
    assert (code, out, err) == (1, "", "HRM: the tokens are gone\n")
    assert master.asked[-1].gone, "its lease is given back"


def archive_of(node: Node, master: FakeMaster, name: str, fragment: str) -> None:
    """The driver's archive has a Python of its own under that name."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, sys.executable
        archive.addfile(link)
    master.more = data.getvalue()
    digest = hashlib.sha256(master.more).hexdigest()
    node.document["resources"].append(
        {"role": "archive", "name": "env.tar.gz", "sha256": digest, "size": len(master.more),
         "uri": "", "fragment": fragment}
    )  # fmt: skip


def test_an_archive_is_unpacked_where_its_python_is_looked_for(
    node: Node, master: FakeMaster
) -> None:
    archive_of(node, master, "bin/python", "environment")
    node.document["resources"][0]["name"] = "a.py"
    node.document["conf"].append(["spark.pyspark.python", "./environment/bin/python"])
    code, out, err = node.run('./environment/bin/python -c "print(1)"; echo "$@"')
    assert code == 0, err
    assert out.splitlines()[0] == "1"
    assert f"--archives {node.work_dir}/app/env.tar.gz#environment" in out, "Spark has it, too"


@pytest.mark.parametrize(
    ("name", "fragment", "problem"),
    [
        ("../python", "environment", "leads out of the directory"),
        ("bin/python", "../environment", "give the name of a directory after '#'"),
        ("bin/python", "a.jar", "a.jar exists already"),
    ],
)
def test_an_archive_that_leaves_its_place_starts_no_driver(
    node: Node, master: FakeMaster, name: str, fragment: str, problem: str
) -> None:
    archive_of(node, master, name, fragment)
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert problem in err


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


def test_the_next_driver_finds_the_files_on_the_node(node: Node, master: FakeMaster) -> None:
    assert node.run("exit 0")[0] == 0
    assert node.run("echo '# mine' >> a.jar")[0] == 0
    assert master.fetched == [0]
    (node.directory / "cache" / DIGEST).write_bytes(b"rotten")
    code, out, _ = node.run("cat a.jar | wc -c")
    assert (code, int(out)) == (0, len(DATA)), "what has rotted is fetched again"
    assert master.fetched == [0, 0]


def test_a_driver_without_a_lease_does_not_start(node: Node, master: FakeMaster) -> None:
    master.refuses = "driver 3 has taken its place"
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert err == "HRM: driver 3 has taken its place\n"


def test_a_driver_whose_lease_is_refused_is_killed(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.lease_s = 30.0
    runner = node.start('echo $$ > pid; sleep 100 & echo $! > child; trap "" TERM; wait; wait')
    child = node.work_dir / "app" / "child"
    eventually(lambda: child.exists() and child.read_text().endswith("\n"), 30.0)
    master.refuses = "it was abandoned"
    _, err = runner.communicate(timeout=30)
    assert runner.returncode == 137
    assert "the driver is killed: it was abandoned" in err
    assert gone(int((node.work_dir / "app" / "pid").read_text()))
    assert gone(int(child.read_text()))
    assert master.asked[-1].gone, "its successor need not wait"


def test_a_driver_that_reaches_no_master_is_killed_when_its_lease_ends(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.lease_s = 2.0
    runner = node.start("echo $$ > pid; exec sleep 100")
    eventually(lambda: len(master.asked) > 5, 30.0, "it is renewed")
    assert runner.poll() is None
    master.silent = True
    _, err = runner.communicate(timeout=30)
    assert runner.returncode == 137
    assert "no master has renewed the driver's lease in time" in err
    assert gone(int((node.work_dir / "app" / "pid").read_text()))


def test_a_driver_without_supervision_goes_on_alone(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start("while [ ! -e end ]; do sleep 0.1; done; exit 3")
    eventually(lambda: len(master.asked) > 2, 30.0)
    master.silent = True
    (node.work_dir / "app" / "end").touch()
    assert runner.wait(30) == 3
    runner.communicate()


def test_a_driver_dies_with_its_runner(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start("echo $$ > pid; exec sleep 100")
    eventually(lambda: len(master.asked) > 2, 30.0)
    pid = node.work_dir / "app" / "pid"
    eventually(pid.exists, 10.0)
    os.kill(runner.pid, signal.SIGKILL)
    runner.communicate()
    eventually(lambda: gone(int(pid.read_text())), 10.0, "the driver is gone")


def test_a_driver_handles_sigterm_itself(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start('trap "exit 9" TERM; touch ready; while :; do sleep 0.1; done')
    eventually((node.work_dir / "app" / "ready").exists, 30.0)
    os.killpg(runner.pid, signal.SIGTERM)
    assert runner.wait(30) == 9
    runner.communicate()


def test_a_kill_while_files_are_fetched_ends_at_once(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.stalls = True
    runner = node.start("echo started")
    cache = node.directory / "cache"
    eventually(lambda: list(cache.glob("*.part")), 30.0, "it fetches")
    os.killpg(runner.pid, signal.SIGTERM)
    out, err = runner.communicate(timeout=30)
    assert (runner.returncode, out) == (143, "")
    assert err == "HRM: stopped before the driver has started\n"
    assert not list(cache.iterdir()), "half a file is of no use"
    assert not master.asked, "it never had a lease"


def test_a_kill_while_no_master_replies_ends_at_once(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.silent = True
    runner = node.start("echo started")
    eventually((node.work_dir / "app" / "a.jar").exists, 30.0, "it has its files")
    os.killpg(runner.pid, signal.SIGTERM)
    out, _ = runner.communicate(timeout=30)
    assert (runner.returncode, out) == (143, "")


def test_a_file_that_the_master_does_not_have_is_an_error(node: Node) -> None:
    node.document["resources"][0]["sha256"] = "0" * 64
    code, _, err = node.run("exit 0")
    assert code == 1
    assert "cannot be fetched: no such file" in err


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


def test_a_transfer_that_breaks_goes_on_where_it_was(tmp_path: Path) -> None:
    offsets = []

    def fetch(digest: str, offset: int) -> Iterator[bytes]:
        offsets.append(offset)
        yield DATA[offset : offset + 1000]
        if len(offsets) < 3:
            raise Unavailable("the connection broke")
        yield DATA[offset + 1000 :]

    bring(fetch, DIGEST, tmp_path / "a.jar", tmp_path / "cache")
    assert (tmp_path / "a.jar").read_bytes() == DATA
    assert offsets == [0, 1000, 2000]


@pytest.mark.parametrize(
    ("error", "data", "expected"),
    [(NotFound("it is gone"), b"", "it is gone"), (None, b"other", "is not what the master has")],
)
def test_what_is_not_the_file_is_never_run(
    tmp_path: Path, error: HrmError | None, data: bytes, expected: str
) -> None:
    def fetch(digest: str, offset: int) -> Iterator[bytes]:
        yield data
        if error is not None:
            raise error

    with pytest.raises(LaunchFailed, match=expected):
        bring(fetch, DIGEST, tmp_path / "a.jar", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_archives_keep_the_name_that_they_are_unpacked_under(tmp_path: Path) -> None:
    main = {"role": "main", "name": "", "sha256": "", "uri": "local:/a.py", "fragment": ""}
    archive = {"role": "archive", "name": "e.zip", "sha256": "1", "uri": "", "fragment": "env"}
    document = {
        "spark_submit": "s", "master": "h:1", "name": "", "main_class": "", "arguments": [],
        "options": ["--proxy-user", "u"], "resources": [main, archive],
    }  # fmt: skip
    command = spark_submit_arguments(document, tmp_path, tmp_path / "p")
    assert command[-5:] == [
        "--archives",
        f"{tmp_path}/e.zip#env",
        "--proxy-user",
        "u",
        "local:/a.py",
    ]


def test_the_container_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    monkeypatch.setenv("HRM_EVENT_LOG_DIR", "/shared/logs")
    spark = Spark(home=tmp_path / "spark", version="4.3.0", python_path=())
    document = {
        "submission_id": "driver-1",
        "ownership_key": "k" * 64,
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
    assert (given["attempt"], given["master"], given["host"]) == (
        2,
        "10.0.0.1:7480",
        "10.0.0.7",
    )
    assert (given["cache_dir"], given["spark_conf_dir"]) == (str(tmp_path / "cache"), "/etc/spark")
    assert NODE_CONF.variables.items() <= made.environment.items()
    assert given["token_file"] == str(tmp_path / "token") == made.environment["HRM_TOKEN_FILE"]
    assert made.files["token"] == "secret-of-the-tests"
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


class _Clock:
    """In place of the runner's clock and of its pauses."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        patch.setattr(driver_runner, "_now_s", lambda: self.now)
        patch.setattr(threading.Event, "wait", lambda _event, seconds: self._pass(seconds))

    def _pass(self, seconds: float) -> None:
        self.now += seconds


class _Away:
    """A master that is unreachable for ``calls`` calls; ``sleeps``: the runner sleeps in call n."""

    def __init__(self, clock: _Clock, calls: int, sleeps: dict[int, float]) -> None:
        self._clock = clock
        self._calls = calls
        self._sleeps = sleeps
        self.asked = 0

    def Lease(self, request: Any, timeout: float) -> pb.LeaseDriverResponse:  # noqa: N802
        self.asked += 1
        self._clock.now += timeout + self._sleeps.get(self.asked, 0.0)
        if self.asked <= self._calls:
            raise grpc.RpcError
        return pb.LeaseDriverResponse(lease_s=20.0, renew_s=5.0)


@pytest.mark.parametrize("slept_s", [0.0, 10_000.0])
def test_the_patience_of_a_runner_with_its_master_counts_only_while_it_is_awake(
    monkeypatch: pytest.MonkeyPatch, slept_s: float
) -> None:
    clock = _Clock(monkeypatch)
    away = _Away(clock, calls=12, sleeps={3: slept_s})
    driver_runner.Lease(away, "m:1", "driver-1", 1, "k" * 64).take()
    assert away.asked == 13
    hopeless = _Away(clock, calls=1_000, sleeps={3: slept_s})
    with pytest.raises(HrmError):
        driver_runner.Lease(hopeless, "m:1", "driver-1", 1, "k" * 64).take()
    assert hopeless.asked < 60


def test_a_lease_is_over_when_its_time_is_whether_or_not_its_runner_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock(monkeypatch)
    lease = driver_runner.Lease(_Away(clock, calls=0, sleeps={}), "m:1", "driver-1", 1, "k" * 64)
    lease.take()
    monkeypatch.setattr(lease._let_go, "wait", lambda _: setattr(clock, "now", clock.now + 500.0))
    assert lease.hold().startswith("no master has renewed the driver's lease in time")
