"""Where HRM may send clear text: on this machine, and where it is explicitly allowed.

In clear text any process on the path, or one that takes the port of a server that is down, obtains
the token. On loopback these are this machine's users. Any other address has to be allowed:
``allow_clear_text = true`` of a daemon, ``HRM_ALLOW_CLEAR_TEXT=true`` of everything else. A server
checks before it listens, a client before it sends. A name counts as loopback if all its addresses
are.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from hrm.address import DEFAULT_HOST, DEFAULT_PORT
from hrm.errors import InvalidConfig, Unavailable

__all__ = [
    "VARIABLE",
    "allowed",
    "check_client",
    "check_resolves",
    "check_server",
    "is_local",
    "parse",
]

VARIABLE = "HRM_ALLOW_CLEAR_TEXT"
_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off", "")


def allowed() -> bool:
    """Whether the environment allows clear text on any address.

    Raises:
        InvalidConfig: the variable is neither true nor false.
    """
    return parse(os.environ.get(VARIABLE, ""), VARIABLE)


def parse(value: str, name: str) -> bool:
    """True or false, as the value of ``name``; an empty one is false.

    Raises:
        InvalidConfig: it is neither.
    """
    if (text := value.strip().lower()) in (*_YES, *_NO):
        return text in _YES
    raise InvalidConfig(f"{name} is {value!r}; it must be true or false")


def is_local(target: str) -> bool:
    """Whether ``target`` (host:port, or ``unix:PATH``) is on this machine, and nowhere else."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        return _is_loopback(host)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback(str(address[0])) for *_, address in found)


def _is_loopback(address: str) -> bool:
    """Raises ValueError if it is not an IP address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def check_resolves(target: str) -> None:
    """Check that the host of ``target`` (host:port) is an address, or a name that has one.

    Raises:
        InvalidConfig: ``target`` is not host:port.
        Unavailable: its host does not resolve, now.
    """
    host, colon, port = target.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise InvalidConfig(
            f"{target!r} is no address; write HOST:PORT, such as {DEFAULT_HOST}:{DEFAULT_PORT}"
        )
    bare = host.strip("[]")
    try:
        socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(
            f"the host {bare} of {target} does not resolve ({reason}); correct its name, or write "
            f"its IP address; to see what the name resolves to: getent hosts {bare}"
        ) from error


def check_server(address: str, *, allow: bool) -> None:
    """Check that a server may listen at ``address`` (host:port) in clear text.

    Raises:
        InvalidConfig: it may not.
        Unavailable: the host does not resolve.
    """
    if not allow and not is_local(address):
        check_resolves(address)
        host = address.rpartition(":")[0]
        raise InvalidConfig(
            f"will not listen on {host} in clear text, where the cluster's token could be read "
            f"on its way; make certificates (hrm tls DIR --host NAME,ADDRESS) and pass "
            f"--tls-cert and --tls-key - or allow it explicitly: allow_clear_text = true "
            f"(--allow-clear-text true)"
        )


def check_client(target: str, *, allow: bool | None) -> None:
    """Check that the token may be sent to ``target`` (host:port) in clear text. ``allow`` None: by
    the environment.

    Raises:
        InvalidConfig: it may not.
        Unavailable: the host does not resolve.
    """
    if not is_local(target) and not (allowed() if allow is None else allow):
        check_resolves(target)
        raise InvalidConfig(
            f"will not send the cluster's token to {target} in clear text, where others could read "
            f"it; make certificates (hrm tls) and copy the cluster's ca.pem next to the token, or "
            f"name it in HRM_TLS_CA - or allow clear text explicitly: export {VARIABLE}=true "
            f"(allow_clear_text of a daemon, spark.hrm.allowClearText of an application)"
        )
