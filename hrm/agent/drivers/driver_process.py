"""A driver as a container: what its node starts.

The command is ``hrm.agent.drivers.driver_runner``, which starts the node's own spark-submit in
client mode. Its input is one file of the container, next to the token and the ownership key of its
submission and, with TLS, the cluster's authority: a driver that runs as its submitter cannot read
the agent's, and gets neither the agent's token nor the cluster's. All are removed with the
container; the first holds the application's secrets.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hrm import clear_text
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec
from hrm.errors import LaunchFailed
from hrm.spark.conf import DRIVER_ENVIRONMENT, conf_dir
from hrm.spark.launch import Java, Launch, Spark, gpu_environment
from hrm.spark.node_conf import NO_CONF, NodeConf
from hrm.spark.ui_links import Role, ui_variables
from hrm.tls import CA_FILE, ca_file, read_ca

__all__ = [
    "APPLICATION_DIR",
    "DOCUMENT_FILE",
    "ENVIRONMENT_SETTING",
    "TOKEN_FILE",
    "driver_launch",
    "files_dir",
    "files_of",
    "without_secrets",
]

APPLICATION_DIR = "app"
"""The directory of a driver's files, below its home; its working directory."""
DOCUMENT_FILE = "driver.json"
TOKEN_FILE = "token"  # nosec B105 # noqa: S105 - a name
OWNERSHIP_KEY_FILE = "ownership-key"
"""Of the submission, for the AppMaster; the runner has it in its document."""
_INHERITED = (
    *("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "HRM_HOME"),
    *("HRM_EVENT_LOG_DIR", "PYTHONPATH", "SPARK_LOCAL_IP"),
)
ENVIRONMENT_SETTING = DRIVER_ENVIRONMENT.removesuffix("NAME")


def files_dir(settings: AgentSettings) -> Path:
    """Where a node keeps files fetched from the master: ``hrm.agent.containers.file_cache``."""
    return settings.work_dir.absolute() / "files"


_RUNNER = ("-m", "hrm.agent.drivers.driver_runner")


def driver_launch(
    spec: ContainerSpec,
    *,
    spark: Spark,
    java: Java,
    settings: AgentSettings,
    work_dir: Path,
    cache_dir: Path,
    node: str = "",
    stdout_url: str = "",
    stderr_url: str = "",
    conf: NodeConf = NO_CONF,
) -> Launch:
    """The command of the driver ``spec`` on this node, which is called ``node``. ``cache_dir``:
    where it keeps files. ``conf``: the node's configuration directories and class path.

    Raises:
        LaunchFailed: its document cannot be read, or this Spark has no spark-submit.
        HrmError: the agent's authority cannot be read.
    """
    try:
        document = json.loads(spec.launch.driver)
        given = [(str(key), str(value)) for key, value in document["conf"]]
        token = str(document.pop("token"))
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchFailed(f"{spec.container_id} has no readable driver: {error!r}") from error
    program = spark.home / "bin" / "spark-submit"
    if not program.is_file():
        raise LaunchFailed(
            f"there is no {program}, so this node can run executors and no drivers; name a whole "
            f"Spark with --spark-home"
        )
    authority = read_ca(ca_file(settings.token_file, settings.tls_ca))
    document |= {
        "attempt": int(spec.executor_id),
        "token_file": str(work_dir.absolute() / TOKEN_FILE),
        "tls_ca": str(work_dir.absolute() / CA_FILE) if authority else "",
        "spark_submit": str(program),
        "cache_dir": str(cache_dir),
        "heap_mib": spec.heap_mib,
        **_of_node(settings, conf),
    }
    environment = _environment(given, java, conf) | {
        "SPARK_HOME": str(spark.home),
        "SPARK_CONF_DIR": str(conf_dir()),
        "SPARK_LOCAL_DIRS": str(work_dir / "local"),
        "TMPDIR": str(work_dir / "tmp"),
        "HRM_PYTHON": sys.executable,
        "HRM_TOKEN_FILE": document["token_file"],
        "HRM_TLS_CA": document["tls_ca"],
        clear_text.VARIABLE: str(settings.allow_clear_text).lower(),
        "HRM_CONTAINER_ID": spec.container_id,
        "HRM_SUBMISSION_ID": str(document["submission_id"]),
        "HRM_SUBMISSION_ATTEMPT": spec.executor_id,
        "HRM_SUBMISSION_OWNERSHIP_KEY_FILE": str(work_dir.absolute() / OWNERSHIP_KEY_FILE),
    }
    environment |= gpu_environment(spec, ())
    environment |= ui_variables(
        spec, Role.DRIVER, node=node, host=settings.host, stdout_url=stdout_url,
        stderr_url=stderr_url,
    )  # fmt: skip
    argv = (sys.executable, "-P", *_RUNNER, str(work_dir / DOCUMENT_FILE))
    files = _files(document, token, authority)
    return Launch(argv=argv, environment=environment, files=files)


def _files(document: dict[str, Any], token: str, authority: bytes | None) -> dict[str, str]:
    """The driver's input."""
    files = {
        DOCUMENT_FILE: json.dumps(document),
        TOKEN_FILE: token,
        OWNERSHIP_KEY_FILE: str(document.get("ownership_key", "")),
    }
    return files | ({CA_FILE: authority.decode()} if authority else {})


def _environment(given: list[tuple[str, str]], java: Java, conf: NodeConf) -> dict[str, str]:
    """The agent's few variables and the node's settings, overridden by those that the submission
    sets, but for the node's Java and Python."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment.setdefault("LANG", "C.UTF-8")
    environment |= conf.variables
    for key, value in given:
        if key.startswith(ENVIRONMENT_SETTING):
            environment[key.removeprefix(ENVIRONMENT_SETTING)] = value
    path = environment.get("PATH") or os.environ.get("PATH") or os.defpath
    environment["PATH"] = f"{Path(sys.executable).parent}:{path}"
    if java.home is not None:
        environment["JAVA_HOME"] = str(java.home)
    return environment


def _of_node(settings: AgentSettings, conf: NodeConf) -> dict[str, object]:
    """What the runner knows of its node."""
    return {
        "master": settings.master,
        "host": settings.host,
        "spark_conf_dir": str(conf.spark_conf_dir or ""),
        "unpacked_bytes_max": settings.unpacked_mib_max << 20,
    }


def files_of(document: str) -> frozenset[str]:
    """Hashes of the files that the driver of this document needs; empty where the document is
    missing or unreadable."""
    try:
        return frozenset(str(x["sha256"]) for x in json.loads(document)["resources"] if x["sha256"])
    except (ValueError, KeyError, TypeError):
        return frozenset()


def without_secrets(document: str) -> str:
    """What of a driver's document may stay on the disk after its start: which files it needs."""
    if not document:
        return ""
    return json.dumps({"resources": [{"sha256": digest} for digest in sorted(files_of(document))]})
