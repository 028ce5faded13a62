"""The plugin, compiled, in a real driver with a played AppMaster: no thread waits for another
without end, and nothing that is gone or was given up stays.

The test programs are in Scala, in ``scala/``; each describes itself at its top. They are compiled
like the plugin, by the compiler among Spark's jars.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from hrm.spark import build
from tests.conftest import PATIENCE
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.core, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
PROGRAMS = Path(__file__).parent / "scala"
PACKAGE = "org.apache.spark.scheduler.cluster.hrm"
QUERIES = 10_000
COMPILE_LIMIT_S = 120.0
RUN_LIMIT_S = 120.0  # their own are shorter, and come with the stacks of all threads
ALL_COMPILERS = ("-XX:TieredStopAtLevel=4",)
"""As in production: code that is optimised further meets other interleavings."""
OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
"""Packages of java.base that Spark reaches into."""


def java(*arguments: str, timeout_s: float) -> str:
    done = subprocess.run(
        [build._java(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=PATIENCE * timeout_s, stdin=subprocess.DEVNULL,
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_CONF_DIR": os.devnull},
    )  # fmt: skip
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-30_000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools) -> str:
    """Of the programs, the plugin and Spark."""
    jars = SPARK_HOME / "jars"
    plugin = build.plugin_jar(str(SPARK_HOME), cache=str(_tools.plugins))
    compiler = os.pathsep.join(
        build._compiler_jars(str(jars), [jar.name for jar in jars.iterdir()])
    )
    classes = tmp_path_factory.mktemp("classes")
    java(
        "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", compiler, "scala.tools.nsc.Main",
        "-cp", f"{plugin}:{jars}/*", "-d", str(classes), "-nowarn",
        *map(str, sorted(PROGRAMS.glob("*.scala"))),
        timeout_s=COMPILE_LIMIT_S,
    )  # fmt: skip
    return f"{classes}:{plugin}:{jars}/*"


@pytest.fixture
def run(class_path: str, tmp_path: Path) -> Callable[..., str]:
    """``run(program, *arguments)``: its output, if all was well."""
    place = tmp_path / "place"
    place.mkdir()

    def run(program: str, *arguments: str) -> str:
        opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)
        return java(
            "-Xmx1g", *ALL_COMPILERS, *opened, "-cp", class_path,
            f"{PACKAGE}.{program}", str(place), *arguments,
            timeout_s=RUN_LIMIT_S,
        )  # fmt: skip

    return run


def test_a_storm_ends_without_a_deadlock_and_nothing_is_lost(run: Callable[..., str]) -> None:
    assert "OK queries=" in run("LockStress", str(QUERIES))


def test_an_appmaster_that_hangs_before_it_has_read_delays_nothing(
    run: Callable[..., str],
) -> None:
    assert "OK HRM: the AppMaster cannot be started" in run("DeafAppMaster")


def test_spark_says_why_a_decommissioned_executor_was_stopped(run: Callable[..., str]) -> None:
    reasons = "Executor decommission: preempted for root.ml; Executor decommission: scaled down"
    assert f"OK {reasons}" in run("DecommissionReason")


def test_a_decommissioned_executor_that_disconnects_is_gone_soon(
    run: Callable[..., str],
) -> None:
    assert "OK gone after" in run("DepartingExecutor")


def test_executors_of_a_host_that_spark_excludes_are_killed(run: Callable[..., str]) -> None:
    assert "OK killed 1" in run("ExcludedHost")


def test_a_context_that_cannot_be_made_leaves_no_appmaster(run: Callable[..., str]) -> None:
    assert run("AbandonedContext").splitlines()[-1] == "OK"


def test_a_context_whose_files_are_named_for_yarn_alone_is_refused(run: Callable[..., str]) -> None:
    printed = run("RefusedLists").splitlines()
    assert [line for line in printed if line.startswith("spark.yarn.dist")] == [
        f"spark.yarn.dist.{kind} is read by YARN alone; set spark.{ours}=a,b in its place, which "
        "counts on YARN, too"
        for kind, ours in (
            ("archives", "archives"),
            ("files", "files"),
            ("jars", "jars"),
            ("pyFiles", "submit.pyFiles"),
        )
    ]


def test_settings_that_cannot_be_are_refused_with_the_remedy_and_leave_no_thread(
    run: Callable[..., str],
) -> None:
    refused = {
        "spark.hrm.localize=ALL": "'ALL'; give one of named, all, none; write all",
        "spark.hrm.localize=": "''; give one of named, all, none",
        "spark.hrm.executor.lossReasonTimeout=-1s": "'-1s'; give a time of 0 or more, such as 30s",
        "spark.hrm.appmaster.maxRestarts=-1": "'-1'; give a whole number, 0 or more",
        "spark.hrm.appmaster.hungTimeout=0": "'0'; give a time of at least 15s, such as 60s",
        "spark.hrm.appmaster.hungTimeout=-9": "'-9'; give a time of at least 15s, such as 60s",
        "spark.hrm.registration.timeout=0": "'0'; give a time of more than 0, such as 30s",
        "spark.hrm.stop.timeout=-1": "'-1'; give a time of more than 0, such as 30s",
        "spark.hrm.stop.timeout=soon": "'soon'; give a time of more than 0, such as 30s",
        "spark.hrm.input.size=much": "'much'; give a size, such as 4g",
        "spark.executor.instances=-3": "'-3'; give a whole number, 0 or more",
        "spark.hrm.gang.min=-1": "'-1'; give a whole number, 0 or more",
        "spark.hrm.gang.min=9": "9, but Spark requests 2 executors at first; raise "
        "spark.executor.instances (with dynamic allocation "
        "spark.dynamicAllocation.initialExecutors), or lower spark.hrm.gang.min",
    }
    printed = run("RefusedContexts", *refused).splitlines()
    assert [line for line in printed if line.startswith("spark.")] == [
        f"{setting} -> HRM: {setting.partition('=')[0]} is {why}"
        for setting, why in refused.items()
    ]
    assert printed[-1] == "OK"


def test_tokens_are_tried_again_soon_and_a_machine_without_a_realm_is_named(
    run: Callable[..., str],
) -> None:
    assert run("TokenTroubles").splitlines()[-2:] == [
        "no delegation tokens could be obtained: Can't get Kerberos realm; this machine has no "
        "Kerberos configuration with a default_realm: put the site's krb5.conf to /etc/krb5.conf, "
        "or name it with spark.driver.extraJavaOptions=-Djava.security.krb5.conf=FILE",
        "no delegation tokens could be obtained: the KDC is away; see the log",
    ]


def test_an_application_that_its_launcher_stops_is_killed(run: Callable[..., str]) -> None:
    assert "OK" in run("StoppedByLauncher").splitlines()
