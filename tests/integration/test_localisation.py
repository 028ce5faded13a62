"""Files that a JVM needs as it starts, Python environments in archives, and scratch disks, with a
real Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hrm.spark.launch import find_java, find_spark
from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster, Submitted, executors_of
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SOURCE = """
package org.apache.spark.hrmtest

object Agent {
  def premain(arguments: String): Unit = {
    val codec = try { Class.forName("org.apache.spark.hrmtest.Codec"); "codec" } catch {
      case _: ClassNotFoundException => "no codec"
    }
    println(s"AGENT $arguments, $codec, ${new java.io.File("data.txt").exists()}")
  }
}
class Codec
class Shuffle(conf: org.apache.spark.SparkConf)
  extends org.apache.spark.shuffle.sort.SortShuffleManager(conf)
"""
MANIFEST = "Manifest-Version: 1.0\nPremain-Class: org.apache.spark.hrmtest.Agent\n"
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = OWN-LAYOUT %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class Jars:
    """``agent``: a Java agent; ``plugins``: classes of plug-ins."""

    agent: Path
    plugins: Path


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Jars:
    directory = tmp_path_factory.mktemp("jars")
    spark = find_spark().home / "jars"
    source, classes = directory / "Agent.scala", directory / "classes.jar"
    source.write_text(SOURCE)
    parts = ("compiler", "library", "reflect")
    compiler = [str(next(spark.glob(f"scala-{part}-2*.jar"))) for part in parts]
    java = [str(find_java().command), "-cp", ":".join(compiler), "scala.tools.nsc.Main"]
    class_path = ["-cp", ":".join(map(str, spark.glob("*.jar")))]
    command = [*java, *class_path, "-d", str(classes), str(source)]
    subprocess.run(command, check=True, timeout=PATIENCE * 180)
    made = Jars(directory / "agent.jar", directory / "plugins.jar")
    with (
        zipfile.ZipFile(classes) as whole,
        zipfile.ZipFile(made.agent, "w") as agent,
        zipfile.ZipFile(made.plugins, "w") as plugins,
    ):
        agent.writestr("META-INF/MANIFEST.MF", MANIFEST)
        for name in whole.namelist():
            if name.endswith(".class"):
                (agent if "Agent" in name else plugins).writestr(name, whole.read(name))
    return made


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What venv-pack makes: the files of a virtual environment, its links to Python among them."""
    directory = tmp_path_factory.mktemp("environment")
    venv = directory / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(venv)]
    subprocess.run(command, check=True, timeout=PATIENCE * 120)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "packed.py").write_text("WORD = 'from-the-archive'\n")
    archive = directory / "pyspark_venv.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(venv.iterdir()):
            packed.add(path, path.name)
    return archive


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("disk-1"), tmp_path_factory.mktemp("disk-2")


@pytest.fixture(scope="module")
def two(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, disks: tuple[Path, Path]
) -> Iterator[Cluster]:
    """A cluster of two nodes whose scratch space is on two disks."""
    subject = Cluster(tmp_path_factory.mktemp("cluster"), _tools)
    subject.environment["HRM_AGENT_WORK_DIRS"] = ",".join(map(str, disks))
    subject.environment["HRM_MASTER_DRIVER_SHARE"] = "1"
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g")
    yield subject
    subject.down()


def executor_log(cluster: Cluster, name: str, stream: str) -> str:
    shown = cluster.application(name)
    assert shown is not None
    done = cluster.run(
        *("app", "logs", shown["application_id"], "--executor", "1", "--stream", stream),
        *("--master", cluster.address),
    )
    assert done.returncode == 0, done.stderr
    text: str = done.stdout
    return text


def submit(cluster: Cluster, name: str, *arguments: str, **more: Any) -> Submitted:
    one = ("--conf", "spark.executor.instances=1")
    return cluster.submit(*one, *arguments, str(APPS / "environment.py"), name, **more)


