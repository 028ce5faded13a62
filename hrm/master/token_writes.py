"""Records of tokens, in memory and on the disk.

A change holds in memory at once, and is queued for the disk before anything else can happen, so the
store gets the states of a record in the order in which they were in force. It is acknowledged once
the newest of them is on the disk, which need not be the acknowledged one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from hrm.identity.registry import TokenRegistry
from hrm.identity.tokens import TokenRecord
from hrm.master.store import Store

__all__ = ["TokenWrites"]


class TokenWrites:
    """Used on the loop alone.

    ``_unwritten``: of tokens whose newest record is not known to be on the disk: its write; None:
    there is none, because the last has failed.
    """

    def __init__(self, registry: TokenRegistry, store: Store) -> None:
        self._registry = registry
        self._store = store
        self._unwritten: dict[str, asyncio.Future[None] | None] = {}

    async def keep(self, *records: TokenRecord) -> None:
        """From now on, these are the records of their tokens; returns once they, or later ones, are
        on the disk. They get there together, or not at all.

        Raises:
            HrmError: they could not be written; they hold until the master ends.
        """
        for record in records:
            self._registry.put(record)
            self._unwritten[record.token_id] = None
        self._queue(*records)
        await self.written(*(record.token_id for record in records))

    async def written(self, *token_ids: str) -> None:
        """Returns once what is known of these tokens is on the disk; errors as of ``keep``."""
        for token_id in token_ids:
            while token_id in self._unwritten:
                write = self._unwritten[token_id]
                if write is None:
                    write = self._queue(self._registry.record(token_id))
                await asyncio.shield(write)  # others wait for it as well
                self._done(token_id, write)  # perhaps before its callback: the loop must end

    def forget(self, token_ids: Iterable[str]) -> None:
        """Remove the records; nobody waits for the disk."""
        for token_id in token_ids:
            self._registry.forget(token_id)
            self._unwritten.pop(token_id, None)
            self._store.forget_token(token_id)

    def _queue(self, *records: TokenRecord) -> asyncio.Future[None]:
        write = self._store.put_tokens(records)
        for record in records:
            self._unwritten[record.token_id] = write
            write.add_done_callback(partial(self._done, record.token_id))
        return write

    def _done(self, token_id: str, write: asyncio.Future[None]) -> None:
        if self._unwritten.get(token_id) is not write:
            return  # a later one is on its way
        if write.cancelled() or write.exception() is not None:
            self._unwritten[token_id] = None
        else:
            del self._unwritten[token_id]
