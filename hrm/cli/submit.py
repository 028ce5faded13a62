"""``hrm submit``, ``hrm submissions`` and ``hrm submission …``: drivers that run on nodes.

``hrm submit`` is ``hrm.cli.driver_submit``, which ``hrm.cli.main`` calls without coming by here.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hrm import errors
from hrm.cli import client, console, driver_submit, queries
from hrm.cli.console import Output
from hrm.cli.queries import (
    TIMEOUT_S,
    FollowOption,
    MasterOption,
    OutputOption,
    StreamOption,
    TailOption,
    TimeoutOption,
)  # fmt: skip

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
group = typer.Typer(no_args_is_help=True, help="Show one submitted driver and its logs, or end it.")
app.add_typer(group, name="submission")

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A submission's id, driver-…; `hrm submissions --all` lists them."
    ),
]


@app.command(
    "submit",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def submit_command(context: typer.Context) -> None:
    """Run an application with its driver on a node; the options are spark-submit's."""
    raise typer.Exit(driver_submit.run_submit(context.args))


@app.command("submissions")
def submissions(
    every: Annotated[bool, typer.Option("--all", help="Include ended ones.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="At most this many, the latest; 0: all.")
    ] = 0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List submitted drivers."""
    from hrm.v1 import submission_pb2 as pb

    request = pb.ListSubmissionsRequest(include_ended=every, limit=limit)
    with client.connect(master) as connection:
        response = client.all_pages(connection.submissions.List, request, timeout)
    if not response.submissions and output is Output.TABLE:
        ended = "" if every else "hrm submissions --all shows ended ones; "
        console.note(f"no submissions; {ended}to run one: hrm submit app.py")
        return
    queries.show(response, output, lambda render: render.submissions_table(response.submissions))


@group.command("show")
def show(
    submission_id: IdArgument,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show one submitted driver. `hrm app why ID` shows why it waits."""
    from hrm.v1 import submission_pb2 as pb

    request = pb.GetSubmissionRequest(submission_id=submission_id)
    with client.connect(master) as connection:
        found = connection.submissions.Get(request, timeout=timeout)
    queries.show(found, output, lambda render: render.submissions_table([found]))


@group.command("kill")
def kill(
    submission_id: IdArgument,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the submission.")] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """End a driver, its application, and its restarts."""
    from hrm.v1 import submission_pb2 as pb

    request = pb.KillSubmissionRequest(submission_id=submission_id, reason=reason)
    with client.connect(master) as connection:
        killed = connection.submissions.Kill(request, timeout=timeout)
    queries.show(killed, output, lambda render: render.submissions_table([killed]))


@group.command("logs")
def logs(
    submission_id: IdArgument,
    attempt: Annotated[
        int, typer.Option("--attempt", min=0, help="Which of its drivers; 0: the latest.")
    ] = 0,
    stream: StreamOption = "stderr",
    tail: TailOption = 0,
    follow: FollowOption = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Print a driver's log."""
    try:
        queries.app_logs(
            submission_id, executor="driver", attempt=attempt, stream=stream, tail=tail,
            follow=follow, master=master, output=output, timeout=timeout,
        )  # fmt: skip
    except errors.NotFound as error:
        if not error.message.startswith("no such application"):
            raise
        raise errors.NotFound(
            f"no such submission: {submission_id}; hrm submissions --all lists them"
        ) from error
