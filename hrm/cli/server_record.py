"""What this user keeps of a Connect server that `hrm connect` has started: whose it is, its secret.

One file for each set of options and master, ``$HRM_HOME/connect/KIND.json``, mode 0600, because the
server's token is in it; a lock next to it makes commands that run at the same moment start one
server. The token is written before the server is submitted: a command that is interrupted between
the two leaves a file without a submission, and the next one finds the server by the master's answer
(``hrm.cli.connect_server``).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hrm import durable
from hrm.errors import InvalidConfig, Unavailable

__all__ = ["ServerRecord", "ServerRecordFile", "kind_of", "new_token"]

LOCK_LIMIT_S = 60.0
_LOCK_PERIOD_S = 0.1
_KIND_DIGITS = 12
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """A server. ``submission_id``: empty until the master has accepted it. ``attempt``: of the
    driver whose rehearsal has ended as ``warmth`` says; 0: none has yet. ``loopback``: it listens
    at its node's loopback alone."""

    token: str
    submission_id: str = ""
    attempt: int = 0
    warmth: str = ""
    loopback: bool = False


def kind_of(target: str, conf: Mapping[str, str]) -> str:
    """Names the set of options of a server of the master at ``target``."""
    text = json.dumps([target, sorted(conf.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:_KIND_DIGITS]


def new_token() -> str:
    """A secret that fits into a URL and a header as it is."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class ServerRecordFile:
    """The record of one kind of server, below ``directory``."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.path = directory / f"{kind}.json"
        self.kind = kind

    def read(self) -> ServerRecord | None:
        """None: there is none.

        Raises:
            InvalidConfig: it cannot be read.
        """
        try:
            return ServerRecord(**json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidConfig(
                f"{self.path} is no record of a Connect server ({error}); remove it, and end its "
                f"server, if there is one: hrm submissions, hrm submission kill ID"
            ) from error

    def write(self, record: ServerRecord) -> None:
        """Raises InvalidConfig where the disk does not take it."""
        try:
            durable.write_durably(self.path, json.dumps(asdict(record)).encode(), 0o600)
        except OSError as error:
            raise self._unwritable(error) from error

    def remove(self) -> None:
        """The server is over."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands of this machine from starting or ending such a server meanwhile.

        Raises:
            Unavailable: another one has had the lock for ``LOCK_LIMIT_S``.
            InvalidConfig: the directory cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.path.with_suffix(".lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            deadline_s = time.monotonic() + LOCK_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise Unavailable(
                            f"another hrm connect has been at work for {LOCK_LIMIT_S:.0f} s; end "
                            f"it, or remove {lock.name}"
                        ) from None
                time.sleep(_LOCK_PERIOD_S)
            yield

    def _unwritable(self, error: OSError) -> InvalidConfig:
        return InvalidConfig(
            f"cannot write {self.path} ({error.strerror}); set HRM_HOME to a directory of yours"
        )
