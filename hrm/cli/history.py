"""``hrm history``: Spark's own history server, on the event logs of this cluster.

``hrm up`` has applications write event logs into its state directory; this shows them, also while
no cluster is up. The command becomes the server (``exec``), so Ctrl-C ends it and nothing is left.
It listens on loopback only: Spark's pages require no authentication.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hrm import address, errors
from hrm.cli import console

__all__ = ["EVENT_LOGS_MAX", "EVENT_LOG_KEEP_S", "app", "environment", "prune"]

EVENT_LOGS_MAX = 1_000
EVENT_LOG_KEEP_S = 30 * 86_400.0
_NAME = re.compile(r"(eventlog_v2_)?app-[A-Za-z0-9._-]+")
_CLASS = "org.apache.spark.deploy.history.HistoryServer"

app = typer.Typer(no_args_is_help=True)


@app.command()
def history(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of the pages; 0: any free one.")
    ] = 18080,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Event logs. Default: those of `hrm up`."),
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Of the `hrm up` meant.")
    ] = None,
) -> None:
    """Start Spark's history server on the event logs of ended applications; Ctrl-C ends it."""
    from hrm.cli import embedded, spark_setup

    home = (state_dir or address.state_home()).expanduser().absolute()
    logs = (directory or home / embedded.EVENT_LOGS).expanduser().absolute()
    if not logs.is_dir():
        raise errors.NotFound(
            f"there is no directory {logs} of event logs; run an application on a cluster of "
            f"hrm up, or name one with --dir"
        )
    port = embedded.free_port(address.DEFAULT_HOST, port, "hrm history --port 0")
    variables = spark_setup.spark_environment()
    program = spark_setup.spark_submit().with_name("spark-class")
    console.note(f"the history server reads {logs}; Ctrl-C ends it")
    typer.echo(f"http://{address.DEFAULT_HOST}:{port}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606
        program,
        [str(program), _CLASS],
        {**os.environ, **variables, **environment(logs, port, os.environ)},
    )


def environment(logs: Path, port: int, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of Spark's history server: these logs, exactly this port, loopback only.

    Options already in ``SPARK_HISTORY_OPTS`` come last, so that they win.
    """
    options = [
        f'"-Dspark.history.fs.logDirectory={logs}"',
        f"-Dspark.history.ui.port={port}",
        "-Dspark.port.maxRetries=0",
        given.get("SPARK_HISTORY_OPTS", ""),
    ]
    return {
        "SPARK_HISTORY_OPTS": " ".join(filter(None, options)),
        "SPARK_LOCAL_IP": address.DEFAULT_HOST,
    }


def prune(logs: Path, now: float) -> int:
    """Remove event logs older than ``EVENT_LOG_KEEP_S``, and the oldest beyond ``EVENT_LOGS_MAX``.

    Returns:
        How many. What has another name than Spark gives to a log is left alone.
    """
    if not logs.is_dir():
        return 0
    named = [path for path in logs.iterdir() if _NAME.fullmatch(path.name)]
    found = sorted((at_s, path) for path in named if (at_s := _changed_at_s(path)))
    many = max(0, len(found) - EVENT_LOGS_MAX)
    gone = [
        path for n, (at_s, path) in enumerate(found) if n < many or at_s < now - EVENT_LOG_KEEP_S
    ]
    for path in gone:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(gone)


def _changed_at_s(log: Path) -> float:
    """When it was last written to; 0: it has gone. A directory of parts is as new as the newest
    of them: to append to a part does not change it."""
    try:
        parts = list(log.iterdir()) if log.is_dir() else []
        return max(path.stat().st_mtime for path in (log, *parts))
    except OSError:
        return 0.0
