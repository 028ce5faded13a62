"""Bugs of what runs the master's core: order of turns, and what leaves when, on which stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hrm.core.master.rounds import RoundSequencer
from hrm.core.master.wake_timers import WakeTimers
from hrm.core.master.write_gate import WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import NodeName
from hrm.runtime.master import End, MasterRuntime
from hrm.sim.actors import master

__all__ = ["BUGS"]


def round_forgotten_after_a_commit(patch: pytest.MonkeyPatch) -> None:
    """What is due when a round of batch has committed is dropped with it."""
    step = RoundSequencer.step

    def step_and_clear(self: RoundSequencer, now: float) -> e.MasterEvent | None:
        event = step(self, now)
        if isinstance(event, e.ClaimsProposed):
            self._due.clear()
        return event

    patch.setattr(RoundSequencer, "step", step_and_clear)


def round_begun_twice(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that looks for a stream is still due for the batch that it was due for."""
    taken = RoundSequencer.taken

    def taken_and_due(self: RoundSequencer, event: e.MasterEvent, now: float) -> None:
        before = list(self._due)
        taken(self, event, now)
        self._due.extend(x for x in before if x not in self._due)

    patch.setattr(RoundSequencer, "taken", taken_and_due)


def stream_waits_behind_batch(patch: pytest.MonkeyPatch) -> None:
    """Streams take their steps among the others'."""
    patch.setattr(RoundSequencer, "at_once", lambda *_: None)


def request_of_a_stream_overlooked(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that is due for batch is not advanced for a stream that comes to it."""

    def taken(self: RoundSequencer, event: e.MasterEvent, now: float) -> None:
        self._left_at_once = self._at_once_max

    patch.setattr(RoundSequencer, "taken", taken)


def batch_waits_for_streams(patch: pytest.MonkeyPatch) -> None:
    """Streams take the step of every turn, however many have been served."""
    step = RoundSequencer.step

    def streams_first(self: RoundSequencer, now: float) -> e.MasterEvent | None:
        self._left_at_once = self._at_once_max
        return step(self, now)

    patch.setattr(RoundSequencer, "step", streams_first)


def rounds_that_overlap(patch: pytest.MonkeyPatch) -> None:
    """All schedulers that are due look, and then all of them commit."""
    step = RoundSequencer.step

    def look_first(self: RoundSequencer, now: float) -> e.MasterEvent | None:
        if self._due:
            return e.SchedulerWoken(now=now, scheduler=self._due.popleft())
        return step(self, now)

    patch.setattr(RoundSequencer, "step", look_first)


def one_timer_of_all(patch: pytest.MonkeyPatch) -> None:
    """A scheduler's wake replaces those of all others."""
    set_one = WakeTimers.set

    def set_alone(self: WakeTimers, scheduler: str, at_s: float) -> None:
        self._at_s.clear()
        set_one(self, scheduler, at_s)

    patch.setattr(WakeTimers, "set", set_alone)


def first_wake_kept(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that has a wake gets no earlier one."""
    set_one = WakeTimers.set

    def set_first(self: WakeTimers, scheduler: str, at_s: float) -> None:
        if scheduler not in self._at_s:
            set_one(self, scheduler, at_s)

    patch.setattr(WakeTimers, "set", set_first)


def dead_master_takes_in(patch: pytest.MonkeyPatch) -> None:
    """What was sent to a master that died reaches it, and leads to commands."""
    take_in = MasterRuntime._take_in

    def take_in_always(self: MasterRuntime, event: e.MasterEvent) -> None:
        over, self.over = self.over, False
        take_in(self, event)
        self.over = over or self.over

    patch.setattr(MasterRuntime, "_take_in", take_in_always)


def released_backwards(patch: pytest.MonkeyPatch) -> None:
    """What has waited for the disk leaves in reverse order."""
    release = WriteGate.release

    def reverse(self: WriteGate) -> Sequence[c.MasterCommand]:
        return list(reversed(release(self)))

    patch.setattr(WriteGate, "release", reverse)


def held_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    """A message to a name for which something is held does not wait behind that."""
    patch.setattr(WriteGate, "_is_held", lambda *_: False)


def back_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A lost node is back in service while that cannot be written."""
    patch.setattr(WriteGate, "ignores", lambda *_: False)


def orders_for_the_agent_before(patch: pytest.MonkeyPatch) -> None:
    """An order for an agent that is gone goes to its successor."""

    def newest(self: master._Life, name: NodeName, incarnation: str) -> End | None:
        ends = [end for (node, _), end in self._process.node_ends.items() if node == name]
        return ends[-1] if ends else None

    patch.setattr(master._Life, "node", newest)


def stream_not_ended(patch: pytest.MonkeyPatch) -> None:
    """A node that must register again keeps its stream."""
    send = MasterRuntime.send

    def keep(self: MasterRuntime, command: c.MasterCommand) -> None:
        if not isinstance(command, c.DropNode):
            send(self, command)

    patch.setattr(MasterRuntime, "send", keep)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    round_forgotten_after_a_commit,
    round_begun_twice,
    stream_waits_behind_batch,
    request_of_a_stream_overlooked,
    batch_waits_for_streams,
    rounds_that_overlap,
    one_timer_of_all,
    first_wake_kept,
    dead_master_takes_in,
    released_backwards,
    held_is_overtaken,
    back_on_a_full_disk,
    orders_for_the_agent_before,
    stream_not_ended,
]
