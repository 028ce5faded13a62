"""``hrm master``, ``hrm agent`` and ``hrm scheduler``: the daemons, in the foreground.

Their flags are the settings of :mod:`hrm.config`, one flag a field, so that a new setting has its
flag, its help text and its check at once. Values pass as text; pydantic alone judges them, with the
same words whether they came from a flag, the environment or ``hrm.toml``.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hrm import config, errors
from hrm.cli import console

__all__ = ["app", "flag_name", "shown_default", "shown_type"]

BAD_CONFIGURATION = 2

_Settings = (
    type[config.MasterSettings] | type[config.AgentSettings] | type[config.SchedulerSettings]
)

app = typer.Typer(no_args_is_help=True)


def flag_name(field: str) -> str:
    """The flag of a field of the settings."""
    return "--" + field.replace("_", "-")


def shown_type(annotation: Any) -> str:
    """What to write in place of a value of this type, in help texts and documents."""
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    if isinstance(annotation, types.UnionType):
        return "|".join(shown_type(a) for a in typing.get_args(annotation) if a is not type(None))
    names = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "true|false", Path: "PATH"}
    return names.get(annotation, "TEXT")


def shown_default(field: Any) -> str:
    """The default of a pydantic field as people read it; paths relative to ``$HRM_HOME``."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path):
        home = config.hrm_home()
        return f"$HRM_HOME/{value.relative_to(home)}" if value.is_relative_to(home) else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value == () else str(value)


def _with_flags(settings_class: _Settings, run: Callable[..., None]) -> Callable[..., None]:
    """``run`` with the signature that typer reads: a keyword of optional text for every field."""
    parameters = []
    for name, field in settings_class.model_fields.items():
        default = shown_default(field)
        text = (field.description or "").strip()
        option = typer.Option(
            flag_name(name),
            metavar=shown_type(field.annotation),
            help=f"{text} [{default}]".strip() if default else text,
        )
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, option],
            )
        )

    def command(**flags: str | None) -> None:
        run(flags)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = run.__doc__
    return command


def _master(flags: dict[str, str | None]) -> None:
    """Run a master in the foreground. See docs/configuration.md for its settings."""

    def start() -> Awaitable[int]:
        settings = config.load(config.MasterSettings, **flags)
        from hrm.master import daemon

        daemon.collect_seldom()
        return daemon.run(settings)

    _run(start)


def _agent(flags: dict[str, str | None]) -> None:
    """Run a node's agent in the foreground. See docs/configuration.md for its settings."""

    def start() -> Awaitable[int]:
        settings = config.load(config.AgentSettings, **flags)
        from hrm.agent import daemon

        return daemon.run(settings)

    _run(start)


def _scheduler(flags: dict[str, str | None]) -> None:
    """Run a scheduler in a process of its own. See docs/configuration.md for its settings."""

    def start() -> Awaitable[int]:
        settings = config.load(config.SchedulerSettings, **flags)
        from hrm.scheduler import daemon

        return daemon.run(settings)

    _run(start)


def _run(start: Callable[[], Awaitable[int]]) -> None:
    async def main() -> int:
        return await start()

    try:
        code = asyncio.run(main())
    except errors.InvalidConfig as error:
        console.error_line(error.message)
        raise typer.Exit(BAD_CONFIGURATION) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)


app.command("master")(_with_flags(config.MasterSettings, _master))
app.command("agent")(_with_flags(config.AgentSettings, _agent))
app.command("scheduler")(_with_flags(config.SchedulerSettings, _scheduler))
