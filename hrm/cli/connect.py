"""``hrm connect``: a Spark Connect server of this user that is warm, and what to export to use it.

A session at such a server skips what makes a first query slow: the start of a JVM, of a context and
of an executor, and the first run of everything in them. See ``hrm.cli.connect_server``.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from hrm import address, clear_text, errors, tls
from hrm.cli import client as cli_client
from hrm.cli import console
from hrm.cli.console import Output
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption
from hrm.cli.spark import Shell, exports

if TYPE_CHECKING:
    import grpc

    from hrm.cli.connect_server import ConnectOptions, WarmConnectServer
    from hrm.cli.server_record import ServerRecord, ServerRecordFile
    from hrm.spark.submit import SubmissionClient

__all__ = ["app"]

IDLE_DEFAULT = "4h"
WAIT_S = 300.0
_TIME = re.compile(r"0|\d{1,9}(ms|s|m|min|h|d)")
_OWN = ("spark.hrm.connect.", "spark.hrm.submit.key", "spark.hrm.submit.tied", "spark.master")
"""Settings that are this command's own."""

app = typer.Typer(no_args_is_help=False)


@app.command("connect")
def connect(
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", "-c", metavar="NAME=VALUE", help="A Spark setting of the server."),
    ] = None,
    idle: Annotated[
        str,
        typer.Option("--idle", help="End it when it had no session for so long; 0: never."),
    ] = IDLE_DEFAULT,
    stop: Annotated[bool, typer.Option("--stop", help="End the server instead.")] = False,
    export: Annotated[
        bool, typer.Option("--export", help='What to export: eval "$(hrm connect --export)".')
    ] = False,
    shell: Annotated[
        Shell | None, typer.Option("--shell", help="Syntax of --export. Default: by $SHELL.")
    ] = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait until it is warm.")
    ] = WAIT_S,
) -> None:
    """Find or start your warm Spark Connect server on this cluster, and show how to use it.

    One for each set of --conf and --idle; commands that run at once get the same one. It requires a
    token, which --export has and the table has not.
    """
    from hrm.cli import connect_server
    from hrm.cli.server_record import ServerRecordFile, kind_of
    from hrm.spark import submit

    settings = _settings(conf or [], idle)
    target = address.default_master(master)
    token = address.token_file(master)
    file = ServerRecordFile(address.state_home() / "connect", kind_of(target, settings))
    with submit.connect(target, token, tls.ca_file(token)) as (client, channel):
        if stop:
            _stop(client, file, output)
            return
        wanted = _wanted(target, settings, channel)
        server = _warm_server(client, channel, wanted, file, time.monotonic() + timeout)
    unreached = connect_server.check_reached(server)
    variables, remark = connect_server.remote(server)
    if not wanted.authenticates:
        console.note(
            f"HRM: Spark {wanted.version or 'of an unknown version'} cannot require a token: every "
            f"user of the server's machine can use it"
        )
    for each in filter(None, (unreached, remark)):
        console.note(f"HRM: {each}")
    if export:
        _export(variables, shell, output)
    else:
        _show(server, variables, output)


def _settings(given: list[str], idle: str) -> dict[str, str]:
    """Of the command line.

    Raises:
        InvalidRequest: one is malformed, or this command's own.
    """
    from hrm.cli.connect_server import IDLE
    from hrm.spark_servers import CONNECT_TOKEN

    if _TIME.fullmatch(idle) is None:
        raise errors.InvalidRequest(f"--idle is {idle!r}; give a time such as 4h, or 0 for never")
    settings = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign:
            raise errors.InvalidRequest(f"--conf {each} is no setting; write --conf NAME=VALUE")
        name = name.strip()
        if name.startswith(_OWN) or name.endswith((CONNECT_TOKEN, "connect.authenticate.token")):
            raise errors.InvalidRequest(
                f"--conf {name} is set by hrm connect itself; leave it out, or start a server of "
                f"your own with hrm submit"
            )
        settings[name] = value
    return {**settings, IDLE: idle}


def _wanted(target: str, settings: dict[str, str], channel: grpc.Channel) -> ConnectOptions:
    import grpc

    from hrm import rpc
    from hrm.cli.connect_server import ConnectOptions, spark_version
    from hrm.v1.admin_pb2 import ListNodesRequest
    from hrm.v1.admin_pb2_grpc import AdminServiceStub

    version = settings.get("spark.hrm.submit.spark.version", "")
    if not version:
        admin = AdminServiceStub(channel)
        try:
            listed = cli_client.all_pages(admin.ListNodes, ListNodesRequest(), TIMEOUT_S)
        except grpc.RpcError as error:
            raise rpc.error_from(error, target) from error
        version = spark_version(node.spark_versions for node in listed.nodes)
    return ConnectOptions(
        target=target, conf=settings, version=version, clear_text=clear_text.allowed()
    )


def _warm_server(
    client: SubmissionClient,
    channel: grpc.Channel,
    wanted: ConnectOptions,
    file: ServerRecordFile,
    deadline_s: float,
) -> WarmConnectServer:
    """The server, warm, with its record kept; one whose port is taken is moved to another."""
    from hrm.cli import connect_server as made
    from hrm.spark_servers import CONNECT_PORT

    record: ServerRecord = made.find_or_start(client, wanted, file, os.environ, _notify)
    for tries_left in reversed(range(made.PORTS_TRIED_MAX)):
        try:
            server = made.await_warm(client, channel, record, deadline_s, _notify)
        except errors.LaunchFailed as error:
            if not tries_left or CONNECT_PORT in wanted.conf:
                raise
            _notify(error.message)
            record = made.restart(client, wanted, file, record, os.environ, _notify)
            continue
        if server.record != record:
            file.write(server.record)
        return server
    raise AssertionError("the last try returns or raises")


def _stop(client: SubmissionClient, file: ServerRecordFile, output: Output) -> None:
    from hrm.cli import connect_server
    from hrm.cli.queries import show

    ended = connect_server.stop(client, file)
    if ended is None:
        console.note("no Connect server with these options was started here; hrm submissions "
                     "lists what runs")  # fmt: skip
        return
    show(ended, output, lambda render: render.submissions_table([ended]))


def _export(variables: dict[str, str], shell: Shell | None, output: Output) -> None:
    if output is Output.JSON:
        console.print_json(variables)
        return
    for line in exports(variables, shell):
        typer.echo(line)


def _show(server: WarmConnectServer, variables: dict[str, str], output: Output) -> None:
    """Everything but the secret."""
    submission = server.submission
    shown = variables["SPARK_REMOTE"].partition("/;")[0]
    if output is Output.JSON:
        console.print_json(
            {
                "address": shown,
                "submission_id": submission.submission_id,
                "application_id": (list(submission.application_ids) or [""])[-1],
                "node": submission.node,
                "warm": server.record.warmth.startswith("warm"),
                "rehearsal": server.record.warmth,
            }
        )
        return
    table = console.table("CONNECT TO", "SUBMISSION", "NODE", "SERVER")
    cells = (shown, submission.submission_id, submission.node, server.record.warmth)
    table.add_row(*map(console.plain, cells))
    console.view(table)
    console.note('to use it: eval "$(hrm connect --export)", with the same options')


def _notify(message: str) -> None:
    console.note(f"HRM: {message}")
