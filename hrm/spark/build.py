# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH110, PTH111, PTH115, PTH116, PTH118
# ruff: noqa: PTH119, PTH120, PTH123, PTH208
"""Compile the Spark plugin once per Spark, and print its path.

The plugin uses Spark's private interfaces, so it is compiled against the very jars it runs with, by
the compiler that is among them. The result is kept in ``$HRM_HOME/plugins`` (``~/.hrm/plugins``)
under a name made from Spark's version, its core jar and the sources. One unused for ``KEPT_S`` is
removed when another is built, unless it is among the ``KEPT_MAX`` most recently used, or open in a
program of this machine. Every use sets its access time, because a file system may not.

This file runs at every ``spark-submit`` as ``python -I -S build.py SPARK_HOME``; with ``--built``,
where no master is known yet, it prints the jar only if there is one. It imports what a
hit in the cache needs and nothing more, not even pathlib.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

TYPE_CHECKING = False  # as in typing, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

__all__ = ["BuildError", "built_jar", "has_hadoop", "plugin_jar"]

COMPILE_TIMEOUT_S = 300
LOCK_LIMIT_S = 360.0
LOCK_PERIOD_S = 0.1
KEPT_MAX = 4
KEPT_S = 30 * 24 * 3600.0
JAVA_VERSION_MIN = 17
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin")
PREFIX = "hrm-plugin-"
SERVICE = "META-INF/services/org.apache.spark.scheduler.ExternalClusterManager"
PROVIDERS = (
    "org.apache.spark.scheduler.cluster.hrm.HrmClusterManager",
    "org.apache.spark.scheduler.cluster.hrm.RehearsalClusterManager",
)
HADOOP_JARS = ("hadoop-client-api-", "hadoop-common-")
COMPILER_JARS = ("scala-compiler", "scala-library", "scala-reflect")


class BuildError(Exception):
    """The plugin cannot be built; the message is one line for the user."""


def plugin_jar(
    spark_home: str, sources: str = SOURCES, cache: str | None = None, dist: str = ""
) -> str:
    """The path of the plugin's jar for the Spark in ``spark_home``; compiles it if there is none.

    ``dist``: the class path with Hadoop's classes, for a Spark that comes without them; empty:
    ``$SPARK_DIST_CLASSPATH``.

    Raises:
        BuildError: there is no Spark, no compiler or no Hadoop in it, no suitable Java, or the
            compiler fails.
    """
    jar, compile_it = _plan(spark_home, sources, cache, dist)
    if not _use(jar):
        compile_it()
    return jar


def built_jar(spark_home: str, sources: str = SOURCES, cache: str | None = None) -> str | None:
    """The path of that jar, if it has been built; nothing is compiled.

    Raises:
        BuildError: there is no Spark.
    """
    jar, _ = _plan(spark_home, sources, cache, "")
    return jar if _use(jar) else None


def _plan(
    spark_home: str, sources: str, cache: str | None, dist: str
) -> tuple[str, Callable[[], None]]:
    """Where the jar is, or will be; and what builds it."""
    jars = os.path.join(spark_home, "jars")
    try:
        names = sorted(os.listdir(jars))
    except OSError as error:
        raise BuildError(
            f"{spark_home} is not a Spark installation ({error.strerror}: {jars}); set SPARK_HOME"
        ) from None
    core = next((n for n in names if n.startswith("spark-core_") and n.endswith(".jar")), None)
    if core is None:
        raise BuildError(f"no spark-core jar in {jars}; set SPARK_HOME to a Spark 3.5 or newer")
    texts = _read_sources(sources)
    hadoop = "" if has_hadoop(names) else dist or os.environ.get("SPARK_DIST_CLASSPATH", "")
    home = os.path.expanduser(os.environ.get("HRM_HOME") or "~/.hrm")
    jar = os.path.join(cache or f"{home}/plugins", _key(jars, core, texts, hadoop) + ".jar")
    return jar, lambda: _build_once(jar, jars, names, core, texts, hadoop)


def has_hadoop(names: Iterable[str]) -> bool:
    """Whether a Spark with jars of these names comes with Hadoop's classes."""
    return any(name.startswith(HADOOP_JARS) for name in names)


