"""``hrm env`` and ``hrm spark-submit``: a stock Spark that understands ``hrm://``.

Spark reads ``$SPARK_CONF_DIR/spark-env.sh`` in the shell that starts it; HRM's copy of that file is
all that it needs, found by the few variables that these commands print or set. A user with an
existing ``SPARK_CONF_DIR`` keeps it and adds one line to its ``spark-env.sh``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hrm import address, errors
from hrm.cli import console
from hrm.cli.console import Output
from hrm.cli.spark_setup import spark_environment, spark_submit

__all__ = [
    "Shell",
    "app",
    "exports",
    "has_master",
]

BAD_USAGE = 2
_SWITCHES = {
    *("--help", "-h", "--load-spark-defaults", "--supervise", "--usage-error", "--verbose", "-v"),
    "--version",
}
"""spark-submit's options without a value. Any other option takes the next argument."""

app = typer.Typer(no_args_is_help=True)


class Shell(StrEnum):
    """Whose syntax the exports have."""

    SH = "sh"
    FISH = "fish"
    CSH = "csh"


@app.command("env")
def env(
    shell: Annotated[
        Shell | None, typer.Option("--shell", help="Syntax to print. Default: by $SHELL.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="Exports to evaluate, or JSON.")
    ] = Output.TABLE,
    archive: Annotated[
        bool,
        typer.Option(
            "--archive",
            help="First make the archive of Spark's classes that drivers start faster with, where "
            "there is none: for machines without an agent.",
        ),
    ] = False,
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Keep drivers ready for this directory, as hrm warm does."),
    ] = False,
) -> None:
    """Print what to export so that spark-submit knows hrm://. Use: eval "$(hrm env)"."""
    variables = spark_environment()
    if archive:
        _make_archive()
    if warm:
        from hrm.cli.warm import keep_here

        keep_here({})
    if output is Output.JSON:
        console.print_json(variables)
        return
    for line in exports(variables, shell):
        typer.echo(line)


@app.command(
    "spark-submit",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def spark_submit_command(context: typer.Context) -> None:
    """Run the stock spark-submit on this cluster; all arguments are its own."""
    arguments = list(context.args)
    if not arguments:
        console.note("Usage: hrm spark-submit [options] APP [APP's arguments]")
        console.error_line("no application was named; hrm spark-submit --help lists the options")
        raise typer.Exit(BAD_USAGE)
    variables = spark_environment()
    program = spark_submit()
    if not has_master(arguments, Path(variables["SPARK_CONF_DIR"])):
        arguments = ["--master", f"hrm://{address.default_master()}", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, [str(program), *arguments], {**os.environ, **variables})  # noqa: S606


def _make_archive() -> None:
    """Build the archives that do not exist yet; earlier failures are retried.

    Raises:
        AlreadyExists: another process is building them.
        TrainingFailed: the training run failed.
    """
    from hrm.spark.archive import KINDS, Archives
    from hrm.spark.archive_training import train
    from hrm.spark.launch import find_java, find_spark

    home = address.state_home()
    archives = Archives(
        str(home / "archives"), str(find_java().command), str(find_spark(_submitted_spark()).home)
    )
    if any(map(archives.problem, KINDS)):
        console.note("making the archive of Spark's classes, once; about half a minute …")
    if not train(archives, plugins=home / "plugins", attempts_max=sys.maxsize):
        raise errors.AlreadyExists(
            f"another process is making the archive in {archives.directory}; wait until it is there"
        )
    console.note(f"drivers start with {archives.path('driver')}")


def _submitted_spark() -> Path | None:
    """The Spark home of the ``spark-submit`` in use, if its path reveals it; None: pyspark's."""
    candidate = spark_submit().resolve().parent.parent
    return candidate if (candidate / "jars").is_dir() else None


def has_master(arguments: Sequence[str], conf: Path) -> bool:
    """Whether spark-submit finds a master where it looks for one: in its options, in the properties
    file or the defaults of the configuration directory ``conf``, in the variable MASTER."""
    properties, both = "", False
    for option, value in _options(arguments):
        names_master = value.lstrip().startswith(("spark.master=", "spark.remote="))
        if option in ("--master", "--remote") or (option in ("--conf", "-c") and names_master):
            return True
        if option == "--properties-file":
            properties = value
        both = both or option == "--load-spark-defaults"
    defaults = conf / "spark-defaults.conf"
    files = [Path(properties)] if properties else [defaults]
    if both:
        files.append(defaults)
    return any(map(_file_has_master, files)) or bool(os.environ.get("MASTER"))


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """spark-submit's own options, which precede the application, with their values."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        option, equals, value = arguments[position].partition("=")
        if option not in _SWITCHES and not equals:
            position += 1
            value = arguments[position] if position < len(arguments) else ""
        yield option, value
        position += 1


def _file_has_master(file: Path) -> bool:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return False  # spark-submit itself says what is wrong with it
    return re.search(r"^[ \t]*spark\.(master|remote)[ \t=:]+\S", text, re.MULTILINE) is not None


def exports(variables: Mapping[str, str], shell: Shell | None = None) -> list[str]:
    """Lines that export ``variables``, in the syntax of ``shell``; None: of the user's."""
    users = Path(os.environ.get("SHELL", "")).name
    shells = {"fish": Shell.FISH, "csh": Shell.CSH, "tcsh": Shell.CSH}
    chosen = shell or shells.get(users, Shell.SH)
    return [_export(chosen, name, value) for name, value in variables.items()]


def _export(shell: Shell, name: str, value: str) -> str:
    if shell is Shell.CSH:
        # An exclamation mark is history even between csh's quotes.
        return f"setenv {name} {shlex.quote(value)};".replace("!", "\\!")
    if shell is Shell.FISH:
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {name} '{escaped}';"
    return f"export {name}={shlex.quote(value)}"
