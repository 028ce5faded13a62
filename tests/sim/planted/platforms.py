"""Bugs of the division of queues' shares over unlike platforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_moves import PlatformMoves
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.master.platform_use import PlatformUse
from hrm.policies.sharing import PlatformDivider

__all__ = ["BUGS"]


def parts_without_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """What a queue has on a platform already does not count."""
    patch.setattr(PlatformUse, "held", lambda *_: 0.0)


def platforms_divided_twice(patch: pytest.MonkeyPatch) -> None:
    """Each queue gets twice its part of every platform."""
    divide: Callable[..., Any] = PlatformDivider.divide
    patch.setattr(PlatformDivider, "divide", lambda *args: 2 * divide(*args))


def platform_awaited_without_end(patch: pytest.MonkeyPatch) -> None:
    """What prefers a platform is placed nowhere else, however long that is full."""
    choose = PlatformShares.choose

    def for_good(
        self: PlatformShares, app: Application, some: Sequence[Container], now: float
    ) -> None:
        choose(self, app, some, now)
        for container in some:
            if container.request.platform:
                container.request = replace(container.request, platform_until_s=math.inf)

    patch.setattr(PlatformShares, "choose", for_good)


def moved_to_what_is_full(patch: pytest.MonkeyPatch) -> None:
    """What is moved is not exchanged for anything, free capacity or not."""
    patch.setattr(PlatformMoves, "_partner", lambda *_: None)
    patch.setattr(PlatformMoves, "_is_free", lambda *_: True)


def moved_when_it_has_just_started(patch: pytest.MonkeyPatch) -> None:
    """What is moved may be moved again at once."""
    movable: Callable[..., Any] = PlatformMoves._movable
    patch.setattr(PlatformMoves, "_movable", lambda self, _now: movable(self, math.inf))


def kept_is_moved(patch: pytest.MonkeyPatch) -> None:
    """Streams, and queues that keep what they have, are moved as others."""
    patch.setattr(PlatformMoves, "_may_lose", lambda *_: True)


BUGS = (
    parts_without_what_is_held,
    platforms_divided_twice,
    platform_awaited_without_end,
    moved_to_what_is_full,
    moved_when_it_has_just_started,
    kept_is_moved,
)