def _use(jar: str) -> bool:
    """Whether it exists; if so, mark it as used now. Its modification time stays, because Java
    checks it."""
    try:
        changed_ns = os.stat(jar).st_mtime_ns
    except OSError:
        return False
    try:  # noqa: SIM105 - contextlib takes long to import
        os.utime(jar, ns=(time.time_ns(), changed_ns))
    except OSError:
        pass  # another user's, whose own uses keep it
    return True


def _read_sources(directory: str) -> list[tuple[str, bytes]]:
    texts = []
    for name in sorted(os.listdir(directory)):
        if name.endswith(".scala"):
            with open(os.path.join(directory, name), "rb") as file:
                texts.append((os.path.join(directory, name), file.read()))
    if not texts:
        raise BuildError(f"no plugin sources in {directory}; reinstall hrm-spark")
    return texts


def _key(jars: str, core: str, texts: list[tuple[str, bytes]], hadoop: str = "") -> str:
    status = os.stat(os.path.join(jars, core))
    digest = hashlib.sha256(
        f"{os.path.realpath(jars)} {status.st_size} {status.st_mtime_ns} {PROVIDERS}".encode()
    )
    for path, text in texts:
        digest.update(f"{os.path.basename(path)} {len(text)} ".encode())
        digest.update(text)
    digest.update(hadoop.encode())
    version = core[len("spark-core_") : -len(".jar")]
    return f"{PREFIX}{version}-{digest.hexdigest()[:20]}"


