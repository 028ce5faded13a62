"""Operations on the master's store for an operator: check, repair, back up, restore.

``check`` reads a copy, so it changes nothing. ``repair`` first sets the present files aside, then
creates a new store from every readable row. ``restore`` does the same with the rows of a backup.
Both set an epoch above every one found in the directory, by a margin: agents refuse the orders of a
master whose epoch is not above the last one's. ``backup`` uses SQLite's online backup, also while a
master serves.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hrm import durable
from hrm.errors import HrmError, InvalidConfig, NotFound
from hrm.master.disk_space import full, is_full
from hrm.master.policy_service import MODES_FILE, load_modes
from hrm.master.salvage import Salvaged, examined, journal_damage, journal_epoch
from hrm.master.store_file import EPOCH_MAX, TABLES, create, set_aside

__all__ = ["STORE_FILE", "RepairReport", "backup", "check", "locked", "repair", "restore"]

STORE_FILE = "hrm.sqlite"
JOURNAL_FILE = "events.sqlite"
EPOCH_MARGIN = 1_000
EPOCH_UNKNOWN = 1_000_000
"""The margin where no record gives an epoch: above any number of restarts."""
_ID = re.compile(r"app-\d{14}-(\d{1,9})-\d+")


@dataclass(slots=True)
class RepairReport:
    """What was found or done. ``damage`` is empty iff the store is intact; ``kept`` and ``lost``
    count rows; ``copy``: where the damaged or replaced files are; ``epoch``: the store's present
    one, None where it could not be read; ``only_journal``: nothing else is damaged."""

    state_dir: str
    damage: list[str] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    epoch: int | None = None
    copy: str = ""
    done: str = ""
    only_journal: bool = False

    def document(self) -> dict[str, Any]:
        return {"good": not self.damage, **asdict(self)}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the state directory for this process alone.

    Raises:
        InvalidConfig: a master, or a repair, works there.
    """
    try:
        descriptor = durable.lock(path)
    except BlockingIOError:
        raise InvalidConfig(
            f"another master uses {path.parent}; stop it, or name another directory with "
            f"--state-dir"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def check(state_dir: Path) -> RepairReport:
    """Check everything that the next start reads.

    Raises:
        HrmError: there is no store, or a master uses it.
    """
    with _alone(state_dir):
        found = examined(state_dir / STORE_FILE)
        report = RepairReport(str(state_dir), found.problems, _counts(found), epoch=found.epoch)
        report.damage += _older_than_journal(found.epoch, state_dir)
        other_damage = _other_damage(state_dir)
        report.damage += other_damage
        report.only_journal = report.damage == [
            x for x in other_damage if x.startswith(JOURNAL_FILE)
        ]
        return report


def repair(state_dir: Path) -> RepairReport:
    """Create a store from what can be read; the present files are set aside. An intact store is
    left as it is.

    Raises:
        HrmError: there is no store, a master uses it, or the disk refuses the write.
    """
    with _alone(state_dir):
        path = state_dir / STORE_FILE
        found = examined(path)
        report = RepairReport(str(state_dir), found.problems, _counts(found), found.lost)
        report.damage += _older_than_journal(found.epoch, state_dir)
        report.epoch = found.epoch
        if report.damage:
            report.epoch = _epoch_beyond([found], state_dir)
            report.copy = str(set_aside(path, "damaged", copy=True))
            _replace(path, report.epoch, found)
            report.done = "repaired"
        other_damage = _other_damage(state_dir)
        for name in (MODES_FILE, JOURNAL_FILE):
            if any(line.startswith(f"{name}:") for line in other_damage):
                set_aside(state_dir / name, "damaged")
                report.done = "repaired"
        report.damage += other_damage
        return report


def backup(state_dir: Path, target: Path) -> RepairReport:
    """A copy of the store in ``target``, of one moment, also while a master serves.

    Raises:
        HrmError: there is no store, it is damaged, or the copy cannot be written.
    """
    path = state_dir / STORE_FILE
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with _explained(target.parent):
        if not path.exists():
            raise NotFound(f"there is no store in {state_dir}; name its directory with --state-dir")
        if target.is_dir():
            raise InvalidConfig(f"{target} is a directory; name a file for the backup")
        try:
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with (
                contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(partial)) as copy,
            ):
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, whole in itself
            found = examined(partial)
            if found.damage or found.lost:
                raise InvalidConfig(
                    f"the store {path} is damaged ({found.problems[0]}), and was not "
                    f"copied; stop the master, and see hrm master --check --state-dir {state_dir}"
                )
            durable.sync(partial)
            partial.replace(target)
        except sqlite3.DatabaseError as error:
            if is_full(error, target.parent):
                raise
            raise InvalidConfig(f"{path} cannot be copied: {error}") from error
        finally:
            _give_to_owner(state_dir)
            for suffix in ("", "-journal", "-wal", "-shm"):
                partial.with_name(partial.name + suffix).unlink(missing_ok=True)
    report = RepairReport(str(state_dir), [], _counts(found), epoch=found.epoch)
    report.copy, report.done = str(target), "backed up"
    return report


