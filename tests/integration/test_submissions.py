"""Cluster deploy mode on a real cluster: drivers on nodes, restarts, and their ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.spark.launch import find_java, find_spark
from tests.integration.conftest import APPS, BIN, Cluster, Submitted, command_of, executors_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

SQUARE = """
object Square {
  def main(args: Array[String]): Unit = {
    val spark = org.apache.spark.sql.SparkSession.builder().getOrCreate()
    val sum = spark.sparkContext.parallelize(1 to args(0).toInt, 2).map(x => x * x).sum()
    println(s"SUM $sum ${spark.conf.get("spark.test.words")}")
    if (args(1) == "halt") Runtime.getRuntime.halt(0)
    spark.stop()
  }
}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> Iterator[Cluster]:
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_MASTER_FILE_MIB_MAX"] = "64"
    subject.environment["HRM_MASTER_DRIVER_SHARE"] = "1"  # two drivers at once on six cores
    subject.up("--nodes", "2", "--cores", "3", "--memory", "4g")
    yield subject
    subject.down()


@pytest.fixture(autouse=True)
def nothing_runs(cluster: Cluster) -> Iterator[None]:
    """A test that fails leaves no driver to its second try, and to the next test."""
    yield
    cluster.end_drivers()
    for left in cluster.ask("submissions")["submissions"]:
        cluster.run("submission", "kill", left["submission_id"], "--master", cluster.address)


@pytest.fixture
def helpers(tmp_path: Path) -> tuple[str, str]:
    """A module for ``--py-files`` and a file for ``--files``."""
    module, data = tmp_path / "helper.py", tmp_path / "data.txt"
    module.write_text("def square(x):\n    return x * x\n")
    data.write_text("from a file\n")
    return str(module), str(data)


class Site:
    """A web server of some files, and the requests to it."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        site = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                site.asked.append(self.path)

        handler = partial(Handler, directory=str(directory))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site(helpers: tuple[str, str]) -> Iterator[Site]:
    """The helpers, on the web."""
    subject = Site(Path(helpers[0]).parent)
    serving = threading.Thread(target=subject.server.serve_forever)
    serving.start()
    yield subject
    subject.server.shutdown()
    serving.join(10)
    subject.server.server_close()


def submit(
    cluster: Cluster, name: str, *arguments: str, program: str = "spark-submit"
) -> Submitted:
    where = ("--deploy-mode", "cluster") if program == "spark-submit" else ()
    return cluster.submit(
        *(*where, "--name", name, "--driver-memory", "600m"),
        *("--conf", "spark.executor.instances=1", "--conf", "spark.test.words=two words = 2"),
        *arguments,
        program=program,
    )


def submission(cluster: Cluster, name: str) -> dict[str, Any] | None:
    listed = cluster.ask("submissions", "--all")["submissions"]
    found = [each for each in listed if each["name"] == name]
    return found[-1] if found else None


def driver_log(cluster: Cluster, name: str, stream: str = "stdout", *more: str) -> str:
    found = submission(cluster, name)
    assert found is not None
    done = cluster.run(
        *("submission", "logs", found["submission_id"], "--stream", stream, *more),
        *("--master", cluster.address),
    )
    assert done.returncode == 0, done.stderr
    log: str = done.stdout
    return log


def drivers_of(cluster: Cluster, submission_id: str) -> list[psutil.Process]:
    """The driver JVMs of a submission. A process that one of them is about to start is none: until
    it runs its own program, it has the JVM's command line."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline", "environ", "ppid"]):
        environment, command = process.info["environ"] or {}, process.info["cmdline"] or [""]
        ours = environment.get("HRM_SUBMISSION_ID") == submission_id
        ours = ours and str(cluster.state) in environment.get("SPARK_LOCAL_DIRS", "")
        if (
            ours
            and command[0].endswith("java")
            and "org.apache.spark.deploy.SparkSubmit" in command
        ):
            found[process.pid] = process
    return [process for process in found.values() if process.info["ppid"] not in found]


