"""One line of the audit log: who did what, from where, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = ["BEGUN", "DONE", "AuditRecord", "stated"]

DONE = "ok"
BEGUN = "begun"
"""Of a stream, which lasts: what it registered was accepted unless a refusal follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """``result``: ``DONE``, ``BEGUN``, or a status and the reason of a refusal."""

    at_s: float
    name: str
    kind: str
    role: str
    token_id: str
    peer: str
    method: str
    what: str
    result: str

    def line(self) -> str:
        """JSON without a line break."""
        at = datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {
                "time": at, "identity": self.name, "kind": self.kind, "role": self.role,
                "token": self.token_id, "peer": self.peer, "rpc": self.method,
                "object": self.what, "result": self.result,
            }
        )  # fmt: skip

    @classmethod
    def of_line(cls, line: str) -> AuditRecord:
        """Raises ValueError: it is damaged."""
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("no object")
        values = {key: str(value) for key, value in found.items()}
        try:
            return cls(
                at_s=datetime.fromisoformat(values["time"]).timestamp(),
                name=values["identity"], kind=values["kind"], role=values["role"],
                token_id=values["token"], peer=values["peer"], method=values["rpc"],
                what=values["object"], result=values["result"],
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from None


def stated(value: Any) -> str:
    """An element of a request in short: of a message its name, and in brackets the other fields
    that it states."""
    if isinstance(value, bool | float):
        return f"{value:g}" if isinstance(value, float) else str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if not hasattr(value, "ListFields"):
        return "/".join(map(stated, value))
    found = {field.name: stated(x) for field, x in value.ListFields()}
    if found.keys() == {"names"}:
        return found["names"]
    name = found.pop("name", "")
    fields = " ".join(f"{key}={x}" for key, x in found.items())
    return f"{name} ({fields})".lstrip() if fields or not name else name
