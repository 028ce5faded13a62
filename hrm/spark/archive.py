# ruff: noqa: PTH100, PTH105, PTH111, PTH116, PTH118
# ruff: noqa: PTH120, PTH123, PTH208
"""Class-data archives: the loaded classes of Spark, saved by one JVM for later ones.

Half of an executor's start is loading classes. A JVM can save them as it ends (a dynamic AppCDS
archive) for another to map, if it is the same Java and its class path begins with the same jars in
the same order; otherwise Java silently continues without. All agents and drivers of a machine share
directory per key, which is made from the Java, the jars with their sizes and times, and the
training's parameters:

    $HRM_HOME/archives/<Spark's version>-<key>/
        executor.jsa, driver.jsa    some 50 MB each
        state.json                  ready or failed, how often tried, the problem, the files' sizes
        lock                        held by the trainer (``hrm.spark.archive_training``)

A file is used only if ``state.json`` confirms it: it was tested with a real JVM, has not changed
since, and only its owner, root or this user can change it, because it contains code.

This file runs at every ``spark-submit``, as ``python -I -S archive.py …``, and prints the driver's
Java options. Like ``build.py`` it imports little.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence

__all__ = [
    "HEAP_LIMIT_MIB",
    "Archives",
    "argument_file",
    "class_path",
    "flags",
    "obstacle",
    "write_json",
]

HEAP_LIMIT_MIB = 32 * 1024
"""From this heap size on, Java does not compress pointers, while the archive does."""

KINDS = ("executor", "driver")
STATE_FILE = "state.json"
LOCK_FILE = "lock"
UNFINISHED = "unfinished"
_FORMAT = 1
_HERE = os.path.dirname(os.path.abspath(__file__))
_OBSTACLES = re.compile(
    r"-XX:\+UseZGC|-XX:-UseCompressed|-XX:ObjectAlignmentInBytes|-XX:SharedArchiveFile|"
    r"-XX:ArchiveClassesAtExit|-XX:SharedClassListFile|-Xshare|-Xbootclasspath|"
    r"--patch-module|--upgrade-module-path|--limit-modules|-Djava\.system\.class\.loader|"
    r"-classpath\b|-cp\b|--class-path|-Djava\.class\.path"
)
_HEAP = re.compile(r"-Xmx(\d+)([kKmMgGtT]?)$|-XX:MaxHeapSize=(\d+)([kKmMgGtT]?)$")
_KIB = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}


def flags(archive: str) -> list[str]:
    """Java's options to use ``archive`` where it fits, and to suppress messages where it does not:
    Java prints these to standard output, which other programs parse."""
    return [
        f"-XX:SharedArchiveFile={archive}",
        "-Xshare:auto",
        "-Xlog:cds*=off",
        "-Xlog:class+path=off",
    ]


def obstacle(options: Iterable[str], heap_mib: int = 0) -> str:
    """Why a JVM with these options and this heap cannot use an archive; empty: it can."""
    for option in options:
        if _OBSTACLES.match(option):
            return f"the Java option {option.partition('=')[0]}"
        heap = _HEAP.match(option)
        if heap:
            number, unit = (heap[1], heap[2]) if heap[1] else (heap[3], heap[4])
            kib = int(number) * _KIB[unit.lower()] if unit else int(number) >> 10
            heap_mib = max(heap_mib, kib >> 10)
    if heap_mib >= HEAP_LIMIT_MIB:
        return f"a heap of {heap_mib} MiB, where Java's pointers are not compressed"
    return ""


def class_path(spark_home: str) -> list[str]:
    """Every jar of a Spark, in the one order that archives are made and used with."""
    jars = os.path.join(os.path.realpath(spark_home), "jars")
    return [os.path.join(jars, name) for name in sorted(os.listdir(jars)) if name.endswith(".jar")]


def argument_file(arguments: Iterable[str]) -> str:
    """The text of a file that Java reads its arguments from, as ``java @FILE``."""
    quoted = (a.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for a in arguments)
    return "".join(f'"{argument}"\n' for argument in quoted)


class Archives:
    """The archives of one Java and one Spark in the directory ``root``. Creates nothing itself.

    ``java``: the command; ``key`` is made from files' sizes and times, without starting it.
    """

    def __init__(self, root: str, java: str, spark_home: str) -> None:
        self.root = os.path.abspath(root)
        self.java = os.path.realpath(java)
        self.spark_home = os.path.realpath(spark_home)
        self.jars = class_path(spark_home)
        core = next(
            (j for j in map(os.path.basename, self.jars) if j.startswith("spark-core_")), ""
        )
        self.spark_version = core.removesuffix(".jar").partition("-")[2].partition("-")[2]
        self.key = self._key()
        self.directory = os.path.join(self.root, f"{self.spark_version}-{self.key}")

    def _key(self) -> str:
        digest = hashlib.sha256(f"{_FORMAT} compressed {self.java}\n".encode())
        home = os.path.dirname(os.path.dirname(self.java))
        known = ("release", "lib/modules", "lib/server/libjvm.so", "lib/server/classes.jsa")
        with open(os.path.join(_HERE, "rehearsal.py"), "rb") as file:
            digest.update(file.read())
        for path in (self.java, *(os.path.join(home, name) for name in known), *self.jars):
            digest.update(_identity(path).encode())
        return digest.hexdigest()[:20]

    def path(self, kind: str) -> str:
        return os.path.join(self.directory, f"{kind}.jsa")

    def state(self) -> dict[str, object]:
        """The contents of ``state.json``; empty where there is none."""
        try:
            with open(os.path.join(self.directory, STATE_FILE)) as file:
                document = json.load(file)
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def problem(self, kind: str) -> str:
        """Why ``path(kind)`` cannot be used; empty: it can, as far as its files show."""
        state = self.state()
        if state.get("state") != "ready":
            problem_found = state.get("problem")
            if problem_found and state.get("state") == UNFINISHED:
                return str(problem_found)
            return f"its training failed: {problem_found}" if problem_found else "there is none yet"
        path = self.path(kind)
        try:
            for place in (self.directory, path):
                status = os.stat(place)
                if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                    return f"another user could have written {place}"
        except OSError as error:
            return f"{path}: {error.strerror}"
        if state.get(kind) != [status.st_size, status.st_mtime_ns]:
            return f"{path} has changed since it was made"
        return ""

    def training(self) -> bool:
        """Whether a training runs right now."""
        try:
            with open(os.path.join(self.directory, LOCK_FILE)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def write_json(path: str, document: dict[str, object]) -> None:
    """Write ``document`` so that a reader sees all of it or nothing. All users may read it."""
    half = f"{path}.{os.getpid()}"
    with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as file:
        json.dump(document, file)
    os.replace(half, path)


def _identity(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return f"{path} -\n"
    return f"{path} {status.st_size} {status.st_mtime_ns}\n"


# --- the driver, where spark-submit runs ----------------------------------------------------------


def driver_options(spark_home: str, conf_dir: str, arguments: Sequence[str]) -> list[str]:
    """The Java options of a driver that spark-submit starts with ``arguments``; empty: no change.

    Spark puts its configuration directory before its jars, which disables the archive. These
    options follow Spark's, and take precedence: the same entries, with the jars first. No file of a
    configuration directory is also in Spark's jars.
    """
    if os.environ.get("SPARK_PREPEND_CLASSES") or not _usual(conf_dir, arguments):
        return []
    home = os.environ.get("JAVA_HOME")
    path = [os.path.join(home, "bin")] if home else os.get_exec_path()
    java = next((j for p in path if os.access(j := os.path.join(p, "java"), os.X_OK)), "")
    if not java:
        return []
    for root in _roots():
        archives = Archives(root, java, spark_home)
        if not archives.problem("driver"):
            break
    else:
        return []
    after = [conf_dir.rstrip("/") + "/" if conf_dir else ""]
    after += [os.environ.get(n, "") for n in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    after += [os.environ.get("SPARK_DIST_CLASSPATH", "")]
    class_path = os.pathsep.join([*archives.jars, *filter(None, after)])
    return [*flags(archives.path("driver")), "-cp", class_path]


def _roots() -> list[str]:
    """Where the archives of this user's and of the cluster in use may be."""
    token = os.environ.get("HRM_TOKEN_FILE")
    homes = [os.environ.get("HRM_HOME") or os.path.expanduser("~/.hrm")]
    homes += [os.path.dirname(token)] if token else []
    return [os.path.join(os.path.expanduser(home), "archives") for home in homes]


