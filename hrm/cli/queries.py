"""``hrm status``, ``nodes``, ``apps``, ``app …`` and ``node …``: clients of AdminService.

Every command has ``--output json``, which prints the service's response as protobuf's JSON (always
one object; 64-bit numbers are strings there), so that whatever the table leaves out is still there.
"""

from __future__ import annotations

import enum
import getpass
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hrm import errors
from hrm.cli import client, console
from hrm.cli.console import Output, plain
from hrm.text import shown

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import RenderableType

    from hrm.v1 import admin_pb2, node_pb2

__all__ = ["app", "show"]

TIMEOUT_S = 10.0


class NodeStateChoice(enum.Enum):
    """States of nodes, as they are typed."""

    ALIVE = "alive"
    DRAINING = "draining"
    LOST = "lost"


class BindingChoice(enum.Enum):
    """How cores stand by GPUs."""

    SHARED = "shared"
    PARTIAL = "partial"
    EVEN = "even"


app = typer.Typer(no_args_is_help=True)
APPLICATIONS_DEFAULT = 100
"""The master's default: so many of the latest applications are listed if no limit is given."""

CONTAINERS_DEFAULT = 100
"""Executors in the table of one application."""
STEPS_MAX = 1_000
"""Steps of one request; a master takes far fewer."""

NAMES_HINTED = 10
"""Names that a hint repeats; a command of hundreds would bury what it is the hint to."""

app_group = typer.Typer(
    no_args_is_help=True,
    help="Show one application, its logs and why it waits, let it go sooner, or end it.",
)
node_group = typer.Typer(
    no_args_is_help=True, help="Show a node, take it out of service, repartition it."
)
app.add_typer(app_group, name="app")
app.add_typer(node_group, name="node")

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="HOST:PORT",
        help="The master to query. Default: $HRM_MASTER, else the cluster that `hrm up` started.",
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="A table for reading, JSON for programs.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the reply.")
]
StreamOption = Annotated[
    Literal["stdout", "stderr"], typer.Option("--stream", help="Which of the two files.")
]
TailOption = Annotated[
    int, typer.Option("--tail", metavar="BYTES", min=0, help="Only the end; 0: all of it.")
]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue as the log grows, until Ctrl-C.")
]
ApplicationArgument = Annotated[
    str, typer.Argument(metavar="ID", help="An application's id; `hrm apps --all` lists them.")
]

NODE_HELP = "A node's name; `hrm nodes` lists them."


