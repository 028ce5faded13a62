"""``hrm queues``, ``hrm queue …`` and ``hrm whatif``: clients of QueueService."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hrm import errors
from hrm.cli import client, console
from hrm.cli.console import Output
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hrm.core.vocabulary.model import Resources
    from hrm.v1 import queues_pb2 as pb

__all__ = ["app"]

WAITING_SHOWN = 100
_NAMESAKES_SHOWN = 5
_RESOURCES = ("cores", "memory", "gpu_memory")

app = typer.Typer(no_args_is_help=True)
group = typer.Typer(
    no_args_is_help=True, help="Create, change, remove or show a queue of applications."
)
app.add_typer(group, name="queue")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A queue, as root.team; `hrm queues` lists them.")
]
GuaranteedOption = Annotated[
    str | None,
    typer.Option(
        "--guaranteed", metavar="AMOUNT",
        help="What it can have back at any time: a part of its parent's (25%), or amounts "
        "(cores=16,memory=64g,gpu_memory=40g). Default: what its siblings leave, by weight.",
    ),
]  # fmt: skip
MaximumOption = Annotated[
    str | None,
    typer.Option(
        "--maximum", metavar="AMOUNT",
        help="What it never exceeds: a part of the cluster, or amounts. Default: its parent's.",
    ),
]  # fmt: skip
WeightOption = Annotated[
    float | None,
    typer.Option("--weight", help="Its part of what its siblings leave, relative to theirs."),
]
MaxRunningOption = Annotated[
    int | None, typer.Option("--max-running", help="Applications that hold containers at once.")
]
OrderOption = Annotated[
    Literal["fifo", "fair", "priority", "classes"] | None,
    typer.Option("--order", help="Of the applications in it."),
]
DriverShareOption = Annotated[
    float | None,
    typer.Option("--driver-share", help="Part of its share that drivers on nodes may hold."),
]
MinimumUserLimitOption = Annotated[
    float | None,
    typer.Option("--minimum-user-limit", help="Part of its share that each user may always have."),
]
UserLimitFactorOption = Annotated[
    float | None,
    typer.Option("--user-limit-factor", help="Times its guarantee that one user may hold at most."),
]
PreemptibleOption = Annotated[
    bool | None,
    typer.Option(
        "--preemptible/--no-preemptible",
        help="May what it has borrowed be preempted for the guarantees of others?",
    ),
]
InterruptsOption = Annotated[
    bool | None,
    typer.Option(
        "--interrupts/--no-interrupts",
        help="With --order classes: may one of the highest class that waits interrupt others of "
        "the queue?",
    ),
]
MaximumClassOption = Annotated[
    Literal["normal", "urgent", "highest"] | None,
    typer.Option(
        "--maximum-class",
        help="With --order classes, in it and below it: the highest class that others than its "
        "administrators may submit with or request.",
    ),
]
SubmittersOption = Annotated[
    str | None,
    typer.Option(
        "--submitters", metavar="USERS",
        help="Who may submit to it, with ',' between; '*': all; '': its administrators alone.",
    ),
]  # fmt: skip
AdministratorsOption = Annotated[
    str | None,
    typer.Option(
        "--administrators", metavar="USERS", help="Who may change what is in it and below it."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; show what it would cost.")
]


@app.command("queues")
def queues(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also list the applications that wait, and why.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=10_000, help="With --waiting: at most so many of each queue."
        ),
    ] = WAITING_SHOWN,
    fairness: Annotated[
        bool,
        typer.Option(
            "--fairness",
            help="Show how each was served lately instead: throughput, relative to what is due to "
            "it, and waiting times; and how fairly all are.",
        ),
    ] = False,
    platforms: Annotated[
        bool,
        typer.Option(
            "--platforms",
            help="Show how the share of each is divided over unlike platforms instead: cores that "
            "it has there, of those that it may have now, and how much each platform suits it.",
        ),
    ] = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List the queues: what each is guaranteed, has, has borrowed, and waits for."""
    response = _listed(master, timeout, waiting_limit=limit if waiting else 0)
    if platforms:
        _show(response, output, lambda views: views.platforms_view(response.queues))
    elif fairness:
        _show(response, output, lambda views: views.fairness_view(response))
    else:
        _show(response, output, lambda views: views.queues_table(response.queues))
    if not waiting or output is Output.JSON:
        return
    if not any(queue.waiting for queue in response.queues):
        console.note("no application waits")
        return
    _show(response, output, lambda views: views.waiting_table(response.queues))
    if any(queue.waiting_total > len(queue.waiting) for queue in response.queues):
        console.note(f"the first {limit} of each queue are shown; for more: --limit {10 * limit}")


