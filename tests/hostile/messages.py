"""Messages for every RPC of the contract, generated from its descriptors, without a list to keep.

A case is one call: a method, its messages as bytes, the token or not. It is a function of the seed
and its index alone, so a harmful one can be made again from the two numbers (``replay``).

A message that is refused at its first field mostly tests only that field. So a case first draws how
hostile it is: some are valid in all but one field in fifty, some wrong everywhere. Valid values of
a field are those that are known by its name (``Known``): ids that exist, a node's name, what fits
on it. Raw cases are valid messages with bits turned, ends truncated, or random bytes.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import hrm.v1

__all__ = ["Case", "Known", "Messages", "methods"]

DEPTH_MAX = 6
STREAM_MESSAGES_MAX = 6
LONG_TEXT = 70_000
HOSTILITY = ((0.30, 0.0), (0.30, 0.02), (0.25, 0.3), (0.15, 1.0))
"""How often, and then which share of the fields is wrong."""
RAW_SHARE = 0.3
NO_TOKEN_SHARE = 0.1

INTEGERS = (0, 1, -1, 2, 64, 4096, 2**31 - 1, -(2**31), 2**31, 2**53, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-9, 5e-324, 1e308, -1e308, 1e18, math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "line\r\nline\nline\ttab",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "\U0001f469\u200d\U0001f4bb" * 20,
    "../../../etc/passwd",
    "/dev/zero",
    "$(touch /tmp/hrm-was-here); `id`; '\"; drop table applications; --",
    "%s%n{0}{x!r}",
    "nan",
    "-1",
    "driver/-1",
    "app-20200101000000-1-0001",
    "x" * 254,
    "ü" * 300,
    "y" * LONG_TEXT,
    "ä" * LONG_TEXT,
)
"""The last two are rare, because of their size."""

# Protobuf's names for the kinds of fields.
_INT32 = (FieldDescriptor.CPPTYPE_INT32,)
_INT64 = (FieldDescriptor.CPPTYPE_INT64,)
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_REAL = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)

Known = Mapping[str, Sequence[Any]]
"""Valid values by the name of a field, or of a message and a field of it (``Node.name``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    index: int
    method: MethodDescriptor
    messages: tuple[bytes, ...]
    token: bool
    kind: str

    @property
    def path(self) -> str:
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    def __str__(self) -> str:
        sizes = [len(m) for m in self.messages]
        return f"#{self.index} {self.path} {self.kind} token={self.token} bytes={sizes}"


def methods() -> tuple[MethodDescriptor, ...]:
    """All RPCs of all services: those of ``hrm.v1``, of health and of reflection."""
    modules = [
        importlib.import_module(f"hrm.v1.{found.name}")
        for found in pkgutil.iter_modules(hrm.v1.__path__)
        if found.name.endswith("_pb2")
    ]
    return tuple(
        method
        for module in (*modules, health_pb2, reflection_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )


class Messages:
    """``case(index)`` for any index, from one seed."""

    def __init__(self, seed: int, known: Known, of: Sequence[MethodDescriptor] = ()) -> None:
        self.seed = seed
        self.known = known
        self.methods = tuple(of) or methods()

    def case(self, index: int) -> Case:
        rng = random.Random(f"{self.seed}/{index}")
        method = self.methods[index % len(self.methods)]
        hostility = rng.choices([h for _, h in HOSTILITY], [w for w, _ in HOSTILITY])[0]
        raw = rng.random() < RAW_SHARE
        number = rng.randint(1, STREAM_MESSAGES_MAX) if method.client_streaming else 1
        fill = _Fill(rng, self.known, hostility)
        made = [
            fill.message(method.input_type, first=position == 0).SerializeToString()
            for position in range(number)
        ]
        kind = f"well-typed({hostility:g})"
        if raw:
            spoil = rng.choice(SPOILERS)
            spoiled = rng.randrange(number)
            made[spoiled] = spoil(rng, made[spoiled])
            kind = spoil.__name__
        token = rng.random() >= NO_TOKEN_SHARE
        return Case(index=index, method=method, messages=tuple(made), token=token, kind=kind)


class _Fill:
    """Fills messages in; ``hostility`` is the share of fields with an invalid value. The total of a
    case is bounded (``_left``, bytes), or lists of lists of lists would grow."""

    def __init__(self, rng: random.Random, known: Known, hostility: float) -> None:
        self._rng = rng
        self._known = known
        self._hostility = hostility
        self._left = rng.choices((20_000, 200_000, 3_000_000), (80, 19, 1))[0]

    def message(self, kind: Descriptor, depth: int = 0, *, first: bool = False) -> Any:
        made = message_factory.GetMessageClass(kind)()
        if depth > DEPTH_MAX:
            return made
        for field in self._fields(kind, first):
            if field.message_type and field.message_type.GetOptions().map_entry:
                self._map(made, field)
            elif field.is_repeated:
                values = [self._value(field, depth) for _ in range(self._many(field))]
                getattr(made, field.name).extend(values)
            elif field.message_type:
                getattr(made, field.name).CopyFrom(self.message(field.message_type, depth + 1))
            else:
                setattr(made, field.name, self._value(field, depth))
        return made

    def _fields(self, kind: Descriptor, first: bool) -> list[FieldDescriptor]:
        """All fields of a valid message, some of another; one of each oneof, in the first message
        of a stream mostly its first: a registration."""
        rng = self._rng
        present = 1.0 - 0.5 * self._hostility
        chosen = [
            f
            for f in kind.fields
            if f.containing_oneof is None or len(f.containing_oneof.fields) == 1
        ]
        chosen = [f for f in chosen if rng.random() < present and self._sound(f) != ()]
        for choice in kind.oneofs:
            if len(choice.fields) > 1 and rng.random() < 0.97:
                likely = first and rng.random() < 0.8
                chosen.append(choice.fields[0] if likely else rng.choice(choice.fields))
        return chosen

    def _sound(self, field: FieldDescriptor) -> Sequence[Any] | None:
        """Known values of the field in its message, else by its name alone; empty: leave it out."""
        of_message = self._known.get(f"{field.containing_type.name}.{field.name}")
        return self._known.get(field.name) if of_message is None else tuple(of_message)

    def _many(self, field: FieldDescriptor) -> int:
        if self._left <= 0:
            return 0
        if self._wrong():
            return self._rng.choice((0, 1, 33, 300 if field.message_type else 3_000))
        return self._rng.choice((1, 1, 1, 2))

    def _wrong(self) -> bool:
        return self._rng.random() < self._hostility

    def _map(self, made: Any, field: FieldDescriptor) -> None:
        key, value = (field.message_type.fields_by_name[x] for x in ("key", "value"))
        for _ in range(self._many(field)):
            getattr(made, field.name)[self._value(key, DEPTH_MAX)] = self._value(value, DEPTH_MAX)

    def _value(self, field: FieldDescriptor, depth: int) -> Any:
        if field.message_type:
            return self.message(field.message_type, depth + 1)
        value = self._drawn(field)
        self._left -= len(value) + 8 if isinstance(value, str | bytes) else 8
        return value

    def _drawn(self, field: FieldDescriptor) -> Any:
        if self._left <= 0:
            return _zero(field)
        if not self._wrong() and (known := self._sound(field)):
            return _fitting(field, self._rng.choice(known))
        return self._scalar(field)

    def _scalar(self, field: FieldDescriptor) -> Any:
        rng, wrong, kind = self._rng, self._wrong(), field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            if wrong:
                return rng.choice((-1, 99, 2**31 - 1, -(2**31)))
            return rng.choice([v.number for v in field.enum_type.values if v.number] or [0])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return rng.randbytes(rng.choice((0, 1, 20, 5_000) if wrong else (0, 20)))
            texts = TEXTS if rng.random() < 0.02 else TEXTS[:-2]
            return rng.choice(texts) if wrong else rng.choice(("a", "some-name", "node-1"))
        if kind in _REAL:
            return rng.choice(NUMBERS) if wrong else rng.choice((0.5, 1.0))
        whole = rng.choice(INTEGERS) if wrong else rng.choice((0, 1, 1, 2))
        if wrong and rng.random() < 0.3:
            whole = rng.getrandbits(64) - 2**63
        return _fitting(field, whole)


def _zero(field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"" if field.type == FieldDescriptor.TYPE_BYTES else ""
    return 0.0 if field.cpp_type in _REAL else 0


def _fitting(field: FieldDescriptor, value: Any) -> Any:
    """The same value, in a type that this field accepts."""
    kind = field.cpp_type
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        if field.type == FieldDescriptor.TYPE_BYTES:
            return value.encode()
        return value if kind == FieldDescriptor.CPPTYPE_STRING else 1
    if kind in _INT32:
        return max(-(2**31), min(int(value), 2**31 - 1))
    if kind in _INT64:
        return max(-(2**63), min(int(value), 2**63 - 1))
    if kind in _UNSIGNED:
        return abs(int(value)) % 2**32
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = str(value)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    return value


# --- raw bytes --------------------------------------------------------------------------------


def random_bytes(rng: random.Random, _sound: bytes) -> bytes:
    return rng.randbytes(rng.choice((1, 2, 10, 100, 10_000)))


def truncated(rng: random.Random, sound: bytes) -> bytes:
    return sound[: rng.randrange(len(sound))] if sound else b"\x0a"


def bits_turned(rng: random.Random, sound: bytes) -> bytes:
    data = bytearray(sound or b"\x00")
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def pasted(rng: random.Random, sound: bytes) -> bytes:
    """The message twice, or with a piece of itself in another place."""
    if rng.random() < 0.5 or len(sound) < 2:
        return sound + sound
    a, b = sorted(rng.randrange(len(sound)) for _ in range(2))
    return sound[:b] + sound[a:b] + sound[b:]


def nested(rng: random.Random, _sound: bytes) -> bytes:
    """Messages in messages, deeper than intended: field 1, or 2, of field 1, or 2 …"""
    tag = bytes([rng.choice((1, 2, 3)) << 3 | 2])
    data = b""
    for _ in range(rng.choice((50, 101, 150))):
        data = tag + _varint(len(data)) + data
    return data


def unknown_fields(rng: random.Random, sound: bytes) -> bytes:
    many = rng.choice((1, 50, 2_000))
    return sound + b"".join(
        _varint(rng.randrange(16, 2**29) << 3) + _varint(rng.getrandbits(60)) for _ in range(many)
    )


def not_utf8(rng: random.Random, sound: bytes) -> bytes:
    """A text field that is not UTF-8."""
    text = rng.choice((b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"ok\x80"))
    tag = bytes([rng.randrange(1, 6) << 3 | 2])
    return sound + tag + _varint(len(text)) + text


SPOILERS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    random_bytes, truncated, bits_turned, bits_turned, pasted, nested, unknown_fields, not_utf8,
)  # fmt: skip


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
