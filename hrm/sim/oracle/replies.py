"""Callers of the master: each call gets one reply, and no reply goes out without a call.

Most calls are answered by the event that brings them. Rebindings, requests for the lease and claims
behind a lease wait; all but the wait for a lease have a limit in the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e

__all__ = ["CallReplies"]


class CallReplies:
    """``waiting``: calls without an answer yet, by number, with the event and its time."""

    def __init__(
        self, violated: Callable[[str], None], awake_s: Callable[[float, float], float]
    ) -> None:
        """``awake_s``: how much of a time the master was awake."""
        self.waiting: dict[int, e.MasterEvent] = {}
        self._violated = violated
        self._awake_s = awake_s

    def master_began(self) -> None:
        """Callers of the previous master see the connection break."""
        self.waiting.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        call_id = getattr(event, "call_id", 0)
        if call_id:
            self.waiting[call_id] = event
        for command in commands:
            if not isinstance(command, c.Reply | c.Refuse):
                continue
            if self.waiting.pop(command.call_id, None) is None:
                self._violated(f"call {command.call_id} is answered, and no caller waits for it")
        asked = self.waiting.get(call_id)
        if asked is not None and not isinstance(
            asked, e.RebindRequested | e.LeaseRequested | e.ClaimsProposed
        ):
            self._violated(f"{type(asked).__name__} {call_id} gets no answer")
        if isinstance(event, e.Ticked):
            self._late(core, event.now)

    def without_reply(self) -> list[str]:
        """Calls of nodes, drivers and users that are still open; schedulers keep calling."""
        return [
            f"{type(asked).__name__} {call_id} waits for its answer"
            for call_id, asked in self.waiting.items()
            if not isinstance(asked, e.LeaseRequested)
        ]

    def _late(self, core: MasterCore, now: float) -> None:
        bounds = core.master_state.bounds
        limits_s = {
            e.RebindRequested: bounds.rebind_timeout_s,
            e.ClaimsProposed: bounds.proposal_timeout_s,
        }
        for call_id, asked in self.waiting.items():
            limit_s = limits_s.get(type(asked))
            waited_s = self._awake_s(asked.now, now)
            if limit_s is not None and waited_s > limit_s:
                self._violated(
                    f"{type(asked).__name__} {call_id} has waited {waited_s:.1f} s for its "
                    f"answer, its limit is {limit_s:.1f} s"
                )