def executors(cluster: Cluster, application_id: str) -> list[psutil.Process]:
    """Those of this cluster: others on the machine name their applications alike."""
    ours = str(cluster.state)
    return [process for process in executors_of(application_id) if ours in command_of(process)]


@pytest.mark.core
def test_python_drivers_on_nodes_end_as_they_end(
    cluster: Cluster, helpers: tuple[str, str], eventually: Callable[..., Any]
) -> None:
    module, data = helpers
    files = ("--py-files", module, "--files", data, str(APPS / "cluster_mode.py"))
    stops = submit(cluster, "stops", *files, "stop", "data.txt")
    # Older Sparks do not know this setting, and wait for the last thread that is no daemon.
    alone = ("--conf", "spark.submit.callSystemExitOnMainExit=false")
    leaves = submit(cluster, "leaves", *alone, *files, "no-stop", "data.txt")
    assert stops.wait(240) == 0, stops.output()
    assert leaves.wait(240) == 0, leaves.output()
    fails = submit(cluster, "fails", *files, "7", "data.txt")
    assert fails.wait(240) == 7, fails.output()

    for name in ("stops", "leaves"):
        found = submission(cluster, name)
        assert found is not None
        assert found["state"] == "SUBMISSION_STATE_FINISHED"
        (application_id,) = found["application_ids"]
        app = cluster.ask("app", "show", application_id)
        assert app["submission_id"] == found["submission_id"]
        asked = ("app", "logs", application_id, "--executor", "driver", "--stream", "stdout")
        log = cluster.run(*asked, "--master", cluster.address)
        assert "SUM 328350 from a file" in log.stdout, log.stderr
        assert app["state"] == "APPLICATION_STATE_SUCCEEDED", app["message"]
        eventually(lambda a=application_id: not executors(cluster, a), 20.0, "no executor is left")
        holder = cluster.ask("app", "show", found["submission_id"])
        assert holder["state"] == "APPLICATION_STATE_SUCCEEDED"
        assert [c["executor_id"] for c in holder["containers"]] == ["1"]
        assert "SUM 328350 from a file sent" in driver_log(cluster, name)
        assert "CONF two words = 2 app" in driver_log(cluster, name)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        assert f"PYTHON {version}" in driver_log(cluster, name), "which nodes compare with theirs"
    failed = submission(cluster, "fails")
    assert failed is not None
    assert (failed["state"], failed["exit_code"]) == ("SUBMISSION_STATE_FAILED", 7)
    assert "it failed on purpose" in fails.output(), "the last lines of its log"
    assert failed["message"].startswith("exited with code 7: ZeroDivisionError: "), "its exception"
    app = cluster.ask("app", "show", *failed["application_ids"])
    assert "ZeroDivisionError: " in app["message"], "that of the job"
    assert "Traceback" not in app["message"]
    eventually(lambda: not cluster.leftovers(), 20.0, cluster.leftovers)
    stored = sorted(p.name for p in (cluster.state / "master" / "files").iterdir())
    assert len(stored) == 3, "three submissions, and each file was kept once"


def test_an_application_of_good_jobs_fails_with_its_driver(cluster: Cluster, site: Site) -> None:
    """Spark stops its context as a success when the program exits, whatever the exit status is."""
    files = ("--py-files", f"{site.address}/helper.py", "--files", f"{site.address}/data.txt")
    main = (*files, f"local:{APPS / 'cluster_mode.py'}")
    fails = submit(cluster, "good-jobs", *main, "raise", "data.txt", program="hrm submit")
    assert fails.wait(240) == 1, fails.output()
    failed = submission(cluster, "good-jobs")
    assert failed is not None
    assert failed["message"] == "exited with code 1: RuntimeError: all jobs were good"
    app = cluster.ask("app", "show", *failed["application_ids"])
    assert app["state"] == "APPLICATION_STATE_FAILED"
    assert app["message"].startswith("its driver exited with code 1")


