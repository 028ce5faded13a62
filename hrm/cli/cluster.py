"""``hrm up`` and ``hrm down``: a cluster on this machine, from nothing and to nothing.

:mod:`hrm.cli.embedded` does the work; this module prints. Either the whole cluster is up at the end
of ``hrm up`` or none of it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hrm import address, errors
from hrm.cli import console
from hrm.cli.signals import sigterm_as_interrupt

if TYPE_CHECKING:
    from hrm.cli.embedded import Cluster, Progress
    from hrm.cli.node_sizes import NodeSize
    from hrm.config import AgentSettings, MasterSettings

__all__ = ["app"]

NODES_MAX = 64
BAD_CONFIGURATION = 2

app = typer.Typer(no_args_is_help=True)

StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="All its state. Default: $HRM_HOME or ~/.hrm."),
]

CoresOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        min=1,
        max=4096,
        help="Of each node. Default: as set for agents, else an equal share.",
    ),
]

MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Of each node, like 4g. Default: as set for agents, else an equal share.",
    ),
]

PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        help="Of the master; 0: any free one. Default: as set for the master, else 7480.",
    ),
]

SchedulersOption = Annotated[
    int | None,
    typer.Option(
        "--schedulers",
        min=1,
        max=256,
        help="Parallel ones in the master. Default: as set for the master, else 1.",
    ),
]

TlsOption = Annotated[
    bool,
    typer.Option(
        "--tls/--no-tls",
        envvar="HRM_TLS",
        help="Encrypt its traffic, by certificates of its own.",
    ),
]


WarmOption = Annotated[
    bool,
    typer.Option(
        "--warm/--no-warm",
        envvar="HRM_UP_WARM",
        help="Keep drivers ready for this directory, as hrm warm does, until hrm down.",
    ),
]


@app.command()
def up(
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=NODES_MAX, help="Nodes, each an agent process.")
    ] = 2,
    cores: CoresOption = None,
    memory: MemoryOption = None,
    port: PortOption = None,
    state_dir: StateDirOption = None,
    schedulers: SchedulersOption = None,
    event_log: Annotated[
        bool,
        typer.Option(
            "--event-log/--no-event-log",
            envvar="HRM_EVENT_LOG",
            help="Applications write Spark's event logs, for hrm history.",
        ),
    ] = True,
    tls: TlsOption = False,
    warm: WarmOption = False,
) -> None:
    """Start a cluster on this machine: one master and some nodes, all processes.

    Its daemons read hrm.toml and the variables HRM_MASTER_… and HRM_AGENT_…; options win.
    """
    from hrm.cli import embedded, history

    directory = _directory(state_dir)
    master_settings, agent_settings = _settings(directory)
    size = _node_size(nodes, cores, memory, agent_settings)
    with embedded.locked(directory):
        _refuse_second(embedded.Cluster.read(directory))
        console.note(
            f"{nodes} node{'s' if nodes > 1 else ''} of {size.cores} vcores and "
            f"{size.memory_mib} MiB each; state in {directory}"
        )
        for line in size.notes:
            console.note(f"note: {line}")
        host = address.DEFAULT_HOST
        cluster = embedded.Cluster(
            directory=directory,
            host=host,
            port=embedded.free_port(host, master_settings.port if port is None else port),
            nodes=nodes,
            cores=size.cores,
            memory_mib=size.memory_mib,
            event_log=event_log,
            tls=tls,
            warm=warm,
        )
        if removed := history.prune(directory / embedded.EVENT_LOGS, time.time()):
            console.note(f"removed {removed} event logs that were old or too many")
        began = time.monotonic()
        with _interruptible(), _progress() as progress:
            embedded.start(cluster, schedulers, progress)
    _print_next_steps(cluster, time.monotonic() - began)
    if warm:
        from hrm.cli.warm import keep_here

        keep_here({})


@app.command()
def down(state_dir: StateDirOption = None) -> None:
    """End the cluster that `hrm up` started, with everything that runs on it."""
    from hrm.cli import embedded

    directory = _directory(state_dir)
    if not directory.is_dir():
        console.note(f"nothing was running: there is no {directory}")
        return
    with embedded.locked(directory):
        cluster = embedded.Cluster.read(directory)
        with _progress() as progress:
            if cluster is None:
                ended = embedded.sweep_containers(directory)
            else:
                ended = embedded.stop(cluster, progress)
    if cluster is not None and cluster.warm:
        from hrm.cli.warm import stop_if_there

        stop_if_there()
    if not ended:
        console.note("nothing was running")
    for what in ended:
        console.note(f"ended {what}")


def _settings(directory: Path) -> tuple[MasterSettings, AgentSettings]:
    """What the daemons will read, checked before any of them starts."""
    from hrm.cli import embedded

    try:
        return embedded.daemon_settings(directory)
    except errors.InvalidConfig as error:
        console.error_line(error.message)
        raise typer.Exit(BAD_CONFIGURATION) from None


def _node_size(
    nodes: int, cores: int | None, memory: str | None, agents: AgentSettings
) -> NodeSize:
    """What is typed wins, then what is set, then an equal share of the machine."""
    from hrm.cli import node_sizes

    if memory is None and agents.memory_mib:
        memory = f"{agents.memory_mib}m"
    return node_sizes.node_size(
        nodes,
        cores or agents.cores or None,
        memory,
        has_cores=node_sizes.machine_cores(),
        has_memory_mib=node_sizes.machine_memory_mib(),
    )


def _directory(given: Path | None) -> Path:
    return (given or address.state_home()).expanduser().absolute()


def _refuse_second(old: Cluster | None) -> None:
    if old is None or not (alive := old.alive()):
        return
    whole = len(alive) == len(old.processes)
    names = ", ".join(f"{process.name} (pid {process.pid})" for process in alive)
    end = f"hrm down{_state_flag(old.directory)}"
    if whole:
        raise errors.AlreadyExists(
            f"a cluster is already running at hrm://{old.address}: {names}; "
            f"show it: hrm status, end it: {end}"
        )
    gone = [process for process in old.processes if process not in alive]
    logs = ", ".join(f"{process.name} ({process.log})" for process in gone)
    raise errors.AlreadyExists(
        f"a cluster is partly down at hrm://{old.address}: {names}; "
        f"the logs of what ended show why: {logs}; end the rest: {end}, and start again: hrm up"
    )


def _state_flag(directory: Path) -> str:
    usual = directory == address.state_home().absolute()
    return "" if usual else f" --state-dir {shlex.quote(str(directory))}"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM unwind the start, so that half a cluster never stays behind."""
    with sigterm_as_interrupt():
        try:
            yield
        except KeyboardInterrupt:
            console.note("interrupted; everything that had started is ended")
            raise typer.Exit(130) from None


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A line on stderr that names what is being waited for; plain lines if it is no terminal."""
    screen = console.stderr()
    if screen.is_terminal:
        with screen.status("") as line:
            yield line.update
        return
    last_shown = ""

    def show(what: str) -> None:
        nonlocal last_shown
        if what != last_shown:
            last_shown = what
            console.note(what)

    yield show


def _needed(cluster: Cluster) -> dict[str, str]:
    """Variables without which the next command would address another cluster."""
    needed = {"HRM_HOME": str(cluster.directory)} if _state_flag(cluster.directory) else {}
    meant = {
        "HRM_TOKEN_FILE": str(cluster.token),
        "HRM_TLS_CA": str(cluster.ca or ""),
        "HRM_MASTER": cluster.address,
    }
    return needed | {n: value for n, value in meant.items() if os.environ.get(n, value) != value}


def _print_next_steps(cluster: Cluster, took_s: float) -> None:
    lines = [
        f"HRM is up at hrm://{cluster.address} ({took_s:.1f} s). Next:",
        *(f"  export {name}={shlex.quote(value)}" for name, value in _needed(cluster).items()),
        "  hrm spark-submit app.py            # a stock Spark's spark-submit, on this cluster",
        '  eval "$(hrm env)"                  # or set up this shell, then:',
        f"  spark-submit --master hrm://{cluster.address} app.py",
        "  hrm status; hrm apps; hrm events   # look",
        *(
            ["  hrm history                        # Spark's pages of what has ended"]
            * cluster.event_log
        ),
        f"  hrm down{_state_flag(cluster.directory)}",
    ]
    typer.echo("\n".join(lines))
