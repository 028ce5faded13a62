"""Which warm JVM can become which executor: what is fixed at its start, and what is set late.

Fixed are heap, Java's options, jars, directories of Java and Spark; they make a ``WarmProfile``.
Set late are secrets, variables of Python and Spark, a few properties, the arguments. An executor
with other demands fits no warm JVM.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from hrm.spark.archive import argument_file
from hrm.spark.launch import ARGUMENT_FILE, EXECUTOR_CLASS, Launch

__all__ = ["WarmProfile", "order_of", "profile_of"]

_LATE_VARIABLES = re.compile(
    r"_SPARK_AUTH_SECRET|SPARK_USER|SPARK_LOG_URL_(STDOUT|STDERR)|SPARK_EXECUTOR_\w+|PYTHON\w*|"
    r"PYSPARK_\w+|SPARK_LOCAL_DIRS|TMPDIR|HRM_CONTAINER_ID|HRM_DRIVER_PYTHON"
)
_FIXED_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|LANG|LC_ALL|LC_CTYPE|TZ|PATH|LD_LIBRARY_PATH|JAVA_HOME|SPARK_HOME|"
    r"CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|HADOOP_CONF_DIR|YARN_CONF_DIR"
)
_LATE_PROPERTIES = re.compile(
    r"-D(spark\.(?:[\w.]+\.port|authenticate|decommission\.enabled|network\.timeout|"
    r"network\.crypto\.[\w.]+|rpc\.[\w.]+))=(.*)",
    re.DOTALL,
)
_FIXED_OPTIONS = re.compile(
    r"-Xm[sx]\d+m|-XX:ActiveProcessorCount=\d+|-XX:\+IgnoreUnrecognizedVMOptions|"
    r"--add-(modules|opens|exports)=\S+|"
    r"--enable-native-access=\S+|--sun-misc-unsafe-memory-access=allow|"
    r"-Djava\.net\.preferIPv6Addresses=(true|false)|-Djdk\.reflect\.useDirectMethodHandle=false|"
    r"-Dio\.netty\.[\w.]+=\w+"
)
_KERBEROS = "-Dspark.hadoop.hadoop.security.authentication=kerberos"
"""A warm JVM has settled before its assignment how users prove who they are."""
_HEAP = re.compile(r"-Xmx(\d+)m")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmProfile:
    """What is fixed when a JVM starts. ``arguments``: the text of its file of arguments."""

    java: str
    arguments: str
    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def heap_mib(self) -> int:
        """The heap's largest size; 0: Java's own choice."""
        found = [int(match[1]) for match in map(_HEAP.fullmatch, self.options) if match]
        return found[-1] if found else 0


def profile_of(launch: Launch, class_path: str) -> WarmProfile | str:
    """The warm JVM that could be this executor; text: why none. ``class_path``: the node's, which
    every executor has that names no entries of its own."""
    if EXECUTOR_CLASS not in launch.argv:
        return "it is no executor"
    if set(launch.files) != {ARGUMENT_FILE}:
        return "it has a file of resources"
    arguments = launch.files[ARGUMENT_FILE]
    if not arguments.endswith(argument_file(["-cp", class_path])):
        return "it has class path entries of its own"
    fixed = []
    for option in launch.argv[1 : launch.argv.index(EXECUTOR_CLASS)]:
        if option.startswith(("@", "-Djava.io.tmpdir=")) or _LATE_PROPERTIES.fullmatch(option):
            continue
        if option == _KERBEROS:
            return "it uses Kerberos"
        if not _FIXED_OPTIONS.fullmatch(option):
            return f"it has the Java option {option.partition('=')[0]}"
        fixed.append(option)
    environment = []
    for name, value in sorted(launch.environment.items()):
        if _FIXED_VARIABLES.fullmatch(name):
            environment.append((name, value))
        elif not _LATE_VARIABLES.fullmatch(name):
            return f"it has the environment variable {name}"
    return WarmProfile(
        java=launch.argv[0],
        arguments=arguments,
        options=tuple(fixed),
        environment=tuple(environment),
    )


def order_of(document: dict[str, Any]) -> dict[str, Any]:
    """The order to the shim of a warm JVM, from the document that any other shim would get."""
    argv = list(document["argv"])
    first = argv.index(EXECUTOR_CLASS)
    late = (_LATE_PROPERTIES.fullmatch(option) for option in argv[:first])
    line = {
        "environment": document["environment"],
        "properties": {match[1]: match[2] for match in late if match},
        "arguments": argv[first + 1 :],
    }
    kept = ("work_dir", "cgroup_files", "log_bytes_max", "log_files_max", "grace_s")
    return {**{name: document[name] for name in kept}, "input": json.dumps(line)}
