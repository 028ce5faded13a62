"""``hrm affinity``: what has been learned of run times, a client of QueueService."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hrm.cli import client, console
from hrm.cli.console import Output
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption

if TYPE_CHECKING:
    from hrm.v1 import queues_pb2 as pb

__all__ = ["app"]

CO_RUNNERS_SHOWN = 3

app = typer.Typer()


@app.command("affinity")
def affinity(
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="This queue and those below it alone.")
    ] = "",
    co_runners: Annotated[
        int,
        typer.Option(
            "--co-runners", min=1, max=100,
            help="Of the company that each has had: so many, the worst first.",
        ),
    ] = CO_RUNNERS_SHOWN,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:  # fmt: skip
    """Show how long tasks take on each platform and in company, as learned while they run."""
    from hrm.v1 import queues_pb2 as pb

    request = pb.ListAffinitiesRequest(queue=queue, co_runners_limit=co_runners)
    with client.connect(master) as connection:
        response: pb.ListAffinitiesResponse = client.all_pages(
            connection.queues.ListAffinities, request, timeout
        )
    platforms = sorted(set(response.platforms))
    del response.platforms[:]
    response.platforms.extend(platforms)
    if output is Output.JSON:
        console.print_json(client.document(response))
        return
    if response.kinds:
        from hrm.cli import affinity_views

        console.view(affinity_views.platforms_table(response.kinds))
        console.view(affinity_views.company_table(response.kinds))
    for note in _missing(response):
        console.note(note)


def _missing(response: pb.ListAffinitiesResponse) -> list[str]:
    """What is not known, and how it comes about."""
    notes = []
    if not response.kinds:
        notes.append(
            "nothing is learned yet: drivers report how long their tasks took some seconds after "
            "executors have ended their first; run an application, then look again"
        )
    if len(response.platforms) < 2:
        have = f"all nodes are of platform {response.platforms[0]}" if response.platforms else ""
        notes.append(
            f"{have or 'there are no nodes'}; platforms are compared once nodes state theirs: "
            "platform in hrm.toml [agent]"
        )
    elif response.kinds and not any(len(kind.platforms) > 1 for kind in response.kinds):
        notes.append("no application has run on two platforms yet, so that none can be compared")
    return notes
