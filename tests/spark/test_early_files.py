"""Which files go to executors before their JVM starts, and which stay with Spark."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hrm.errors import InvalidRequest
from hrm.spark.early_files import EarlyFiles, needed_early
from tests.spark.fake_driver import fake_driver, target, until_registered
from tests.spark.fake_master import FakeMaster, fake_master, until


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in (
        *("agent.jar", "other.jar", "data.csv", "log4j2.xml", "hive-site.xml", "my lib.so"),
        *("env.tar.gz", "libs.zip", "x-agent.jar"),
    ):
        (tmp_path / name).write_text(name)
    return tmp_path


def launch(*options: str, class_path: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
    return {
        "java_options": list(options),
        "extra_class_path": list(class_path),
        "environment": variables,
    }


def names(
    here: Path, launch: dict[str, Any], mode: str = "named", *, scheme: str = "", **listed: str
) -> list[str]:
    """Names of the early ones of these lists of names."""
    full = {
        kind: ",".join(f"{scheme}{here}/{name}" for name in text.split(","))
        for kind, text in listed.items()
    }
    found, warnings = needed_early(full, launch, mode)
    assert warnings == []
    return [f"{each.name}/" if each.is_archive else each.name for each in found]


@pytest.mark.parametrize(
    "option",
    [
        "-javaagent:./agent.jar=port=1", "-javaagent:agent.jar", "-Xbootclasspath/a:./agent.jar",
        "-Dx=file:agent.jar",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_file_that_a_java_option_names_is_early(here: Path, option: str, scheme: str) -> None:
    found = names(here, launch(option), jar="agent.jar,other.jar,x-agent.jar", scheme=scheme)
    assert found == ["agent.jar"]


def test_what_the_class_path_and_the_environment_name_is_early(here: Path) -> None:
    described = launch(class_path=("other.jar", "./libs/*"), LD_PRELOAD="./my lib.so")
    found = names(
        here, described, file="data.csv,my lib.so", jar="other.jar", archive="libs.zip#libs"
    )
    assert found == ["my lib.so", "other.jar", "libs/"]


@pytest.mark.parametrize("entry", ["*", "./*"])
def test_a_star_on_the_class_path_is_all_jars(here: Path, entry: str) -> None:
    described = launch(class_path=(entry,))
    found = names(here, described, file="data.csv", jar="agent.jar,other.jar")
    assert found == ["agent.jar", "other.jar"]


def test_configuration_that_is_found_by_its_name_is_early(here: Path) -> None:
    found = names(here, launch(), file="data.csv,log4j2.xml,hive-site.xml")
    assert found == ["log4j2.xml", "hive-site.xml"]


def test_as_on_yarn_a_name_may_be_given(here: Path) -> None:
    assert names(here, launch(), file="data.csv#log4j2.properties") == ["log4j2.properties"]


def test_a_python_in_an_archive_is_left_to_spark(here: Path) -> None:
    described = launch(PYSPARK_PYTHON="./environment/bin/python", PYTHONPATH="environment/x")
    assert names(here, described, archive="env.tar.gz#environment") == []


def test_the_setting_decides_for_all(here: Path) -> None:
    lists = {"file": "data.csv", "jar": "agent.jar", "archive": "env.tar.gz"}
    named = launch("-javaagent:agent.jar")
    assert names(here, named, "all", **lists) == ["data.csv", "agent.jar", "env.tar.gz/"]
    assert names(here, named, "none", **lists) == []
    with pytest.raises(InvalidRequest, match=r"spark\.hrm\.localize is 'some'; write named, all"):
        needed_early({}, named, "some")


def test_what_cannot_be_sent_is_reported_where_it_is_named(here: Path) -> None:
    listed = {"jar": f"hdfs:///a/agent.jar,{here}/missing.jar,s3a://b/other.jar,local:/x/node.jar"}
    described = launch("-javaagent:agent.jar", class_path=("missing.jar", "node.jar"))
    found, warnings = needed_early(listed, described, "named")
    assert found == []
    assert [warning.split(",")[0] for warning in warnings] == [
        "hdfs:///a/agent.jar is not a file of this machine",
        f"{here}/missing.jar does not exist here",
    ]


def test_of_two_files_of_one_name_the_first_counts(here: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/agent.jar").write_text("other")
    listed = {"jar": f"{here}/agent.jar,{here}/agent.jar,{tmp_path}/b/agent.jar"}
    found, warnings = needed_early(listed, launch("-javaagent:agent.jar"), "named")
    assert [each.path for each in found] == [here / "agent.jar"]
    assert len(warnings) == 1


def test_no_file_of_an_application_means_nothing_to_send() -> None:
    none = EarlyFiles({"files": {"file": "", "jar": "", "archive": ""}, "launch": launch()})
    assert not none
    assert none.described() == []


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[FakeMaster]:
    (tmp_path / "master").mkdir()
    async with fake_master(tmp_path / "master", start_executors=False) as running:
        yield running


def introduced(here: Path, *options: str) -> dict[str, Any]:
    """What a plugin says of an application with a Java agent and an archive."""
    described = launch(*options, LD_PRELOAD="./native/lib.so")
    more = {"driver_url": "spark://x", "spark_version": "4.3.0", "decommissions": True}
    jars, archives = f"file://{here}/agent.jar,{here}/other.jar", f"{here}/libs.zip#native"
    return {
        "files": {"file": "", "jar": jars, "archive": archives},
        "localize": "named",
        "launch": described | more,
    }


def digest(name: str) -> str:
    """Of the file of this name, which contains it."""
    return hashlib.sha256(name.encode()).hexdigest()


async def test_files_are_with_the_master_before_the_registration_names_them(
    master: FakeMaster, here: Path
) -> None:
    said = introduced(here, "-javaagent:./agent.jar")
    async with fake_driver(master, here, **said) as driver:
        driver.send(target(1))
        await until_registered(driver)
        files = master.registrations[0].launch.files
        assert [(file.name, file.archive, file.sha256, file.size_bytes) for file in files] == [
            ("agent.jar", "", digest("agent.jar"), 9),
            ("native", "libs.zip", digest("libs.zip"), 8),
        ]
        assert sorted(master.files.files.values()) == [b"agent.jar", b"libs.zip"]
        driver.finish()
        assert await driver.end() == 0


async def test_a_master_that_has_lost_them_gets_them_again(master: FakeMaster, here: Path) -> None:
    said = introduced(here, "-javaagent:./agent.jar")
    async with fake_driver(master, here, **said) as driver:
        driver.send(target(1))
        await until_registered(driver)
        master.break_session()
        await until(lambda: master.sessions == 2, 10, "another session")
        assert master.files.pieces == 2, "it has them: nothing is sent"
        master.files.files.clear()
        (here / "libs.zip").unlink()  # which must not end an application that runs
        master.break_session()
        await until(lambda: master.sessions == 3, 10, "another session")
        assert list(master.files.files.values()) == [b"agent.jar"]
        assert len(master.registrations[-1].launch.files) == 2
        driver.finish()
        assert await driver.end() == 0


async def test_a_file_that_the_master_does_not_take_ends_the_start_with_advice(
    master: FakeMaster, here: Path
) -> None:
    master.files.limit = 8
    async with fake_driver(master, here, **introduced(here, "-javaagent:./agent.jar")) as driver:
        driver.send(target(1))
        await until(lambda: driver.calls_of("failed"), 20, "failed")
        ((_, message),) = driver.calls_of("failed")
        assert "agent.jar is too large; or leave it to Spark" in message
        assert "spark.hrm.localize=none" in message
        driver.finish()
        await driver.end()
    assert master.registrations == []


async def test_a_file_that_is_edited_later_stays_as_it_was_for_the_application(
    master: FakeMaster, here: Path
) -> None:
    said = introduced(here, "-javaagent:./agent.jar") | {"early_dir": str(here / "copies")}
    async with fake_driver(master, here, **said) as driver:
        driver.send(target(1))
        await until_registered(driver)
        copies = here / "copies"
        assert (copies / "jar/agent.jar").read_text() == "agent.jar", "from there Spark serves it"
        assert (copies / "archive/libs.zip").read_text() == "libs.zip"
        assert not (copies / "jar/other.jar").exists(), "which is Spark's alone"
        (here / "agent.jar").write_text("edited")
        (here / "libs.zip").unlink()
        master.files.files.clear()
        master.break_session()
        await until(lambda: master.sessions == 2, 10, "another session")
        assert sorted(master.files.files.values()) == [b"agent.jar", b"libs.zip"]
        driver.finish()
        assert await driver.end() == 0


def test_the_next_appmaster_of_a_driver_takes_what_the_first_has_copied(here: Path) -> None:
    hello = introduced(here, "-javaagent:./agent.jar") | {"early_dir": str(here / "copies")}
    EarlyFiles(hello)
    (here / "agent.jar").write_text("edited")
    (here / "libs.zip").unlink()
    again = EarlyFiles(hello)
    assert again.warnings == []
    for found, local in again._files:
        assert local.path.parent == here / "copies" / found.kind
        assert local.path.read_text() == local.path.name


def test_what_cannot_be_copied_goes_as_it_is_with_a_warning(here: Path) -> None:
    (here / "copies").write_text("no directory")
    hello = introduced(here, "-javaagent:./agent.jar") | {"early_dir": str(here / "copies")}
    early = EarlyFiles(hello)
    assert [local.path for _, local in early._files] == [here / "agent.jar", here / "libs.zip"]
    assert f"{here}/agent.jar cannot be copied to {here}/copies" in early.warnings[0]
