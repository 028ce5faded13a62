"""Frozen records that cost what plain ones do.

``@dataclass(frozen=True)`` sets each field through ``object.__setattr__``, which is two thirds of
the cost of a record of eighteen fields; the cores make some fifteen records for one container.
``@quick`` above it gives the class the ``__init__`` of a dataclass that is not frozen. The price:
only the type checker, which sees a frozen dataclass, stops an assignment.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from typing import Any, TypeVar, dataclass_transform

__all__ = ["quick", "record"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A quick dataclass: frozen, with slots, made by keywords alone; every message is one."""
    return quick(dataclass(frozen=True, slots=True, kw_only=True)(cls))


def quick(cls: type[T]) -> type[T]:
    """The same frozen dataclass, quick to make. Its bases, if any, must be quick as well.

    Raises:
        TypeError: it does more than to set its fields when it is made, which would be lost.
    """
    own = fields(cls)  # type: ignore[arg-type]
    if hasattr(cls, "__post_init__") or not all(each.init for each in own):
        raise TypeError(
            f"{cls.__name__} has __post_init__ or a field with init=False, which @quick would pass "
            f"over; leave @quick away"
        )
    plain: Any = make_dataclass(cls.__name__, [(x.name, x.type, _like(x)) for x in own])
    made: Any = cls
    made.__init__ = plain.__init__
    del made.__setattr__, made.__delattr__
    return cls


def _like(known: Field[Any]) -> Any:
    """A new field: those of a class that is made cannot be used again."""
    if known.default_factory is not MISSING:
        return field(default_factory=known.default_factory, kw_only=known.kw_only)
    return field(default=known.default, kw_only=known.kw_only)
