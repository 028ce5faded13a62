"""Makes untrusted text fit to be shown.

Names, messages, exceptions and logs come from outside: a job may be called ``\\x1b[2J`` (which
clears the reader's screen), a name may hold a line break and a forged second row. The store and the
journal keep the original; on the way to a user, each character that is not visible by itself is
replaced by its escape: ``\\x1b``, ``\\u202e``, ``\\n``.

Visible is what ``str.isprintable`` says, and any space. Combining marks stay, and letters of other
scripts that look like ASCII: only ids are confined to ASCII (``hrm.wire.codec.to_name``).
A backslash stays as it is: the output is for reading, not for parsing. ``--output json`` has the
original, in JSON's escapes (``json_shown``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "DETAIL_BYTES_MAX",
    "LOG_VALUE_MAX",
    "detail",
    "json_shown",
    "log_processor",
    "shortened",
    "shown",
    "shown_lines",
]

DETAIL_BYTES_MAX = 1_000
"""Of an error in transit: gRPC carries it in a header, percent-encoded, and headers in 8 KiB."""
LOG_VALUE_MAX = 4_000
_LOG_DEPTH_MAX = 4

_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_SUSPECT = re.compile(rf"[^\x20-\x7e{_SPACES}]")


def shown(value: str, limit: int | None = None) -> str:
    """``value`` on one line, of at most ``limit`` characters, all of them visible.

    Displayable text is returned as it is; ``shown`` is idempotent.
    """
    if limit is not None and len(value) > limit:
        value = value[:limit]  # what is truncated need not be escaped first
        return _truncate(_SUSPECT.sub(_escape, value), limit)
    if value.isascii() and value.isprintable():
        return value
    escaped = _SUSPECT.sub(_escape, value)
    return escaped if limit is None or len(escaped) <= limit else _truncate(escaped, limit)


def shown_lines(value: str) -> str:
    """Like ``shown``, for a text of many lines: line breaks and tabs stay."""
    lines = value.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in lines)


def shortened(value: str, limit: int) -> str:
    """``value`` itself, truncated to ``limit`` characters, the last of which marks that."""
    return value if len(value) <= limit else value[: max(0, limit - 1)] + "…"


def detail(message: str) -> str:
    """An error's message for a header: one line of less than 1 KB."""
    line = shown(" ".join(message[: 4 * DETAIL_BYTES_MAX].split()), DETAIL_BYTES_MAX)
    data = line.encode()
    if len(data) <= DETAIL_BYTES_MAX:
        return line
    return data[: DETAIL_BYTES_MAX - 3].decode(errors="ignore") + "…"


def json_shown(document: str) -> str:
    """A JSON text in which nothing acts on a terminal: the same document, in JSON's own escapes."""
    lines = document.split("\n")
    return "\n".join(_SUSPECT.sub(_json_escape, line) for line in lines)


def log_processor(_logger: object, _method: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """For structlog, before the renderer: only visible characters in a line of a log.

    An exception and a stack keep their lines, which HRM has written.
    """
    return {shown(str(key), 200): _logged(key, value, 0) for key, value in event.items()}


def _logged(key: str, value: Any, depth: int) -> Any:
    if isinstance(value, str):
        text = str(value)  # an enumeration of strings, too
        return shown_lines(text) if key in ("exception", "stack") else shown(text, LOG_VALUE_MAX)
    if value is None or isinstance(value, bool | int | float) or key == "exc_info":
        return value
    if depth < _LOG_DEPTH_MAX:
        if isinstance(value, Mapping):
            return {shown(str(k), 200): _logged("", v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_logged("", one, depth + 1) for one in value]
    return shown(repr(value) if not isinstance(value, BaseException) else str(value), LOG_VALUE_MAX)


def _truncate(text: str, limit: int) -> str:
    """Remove an escape that the truncation has split."""
    kept = text[: max(0, limit - 1)]
    last = kept.rfind("\\", max(0, len(kept) - 9))
    if last >= 0 and _SEVERED.fullmatch(kept, last):
        kept = kept[:last]
    return kept + "…"


_SEVERED = re.compile(r"\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x100:
        return _SHORT.get(character) or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
