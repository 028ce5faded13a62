"""``hrm token`` and ``hrm audit``: who may call the cluster, and who has changed what.

A token goes to stdout once, when it is made, or straight into a private file (``--file``); no other
command shows it. What a user does with it: the file that ``HRM_TOKEN_FILE`` names, mode 0600.
"""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hrm import errors
from hrm.cli import client, console, events
from hrm.cli.console import Output, plain
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from hrm.v1 import identity_pb2

__all__ = ["app"]

NEVER = "never"
PEOPLE_EXPIRE = "90d"
JOIN_EXPIRES = "1h"
_WHEN = "%Y-%m-%d %H:%M"


class RoleChoice(enum.Enum):
    """Roles, as they are typed."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    SCHEDULER = "scheduler"


app = typer.Typer(no_args_is_help=True)
token_group = typer.Typer(
    no_args_is_help=True, help="Tokens of users, services, nodes and schedulers."
)
app.add_typer(token_group, name="token")

TokenArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A token's id; `hrm token list` lists them.")
]


@token_group.command()
def create(
    role: Annotated[
        RoleChoice | None,
        typer.Option("--role", help="What it may do. Of a node: agent, of a scheduler: that."),
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Of this user.")] = "",
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="Of this program, such as airflow.")
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Of the agent of this node, and no other.")
    ] = "",
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="NAME", help="Of this scheduler.")
    ] = "",
    join: Annotated[
        bool,
        typer.Option("--join", help="One that enrols a node, once: --node NAME, or any node."),
    ] = False,
    expires: Annotated[
        str,
        typer.Option(
            "--expires",
            metavar="AGE",
            help="After 30s, 10m, 2h, 30d, or never. Default: 90d for users and services, 1h with "
            "--join, else never.",
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Write it there, mode 0600, and not here."),
    ] = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Make a token. It is shown this once: the master keeps a digest of it."""
    from hrm.token_file import new_file
    from hrm.v1.identity_pb2 import CreateTokenRequest, RevokeTokenRequest

    kind, name = _whose(user=user, service=service, node=node, scheduler=scheduler, join=join)
    wanted = _role(kind, role, join=join)
    if file is not None and file.exists():
        raise errors.AlreadyExists(f"{file} exists; name another file, or remove it")
    request = CreateTokenRequest(
        name=name, kind=kind, role=wanted, lifetime_s=_lifetime_s(expires, kind, join=join)
    )
    with client.connect(master) as connection:
        made = connection.identities.CreateToken(request, timeout=timeout)
        if file is not None:
            try:
                new_file(file.expanduser().absolute(), made.token)
            except errors.HrmError:
                useless = RevokeTokenRequest(token_id=made.info.token_id)
                connection.identities.RevokeToken(useless, timeout=timeout)
                raise
            made.ClearField("token")
    if output is Output.JSON:
        show(made, output, lambda _: "")
    elif made.token:
        typer.echo(made.token)
    console.note(_made(made, file))


