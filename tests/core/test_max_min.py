"""Parts of what is shared out, as small integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.max_min import Contender, fair_parts

DEMANDS = st.lists(st.integers(0, 20), max_size=8)


def gpu_share(free: int, wanted: list[int]) -> list[int]:
    """Of jobs that hold nothing yet."""
    return fair_parts(free, [Contender(0, 1, want) for want in wanted])


@pytest.mark.parametrize(
    ("free", "wanted", "shares"),
    [
        (16, [2, 10, 20], [2, 7, 7]),
        (16, [1, 1, 1, 40], [1, 1, 1, 13]),
        (2, [4, 4, 4], [1, 1, 0]),
        (0, [1, 2], [0, 0]),
        (5, [], []),
        (7, [0, 9], [0, 7]),
    ],
)
def test_check_values(free: int, wanted: list[int], shares: list[int]) -> None:
    assert gpu_share(free, wanted) == shares


@given(st.integers(0, 60), DEMANDS)
def test_none_could_get_more_without_taking_from_what_has_no_more(
    free: int, wanted: list[int]
) -> None:
    shares = gpu_share(free, wanted)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(free, sum(wanted))
    short = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    if short:
        assert max(shares) <= min(short) + 1


@given(st.integers(0, 60), DEMANDS)
def test_with_one_gpu_more_no_job_gets_less(free: int, wanted: list[int]) -> None:
    before, after = gpu_share(free, wanted), gpu_share(free + 1, wanted)
    assert all(x <= y for x, y in zip(before, after, strict=True))
    assert sum(after) == min(free + 1, sum(wanted))


USERS = st.builds(Contender, st.integers(0, 30), st.integers(1, 5), st.integers(0, 9))


@given(st.integers(0, 60), st.lists(USERS, max_size=6))
def test_parts_are_those_of_filling_one_container_at_a_time(
    free_mib: int, users: list[Contender]
) -> None:
    parts, left_mib, full = [0] * len(users), free_mib, set[int]()
    while True:
        held = [
            (user.held_mib + part * user.size_mib, index)
            for index, (user, part) in enumerate(zip(users, parts, strict=True))
            if part < user.most and index not in full
        ]
        if not held:
            break
        _, index = min(held)
        if users[index].size_mib > left_mib:
            full.add(index)
            continue
        parts[index] += 1
        left_mib -= users[index].size_mib
    assert fair_parts(free_mib, users) == parts
