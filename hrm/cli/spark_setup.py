"""Where a stock Spark is, and what it is started with so that it understands ``hrm://``."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

from hrm import address, errors, tls
from hrm.spark.conf import conf_dir

__all__ = ["spark_environment", "spark_submit"]


def spark_submit() -> Path:
    """The stock ``spark-submit``: of ``$SPARK_HOME``, of this Python's pyspark, or on the PATH.

    Raises:
        NotFound: there is none.
    """
    home = os.environ.get("SPARK_HOME")
    if home:
        program = Path(home) / "bin" / "spark-submit"
        if program.is_file():
            return program
        raise errors.NotFound(f"there is no {program}; correct or unset SPARK_HOME")
    spec = importlib.util.find_spec("pyspark")
    found = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    candidate = Path(sys.executable).parent / "spark-submit"
    for program in (candidate, *(place / "bin" / "spark-submit" for place in found)):
        if program.is_file():
            return program
    on_path = shutil.which("spark-submit")
    if on_path:
        return Path(on_path)
    raise errors.NotFound("no spark-submit found; pip install pyspark, or set SPARK_HOME")


def spark_environment() -> dict[str, str]:
    """The variables with which a stock Spark understands ``hrm://``.

    Raises:
        InvalidConfig: the user's own ``SPARK_CONF_DIR`` does not include HRM's settings yet.
        NotFound: there is no Spark.
    """
    token = address.token_path()
    binaries = [Path(sys.executable).parent, spark_submit().parent]
    path = os.environ.get("PATH", os.defpath)
    for directory in dict.fromkeys(map(str, reversed(binaries))):
        if directory not in path.split(os.pathsep):
            path = os.pathsep.join((directory, path))
    variables = {
        "SPARK_CONF_DIR": str(_chosen_conf_dir()),
        "HRM_PYTHON": sys.executable,
        "HRM_TOKEN_FILE": str(token),
        "PATH": path,
    }
    if ca := tls.ca_file(token):
        variables["HRM_TLS_CA"] = str(ca.absolute())
    event_logs = os.environ.get("HRM_EVENT_LOG_DIR", _event_logs_here())
    return {**variables, "HRM_EVENT_LOG_DIR": event_logs} if event_logs else variables


def _event_logs_here() -> str:
    """Where the cluster of `hrm up` keeps Spark's event logs; empty: nowhere."""
    from hrm.cli.embedded import Cluster

    try:
        cluster = Cluster.read(address.state_home())
    except errors.InvalidConfig:
        return ""  # commands that need the cluster report the error themselves
    return cluster.event_log_dir if cluster is not None else ""


def _chosen_conf_dir() -> Path:
    ours = conf_dir()
    users = os.environ.get("SPARK_CONF_DIR")
    if not users or Path(users).resolve() == ours.resolve():
        return ours
    theirs = Path(users).expanduser().absolute()
    line = f". {shlex.quote(str(ours / 'spark-env.sh'))}"
    try:
        included = str(ours / "spark-env.sh") in (theirs / "spark-env.sh").read_text()
    except OSError:
        included = False
    if included:
        return theirs
    raise errors.InvalidConfig(
        f"SPARK_CONF_DIR is your own ({theirs}), and HRM keeps it that way; to support hrm://, "
        f"add this as the last line of {theirs / 'spark-env.sh'}: {line} - or unset "
        f"SPARK_CONF_DIR"
    )