_UNUSUAL = re.compile(
    r"spark\.driver\.(extra|defaultExtra)ClassPath|--driver-class-path|--load-spark-defaults"
)
_MEMORY = re.compile(r"(?:spark\.driver\.memory[=:\s]+)?(\d+)([gGtT])[bB]?\s*")
_OPTIONS = re.compile(r"[\s=\"']+")


def _usual(conf_dir: str, arguments: Sequence[str]) -> bool:
    """Whether nothing here changes the class path or requires another archive. In doubt, False."""
    texts = list(arguments)
    named = [a for b, a in itertools.pairwise(arguments) if b == "--properties-file"]
    named += [a.partition("=")[2] for a in arguments if a.startswith("--properties-file=")]
    for path in named or [os.path.join(conf_dir, "spark-defaults.conf")]:
        try:
            with open(path, errors="replace") as file:
                texts += [line.strip() for line in file if not line.lstrip().startswith("#")]
        except OSError:
            continue
    texts.append(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    texts.append(f"spark.driver.memory={os.environ.get('SPARK_DRIVER_MEMORY', '')}")
    memory_next = False
    for text in texts:
        if _UNUSUAL.search(text) or obstacle(_OPTIONS.split(text)):
            return False
        if memory_next or "spark.driver.memory" in text or text.startswith("--driver-memory="):
            size = _MEMORY.fullmatch(text.removeprefix("--driver-memory="))
            if size and int(size[1]) * _KIB[size[2].lower()] >> 10 >= HEAP_LIMIT_MIB:
                return False
        memory_next = text == "--driver-memory"
    return True


def main(arguments: list[str]) -> int:
    """Print the options, as lines of a file of arguments; nothing where none are to be used."""
    if len(arguments) < 2:
        sys.stderr.write("usage: archive.py SPARK_HOME CONF_DIR ARGUMENT...\n")
        return 2
    try:
        sys.stdout.write(argument_file(driver_options(arguments[0], arguments[1], arguments[2:])))
    except OSError:
        return 0  # an optimisation is no reason to fail
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
