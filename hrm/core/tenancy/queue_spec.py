"""What an administrator states of one queue of applications, and how it is written.

Queues form a tree by their names: ``root.team.job`` is a child of ``root.team``. Applications are
in its leaves. What is governed is cores, memory and the memory of GPUs, by which GPUs are shared.

An amount is absolute (``cores = 16``, ``memory = "64g"``) or a part (``"25%"``): of the parent's
guarantee where it is guaranteed, of the cluster where it is a maximum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, NewType, TypeAlias, get_args

from hrm.core.vocabulary.priority_class import PriorityClass

__all__ = [
    "DEFAULT_QUEUE",
    "GOVERNED",
    "QUEUES_MAX",
    "QUEUE_DEPTH_MAX",
    "RECOVERED_QUEUE",
    "ROOT",
    "Amount",
    "Order",
    "QueueName",
    "QueueSpec",
    "Quota",
    "ancestors",
    "name_problem",
    "parent_of",
    "quota_from",
    "quota_text",
    "spec_fields",
    "spec_from",
]

QueueName = NewType("QueueName", str)
"""The whole path of a queue, as ``root.team.job``."""

ROOT = QueueName("root")
DEFAULT_QUEUE = QueueName("root.default")
"""Where applications go that no rule places elsewhere."""
RECOVERED_QUEUE = QueueName("root.recovered")
"""Where applications go whose queue is not there any more when the master starts."""

QUEUE_DEPTH_MAX = 8
"""Queues on the way from ``root`` to a leaf, both counted."""
QUEUES_MAX = 10_000

GOVERNED = ("cores", "memory", "gpu_memory")
"""What quotas are of: cores, MiB of memory, MiB of GPUs' memory; amounts in code are triples of
these, in this order."""

Order: TypeAlias = Literal["fifo", "fair", "priority", "classes"]
_ORDERS = get_args(Order)
_CLASSES = tuple(x.value for x in PriorityClass)

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NAME_MAX = 255
_UNITS = {"": 1, "m": 1, "g": 1_024, "t": 1_024 * 1_024}
_MEMORY = re.compile(r"(\d{1,16})\s*([mgt]?)i?b?", re.IGNORECASE)
_PART = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
_AMOUNT_MAX = 2**53
_WEIGHT_MAX = 1e6
_NAMES_MAX = 1_000


class Amount(NamedTuple):
    """So much of one resource: ``number`` of it, or, ``is_part``, a part of what there is, from 0
    to 1."""

    number: float
    is_part: bool = False

    def of(self, whole: float) -> float:
        return self.number * whole if self.is_part else self.number


Quota: TypeAlias = tuple[Amount | None, Amount | None, Amount | None]
"""Amounts of what is governed; None: not stated."""

_NOT_STATED: Quota = (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """One queue.

    ``guaranteed``: where it is not stated, a part by ``weight`` of what the stated guarantees of
    its siblings leave of the parent's. ``maximum``: where it is not stated, the parent's.
    ``max_running``: applications that may hold containers at once, in the whole subtree; None: any
    number. ``order``: of the applications of a leaf; streams go first in each. ``interrupts``: in
    an order of ``classes``, may one of the highest class that waits have containers of lower ones
    preempted (``core.master.own_victims``)? ``preemptible``: may what it has borrowed be preempted
    for the guarantees of others? ``maximum_class``: of an order of ``classes``, in the whole
    subtree: the highest that others than its administrators may submit an application with, or
    request for one. ``driver_share``: what its drivers on nodes may hold of its share,
    in the whole subtree; None: in a leaf, while other queues want more, the master's
    ``driver_share``. The first driver always may.

    In a leaf, ``minimum_user_limit`` is the part of the queue's share that one user may always
    have: with 0.25, a fifth user waits until one of four has less to do; with 1, users have no
    parts. ``user_limit_factor``: one user holds at most this many times what is guaranteed to the
    queue; None: no limit.

    ``submitters``, ``administrators``: users who may submit to it and administer it, and all below
    it; ``*`` stands for everybody.
    """

    name: QueueName
    guaranteed: Quota = _NOT_STATED
    maximum: Quota = _NOT_STATED
    weight: float = 1.0
    max_running: int | None = None
    order: Order = "fifo"
    interrupts: bool = False
    preemptible: bool = True
    maximum_class: PriorityClass = PriorityClass.HIGHEST
    driver_share: float | None = None
    minimum_user_limit: float = 1.0
    user_limit_factor: float | None = None
    submitters: tuple[str, ...] = ("*",)
    administrators: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Are its applications in order of their classes?"""
        return self.order == "classes"

    @property
    def parent(self) -> QueueName | None:
        return parent_of(self.name)


