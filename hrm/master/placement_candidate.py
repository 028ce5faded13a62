"""The candidate of ``placement_candidate``: tried out next to the placement policy in force.

It is another package's code, so the master does not wait for it: it is imported in a thread of its
own, and until that has ended, or where it fails, the policy in force places everything, and
``hrm policy show`` says why. Only a name that no package provides keeps the master from starting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from time import monotonic, thread_time

import structlog

from hrm import policies
from hrm.config import MasterSettings
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.vocabulary.event_table import Watch
from hrm.errors import HrmError, InvalidConfig
from hrm.policies.guard import GuardRegistry
from hrm.policies.guarded import PlacementGuard

__all__ = ["with_candidate"]

SETTING = "placement_candidate"
WAITED_PART = 0.01
"""Of the time that passes counts so much, besides processor time."""

log = structlog.get_logger("master.policies")


def with_candidate(
    settings: MasterSettings,
    in_force: Sequence[PlacementPolicy],
    watch: Watch,
    guards: GuardRegistry,
) -> tuple[Sequence[PlacementPolicy], Watch]:
    """What schedulers and the core are to use instead of the policies ``in_force`` and ``watch``,
    which are returned as they are where the settings name no candidate. Its guard is known to
    ``guards``. To be called in the event loop of the core.

    Raises:
        InvalidConfig: no package provides the candidate, two do, it is in force already, or its
            name is that of a learned policy of another kind.
    """
    name = settings.placement_candidate
    if not name:
        return in_force, watch
    origin = policies.origin(name, SETTING)
    if name == settings.placement_policy:
        others = ", ".join(each for each in policies.known() if each != name)
        raise InvalidConfig(
            f"{SETTING} = {name!r} is the placement_policy in force already; remove it from "
            f"hrm.toml [master], or set it to another one: {others}"
        )
    guard = PlacementGuard(
        name, heuristic=settings.placement_policy, origin=origin, clock_s=_clock_s
    )
    guards.add(guard.guard)
    guarded = [guard.around(each) for each in in_force]
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=_load, args=(name, len(in_force), guard, loop), name=f"load {name}", daemon=True
    ).start()
    return guarded, guard.watching(watch)


def _clock_s() -> float:
    """What a decision costs: the thread's processor time, and a little of the time that passes. So
    one that waits, and holds up the master, is found out; one that the machine delays is not."""
    return thread_time() + WAITED_PART * monotonic()


def _load(name: str, many: int, guard: PlacementGuard, loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: make the candidates, and have the loop use them."""
    try:
        made = [policies.load(name, index, SETTING) for index in range(many)]
    except BaseException as error:  # whatever it does, as it is imported, harms this thread alone
        text = error.message if isinstance(error, HrmError) else type(error).__name__
        _soon(loop, guard, name, [], text)
    else:
        _soon(loop, guard, name, made, "")


def _soon(
    loop: asyncio.AbstractEventLoop,
    guard: PlacementGuard,
    name: str,
    made: list[PlacementPolicy],
    why: str,
) -> None:
    def in_the_loop() -> None:
        if why:
            guard.missed(why)
        missing = why or guard.loaded(made)
        if missing:
            log.warning("the candidate for placement is not used", policy=name, why=missing)
        else:
            mode = guard.guard.mode.value
            log.info("the candidate for placement is loaded", policy=name, mode=mode)

    try:
        loop.call_soon_threadsafe(in_the_loop)
    except RuntimeError:
        log.info("the master ended before its candidate was loaded", policy=name)
