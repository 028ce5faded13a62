"""Untrusted text: its shown form acts on nothing, stays readable, and is bounded."""

from __future__ import annotations

import json
import unicodedata

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from hrm import text

ANYTHING = st.text(st.characters(), max_size=200)
"""Lone surrogates, controls and unassigned code points among them."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
"""What protobuf's strings can hold, and so the contents of a document."""
FORBIDDEN = [
    *map(chr, (0, 7, 8, 9, 10, 13, 27, 0x7F, 0x85, 0x9B)),
    *"\u061c\u200b\u200d\u200e\u200f\u2028\u2029\ufeff\ud800",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
]


def is_seen(character: str) -> bool:
    """By the Unicode tables themselves, independent of the code's method."""
    return unicodedata.category(character)[0] not in "C" and character not in "\u2028\u2029"


@given(ANYTHING)
def test_nothing_is_left_but_what_is_seen(value: str) -> None:
    result = text.shown(value)
    assert all(map(is_seen, result))
    result.encode()  # no surrogate is left, so every stream accepts it
    assert text.shown(result) == result


@given(ANYTHING, st.integers(1, 80))
def test_a_limit_is_kept_and_severs_no_escape(value: str, limit: int) -> None:
    result = text.shown(value, limit)
    assert len(result) <= limit
    whole = text.shown(value)
    if len(whole) <= limit:
        assert result == whole
    else:
        assert result.endswith("…")
        assert whole.startswith(result[:-1])


@given(ANYTHING)
def test_lines_stay_lines(value: str) -> None:
    result = text.shown_lines(value)
    assert all(is_seen(one) or one in "\n\t" for one in result)
    assert result.count("\n") == value.count("\n")


@given(ANYTHING)
def test_what_travels_in_a_header_is_short_and_printable(value: str) -> None:
    for message in (value, value * 1000):
        result = text.detail(message)
        assert len(result.encode()) <= text.DETAIL_BYTES_MAX
        assert all(map(is_seen, result))


@given(st.recursive(TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x), max_leaves=8))
def test_json_reports_the_same_and_acts_on_nothing(value: object) -> None:
    for indent in (None, 2):
        document = text.json_shown(json.dumps(value, indent=indent, ensure_ascii=False))
        assert json.loads(document) == value
        assert all(is_seen(one) or one == "\n" for one in document)


@given(ANYTHING, ANYTHING)
def test_nothing_that_is_logged_acts_on_the_reader(key: str, value: str) -> None:
    event = {key: value, "list": [value], "deep": {"of": (value,)}, "error": ValueError(value)}
    logged = text.log_processor(None, "info", event)
    line = structlog.processors.KeyValueRenderer()(None, "info", logged)
    assert all(map(is_seen, line if key not in ("exception", "stack") else ""))


@pytest.mark.parametrize("character", FORBIDDEN, ids=lambda one: f"U+{ord(one):04X}")
def test_what_must_never_come_through(character: str) -> None:
    assert character not in text.shown(f"a{character}b")
    assert text.shown(f"a{character}b")[1] == "\\"


def test_examples() -> None:
    assert text.shown("word count") == "word count"
    assert text.shown("Zürich, 北京, naïve café \u00a0 ok") == "Zürich, 北京, naïve café \u00a0 ok"
    assert text.shown("a\x1b[31mb\x00\n\u202e") == "a\\x1b[31mb\\x00\\n\\u202e"
    assert text.shown("\U000e0001") == "\\U000e0001"
    assert text.shown("C:\\temp") == "C:\\temp"
    assert text.shown("abcdef", 4) == "abc…"
    assert text.shown("ab\x1bcd", 5) == "ab…", "not a half of an escape"
    assert text.shown_lines("a\r\nb\rc\td\n") == "a\nb\\rc\td\n"
    assert text.detail("two\nlines\tand  more") == "two lines and more"
    assert text.json_shown('{"a": "\u202e"}') == '{"a": "\\u202e"}'
    assert text.shortened("abcdef", 4) == "abc…"
    assert text.log_processor(None, "", {"exception": "a\n\x1bb"}) == {"exception": "a\n\\x1bb"}
