"""Which archive belongs to what, when it may be used, and when a driver starts without."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from hrm.spark import archive
from hrm.spark.archive import Archives


@pytest.fixture
def java(tmp_path: Path) -> Path:
    home = tmp_path / "jdk"
    for name in ("bin/java", "release", "lib/modules", "lib/server/libjvm.so"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "bin" / "java").chmod(0o755)
    return home / "bin" / "java"


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "b.jar", "a.jar", "notes.txt"):
        (home / "jars" / name).write_text(name)
    return home


@pytest.fixture
def archives(tmp_path: Path, java: Path, spark: Path) -> Archives:
    return Archives(str(tmp_path / "archives"), str(java), str(spark))


def made(archives: Archives) -> Archives:
    """As left by a training."""
    Path(archives.directory).mkdir(parents=True)
    record: dict[str, object] = {"state": "ready"}
    for kind in archive.KINDS:
        path = Path(archives.path(kind))
        path.write_text(kind)
        record[kind] = [path.stat().st_size, path.stat().st_mtime_ns]
    archive.write_json(f"{archives.directory}/state.json", record)
    return archives


def test_an_archive_is_of_one_spark_and_one_java(
    tmp_path: Path, java: Path, spark: Path, archives: Archives
) -> None:
    def key() -> str:
        return Archives(str(tmp_path), str(java), str(spark)).key

    assert Path(archives.directory).name == f"4.3.0-{archives.key}"
    keys = [key()]
    assert keys[0] == key()
    link = tmp_path / "link"
    link.symlink_to(spark)
    assert Archives("/", str(java), str(link)).key == keys[0], "the same jars by another name"
    (spark / "jars" / "a.jar").write_text("another size")
    keys.append(key())
    os.utime(spark / "jars" / "b.jar", (1, 1))
    keys.append(key())
    (spark / "jars" / "c.jar").touch()
    keys.append(key())
    (java.parents[1] / "release").write_text("a new Java in its place")
    keys.append(key())
    assert len(set(keys)) == 5


def test_the_class_path_is_jars_alone_in_one_order(spark: Path) -> None:
    names = [Path(path).name for path in archive.class_path(str(spark))]
    assert names == ["a.jar", "b.jar", "spark-core_2.13-4.3.0.jar"]


def test_an_archive_that_is_there_and_was_checked_is_used(archives: Archives) -> None:
    assert archives.problem("executor") == "there is none yet"
    made(archives)
    assert archives.problem("executor") == archives.problem("driver") == ""


def test_a_failed_training_is_reported(archives: Archives) -> None:
    Path(archives.directory).mkdir(parents=True)
    record: dict[str, object] = {"state": "failed", "problem": "no memory"}
    archive.write_json(f"{archives.directory}/state.json", record)
    assert archives.problem("driver") == "its training failed: no memory"
    record = {"state": archive.UNFINISHED, "problem": "the training has not ended"}
    archive.write_json(f"{archives.directory}/state.json", record)
    assert archives.problem("driver") == "the training has not ended"


def test_a_changed_file_is_not_used(archives: Archives) -> None:
    Path(made(archives).path("executor")).write_text("half of it")
    assert "has changed since it was made" in archives.problem("executor")
    assert not archives.problem("driver")
    Path(archives.path("driver")).unlink()
    assert "No such file" in archives.problem("driver")


def test_a_file_that_others_can_write_is_not_used(archives: Archives) -> None:
    Path(made(archives).path("executor")).chmod(0o666)
    assert "another user could have written" in archives.problem("executor")
    Path(archives.directory).chmod(0o777)
    assert "another user could have written" in archives.problem("driver")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "ready"}', '{"state": 7}'])
def test_a_damaged_record_means_no_archive(archives: Archives, text: str) -> None:
    (Path(made(archives).directory) / "state.json").write_text(text)
    assert archives.problem("executor")


def test_a_training_in_progress_is_seen(archives: Archives) -> None:
    assert not archives.training()
    Path(archives.directory).mkdir(parents=True)
    with (Path(archives.directory) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert archives.training()
    assert not archives.training()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("-XX:+UseZGC", "-XX:+UseZGC"),
        ("-XX:-UseCompressedOops", "-XX:-UseCompressedOops"),
        ("-XX:SharedArchiveFile=/mine.jsa", "-XX:SharedArchiveFile"),
        ("-Xshare:off", "-Xshare:off"),
        ("-Xbootclasspath/a:/x.jar", "-Xbootclasspath"),
        ("-Xmx32g", "32768 MiB"),
        ("-Xmx34359738368", "32768 MiB"),
        ("-XX:MaxHeapSize=40G", "40960 MiB"),
    ],
)
def test_what_keeps_a_jvm_from_using_an_archive(option: str, why: str) -> None:
    assert why in archive.obstacle(["-Dx=y", option])


def test_usual_options_keep_nothing_from_it() -> None:
    options = ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-Xmx31g", "-Xss4m", "-Dname=-Xshare:off"]
    assert archive.obstacle(options, 32767) == ""
    assert "32768 MiB" in archive.obstacle([], 32768)


@pytest.fixture
def driver(
    tmp_path: Path, java: Path, spark: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """A machine with an archive below the cluster's directory; Spark's home and its settings'."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_DRIVER_MEMORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "cluster" / "token"))
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/plugin.jar")
    made(Archives(str(tmp_path / "cluster" / "archives"), str(java), str(spark)))
    (tmp_path / "conf").mkdir()
    return str(spark), str(tmp_path / "conf")


