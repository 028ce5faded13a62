"""The tree of commands, each loaded when it is typed: ``COMMANDS`` maps a command to its module.

``hrm status`` must not pay for the settings of the daemons or for the code that starts clusters.
Errors end here, too: an ``HrmError`` becomes one line ``error: …`` on stderr and exit status 1;
with ``HRM_DEBUG=1`` the traceback comes first.
"""

from __future__ import annotations

import difflib
import importlib
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from hrm import __version__
from hrm.cli.console import report_failure
from hrm.errors import HrmError
from hrm.text import shown

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "up": "hrm.cli.cluster",
    "down": "hrm.cli.cluster",
    "status": "hrm.cli.queries",
    "nodes": "hrm.cli.queries",
    "apps": "hrm.cli.queries",
    "app": "hrm.cli.queries",
    "node": "hrm.cli.queries",
    "queues": "hrm.cli.queues",
    "queue": "hrm.cli.queues",
    "whatif": "hrm.cli.queues",
    "affinity": "hrm.cli.affinity",
    "events": "hrm.cli.events",
    "forecast": "hrm.cli.forecast",
    "env": "hrm.cli.spark",
    "spark-submit": "hrm.cli.spark",
    "warm": "hrm.cli.warm",
    "plugin-jar": "hrm.cli.plugin_jar",
    "submit": "hrm.cli.submit",
    "submissions": "hrm.cli.submit",
    "submission": "hrm.cli.submit",
    "connect": "hrm.cli.connect",
    "history": "hrm.cli.history",
    "master": "hrm.cli.daemons",
    "agent": "hrm.cli.daemons",
    "scheduler": "hrm.cli.daemons",
    "autoscale": "hrm.cli.daemons",
    "pipeline": "hrm.cli.pipeline",
    "policy": "hrm.cli.policy",
    "tls": "hrm.cli.tls",
    "token": "hrm.cli.identities",  # nosec B105 - a module
    "audit": "hrm.cli.identities",
    "sim": "hrm.cli.sim",
}
"""The module of each command, in the order in which ``hrm --help`` shows them."""


_SHOWN_MAX = 60


class _LazyGroup(TyperGroup):
    """A group whose commands are imported on demand.

    Contexts and commands are click's; typer brings its own copy of click in some versions, so
    their types stay unnamed here.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(COMMANDS[cmd_name])
            found: Any = get_command(module.app)  # where it has one command, that itself
            self.commands.update(getattr(found, "commands", {cmd_name: found}))
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean hrm {close[0]}?" if close else "hrm --help lists the commands"
            ctx.fail(f"there is no command hrm {shown(args[0], _SHOWN_MAX)}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        # gRPC logs every failed handshake; HRM reports what matters. Read when gRPC is imported.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        try:
            return super().invoke(ctx)
        except Exception as error:
            _say_how_to_find(error)
            if not isinstance(error, HrmError | BrokenPipeError):
                raise
            raise typer.Exit(report_failure(error)) from None


def _say_how_to_find(error: Exception) -> None:
    """Append the argument's help, which says what lists its values, to `Missing argument`."""
    if type(error).__name__ == "MissingParameter":  # of click, or of typer's copy of it
        error.message = getattr(getattr(error, "param", None), "help", "")  # type: ignore[attr-defined]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hrm {__version__}")
        raise typer.Exit()


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version),
    ] = False,
) -> None:
    """HRM shares one pool of machines between Spark's batch jobs and its streams.

    Try it: hrm up; hrm spark-submit app.py; hrm apps; hrm down
    """
