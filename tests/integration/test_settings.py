"""Settings that Spark's launcher gives to all reach drivers and executors, or are refused."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.integration.conftest import APPS, REPOSITORY, Cluster, command_of, executors_of
from tests.integration.test_submissions import driver_log
from tests.spark_tools import SparkTools

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SPARK_HOME = Path(pyspark.__file__).parent
ONE = ("--conf", "spark.executor.instances=1")
LOGGING = """rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = LOGGED-BY-{name} %m%n
"""
KERBEROS = """<configuration>
<property><name>hadoop.security.authentication</name><value>kerberos</value></property>
</configuration>
"""
REALM = """[libdefaults]
default_realm = EXAMPLE.ORG
[realms]
EXAMPLE.ORG = { kdc = 127.0.0.1:1 }
"""


def site(directory: Path, name: str) -> dict[str, Path]:
    """Settings of Spark and of Hadoop that can be told from others by ``name``."""
    places = {part: directory / f"{name}-{part}" for part in ("spark", "hadoop")}
    for place in places.values():
        place.mkdir()
    (places["spark"] / "hive-site.xml").write_text("<configuration/>")
    (places["spark"] / "log4j2.properties").write_text(LOGGING.format(name=name))
    (places["spark"] / "spark-env.sh").write_text(
        f"touch {directory}/{name}-script-ran\n. {REPOSITORY}/spark-conf/spark-env.sh\n"
    )
    (places["hadoop"] / "core-site.xml").write_text(
        "<configuration><property><name>of.the.site</name>"
        f"<value>{name}</value></property></configuration>"
    )
    return places


@pytest.fixture(scope="module")
def node_site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return site(tmp_path_factory.mktemp("site"), "node")


@pytest.fixture(scope="module")
def configured(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools, node_site: dict[str, Path]
) -> Iterator[Cluster]:
    """A cluster whose node has settings of its own."""
    subject = Cluster(tmp_path_factory.mktemp("configured"), _tools)
    subject.environment["HRM_AGENT_SPARK_CONF_DIR"] = str(node_site["spark"])
    subject.environment["HRM_AGENT_HADOOP_CONF_DIR"] = str(node_site["hadoop"])
    subject.environment["HRM_MASTER_DRIVER_SHARE"] = "1"
    subject.up("--nodes", "1", "--cores", "2", "--memory", "4g")
    yield subject
    subject.down()


def executor_log(cluster: Cluster, name: str) -> str:
    app = cluster.application(name)
    assert app is not None
    asked = ("app", "logs", app["application_id"], "--executor", "1", "--stream", "stderr")
    log: str = cluster.run(*asked, "--master", cluster.address).stdout
    return log


def test_in_client_mode_each_machine_has_its_own(
    configured: Cluster, node_site: dict[str, Path], tmp_path: Path
) -> None:
    mine = site(tmp_path, "mine")
    app = configured.submit(
        *ONE, str(APPS / "settings.py"), "hive-site.xml", "core-site.xml",
        environment={
            "SPARK_CONF_DIR": str(mine["spark"]), "HADOOP_CONF_DIR": str(mine["hadoop"])
        },
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    output = app.output()
    assert f"DRIVER hive-site.xml file:{mine['spark']}/hive-site.xml" in output
    assert f"EXECUTOR hive-site.xml file:{node_site['spark']}/hive-site.xml" in output
    assert f"EXECUTOR core-site.xml file:{node_site['hadoop']}/core-site.xml" in output
    assert "HADOOP mine" in output
    assert "LOGGED-BY-mine" in output
    assert "LOGGED-BY-node" in executor_log(configured, "settings")


def test_in_cluster_mode_the_submitters_go_along(
    configured: Cluster, node_site: dict[str, Path], tmp_path: Path
) -> None:
    mine = site(tmp_path, "mine")
    (mine["spark"] / "metrics.properties").write_text("")
    (node_site["spark"] / "fairscheduler.xml").write_text("<allocations/>")
    names = ("hive-site.xml", "core-site.xml", "metrics.properties", "fairscheduler.xml")
    app = configured.submit(
        *ONE, "--deploy-mode", "cluster", "--name", "sent", "--driver-memory", "512m",
        str(APPS / "settings.py"), *names,
        environment={
            "SPARK_CONF_DIR": str(mine["spark"]), "HADOOP_CONF_DIR": str(mine["hadoop"])
        },
    )  # fmt: skip
    assert app.wait(240) == 0, app.output()
    output = driver_log(configured, "sent")
    for name in names:
        (line,) = (line for line in output.splitlines() if line.startswith(f"DRIVER {name} "))
        assert str(configured.state) in line, "in the driver's own directory"
        assert line.endswith(f"/conf/{'hadoop' if name == 'core-site.xml' else 'spark'}/{name}")
    assert "HADOOP mine" in output
    assert "LOGGED-BY-mine" in driver_log(configured, "sent", "stderr")
    assert f"EXECUTOR core-site.xml file:{node_site['hadoop']}/core-site.xml" in output
    assert (tmp_path / "mine-script-ran").exists(), "where it was submitted"
    (tmp_path / "mine-script-ran").unlink()
    assert not (node_site["spark"].parent / "node-script-ran").exists()


def test_a_script_of_the_submitter_does_not_run_on_a_node(
    configured: Cluster, tmp_path: Path
) -> None:
    mine = site(tmp_path, "mine")
    app = configured.submit(
        *ONE, "--name", "scripts", "--driver-memory", "512m",
        str(APPS / "settings.py"),
        environment={"SPARK_CONF_DIR": str(mine["spark"])}, program="hrm submit",
    )  # fmt: skip
    assert app.wait(240) == 0, app.output()
    assert "LOGGED-BY-mine" in driver_log(configured, "scripts", "stderr")
    assert not (tmp_path / "mine-script-ran").exists()


def test_settings_of_executors_reach_their_jvms(
    configured: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """One that limits their cores, and the signal on which they hand their data over."""
    go = tmp_path / "go"
    app = configured.submit(
        *ONE, *("--conf", "spark.executor.limitActiveProcessorCount.enabled=true"),
        *("--conf", "spark.executor.decommission.signal=USR1"),
        *("--conf", "spark.executor.logs.rolling.maxSize=1000000"),
        str(APPS / "shuffled.py"), str(go),
    )  # fmt: skip
    eventually(lambda: "COUNT" in app.output(), 120, "it has run")
    assert "HRM: warning: spark.executor.logs.rolling.maxSize has no effect here" in app.output()
    shown = configured.application("shuffled")
    assert shown is not None
    (executor,) = executors_of(shown["application_id"])
    assert "-XX:ActiveProcessorCount=1" in command_of(executor)
    os.kill(executor.pid, signal.SIGUSR1)

    def decommissioned() -> bool:
        return "Decommission executor 1" in executor_log(configured, "shuffled")

    eventually(decommissioned, 30, "the executor obeys")
    go.touch()
    assert app.wait() == 0, app.output()


@pytest.mark.parametrize(
    ("options", "site", "words"),
    [
        ((), True, "neither a ticket nor tokens"),
        (("--principal", "u", "--keytab"), False, "Hadoop's settings do not demand Kerberos"),
        pytest.param(
            ("--conf", "spark.kerberos.principal=u"), True, "belong together; give both, or none",
            marks=pytest.mark.extra,
        ),
    ],
    ids=["no-ticket", "no-kerberos", "no-keytab"],
)  # fmt: skip
def test_kerberos_that_cannot_work_is_refused_at_the_start(
    configured: Cluster, tmp_path: Path, options: tuple[str, ...], site: bool, words: str
) -> None:
    for name, text in (("core-site.xml", KERBEROS), ("krb5.conf", REALM), ("u.keytab", "")):
        (tmp_path / name).write_text(text)
    before = configured.ask("apps", "--all")["applications"]
    given = (*options, str(tmp_path / "u.keytab")) if "--keytab" in options else options
    realm = ("--driver-java-options", f"-Djava.security.krb5.conf={tmp_path}/krb5.conf")
    environment = {"KRB5CCNAME": str(tmp_path / "none")}
    if site:
        environment["HADOOP_CONF_DIR"] = str(tmp_path)
    app = configured.submit(
        *realm, *ONE, *given, str(APPS / "settings.py"), environment=environment
    )
    assert app.wait() != 0
    lines = [line for line in app.output().splitlines() if "SparkException: HRM: " in line]
    assert lines, app.output()
    assert words in lines[0]
    assert configured.ask("apps", "--all")["applications"] == before, "it has not registered"


def test_an_application_that_uses_no_kerberos_says_so(configured: Cluster, tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text(KERBEROS)
    (tmp_path / "krb5.conf").write_text(REALM)
    app = configured.submit(
        *("--driver-java-options", f"-Djava.security.krb5.conf={tmp_path}/krb5.conf"), *ONE,
        *("--conf", "spark.hadoop.hadoop.security.authentication=simple"),
        str(APPS / "settings.py"), "core-site.xml",
        environment={"HADOOP_CONF_DIR": str(tmp_path)},
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    assert f"DRIVER core-site.xml file:{tmp_path}/core-site.xml" in app.output()


@pytest.fixture
def hadoop_free(tmp_path: Path) -> tuple[Path, str]:
    """A Spark whose jars are without Hadoop's, which are elsewhere; its home, their class path."""
    home, elsewhere = tmp_path / "spark", tmp_path / "hadoop"
    (home / "jars").mkdir(parents=True)
    elsewhere.mkdir()
    for entry in SPARK_HOME.iterdir():
        if entry.name != "jars":
            (home / entry.name).symlink_to(entry)
    for jar in (SPARK_HOME / "jars").iterdir():
        if jar.name.startswith("hadoop-client-"):
            shutil.copyfile(jar, elsewhere / jar.name)  # Java shows where a link leads to
        else:
            (home / "jars" / jar.name).symlink_to(jar)
    return home, f"{elsewhere}/*"


def test_a_spark_without_hadoop_runs_with_the_one_that_is_named(
    hadoop_free: tuple[Path, str], tmp_path: Path, _tools: SparkTools
) -> None:
    home, class_path = hadoop_free
    program = str(home / "bin" / "spark-submit")
    cluster = Cluster(tmp_path, _tools)
    cluster.environment |= {"SPARK_HOME": str(home), "SPARK_DIST_CLASSPATH": class_path}
    cluster.environment["HRM_MASTER_DRIVER_SHARE"] = "1"
    cluster.up("--nodes", "1", "--cores", "2", "--memory", "4g")
    try:
        for mode in ("client", "cluster"):
            app = cluster.submit(
                *ONE, "--deploy-mode", mode, "--name", mode, "--driver-memory", "512m",
                str(APPS / "settings.py"), "core-default.xml", program=program,
            )  # fmt: skip
            assert app.wait(300) == 0, app.output()
            output = app.output() if mode == "client" else driver_log(cluster, mode)
            for process in ("DRIVER", "EXECUTOR"):
                found = f"{process} core-default.xml jar:file:{tmp_path}/hadoop/hadoop-client-api"
                assert found in output, output
    finally:
        cluster.down()