def parent_of(name: QueueName) -> QueueName | None:
    """None for ``root``."""
    head, dot, _ = name.rpartition(".")
    return QueueName(head) if dot else None


def ancestors(name: QueueName) -> list[QueueName]:
    """The queues above it, ``root`` first."""
    parts = name.split(".")
    return [QueueName(".".join(parts[:many])) for many in range(1, len(parts))]


def name_problem(name: str) -> str:
    """What is wrong with the name of a queue, as words after it; empty: nothing."""
    parts = name.split(".")
    if parts[0] != ROOT:
        return "does not begin with root, as in root.team"
    if len(parts) > QUEUE_DEPTH_MAX:
        return f"is {len(parts)} queues deep; {QUEUE_DEPTH_MAX} are allowed"
    if len(name) > _NAME_MAX:
        return f"has {len(name)} characters; {_NAME_MAX} are allowed"
    for part in parts[1:]:
        if not _NAME.fullmatch(part):
            return (
                f"has the part {part[:80]!r}: a part is of lower-case letters, digits, - and _, "
                f"begins with a letter or a digit, and has at most 63 characters"
            )
    return ""


def spec_from(name: str, stated: Mapping[str, object]) -> QueueSpec:
    """The queue that a table of ``hrm.toml``, or what was typed, describes.

    Raises:
        ValueError: with what is wrong, and what may be written instead.
    """
    problem = name_problem(name)
    if problem:
        raise ValueError(f"the queue {name[:80]!r} {problem}")
    unknown = sorted(set(stated) - set(_READERS))
    if unknown:
        raise ValueError(
            f"queue {name}: {unknown[0][:80]!r} is not known; known are {', '.join(_READERS)}"
        )
    values: dict[str, object] = {}
    for key, value in stated.items():
        try:
            values[key] = _READERS[key](value)
        except ValueError as error:
            raise ValueError(f"queue {name}: {key} = {str(value)[:80]!r}: {error}") from None
    spec = QueueSpec(name=QueueName(name), **values)  # type: ignore[arg-type]
    problem = _contradiction(spec)
    if problem:
        raise ValueError(f"queue {name}: {problem}")
    return spec


def spec_fields(spec: QueueSpec) -> dict[str, object]:
    """What ``spec_from`` reads, without what is as it is by default."""
    plain = QueueSpec(name=spec.name)
    found: dict[str, object] = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name == "name" or value == getattr(plain, field.name):
            continue
        if field.name in ("guaranteed", "maximum"):
            value = quota_text(value)
        if isinstance(value, PriorityClass):
            value = value.value
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def quota_text(quota: Quota) -> str | dict[str, str | int]:
    """As ``quota_from`` reads it."""
    if quota[0] is not None and quota[0].is_part and quota == (quota[0],) * 3:
        return _amount_text(0, quota[0])
    return {
        GOVERNED[which]: _amount_text(which, amount) if which or amount.is_part else
        int(amount.number)
        for which, amount in enumerate(quota)
        if amount is not None
    }  # fmt: skip


def _amount_text(which: int, amount: Amount) -> str:
    if amount.is_part:
        return f"{100 * amount.number:.6f}".rstrip("0").rstrip(".") + "%"
    return f"{amount.number:.0f}m" if which else f"{amount.number:.0f}"


def quota_from(value: object) -> Quota:
    """``"25%"`` of all, or a table of amounts.

    Raises:
        ValueError: with what may be written instead.
    """
    if isinstance(value, str):
        part = _part_from(value)
        if part is None:
            raise ValueError(
                'a part of all, as "25%", or a table, as { cores = 16, memory = "9g" }'
            )
        return (part, part, part)
    if not isinstance(value, Mapping):
        raise ValueError('a part of all, as "25%", or a table, as { cores = 16, memory = "64g" }')
    unknown = sorted(set(map(str, value)) - set(GOVERNED))
    if unknown:
        raise ValueError(f"{unknown[0][:80]!r} is not governed; {', '.join(GOVERNED)} are")
    amounts = [
        _amount_from(which, value[name]) if name in value else None
        for which, name in enumerate(GOVERNED)
    ]
    return (amounts[0], amounts[1], amounts[2])