@app.command()
def status(
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show the cluster at a glance: master, nodes, what is free, schedulers."""
    from hrm.v1.admin_pb2 import GetClusterRequest

    with client.connect(master) as connection:
        cluster = connection.admin.GetCluster(GetClusterRequest(), timeout=timeout)
    show(cluster, output, lambda render: render.cluster_view(cluster))


@app.command()
def nodes(
    states: Annotated[
        list[NodeStateChoice] | None,
        typer.Option("--state", help="Those in this state alone; may be given several times."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, max=1_000_000, help="At most this many, in order of name; 0: all."
        ),
    ] = 0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List the nodes and their resource units."""
    from hrm.v1.admin_pb2 import GetClusterRequest

    with client.connect(master) as connection:
        response = _listed_nodes(connection, timeout, states=states or (), limit=limit)
        if not response.nodes and output is Output.TABLE:
            if states:
                console.note("no node is in such a state; all of them: hrm nodes")
            else:
                _note_no_nodes(connection.admin.GetCluster(GetClusterRequest(), timeout=timeout))
            return
    there_are_more = bool(response.next_page_token) or 0 < limit < len(response.nodes)
    if limit:
        del response.nodes[limit:]
    show(response, output, lambda render: render.nodes_table(response.nodes))
    if there_are_more:
        console.note(f"the first {limit} are shown; for all: hrm nodes --limit 0")


def _listed_nodes(
    connection: client.Master,
    timeout_s: float,
    *,
    name: str = "",
    states: Iterable[NodeStateChoice] = (),
    limit: int = 0,
) -> admin_pb2.ListNodesResponse:
    """With pages until there are ``limit`` nodes, or more; 0: all."""
    from hrm.v1.admin_pb2 import ListNodesRequest

    numbers = [f"NODE_STATE_{state.name}" for state in states]
    request = ListNodesRequest(name=name, states=numbers, page_size=limit)
    response: admin_pb2.ListNodesResponse = client.all_pages(
        connection.admin.ListNodes, request, timeout_s, lambda x: 0 < limit <= len(x.nodes)
    )
    return response


def _note_no_nodes(cluster: admin_pb2.Cluster) -> None:
    from hrm.cli import render

    if cluster.HasField("recovery"):
        recovery = render.recovery_line(cluster.recovery)
        console.note(f"no node yet: the master has restarted; {recovery}")
        return
    console.note("no node yet; start an agent: hrm agent --master HOST:PORT")


@app.command()
def apps(
    every: Annotated[bool, typer.Option("--all", help="Include ended ones.")] = False,
    queue: Annotated[
        str,
        typer.Option("--queue", metavar="NAME", help="Those in this queue, or below it, alone."),
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="At most this many, the latest. Default: 100.")
    ] = 0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List the applications."""
    from hrm.v1.admin_pb2 import ListApplicationsRequest

    request = ListApplicationsRequest(include_ended=every, limit=limit, queue=queue)
    with client.connect(master) as connection:
        response = client.all_pages(connection.admin.ListApplications, request, timeout)
    if not response.applications and output is Output.TABLE:
        ended = "" if every else "hrm apps --all shows ended ones; "
        of_queue = f" in {queue} or below it" if queue else ""
        console.note(f"no applications{of_queue}; {ended}to run one: hrm spark-submit app.py")
        return
    show(response, output, lambda render: render.applications_table(response.applications))
    if len(response.applications) == (limit or APPLICATIONS_DEFAULT):
        shown = len(response.applications)
        console.note(f"the latest {shown} are shown; for more: hrm apps --limit {10 * shown}")


@app_group.command("show")
def app_show(
    application_id: ApplicationArgument,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=1_000_000,
            help=f"At most this many executors, the latest. Default: {CONTAINERS_DEFAULT}; "
            "all in JSON.",
        ),
    ] = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show one application with its containers."""
    from hrm.v1.admin_pb2 import GetApplicationRequest

    containers = limit or (CONTAINERS_DEFAULT if output is Output.TABLE else 0)
    request = GetApplicationRequest(application_id=application_id, containers_limit=containers)
    with _application_known(), client.connect(master) as connection:
        found = connection.admin.GetApplication(request, timeout=timeout)
    show(found, output, lambda render: render.application_view(found))


@app_group.command("why")
def app_why(
    application_id: ApplicationArgument,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Explain why an application or a pipeline task waits, or why it ended."""
    from hrm.v1.admin_pb2 import ExplainApplicationRequest

    request = ExplainApplicationRequest(application_id=application_id)
    with _application_known(), client.connect(master) as connection:
        response = connection.admin.ExplainApplication(request, timeout=timeout)
    show(response, output, lambda render: render.explanation_view(response))


@app_group.command("profile")
def app_profile(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A pipeline, the kind of one of its steps, or the name of an application; "
            "`hrm pipeline list` has pipelines, `hrm apps` applications.",
        ),
    ],
    user: Annotated[
        str, typer.Option("--user", help="Whose; for operators. Default: your own.")
    ] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show what a pipeline's steps were measured to take, and what they, or an application's
    containers, use of a GPU as they run."""
    from hrm.cli import pipeline_views
    from hrm.v1.pipeline_pb2 import GetPipelineProfilesRequest

    request = GetPipelineProfilesRequest(name=name, user=user, asker=getpass.getuser())
    with client.connect(master) as connection:
        response = connection.pipelines.GetProfiles(request, timeout=timeout)
    if output is Output.JSON:
        console.print_json(client.document(response))
        return
    if response.profiles:
        console.view(pipeline_views.profiles_view(response.profiles))
    if response.containers:
        console.view(pipeline_views.container_uses_view(response.containers))
    if not response.profiles and not response.containers:
        console.note(
            f"no step of {name} was measured yet, and no container; the pipelines there are: "
            f"hrm pipeline list --all, the applications: hrm apps --all"
        )


@app_group.command("kill")
def app_kill(
    application_id: ApplicationArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Kept with the application, shown to its user.")
    ] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """End an application and its containers."""
    from hrm.v1.admin_pb2 import KillApplicationRequest

    request = KillApplicationRequest(application_id=application_id, reason=reason)
    with _application_known(), client.connect(master) as connection:
        killed = connection.admin.KillApplication(request, timeout=timeout)
    show(killed, output, lambda render: render.applications_table([killed]))


@app_group.command("priority", context_settings={"ignore_unknown_options": True})
def app_priority(
    application_id: ApplicationArgument,
    steps: Annotated[
        str,
        typer.Argument(
            metavar="+|-", help="One step up or down, of a tenth each; several: +3 or -2."
        ),
    ],
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Let an application go sooner or later in a queue whose order is classes.

    What waits is in the new order at once; what runs is not disturbed.
    """
    from hrm.v1.admin_pb2 import ChangePriorityRequest, GetApplicationRequest

    request = ChangePriorityRequest(application_id=application_id, steps=_steps(steps))
    known = GetApplicationRequest(application_id=application_id, containers_limit=1)
    with _application_known(), client.connect(master) as connection:
        before = connection.admin.GetApplication(known, timeout=timeout)
        changed = connection.admin.ChangePriority(request, timeout=timeout)
    show(changed, output, lambda render: render.applications_table([changed]))
    if before.priority_class and before.priority_tenths == changed.priority_tenths:
        console.note(
            "its priority stays as it was: it is at the end of its range, or the steps of this "
            "period, which are summed (priority_period_s), have changed its class already. These "
            f"count all the same; hrm app why {application_id} shows what brought it there"
        )


def _steps(typed: str) -> int:
    """``+``, ``-``, or one of them and how many."""
    number = typed[1:] or "1"
    if typed[:1] not in ("+", "-") or not number.isdecimal() or not 1 <= int(number) <= STEPS_MAX:
        raise errors.InvalidRequest(
            f"STEPS is {shown(typed, 40)!r}: give + or -, or one of them with a number from 1 to "
            f"{STEPS_MAX}, as +3"
        )
    return int(typed[0] + number)


@app_group.command("logs")
def app_logs(
    application_id: ApplicationArgument,
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="N|driver",
            help="Executor id, or driver, which ran on a node too. Default: the first executor.",
        ),
    ] = "",
    attempt: Annotated[
        int,
        typer.Option("--attempt", min=0, help="With --executor driver: which; 0: this one's."),
    ] = 0,
    stream: StreamOption = "stderr",
    tail: TailOption = 0,
    follow: FollowOption = False,
    link: Annotated[
        bool, typer.Option("--link", help="Print a link to it for your browser instead.")
    ] = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Print an executor's or a driver's log. JSON: one object; with --follow, one a line."""
    from hrm.v1.admin_pb2 import LinkLogRequest, ReadLogsRequest

    if attempt:
        if executor != "driver":
            raise errors.InvalidRequest("--attempt applies to drivers; give --executor driver, too")
        executor = f"driver/{attempt}"
    if link:
        if follow or tail:
            raise errors.InvalidRequest("--link opens the whole log; leave out --tail and --follow")
        ask = LinkLogRequest(
            application_id=application_id,
            executor_id=executor,
            stream=stream,
            asker=getpass.getuser(),
        )
        with _application_known(), client.connect(master) as connection:
            response = connection.admin.LinkLog(ask, timeout=timeout)
        if output is Output.JSON:
            show(response, output, lambda _: "")
        else:
            typer.echo(response.url)  # whole, however wide the terminal
        return
    request = ReadLogsRequest(
        application_id=application_id,
        executor_id=executor,
        stream=stream,
        tail_bytes=tail,
        follow=follow,
    )
    with _application_known(), client.connect(master) as connection:
        # However long the log, the master ends a transfer that stands still, and the channel's
        # keepalive notices a dead master.
        call = connection.admin.ReadLogs(request)
        try:
            _print_log(call, request, output)
        except KeyboardInterrupt:
            call.cancel()
            raise typer.Exit(130) from None


@node_group.command("show")
def node_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NODE_HELP)],
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show one node: its resource units, and by which shortcuts its executors start faster."""
    with client.connect(master) as connection:
        response = _listed_nodes(connection, timeout, name=name)
    found = next((node for node in response.nodes if node.name == name), None)
    if found is None:
        raise errors.NotFound(f"no such node: {name}; hrm nodes lists them")
    show(found, output, lambda render: render.node_view(found))


@node_group.command("drain")
def node_drain(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=NODE_HELP)],
    undo: Annotated[bool, typer.Option("--undo", help="Return them to service.")] = False,
    move: Annotated[
        float,
        typer.Option(
            "--move",
            metavar="SECONDS",
            min=0.0,
            max=3600.0,
            help="Containers there migrate their data to others within this time, and end.",
        ),
    ] = 0.0,
    reason: Annotated[str, typer.Option(help="Why, for the nodes' events.")] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Place no new containers on nodes; running ones continue to their end, or are moved."""
    from hrm.v1.admin_pb2 import DrainNodesRequest

    if undo and move:
        raise errors.InvalidRequest("--undo and --move exclude each other; leave one of them out")
    with _hint("hrm nodes lists them"), client.connect(master) as connection:
        request = DrainNodesRequest(names=names, undo=undo, move_within_s=move, reason=reason)
        response = connection.admin.DrainNodes(request, timeout=timeout)
    show(response, output, lambda render: render.nodes_table(response.nodes))
    if not undo:
        again = shlex.join(names[:NAMES_HINTED])
        if len(names) > NAMES_HINTED:
            again += f" ... (all {len(names)} names)"
        console.note(f"to return them to service: hrm node drain --undo {again}")


@node_group.command("bind")
def node_bind(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NODE_HELP)],
    mode: Annotated[
        BindingChoice | None,
        typer.Option("--mode", help="One pool of cores, some for each GPU, or all divided."),
    ] = None,
    bound_cores: Annotated[
        int | None, typer.Option("--bound-cores", min=1, max=4096, help="Of each GPU, if partial.")
    ] = None,
    reserve: Annotated[
        int | None,
        typer.Option("--reserve", min=0, max=4096, help="Cores kept without a GPU, if partial."),
    ] = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Repartition a node into resource units; what is idle moves at once, the rest as it ends."""
    from hrm.v1.admin_pb2 import BindNodeRequest

    if (mode, bound_cores, reserve) == (None, None, None):
        raise errors.InvalidRequest("give what to change: --mode, --bound-cores or --reserve")
    request = BindNodeRequest(
        name=name,
        mode=f"BINDING_MODE_{mode.name}" if mode else None,
        bound_cores=bound_cores,
        reserve_cores=reserve,
    )
    with _hint("hrm nodes lists the nodes and their units"), client.connect(master) as connection:
        response = connection.admin.BindNode(request, timeout=timeout)
    show(response, output, lambda _: plain(response.message))


def show(message: Message, output: Output, view: Callable[[Any], RenderableType]) -> None:
    """Print a service's message: as JSON, or as ``view`` makes it of the module ``render``."""
    if output is Output.JSON:
        console.print_json(client.document(message))
        return
    from hrm.cli import render

    console.view(view(render))


def _print_log(
    chunks: Iterator[node_pb2.LogChunk], request: admin_pb2.ReadLogsRequest, output: Output
) -> None:
    if output is Output.TABLE:
        writer = console.LogWriter()
        for chunk in chunks:
            writer.write(chunk.data)
        writer.write(b"", last=True)
        return
    import codecs

    about = {
        "application_id": request.application_id,
        "executor_id": request.executor_id,
        "stream": request.stream,
    }
    # A chunk may end in the middle of a character.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    if not request.follow:
        text = "".join(decoder.decode(chunk.data) for chunk in chunks) + decoder.decode(b"", True)
        console.print_json({**about, "text": text})
        return
    for chunk in chunks:
        console.json_line({**about, "text": decoder.decode(chunk.data)})


@contextmanager
def _hint(hint: str) -> Iterator[None]:
    """Add the next command to a NotFound that passes, unless the message contains it already."""
    try:
        yield
    except errors.NotFound as error:
        if "hrm " in error.message:
            raise
        raise errors.NotFound(f"{error.message}; {hint}") from error


def _application_known() -> AbstractContextManager[None]:
    return _hint("hrm apps --all lists every application")