def test_hrm_submit_by_hand_with_files_that_stay_where_they_are(
    cluster: Cluster, site: Site
) -> None:
    """A file of every node and files of the web: nothing is sent to the master."""

    def sent() -> set[str]:
        return {path.name for path in (cluster.state / "master").glob("files/*")}

    before = sent()
    files = ("--py-files", f"{site.address}/helper.py", "--files", f"{site.address}/data.txt")
    main = (*files, f"local:{APPS / 'cluster_mode.py'}")
    ends = submit(cluster, "uris", *main, "stop", "data.txt", program="hrm submit")
    fails = submit(cluster, "uris-fail", *main, "5", "data.txt", program="hrm submit")
    assert ends.wait(240) == 0, ends.output()
    assert fails.wait(240) == 5, fails.output()
    assert sent() == before
    assert {"/helper.py", "/data.txt"} <= set(site.asked)

    assert "SUM 328350 from a file fetched" in driver_log(cluster, "uris")
    found = submission(cluster, "uris")
    assert found is not None
    printed = ends.output()
    assert f"HRM: submitted {found['submission_id']} to hrm://{cluster.address}" in printed
    assert f"HRM: {found['submission_id']} FINISHED on {found['node']}" in printed
    assert "the last lines" not in printed
    failed = submission(cluster, "uris-fail")
    assert failed is not None
    assert (failed["state"], failed["exit_code"]) == ("SUBMISSION_STATE_FAILED", 5)
    of_driver = cluster.ask("app", "show", *failed["application_ids"])
    assert of_driver["state"] == "APPLICATION_STATE_FAILED", "as its driver"
    printed = fails.output()
    words = printed.partition("HRM: the last lines of the driver's")[2]
    assert "  it failed on purpose" in words.splitlines(), printed
    assert f"hrm submission logs {failed['submission_id']} --stream stdout|stderr" in words


def test_a_jvm_driver_on_a_node(cluster: Cluster, tmp_path: Path) -> None:
    jar = _compiled(tmp_path)
    app = submit(cluster, "jvm", "--class", "Square", str(jar), "100", "halt")
    assert app.wait(240) == 0, app.output()
    assert "SUM 338350.0 two words = 2" in driver_log(cluster, "jvm")
    found = submission(cluster, "jvm")
    assert found is not None
    linked = cluster.ask("app", "show", found["application_ids"][-1])
    assert linked["state"] == "APPLICATION_STATE_SUCCEEDED", "exit status 0, context not stopped"


def _compiled(directory: Path) -> Path:
    jars = find_spark().home / "jars"
    source, jar = directory / "Square.scala", directory / "square.jar"
    source.write_text(SQUARE)
    compiler = [
        str(next(jars.glob(f"scala-{name}-2*.jar"))) for name in ("compiler", "library", "reflect")
    ]
    java = [str(find_java().command), "-cp", ":".join(compiler), "scala.tools.nsc.Main"]
    class_path = ["-cp", ":".join(map(str, jars.glob("*.jar")))]
    subprocess.run([*java, *class_path, "-d", str(jar), str(source)], check=True, timeout=180)
    return jar


