"""Delegation tokens for a driver on a node, obtained where the user's ticket is: at the submitter.

A node has no ticket of the user. So a submission whose Hadoop settings demand Kerberos brings
tokens, which Spark's own providers obtain in a small JVM with HRM's plugin
(``hrm/spark/plugin/TokenRelay.scala``): they come through a pipe, and are never in a file. With a
keytab on the nodes (``--keytab local:/PATH``) the driver logs in by itself and needs none.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hrm.errors import InvalidConfig, InvalidRequest, LaunchFailed
from hrm.spark.conf import properties_text
from hrm.spark.submit_conf import directories

__all__ = ["TOKENS_BYTES_MAX", "demands_kerberos", "obtain"]

TOKENS_BYTES_MAX = 256 * 1024
"""Of one submission; tokens have some hundred bytes for each service."""
_AUTHENTICATION = "hadoop.security.authentication"
_CORE_SITE = "core-site.xml"
_MAIN_CLASS = "org.apache.spark.scheduler.cluster.hrm.TokenRelay"
_JVM = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_LIMIT_S = 120.0


def demands_kerberos(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether Hadoop's settings of this machine, with those in ``conf``, demand Kerberos."""
    given = conf.get(f"spark.hadoop.{_AUTHENTICATION}")
    if given is None:
        sites = (place / _CORE_SITE for place in directories(environment).values())
        site = next((each for each in sites if each.is_file()), None)  # as on a class path
        given = _value(site) if site is not None else ""
    return given.strip().lower() == "kerberos"


def _value(site: Path) -> str:
    from xml.etree import ElementTree  # nosec B405

    try:
        root = ElementTree.parse(site).getroot()  # nosec B314 # noqa: S314 - one's own file
    except (OSError, ElementTree.ParseError) as error:
        raise InvalidConfig(
            f"cannot read {site} ({error}); correct it, or set HADOOP_CONF_DIR to another directory"
        ) from error
    found = [
        each.findtext("value", "")
        for each in root.iter("property")
        if each.findtext("name", "").strip() == _AUTHENTICATION
    ]
    return found[-1] if found else ""


def obtain(
    conf: Mapping[str, str], environment: Mapping[str, str], main: str, proxy_user: str = ""
) -> tuple[bytes, list[str]]:
    """Tokens, as Hadoop writes them to a file, and Spark's warnings about services without one.

    ``main``: the application's file, which may have providers of its own. ``proxy_user``: whom the
    tokens are for; empty: the user of the ticket.

    Raises:
        HrmError: there are none: no ticket, no Spark here, no service that gives any.
    """
    from hrm.spark import build
    from hrm.spark.launch import find_java, find_spark

    spark = find_spark().home
    try:
        jar = build.plugin_jar(str(spark))
    except build.BuildError as error:
        raise LaunchFailed(f"the driver's tokens cannot be obtained: {error}") from error
    options = shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    properties = [option for option in options if option.startswith("-D")]
    jars = [jar, str(spark / "jars" / "*")]
    command = [
        str(find_java().command), *_JVM, *properties,
        "-cp", os.pathsep.join(_class_path(conf, environment, jars, main)), _MAIN_CLASS,
        *filter(None, [proxy_user]),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, input=properties_text(conf.items()).encode(), capture_output=True,
            timeout=_LIMIT_S, check=False, env=dict(environment), start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchFailed(f"the driver's tokens cannot be obtained: {error}") from error
    lines = done.stderr.decode(errors="replace").splitlines()
    if done.returncode != 0:
        said = [line.removeprefix("HRM: ") for line in lines if line.startswith("HRM: ")]
        raise InvalidRequest((said or lines or [f"exit status {done.returncode}"])[-1])
    if len(done.stdout) > TOKENS_BYTES_MAX:
        raise InvalidRequest(
            f"the driver's tokens have {len(done.stdout)} bytes, at most {TOKENS_BYTES_MAX} are "
            f"taken; name fewer services in spark.kerberos.access.hadoopFileSystems"
        )
    return done.stdout, [line for line in lines if " WARN HadoopDelegationToken" in line]


def _class_path(
    conf: Mapping[str, str], environment: Mapping[str, str], jars: list[str], main: str
) -> list[str]:
    """As the driver's in client mode: ``jars`` are HRM's and Spark's. The application's follow, as
    far as they are on this machine."""
    own = [main, *conf.get("spark.jars", "").split(",")]
    local = [each.strip().removeprefix("file:").removeprefix("local:") for each in own]
    return [
        *filter(None, conf.get("spark.driver.extraClassPath", "").split(os.pathsep)),
        *map(str, directories(environment).values()),
        *jars,
        *filter(None, [environment.get("SPARK_DIST_CLASSPATH")]),
        *(each for each in local if each.endswith(".jar") and Path(each).is_file()),
    ]
