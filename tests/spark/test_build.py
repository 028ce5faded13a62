"""The plugin's cache, and the errors when the plugin cannot be built."""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyspark
import pytest

from hrm.spark import build

SPARK_HOME = Path(pyspark.__file__).parent
BUILD = Path(build.__file__)

# A stub of a compiler: it gets real arguments and does what a compiler does with -d.
JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; exit 0; fi
echo run >> "{log}"
while [ "$1" != -d ]; do shift; done
{action}
"""


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """A directory that looks like a Spark, compiler jars and all."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in (
        "spark-core_2.13-4.3.0", "scala-compiler-2.13.18", "scala-library-2.13.18",
        "scala-reflect-2.13.18", "hadoop-client-api-3.5.0",
    ):  # fmt: skip
        (jars / f"{name}.jar").touch()
    return tmp_path / "spark"


def java(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "17.0.1",
    action: str = 'echo class > "$2/Some.class"; sleep 0.2',
) -> Path:  # fmt: skip
    """Makes JAVA_HOME a Java whose runs can be counted; returns the log of its runs."""
    log = home / "runs"
    (home / "java" / "bin").mkdir(parents=True)
    program = home / "java" / "bin" / "java"
    program.write_text(JAVA.format(version=version, log=log, action=action))
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home / "java"))
    return log


