"""Resolves the master's address and its token, the same way for commands and for programs.

The address is the given one, else ``$HRM_MASTER``, else that of the cluster that ``hrm up`` started
under :func:`state_home`, else the default port of this machine. Imports are kept light: ``hrm
status`` is typed often.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hrm import errors

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "default_master",
    "parse_master",
    "state_home",
    "token_file",
    "token_path",
]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7480


def state_home() -> Path:
    """The directory of everything HRM keeps for this user: ``$HRM_HOME``, else ``~/.hrm``."""
    return Path(os.environ.get("HRM_HOME") or "~/.hrm").expanduser().absolute()


def token_path(named: str | Path | None = None) -> Path:
    """The file of the cluster's token: ``named``, ``$HRM_TOKEN_FILE``, or in ``state_home()``."""
    path = named or os.environ.get("HRM_TOKEN_FILE") or state_home() / "token"
    return Path(path).expanduser().absolute()


def parse_master(text: str) -> str:
    """``host:port`` from ``host``, ``host:port`` or ``hrm://host:port``.

    Raises:
        InvalidRequest: it is none of these.
    """
    address = text.removeprefix("hrm://").rstrip("/")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    good_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    # The resolver takes bare digits for an address: 7480 would be 0.0.29.56.
    bad_host = not host or "/" in host or any(c.isspace() for c in host) or host.isdigit()
    if bad_host or not good_port:
        missing = " (a port alone)" if host.isdigit() and not colon else ""
        raise errors.InvalidRequest(
            f"{text!r} is no address of a master{missing}; write HOST:PORT, such as "
            f"{DEFAULT_HOST}:{DEFAULT_PORT}"
        )
    return f"{host}:{port}"


def default_master(given: str | None = None) -> str:
    """``host:port`` of the master to use when ``--master`` is ``given``."""
    named = given or os.environ.get("HRM_MASTER")
    if named:
        return parse_master(named)
    try:
        port = int(json.loads((state_home() / "cluster.json").read_text())["port"])
    except (OSError, ValueError, KeyError, TypeError):
        port = DEFAULT_PORT
    return f"{DEFAULT_HOST}:{port}"


def token_file(master: str | None, given: Path | None = None) -> Path:
    """The file with the token of ``master``, found as by ``token_path``.

    Raises:
        Unavailable: no file was named, and no cluster was ever started here.
    """
    path = token_path(given)
    named = master or os.environ.get("HRM_MASTER") or os.environ.get("HRM_TOKEN_FILE")
    if not path.exists() and not named:
        raise errors.Unavailable(
            f"no cluster of yours runs here (no {path}); start one: hrm up - or name another "
            f"machine's: --master HOST:PORT, with a copy of its token in HRM_TOKEN_FILE"
        )
    return path
