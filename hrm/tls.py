"""TLS on HRM's ports: which authority a client trusts, and what a failed handshake means.

A cluster uses TLS everywhere or nowhere. Master and agents have a certificate each; every client
has the file ``ca.pem`` of the authority that signed them: the given one, else that of
``$HRM_TLS_CA`` (empty: clear text), else the one next to the token. A client with that file never
falls back to clear text, and a server that finds it but has no certificate refuses to start. The
token still authenticates the caller.

What servers need is in ``hrm.tls_server``; ``hrm.certificates`` creates certificates.
"""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

from hrm.errors import InvalidConfig, TlsFailed

__all__ = ["CA_FILE", "ca_file", "failure", "read_ca"]

CA_FILE = "ca.pem"
PROBE_TIMEOUT_S = 0.5
_CLOSED_AT_ONCE = ("Socket closed", "Connection reset", "Endpoint closing", "GOAWAY")


def ca_file(token_file: Path, given: str | Path | None = None) -> Path | None:
    """The authority's file of the cluster whose token is ``token_file``; None: clear text.

    ``given``: by a setting or a flag; empty or None: not given.
    """
    if given:
        return Path(given).expanduser()
    named = os.environ.get("HRM_TLS_CA")
    if named is not None:
        return Path(named).expanduser() if named else None
    default_ca = token_file.expanduser().parent / CA_FILE
    return default_ca if default_ca.exists() else None


def read_ca(path: Path | None) -> bytes | None:
    """The certificates (PEM) in ``path``, for ``rpc.channel``; None for None.

    Raises:
        InvalidConfig: it cannot be read, or holds no certificate.
    """
    if path is None:
        return None
    try:
        pem = path.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except OSError as error:
        # ssl.SSLError is one of these, too, and has no file name.
        why = error.strerror if not isinstance(error, ssl.SSLError) else "no certificate in it"
        raise _bad_ca(path, why) from error
    except ValueError as error:
        raise _bad_ca(path, "no certificate in it") from error
    return pem


def _bad_ca(path: Path, why: str | None) -> InvalidConfig:
    return InvalidConfig(
        f"cannot use {path} as the cluster's authority: {why}; copy ca.pem from the master's "
        f"machine and name it in HRM_TLS_CA (or tls_ca, for a daemon)"
    )


def failure(target: str, details: str) -> TlsFailed | None:
    """The TLS error between this client and ``target`` (host:port); None: the cause is another.
    ``details``: of the call that failed as UNAVAILABLE."""
    if "WRONG_VERSION_NUMBER" in details:
        return TlsFailed(
            f"{target} speaks no TLS, and this client does, as it has an authority (HRM_TLS_CA, "
            f"tls_ca, or ca.pem next to the token); start the server with --tls-cert and --tls-key "
            f"- or, if clear text is meant: export HRM_TLS_CA="
        )
    if "CERTIFICATE_VERIFY_FAILED" in details:
        why = details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2]
        return TlsFailed(
            f"the certificate of {target} is not trusted ({why}); HRM_TLS_CA (or tls_ca) "
            f"must name the ca.pem that signed it - if it has expired, renew it: hrm tls"
        )
    if "is not in peer certificate" in details:
        return TlsFailed(
            f"the certificate of {target} is not made for this name; use one that it has, or make "
            f"another: hrm tls DIR --host {target.rpartition(':')[0]}"
        )
    closed = "failed to connect" in details and any(x in details for x in _CLOSED_AT_ONCE)
    if closed and _speaks_tls(target):
        return TlsFailed(
            f"{target} speaks TLS, and this client does not; copy the ca.pem of its cluster here "
            f"and name it: export HRM_TLS_CA=.../ca.pem (or tls_ca, for a daemon)"
        )
    return None


def _speaks_tls(target: str) -> bool:
    """Whether ``target`` completes a handshake; nothing is sent, so any certificate will do. Called
    only where a server has closed a connection in clear text immediately: such a server is up and
    responds."""
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        address = (host.strip("[]"), int(port))
        with (
            socket.create_connection(address, PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):
        return False
