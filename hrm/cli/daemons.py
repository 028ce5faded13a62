"""``hrm master``, ``hrm agent``, ``hrm scheduler``, ``hrm autoscale``: daemons, in the foreground.

Their flags are the settings of :mod:`hrm.config`, one flag a field, so that a new setting has its
flag, its help text and its check at once. Settings that there were have a flag, too, which no help
shows: it is refused with what to write instead. Values pass as text; only pydantic validates them,
with the same messages whether they came from a flag, the environment or ``hrm.toml``.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hrm import allocator, config, errors, text
from hrm.cli import console, store
from hrm.config.problems import FORMER

__all__ = ["app", "flag_name", "shown_default", "shown_type"]

BAD_CONFIGURATION = 2
FAILED = 1

_Settings = (
    type[config.MasterSettings]
    | type[config.AgentSettings]
    | type[config.SchedulerSettings]
    | type[config.AutoscaleSettings]
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


def _flag(name: str, option: Any) -> inspect.Parameter:
    """A keyword of optional text, as typer reads it."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


def _with_flags(
    settings_class: _Settings,
    run: Callable[..., None],
    more: Sequence[inspect.Parameter] = (),
) -> Callable[..., None]:
    """``run`` with the signature that typer reads: a keyword of optional text for every field, and
    ``more``."""
    parameters = []
    for name, field in settings_class.model_fields.items():
        default = shown_default(field)
        text = (field.description or "").strip()
        option = typer.Option(
            flag_name(name),
            metavar=shown_type(field.annotation),
            # Not in brackets: to rich, [auto] is markup.
            help=f"{text} (default: {default})".strip() if default else text,
        )
        parameters.append(_flag(name, option))

    parameters += [_flag(name, typer.Option(flag_name(name), hidden=True)) for name in FORMER]
    parameters += more

    def command(**flags: Any) -> None:
        run(flags)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = run.__doc__
    return command


def _master(flags: dict[str, Any]) -> None:
    """Run a master in the foreground.

    An option that is a setting may also be set in the table master of hrm.toml (port = 7480) or by
    a variable (HRM_MASTER_PORT=7480).
    """
    by_hand = {parameter.name: flags.pop(parameter.name) for parameter in store.PARAMETERS}

    async def serve() -> int:
        settings = config.load(config.MasterSettings, **flags)
        if store.is_wanted(by_hand):
            return store.run(by_hand, settings.state_dir)
        from hrm.master import daemon

        queues = config.load_queues()
        daemon.tune_python()
        return await daemon.run(settings, queues)

    _run(serve())


def _agent(flags: dict[str, str | None]) -> None:
    """Run a node's agent in the foreground.

    An option may also be set in the table agent of hrm.toml (cores = 8) or by a variable
    (HRM_AGENT_CORES=8).
    """

    async def serve() -> int:
        settings = config.load(config.AgentSettings, **flags)
        from hrm.agent import daemon

        return await daemon.run(settings)

    _run(serve(), own_log=True)


def _scheduler(flags: dict[str, str | None]) -> None:
    """Run a scheduler in a process of its own.

    An option may also be set in the table scheduler of hrm.toml (name = "s1") or by a variable
    (HRM_SCHEDULER_NAME=s1).
    """

    async def serve() -> int:
        settings = config.load(config.SchedulerSettings, **flags)
        from hrm.scheduler import daemon

        return await daemon.run(settings)

    _run(serve())


def _autoscale(flags: dict[str, str | None]) -> None:
    """Ask for nodes and give them back, by what waits and what is forecast, in the foreground.

    An option may also be set in the table autoscale of hrm.toml (nodes_max = 20) or by a variable
    (HRM_AUTOSCALE_NODES_MAX=20).
    """

    async def serve() -> int:
        settings = config.load(config.AutoscaleSettings, **flags)
        from hrm.autoscale import daemon

        return daemon.run(settings)

    _run(serve())


def _run(daemon: Coroutine[Any, Any, int], *, own_log: bool = False) -> None:
    """``own_log``: the daemon sets up structlog by itself."""
    allocator.few_heaps()
    if not own_log:
        _escape_logs()
    try:
        asyncio.run(_to_its_end(daemon))
    except errors.InvalidConfig as error:
        console.error_line(error.message)
        raise typer.Exit(BAD_CONFIGURATION) from None
    except errors.HrmError as error:  # possibly transient: the supervisor restarts the daemon
        console.error_line(error.message)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _to_its_end(daemon: Coroutine[Any, Any, int]) -> None:
    """End the process with the daemon's status; it has closed its files by then.

    The loop is not taken down in order: gRPC reports each call that ends by a byte in a socket
    that only the loop reads. With some hundred open calls that socket is full, its thread waits in
    the write, and the loop, in its last steps, for that thread: for ever.
    """
    code = await daemon
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _escape_logs() -> None:
    """Write structlog's lines to standard error, through ``hrm.text``: they contain text of other
    parties."""
    import structlog

    *before, _renderer = structlog.get_config()["processors"]
    structlog.configure(
        processors=[
            *before,
            structlog.processors.format_exc_info,
            text.log_processor,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        # Looked up for every line: where stderr is redirected later, the lines follow.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


app.command("master")(_with_flags(config.MasterSettings, _master, store.PARAMETERS))
app.command("agent")(_with_flags(config.AgentSettings, _agent))
app.command("scheduler")(_with_flags(config.SchedulerSettings, _scheduler))
app.command("autoscale")(_with_flags(config.AutoscaleSettings, _autoscale))