@token_group.command("list")
def list_tokens(
    every: Annotated[
        bool, typer.Option("--all", help="Include those that ended in the last 30 days.")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of this identity alone.")
    ] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List the tokens: an administrator all of them, others their own. Never the secrets."""
    from hrm.v1.identity_pb2 import ListTokensRequest

    request = ListTokensRequest(include_ended=every, name=name)
    with client.connect(master) as connection:
        response = client.all_pages(connection.identities.ListTokens, request, timeout)
    if not response.tokens and output is Output.TABLE:
        console.note("no tokens; to make one: hrm token create --user NAME --role submitter")
        return
    show(response, output, lambda _: _tokens_table(response.tokens))


@token_group.command()
def revoke(
    token_id: TokenArgument,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Make a token worthless, at once; calls that are under way with it end, too."""
    from hrm.v1.identity_pb2 import RevokeTokenRequest

    with client.connect(master) as connection:
        request = RevokeTokenRequest(token_id=token_id)
        ended = connection.identities.RevokeToken(request, timeout=timeout)
    show(ended, output, lambda _: _tokens_table([ended]))


@token_group.command()
def whoami(
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show whom the token here identifies, and its role."""
    from hrm.v1.identity_pb2 import WhoAmIRequest

    with client.connect(master) as connection:
        me = connection.identities.WhoAmI(WhoAmIRequest(), timeout=timeout)
    until = f", until {_when(me.expires_at_s)}" if me.expires_at_s else ""
    token = f", token {me.token_id}" if me.token_id else ""
    who = "the cluster's own token" if me.kind == "cluster" else f"{me.kind} {me.name}"
    show(me, output, lambda _: plain(f"{who}, role {me.role}{token}{until}"))


@app.command()
def audit(
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Of this identity alone.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="AGE", help="Not older than this: 30s, 10m, 2h, 1d.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most this many, the latest.")
    ] = 100,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show who has changed what, from where, and what was refused; for operators."""
    from hrm.v1.identity_pb2 import ReadAuditRequest

    since_s = time.time() - events.seconds_of(since) if since else 0.0
    request = ReadAuditRequest(name=user, since_s=since_s, limit=limit)
    with client.connect(master) as connection:
        response = connection.identities.ReadAudit(request, timeout=timeout)
    if response.dropped:
        console.note(
            f"{response.dropped} entries are missing: the disk of the master was too slow or full"
        )
    show(response, output, lambda _: _audit_table(response.entries))


def _whose(*, user: str, service: str, node: str, scheduler: str, join: bool) -> tuple[str, str]:
    """Kind and name.

    Raises:
        InvalidRequest: not one of them is given.
    """
    named = {"user": user, "service": service, "node": node, "scheduler": scheduler}
    given = {kind: name for kind, name in named.items() if name}
    if join and not given:
        return "node", ""
    if len(given) != 1 or (join and not node):
        raise errors.InvalidRequest(
            "give one of --user NAME, --service NAME, --node NAME and --scheduler NAME; with "
            "--join, --node NAME or nothing"
        )
    return next(iter(given.items()))


def _role(kind: str, given: RoleChoice | None, *, join: bool) -> str:
    """Raises InvalidRequest: it is missing."""
    only = {"node": RoleChoice.AGENT, "scheduler": RoleChoice.SCHEDULER}.get(kind)
    role = given or only
    if role is None:
        raise errors.InvalidRequest(
            "--role is missing: viewer reads, submitter runs applications of its own, operator "
            "manages those of all and the nodes, admin makes tokens as well"
        )
    return "joining" if join and role is RoleChoice.AGENT else role.value


def _lifetime_s(given: str, kind: str, *, join: bool) -> float:
    default = JOIN_EXPIRES if join else PEOPLE_EXPIRE if kind in ("user", "service") else NEVER
    wanted = given or default
    return 0.0 if wanted == NEVER else events.seconds_of(wanted, "--expires")


def _made(made: identity_pb2.CreatedToken, file: Path | None) -> str:
    info = made.info
    whose = f"{info.kind} {info.name or 'of any name'}"
    until = f"until {_when(info.expires_at_s)}" if info.expires_at_s else "without an end"
    where = f"in {file}" if file is not None else "shown this once; keep it in a file of mode 0600"
    return f"token {info.token_id} of {whose}, role {info.role}, {until}: {where}"


def _when(at_s: float) -> str:
    return time.strftime(_WHEN, time.localtime(at_s)) if at_s else "-"


def _tokens_table(tokens: Iterable[identity_pb2.TokenInfo]) -> RenderableType:
    made = console.table("id", "kind", "name", "role", "state", "made", "by", "expires")
    for token in tokens:
        state = f"used by {token.used_by}" if token.used_by else token.state
        made.add_row(
            token.token_id, token.kind, plain(token.name or "-"), token.role, plain(state),
            _when(token.created_at_s), plain(token.created_by), _when(token.expires_at_s),
        )  # fmt: skip
    return made


def _audit_table(entries: Iterable[identity_pb2.AuditEntry]) -> RenderableType:
    made = console.table("time", "identity", "role", "from", "call", "object", "result")
    for entry in entries:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at_s))
        made.add_row(
            at, plain(f"{entry.kind} {entry.name}"), plain(entry.role), plain(entry.peer),
            plain(entry.method), plain(entry.what), plain(entry.result),
        )  # fmt: skip
    return made