def test_a_driver_gets_the_jars_first_and_its_settings_after(driver: tuple[str, str]) -> None:
    spark, conf = driver
    options = archive.driver_options(spark, conf, ["--master", "spark+hrm://h:1", "app.py"])
    assert options[0].startswith("-XX:SharedArchiveFile=") and options[1] == "-Xshare:auto"
    assert options[-2] == "-cp"
    path = options[-1].split(":")
    assert path[:3] == archive.class_path(spark)
    assert path[3:] == [f"{conf}/", "/plugin.jar"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--driver-class-path", "/x.jar"],
        ["--driver-class-path=/x.jar"],
        ["--conf", "spark.driver.extraClassPath=/x.jar"],
        ["--conf", "spark.driver.defaultExtraClassPath=/x.jar"],
        ["--conf", "spark.driver.extraJavaOptions=-Dx=y -XX:+UseZGC"],
        ["--driver-java-options", "-Xshare:off"],
        ["--driver-memory", "32g"],
        ["--driver-memory=1t"],
        ["--conf", "spark.driver.memory=40G"],
        ["--properties-file", "{file}"],
        ["--properties-file={file}"],
    ],
)
def test_an_unusual_driver_starts_without(
    driver: tuple[str, str], tmp_path: Path, arguments: list[str]
) -> None:
    file = tmp_path / "mine.properties"
    file.write_text("# spark.driver.memory 1g\nspark.driver.extraClassPath /x.jar\n")
    given = [argument.replace("{file}", str(file)) for argument in arguments]
    assert archive.driver_options(*driver, [*given, "app.py"]) == []


def test_defaults_are_examined_and_comments_are_not(driver: tuple[str, str]) -> None:
    defaults = Path(driver[1]) / "spark-defaults.conf"
    defaults.write_text("  # spark.driver.extraClassPath /x\nspark.driver.memory  31g\n")
    assert archive.driver_options(*driver, ["app.py"])
    defaults.write_text("spark.driver.memory  32g\n")
    assert not archive.driver_options(*driver, ["app.py"])


def test_a_driver_of_another_spark_or_without_java_starts_as_ever(
    driver: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(driver[0]) / "jars" / "more.jar").touch()
    assert archive.driver_options(*driver, []) == []
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert archive.driver_options(*driver, []) == []


def test_arguments_with_quotes_and_blanks_reach_java_as_they_are() -> None:
    assert archive.argument_file(['a b"c\\d', "-cp"]) == '"a b\\"c\\\\d"\n"-cp"\n'
