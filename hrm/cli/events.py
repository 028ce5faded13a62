"""``hrm events``: past and current events of the cluster.

For some days, the master keeps every change of state of an application, a container or a node, and
all exclusions. With ``--follow`` the command keeps running, and an outage of the master loses
nothing: the restarted one is queried for what followed the last event shown.
"""

from __future__ import annotations

import enum
import re
import sys
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm import errors
from hrm.cli import client, console
from hrm.cli.console import Output
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption
from hrm.core.vocabulary.wakefulness import Patience

if TYPE_CHECKING:
    from hrm.v1 import events_pb2

__all__ = ["app", "seconds_of"]

AWAY_MAX_S = 600.0
"""How long --follow waits for a master that is away."""
_RETRY_S = 0.5
_RETRY_MAX_S = 5.0
_LATE_S = 5.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WHY_GAP = "they exceed the age or number that the master keeps"
_LATEST = 100
_LATEST_SINCE = 100_000

app = typer.Typer(no_args_is_help=True)


class KindChoice(enum.Enum):
    """What events are about, as it is typed."""

    APPLICATION = "application"
    CONTAINER = "container"
    NODE = "node"
    MASTER = "master"
    JOURNAL = "journal"


@app.command()
def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new ones, until Ctrl-C.")
    ] = False,
    application: Annotated[
        str, typer.Option("--app", metavar="ID", help="Of this application alone.")
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Of this node, and of what runs there.")
    ] = "",
    kinds: Annotated[
        list[KindChoice] | None,
        typer.Option("--kind", help="Of this kind alone; may be given several times."),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="AGE", help="Not older than this: 30s, 10m, 2h, 1d.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=100_000,
            help="At most this many, the latest. Default: 100; all with --since.",
        ),
    ] = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show what changed, and how. JSON: one object; with --follow, one object a line."""
    from hrm.v1.events_pb2 import WatchEventsRequest

    request = WatchEventsRequest(
        application_id=application,
        node=node,
        since_s=time.time() - seconds_of(since) if since else 0.0,
        follow=follow,
        limit=limit or (_LATEST_SINCE if since else _LATEST),
        kinds=[kind.value for kind in kinds or ()],
    )
    shown = _Shown(output, follow=follow)
    try:
        if follow:
            _follow(request, master, timeout, shown)
        else:
            with client.connect(master) as connection:
                for page in connection.events.WatchEvents(request, timeout=timeout):
                    shown.add(page)
            shown.end()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def seconds_of(text: str, option: str = "--since") -> float:
    """Seconds of an age such as 30s, 10m, 2h or 1d, which is that of ``option``.

    Raises:
        InvalidRequest: it is none.
    """
    matched = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", text.strip())
    if matched is None:
        raise errors.InvalidRequest(f"{option} {text!r} is no age; write 30s, 10m, 2h or 1d")
    return float(matched[1]) * _UNITS_S[matched[2]]


def _follow(
    request: events_pb2.WatchEventsRequest, master: str | None, timeout_s: float, shown: _Shown
) -> None:
    """Until Ctrl-C, over restarts of the master.

    Raises:
        Unavailable: the master was away for ``AWAY_MAX_S``, or has not been there at all.
    """
    patience: Patience | None = None
    pause_s = _RETRY_S
    while True:
        try:
            with client.connect(master) as connection:
                for page in connection.events.WatchEvents(request):
                    shown.add(page)
                    request.resume = page.resume
                    late_s = timeout_s + _RETRY_MAX_S + _LATE_S
                    patience = Patience(time.monotonic(), limit_s=AWAY_MAX_S, late_s=late_s)
                    pause_s = _RETRY_S
        except errors.HrmError as error:
            # One that is stopped politely cancels the stream, which is no error of any other kind.
            away = type(error) in (errors.Unavailable, errors.HrmError)
            if patience is not None and pause_s == _RETRY_S:
                patience.contact(time.monotonic())  # pages come when there are events
            if not away or patience is None or patience.is_over(time.monotonic()):
                raise
            if pause_s == _RETRY_S:
                console.note("the master is unreachable; waiting for it")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MAX_S)


class _Shown:
    """Events on stdout: lines for people, JSON for programs."""

    def __init__(self, output: Output, *, follow: bool) -> None:
        self._output = output
        self._follow = follow
        self._kept: list[dict[str, Any]] = []
        self._resume = ""
        self._any = False

    def add(self, page: events_pb2.EventPage) -> None:
        if page.gap:
            console.note(f"events are missing here: {_WHY_GAP}")
        self._resume = page.resume
        self._any = self._any or bool(page.events)
        if self._output is Output.TABLE:
            for event in page.events:
                console.line(line_of(event))
            sys.stdout.flush()
            return
        documents = [client.document(event) for event in page.events]
        if not self._follow:
            self._kept += documents
            return
        if page.gap:
            documents.insert(0, client.document(_gap()))
        for document in documents:
            console.json_line(document)

    def end(self) -> None:
        if self._output is Output.JSON:
            console.print_json({"events": self._kept, "resume": self._resume})
        elif not self._any:
            console.note(
                "no such events; hrm events --since 1d shows more; names: hrm apps --all, hrm nodes"
            )


def _gap() -> events_pb2.StateEvent:
    """In place of events that are missing, for programs: the journal's own change, without an
    id."""
    from hrm.core.vocabulary.history import StateEvent
    from hrm.wire.events import from_event

    at_s = time.time()
    gap = StateEvent(event_id=0, at_s=at_s, kind="journal", to_state="gap", reason=_WHY_GAP)
    return from_event(replace(gap, actor="master"))


def line_of(event: events_pb2.StateEvent) -> str:
    """One event as one line: when, what, from where to where, where, why, by whom."""
    at = datetime.fromtimestamp(event.at_s).astimezone()
    subject = event.container_id or event.application_id or event.node or f"the {event.kind}"
    if event.kind == "node":  # one that is excluded for an application alone has both
        subject = event.node
    change = f"{event.from_state} -> {event.to_state}" if event.from_state else event.to_state
    where = f" on {event.node}" if event.node and event.kind == "container" else ""
    code = f" {event.exit_code}" if event.exit_code >= 0 else ""
    cause = f" ({event.cause}{code})" if event.cause else ""
    why = f": {console.one_line(event.reason)}" if event.reason else ""
    stamp = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
    return f"{stamp} {event.kind} {subject} {change}{where}{cause}{why} [{event.actor}]"
