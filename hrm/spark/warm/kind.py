"""Which warm JVM can become which driver: what is fixed when a JVM starts, and what comes later.

A driver's JVM gets its heap, its options, its class path, its directory and some of its environment
when it starts, and never again. These make its ``DriverKind``, together with the files behind them:
a jar that changes makes another kind. Everything else comes with the order: arguments, settings,
the rest of the environment, ``--jars`` and ``--packages``, which spark-submit itself adds. A driver
whose demands no JVM meets that was started before anybody needed it fits none, and gets the
reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hrm.errors import HrmError, InvalidRequest
from hrm.spark.delegation_tokens import demands_kerberos
from hrm.spark.submit_options import KEYTAB, PRINCIPAL, PROXY_USER, Options, parse
from hrm.spark_servers import SERVERS

__all__ = ["DriverKind", "StartRequest", "kind_of", "request_of"]

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_ANY_MASTER = "hrm://127.0.0.1:7480"
_NO_CLASS = ("--class", "hrm.Warm", "spark-internal")
_LAUNCHED = (
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
)
"""Settings that Spark's launcher turns into the JVM's command."""
_READ_ONCE = (
    "spark.sql.codegen.cache.maxEntries",
    "spark.sql.broadcastExchange.maxThreadThreshold",
    "spark.sql.shuffleExchange.maxThreadThreshold",
    "spark.sql.resultQueryStage.maxThreadThreshold",
    "spark.sql.subquery.maxThreadThreshold",
    "spark.sql.hive.filesourcePartitionFileCacheSize",
)
"""Settings that Spark reads once in a JVM: the rehearsal has read them."""
_FIXED_VARIABLES = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|LD_\w+|CLASSPATH|_?JAVA_\w+|JDK_\w+|"
    r"(HADOOP|YARN|HDFS|HIVE|SPARK|OMP|MKL|OPENBLAS|MALLOC)_\w+|GLIBC_TUNABLES|LOCPATH|"
    r"HRM_(PYTHON|HOME|TOKEN_FILE|ARCHIVE)"
)
_LATE_VARIABLES = re.compile(
    r"SPARK_(LOCAL_DIRS|USER|CONNECT_MODE|ENV_LOADED|SCALA_VERSION|BEELINE_OPTS)"
)
_FOREIGN_VARIABLES = {
    "KRB5PRINCIPAL": "it logs in with Kerberos",
    "KRB5CCNAME": "it uses Kerberos",
    "SPARK_REMOTE": "it is a client of Spark Connect",
    "SPARK_PREPEND_CLASSES": "it has SPARK_PREPEND_CLASSES",
    "HRM_SUBMISSION_ID": "it runs on a node",
    "HRM_CONTAINER_ID": "it runs on a node",
}
_JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_PLAIN_OPTION = re.compile(
    r"-X(m[sxn]|ss)\d+[kKmMgGtT]?|-XX:[+-]Use\w+|-XX:\w+=\d+[kKmMgGtT]?|"
    r"-XX:\+IgnoreUnrecognizedVMOptions|--(add-(modules|opens|exports)|enable-native-access)=\S+|"
    r"-D(?!com\.sun\.|java\.rmi\.)[\w.-]+(=\S*)?"
)
"""Options of a JVM that may be started before it is needed: those that open no port or file."""
_SURROUNDINGS = {
    "umask": "its umask is another one",
    "limits": "its limits of resources are other ones",
    "groups": "it is in other groups",
    "nice": "its priority is another one",
    "cgroups": "it is in another cgroup",
    "cpus": "it may use other cores",
    "root": "its root directory is another one",
    "namespaces": "it is in another namespace",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What a client asks for. ``arguments`` are spark-submit's."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str
    surroundings: Mapping[str, Any]
    properties: Mapping[str, str] = field(repr=False)

    def order(self) -> dict[str, Any]:
        """What the JVM gets."""
        return {
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
            "properties": dict(self.properties),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverKind:
    """What is fixed when a JVM starts. ``files``: a digest of the files that it reads then."""

    cwd: str
    settings: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...] = field(repr=False)
    files: str

    @property
    def arguments(self) -> list[str]:
        """What Spark's launcher makes the JVM's command of."""
        settings = (word for name, value in self.settings for word in ("--conf", f"{name}={value}"))
        return [SUBMIT, "--master", _ANY_MASTER, *settings, *_NO_CLASS]

    @property
    def memory(self) -> str:
        """Its heap, as it was set."""
        return dict(self.settings).get("spark.driver.memory", "1g")


def request_of(document: Mapping[str, Any]) -> StartRequest:
    """A client's message.

    Raises:
        InvalidRequest: it has not the right form.
    """
    try:
        texts = [str(word) for word in _typed(document["arguments"], list)]
        environment = _texts(document["environment"])
        properties = _texts(document["properties"])
        cwd = str(_typed(document["cwd"], str))
        surroundings = dict(_typed(document["surroundings"], dict))
    except (KeyError, TypeError) as error:
        raise InvalidRequest(
            f"a client's message has no such field, or another type: {error}"
        ) from error
    return StartRequest(
        arguments=tuple(texts),
        environment=environment,
        cwd=cwd,
        surroundings=surroundings,
        properties=properties,
    )


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(_typed(text, str)) for name, text in _typed(value, dict).items()}


def kind_of(request: StartRequest, own: Mapping[str, Any], python: str) -> DriverKind | str:
    """The kind of JVM that could be this driver; text: why none. ``own``: the surroundings that
    warm JVMs have, ``python``: the one that has HRM, for their AppMasters."""
    for name, why in _SURROUNDINGS.items():
        if request.surroundings.get(name) != own.get(name):
            return why
    for name, why in _FOREIGN_VARIABLES.items():
        if request.environment.get(name):
            return why
    if request.environment.get("HRM_PYTHON") != python:
        return f"HRM_PYTHON is not {python}"
    try:
        options = parse(_absolute(request.arguments, request.cwd), request.environment)
        if problem := _problem(options, request.environment):
            return problem
        settings = tuple((x, options.conf[x]) for x in _LAUNCHED if x in options.conf)
        return DriverKind(
            cwd=request.cwd,
            settings=settings,
            environment=tuple(_fixed(request.environment)),
            files=_digest(options, request.environment, request.cwd),
        )
    except (HrmError, OSError, ValueError) as error:  # such as text that is no UTF-8
        return str(error)


def _problem(options: Options, environment: Mapping[str, str]) -> str:
    if options.main != "pyspark-shell" and (shell := options.shell()):
        return f"{shell} needs its terminal"
    if options.main_class in SERVERS:
        return "it is a server of Spark"
    if options.proxy_user:
        return f"it has {PROXY_USER}"
    if options.conf.get(PRINCIPAL) or options.conf.get(KEYTAB):
        return "it logs in with Kerberos"
    if demands_kerberos(options.conf, environment):
        return "Hadoop's settings demand Kerberos"
    for name in _READ_ONCE:
        if name in options.conf:
            return f"it sets {name}, which Spark reads once in a JVM"
    texts = [options.conf.get(name, "") for name in _LAUNCHED if name.endswith("JavaOptions")]
    texts += [environment.get(name, "") for name in _JAVA_VARIABLES]
    for option in " ".join(texts).split():
        if not _PLAIN_OPTION.fullmatch(option):
            return f"it has the Java option {option.partition('=')[0]}"
    return ""


def _fixed(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(environment.items()):
        if _FIXED_VARIABLES.fullmatch(name) and not _LATE_VARIABLES.fullmatch(name):
            yield name, value


def _absolute(arguments: Sequence[str], cwd: str) -> list[str]:
    """The same, with a properties file that can be found from anywhere."""
    found = list(arguments)
    for position, (before, word) in enumerate(zip(["", *arguments], arguments, strict=False)):
        if before == "--properties-file":
            found[position] = os.path.join(cwd, word)  # noqa: PTH118
        elif word.startswith("--properties-file="):
            path = os.path.join(cwd, word.partition("=")[2])  # noqa: PTH118
            found[position] = f"--properties-file={path}"
    return found


def _digest(options: Options, environment: Mapping[str, str], cwd: str) -> str:
    """Of the names, sizes and times of everything that the JVM reads as it starts.

    Raises:
        InvalidRequest: there is no Spark, or no Java.
    """
    spark = environment.get("SPARK_HOME", "")
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if not spark or not java:
        raise InvalidRequest("it has no SPARK_HOME, or no Java")
    java = os.path.realpath(java)
    own = Path(__file__).resolve().parents[1]
    around = Path(java).parents[1]
    paths = ":".join(
        [
            options.conf.get("spark.driver.extraClassPath", ""),
            environment.get("SPARK_DIST_CLASSPATH", ""),
        ]
    )
    directories = [
        f"{spark}/jars",
        f"{spark}/conf",
        str(own),
        str(own / "plugin"),
        str(own / "warm"),
    ]
    directories += [
        environment.get(name, "") for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    ]
    entries = (path.removesuffix("/*") for path in paths.split(":") if path)
    directories += [os.path.join(cwd, path) for path in entries]  # noqa: PTH118
    files = [
        java,
        str(around / "release"),
        str(around / "lib" / "modules"),
        f"{spark}/bin/load-spark-env.sh",
    ]
    digest = hashlib.sha256()
    for line in _identities(files, directories):
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:20]


def _identities(files: Iterable[str], directories: Iterable[str]) -> Iterator[str]:
    for path in files:
        yield f"{path} {_identity(path)}\n"
    for directory in filter(None, directories):
        yield f"{directory} {_identity(directory)}\n"
        try:
            with os.scandir(directory) as entries:
                found = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
        except (NotADirectoryError, FileNotFoundError):
            continue
        for name, status in found:
            yield f"{name} {status.st_size} {status.st_mtime_ns}\n"


def _identity(path: str) -> str:
    try:
        status = Path(path).stat()
    except OSError:
        return "-"
    # A directory changes its time with __pycache__ and the like; its files are listed.
    return "" if Path(path).is_dir() else f"{status.st_size} {status.st_mtime_ns}"
