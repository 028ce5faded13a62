"""From a container's specification to the command that becomes a Spark executor.

The executor of every Spark is the class ``CoarseGrainedExecutorBackend`` in its jars, so a node
needs nothing but a Spark of exactly the driver's version, of which it may have several, and a Java
17 or newer. The master places by these versions (``runtime_of``); what is checked here is the last.

The class path is every jar of that Spark in one fixed order, which lets executors use an archive of
its classes (``hrm.spark.archive``), followed by the node's configuration directories
(``hrm.spark.node_conf``). Entries of ``spark.executor.extraClassPath`` precede it, so
that they can replace classes of Spark's jars; that disables the archive. Secrets are passed in the
environment, never in the arguments, which every user of a machine can read.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm.core.vocabulary.model import ContainerSpec, Gpu, LaunchContext
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.errors import InvalidConfig, LaunchFailed, Misplaced
from hrm.spark import archive as archives
from hrm.spark.node_conf import NO_CONF, NodeConf
from hrm.spark.ui_links import Role, ui_variables

__all__ = [
    "Java",
    "Launch",
    "Spark",
    "executor_launch",
    "find_java",
    "find_spark",
    "find_sparks",
    "gpu_environment",
    "runtime_of",
    "spark_of",
]

EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
JAVA_VERSION_MIN = 17
RESOURCES_FILE = "resources.json"
ARGUMENT_FILE = "java.args"
_JAVA_LIMIT_S = 20.0
_CORE_JAR = re.compile(r"spark-core_(?P<scala>[\d.]+)-(?P<version>.+)\.jar")
PROCESSORS_OPTION = "-Dspark.executor.limitActiveProcessorCount.enabled=true"
"""Among an application's Java options: its executors' JVMs count their cores, not the machine's."""
_INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """One Spark on this machine."""

    home: Path
    version: str
    python_path: tuple[Path, ...]
    scala: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """One Java runtime on this machine; ``home`` is None where only a ``java`` command is known."""

    command: Path
    home: Path | None
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the shim starts."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    files: dict[str, str] = field(default_factory=dict)
    """Small text files for the work directory, by name; written before the start."""


def find_spark(home: Path | None = None) -> Spark:
    """The Spark of this node: ``home``, else ``$SPARK_HOME``, else that of the package pyspark.

    Raises:
        InvalidConfig: there is none, or it has no jars.
    """
    named = home or (Path(os.environ["SPARK_HOME"]) if os.environ.get("SPARK_HOME") else None)
    return _spark_at(named.resolve() if named else _pyspark_home())


def _pyspark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidConfig(
            "no Spark on this node: set SPARK_HOME or --spark-home, or install one with "
            "pip install 'hrm-spark[spark]'"
        )
    return Path(found.origin).resolve().parent


@functools.cache
def _spark_at(home: Path) -> Spark:
    jars = sorted((home / "jars").glob("spark-core_*.jar"))
    matched = _CORE_JAR.fullmatch(jars[0].name) if jars else None
    if matched is None:
        raise InvalidConfig(
            f"{home} is no Spark: it has no jars/spark-core_*.jar; set SPARK_HOME or --spark-home "
            f"to the directory that holds jars/"
        )
    library = home / "python" / "lib"
    python_path = [p for p in (library / "pyspark.zip",) if p.is_file()]
    python_path += sorted(library.glob("py4j-*-src.zip"))
    return Spark(
        home=home,
        version=matched["version"],
        python_path=tuple(python_path),
        scala=matched["scala"],
    )


def find_sparks(home: Path | None, more: Sequence[Path]) -> tuple[Spark, ...]:
    """The Sparks of this node: the one that ``find_spark`` finds, which is the default, and those
    in the directories ``more``.

    Raises:
        InvalidConfig: there is none, one has no jars, or two are of one version.
    """
    sparks = [find_spark(home)]
    for place in more:
        spark = _spark_at(place.resolve())
        twin = next((x for x in sparks if x.version == spark.version), None)
        if twin is None:
            sparks.append(spark)
        elif twin.home != spark.home:
            raise InvalidConfig(
                f"{twin.home} and {spark.home} are both Spark {spark.version}; leave one of them "
                f"out of spark_homes"
            )
    return tuple(sparks)


def spark_of(version: str, sparks: Sequence[Spark]) -> Spark:
    """The one of this node's Sparks that has this version; the default for none.

    Raises:
        Misplaced: none has.
    """
    found = next((x for x in sparks if x.version == version), None)
    if found is not None:
        return found
    if not version:
        return sparks[0]
    there = ", ".join(f"{x.version} at {x.home}" for x in sparks)
    raise Misplaced(
        f"the driver runs Spark {version}, and this node has {there}: install the driver's version "
        f"and name it in the agent's spark_homes, or submit with one of these"
    )


