"""The slow store that tasks read from: built from ``paced/PacedFileSystem.scala``, set by settings.

A machine with two cores cannot run 18 slots of computing tasks. It can run 18 slots whose tasks
mostly wait for their input, as tasks on a remote store do. So the input is paced: every task gets
so many bytes a second, and the slot, not the core, is what applications compete for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from benchmarks.clusters import spark_home
from benchmarks.processes import BenchmarkError

__all__ = ["paced", "paced_jar", "paced_settings"]

_SOURCE = Path(__file__).resolve().parent / "paced" / "PacedFileSystem.scala"
_COMPILER = ("scala-compiler", "scala-library", "scala-reflect")
_COMPILE_TIMEOUT_S = 300.0


def paced(path: Path) -> str:
    """The name by which tasks read a local file, or what is in a directory, at a bounded rate."""
    return f"paced://{path.resolve()}"


def paced_settings(jar: Path, bytes_per_s: int, split_bytes: int) -> dict[str, str]:
    """Settings of an application whose tasks read so fast, and so much each.

    A file of at most ``split_bytes`` is one task by itself.
    """
    return {
        "spark.jars": jar.as_uri(),
        "spark.hadoop.fs.paced.impl": "hrm.benchmarks.PacedFileSystem",
        "spark.hadoop.fs.paced.bytes-per-s": str(bytes_per_s),
        "spark.sql.files.maxPartitionBytes": str(split_bytes),
        "spark.sql.files.openCostInBytes": str(split_bytes),
    }


def paced_jar(cache: Path) -> Path:
    """The jar of the paced file system for this Spark; compiled once, by Spark's own compiler.

    Raises:
        BenchmarkError: it does not compile.
    """
    jars = spark_home() / "jars"
    core = next(iter(sorted(jars.glob("spark-core_*.jar"))), None)
    if core is None:
        raise BenchmarkError(f"no spark-core jar in {jars}")
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    jar = cache / f"paced-{core.stem}-{digest}.jar"
    if not jar.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            _compile(jars, Path(work))
            half = jar.with_name(f"{jar.name}.{os.getpid()}")
            with zipfile.ZipFile(half, "w") as archive:
                for path in sorted(Path(work).rglob("*.class")):
                    archive.write(path, path.relative_to(work))
            half.replace(jar)
    return jar


def _compile(jars: Path, target: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    compiler = [next(iter(jars.glob(f"{name}-*.jar")), None) for name in _COMPILER]
    if java is None or None in compiler:
        raise BenchmarkError(f"no java on the PATH, or no Scala compiler in {jars}")
    command = [
        java, "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", os.pathsep.join(map(str, compiler)), "scala.tools.nsc.Main",
        "-cp", os.pathsep.join(map(str, sorted(jars.glob("*.jar")))),
        "-nowarn", "-d", str(target), str(_SOURCE),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{_SOURCE.name}: not compiled in {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise BenchmarkError(f"{_SOURCE.name} does not compile:\n{done.stdout}{done.stderr}")
