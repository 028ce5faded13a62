"""The pool of warm drivers: which JVM starts, which one an application gets, and which one ends.

A machine without IO: events go in, each with its time, and commands come out. ``server`` interprets
it with real processes, tests with none.

A JVM serves one application, so every one that is taken is replaced, some seconds later, when the
application that took it is on its way. Kinds (``kind``) are learned from what is asked for: one
that was asked for ``REQUESTS_MIN`` times gets JVMs, ``per_kind`` of them, as do the few kinds most
recently asked for; one that nobody has asked for within ``idle_s`` loses them. The kind that the
user began with stays. One JVM starts at a time. A kind whose JVMs fail ``FAILURES_MAX`` times in a
row is given up.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "FAILURES_MAX",
    "REQUESTS_MIN",
    "Command",
    "DriverRequested",
    "EndJvm",
    "Event",
    "HandJvm",
    "JvmDeclined",
    "JvmEnded",
    "JvmReady",
    "JvmState",
    "JvmTaken",
    "KindKept",
    "KindShown",
    "PoolStopped",
    "PoolTicked",
    "StartCold",
    "StartJvm",
    "WarmBounds",
    "WarmDriverPool",
]

REQUESTS_MIN = 2
FAILURES_MAX = 3
KINDS_KNOWN_MAX = 64
"""Kinds whose requests are counted; the one least recently asked for is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmBounds:
    """Times in seconds; memory in MiB, of all JVMs that wait."""

    per_kind: int = 1
    kinds_max: int = 3
    memory_max_mib: int = 4096
    idle_s: float = 3600.0
    delay_s: float = 5.0
    ready_limit_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KindKept:
    """The user wants JVMs of this kind, whether they are asked for or not."""

    now: float
    kind: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRequested:
    """A driver of this kind starts; ``request`` names it in the reply."""

    now: float
    request: int
    kind: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmReady:
    """The JVM has rehearsed, and waits."""

    now: float
    jvm: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmTaken:
    """The JVM is an application's, and has left the pool."""

    now: float
    jvm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmDeclined:
    """The JVM cannot serve; it ends by itself."""

    now: float
    jvm: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmEnded:
    """The JVM's process is gone."""

    now: float
    jvm: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTicked:
    """``wake_at_s`` has come."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStopped:
    """The pool ends; what applications have taken stays."""

    now: float


Event = (
    KindKept
    | DriverRequested
    | JvmReady
    | JvmTaken
    | JvmDeclined
    | JvmEnded
    | PoolTicked
    | PoolStopped
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJvm:
    """Start one, when the machine has a core to spare."""

    jvm: int
    kind: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class HandJvm:
    """This JVM becomes the driver of this request."""

    jvm: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCold:
    """The driver of this request starts cold."""

    request: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJvm:
    """End a JVM that no application has."""

    jvm: int


Command = StartJvm | HandJvm | StartCold | EndJvm


class JvmState(Enum):
    """Of a JVM in the pool. One that is handed over may still come to nothing."""

    STARTING = "starting"
    READY = "ready"
    HANDED = "handed over"
    ENDING = "ending"


@dataclass(slots=True)
class _Jvm:
    kind: Hashable
    state: JvmState
    since_s: float
    memory_mib: int = 0


@dataclass(slots=True)
class _Kind:
    asked_at_s: float
    requests: int = 0
    kept: bool = False
    used: int = 0
    missed: int = 0
    failures: int = 0
    problem: str = ""

    @property
    def given_up(self) -> bool:
        return self.failures >= FAILURES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class KindShown:
    """A kind for ``hrm warm --status``; ``memory_mib``: of those of its JVMs that wait."""

    kind: Hashable
    ready: int
    starting: int
    used: int
    missed: int
    memory_mib: int
    problem: str


class WarmDriverPool:
    """Invariants: at most one JVM is STARTING; JVMs that are READY are of wanted kinds; each
    request gets one reply, at once; a JVM is handed over once."""

    def __init__(self, bounds: WarmBounds) -> None:
        self._bounds = bounds
        self._kinds: dict[Hashable, _Kind] = {}
        """In the order of their last requests."""
        self._jvms: dict[int, _Jvm] = {}
        self._next = 1
        self._start_at_s = -math.inf
        self._usual_mib = 0
        self._now = -math.inf
        self._stopped = False

    def handle(self, event: Event) -> list[Command]:
        """What follows from an event."""
        commands: list[Command] = []
        self._now = event.now
        match event:
            case KindKept():
                self._known(event.kind, event.now).kept = True
            case DriverRequested():
                commands.append(self._serve(event))
            case JvmReady():
                self._ready(event)
            case JvmTaken():
                self._jvms.pop(event.jvm, None)
            case JvmDeclined() | JvmEnded():
                self._lost(event)
            case PoolStopped():
                self._stopped = True
            case PoolTicked():
                pass
        return [*commands, *self._adjust(event.now)]

    def wake_at_s(self) -> float:
        """When the pool has something to do, if nothing happens before; infinity: never."""
        times = [
            jvm.since_s + self._bounds.ready_limit_s
            for jvm in self._jvms.values()
            if jvm.state is JvmState.STARTING
        ]
        if not times and not self._stopped and self._next_kind(self._now) is not None:
            times.append(self._start_at_s)
        times += [
            kind.asked_at_s + self._bounds.idle_s
            for name, kind in self._kinds.items()
            if not kind.kept and any(self._of(name, JvmState.READY, JvmState.STARTING))
        ]
        return min(times, default=math.inf)

    def shown(self) -> list[KindShown]:
        """Its kinds, the most recently requested first."""
        return [
            KindShown(
                kind=name,
                ready=sum(1 for _ in self._of(name, JvmState.READY)),
                starting=sum(1 for _ in self._of(name, JvmState.STARTING)),
                used=kind.used,
                missed=kind.missed,
                memory_mib=sum(self._jvms[x].memory_mib for x in self._of(name, JvmState.READY)),
                problem=kind.problem,
            )
            for name, kind in reversed(self._kinds.items())
        ]

    def _known(self, kind: Hashable, now: float) -> _Kind:
        """The kind, now the most recent."""
        found = self._kinds.pop(kind, None) or _Kind(asked_at_s=now)
        found.asked_at_s = now
        self._kinds[kind] = found
        forgettable = (name for name, each in self._kinds.items() if not each.kept and name != kind)
        while len(self._kinds) > KINDS_KNOWN_MAX and (name := next(forgettable, None)) is not None:
            del self._kinds[name]
            forgettable = (n for n, each in self._kinds.items() if not each.kept and n != kind)
        return found

    def _serve(self, event: DriverRequested) -> Command:
        kind = self._known(event.kind, event.now)
        kind.requests += 1
        self._start_at_s = event.now + self._bounds.delay_s
        for jvm in self._of(event.kind, JvmState.READY):
            if self._stopped:
                break
            self._jvms[jvm].state = JvmState.HANDED
            kind.used += 1
            return HandJvm(jvm=jvm, request=event.request)
        kind.missed += 1
        return StartCold(request=event.request, why=self._why_none(event.kind, kind))

    def _why_none(self, name: Hashable, kind: _Kind) -> str:
        if self._stopped:
            return "the warm server is ending"
        if kind.given_up:
            return f"drivers of its kind cannot be kept warm: {kind.problem}"
        if any(self._of(name, JvmState.STARTING)):
            return "a warm driver of its kind is not ready yet"
        if kind.requests < REQUESTS_MIN and not kind.kept:
            return "the first of its kind"
        return "no warm driver of its kind is ready"

    def _ready(self, event: JvmReady) -> None:
        jvm = self._jvms.get(event.jvm)
        if jvm is None or jvm.state is not JvmState.STARTING:
            return
        jvm.state, jvm.since_s, jvm.memory_mib = JvmState.READY, event.now, event.memory_mib
        self._usual_mib = max(self._usual_mib, event.memory_mib)
        kind = self._kinds.get(jvm.kind)
        if kind is not None:
            kind.failures, kind.problem = 0, ""

    def _lost(self, event: JvmDeclined | JvmEnded) -> None:
        jvm = self._jvms.get(event.jvm)
        if jvm is None:
            return
        if isinstance(event, JvmEnded):
            del self._jvms[event.jvm]
        if jvm.state is JvmState.ENDING:
            return
        jvm.state = JvmState.ENDING
        kind = self._kinds.get(jvm.kind)
        if kind is not None:
            kind.failures += 1
            kind.problem = event.why
            self._start_at_s = max(self._start_at_s, event.now + self._bounds.delay_s)

    def _adjust(self, now: float) -> Iterator[Command]:
        wanted = set() if self._stopped else set(self._wanted(now))
        for number, jvm in self._jvms.items():
            late = (
                jvm.state is JvmState.STARTING and now >= jvm.since_s + self._bounds.ready_limit_s
            )
            if late and (kind := self._kinds.get(jvm.kind)) is not None:
                kind.failures += 1
                kind.problem = f"it was not ready within {self._bounds.ready_limit_s:g} s"
            waits = jvm.state in (JvmState.STARTING, JvmState.READY)
            if waits and (late or jvm.kind not in wanted):
                jvm.state = JvmState.ENDING
                yield EndJvm(jvm=number)
        kind_next = None if self._stopped else self._next_kind(now)
        if kind_next is not None and now >= self._start_at_s:
            self._jvms[self._next] = _Jvm(kind_next, JvmState.STARTING, now)
            yield StartJvm(jvm=self._next, kind=kind_next)
            self._next += 1

    def _wanted(self, now: float) -> Iterator[Hashable]:
        """The kinds that get JVMs: those kept, then the most recently requested."""
        kept = [name for name, kind in reversed(self._kinds.items()) if kind.kept]
        others = [
            name
            for name, kind in reversed(self._kinds.items())
            if not kind.kept
            and kind.requests >= REQUESTS_MIN
            and now < kind.asked_at_s + self._bounds.idle_s
        ]
        yield from [*kept, *others][: self._bounds.kinds_max]

    def _next_kind(self, now: float) -> Hashable | None:
        """The kind to start the next JVM of; None: all is there, or one is starting."""
        if any(jvm.state is JvmState.STARTING for jvm in self._jvms.values()):
            return None
        memory_mib = sum(jvm.memory_mib for jvm in self._jvms.values())
        if memory_mib + self._usual_mib > self._bounds.memory_max_mib:
            return None
        for name in self._wanted(now):
            there = sum(1 for _ in self._of(name, JvmState.READY, JvmState.STARTING))
            if there < self._bounds.per_kind and not self._kinds[name].given_up:
                return name
        return None

    def _of(self, kind: Hashable, *states: JvmState) -> Iterator[int]:
        yield from [n for n, x in self._jvms.items() if x.kind == kind and x.state in states]