def _amount_from(which: int, value: object) -> Amount:
    if isinstance(value, str):
        part = _part_from(value)
        if part is not None:
            return part
        memory = _MEMORY.fullmatch(value.strip())
        if memory and (which or not memory[2]):
            return _absolute(int(memory[1]) * _UNITS[memory[2].lower()])
    elif isinstance(value, int) and not isinstance(value, bool):
        return _absolute(value)
    if which:
        raise ValueError(f'{GOVERNED[which]} is MiB or a size, as 4096 or "4g", or a part, "25%"')
    raise ValueError('cores is a whole number, as 16, or a part, as "25%"')


def _absolute(number: int) -> Amount:
    if not 0 <= number <= _AMOUNT_MAX:
        raise ValueError(f"{number} is not from 0 to 2^53")
    return Amount(float(number))


def _part_from(value: str) -> Amount | None:
    part = _PART.fullmatch(value.strip())
    if part is None:
        return None
    if float(part[1]) > 100:
        raise ValueError(f"{value} is more than all there is (100%)")
    return Amount(float(part[1]) / 100, is_part=True)


def _number(least: float, most: float, what: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not math.isfinite(float(value)):  # type: ignore[arg-type]
            raise ValueError(what)
        number = float(value)  # type: ignore[arg-type]
        if not least <= number <= most:
            raise ValueError(what)
        return number

    return read


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise ValueError("a whole number from 0 to 1000000")
    return value


def _order(value: object) -> Order:
    if value not in _ORDERS:
        raise ValueError(f"one of {', '.join(_ORDERS)}")
    return value  # type: ignore[return-value]


def _class(value: object) -> PriorityClass:
    if value not in _CLASSES:
        raise ValueError(f"one of {', '.join(_CLASSES)}")
    return PriorityClass(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _names(value: object) -> tuple[str, ...]:
    right = isinstance(value, list | tuple) and len(value) <= _NAMES_MAX
    if not right or not all(isinstance(x, str) and 0 < len(x) <= 256 for x in value):  # type: ignore[attr-defined]
        raise ValueError(f'at most {_NAMES_MAX} names, as ["ana", "bo"], or ["*"] for all')
    if not all(x.isprintable() and x == x.strip() for x in value):  # type: ignore[attr-defined]
        raise ValueError("a name has no control characters, and no space before or after it")
    return tuple(dict.fromkeys(value))  # type: ignore[call-overload]


_READERS: dict[str, Callable[[object], object]] = {
    "guaranteed": quota_from,
    "maximum": quota_from,
    "weight": _number(1 / _WEIGHT_MAX, _WEIGHT_MAX, f"above 0, up to {_WEIGHT_MAX:.0f}"),
    "max_running": _count,
    "order": _order,
    "interrupts": _flag,
    "preemptible": _flag,
    "maximum_class": _class,
    "driver_share": _number(0.0, 1.0, "from 0 to 1"),
    "minimum_user_limit": _number(0.001, 1.0, "from 0.001 to 1"),
    "user_limit_factor": _number(0.001, _WEIGHT_MAX, "above 0"),
    "submitters": _names,
    "administrators": _names,
}


def _contradiction(spec: QueueSpec) -> str:
    """What is stated of one queue and cannot hold together, whatever others are."""
    if spec.name == ROOT and spec.guaranteed != _NOT_STATED:
        return "root is guaranteed the whole cluster; state guarantees of the queues below it"
    if spec.name == ROOT and spec.maximum != _NOT_STATED:
        return "root may have the whole cluster; state maxima of the queues below it"
    if spec.interrupts and spec.order != "classes":
        return (
            'interrupts: only with order = "classes" is there a highest one; state that, or neither'
        )
    if spec.interrupts and not spec.preemptible:
        return "interrupts: what is not preemptible is not interrupted; state one of the two"
    for which, (least, most) in enumerate(zip(spec.guaranteed, spec.maximum, strict=True)):
        if least is None or most is None or least.is_part != most.is_part:
            continue
        is_same_base = not least.is_part or spec.parent == ROOT
        if is_same_base and least.number > most.number:
            amounts = (
                f"{_amount_text(which, least)} guaranteed, {_amount_text(which, most)} at most"
            )
            return f"{GOVERNED[which]}: {amounts}; the maximum is the larger one"
    return ""
