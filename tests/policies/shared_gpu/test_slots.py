"""Subsets of slots as actions, their masks, and the paper's input."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.policies.shared_gpu.profiles import CapacityRule, constant, images
from hrm.policies.shared_gpu.slots import (
    WAIT,
    combination_mask,
    members,
    printed_order,
    state_images,
)
from tests.policies.shared_gpu.printed import ALL, WIDTH, P, Q, S, U

ALIGNED = CapacityRule(memory="aligned")


def test_bit_masks_of_three_slots() -> None:
    names = ["".join("abc"[slot] for slot in members(action)) for action in range(1, 8)]
    assert names == ["a", "b", "ab", "c", "ac", "bc", "abc"]
    assert printed_order(3) == [1, 2, 4, 3, 5, 6, 7]


@pytest.mark.parametrize(("slots", "sets"), [(4, 15), (5, 31), (8, 255), (10, 1023)])
def test_there_are_two_to_the_slots_less_one(slots: int, sets: int) -> None:
    assert len(set(printed_order(slots))) == sets


@pytest.mark.parametrize(
    ("slots", "virtual", "plain"), [(3, 6_480, 3_280), (5, 25_680, 4_880), (8, 204_880, 7_280)]
)
def test_inputs_of_the_network(slots: int, virtual: int, plain: int) -> None:
    for is_virtual, inputs in ((True, virtual), (False, plain)):
        made = state_images(
            ALIGNED, [], list(ALL.values()), slots=slots, virtual=is_virtual, horizon=20, width=10
        )
        assert made.shape == (inputs,)


def test_a_virtual_slot_is_the_sum_of_its_jobs() -> None:
    made = state_images(
        ALIGNED, [(U, 0)], [S, Q], slots=2, virtual=True, horizon=5, width=WIDTH,
        backlog=2, backlog_places=10, since_arrival=3,
    )  # fmt: skip
    block = 4 * 5 * WIDTH
    both = ALIGNED.used([(S, 0), (Q, 0)], 5)
    expected = [U.uses, S.uses, Q.uses, both]
    for place, uses in enumerate(expected):
        wanted = images(uses, 5, WIDTH).ravel()
        assert made[place * block : (place + 1) * block].tolist() == wanted.tolist()
    assert made[4 * block :].tolist() == pytest.approx([1, 1, *[0] * 8, *[0.3] * 5])


def test_a_subset_is_legal_iff_all_its_slots_are_filled_and_fit_together() -> None:
    legal = combination_mask(ALIGNED, [], [P, Q, S], slots=3)
    # P+Q needs five units of the GPU, P+S five of memory; Q+S fits.
    assert np.flatnonzero(legal).tolist() == [1, 2, 4, 6]
    legal = combination_mask(ALIGNED, [(P, 2)], [S], slots=3)
    assert np.flatnonzero(legal).tolist() == [WAIT, 1]


def test_an_idle_gpu_does_not_wait_for_what_could_start() -> None:
    assert not combination_mask(ALIGNED, [], [S], slots=2)[WAIT]
    assert combination_mask(ALIGNED, [], [], slots=2)[WAIT]
    assert combination_mask(ALIGNED, [(S, 0)], [S], slots=2)[WAIT]


def test_a_mean_makes_legal_what_runs_out_of_memory() -> None:
    means = [constant(P, "mean", WIDTH), S]
    assert combination_mask(ALIGNED, [], means, slots=2)[3]
    assert not combination_mask(ALIGNED, [], [P, S], slots=2)[3]
