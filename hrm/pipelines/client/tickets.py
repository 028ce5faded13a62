"""What a client needs to get the result of a task that it has left behind.

The key that proves the result, and the one that shows whose it is, are secrets: they are kept in a
file that only its owner can read, and go to nobody.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from hrm.address import state_home
from hrm.errors import InvalidRequest, NotFound

__all__ = ["Ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Of one task. ``result_key``: hexadecimal; ``result_format``: a value of ``ResultFormat``;
    ``result_dir``: where its result stays, empty: with the master."""

    task_id: str
    result_key: str
    ownership_key: str
    result_format: str
    result_dir: str = ""

    @staticmethod
    def _path(task_id: str) -> Path:
        if not task_id or "/" in task_id or task_id.startswith("."):
            raise InvalidRequest(f"{task_id!r} is no id of a task; hrm pipeline list shows them")
        return state_home() / "pipeline-tasks" / f"{task_id}.json"

    def save(self) -> Path:
        """Keep it in this user's directory of HRM.

        Raises:
            InvalidRequest: that cannot be written.
        """
        path = self._path(self.task_id)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(self), file)
        except OSError as error:
            raise InvalidRequest(f"cannot keep what proves the result: {error}") from error
        return path

    @classmethod
    def load(cls, task_id: str) -> Ticket:
        """Raises NotFound where this user has none, or it is damaged."""
        path = cls._path(task_id)
        try:
            held = json.loads(path.read_text())
            held.setdefault("result_dir", "")
            return cls(**{name: str(held[name]) for name in cls.__dataclass_fields__})
        except FileNotFoundError:
            raise NotFound(
                f"{path} is not there, which has the keys of the task's result: it was submitted "
                f"by another user, from elsewhere, or not with hrm pipeline submit --detach, or "
                f"has been forgotten (hrm pipeline result --forget)"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotFound(f"{path} cannot be read: {error!r}") from error

    def forget(self) -> None:
        """It is of no use any more."""
        self._path(self.task_id).unlink(missing_ok=True)
