"""``hrm tls``: certificates for a cluster, from an authority of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hrm.cli import console

__all__ = ["app"]

DAYS_MAX = 3650

app = typer.Typer(no_args_is_help=True)


@app.command("tls")
def tls(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory of the certificates and of the authority's key."
        ),
    ],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME[,NAME|ADDRESS…]",
            help="One certificate, for all by which the host is reached; once for each host.",
        ),
    ],
    days: Annotated[
        int | None,
        typer.Option("--days", min=1, max=DAYS_MAX, help="Their validity in days. Default: 397."),
    ] = None,
) -> None:
    """Make certificates for master and nodes, and the authority that signs them if DIR has none.
    The same again renews them; daemons take new files without a restart."""
    from hrm import certificates
    from hrm.tls import CA_FILE

    directory = directory.expanduser().absolute()
    pairs = certificates.make(directory, hosts, days or certificates.DAYS)
    typer.echo(f"{directory / CA_FILE}")
    for pair in pairs:
        typer.echo(f"{pair.cert} {pair.key}")
    console.note(
        f"{CA_FILE} goes to every machine, next to the token file (or: tls_ca, HRM_TLS_CA); each "
        f"pair to its host (tls_cert, tls_key); ca.key, which can sign for any name, to none"
    )
