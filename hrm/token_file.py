"""The file with the cluster's secret, or a token: created atomically, refused if not private.

A new token is flushed to the disk before it is linked to its place: a full disk or a crash leaves
no empty one, and daemons that start together use one. A token is checked before it is used: a
regular file that its owner alone may read, one line of printable ASCII of a sensible length.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from hrm import durable
from hrm.errors import AlreadyExists, InvalidConfig, PermissionDenied

__all__ = ["TOKEN_CHARS_MAX", "TOKEN_CHARS_MIN", "create_token", "new_file", "read_token"]

TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 4096
_NEW_BYTES = 32
_AGAIN = "remove it and start the master again, which makes a new one, or copy the master's"


def create_token(path: Path) -> str:
    """The token in ``path``; created, mode 0600, if there is none.

    Raises:
        InvalidConfig: what is there is not a private token, or none can be written.
    """
    if not os.path.lexists(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _put_into_place(path, secrets.token_urlsafe(_NEW_BYTES) + "\n")
        except FileExistsError:
            pass  # another daemon was faster: use its token
        except OSError as error:
            raise InvalidConfig(
                f"cannot write the token file {path}: {error.strerror}; make it possible, or name "
                f"another place with --token-file or HRM_TOKEN_FILE"
            ) from error
    return read_token(path)


def new_file(path: Path, token: str) -> None:
    """Keep ``token`` in a new file, mode 0600.

    Raises:
        AlreadyExists: there is one.
        InvalidConfig: it cannot be written.
    """
    try:
        _put_into_place(path, token + "\n")
    except FileExistsError as error:
        raise AlreadyExists(f"{path} exists; name another file, or remove it") from error
    except OSError as error:
        raise InvalidConfig(f"cannot write {path}: {error.strerror}") from error


def read_token(path: Path) -> str:
    """The token in ``path``.

    Raises:
        PermissionDenied: there is no such file, or it is not readable.
        InvalidConfig: it is not a token, or others than its owner can read it.
    """
    try:
        # Opening a FIFO must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            regular = stat.S_ISREG(about.st_mode)
            content = file.read(TOKEN_CHARS_MAX + 2) if regular else b""
    except FileNotFoundError as error:
        raise PermissionDenied(
            f"no token file at {path}; copy it from the master's machine or name it in "
            f"HRM_TOKEN_FILE"
        ) from error
    except OSError as error:
        if path.is_dir():
            raise _no_file(path, "a directory") from error
        raise PermissionDenied(f"cannot read the token file {path}: {error}") from error
    if not regular:
        raise _no_file(path, "no regular file")
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o077:
        raise InvalidConfig(
            f"the token file {path} is accessible to other users (mode {mode:04o}); "
            f"chmod 600 {path}"
        )
    return _checked(path, content)


def _checked(path: Path, content: bytes) -> str:
    line = content.strip()
    if not line:
        raise InvalidConfig(f"the token file {path} is empty; {_AGAIN}")
    if not all(0x21 <= byte <= 0x7E for byte in line):
        raise InvalidConfig(
            f"the token file {path} holds something else than one line of printable ASCII without "
            f"spaces; {_AGAIN}"
        )
    if not TOKEN_CHARS_MIN <= len(line) <= TOKEN_CHARS_MAX:
        count = len(line) if len(line) < TOKEN_CHARS_MIN else f"more than {TOKEN_CHARS_MAX}"
        raise InvalidConfig(
            f"the token in {path} has {count} characters; from {TOKEN_CHARS_MIN} to "
            f"{TOKEN_CHARS_MAX} are allowed; {_AGAIN}"
        )
    return line.decode("ascii")


def _no_file(path: Path, what: str) -> InvalidConfig:
    return InvalidConfig(
        f"the token file {path} is {what}; remove it, or name the token's file with --token-file "
        f"or HRM_TOKEN_FILE"
    )


def _put_into_place(path: Path, content: str) -> None:
    """Raises FileExistsError if there is one already; never replaces it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    durable.sync(path.parent)
