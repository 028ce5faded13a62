"""Lists in pages (AIP-158): a response of bounded size, and a token for what follows it.

The token holds the key of the last element sent, so the server keeps no state per reader: an
element added meanwhile appears at its place in the order, a removed one is missing, and none
appears twice. A page ends after the requested number of elements, or earlier if they are large.
"""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from hrm.errors import InvalidRequest

__all__ = ["MESSAGE_LISTED", "NAME_LISTED", "PAGE_BYTES", "PAGE_MAX", "check_limit", "page"]

PAGE_MAX = 1_000
PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the element that goes beyond; messages end at 64 MiB."""
NAME_LISTED = 256
MESSAGE_LISTED = 1_024
"""Characters of a name and of a message in a list. What shows one element shows all of it."""

Key: TypeAlias = tuple[str | float, ...]
E = TypeVar("E")
M = TypeVar("M")


def check_limit(limit: int) -> int:
    """Raises InvalidRequest: it is negative."""
    if limit < 0:
        raise InvalidRequest(f"limit is {limit}; it must not be negative")
    return limit


def page(
    elements: Iterable[E],
    key: Callable[[E], Key],
    message: Callable[[E], M],
    request: Any,
    *,
    limit: int = 0,
) -> tuple[list[M], str]:
    """The page of ``elements``, in the order of their keys, that ``request`` selects by its
    ``page_size`` and ``page_token``, as messages; and the token of the next one, empty after the
    last. ``limit``: the first page begins that many before the end; 0: with the first.

    Raises:
        InvalidRequest: ``page_size`` is negative, or ``page_token`` is malformed.
    """
    if request.page_size < 0:
        raise InvalidRequest(f"page_size is {request.page_size}; it must not be negative")
    size = min(request.page_size or PAGE_MAX, PAGE_MAX)
    ordered = sorted(elements, key=key)
    if request.page_token:
        first = _after(ordered, key, _key_of(request.page_token))
    else:
        first = max(0, len(ordered) - limit) if limit else 0
    messages: list[M] = []
    bytes_left = PAGE_BYTES
    for element in ordered[first : first + size]:
        messages.append(message(element))
        bytes_left -= messages[-1].ByteSize()  # type: ignore[attr-defined]
        if bytes_left <= 0:
            break
    end = first + len(messages)
    return messages, _token_of(key(ordered[end - 1])) if messages and end < len(ordered) else ""


def _after(ordered: list[E], key: Callable[[E], Key], last: Key) -> int:
    try:
        return bisect_right(ordered, last, key=key)
    except TypeError:  # a key of another list
        raise _malformed() from None


def _token_of(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _key_of(token: str) -> Key:
    try:
        parts = json.loads(base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _malformed() from None
    if not isinstance(parts, list) or not all(isinstance(x, str | float | int) for x in parts):
        raise _malformed()
    return tuple(parts)


def _malformed() -> InvalidRequest:
    return InvalidRequest("page_token is no token; take it from an answer, or leave it empty")
