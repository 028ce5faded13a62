"""The messages of one call: read and parsed one after the other, and what they name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

import grpc.aio

from hrm import errors, text
from hrm.identity.audit import stated

__all__ = ["CallMessages", "named"]

WHAT_CHARS_MAX = 200
_EOF: Any = vars(grpc.aio)["EOF"]  # missing in its stubs


def named(request: Any, paths: str) -> str:
    """The values of fields, such as ``register.name``, in one line of bounded length; with the
    field's name where its path ends in ``=``."""
    if not paths:
        return ""
    found: list[str] = []
    for path in paths.split():
        value, label = request, path.rpartition("=")[0]
        for name in path.removesuffix("=").split("."):
            value = getattr(value, name, "")
        is_one = isinstance(value, str | int)
        values = [str(value)] if is_one else map(stated, islice(value, WHAT_CHARS_MAX))
        found += [f"{label}={x}" if label else x for x in values if x]
    return text.detail(text.shortened(", ".join(found), WHAT_CHARS_MAX))


class CallMessages:
    """The messages of a stream, read from the call itself: gRPC offers a generator instead, and
    another one to parse would cost as much as the parsing."""

    def __init__(
        self,
        context: Any,
        parsed: Callable[[bytes], Any],
        began: Callable[[Any], None],
        pace: Callable[[], float] | None = None,
    ) -> None:
        """``began`` is called with the first. ``pace`` returns the seconds that the one which has
        arrived has to wait; as nothing more is read meanwhile, its sender waits as well."""
        self._read = context.read
        self._parsed = parsed
        self._began: Callable[[Any], None] | None = began
        self._pace = pace

    def __aiter__(self) -> CallMessages:
        return self

    async def __anext__(self) -> Any:
        data = await self._read()
        if data is _EOF:
            raise StopAsyncIteration
        if self._pace is not None and (wait_s := self._pace()):
            await asyncio.sleep(wait_s)
        return self._taken(data)

    async def first(self) -> Any:
        """The message of a call that has one.

        Raises:
            InvalidRequest: there is none.
        """
        data = await self._read()
        if data is _EOF:
            raise errors.InvalidRequest("a call without a message")
        return self._taken(data)

    def _taken(self, data: bytes) -> Any:
        message = self._parsed(data)
        if self._began is not None:
            began, self._began = self._began, None
            began(message)
        return message
