"""Delegation tokens of submitted drivers: in the master's memory alone, until a submission ends.

Who has them can read the user's files, so no disk gets them. The price: they are lost when
the master stops, and a driver that has yet to start then is refused, with what to do.
"""

from __future__ import annotations

from hrm.errors import LimitReached, NotFound

__all__ = ["HELD_BYTES_MAX", "DriverTokens"]

HELD_BYTES_MAX = 64 * 1024 * 1024


class DriverTokens:
    """What the runner of a driver fetches once it has its lease."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._tokens: dict[str, bytes] = {}
        self._held_bytes_max = held_bytes_max

    def check(self, tokens: bytes) -> None:
        """Raises LimitReached where there is no space for these as well."""
        held = sum(map(len, self._tokens.values()))
        if held + len(tokens) > self._held_bytes_max:
            raise LimitReached(
                f"the master holds {held} bytes of delegation tokens of live submissions, and at "
                f"most {self._held_bytes_max}; submit again when some have ended"
            )

    def keep(self, submission_id: str, tokens: bytes) -> None:
        self._tokens[submission_id] = tokens

    def drop(self, submission_id: str) -> None:
        self._tokens.pop(submission_id, None)

    def of(self, submission_id: str) -> bytes:
        """Raises NotFound where there are none."""
        found = self._tokens.get(submission_id)
        if found is None:
            raise NotFound(
                f"the delegation tokens of {submission_id} are gone: the master had them in its "
                f"memory alone, and has been restarted since; submit again, or with a keytab that "
                f"is on the nodes (--keytab local:/PATH)"
            )
        return found
