"""What outlives a process: the history of volumes, and what a scaler has begun.

One directory a master, below ``$HRM_HOME/forecast``. ``hrm forecast`` and ``hrm autoscale`` both
read the history, add what the journal has since, and write it back whole, unless another process
has written a longer one meanwhile. A file that cannot be read is set aside, and begun again.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm.address import state_home
from hrm.durable import write_durably
from hrm.errors import Unavailable
from hrm.forecast.history import DemandHistory

__all__ = ["ForecastFiles", "KeptHistory"]

STARTED_TOLERANCE_S = 60.0


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

    def read_history(self) -> tuple[KeptHistory, str]:
        """What is kept, and what is wrong with the file, if anything is."""
        try:
            document = json.loads(gzip.decompress(self.history_path.read_bytes()))
            return _kept(document), ""
        except FileNotFoundError:
            return KeptHistory(history=DemandHistory()), ""
        except (OSError, EOFError, ValueError) as error:
            aside = self.history_path.with_suffix(".damaged")
            try:
                self.history_path.replace(aside)
            except OSError as cause:
                raise Unavailable(f"{self.history_path} cannot be used: {cause}") from cause
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
            found = json.loads(self.scaler_path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_scaler(self, document: Mapping[str, Any]) -> None:
        """Raises Unavailable if it cannot be written."""
        self._write(self.scaler_path, (json.dumps(document, indent=2) + "\n").encode())

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
