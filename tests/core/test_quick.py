"""The result of ``quick`` for a frozen dataclass: the same, except for how instances are made."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, replace

import pytest

from hrm.core.vocabulary.quick import quick


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    name: str
    size: int = 1
    secret: tuple[str, ...] = field(default=(), repr=False)
    many: list[int] = field(default_factory=list, hash=False)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    name: str
    size: int = 1
    secret: tuple[str, ...] = field(default=(), repr=False)
    many: list[int] = field(default_factory=list, hash=False)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Fast):
    more: float = 0.5


def test_it_reads_compares_and_hashes_as_before() -> None:
    slow, fast = Slow(name="a", secret=("x",)), Fast(name="a", secret=("x",))

    assert repr(fast) == repr(slow).replace("Slow", "Fast")
    assert hash(fast) == hash(slow)
    assert fast == Fast(name="a", secret=("x",))
    assert fast != replace(fast, size=2)
    assert fast.many is not Fast(name="a").many


def test_it_asks_for_the_same_fields() -> None:
    with pytest.raises(TypeError, match="name"):
        Fast()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        Fast(name="a", other=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Fast("a")  # type: ignore[call-arg]


def test_a_child_has_the_fields_of_its_parent() -> None:
    child = Child(name="a", size=3)

    assert (child.name, child.size, child.more) == ("a", 3, 0.5)
    assert replace(child, more=1.0) == Child(name="a", size=3, more=1.0)


@pytest.mark.parametrize("made", [Fast(name="a", many=[1]), Child(name="a", size=3)])
def test_it_can_be_copied_and_pickled(made: Fast) -> None:
    assert copy.copy(made) == made
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made


def test_what_would_do_more_than_set_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            raise AssertionError("not called by what quick makes")

    @dataclass(frozen=True, slots=True)
    class Counted:
        size: int = field(default=0, init=False)

    for each in (Checked, Counted):
        with pytest.raises(TypeError, match=f"{each.__name__} has"):
            quick(each)
