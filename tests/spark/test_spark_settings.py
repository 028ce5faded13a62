"""Every setting of Spark's executors and drivers is in HRM's table, and the table is used."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pyspark
import pytest

from hrm.errors import InvalidRequest
from hrm.spark import build
from hrm.spark.spark_settings import (
    FAMILIES,
    SETTINGS,
    Treatment,
    check_submission,
    without_effect,
)
from tests.spark.test_plugin_locks import PROGRAMS, SPARK_HOME, java

_DEFINES = b"org/apache/spark/internal/config/ConfigBuilder"
_OURS = re.compile(r"spark\.(executor|driver)\.")
_REGISTRY_MIN = 1_000
"""Of the 1,650 of Spark 4.3: a registry that was hardly filled is noticed."""
_COMPILE_LIMIT_S = 120.0
_RUN_LIMIT_S = 60.0


def holders(jars: Path) -> list[str]:
    """The classes of Spark that define settings: whatever mentions the builder of one."""
    found = []
    for jar in sorted(jars.glob("spark-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            names = (name for name in archive.namelist() if name.endswith(".class"))
            found += [
                name.removesuffix(".class").replace("/", ".")
                for name in names
                if _DEFINES in archive.read(name)
            ]
    return found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All settings that this Spark knows: the version that each came with, by its name; empty for
    another name of one."""
    jars = SPARK_HOME / "jars"
    compiler = os.pathsep.join(
        build._compiler_jars(str(jars), [jar.name for jar in jars.iterdir()])
    )
    classes = tmp_path_factory.mktemp("classes")
    java(
        "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", compiler, "scala.tools.nsc.Main", "-cp", f"{jars}/*", "-d", str(classes), "-nowarn",
        str(PROGRAMS / "settings" / "KnownSettings.scala"),
        timeout_s=_COMPILE_LIMIT_S,
    )  # fmt: skip
    known = java(
        "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{jars}/*",
        "org.apache.spark.internal.config.KnownSettings", *holders(jars),
        timeout_s=_RUN_LIMIT_S,
    )  # fmt: skip
    rows = (line.split("\t") for line in known.splitlines() if line.startswith("spark."))
    found: dict[str, str] = {}
    for name, version in rows:
        found[name] = version or found.get(name, "")
    assert len(found) > _REGISTRY_MIN
    return found


@pytest.mark.spark
def test_every_setting_of_spark_is_in_the_table(registry: dict[str, str]) -> None:
    ours = {name: version for name, version in registry.items() if _OURS.match(name)}
    assert len(ours) > 40
    unknown = sorted(set(ours) - set(SETTINGS))
    assert unknown == [], "add a row for each to hrm/spark/spark_settings.py, and run make docs"


@pytest.mark.spark
@pytest.mark.skipif(not pyspark.__version__.startswith("4.3"), reason="the table is of Spark 4.3")
def test_the_table_has_nothing_that_spark_does_not_know(registry: dict[str, str]) -> None:
    ours = {name: version for name, version in registry.items() if _OURS.match(name)}
    assert set(SETTINGS) <= set(ours)
    since = {name: SETTINGS[name].since for name in SETTINGS if ours[name]}
    assert since == {name: version for name, version in ours.items() if version}


def test_the_table_can_be_read() -> None:
    assert list(SETTINGS) == sorted(SETTINGS)
    for name, setting in (SETTINGS | FAMILIES).items():
        assert setting.note, name
        assert "|" not in setting.note, name


def test_what_does_nothing_is_named_with_the_reason() -> None:
    assert without_effect(
        ["spark.executor.memory", "spark.executor.logs.rolling.maxSize", "spark.executor.unknown"]
    ) == [
        "spark.executor.logs.rolling.maxSize has no effect here: nodes rotate the logs of all "
        "containers alike: log_bytes_max and log_files_max of [agent]"
    ]


def test_what_spark_sets_itself_is_no_reason_for_a_warning() -> None:
    own = [name for name, row in SETTINGS.items() if row.treatment is Treatment.OF_SPARK]
    assert "spark.executor.id" in own
    assert without_effect(own) == []


@pytest.mark.parametrize(
    ("list_of_yarn", "ours"),
    [("archives", "archives"), ("files", "files"), ("jars", "jars"), ("pyFiles", "submit.pyFiles")],
)
def test_files_that_are_named_for_yarn_alone_are_refused(list_of_yarn: str, ours: str) -> None:
    why = rf"spark\.yarn\.dist\.{list_of_yarn} is read by YARN alone; set spark\.{ours}=a,b in"
    with pytest.raises(InvalidRequest, match=why):
        check_submission({f"spark.yarn.dist.{list_of_yarn}": "a,b"})
    check_submission({f"spark.yarn.dist.{list_of_yarn}": "", f"spark.{ours}": "a,b"})


def test_a_driver_on_a_node_gets_no_device() -> None:
    check_submission({"spark.driver.resource.gpu.amount": "0", "spark.driver.memory": "1g"})
    with pytest.raises(InvalidRequest, match=r"is 1, but drivers on nodes get no gpu; leave it"):
        check_submission({"spark.driver.resource.gpu.amount": "1"})
