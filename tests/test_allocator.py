"""When memory is returned, by numbers; ``tests/hostile`` shows the effect with floods."""

from __future__ import annotations

from hrm.allocator import GROWN_BYTES_MIN, LONG_S, TRIES_MAX, GiveBack, give_back, resident_bytes

MIB = 1024 * 1024


class Process:
    """A process whose size is set, and falls to ``kept`` when it trims, after ``takes_s``."""

    def __init__(self, size: int) -> None:
        self.size = self.kept = size
        self.takes_s, self.now, self.given = 0.0, 0.0, 0
        self.memory = GiveBack(lambda: self.size, self._give, lambda: self.now)

    def _give(self) -> None:
        self.now += self.takes_s
        self.size = self.kept
        self.given += 1


def test_growth_is_given_back_and_searched_for_again() -> None:
    process = Process(100 * MIB)
    assert not process.memory.check()
    for _ in range(2):
        process.size = 100 * MIB + GROWN_BYTES_MIN
        assert process.memory.check()
        assert not process.memory.check()
    assert process.given == 2


def test_what_does_not_come_back_is_the_new_size_after_some_tries() -> None:
    process = Process(100 * MIB)
    process.size = process.kept = 200 * MIB
    assert [process.memory.check() for _ in range(TRIES_MAX)] == [True] * TRIES_MAX
    assert not process.memory.check()


def test_where_it_takes_long_it_is_tried_once() -> None:
    process = Process(100 * MIB)
    process.size = process.kept = 200 * MIB
    process.takes_s = 2 * LONG_S
    assert [process.memory.check(), process.memory.check()] == [True, False]


def test_a_large_process_is_asked_more_seldom() -> None:
    process = Process(1_600 * MIB)
    process.size = 1_700 * MIB
    assert not process.memory.check()
    process.size = 1_800 * MIB
    assert process.memory.check()


def test_real_memory_is_given_back() -> None:
    before = resident_bytes()
    give_back()
    assert 0 < resident_bytes() <= before + 16 * MIB
