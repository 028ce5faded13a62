"""Which driver fits which warm JVM: what makes another kind, what none, and what comes late."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hrm.errors import InvalidRequest
from hrm.spark.warm.kind import DriverKind, StartRequest, kind_of, request_of

PYTHON = "/opt/hrm/bin/python"
OWN = {"umask": 18, "limits": [[1, 2]], "groups": [5], "cgroups": ["0::/"]}


class Machine:
    """A Spark, a Java and settings directories, of empty files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in (
            "spark/jars",
            "spark/conf",
            "spark/bin",
            "java/bin",
            "java/lib",
            "conf",
            "cwd",
        ):
            (root / name).mkdir(parents=True)
        for name in ("spark/jars/spark-core_2.13-4.3.0.jar", "java/bin/java", "java/release"):
            (root / name).write_text("x")
        (root / "java/bin/java").chmod(0o755)
        self.request = StartRequest(
            arguments=("--master", "spark+hrm://h:1", "--name", "a", "pyspark-shell"),
            environment={
                "HRM_PYTHON": PYTHON, "SPARK_HOME": str(root / "spark"), "PATH": "/usr/bin",
                "JAVA_HOME": str(root / "java"), "SPARK_CONF_DIR": str(root / "conf"),
                "HOME": "/home/ada",
            },
            cwd=str(root / "cwd"),
            surroundings=OWN,
            properties={},
        )  # fmt: skip

    def kind(self, *arguments: str, cwd: str = "", **environment: str) -> DriverKind | str:
        words = (*self.request.arguments[:2], *arguments, "app.py")
        request = replace(
            self.request,
            arguments=words if arguments else self.request.arguments,
            environment={**self.request.environment, **environment},
            cwd=cwd or self.request.cwd,
        )
        return kind_of(request, OWN, PYTHON)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--name", "b"],
        ["--class", "a.B", "--jars", "x.jar,y.jar", "--packages", "a:b:1"],
        ["--conf", "spark.executor.memory=4g", "--files", "a.txt"],
        ["--conf", "spark.sql.shuffle.partitions=7", "--queue", "root.etl"],
        ["--py-files", "a.zip", "--driver-cores", "2"],
    ],
)
def test_what_comes_late_makes_no_other_kind(machine: Machine, arguments: list[str]) -> None:
    usual = machine.kind()
    assert isinstance(usual, DriverKind)
    assert machine.kind(*arguments) == usual
    late = {"SPARK_LOCAL_DIRS": "/data", "PYTHONPATH": "/x", "PYSPARK_PYTHON": "python3.12",
            "AWS_SECRET_ACCESS_KEY": "secret", "HRM_EVENT_LOG_DIR": "/logs"}  # fmt: skip
    assert machine.kind(**late) == usual
    assert "secret" not in str(machine.kind(**late))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--driver-memory", "2g"],
        ["--conf", "spark.driver.memory=2g"],
        ["--driver-java-options", "-Dx=y"],
        ["--conf", "spark.driver.extraJavaOptions=-XX:+UseZGC"],
        ["--driver-class-path", "/a.jar"],
        ["--driver-library-path", "/lib"],
        ["--properties-file", "own.conf"],
    ],
)
def test_what_is_fixed_at_the_start_makes_another_kind(
    machine: Machine, arguments: list[str]
) -> None:
    (machine.root / "cwd" / "own.conf").write_text("spark.driver.memory 3g\n")
    other = machine.kind(*arguments)
    assert isinstance(other, DriverKind), other
    assert other != machine.kind()
    assert set(other.settings) <= {
        ("spark.driver.memory", "2g"), ("spark.driver.memory", "3g"),
        ("spark.driver.extraJavaOptions", "-Dx=y"),
        ("spark.driver.extraJavaOptions", "-XX:+UseZGC"),
        ("spark.driver.extraClassPath", "/a.jar"), ("spark.driver.extraLibraryPath", "/lib"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["PATH", "LANG", "LC_ALL", "TZ", "LD_PRELOAD", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH",
     "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS", "OMP_NUM_THREADS", "HADOOP_USER_NAME", "HOME"],
)  # fmt: skip
def test_variables_that_a_jvm_reads_once_make_another_kind(machine: Machine, name: str) -> None:
    other = machine.kind(**{name: "-Dx=1"})
    assert isinstance(other, DriverKind)
    assert other != machine.kind()
    assert (name, "-Dx=1") in other.environment


def test_another_directory_is_another_kind(machine: Machine) -> None:
    assert machine.kind(cwd="/tmp") != machine.kind()


def _new_jar(machine: Machine) -> None:
    (machine.root / "spark/jars/new.jar").write_text("x")


def _newer_jar(machine: Machine) -> None:
    jar = machine.root / "spark/jars/spark-core_2.13-4.3.0.jar"
    os.utime(jar, ns=(1, 1))


def _other_java(machine: Machine) -> None:
    (machine.root / "java/release").write_text("JAVA_VERSION=22")


def _log_settings(machine: Machine) -> None:
    (machine.root / "conf/log4j2.properties").write_text("rootLogger.level = debug\n")


def _hive_settings(machine: Machine) -> None:
    (machine.root / "spark/conf/hive-site.xml").write_text("<configuration/>")


@pytest.mark.parametrize(
    "change", [_new_jar, _newer_jar, _other_java, _log_settings, _hive_settings]
)
def test_what_is_upgraded_beneath_makes_another_kind(
    machine: Machine, change: Callable[[Machine], None]
) -> None:
    before = machine.kind()
    assert machine.kind() == before
    change(machine)
    after = machine.kind()
    assert isinstance(after, DriverKind)
    assert after != before


@pytest.mark.parametrize(
    ("arguments", "environment", "why"),
    [
        (["--driver-java-options", "-javaagent:a.jar"], {}, "Java option -javaagent:a.jar"),
        (["--driver-java-options", "-agentlib:jdwp=x"], {}, "Java option -agentlib:jdwp"),
        (["--driver-java-options", "-Dcom.sun.management.jmxremote.port=1"], {}, "Java option"),
        (["--driver-java-options", "-Xlog:gc:file=x"], {}, "Java option -Xlog:gc:file"),
        (["--proxy-user", "bob"], {}, "--proxy-user"),
        (["--principal", "a@B", "--keytab", "local:/k"], {}, "Kerberos"),
        (["--class", "org.apache.spark.repl.Main"], {}, "spark-shell needs its terminal"),
        (["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"], {}, "server"),
        (["--conf", "spark.hadoop.hadoop.security.authentication=kerberos"], {}, "Kerberos"),
        (["--conf", "spark.sql.codegen.cache.maxEntries=7"], {}, "reads once"),
        (["--wrong", "x"], {}, "no option of spark-submit"),
        (["--properties-file", "/nowhere"], {}, "/nowhere"),
        ([], {"KRB5CCNAME": "/tmp/cc"}, "Kerberos"),
        ([], {"SPARK_REMOTE": "sc://h"}, "Spark Connect"),
        ([], {"HRM_SUBMISSION_ID": "s-1"}, "on a node"),
        ([], {"JAVA_TOOL_OPTIONS": "-agentpath:x"}, "Java option -agentpath:x"),
        ([], {"HRM_PYTHON": "/usr/bin/python3"}, f"HRM_PYTHON is not {PYTHON}"),
        ([], {"JAVA_HOME": "", "PATH": "/nowhere"}, "no Java"),
    ],
)
def test_what_fits_none_gets_the_reason(
    machine: Machine, arguments: list[str], environment: dict[str, str], why: str
) -> None:
    found = machine.kind(*arguments, **environment)
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("umask", 0o77, "umask"), ("limits", [[1, 1]], "limits"), ("groups", [], "groups"),
     ("cgroups", ["0::/job"], "cgroup"), ("nice", 10, "priority"), ("root", [1, 2], "root")],
)  # fmt: skip
def test_a_driver_that_would_inherit_other_things_fits_none(
    machine: Machine, name: str, value: Any, why: str
) -> None:
    request = replace(machine.request, surroundings={**OWN, name: value})
    found = kind_of(request, OWN, PYTHON)
    assert isinstance(found, str)
    assert why in found


def test_the_launcher_gets_what_is_fixed_and_no_more(machine: Machine) -> None:
    kind = machine.kind("--driver-memory", "2g", "--conf", "spark.executor.memory=4g")
    assert isinstance(kind, DriverKind)
    assert kind.memory == "2g"
    assert kind.arguments[3:5] == ["--conf", "spark.driver.memory=2g"]
    assert not any("executor" in word for word in kind.arguments)


GOOD = {"arguments": ["a"], "environment": {"A": "b"}, "properties": {}, "cwd": "/",
        "surroundings": {}}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_message_of_another_form_is_refused(name: str) -> None:
    assert request_of(GOOD).cwd == "/"
    for wrong in ({k: v for k, v in GOOD.items() if k != name}, {**GOOD, name: 7}):
        with pytest.raises(InvalidRequest):
            request_of(wrong)
