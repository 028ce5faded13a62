"""Records of the store as JSON, and back, checked strictly.

A record that was truncated or changed on the disk is refused where it is read, with its field,
rather than half an hour later in the core.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from hrm.core.messages.submissions import SubmissionRecord
from hrm.core.vocabulary.records import ApplicationRecord

__all__ = ["decode", "decode_submission", "encode", "encode_submission"]

T = TypeVar("T")
_FIELDS = tuple(ApplicationRecord.__dataclass_fields__)


def encode(record: ApplicationRecord) -> str:
    """A record as JSON."""
    fields = ((name, getattr(record, name)) for name in _FIELDS)
    values = {name: x.value if isinstance(x, Enum) else x for name, x in fields}
    return json.dumps(values, sort_keys=True)


def decode(text: str) -> ApplicationRecord:
    """A record from JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: it is not a valid record.
    """
    return _record(ApplicationRecord, _parsed(text))


def encode_submission(record: SubmissionRecord) -> str:
    """A submission as JSON."""
    values = asdict(record)
    values["state"] = record.state.value
    return json.dumps(values, sort_keys=True)


def decode_submission(text: str) -> SubmissionRecord:
    """From JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: it is not a valid value of that type.
    """
    return _record(SubmissionRecord, _parsed(text))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@functools.cache
def _hints(kind: typing.Hashable) -> dict[str, Any]:
    """Types of a dataclass's fields, as they are meant and not as they are written."""
    return typing.get_type_hints(kind)


def _record(kind: type[T], values: Any) -> T:
    if not isinstance(values, dict):
        raise ValueError(f"{type(values).__name__} in place of a record")
    known = {}
    for name, hint in _hints(typing.cast(typing.Hashable, kind)).items():
        if name in values:
            try:
                known[name] = _value(hint, values[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    try:
        return kind(**known)
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from None


def _value(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} in place of a list")
        return tuple(_value(typing.get_args(hint)[0], each) for each in value)
    if isinstance(hint, types.UnionType):  # with None, and nothing else
        present = next(each for each in typing.get_args(hint) if each is not types.NoneType)
        return None if value is None else _value(present, value)
    plain = getattr(hint, "__supertype__", hint)
    if is_dataclass(plain):
        return _record(typing.cast(type, plain), value)
    if issubclass(plain, Enum):
        return plain(value)
    if plain is float and type(value) is int:
        value = float(value)
    if type(value) is not plain or (plain is float and not math.isfinite(value)):
        raise ValueError(f"{str(value)[:80]!r} in place of {plain.__name__}")
    return value
