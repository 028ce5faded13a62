"""The directory of one container: its complete record, while it runs and after its end.

``<work_dir>/containers/<id>/`` holds what an agent needs to continue after a crash of another:

    container.json   what it is (never its secrets), and the driver that isolates it
    process.json     the shim's pid and start time (see ``hrm.agent.containers.shim``)
    stop.json        the order to stop, with cause and reason
    exit.json        how the command ended
    acknowledged     the master has recorded the end; only the logs are of interest now
    stdout, stderr   with their older parts, kept by ``hrm.agent.containers.retention``
    local/, tmp/     Spark's scratch space

At the end all but the logs and these records is removed. The directory belongs to the agent's user.
Where a container runs as another (``run_as``), or has files of its application from its start on,
it runs in ``work/``; that, ``local/``, ``tmp/``, its logs and its input files belong to the user
that it runs as and are closed to all others.

Nothing here starts or ends a process, so all of it may be called in a thread.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from hrm.agent.containers import shim
from hrm.agent.containers.last_words import last_words, read_tail
from hrm.agent.containers.logs import STREAMS
from hrm.agent.containers.retention import ACKNOWLEDGED_FILE
from hrm.agent.drivers.driver_process import APPLICATION_DIR, without_secrets
from hrm.agent.run_as import Account
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerSpec,
    EndCause,
    LaunchContext,
    is_driver,
)
from hrm.errors import HrmError
from hrm.v1 import common_pb2
from hrm.wire import codec

__all__ = [
    "Ended",
    "StopOrder",
    "clear",
    "drop_records",
    "empty_home",
    "hand_over",
    "keep_crash_reports",
    "prepare",
    "read_end",
    "read_json",
    "read_order",
    "read_record",
    "remove_tree",
    "write_end",
    "write_order",
    "write_record",
]

RECORD_FILE = "container.json"
HOME_DIR = "work"
_SCRATCH = ("local", "tmp")
_KEPT = {RECORD_FILE, ACKNOWLEDGED_FILE, "shim.log"} | {
    *(shim.PROCESS_FILE, shim.STOP_FILE, shim.EXIT_FILE)
}
_CRASH_REPORT = "hs_err_pid*.log"
_REMOVE_LIMIT_S = 60.0
_KILL_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Why a container was ordered to stop, and whether it may finish its work."""

    cause: EndCause
    reason: str
    decommission: bool = False
    signal: str = ""
    """What decommissions it, without "SIG"; empty: SIGPWR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All about the end of a container. ``exit_code`` is -1 where there is none."""

    started: bool
    exit_code: int
    memory_kills: int = 0
    order: StopOrder | None = None
    last_words: str = ""
    problem: str = ""


def prepare(
    directory: Path, account: Account | None, files: Mapping[str, str], *, has_home: bool = False
) -> Path:
    """Create the directory for a container that is about to start, with ``files`` (text by name)
    in it; returns the working directory of the command. ``account``: the owner, None: the agent.
    ``has_home``: the working directory has been made, and holds what the application needs.

    Raises:
        OSError: the disk, or what is at that path, prevents it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:  # another user may pass through it, and no more than that
        directory.chmod(0o711)
        directory.parent.chmod(0o711)
    own_home = has_home or account is not None
    for name in (*_SCRATCH, HOME_DIR) if own_home else _SCRATCH:
        (directory / name).mkdir(mode=0o700, exist_ok=True)
        hand_over(directory / name, account)
    for name, text in files.items():
        _write_private(directory / name, text)
        hand_over(directory / name, account)
    return directory / HOME_DIR if own_home else directory


def drop_records(directory: Path) -> None:
    """Of an earlier container of the same id: they are not those of the next.

    Raises:
        OSError: one cannot be removed.
    """
    for name in (shim.PROCESS_FILE, shim.STOP_FILE, shim.EXIT_FILE, ACKNOWLEDGED_FILE):
        (directory / name).unlink(missing_ok=True)


def empty_home(directory: Path) -> Path:
    """A place for the working directory of a container whose files are about to be brought; closed
    to all others, and not made yet.

    Raises:
        OSError: the disk, or what is at that path, prevents it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_tree(directory / HOME_DIR)
    return directory / HOME_DIR


def write_record(directory: Path, spec: ContainerSpec, isolation: str) -> None:
    """Write down what the container is, without its secrets, and which driver isolates it."""
    public_launch = LaunchContext(
        decommissions=spec.launch.decommissions,
        decommission_signal=spec.launch.decommission_signal,
        driver=without_secrets(spec.launch.driver),
    )
    bare = replace(spec, launch=public_launch)
    record = {"isolation": isolation, "spec": json_format.MessageToDict(codec.from_spec(bare))}
    shim.write_json(directory / RECORD_FILE, record)


def read_record(directory: Path) -> tuple[ContainerSpec, str]:
    """What ``write_record`` wrote.

    Raises:
        HrmError: there is no such record, or it is damaged.
    """
    record = read_json(directory / RECORD_FILE)
    try:
        message = json_format.ParseDict(record["spec"], common_pb2.ContainerSpec())
    except (KeyError, json_format.ParseError) as error:
        raise HrmError(f"{directory / RECORD_FILE} is no record of a container: {error}") from error
    return codec.to_spec(message), str(record.get("isolation", "none"))


