"""Processes that sleep: stopped by a signal, or with their whole machine, and going on later.

A process that sleeps handles nothing. Messages of others wait in its sockets, its own timers wait
as well, and when it wakes both are there at once. Which of them it takes in first is
drawn for each sleep; within each kind the order stays what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from hrm.runtime.clock import Clock

__all__ = ["MASTER", "ProcessClock", "Sleepers"]

MASTER = "master"
_MOMENT_S = 1e-6
"""Between what a process that wakes takes in first, and the rest."""


@dataclass(frozen=True, slots=True)
class _Sleep:
    messages_at_s: float
    timers_at_s: float


class Sleepers:
    """``slept``: of each process the intervals in which it slept, oldest first."""

    def __init__(self, clock: Clock, chance: Random) -> None:
        self.slept: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._clock = clock
        self._chance = chance
        self._asleep: dict[str, _Sleep] = {}

    def sleep(self, name: str, for_s: float) -> None:
        """Let a process that is awake sleep."""
        assert not self.is_asleep(name)
        wakes_at_s = self._clock.now + for_s
        self.slept[name].append((self._clock.now, wakes_at_s))
        first, second = wakes_at_s, wakes_at_s + _MOMENT_S
        if self._chance.random() < 0.5:
            first, second = second, first
        self._asleep[name] = _Sleep(messages_at_s=first, timers_at_s=second)

    def is_asleep(self, name: str) -> bool:
        sleep = self._asleep.get(name)
        return sleep is not None and self._clock.now < max(sleep.messages_at_s, sleep.timers_at_s)

    def died(self, name: str) -> None:
        """A process that is killed sleeps no more."""
        if self.is_asleep(name):
            begun_s, _ = self.slept[name].pop()
            self.slept[name].append((begun_s, self._clock.now))
        self._asleep.pop(name, None)

    def deliver(self, name: str, action: Callable[..., None], *arguments: Any) -> None:
        """A message of another process, when the process handles it."""
        sleep = self._asleep.get(name)
        if sleep is None or self._clock.now >= sleep.messages_at_s:
            action(*arguments)
        else:
            self._clock.at(sleep.messages_at_s, self.deliver, name, action, *arguments)

    def ring(self, name: str, action: Callable[..., None], *arguments: Any) -> None:
        """A timer of the process itself, when the process handles it."""
        sleep = self._asleep.get(name)
        if sleep is None or self._clock.now >= sleep.timers_at_s:
            action(*arguments)
        else:
            self._clock.at(sleep.timers_at_s, self.ring, name, action, *arguments)


class ProcessClock:
    """The world's clock as one process observes it."""

    def __init__(self, clock: Clock, sleepers: Sleepers, name: str) -> None:
        self._clock = clock
        self._sleepers = sleepers
        self._name = name

    @property
    def now(self) -> float:
        return self._clock.now

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._clock.at(at_s, self._sleepers.ring, self._name, action, *arguments)

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._clock.after(delay_s, self._sleepers.ring, self._name, action, *arguments)
