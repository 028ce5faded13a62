"""What all tests with a real Spark share in one run: the compiled plugin, a Java that starts fast,
and archives of Spark's classes.

Tests start hundreds of JVMs, and each lives for seconds: most of its time goes into loading classes
and into an optimising compiler whose code then hardly runs. Here ``java`` is a script that starts
the machine's own with its first compiler alone, and classes come from HRM's own archives, which
`hrm env --archive` makes once: a driver's start takes a third of the time. Command lines that
name another compiler or archive take precedence.

Tests make what is missing as they need it; ``python -m tests.spark_tools`` makes it before, so that
no process of theirs has to wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hrm.spark.archive import KINDS, Archives
from hrm.spark.launch import find_java, find_spark

__all__ = [
    "ARCHIVES_FROM",
    "SparkTools",
    "executor_archive",
    "kept_for_later_runs",
    "variables_of_users",
]

REPOSITORY = Path(__file__).parents[1]
HRM = REPOSITORY / "hrm"
CACHE = REPOSITORY / ".pytest_cache" / "d" / "spark-tools"
"""Where pytest keeps what ``config.cache.mkdir("spark-tools")`` has."""

ARCHIVES_FROM = 8
"""Tests with a real Spark in a run from which on making archives, some 40 s, pays."""
QUICK = ("-XX:TieredStopAtLevel=1",)
TRAINING_LIMIT_S = 400.0


def kept_for_later_runs(root: Path) -> Path:
    """A directory below ``root`` for tools that code as it is now has made. Any change of that code
    leads to another one, where all is made again; the last two stay."""
    digest = hashlib.sha256(sys.executable.encode())
    for source in (Path(__file__), HRM / "cli" / "spark.py", *sorted((HRM / "spark").glob("*.py"))):
        digest.update(source.read_bytes())
    own = root / digest.hexdigest()[:16]
    own.mkdir(exist_ok=True)
    os.utime(own)
    for old in sorted(root.iterdir(), key=lambda path: path.stat().st_mtime)[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    return own


def machines_java() -> Path | None:
    """The home of the Java that would be used without these tools; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return Path(found).resolve().parent.parent if found else None


class SparkTools:
    """Shared by all processes of a run, below ``directory``; by many runs where it is kept."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.machines_java = machines_java()
        """Its home: for processes of users that may not enter ``directory``."""
        self.archives_ready = False
        for name in ("plugins", "archives"):
            (directory / name).mkdir(exist_ok=True)
        if self.machines_java is not None:
            with self._alone():
                self._write_java(self.machines_java)

    @property
    def plugins(self) -> Path:
        """Where the compiled plugin is kept: once is enough. Its build takes a lock of its own."""
        return self._directory / "plugins"

    @property
    def archives(self) -> Path:
        return self._directory / "archives"

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What to change in the environment ``given``."""
        changed = {
            "HRM_AGENT_CLASS_ARCHIVE": str(self.archives_ready).lower(),
            "HRM_AGENT_ARCHIVE_DIR": str(self.archives),
        }
        if self.machines_java is not None:
            java = self._directory / "java"
            changed["PATH"] = f"{java / 'bin'}{os.pathsep}{given.get('PATH', os.defpath)}"
            if "JAVA_HOME" in given:
                changed["JAVA_HOME"] = str(java)
            # Without JAVA_HOME, Spark's launcher starts a driver with the Java that runs itself.
            changed["SPARK_SUBMIT_OPTS"] = " ".join(QUICK)
        return changed

    def furnish(self, home: Path) -> None:
        """Put what is here into an ``HRM_HOME``."""
        home.mkdir(parents=True, exist_ok=True)
        (home / "plugins").symlink_to(self.plugins)
        if self.archives_ready:
            (home / "archives").symlink_to(self.archives)

    def use_archives(self, *, make: bool) -> None:
        """If there are archives; ``make``: otherwise make them, and let other processes wait."""
        with self._alone():
            if make:
                self._make_archives()
            java = self._directory / "java" / "bin" / "java"
            archives = Archives(str(self.archives), str(java), str(find_spark().home))
            self.archives_ready = not any(map(archives.problem, KINDS))

    def _make_archives(self) -> None:
        environment = {**os.environ, "HRM_HOME": str(self._directory)}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hrm.cli", "env", "--archive"],
            env=environment | self.environment(environment), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TRAINING_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"no archives of Spark's classes: {done.stderr}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write_java(self, home: Path) -> None:
        """All of ``home``, but for the program ``java``. Archives are made for a file and its time:
        one that is right stays."""
        copy = self._directory / "java"
        program = copy / "bin" / "java"
        real = shlex.join([str(home / "bin" / "java"), *QUICK])
        text = f'#!/bin/sh\nexec {real} "$@"\n'
        if program.is_file() and program.read_text() == text:
            return
        shutil.rmtree(copy, ignore_errors=True)
        program.parent.mkdir(parents=True)
        for place, into in ((home, copy), (home / "bin", program.parent)):
            for entry in place.iterdir():
                if entry.name not in ("bin", "java"):
                    (into / entry.name).symlink_to(entry)
        program.write_text(text)
        program.chmod(0o755)


def executor_archive() -> str:
    """The archive for executors in this process's ``HRM_HOME``; empty where there is none."""
    root = Path(os.environ["HRM_HOME"]) / "archives"
    archives = Archives(str(root), str(find_java().command), str(find_spark().home))
    return "" if archives.problem("executor") else archives.path("executor")


def variables_of_users() -> list[str]:
    """What the environment has of HRM's and Spark's, which no test may depend on."""
    return [x for x in os.environ if x.startswith("HRM_") or x in ("SPARK_HOME", "SPARK_CONF_DIR")]


def main() -> None:
    """Make all of it where the next run of tests looks for it."""
    kept = os.environ.get("HRM_TEST_ARCHIVES")
    for name in variables_of_users():
        del os.environ[name]
    CACHE.mkdir(parents=True, exist_ok=True)
    SparkTools(Path(kept) if kept else kept_for_later_runs(CACHE)).use_archives(make=True)


if __name__ == "__main__":
    main()