def runtime_of(spark: Spark, java: Java) -> Runtime:
    """What this node can run executors with, for placement."""
    return Runtime(
        spark=spark.version,
        scala=spark.scala,
        java=re.split(r"[^\d]", java.version.removeprefix("1."))[0],
        python=_python_here(),
    )


def _python_here() -> str:
    """Of this agent, which is the one of executors that name no other."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def find_java(home: Path | None = None) -> Java:
    """The Java of this node: ``home``, else ``$JAVA_HOME``, else ``java`` on the PATH.

    Raises:
        InvalidConfig: there is none, it does not run, or it is older than 17.
    """
    named = home or (Path(os.environ["JAVA_HOME"]) if os.environ.get("JAVA_HOME") else None)
    if named is not None:
        command = named / "bin" / "java"
        if not os.access(command, os.X_OK):
            raise InvalidConfig(f"no Java at {command}; correct JAVA_HOME or --java-home")
        return _java_at(command, named)
    on_path = shutil.which("java")
    if on_path is None:
        raise InvalidConfig(
            f"no Java on this node: install Java {JAVA_VERSION_MIN} or newer, or set JAVA_HOME"
        )
    command = Path(on_path).resolve()
    return _java_at(command, command.parent.parent if command.parent.name == "bin" else None)


@functools.cache
def _java_at(command: Path, home: Path | None) -> Java:
    version = _released_version(home) or _version_output(command)
    major = int(re.split(r"[^\d]", version.removeprefix("1."))[0])
    if major < JAVA_VERSION_MIN:
        raise InvalidConfig(
            f"{command} is Java {version}; Spark needs {JAVA_VERSION_MIN} or newer: set JAVA_HOME "
            f"or --java-home to one"
        )
    return Java(command=command, home=home, version=version)


def _released_version(home: Path | None) -> str | None:
    """The version in the runtime's ``release`` file: no process to start."""
    try:
        text = (home / "release").read_text(errors="replace") if home else ""
    except OSError:
        return None
    matched = re.search(r'^JAVA_VERSION="(\d[^"]*)"', text, re.MULTILINE)
    return matched[1] if matched else None