def build_py(spark_home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(BUILD), str(spark_home)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


@pytest.mark.spark
def test_the_plugin_compiles_once_against_the_real_spark() -> None:
    first = build_py(SPARK_HOME)
    assert first.returncode == 0, first.stderr
    with zipfile.ZipFile(first.stdout.strip()) as jar:
        for provider in build.PROVIDERS:
            assert provider in jar.read(build.SERVICE).decode()
            assert provider.replace(".", "/") + ".class" in jar.namelist()
    second = build_py(SPARK_HOME)
    assert second.stdout == first.stdout
    assert second.stderr == "", "a hit is silent"


@pytest.mark.spark
def test_a_compiler_error_is_shown_and_kept(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "Broken.scala").write_text("object Broken { val x: Int = noSuchThing }\n")
    with pytest.raises(build.BuildError, match="does not compile against Spark") as error:
        build.plugin_jar(str(SPARK_HOME), str(sources), str(tmp_path / "cache"))
    (log,) = (tmp_path / "cache").glob("*.log")
    assert "not found: value noSuchThing" in log.read_text()
    assert str(log) in str(error.value)
    assert not list((tmp_path / "cache").glob("*.jar"))
    assert not list((tmp_path / "cache").glob("build-*")), "nothing half-built stays"


def test_a_second_start_compiles_nothing(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = java(tmp_path, monkeypatch)
    assert build_py(spark).stdout == build_py(spark).stdout
    assert log.read_text().split() == ["run"]


def test_a_spark_without_hadoop_is_compiled_against_the_one_that_is_named(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one is part of the key: Hadoop's next version has other classes."""
    (spark / "jars" / "hadoop-client-api-3.5.0.jar").unlink()
    log = java(tmp_path, monkeypatch)
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    refused = build_py(spark)
    assert refused.returncode == 1
    assert (
        "comes without Hadoop; name Hadoop's jars: export SPARK_DIST_CLASSPATH=" in refused.stderr
    )
    made = []
    for hadoop in ("/hadoop/3.4/*", "/hadoop/3.5/*", "/hadoop/3.4/*"):
        monkeypatch.setenv("SPARK_DIST_CLASSPATH", hadoop)
        made.append(build_py(spark).stdout)
    assert made[0] == made[2] != made[1]
    assert log.read_text().split() == ["run", "run"]
    assert build.plugin_jar(str(spark), dist="/hadoop/3.5/*") == made[1].strip(), "of an agent"


def test_what_a_whole_spark_finds_at_its_class_paths_end_is_no_reason_to_compile(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = java(tmp_path, monkeypatch)
    build_py(spark)
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/some/jar")
    build_py(spark)
    assert log.read_text().split() == ["run"]


def test_a_hit_is_quick(spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It delays every driver: a few times as long as starting an interpreter that does nothing."""
    java(tmp_path, monkeypatch)
    build_py(spark)
    nothing_s, hit_s = [], []
    for _ in range(10):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        between = time.perf_counter()
        build_py(spark)
        nothing_s.append(between - begun)
        hit_s.append(time.perf_counter() - between)
    assert min(hit_s) < 10 * min(nothing_s)


def test_drivers_that_start_together_compile_once(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = java(tmp_path, monkeypatch)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(build_py, [spark] * 4))
    assert [d.returncode for d in done] == [0] * 4
    assert len({d.stdout for d in done}) == 1
    assert log.read_text().split() == ["run"]


def test_none_waits_for_ever_for_another_that_compiles(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a spark-submit that was stopped with Ctrl-Z."""
    java(tmp_path, monkeypatch)
    jar = Path(build.plugin_jar(str(spark), cache=str(tmp_path / "cache")))
    jar.unlink()
    monkeypatch.setattr(build, "LOCK_LIMIT_S", 0.3)
    with Path(f"{jar}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(build.BuildError, match=rf"end it, or remove {jar}\.lock"):
            build.plugin_jar(str(spark), cache=str(tmp_path / "cache"))
    assert capsys.readouterr().err.count("waiting for another program") == 1


def test_other_jars_and_other_sources_are_other_plugins(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path, monkeypatch)
    first = build_py(spark).stdout
    (spark / "jars" / "spark-core_2.13-4.3.0.jar").write_text("patched")
    assert build_py(spark).stdout != first
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "A.scala").write_text("class A")
    cache = str(tmp_path / "cache")
    one = build.plugin_jar(str(spark), str(sources), cache)
    (sources / "A.scala").write_text("class B")
    assert build.plugin_jar(str(spark), str(sources), cache) != one


class Cache:
    """A directory of jars that were built, and have been used, so many days ago."""

    def __init__(self, directory: Path, spark: Path) -> None:
        self.directory = directory
        self._spark = spark
        self._number = 0

    def build(self) -> Path:
        """One that was never built before."""
        self._number += 1
        sources = self.directory.with_name("sources")
        sources.mkdir(exist_ok=True)
        (sources / "A.scala").write_text(f"class A{self._number}")
        return Path(build.plugin_jar(str(self._spark), str(sources), str(self.directory)))

    def aged(self, *days: float) -> list[Path]:
        jars = [self.build() for _ in days]
        for jar, ago in zip(jars, days, strict=True):
            at_s = time.time() - ago * 24 * 3600
            os.utime(jar, (at_s, at_s))
        return jars

    def jars(self) -> set[Path]:
        return set(self.directory.glob("*.jar"))


@pytest.fixture
def cache(spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    java(tmp_path, monkeypatch, action='echo class > "$2/Some.class"')
    return Cache(tmp_path / "cache", spark)


def test_jars_that_nothing_has_used_for_long_go_but_for_the_newest(cache: Cache) -> None:
    young = cache.aged(29, 2)
    old = cache.aged(200, 100, 40)
    built = cache.build()
    assert cache.jars() == {*young, old[2], built}, "four stay, however old"
    young += cache.aged(3, 1)
    again = cache.build()
    assert cache.jars() == {*young, built, again}, "what has been used lately stays, however many"
    assert {Path(f"{jar}.lock") for jar in cache.jars()} == set(cache.directory.glob("*.lock"))


def test_a_jar_that_is_used_is_none_that_nothing_has_used(
    cache: Cache, spark: Path, tmp_path: Path
) -> None:
    used, *others = cache.aged(300, 40, 41, 42, 43)
    changed_ns = used.stat().st_mtime_ns
    (tmp_path / "sources" / "A.scala").write_text("class A1")
    found = build.plugin_jar(str(spark), str(tmp_path / "sources"), str(cache.directory))
    assert found == str(used)
    assert used.stat().st_mtime_ns == changed_ns, "Java would take it for another file"
    built = cache.build()
    assert cache.jars() == {built, used, *others[:2]}


def test_a_jar_that_a_program_has_open_stays(cache: Cache) -> None:
    """Such as the driver of a stream that was started months ago."""
    held, locked, free, *_ = cache.aged(100, 200, 300, 1, 1, 1, 1)
    with held.open() as jar:
        reader = subprocess.Popen(["sleep", "600"], stdin=jar)
    try:
        with Path(f"{locked}.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            cache.build()
        assert cache.jars() > {held, locked}
        assert free not in cache.jars()
    finally:
        reader.kill()
        reader.wait()
    cache.build()
    assert not cache.jars() & {held, locked}


@pytest.mark.parametrize("missing", build.COMPILER_JARS)
def test_a_spark_without_its_compiler(spark: Path, missing: str) -> None:
    next((spark / "jars").glob(f"{missing}-*.jar")).unlink()
    done = build_py(spark)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"no {missing} jar" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_spark(tmp_path: Path) -> None:
    done = build_py(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a Spark installation" in done.stderr


def test_java_too_old(spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, monkeypatch, version="1.8.0_402")
    done = build_py(spark)
    assert done.returncode == 1
    assert "is Java 8, too old; install a Java 17 or newer" in done.stderr


def test_java_missing(spark: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "does not run" in build_py(spark).stderr
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java on the PATH" in build_py(spark).stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_cache_that_cannot_be_written(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HRM_HOME", str(tmp_path / "home"))
    assert "set HRM_HOME" in build_py(spark).stderr