def restore(state_dir: Path, source: Path) -> RepairReport:
    """Put the rows of the backup ``source`` in place of the store's, under a higher epoch.

    Raises:
        HrmError: ``source`` is no valid backup, a master uses the directory, or the write
            failed.
    """
    with _explained(state_dir):
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(state_dir, exists=False):
        path = state_dir / STORE_FILE
        if not source.exists():
            raise NotFound(f"there is no backup {source}; hrm master --backup FILE makes one")
        found = examined(source)
        if found.damage or found.lost:
            raise InvalidConfig(
                f"the backup {source} is damaged: {found.problems[0]}; nothing was "
                f"changed; take another one"
            )
        present = examined(path) if os.path.lexists(path) else Salvaged()
        report = RepairReport(str(state_dir), [], _counts(found))
        report.epoch = _epoch_beyond([found, present], state_dir)
        if os.path.lexists(path):
            report.copy = str(set_aside(path, "replaced", copy=True))
        _replace(path, report.epoch, found)
        report.done = "restored"
        return report


# --- files next to the store -------------------------------------------------------------------


def _older_than_journal(epoch: int | None, state_dir: Path) -> list[str]:
    """A store that has lost its write-ahead log is intact, but old."""
    of_journal = journal_epoch(state_dir / JOURNAL_FILE)
    if epoch is None or epoch >= of_journal:
        return []
    return [
        f"{STORE_FILE}: it has epoch {epoch}, and {JOURNAL_FILE} epoch {of_journal}; it is an "
        f"older copy, or its log of changes (-wal) is gone, and what was written after it is lost"
    ]


def _other_damage(state_dir: Path) -> list[str]:
    """Damage of files other than the store; the master sets a bad journal aside by itself."""
    damage = []
    try:
        load_modes(state_dir)
    except InvalidConfig as error:
        damage.append(f"{MODES_FILE}: {error.message}")
    journal = state_dir / JOURNAL_FILE
    if os.path.lexists(journal):
        why = journal_damage(journal)
        if why and not why.endswith("empty"):
            damage.append(
                f"{JOURNAL_FILE}: {why}; it is set aside at the next start, or when it is read"
            )
    other_damage = [state_dir / name for name in ("files", "pipelines", "models")]
    wrong = [each.name for each in other_damage if each.exists() and not each.is_dir()]
    return damage + [f"{name}: it is no directory; remove it" for name in wrong]


def _epoch_beyond(stores: list[Salvaged], state_dir: Path) -> int:
    """Above every epoch found here."""
    epochs = [store.epoch for store in stores if store.epoch is not None]
    known = bool(epochs)
    for store in stores:
        ids = (_ID.fullmatch(str(row[0])) for row in store.rows.get("applications", ()))
        epochs += [int(match[1]) for match in ids if match]
    epochs.append(journal_epoch(state_dir / JOURNAL_FILE))
    margin = EPOCH_MARGIN if known else EPOCH_UNKNOWN
    return min(max(epochs) + margin, EPOCH_MAX - EPOCH_MARGIN)


# --- changing files ----------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(state_dir: Path, *, exists: bool = True) -> Iterator[None]:
    with _explained(state_dir):
        store = state_dir / STORE_FILE
        lost = store.with_name(store.name + "-wal")
        if exists and not os.path.lexists(store) and not lost.exists():
            raise NotFound(f"there is no store in {state_dir}; name its directory with --state-dir")
        with locked(state_dir / "lock"):
            try:
                yield
            finally:
                _give_to_owner(state_dir)


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Errors of the disk in one line."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_full(error, directory):
            why = full(directory, error).message.partition(": ")[2]
            why = why.partition(";")[0]
            raise HrmError(f"nothing was changed: {why}; free some space") from error
        raise HrmError(f"nothing was changed: {error}") from error


def _give_to_owner(state_dir: Path) -> None:
    """Give files created by root to the owner of the directory, the master's account."""
    if os.geteuid() != 0:
        return
    owner = state_dir.stat()
    for path in (*state_dir.glob(f"*{STORE_FILE}*"), state_dir / "lock"):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _counts(found: Salvaged) -> dict[str, int]:
    return {name: len(found.rows.get(name, ())) for name in TABLES}


def _replace(path: Path, epoch: int, found: Salvaged) -> None:
    """A new store of these rows. The old write-ahead log must be removed before the new store is in
    place, or SQLite would apply it there."""
    new = path.with_name(f".{path.name}.made")
    create(new, epoch, dict(found.rows))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new.replace(path)
    durable.sync(path.parent)