def _version_output(command: Path) -> str:
    try:
        done = subprocess.run(
            [str(command), "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidConfig(f"{command} does not run: {error}") from error
    matched = re.search(r'version "(\d[^"]*)"', done.stderr + done.stdout)
    if matched is None:
        raise InvalidConfig(
            f"{command} does not report its version (exit status {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()[:200]!r}); set JAVA_HOME or --java-home"
        )
    return matched[1]


def executor_launch(
    spec: ContainerSpec,
    *,
    spark: Spark,
    java: Java,
    host: str,
    work_dir: Path,
    node: str = "",
    stdout_url: str = "",
    stderr_url: str = "",
    gpus: Sequence[Gpu] = (),
    archive: str = "",
    conf: NodeConf = NO_CONF,
) -> Launch:
    """The command of the executor ``spec`` on this node, which others reach as ``host``.

    ``archive``: the class-data archive to use; empty: none. ``node``: this node's name.
    ``gpus``: of the executor's resource unit; visible to it if it holds device memory.
    ``conf``: the node's configuration directories and class path.

    Raises:
        LaunchFailed: the specification names no driver, or a heap that does not fit.
        Misplaced: the driver's Spark or Python is another version.
    """
    launch = spec.launch
    if not launch.driver_url:
        raise LaunchFailed(f"{spec.container_id} names no driver to connect to")
    if launch.spark_version != spark.version:
        spark_of(launch.spark_version or "(unknown)", (spark,))
    _check_python(dict(launch.environment))
    heap_mib = spec.heap_mib or spec.resources.memory_mib
    if not 0 < heap_mib <= spec.resources.memory_mib:
        raise LaunchFailed(
            f"a heap of {heap_mib} MiB does not fit a container of {spec.resources.memory_mib} MiB"
        )
    class_path = _class_path(launch, spark, conf)
    flags = archives.flags(archive) if archive else []
    argv = (
        str(java.command),
        f"@{work_dir / ARGUMENT_FILE}",
        # A JVM in a memory group starts with a 64th of the group, and collects garbage repeatedly
        # until it has grown. The heap is this container's alone: it may have it immediately, and
        # untouched memory is not used. The user's own -Xms, which follows, takes precedence.
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        f"-Djava.io.tmpdir={work_dir / 'tmp'}",
        *(_java_option(option, spec) for option in launch.java_options),
        EXECUTOR_CLASS,
        "--driver-url", launch.driver_url,
        "--executor-id", spec.executor_id,
        "--hostname", host,
        "--cores", str(spec.resources.vcores),
        "--app-id", spec.application_id,
        "--resourceProfileId", str(spec.resource_profile_id),
    )  # fmt: skip
    files = {ARGUMENT_FILE: archives.argument_file([*flags, "-cp", class_path])}
    if gpus and spec.resources.gpu_memory_mib:
        files[RESOURCES_FILE] = json.dumps(_gpu_resources(len(gpus)))
        argv = (*argv, "--resourcesFile", str(work_dir / RESOURCES_FILE))
    environment = conf.environment() | _environment(spec, spark, java, work_dir)
    environment |= gpu_environment(spec, gpus)
    environment |= ui_variables(
        spec, Role.EXECUTOR, node=node, host=host, stdout_url=stdout_url, stderr_url=stderr_url
    )
    return Launch(argv=argv, environment=environment, files=files)


def _class_path(launch: LaunchContext, spark: Spark, conf: NodeConf) -> str:
    # As on YARN, resources are found in the working directory: log4j2.properties, core-site.xml. It
    # and the node's settings come last, because an archive of classes requires that the class path
    # begins with its own; what the application has brought goes before what the node has.
    here = ["."] if launch.files else []
    jars = archives.class_path(str(spark.home))
    after = conf.class_path(dict(launch.environment))
    return ":".join([*launch.extra_class_path, *jars, *here, *after])


def _check_python(environment: dict[str, str]) -> None:
    """If the driver ran on a node with that node's Python, this node's version must match.

    Raises:
        Misplaced: it does not; the message names both versions.
    """
    wanted = environment.get("HRM_DRIVER_PYTHON")
    here = _python_here()
    if wanted and wanted != here:
        raise Misplaced(
            f"the driver runs Python {wanted}, and this node has Python {here}; run the agents "
            f"with one version, or name a Python that all nodes have with spark.pyspark.python"
        )


def _gpu_resources(gpus: int) -> list[dict[str, object]]:
    """What Spark reads of an executor's GPUs: their addresses, as CUDA counts what is visible."""
    gpu = {"componentName": "spark.executor", "resourceName": "gpu"}
    return [{"id": gpu, "addresses": [str(address) for address in range(gpus)]}]


def gpu_environment(spec: ContainerSpec, gpus: Sequence[Gpu]) -> dict[str, str]:
    """Makes only its GPUs visible to a container: none if it holds no device memory.

    CUDA counts visible devices from 0, whatever their numbers on the node: the addresses that
    Spark's tasks get are therefore 0 and up, and ``HRM_GPU_INDEX`` has the numbers on the node.
    ``HRM_GPU_MEMORY_MIB`` is the container's part of all of them together.
    """
    if not gpus or not spec.resources.gpu_memory_mib:
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid or str(gpu.index) for gpu in gpus),
        "HRM_GPU_INDEX": ",".join(str(gpu.index) for gpu in gpus),
        "HRM_GPU_MEMORY_MIB": str(spec.resources.gpu_memory_mib),
    }


def _java_option(option: str, spec: ContainerSpec) -> str:
    if option == PROCESSORS_OPTION:
        return f"-XX:ActiveProcessorCount={spec.resources.vcores}"
    return option.replace("{{APP_ID}}", spec.application_id).replace(
        "{{EXECUTOR_ID}}", spec.executor_id
    )


def _environment(spec: ContainerSpec, spark: Spark, java: Java, work_dir: Path) -> dict[str, str]:
    """The agent's few variables, overridden by the application's, and those by HRM's own."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment.setdefault("LANG", "C.UTF-8")
    of_node = environment.get("LD_LIBRARY_PATH")
    environment.update(spec.launch.environment)
    if of_node and dict(spec.launch.environment).get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] += f":{of_node}"  # drivers of the node's devices
    path = environment.get("PATH") or os.environ.get("PATH") or os.defpath
    environment["PATH"] = f"{Path(sys.executable).parent}:{path}"
    if java.home is not None:
        environment["JAVA_HOME"] = str(java.home)
    environment["SPARK_HOME"] = str(spark.home)
    python_path = [str(p) for p in spark.python_path]
    if environment.get("PYTHONPATH"):
        python_path.append(environment["PYTHONPATH"])
    if python_path:
        environment["PYTHONPATH"] = ":".join(python_path)
    environment["SPARK_LOCAL_DIRS"] = str(work_dir / "local")
    environment["SPARK_EXECUTOR_DIRS"] = str(work_dir / "local")
    environment["TMPDIR"] = str(work_dir / "tmp")
    environment["HRM_CONTAINER_ID"] = spec.container_id
    return environment
