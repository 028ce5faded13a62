"""The rule by which the master divides queues' shares over platforms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.vocabulary.columns import Floats, Ints
from hrm.errors import InvalidRequest
from hrm.policies.sharing import DIVISIONS, PlatformDivider, divider
from hrm.policies.sharing.affinity import Affinity
from hrm.policies.sharing.platform_divider import LOSS_MAX

NAN = float("nan")
IN_FORCE = divider()
assert IN_FORCE is not None


def parts(
    wanted: list[int], cores: list[int], run_s: list[list[float]], **names: str
) -> list[list[int]]:
    rule = divider(**names)
    assert rule is not None
    division, _ = rule.divide(np.array(wanted), np.array(cores), np.array(run_s, np.float64))
    return division.tolist()  # type: ignore[no-any-return]


def test_those_who_prefer_opposite_platforms_get_them() -> None:
    assert parts([8, 8], [8, 8], [[1, 4], [2, 1]]) == [[8, 0], [0, 8]]


def test_those_who_are_alike_get_the_same_part_of_each() -> None:
    assert parts([8, 8], [8, 8], [[1, 3], [1, 3.2]]) == [[4, 4], [4, 4]]


def test_where_nothing_is_known_all_get_the_same_part_of_each() -> None:
    assert parts([8, 8], [8, 8], [[NAN, NAN], [NAN, NAN]]) == [[4, 4], [4, 4]]


def test_one_that_is_alone_gets_what_is_fast_for_it() -> None:
    assert parts([8], [8, 8], [[3, 1]]) == [[0, 8]]


def test_where_one_platform_is_slow_for_all_who_suffers_most_is_spared() -> None:
    """The other loses next to nothing there."""
    assert parts([8, 8], [8, 8], [[1, 4], [1, 1.05]]) == [[8, 0], [0, 8]]
    even = parts([8, 8], [8, 8], [[1, 4], [1, 1.05]], measure="egocentric")
    assert even == [[4, 4], [4, 4]]


@pytest.mark.parametrize("lie", [(1, 1000), (1e-300, 1e300), (1000, 1), (1e300, 1e300)])
def test_a_queue_of_one_core_decides_nothing_for_others(lie: tuple[float, float]) -> None:
    honest = parts([8, 8, 1], [8, 9], [[1, 10], [1, 1.1], [1, 3]])
    lied = parts([8, 8, 1], [8, 9], [[1, 10], [1, 1.1], list(lie)])
    assert honest[0][0] >= 7
    assert lied[0][0] >= 7


@pytest.mark.parametrize("measure", Affinity)
def test_a_platform_on_which_nothing_has_run_changes_nothing_for_others(measure: Affinity) -> None:
    rule = PlatformDivider(DIVISIONS["affinity-round-robin"], measure)
    wanted, two = np.array([8, 8]), np.array([[1.0, 4.0], [2.0, 1.0]])
    division, affinity = rule.divide(wanted, np.array([8, 8]), two)
    three = np.insert(two, 1, NAN, axis=1)
    more, affinities = rule.divide(wanted, np.array([8, 0, 8]), three)

    assert affinities[:, [0, 2]] == pytest.approx(affinity)
    assert (affinities[:, 1] == 1).all()
    assert more[:, [0, 2]].tolist() == division.tolist()
    few, affinities = rule.divide(wanted, np.array([8, 1, 8]), three)
    assert affinities[:, [0, 2]] == pytest.approx(affinity)
    assert few.sum(axis=1).tolist() == [8, 8]


def test_long_tasks_are_no_reason() -> None:
    short = parts([8, 8], [8, 8], [[1, 4], [1, 1.05]])
    assert parts([8, 8], [8, 8], [[1, 4], [1000, 1050]]) == short


cases = st.integers(1, 5).flatmap(
    lambda m: st.lists(
        st.tuples(
            st.integers(0, 30),
            st.lists(st.floats(0.01, 100) | st.just(NAN), min_size=m, max_size=m),
        ),
        min_size=1,
        max_size=6,
    )
)


@given(cases, st.lists(st.integers(0, 40), min_size=5, max_size=5), st.sampled_from(Affinity))
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("name", sorted(DIVISIONS))
def test_nobody_gets_more_than_there_is_nor_loses_more_than_a_part(
    name: str, rows: list[tuple[int, list[float]]], there: list[int], measure: Affinity
) -> None:
    wanted: Ints = np.array([many for many, _ in rows], np.int64)
    run_s: Floats = np.array([times for _, times in rows], np.float64)
    cores: Ints = np.array(there[: run_s.shape[1]], np.int64)
    rule = PlatformDivider(DIVISIONS[name], measure)

    division, affinity = rule.divide(wanted, cores, run_s)

    assert np.isfinite(affinity).all()
    assert (affinity > 0).all()
    assert (division >= 0).all()
    assert (division.sum(axis=0) <= cores).all()
    assert (division.sum(axis=1) <= wanted).all()
    if wanted.sum() <= cores.sum():
        assert division.sum() == wanted.sum()
    again, _ = rule.divide(wanted, cores, run_s)
    assert (again == division).all()
    even, _ = PlatformDivider(DIVISIONS["simple-fairness"]).divide(wanted, cores, run_s)
    for row in range(len(rows)):
        if np.isfinite(run_s[row]).all():
            speeds = 1 / run_s[row]
            least = (1 - LOSS_MAX) * (even[row] @ speeds)
            # Whole cores: what is rounded is at most one of each platform.
            slack = speeds.max() * run_s.shape[1] if speeds.max() / speeds.min() < 100 else np.inf
            assert division[row] @ speeds >= least - slack


def test_who_loses_most_by_the_shortest_division_loses_a_tenth_at_most() -> None:
    """The first is three times as slow on the second platform, the other a hundred times: all of
    the first would go to the other, and the first keep three fifths of its speed."""
    run_s: Floats = np.array([[1.0, 3.0], [1.0, 100.0]])
    wanted, cores = np.array([100, 100], np.int64), np.array([100, 100], np.int64)
    division, _ = divider().divide(wanted, cores, run_s)  # type: ignore[union-attr]
    even, _ = PlatformDivider(DIVISIONS["simple-fairness"]).divide(wanted, cores, run_s)
    speeds = 1 / run_s[0]
    kept = (division[0] @ speeds) / (even[0] @ speeds)
    assert 0.89 <= kept < 1.0, "bounded, and not simply even"


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(InvalidRequest, match=r"affinity-round-robin, .*, none"):
        divider("round-robin")
    with pytest.raises(InvalidRequest, match="throughput, egocentric, reciprocal"):
        divider(measure="mutual")
    assert divider("none") is None