def write_order(directory: Path, order: StopOrder, grace_s: float) -> None:
    """Written for the shim, and for a later agent.

    Raises:
        OSError: the write failed.
    """
    document = {
        "grace_s": grace_s,
        "cause": order.cause.value,
        "reason": order.reason,
        "decommission": order.decommission,
        "signal": order.signal,
    }
    shim.write_json(directory / shim.STOP_FILE, document)


def read_order(directory: Path) -> StopOrder | None:
    """The latest order to stop it; None: there is none, or none readable."""
    document = read_json(directory / shim.STOP_FILE)
    try:
        return StopOrder(
            cause=EndCause(document["cause"]),
            reason=str(document["reason"]),
            decommission=bool(document.get("decommission")),
            signal=str(document.get("signal", "")),
        )
    except (KeyError, ValueError):
        return None


def read_end(directory: Path, memory_kills: int) -> Ended:
    """How the container ended. A supervisor that died without a record gets one afterwards.
    ``memory_kills``: as the kernel counts them now; the record keeps them, for a later agent."""
    exited = read_json(directory / shim.EXIT_FILE)
    problem = "" if exited else "its supervisor ended without a record"
    memory_kills = max(memory_kills, int(exited.get("memory_kills", 0)))
    ended = Ended(
        started=(directory / shim.PROCESS_FILE).exists(),
        exit_code=int(exited.get("exit_code", -1)),
        memory_kills=memory_kills,
        order=read_order(directory),
        last_words=_last_words(directory),
        problem=str(exited.get("error", problem)),
    )
    if not exited:
        exited = _end_without_shim(problem)
    elif memory_kills == exited.get("memory_kills", 0):
        return ended
    with contextlib.suppress(OSError):
        shim.write_json(directory / shim.EXIT_FILE, {**exited, "memory_kills": memory_kills})
    return ended


def write_end(directory: Path, problem: str) -> None:
    """In place of a shim that failed to: every ended container has the record."""
    with contextlib.suppress(OSError):
        shim.write_json(directory / shim.EXIT_FILE, _end_without_shim(problem))


def _end_without_shim(problem: str) -> dict[str, Any]:
    return {"exit_code": -1, "ended_at_s": time.time(), "error": problem}


def keep_crash_reports(directory: Path) -> None:
    """Move what ``clear`` would remove with the places where Java has written it."""
    for place in (HOME_DIR, APPLICATION_DIR, f"{HOME_DIR}/{APPLICATION_DIR}"):
        with contextlib.suppress(OSError):
            _keep_crash_reports(directory / place, directory)


def clear(directory: Path) -> list[Path]:
    """Remove all but the logs, crash reports and records; returns what could not be removed."""
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        return [directory]
    return [path for path in paths if not _is_kept(path) and not remove_tree(path)]


def _is_kept(path: Path) -> bool:
    log = path.name.split(".")[0] in STREAMS or path.match(_CRASH_REPORT)
    return (log or path.name in _KEPT) and stat.S_IFMT(_mode(path)) in (0, stat.S_IFREG)


def _mode(path: Path) -> int:
    """Of the file itself, where that is a link; 0 where the disk does not say."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def remove_tree(path: Path) -> bool:
    """Remove a directory with all below it, at any depth that a container may have created: deeper
    than Python can follow; or a file. Follows no link; a missing path is no error. Returns whether
    it is gone."""
    if not stat.S_ISDIR(_mode(path)):  # rm and chmod would follow a link that stands here
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return _is_gone(path)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if _is_gone(path):
        return True
    commands = [["rm", "-rf"]]
    if os.geteuid() != 0:  # root needs no permission, and must not act on what a user puts there
        commands.insert(0, ["chmod", "-R", "u+rwX"])
    for command in commands:
        with contextlib.suppress(OSError):
            _run([*command, "--", str(path)])
    return _is_gone(path)


def _run(command: list[str]) -> None:
    """Until it ends, ``_REMOVE_LIMIT_S`` at most. One that a disk holds up does not end when it is
    killed; it is left to itself then."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REMOVE_LIMIT_S)
        return
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_LIMIT_S)


def _is_gone(path: Path) -> bool:
    """False where nothing says so, as on a disk that has failed."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file; empty where it is missing or malformed."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write_private(path: Path, text: str) -> None:
    """A new file that is closed to others from its first byte on: it may hold a secret."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def hand_over(path: Path, account: Account | None) -> None:
    """Give a file, or a directory with all in it, to ``account``; closed to all others.

    Only for what no other user could reach until now.
    """
    if account is None:
        return
    inside = path.rglob("*") if path.is_dir() else ()
    for one in [*inside, path]:  # the directory last: from then on its user may change it
        one.chmod(0o700 if one.is_dir() else 0o600)
        os.chown(one, account.uid, account.gid, follow_symlinks=False)


def _keep_crash_reports(place: Path, directory: Path) -> None:
    """Java writes them where it runs. No link is followed: this may be root, in a user's directory.

    Raises:
        OSError: there is no such place, or a file in it cannot be moved.
    """
    here = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in fnmatch.filter(os.listdir(here), _CRASH_REPORT):  # noqa: PTH208
            if stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                os.rename(name, directory / name, src_dir_fd=here)
    finally:
        os.close(here)


def _last_words(directory: Path) -> str:
    out, err = (directory / name for name in STREAMS)
    stdout_tail = read_tail(out) if is_driver(ApplicationId(directory.name)) else ""
    return last_words(read_tail(err), stdout_tail)
