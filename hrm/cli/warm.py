"""``hrm warm``: drivers of this user that have started before they are needed.

The command starts the server (``hrm.spark.warm.server``) in the background, and has it keep drivers
of the kind that one would be that is started in this directory, in this environment. To find that
out, Spark's own scripts run as they would for ``python app.py``, up to the point where a JVM would
start.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hrm import address, errors
from hrm.cli import console
from hrm.cli.console import Output
from hrm.cli.spark_setup import spark_environment, spark_submit
from hrm.spark.warm.client import KEEP, Frames, frame
from hrm.spark.warm.server import ADDRESS_FILE, place

__all__ = ["app", "ask", "keep_here", "stop_if_there"]

JVMS_MAX = 16
KINDS_MAX = 16
_CALL_LIMIT_S = 5.0
_START_LIMIT_S = 20.0
_KEEP_LIMIT_S = 30.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.05
_CHUNK_BYTES = 65_536

app = typer.Typer(no_args_is_help=False)


@app.command("warm")
def warm(
    jvms: Annotated[
        int | None,
        typer.Option("--jvms", min=1, max=JVMS_MAX, help="Drivers ready of each kind. Default: 1."),
    ] = None,
    kinds: Annotated[
        int | None,
        typer.Option("--kinds", min=1, max=KINDS_MAX, help="Kinds to keep. Default: 3."),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End it. Applications that run go on.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show what is ready.")] = False,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="With --status: a table, or JSON.")
    ] = Output.TABLE,
) -> None:
    """Keep drivers ready for what is started in this directory; the first task comes sooner."""
    if stop and status:
        raise errors.InvalidRequest("--stop and --status exclude each other; leave one out")
    if stop:
        _stop()
    elif status:
        _show(ask("status"), output)
    else:
        bounds = {"per_kind": jvms, "kinds_max": kinds}
        keep_here({name: value for name, value in bounds.items() if value is not None})


def keep_here(bounds: dict[str, int]) -> None:
    """Have drivers ready for this directory and environment; starts the server if there is none.

    Raises:
        AlreadyExists: it runs, with other bounds perhaps.
        Unavailable: it does not start, or drivers like these cannot be kept ready.
    """
    variables = {**os.environ, **spark_environment()}
    there = _connect()
    if there is None:
        _start(bounds, variables)
    else:
        there.close()
    if there is not None and bounds:
        raise errors.AlreadyExists(
            "hrm warm runs already, with bounds of its own; type hrm warm --stop first"
        )
    program = Path(spark_submit()).resolve()
    try:
        done = subprocess.run(
            [str(program), "--master", f"hrm://{address.default_master()}", "pyspark-shell"],
            env={**variables, "HRM_WARM": KEEP},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_KEEP_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise errors.Unavailable(
            f"Spark's start scripts have not ended within {_KEEP_LIMIT_S:g} s; try again on a "
            f"machine less busy"
        ) from error
    if done.returncode != 0:
        why = console.one_line(done.stderr) or "spark-submit says nothing"
        raise errors.Unavailable(f"drivers of this kind cannot be kept ready: {why}")
    console.note("drivers for this directory are made ready; hrm warm --status shows them")


def _start(bounds: dict[str, int], variables: dict[str, str]) -> None:
    import json

    home = place()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = home / "log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "hrm.spark.warm.server"),
                *("--bounds", json.dumps(bounds)),
            ],
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_LIMIT_S
    while (connection := _connect()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise errors.Unavailable(f"the warm server does not start; see {log}")
        time.sleep(_POLL_S)
    connection.close()


def _connect() -> socket.socket | None:
    """A connection to the user's server; None: there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CALL_LIMIT_S)
    try:
        connection.connect((place() / ADDRESS_FILE).read_text().strip())
    except OSError:
        connection.close()
        return None
    return connection


def ask(what: str) -> dict[str, Any]:
    """Raises Unavailable where no server is there."""
    connection = _connect()
    if connection is None:
        raise errors.Unavailable("no warm drivers are kept here; type hrm warm to start")
    frames = Frames()
    with connection:
        try:
            connection.sendall(frame({"ask": what}))
            while data := connection.recv(_CHUNK_BYTES):
                for reply in frames.feed(data):
                    return reply
        except OSError as error:
            raise errors.Unavailable(f"the warm server does not reply: {error}") from error
    raise errors.Unavailable("the warm server has ended without a reply")


def stop_if_there() -> None:
    """End the server, if it runs; what applications have taken goes on.

    Raises:
        Unavailable: it does not end.
    """
    there = _connect()
    if there is not None:
        there.close()
        _stop()


def _stop() -> None:
    ask("stop")
    deadline = time.monotonic() + _STOP_LIMIT_S
    while (place() / ADDRESS_FILE).exists():
        if time.monotonic() > deadline:
            raise errors.Unavailable(
                f"the warm server has not ended within {_STOP_LIMIT_S:g} s; see {place() / 'log'}"
            )
        time.sleep(_POLL_S)
    console.note("no drivers are kept ready any more")


def _show(status: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        console.print_json(status)
        return
    table = console.table(
        "directory", "heap", ">ready", ">starting", ">used", ">missed", ">MiB", "problem"
    )
    for kind in status["kinds"]:
        table.add_row(
            console.plain(kind["directory"]),
            console.plain(kind["memory"]),
            *(str(kind[x]) for x in ("ready", "starting", "used", "missed", "memory_mib")),
            console.plain(kind["problem"]),
        )
    console.stdout().print(table)
