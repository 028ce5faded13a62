"""Job slots, virtual slots, and which of them may be chosen.

The paper shows a network the jobs in ``M`` slots and, in *virtual* slots, every combination of
them, so that it can start several at once: 2^M - 1 of them. The number of an action is a bit mask
of slots, and 0 is to wait. As time stands still while jobs are placed, one slot after another
reaches the same sets, for each part of a set that fits also fits, and M + 1 actions are enough.

Source: DqnGPU, section 3 (state and actions), whose order of virtual slots is by size:
a, b, c, ab, ac, bc, abc.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hrm.policies.shared_gpu.profiles import (
    RESOURCES,
    Bits,
    CapacityRule,
    GpuUseProfile,
    ProfileTable,
    images,
)

__all__ = ["WAIT", "combination_mask", "members", "printed_order", "state_images"]

WAIT = 0


def members(action: int) -> tuple[int, ...]:
    """The slots, from 0, of a bit mask."""
    return tuple(slot for slot in range(action.bit_length()) if action >> slot & 1)


def printed_order(slots: int) -> list[int]:
    """Bit masks in the paper's order: single slots first, then pairs, and so on."""
    return [
        sum(1 << slot for slot in some)
        for size in range(1, slots + 1)
        for some in itertools.combinations(range(slots), size)
    ]


def combination_mask(
    rule: CapacityRule,
    running: Sequence[tuple[GpuUseProfile, int]],
    visible: Sequence[GpuUseProfile],
    slots: int,
) -> Bits:
    """Shape (2^slots,): which subsets of ``visible`` may start together next to ``running``.

    To wait is legal, except on an idle GPU while a job that fits is visible.
    """
    legal = np.zeros(1 << slots, dtype=np.bool_)
    legal[WAIT] = True
    table = ProfileTable(visible)
    for action in range(1, 1 << min(slots, len(visible))):
        last = action.bit_length() - 1
        rest = action & ~(1 << last)
        if rest and not legal[rest]:
            continue
        beside = [*running, *((visible[slot], 0) for slot in members(rest))]
        legal[action] = rule.fitting(beside, table)[last]
    if not running and legal[1:].any():
        legal[WAIT] = False
    return legal


def state_images(
    rule: CapacityRule,
    running: Sequence[tuple[GpuUseProfile, int]],
    visible: Sequence[GpuUseProfile],
    *,
    slots: int,
    virtual: bool,
    horizon: int,
    width: int,
    backlog: int = 0,
    backlog_places: int = 60,
    since_arrival: int = 0,
) -> npt.NDArray[np.float32]:
    """The network's input, flat float32: images of the cluster, of each slot (or of each
    combination, ``virtual``), the backlog as a filled count, and ticks since the last arrival / 10
    as a column.

    Columns of a combination whose sum exceeds the width are clipped; its action is masked.
    """
    used = rule.used(running, horizon)
    parts = [images(used, horizon, width)]
    nothing = np.zeros((len(RESOURCES), horizon, width), dtype=np.bool_)
    sets = printed_order(slots) if virtual else [1 << slot for slot in range(slots)]
    for action in sets:
        chosen = members(action)
        if chosen[-1] >= len(visible):
            parts.append(nothing)
            continue
        total = rule.used([(visible[slot], 0) for slot in chosen], horizon)
        parts.append(images(total, horizon, width))
    waiting = np.arange(backlog_places) < backlog
    last = np.full(horizon, since_arrival / 10.0)
    drawn = [part.ravel() for part in parts]
    return np.concatenate([*drawn, waiting, last]).astype(np.float32)