@pytest.fixture(scope="module")
def masters(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """``masters()``: the cluster's master dies by kill -9, and another takes over."""
    started: list[subprocess.Popen[bytes]] = []

    def replace() -> None:
        port = cluster.address.rpartition(":")[2]
        if started:  # a test that is tried again
            started[-1].kill()
            started[-1].wait(30)
        else:
            (pid,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == "master"]
            os.kill(pid, signal.SIGKILL)
        master = cluster.start(
            cluster.directory / "master-again.log",
            *("master", "--port", port),
            *("--state-dir", str(cluster.state / "master")),
            *("--token-file", str(cluster.state / "token")),
        )
        started.append(master)

    yield replace
    for master in started[-1:]:
        master.send_signal(signal.SIGTERM)
        master.wait(30)


def test_a_supervised_stream_outlives_its_driver_and_the_master(
    cluster: Cluster,
    tmp_path: Path,
    masters: Callable[[], None],
    eventually: Callable[..., Any],
) -> None:
    batches = tmp_path / "batches"
    app = submit(
        cluster,
        *("counting", "--supervise", str(APPS / "counting_stream.py")),
        *(str(tmp_path / "checkpoint"), str(batches)),
    )

    def noted(attempt: int) -> list[int]:
        if not batches.exists():
            return []
        lines = [line.split() for line in batches.read_text().splitlines()]
        return [int(batch) for number, batch in lines if int(number) == attempt]

    eventually(lambda: len(noted(1)) >= 3, 180.0, "the query makes progress")
    found = submission(cluster, "counting")
    assert found is not None
    submission_id = found["submission_id"]
    (first,) = drivers_of(cluster, submission_id)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: len(noted(2)) >= 2, 180.0, "another driver goes on")
    assert len(drivers_of(cluster, submission_id)) == 1
    assert noted(2)[0] in (noted(1)[-1], noted(1)[-1] + 1), "from where the checkpoint was"

    (second,) = drivers_of(cluster, submission_id)
    masters()
    eventually(
        lambda: cluster.run("status", "--master", cluster.address).returncode == 0, 30.0, "it is up"
    )
    known = len(noted(2))
    eventually(lambda: len(noted(2)) > known + 2, 60.0, "the query has not noticed")

    def is_known() -> bool:
        again = submission(cluster, "counting")
        return again is not None and again["node"] != "" and again["attempt"] == 2

    eventually(is_known, 60.0, "the new master has heard of it")
    assert [p.pid for p in drivers_of(cluster, submission_id)] == [second.pid]
    asked = _spark_submit(cluster, "--status", submission_id)
    assert re.search(rf"{submission_id} RUNNING on node-\d, driver 2, application app-", asked)
    application_id = submission(cluster, "counting")["application_ids"][-1]  # type: ignore[index]
    assert app.process.poll() is None, "who submitted it still waits"

    assert f"{submission_id} KILLED" in _spark_submit(cluster, "--kill", submission_id)
    assert app.wait(60) != 0
    assert "KILLED" in app.output()
    eventually(lambda: not drivers_of(cluster, submission_id), 30.0, "no driver is left")
    eventually(lambda: not executors(cluster, application_id), 30.0, "no executor is left")
    linked = cluster.ask("app", "show", application_id)
    assert linked["state"] == "APPLICATION_STATE_KILLED"
    eventually(lambda: not cluster.leftovers(), 20.0, cluster.leftovers)


def _spark_submit(cluster: Cluster, *arguments: str) -> str:
    """Run the stock spark-submit to its end, which is soon."""
    done = subprocess.run(
        [str(BIN / "spark-submit"), "--master", f"hrm://{cluster.address}", *arguments],
        env=cluster.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "arguments", "status", "expected"),
    [
        ("spark-submit", ["--class", "X", "/no/such.jar"], 2, "/no/such.jar does not exist"),
        ("spark-submit", ["--jars", "/no/lib.jar", "{app}"], 2, "/no/lib.jar does not exist"),
        ("spark-submit", ["--files", "{large}", "{app}"], 1, "file_mib_max"),
        ("spark-submit", ["--driver-cores", "9", "{app}"], 1, "spark.driver.cores"),
        ("spark-shell", [], 2, "cannot run"),
        ("spark-sql", [], 2, "cannot run"),
        ("pyspark", [], 1, "cannot run"),
        ("spark-submit", ["--status", "driver-0"], 1, "no such submission"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    cluster: Cluster,
    tmp_path: Path,
    program: str,
    arguments: list[str],
    status: int,
    expected: str,
) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(2 << 30)
    places = {"app": str(APPS / "total.py"), "large": str(large)}
    given = [argument.format(**places) for argument in arguments]
    app = cluster.submit("--deploy-mode", "cluster", *given, program=program)
    assert app.wait(60) == status, app.output()
    assert expected in " ".join(app.output().split())
    assert "Traceback" not in app.output()