def _build_once(
    jar: str, jars: str, names: list[str], core: str, texts: list[tuple[str, bytes]], hadoop: str
) -> None:
    """Builds under a lock, so that drivers that start together compile once."""
    try:
        os.makedirs(os.path.dirname(jar), mode=0o700, exist_ok=True)
        lock = open(jar + ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise BuildError(
            f"cannot write {error.filename} ({error.strerror}); set HRM_HOME to a directory "
            f"of yours"
        ) from None
    with lock:
        _take(lock)
        if not os.path.exists(jar):
            _compile(jar, jars, names, core, texts, hadoop)
            _forget_old(os.path.dirname(jar))


def _take(lock: TextIO) -> None:
    """Waits for the process that compiles, for a limited time that exceeds a compilation's."""
    import fcntl

    begun = time.monotonic()
    reported = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() - begun > LOCK_LIMIT_S:
                raise BuildError(
                    f"another program has been compiling the plugin for {LOCK_LIMIT_S:.0f} s, or "
                    f"has been stopped at it; end it, or remove {lock.name}"
                ) from None
        if not reported:
            sys.stderr.write("HRM: waiting for another program that compiles the plugin …\n")
            sys.stderr.flush()
            reported = True
        time.sleep(LOCK_PERIOD_S)


def _compile(
    jar: str, jars: str, names: list[str], core: str, texts: list[tuple[str, bytes]], hadoop: str
) -> None:
    import shutil
    import subprocess
    import tempfile

    compiler = _compiler_jars(jars, names)
    if not hadoop and not has_hadoop(names):
        raise BuildError(
            f"the Spark of {jars} comes without Hadoop; name Hadoop's jars: export "
            f"SPARK_DIST_CLASSPATH=$(hadoop classpath), for an agent dist_classpath of [agent]"
        )
    libraries = [os.path.join(jars, name) for name in names if name.endswith(".jar")]
    java = _java()
    version = core[len("spark-core_") : -len(".jar")].partition("-")[2]
    sys.stderr.write(f"HRM: compiling the plugin for Spark {version}, once; some 15 seconds …\n")
    sys.stderr.flush()
    begun = time.monotonic()
    work = tempfile.mkdtemp(dir=os.path.dirname(jar), prefix="build-")
    log = jar[: -len(".jar")] + ".log"
    try:
        command = [
            java, "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-cp", os.pathsep.join(compiler), "scala.tools.nsc.Main",
            "-cp", os.pathsep.join([*libraries, *filter(None, [hadoop])]),
            "-d", work, "-nowarn", *(path for path, _ in texts),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                timeout=COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BuildError(
                f"compiling the plugin took more than {COMPILE_TIMEOUT_S} s; try again on a "
                f"machine less busy"
            ) from None
        if done.returncode != 0:
            output = done.stdout.decode(errors="replace")
            with open(log, "w") as file:
                file.write(output)
            sys.stderr.write(output)
            raise BuildError(
                f"the plugin does not compile against Spark {version}; HRM supports Spark 3.5 to "
                f"4.x; the compiler's message is in {log}"
            )
        _pack(work, jar)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.stderr.write(f"HRM: compiled in {time.monotonic() - begun:.0f} s: {jar}\n")


def _forget_old(directory: str) -> None:
    """Remove old jars, since every change of the sources, or of Spark, leaves one behind. What
    cannot be removed now is tried again after the next build."""
    import contextlib

    used_s = {}
    for name in os.listdir(directory):
        if name.startswith(PREFIX) and name.endswith(".jar"):
            with contextlib.suppress(OSError):  # another process may remove it now
                jar = os.path.join(os.path.realpath(directory), name)
                used_s[jar] = _used_s(jar)
    oldest_s = time.time() - KEPT_S
    by_use = sorted(used_s, key=used_s.__getitem__, reverse=True)
    old = [jar for jar in by_use[KEPT_MAX:] if used_s[jar] < oldest_s]
    in_use = _open_files() if old else set()
    for jar in old:
        if jar not in in_use:
            _remove(jar, oldest_s)


def _used_s(jar: str) -> float:
    status = os.stat(jar)
    return max(status.st_atime, status.st_mtime)


def _open_files() -> set[str]:
    """Files that programs of this machine have open, as far as this user may see them."""
    import contextlib

    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ends, or is another user's
            for number in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    found.add(os.readlink(f"/proc/{process}/fd/{number}"))
    return found


def _remove(jar: str, oldest_s: float) -> None:
    """Remove a jar, unless it is being built, or has been used since the check."""
    import contextlib
    import fcntl

    with contextlib.suppress(OSError), open(f"{jar}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _used_s(jar) < oldest_s:
            os.unlink(jar)
            os.unlink(lock.name)


def _compiler_jars(jars: str, names: list[str]) -> list[str]:
    found = []
    for wanted in COMPILER_JARS:
        name = next((n for n in names if n.startswith(wanted + "-") and n.endswith(".jar")), None)
        if name is None:
            raise BuildError(
                f"no {wanted} jar in {jars}: this Spark comes without its compiler; use a full "
                f"Spark distribution, such as pyspark from PyPI"
            )
        found.append(os.path.join(jars, name))
    return found


def _java() -> str:
    import re
    import shutil
    import subprocess

    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    hint = f"install a Java {JAVA_VERSION_MIN} or newer, and set JAVA_HOME to it"
    if java is None:
        raise BuildError(f"no java on the PATH; {hint}")
    try:
        done = subprocess.run(
            [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{java} does not run ({error}); {hint}") from None
    text = done.stdout.decode(errors="replace")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if done.returncode != 0 or match is None:
        raise BuildError(f"{java} -version fails; {hint}")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < JAVA_VERSION_MIN:
        raise BuildError(f"{java} is Java {major}, too old; {hint}")
    return java


def _pack(classes: str, jar: str) -> None:
    """Writes the jar next to its place, then moves it there: a partial one is never visible."""
    import zipfile

    half = f"{jar}.{os.getpid()}"
    with zipfile.ZipFile(half, "w", zipfile.ZIP_STORED) as archive:
        for directory, _, files in sorted(os.walk(classes)):
            for name in sorted(files):
                path = os.path.join(directory, name)
                archive.write(path, os.path.relpath(path, classes))
        archive.writestr(SERVICE, "\n".join(PROVIDERS) + "\n")
    os.replace(half, jar)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[:-1] not in ([], ["--built"]):
        sys.stderr.write("usage: build.py [--built] SPARK_HOME\n")
        return 2
    try:
        jar = plugin_jar(arguments[0]) if len(arguments) == 1 else built_jar(arguments[1])
        if jar:
            print(jar)
    except BuildError as error:
        sys.stderr.write(f"HRM: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"HRM: the plugin cannot be built: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