@pytest.fixture(scope="module")
def early(two: Cluster, jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """An application with an agent, a class path and a configuration of its log, after its end."""
    directory = tmp_path_factory.mktemp("early")
    (directory / "data.txt").write_text("data")
    (directory / "log4j2.properties").write_text(LOG4J)
    files = f"{directory}/data.txt,{directory}/log4j2.properties"
    app = submit(
        two,
        "early",
        *("--jars", f"{jars.agent},{jars.plugins}", "--files", files),
        *("--conf", "spark.executor.extraJavaOptions=-javaagent:./agent.jar=port=1"),
        *("--conf", "spark.executor.extraClassPath=plugins.jar"),
    )
    assert app.wait(240) == 0, app.output()
    return app


def test_agents_and_class_paths_are_there_before_the_jvm(two: Cluster, early: Submitted) -> None:
    assert "AGENT port=1, codec, false" in executor_log(two, "early", "stdout"), early.output()
    cached = {path.name for path in two.state.glob("nodes/*/files/*/*")}
    assert len(cached) == 3, "the agent, the plug-ins and the log's configuration, not the data"


def test_logging_is_configured_by_a_file_from_the_first_line_on(
    two: Cluster, early: Submitted
) -> None:
    log = executor_log(two, "early", "stderr").splitlines()
    started = next(line for line in log if "Started daemon" in line)
    assert started.startswith("OWN-LAYOUT INFO "), early.output()


def test_all_files_are_there_where_that_is_set(two: Cluster, jars: Jars, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    app = submit(
        two,
        "all",
        *("--jars", str(jars.agent), "--files", str(tmp_path / "data.txt")),
        *("--conf", "spark.executor.extraJavaOptions=-javaagent:agent.jar=all"),
        *("--conf", "spark.hrm.localize=all"),
    )
    assert app.wait(240) == 0, app.output()
    assert "AGENT all, no codec, true" in executor_log(two, "all", "stdout")


def test_an_archive_that_must_not_be_unpacked_ends_the_application_with_the_reason(
    two: Cluster, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # which Spark, in the driver, unpacks
    with tarfile.open(tmp_path / "bad.tgz", "w:gz") as archive:
        archive.add(tmp_path / "pipe", "pipe")
    app = submit(
        two,
        "bad",
        *("--archives", f"{tmp_path}/bad.tgz#bad"),
        *(
            "--conf",
            "spark.executorEnv.EARLY=./bad/pipe",
            "--conf",
            "spark.hrm.executor.maxFailures=1",
        ),
    )
    assert app.wait(240) != 0
    assert "'pipe' in it is a device or a pipe" in app.output()


def driver_log(cluster: Cluster, stream: str) -> str:
    """Of the last driver in cluster mode."""
    listed = cluster.ask("submissions", "--all")["submissions"]
    done = cluster.run(
        *("submission", "logs", listed[-1]["submission_id"], "--stream", stream),
        *("--master", cluster.address),
    )
    assert done.returncode == 0, done.stderr
    text: str = done.stdout
    return text


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_files_have_the_names_that_they_are_given(two: Cluster, tmp_path: Path, mode: str) -> None:
    """As on YARN; one of them is on the class path by the name that it is given."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "mine.properties").write_text(LOG4J)
    names = ("b.txt", "c.txt")
    files = [f"{tmp_path}/a.txt#{name}" for name in names]
    files.append(f"{tmp_path}/mine.properties#log4j2.properties")
    app = two.submit(
        *("--deploy-mode", mode, "--driver-memory", "600m", "--files", ",".join(files)),
        *("--conf", "spark.executor.instances=1"),
        *(str(APPS / "named_files.py"), f"named-{mode}", *names),
    )
    assert app.wait(240) == 0, app.output()
    output = app.output() if mode == "client" else driver_log(two, "stdout")
    found = ["b.txt=text", "c.txt=text"]
    assert f"DRIVER {found}" in output
    assert f"EXECUTOR {found}" in output
    there = list(names) if mode == "cluster" else []
    assert f"WORKING DIRECTORY {there}" in output
    assert "OWN-LAYOUT INFO " in executor_log(two, f"named-{mode}", "stderr")


def test_a_files_name_is_refused_where_it_cannot_have_it(two: Cluster, tmp_path: Path) -> None:
    app = submit(two, "refused", "--files", "hdfs://nowhere:1/a.txt#b.txt")
    assert app.wait(60) == 1
    assert "HRM: --files hdfs://nowhere:1/a.txt#b.txt: only a file of this machine" in app.output()


def test_in_cluster_mode_the_drivers_logging_is_configured_by_a_file_too(
    two: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "log4j2.properties").write_text(LOG4J)
    app = submit(
        two,
        "own-log",
        *("--deploy-mode", "cluster", "--driver-memory", "600m"),
        *("--files", str(tmp_path / "log4j2.properties")),
    )
    assert app.wait(240) == 0, app.output()
    log = driver_log(two, "stderr")
    assert "OWN-LAYOUT INFO SparkContext: " in log
    assert "default log4j" not in log


def test_files_that_are_edited_meanwhile_stay_as_they_were_for_the_application(
    two: Cluster, jars: Jars, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """An executor that starts after the edit: HRM puts the files in place, and Spark fetches them
    to the same place, once more."""
    log, jar = tmp_path / "log4j2.properties", tmp_path / "plugins.jar"
    log.write_text(LOG4J)
    jar.write_bytes(jars.plugins.read_bytes())
    app = two.submit(
        *("--conf", "spark.executor.instances=1", "--files", str(log), "--jars", str(jar)),
        *("--conf", "spark.executor.extraClassPath=./*"),
        *(str(APPS / "edited.py"), "edited", str(tmp_path / "go"), str(log), str(jar)),
    )
    eventually(lambda: "EDITED" in app.output(), 240.0, "the files are edited")
    assert log.read_text().endswith("# edited\n")
    shown = two.application("edited")
    assert shown is not None
    (executor,) = executors_of(shown["application_id"])
    executor.kill()
    executor.wait(30)
    (tmp_path / "go").touch()
    assert app.wait(240) == 0, app.output()
    assert "SECOND 9900" in app.output()
    shown = two.application("edited")
    assert shown is not None
    assert len(shown["containers"]) == 2, "the one that was killed, and the one after it"
    assert "does not match" not in app.output()


def test_a_packed_environment_in_client_mode(two: Cluster, environment: Path) -> None:
    """Spark's own recipe for venv-pack, word for word."""
    app = two.submit(
        *("--conf", "spark.executor.instances=1", "--archives", f"{environment}#environment"),
        *(str(APPS / "environment.py"), "client"),
        environment={
            "PYSPARK_DRIVER_PYTHON": "python",
            "PYSPARK_PYTHON": "./environment/bin/python",
        },
    )
    assert app.wait(240) == 0, app.output()
    assert "EXECUTOR from-the-archive environment" in app.output()


def test_a_packed_environment_in_cluster_mode(
    two: Cluster, environment: Path, eventually: Callable[..., Any]
) -> None:
    """The same for cluster modes: no PYSPARK_DRIVER_PYTHON."""
    app = two.submit(
        *("--deploy-mode", "cluster", "--driver-memory", "600m"),
        *("--conf", "spark.executor.instances=1", "--archives", f"{environment}#environment"),
        *(str(APPS / "environment.py"), "cluster"),
        environment={
            "PYSPARK_PYTHON": "./environment/bin/python",
            "SPARK_HOME": str(find_spark().home),  # or pip's spark-submit asks that Python for it
        },
    )
    assert app.wait(240) == 0, app.output()
    output = driver_log(two, "stdout")
    assert "DRIVER environment" in output
    assert "EXECUTOR from-the-archive environment" in output


def test_a_shuffle_managers_blocks_are_on_all_scratch_disks_and_go_with_the_executors(
    two: Cluster, jars: Jars, disks: tuple[Path, Path], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    """The manager is of a jar of the application's, which a pattern puts on the class path."""
    app = two.submit(
        *("--conf", "spark.executor.instances=2", "--jars", str(jars.plugins)),
        *("--conf", "spark.shuffle.manager=org.apache.spark.hrmtest.Shuffle"),
        *("--conf", "spark.executor.extraClassPath=./*"),
        *(str(APPS / "block_places.py"), str(tmp_path)),
    )
    eventually((tmp_path / "ready").exists, 240.0, "the blocks are written")
    for disk in disks:
        assert list(disk.glob("*/containers/*/blockmgr-*/*/rdd_*")), f"no block on {disk}"
        assert list(disk.glob("*/containers/*/blockmgr-*/*/shuffle_*")), f"no shuffle on {disk}"
    assert not list(two.state.glob("nodes/*/containers/*/local/blockmgr-*"))
    (tmp_path / "end").touch()
    assert app.wait(60) == 0, app.output()
    eventually(
        lambda: not any(list(disk.glob("*/containers/*")) for disk in disks), 60.0, "all is gone"
    )
