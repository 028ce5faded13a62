"""Applications whose Hadoop settings demand Kerberos, with a real KDC: executors get tokens, and
later ones."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hrm.spark.launch import find_java, find_spark
from tests import kdc
from tests.conftest import PATIENCE
from tests.integration.conftest import APPS, Cluster, Submitted
from tests.spark_tools import SparkTools

_MISSING = kdc.missing_programs()
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(_MISSING), reason=f"no Kerberos realm: {_MISSING} not installed"),
]

PROVIDERS = "META-INF/services/org.apache.spark.security.HadoopDelegationTokenProvider"
CORE_SITE = """<configuration>
<property><name>hadoop.security.authentication</name><value>kerberos</value></property>
</configuration>
"""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, and the provider of its tokens."""
    made = tmp_path_factory.mktemp("jar") / "kerberized.jar"
    spark = find_spark().home / "jars"
    compiler = [
        str(next(spark.glob(f"scala-{x}-2*.jar"))) for x in ("compiler", "library", "reflect")
    ]
    java = [str(find_java().command), "-cp", ":".join(compiler), "scala.tools.nsc.Main"]
    class_path = ["-cp", ":".join(map(str, spark.glob("*.jar")))]
    command = [*java, *class_path, "-d", str(made), str(APPS / "Kerberized.scala")]
    subprocess.run(command, check=True, timeout=PATIENCE * 180)
    with zipfile.ZipFile(made, "a") as packed:
        packed.writestr(PROVIDERS, "of.the.tests.PassProvider\n")
    return made


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster whose Hadoop settings demand Kerberos, and the realm."""

    cluster: Cluster
    realm: kdc.Realm
    keytab: Path
    """Of alice."""
    tickets: Path
    """Hers."""
    hadoop: Path
    jar: Path

    def submit(
        self, name: str, out: Path, *options: str, passes: int = 1, tickets: Path | None = None
    ) -> Submitted:
        given = {} if tickets is None else {"KRB5CCNAME": str(tickets)}
        return self.cluster.submit(
            *("--conf", f"spark.driver.extraJavaOptions={self.realm.java_option}"),
            *("--conf", f"spark.executor.extraJavaOptions={self.realm.java_option}"),
            *("--conf", "spark.executor.instances=1"),
            *("--conf", "spark.security.credentials.renewalRatio=0.05"),
            # A provider must be there before the context is, so in client mode on its class path.
            *("--driver-class-path", str(self.jar), "--class", "of.the.tests.Kerberized"),
            *options, str(self.jar), name, str(out), str(passes),
            environment={
                "HADOOP_CONF_DIR": str(self.hadoop), "KRB5CCNAME": "/nonexistent", **given,
            },
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    _tools: SparkTools,
    eventually: Callable[..., object],
    jar: Path,
) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("kerberos")
    hadoop = directory / "hadoop"
    hadoop.mkdir()
    (hadoop / "core-site.xml").write_text(CORE_SITE)
    (directory / "realm").mkdir()
    with kdc.realm(directory / "realm", eventually) as realm:
        keytab = realm.keytab("alice")
        realm.keytab("door/127.0.0.1")
        tickets = realm.tickets("alice", keytab)
        cluster = Cluster(directory, _tools)
        cluster.environment["HRM_MASTER_DRIVER_SHARE"] = "1"
        cluster.up("--nodes", "1", "--cores", "2", "--memory", "4g")
        yield Site(cluster, realm, keytab, tickets, hadoop, jar)
        cluster.down()


def test_a_keytab_gives_executors_tokens_and_later_ones(site: Site, tmp_path: Path) -> None:
    keytab = ("--principal", "alice", "--keytab", str(site.keytab))
    app = site.submit("keytab", tmp_path / "seen", *keytab, passes=2)
    assert app.wait() == 0, app.output()
    user, _, *seen = (tmp_path / "seen").read_text().splitlines()
    assert user == "alice", "the driver is who logged in, from its first moment"
    assert len(seen) >= 2, "an executor that runs gets the next token"
    assert all(each.startswith("alice-alice-") for each in seen), "the first task has one"
    listed = site.cluster.application("keytab")
    assert listed is not None
    assert listed["user"] == "alice"


@pytest.mark.extra
def test_a_ticket_gives_tokens_for_another_user(site: Site, tmp_path: Path) -> None:
    app = site.submit("proxy", tmp_path / "seen", "--proxy-user", "bob", tickets=site.tickets)
    assert app.wait() == 0, app.output()
    user, _, *seen = (tmp_path / "seen").read_text().splitlines()
    assert (user, seen) == ("bob", ["bob-alice-1"])


def passes(out: Path) -> tuple[str, list[str]]:
    """The driver's user, and the tokens that executors had."""
    user, _, *seen = out.read_text().splitlines()
    return user, seen


def has(path: Path, text: bytes) -> bool:
    try:
        return path.is_file() and text in path.read_bytes()
    except OSError:
        return False  # it has been removed meanwhile


@pytest.mark.extra
def test_a_ticket_of_the_submitter_gives_tokens_to_a_driver_on_a_node(
    site: Site, tmp_path: Path
) -> None:
    app = site.submit(
        "cluster", tmp_path / "seen", "--deploy-mode", "cluster", tickets=site.tickets
    )
    assert app.wait() == 0, app.output()
    assert passes(tmp_path / "seen")[1] == ["alice-alice-1"]
    kept = [path for path in site.cluster.state.rglob("*") if has(path, b"alice-alice")]
    assert not kept, "no token is on the disk"


@pytest.mark.extra
def test_a_driver_on_a_node_acts_for_another_user(site: Site, tmp_path: Path) -> None:
    app = site.submit(
        "cluster-proxy", tmp_path / "seen", "--deploy-mode", "cluster", "--proxy-user", "bob",
        tickets=site.tickets,
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    assert passes(tmp_path / "seen") == ("bob", ["bob-alice-1"])


@pytest.mark.extra
def test_a_driver_on_a_node_logs_in_from_a_keytab_there(site: Site, tmp_path: Path) -> None:
    app = site.submit(
        "cluster-keytab", tmp_path / "seen", "--deploy-mode", "cluster", "--principal", "alice",
        "--keytab", f"local:{site.keytab}", passes=2,
    )  # fmt: skip
    assert app.wait() == 0, app.output()
    user, seen = passes(tmp_path / "seen")
    assert (user, len(seen) >= 2) == ("alice", True)


@pytest.mark.extra
def test_a_submitter_without_a_ticket_is_refused_before_anything_is_sent(
    site: Site, tmp_path: Path
) -> None:
    before = site.cluster.ask("submissions", "--all")["submissions"]
    app = site.submit("none", tmp_path / "seen", "--deploy-mode", "cluster")
    assert app.wait() == 2
    assert "neither a ticket nor tokens" in app.output()
    assert site.cluster.ask("submissions", "--all")["submissions"] == before
