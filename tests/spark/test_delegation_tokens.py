"""When a submission brings delegation tokens, and what becomes of the JVM that obtains them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.errors import InvalidConfig, InvalidRequest
from hrm.spark import build, delegation_tokens, launch
from hrm.spark.delegation_tokens import TOKENS_BYTES_MAX, demands_kerberos, obtain

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>fs.defaultFS</name><value>file:///</value></property>
  <property><name>hadoop.security.authentication</name><value> {} </value></property>
</configuration>
"""
SETTING = "spark.hadoop.hadoop.security.authentication"


@pytest.fixture
def hadoop(tmp_path: Path) -> Path:
    directory = tmp_path / "hadoop"
    directory.mkdir()
    (directory / "core-site.xml").write_text(SITE.format("Kerberos"))
    return directory


def test_hadoops_settings_decide_and_the_applications_own_before_them(hadoop: Path) -> None:
    environment = {"HADOOP_CONF_DIR": str(hadoop)}
    assert demands_kerberos({}, environment)
    assert demands_kerberos({}, {"YARN_CONF_DIR": str(hadoop)})
    assert not demands_kerberos({SETTING: "simple"}, environment)
    assert demands_kerberos({SETTING: "kerberos"}, {})
    assert not demands_kerberos({}, {})
    (hadoop / "core-site.xml").write_text(SITE.format("simple"))
    assert not demands_kerberos({}, environment)


def test_the_first_of_two_settings_files_counts(hadoop: Path, tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    environment = {"SPARK_CONF_DIR": str(tmp_path), "HADOOP_CONF_DIR": str(hadoop)}
    assert not demands_kerberos({}, environment)


def test_a_settings_file_that_cannot_be_read_is_named(hadoop: Path) -> None:
    (hadoop / "core-site.xml").write_text("<configuration>")
    with pytest.raises(InvalidConfig, match=r"core-site.xml .* set HADOOP_CONF_DIR"):
        demands_kerberos({}, {"HADOOP_CONF_DIR": str(hadoop)})


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of Java: a script that a test writes."""
    program = tmp_path / "java"
    program.touch(mode=0o755)
    spark = launch.Spark(home=tmp_path, version="4.3.0", python_path=())
    of_program = launch.Java(command=program, home=None, version="17")
    monkeypatch.setattr(launch, "find_spark", lambda: spark)
    monkeypatch.setattr(launch, "find_java", lambda: of_program)
    monkeypatch.setattr(build, "plugin_jar", lambda _: "/cache/plugin.jar")
    return program


def test_the_jvm_has_the_class_path_and_the_properties_of_the_driver(
    java: Path, hadoop: Path, tmp_path: Path
) -> None:
    java.write_text(
        '#!/bin/sh\ncat; echo "$@"; echo "… WARN HadoopDelegationTokenManager: x" >&2\n'
    )
    main = tmp_path / "main.jar"
    main.touch()
    conf = {
        "spark.driver.extraJavaOptions": "-Djava.security.krb5.conf='/a b' -Xmx8g",
        "spark.driver.extraClassPath": "/providers.jar", "spark.jars": "hdfs://h/x.jar",
    }  # fmt: skip
    text, warnings = obtain(conf, {"HADOOP_CONF_DIR": str(hadoop)}, str(main), "bob")
    settings, _, command = text.decode().rpartition("\n-Xmx256m ")
    assert "spark.driver.extraClassPath=/providers.jar" in settings
    assert "-Djava.security.krb5.conf=/a b" in command
    assert "-Xmx8g" not in command
    path = f"/providers.jar:{hadoop}:/cache/plugin.jar:{tmp_path}/jars/*:{main} "
    assert f"-cp {path}" in command
    assert command.endswith(".TokenRelay bob\n")
    assert warnings == ["… WARN HadoopDelegationTokenManager: x"]


def test_why_there_are_no_tokens_is_one_line(java: Path) -> None:
    java.write_text("#!/bin/sh\necho at a.B >&2; echo HRM: run kinit first >&2; exit 1\n")
    with pytest.raises(InvalidRequest, match=r"^run kinit first$"):
        obtain({}, {}, "a.py")
    java.write_text(f"#!/bin/sh\nhead -c {TOKENS_BYTES_MAX + 1} /dev/zero\n")
    with pytest.raises(InvalidRequest, match="at most 262144 are taken"):
        obtain({}, {}, "a.py")


def test_a_jvm_that_hangs_has_a_limit(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "_LIMIT_S", 0.1)
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(Exception, match="the driver's tokens cannot be obtained"):
        obtain({}, {}, "a.py")
