"""What outlives a process: the history of volumes, and what a scaler has begun.

One directory a master, below ``$HRM_HOME/forecast``. ``hrm forecast`` and ``hrm autoscale`` both
read the history, add what the journal has since, and write it back whole, unless another process
has written a longer one meanwhile. A file that cannot be read is set aside, and begun again. What a
scaler has begun is of one process, which holds a lock next to it.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm import durable
from hrm.address import state_home
from hrm.durable import write_durably
from hrm.errors import InvalidConfig, Unavailable
from hrm.forecast.history import DemandHistory

__all__ = ["ForecastFiles", "KeptHistory"]

STARTED_TOLERANCE_S = 60.0
TIME_MAX_S = 1e11
"""Times beyond it are of no calendar."""
_SCALER_FORMAT = 1
_DAMAGE = (OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error)
"""What reading a file that is not what it was leads to."""


@dataclass(slots=True, kw_only=True)
class KeptHistory:
    """``epoch`` and ``started_at_s``: of the master that it was last read from."""

    history: DemandHistory
    epoch: int = 0
    started_at_s: float = 0.0

    def is_of(self, epoch: int, started_at_s: float) -> bool:
        """May it be of the cluster whose master this is? Epochs of a cluster rise with every
        start."""
        if epoch != self.epoch:
            return epoch > self.epoch
        return abs(started_at_s - self.started_at_s) < STARTED_TOLERANCE_S


class ForecastFiles:
    """The files of one master, which is named by its address."""

    def __init__(self, master: str, directory: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", master)
        self._directory = directory or state_home() / "forecast" / name

    @property
    def history_path(self) -> Path:
        return self._directory / "history.json.gz"

    @property
    def scaler_path(self) -> Path:
        return self._directory / "autoscale.json"

    @property
    def hook_path(self) -> Path:
        """Where the hook that runs is noted."""
        return self._directory / "hook.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Scale the pool of this master alone.

        Raises:
            InvalidConfig: another process does.
            Unavailable: the lock cannot be made.
        """
        path = self._directory / "autoscale.lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = durable.lock(path)
        except BlockingIOError:
            raise InvalidConfig(
                f"another hrm autoscale scales the pool of this master: it holds {path}; end it, "
                "or see what this one would do with --dry-run true"
            ) from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be made: {error}; free space, or set HRM_HOME "
                              "to a directory that can be written") from error  # fmt: skip
        try:
            yield
        finally:
            os.close(descriptor)

    def read_history(self) -> tuple[KeptHistory, str]:
        """What is kept, and what is wrong with the file, if anything is.

        Raises:
            Unavailable: it cannot be read, nor set aside.
        """
        try:
            document = json.loads(gzip.decompress(self.history_path.read_bytes()))
            return _kept(document), ""
        except FileNotFoundError:
            return KeptHistory(history=DemandHistory()), ""
        except _DAMAGE as error:
            aside = self._set_aside(self.history_path)
            why = f"the kept history could not be read ({error}); it is in {aside}"
            return KeptHistory(history=DemandHistory()), why

    def write_history(self, kept: KeptHistory) -> None:
        """Replace the file, unless it has more.

        Raises:
            Unavailable: it cannot be written.
        """
        there, _ = self.read_history()
        is_same = there.is_of(kept.epoch, kept.started_at_s)
        if is_same and there.history.last_id > kept.history.last_id:
            return
        document = {
            "history": kept.history.as_json(),
            "epoch": kept.epoch,
            "started_at_s": kept.started_at_s,
        }
        self._write(self.history_path, gzip.compress(json.dumps(document).encode(), mtime=0))

    def read_scaler(self) -> dict[str, Any]:
        """What the last ``hrm autoscale`` has written; empty: nothing that can be read."""
        try:
            return self._scaler()
        except _DAMAGE:
            return {}

    def take_scaler_over(self) -> tuple[dict[str, Any], str]:
        """The same for the process that writes it next, and what is wrong with the file, if
        anything is: it is set aside then.

        Raises:
            Unavailable: it cannot be read, nor set aside.
        """
        try:
            return self._scaler(), ""
        except FileNotFoundError:
            return {}, ""
        except _DAMAGE as error:
            aside = self._set_aside(self.scaler_path)
            return {}, f"{self.scaler_path} could not be read ({error}); it is in {aside}"

    def _scaler(self) -> dict[str, Any]:
        return _checked_scaler(json.loads(self.scaler_path.read_text()))

    def _set_aside(self, path: Path) -> Path:
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
        except OSError as cause:
            raise Unavailable(
                f"{path} can neither be read nor be renamed: {cause}; remove it, or set HRM_HOME "
                "to a directory that can be written"
            ) from cause
        return aside

    def write_scaler(self, document: Mapping[str, Any]) -> None:
        """Raises Unavailable if it cannot be written."""
        whole = {"format": _SCALER_FORMAT, **document}
        self._write(self.scaler_path, (json.dumps(whole, indent=2) + "\n").encode())

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_durably(path, content, 0o600)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error}; free space, or set HRM_HOME "
                              "to a directory that can be written") from error  # fmt: skip


def _kept(document: Any) -> KeptHistory:
    if not isinstance(document, dict) or not isinstance(document.get("history"), dict):
        raise ValueError("it is no history")
    return KeptHistory(
        history=DemandHistory.from_json(document["history"]),
        epoch=int(document.get("epoch", 0)),
        started_at_s=float(document.get("started_at_s", 0.0)),
    )


def _checked_scaler(document: Any) -> dict[str, Any]:
    """Raises ValueError if it is not what ``hrm autoscale`` of this version writes."""
    if not isinstance(document, dict):
        raise ValueError("it is no object")
    if document.get("format", _SCALER_FORMAT) != _SCALER_FORMAT:
        raise ValueError(f"its format is {document['format']!r}, not {_SCALER_FORMAT}")
    call = document.get("last_call", {})
    if not isinstance(document.get("scaler", {}), dict) or not isinstance(call, dict):
        raise ValueError("it is no state of a scaler")
    at_s = call.get("at_s", 0.0)
    is_time = isinstance(at_s, int | float) and math.isfinite(at_s) and 0 <= at_s < TIME_MAX_S
    if not is_time or not isinstance(call.get("reason", ""), str):
        raise ValueError("its last call is none")
    return document
