"""Pauses between attempts grow up to a bound, vary, and start over after a success."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from hrm.core.vocabulary.backoff import Backoff


def test_pauses_double_up_to_their_bound_and_begin_again() -> None:
    backoff = Backoff(0.2, 1.0, lambda: 0.0)
    assert [backoff.pause_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.succeeded()
    assert backoff.pause_s() == 0.1


@given(
    first_s=st.floats(0.01, 10.0),
    more_s=st.floats(0.0, 100.0),
    seed=st.integers(),
    failures=st.integers(1, 40),
)
def test_a_pause_lies_between_half_of_its_bound_and_all_of_it(
    first_s: float, more_s: float, seed: int, failures: int
) -> None:
    max_s = first_s + more_s
    backoff = Backoff(first_s, max_s, random.Random(seed).random)
    for number in range(failures):
        bound_s = min(max_s, math.ldexp(first_s, number))
        assert bound_s / 2 <= backoff.pause_s() <= bound_s


def test_clients_that_failed_together_come_back_apart() -> None:
    pauses = {Backoff(0.2, 1.0, random.Random(seed).random).pause_s() for seed in range(100)}
    assert len(pauses) == 100