@group.command("show")
def show(
    name: NameArgument,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, max=10_000, help="At most so many of the applications that wait."
        ),
    ] = WAITING_SHOWN,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show one queue: what is stated of it, what it has, and which applications wait in it."""
    response = _listed(master, timeout, name=name, waiting_limit=limit)
    found = response.queues[0]
    _show(found, output, lambda views: views.queue_view(found))


@group.command("create")
def create(
    name: NameArgument,
    guaranteed: GuaranteedOption = None,
    maximum: MaximumOption = None,
    weight: WeightOption = None,
    max_running: MaxRunningOption = None,
    order: OrderOption = None,
    driver_share: DriverShareOption = None,
    minimum_user_limit: MinimumUserLimitOption = None,
    user_limit_factor: UserLimitFactorOption = None,
    preemptible: PreemptibleOption = None,
    interrupts: InterruptsOption = None,
    maximum_class: MaximumClassOption = None,
    submitters: SubmittersOption = None,
    administrators: AdministratorsOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Create a queue. Those on the way to it are created, too."""
    from hrm.v1 import queues_pb2 as pb

    stated = _stated(
        name, guaranteed=guaranteed, maximum=maximum, weight=weight, max_running=max_running,
        order=order, driver_share=driver_share, minimum_user_limit=minimum_user_limit,
        user_limit_factor=user_limit_factor, preemptible=preemptible, interrupts=interrupts,
        maximum_class=maximum_class, submitters=submitters, administrators=administrators,
    )  # fmt: skip
    request = pb.ChangeQueuesRequest(queues=[stated], create=True, dry_run=dry_run)
    _change(request, master, output, timeout)
    _warn_of_namesakes(name, master, timeout)


