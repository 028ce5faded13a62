"""Returns the memory of large applications to the system after they end.

glibc keeps freed memory for reuse, unless it lies at the end of the heap. After a wave of large
applications, that would hold as much as all of them used, for good. So after enough has been
dropped, the allocator is asked to return unused memory; in a thread, because the call takes time in
proportion to the heap. Where the allocator has no such call, nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hrm import allocator

__all__ = ["give_back_forever"]

INTERVAL_S = 2.0
DROPPED_BYTES_MIN = 8 * 1024 * 1024


async def give_back_forever(dropped_bytes: Callable[[], int]) -> None:
    """``dropped_bytes``: what has been dropped so far, all in all."""
    returned = 0
    while True:
        await asyncio.sleep(INTERVAL_S)
        dropped = dropped_bytes()
        if dropped - returned >= DROPPED_BYTES_MIN:
            returned = dropped
            await asyncio.to_thread(allocator.give_back)
