"""Messages all of whose texts are hostile, built from their descriptors; for tests of what is shown
of them and of the replies to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["HOSTILE", "TOP_SECRET_MARKUP", "filled", "unseen"]

TOP_SECRET_MARKUP = "[red]x[/] [/] [link=file:///etc]"
HOSTILE = (
    f"a\x1b[2J\x1b]0;t\x07\n\r\x00\u202e\u2066\u200f\u061c\u2028\x9b31m\x7f{TOP_SECRET_MARKUP}"
)

M = TypeVar("M", bound=Message)


def filled(kind: type[M], value: str = HOSTILE, *, number: float = 1, depth: int = 5) -> M:
    """A message with every field set: texts to ``value``, one element in each list, and the first
    specified member of each enumeration."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        _fill(message, field, value, number, depth)
    return message


def _fill(message: Any, field: FieldDescriptor, value: str, number: float, depth: int) -> None:
    of_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if of_map:
        of = field.message_type.fields_by_name["value"]
        key = field.message_type.fields_by_name["key"]
        getattr(message, field.name)[_scalar(key, value, number)] = _scalar(of, value, number)
    elif field.message_type is not None:
        if depth == 0:
            return
        into = getattr(message, field.name)
        child = into.add() if field.is_repeated else into
        child.SetInParent()
        for each in field.message_type.fields:
            _fill(child, each, value, number, depth - 1)
    elif field.is_repeated:
        getattr(message, field.name).append(_scalar(field, value, number))
    else:
        setattr(message, field.name, _scalar(field, value, number))


def _scalar(field: FieldDescriptor, value: str, number: float) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return value.encode() if field.type == FieldDescriptor.TYPE_BYTES else value
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return float(number)
    return int(number)


def unseen(output: str, allowed: str = "\n") -> list[str]:
    """Characters of the output that act on a terminal instead of being visible."""
    return sorted({repr(one) for one in output if not one.isprintable() and one not in allowed})


def texts(message: Message) -> Iterator[str]:
    """All texts of a message, deeply."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from (one for pair in value.items() for one in pair if isinstance(one, str))
        else:
            for one in values:
                if isinstance(one, Message):
                    yield from texts(one)
                elif isinstance(one, str):
                    yield one