@group.command("set")
def set_(
    name: NameArgument,
    guaranteed: GuaranteedOption = None,
    maximum: MaximumOption = None,
    weight: WeightOption = None,
    max_running: MaxRunningOption = None,
    order: OrderOption = None,
    driver_share: DriverShareOption = None,
    minimum_user_limit: MinimumUserLimitOption = None,
    user_limit_factor: UserLimitFactorOption = None,
    preemptible: PreemptibleOption = None,
    interrupts: InterruptsOption = None,
    maximum_class: MaximumClassOption = None,
    submitters: SubmittersOption = None,
    administrators: AdministratorsOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="OPTION",
            help="As by default again, as in --unset max-running; may be given several times.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:  # fmt: skip
    """Change a queue; what is not given stays."""
    from hrm.v1 import queues_pb2 as pb

    stated = _stated(
        name, guaranteed=guaranteed, maximum=maximum, weight=weight, max_running=max_running,
        order=order, driver_share=driver_share, minimum_user_limit=minimum_user_limit,
        user_limit_factor=user_limit_factor, preemptible=preemptible, interrupts=interrupts,
        maximum_class=maximum_class, submitters=submitters, administrators=administrators,
    )  # fmt: skip
    keys = [each.removeprefix("--").replace("-", "_") for each in unset or ()]
    if not keys and len(stated.ListFields()) == 1:
        raise errors.InvalidRequest(
            "give what to change, as --guaranteed 25%; hrm queue set --help lists the options"
        )
    request = pb.ChangeQueuesRequest(queues=[stated], unset=keys, dry_run=dry_run)
    _change(request, master, output, timeout)


@group.command("remove")
def remove(
    name: NameArgument,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Remove a queue that has no applications and no queues below it."""
    from hrm.v1 import queues_pb2 as pb

    _change(pb.ChangeQueuesRequest(removed=[name], dry_run=dry_run), master, output, timeout)


@app.command("whatif")
def whatif(
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="The queue; `hrm queues` lists them.")
    ],
    executors: Annotated[int, typer.Option("--executors", min=1, max=10_000, help="How many.")],
    executor_cores: Annotated[
        int, typer.Option("--executor-cores", min=1, help="Cores of each.")
    ] = 1,
    executor_memory: Annotated[
        str, typer.Option("--executor-memory", metavar="SIZE", help="The heap of each, as 4g.")
    ] = "1g",
    overhead: Annotated[
        str | None,
        typer.Option(
            "--memory-overhead", metavar="SIZE",
            help="Memory of each beyond its heap. Default: Spark's, a tenth, 384m at least.",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help="Of the GPU of each. Default: no GPU."),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            "--user", metavar="USER",
            help="Whose they would be: the queue's limits of users are this one's. Default: a user "
            "without limits.",
        ),
    ] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:  # fmt: skip
    """What would become of executors, were they requested now? Nothing is changed."""
    from hrm.v1 import queues_pb2 as pb
    from hrm.wire import codec

    resources = _executor(executor_cores, executor_memory, overhead, gpu_memory)
    request = pb.WhatIfRequest(
        queue=queue, executors=executors, resources=codec.from_resources(resources), user=user
    )
    with client.connect(master) as connection:
        response = connection.queues.WhatIf(request, timeout=timeout)
    _show(response, output, lambda views: views.supposed_view(request, response))


def _executor(cores: int, memory: str, overhead: str | None, gpu_memory: str | None) -> Resources:
    """What an executor with these settings holds.

    Raises:
        InvalidRequest: a size is malformed.
    """
    from hrm.executor_size import first_executors_of, memory_mib

    sizes = {
        "--executor-memory": memory, "--memory-overhead": overhead, "--gpu-memory": gpu_memory
    }  # fmt: skip
    for option, size in sizes.items():
        if size is not None:
            memory_mib(size, option)
    conf = {"spark.executor.cores": str(cores), "spark.executor.memory": memory}
    if overhead is not None:
        conf["spark.executor.memoryOverhead"] = overhead
    if gpu_memory is not None:
        conf["spark.hrm.executor.gpu.memory"] = gpu_memory
    found = first_executors_of(conf)
    assert found is not None, "all of it has just been read"
    return found.resources


def _change(
    request: pb.ChangeQueuesRequest, master: str | None, output: Output, timeout_s: float
) -> None:
    with client.connect(master) as connection:
        response = connection.queues.ChangeQueues(request, timeout=timeout_s)
    _show(response, output, lambda views: views.change_view(response, request.removed))
    if request.dry_run:
        console.note("nothing is changed: this is what it would be")
        return
    for name in response.in_file:
        table = f'[queues."{name}"]'
        console.note(
            f"warning: hrm.toml of the master states {name}, too, and counts again when the master "
            f"starts; change {table} there"
        )


def _warn_of_namesakes(name: str, master: str | None, timeout_s: float) -> None:
    """Where the last part of a new queue's name no longer stands for one queue."""
    last = name.rpartition(".")[2]
    listed = _listed(master, timeout_s, waiting_limit=0).queues
    also = [x.name for x in listed if x.name != name and x.name.rpartition(".")[2] == last]
    if also:
        console.note(
            f"warning: {', '.join(also[:_NAMESAKES_SHOWN])} is called {last}, too; name each of "
            f"them whole from now on, as in --queue {name}"
        )


def _listed(
    master: str | None, timeout_s: float, *, name: str = "", waiting_limit: int
) -> pb.ListQueuesResponse:
    from hrm.v1 import queues_pb2 as pb

    request = pb.ListQueuesRequest(name=name, waiting_limit=waiting_limit)
    with client.connect(master) as connection:
        response: pb.ListQueuesResponse = client.all_pages(
            connection.queues.ListQueues, request, timeout_s
        )
    return response


def _stated(name: str, **given: Any) -> pb.QueueStated:
    """What the options state."""
    from hrm.v1 import queues_pb2 as pb

    stated = pb.QueueStated(name=name)
    for key, value in given.items():
        if value is None:
            continue
        if key in ("guaranteed", "maximum"):
            getattr(stated, key).CopyFrom(_quota(value, key))
        elif key in ("submitters", "administrators"):
            names = [each.strip() for each in value.split(",") if each.strip()]
            getattr(stated, key).SetInParent()
            getattr(stated, key).names.extend(names)
        else:
            setattr(stated, key, value)
    return stated


def _quota(text: str, option: str) -> pb.QueueQuota:
    """``25%``, or ``cores=16,memory=64g``; amounts themselves are checked by the master.

    Raises:
        InvalidRequest: it is neither.
    """
    from hrm.v1 import queues_pb2 as pb

    how = "give a part of all, as 25%, or amounts, as cores=16,memory=64g,gpu_memory=40g"
    if "=" not in text:
        if not text.strip().endswith("%"):
            raise errors.InvalidRequest(f"--{option} is {text!r}; {how}")
        return pb.QueueQuota(**dict.fromkeys(_RESOURCES, text.strip()))
    amounts: dict[str, str] = {}
    for part in text.split(","):
        resource, equals, amount = part.partition("=")
        key = resource.strip().replace("-", "_")
        if not equals or key not in _RESOURCES or not amount.strip() or key in amounts:
            raise errors.InvalidRequest(f"--{option} has {part.strip()!r}; {how}")
        amounts[key] = amount.strip()
    return pb.QueueQuota(**amounts)


def _show(message: Any, output: Output, view: Callable[[Any], RenderableType]) -> None:
    if output is Output.JSON:
        console.print_json(client.document(message))
        return
    from hrm.cli import queue_views

    console.view(view(queue_views))
