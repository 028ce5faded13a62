"""Run times by application, platform and company, against a truth that is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.tenancy.affinities import Affinities, ApplicationKind, kind_of
from hrm.core.tenancy.kind_times import (
    CO_RUNNERS_MAX,
    PLATFORMS_MAX,
    STAGES_MAX,
    KindTimes,
    TaskTimes,
)
from hrm.errors import InvalidRequest
from hrm.policies.sharing import Affinity, platform_affinity

ETL = kind_of("prod", "etl")
NOISY, MILD = kind_of("prod", "noisy"), kind_of("adhoc", "mild")
PLATFORMS = ["a", "b"]
SLOWER = {"a": 0.0, "b": 0.5}
"""Logarithms: tasks on b take 1.65 times as long."""


def learned(
    random: Random,
    observations: int,
    *,
    slope: float = 0.5,
    extra: Mapping[ApplicationKind, float] | None = None,
    loads: Mapping[str, tuple[float, float]] | None = None,
    noise: float = 0.2,
) -> Affinities:
    """``extra``: what company of each kind costs beyond others, where it has all other cores."""
    affinities = Affinities()
    loads = loads or {"a": (0.5, 1.0), "b": (0.0, 0.5)}
    for _ in range(observations):
        platform = random.choice(PLATFORMS)
        stage, base_s = random.choice([("map", 1.0), ("reduce", 10.0)])
        load = random.uniform(*loads[platform])
        part = random.random()
        company = {NOISY: load * part, MILD: load * (1 - part)} if extra else {}
        log = SLOWER[platform] + slope * load + random.gauss(0, noise)
        log += sum((extra or {})[kind] * part for kind, part in company.items())
        affinities.observe("prod", "etl", stage, platform, 2, base_s * math.exp(log), load, company)
    return affinities


def relative(affinities: Affinities) -> dict[str, float]:
    return {row.platform: row.relative for row in affinities.estimates(ETL)}


def test_the_faster_platform_is_found_where_its_nodes_are_full_and_the_others_idle() -> None:
    """Tasks of both platforms take about as long: a's nodes are full, b's are not."""
    found = relative(learned(Random(1), 300, slope=0.6))
    assert found["a"] == 1.0
    assert found["b"] == pytest.approx(math.exp(0.5), rel=0.2)


@pytest.mark.parametrize("observations", [12, 60, 300])
@pytest.mark.parametrize("slope", [0.1, 0.5, 1.0])
def test_intervals_contain_the_truth_as_often_as_they_say(slope: float, observations: int) -> None:
    random, within, rows = Random(5), 0, 0
    for _ in range(60):
        affinities = learned(random, observations, slope=slope)
        times = affinities.table([ETL], PLATFORMS)[0]
        # The weights of stages are as they came; what a stage takes more than another is not asked.
        base = _base(affinities)
        for row in affinities.estimates(ETL):
            truth = base + SLOWER[row.platform]
            within += abs(math.log(row.run_s) - truth) <= math.log(row.factor)
            rows += 1
        assert (times > 0).all()
    assert within / rows >= 0.93


@pytest.mark.parametrize("slope", [0.1, 1.0])
def test_at_like_loads_platforms_are_compared_well_however_little_is_known_of_the_slope(
    slope: float,
) -> None:
    """All nodes are always full, so that no time alone is known."""
    random, within = Random(7), 0
    for _ in range(60):
        affinities = learned(random, 60, slope=slope, loads={"a": (1, 1), "b": (1, 1)})
        a, b = affinities.estimates(ETL)
        assert min(a.factor, b.factor) > 4
        assert (a.relative, a.relative_factor) == (1, 1)
        assert b.relative_factor < 3
        within += abs(math.log(b.relative) - 0.5) <= math.log(b.relative_factor)
    assert within >= 57


def test_intervals_of_what_platforms_differ_by_contain_it() -> None:
    random, within = Random(11), 0
    for _ in range(60):
        for row in learned(random, 60, slope=0.6).estimates(ETL):
            truth = {"a": 0.0, "b": 0.5}[row.platform]
            within += abs(math.log(row.relative) - truth) <= math.log(row.relative_factor) + 1e-9
    assert within >= 0.93 * 120


def _base(affinities: Affinities) -> float:
    """The mean of the stages' logarithms alone on a, by the weights that they have."""
    stages = affinities._kinds[ETL]._stages
    whole = sum(stage.run_s for stage in stages.values())
    return stages["reduce"].run_s / whole * math.log(10.0)


def test_the_order_of_platforms_is_right_after_a_dozen_observations() -> None:
    random = Random(3)
    right = sum(
        relative(learned(random, 12, loads={"a": (0.2, 1.0), "b": (0.2, 1.0)}))["a"] == 1.0
        for _ in range(60)
    )
    assert right >= 54


def test_stages_of_unlike_sizes_on_unlike_platforms_do_not_pass_for_affinity() -> None:
    """a runs the long stage more often; on either platform each takes as long."""
    affinities, random = Affinities(), Random(2)
    for at in range(400):
        platform = PLATFORMS[at % 2]
        is_long = random.random() < (0.9 if platform == "a" else 0.1)
        run_s = (60.0 if is_long else 2.0) * math.exp(random.gauss(0, 0.1))
        affinities.observe(
            "prod", "etl", "long" if is_long else "short", platform, 1, run_s, 0.0, {}
        )
    assert max(relative(affinities).values()) < 1.1


def test_stages_that_no_platform_shares_say_nothing() -> None:
    affinities = Affinities()
    for _ in range(50):
        affinities.observe("prod", "etl", "long", "a", 1, 60.0, 0.0, {})
        affinities.observe("prod", "etl", "short", "b", 1, 2.0, 0.0, {})
    assert relative(affinities) == pytest.approx({"a": 1.0, "b": 1.0})
    certain = {row.platform: row.factor for row in affinities.estimates(ETL)}
    assert certain["b"] > 1.5  # where it has run a small part of its work


def test_a_stage_that_reads_more_on_one_platform_is_not_slower_there() -> None:
    affinities, random = Affinities(), Random(4)
    for at in range(200):
        platform = PLATFORMS[at % 2]
        read = (4e9 if platform == "b" else 1e9) * math.exp(random.gauss(0, 0.3))
        run_s = 10 * read / 1e9 * math.exp(random.gauss(0, 0.1))
        affinities.observe("prod", "etl", "scan", platform, 1, run_s, 0.2, {}, read)
    assert max(relative(affinities).values()) < 1.15


def test_run_times_that_do_not_follow_what_is_read_are_not_divided_by_it() -> None:
    affinities, random = Affinities(), Random(4)
    for at in range(400):
        platform = PLATFORMS[at % 2]
        read = (2e9 if platform == "b" else 1e9) * math.exp(random.gauss(0, 0.5))
        run_s = 10 * math.exp(random.gauss(0, 0.1))
        affinities.observe("prod", "etl", "scan", platform, 1, run_s, 0.2, {}, read)
    assert max(relative(affinities).values()) < 1.15


def test_company_that_costs_more_is_told_from_company_that_costs_less() -> None:
    extra = {NOISY: 0.5, MILD: -0.2}
    affinities = learned(Random(6), 600, slope=0.4, extra=extra)
    noisy, mild = affinities.slowdown(ETL, NOISY), affinities.slowdown(ETL, MILD)
    assert noisy.factor / mild.factor > 1.4
    assert mild.factor < affinities.sensitivity(ETL).factor < noisy.factor
    worst = [row.other for row in affinities.co_runners(ETL)]
    assert worst == [NOISY, MILD]


def test_intervals_of_slowdowns_contain_the_truth() -> None:
    extra = {NOISY: 0.4, MILD: -0.2}
    within = 0
    for seed in range(60):
        affinities = learned(Random(seed), 200, slope=0.4, extra=extra)
        for kind, cost in extra.items():
            found = affinities.slowdown(ETL, kind)
            within += abs(math.log(found.factor) - 0.4 - cost) <= found.half_width
    assert within >= 0.9 * 120


def test_unlike_company_on_platforms_does_not_pass_for_affinity() -> None:
    """Both are alike; a's nodes are shared with noisy ones more often."""
    affinities, random = Affinities(), Random(8)
    for at in range(600):
        platform = PLATFORMS[at % 2]
        noisy = random.random() < (0.8 if platform == "a" else 0.2)
        part = random.choice([0.2, 0.8])
        log = (1.0 if noisy else 0.1) * part + random.gauss(0, 0.1)
        company = {NOISY if noisy else MILD: part}
        affinities.observe("prod", "etl", "map", platform, 1, math.exp(log), part, company)
    assert max(relative(affinities).values()) < 1.2


def test_a_kind_with_itself_is_company_like_any_other() -> None:
    affinities, random = Affinities(), Random(9)
    for _ in range(300):
        load = random.random()
        run_s = math.exp(0.8 * load + random.gauss(0, 0.1))
        affinities.observe("prod", "etl", "map", "a", 1, run_s, load, {ETL: load})
    found = affinities.slowdown(ETL, ETL)
    assert found.factor == pytest.approx(math.exp(0.8), rel=0.15)
    assert found.observations > 10


def test_company_that_has_not_been_seen_costs_what_other_company_does() -> None:
    affinities = learned(Random(1), 200, slope=0.8, loads={"a": (0, 1), "b": (0, 1)})
    unseen, any_company = affinities.slowdown(ETL, NOISY), affinities.sensitivity(ETL)
    assert unseen.factor == any_company.factor
    assert unseen.half_width > any_company.half_width
    assert unseen.observations == 0
    unknown = affinities.slowdown(kind_of("prod", "unknown"), NOISY)
    assert unknown.factor == pytest.approx(math.exp(0.1))
    assert unknown.half_width > unseen.half_width


def test_a_queue_is_the_mean_of_what_it_is_to_run_by_the_cores_that_each_wants() -> None:
    affinities = Affinities()
    for name, on_a_s, on_b_s in [("x", 1.0, 4.0), ("y", 1.0, 1.0)]:
        for platform, run_s in (("a", on_a_s), ("b", on_b_s)):
            for _ in range(4):
                affinities.observe("prod", name, "map", platform, 1, run_s, 0.0, {})

    def times(wanted: dict[str, float]) -> list[float]:
        found: list[float] = affinities.run_times({"prod": wanted}, PLATFORMS)[0].tolist()
        return found

    assert times({"x": 8}) == pytest.approx([1, 4])
    assert times({"x": 8, "y": 8}) == pytest.approx([1, 2])
    assert times({"x": 1, "y": 3}) == pytest.approx([1, math.sqrt(2)])
    # One of whom nothing is known is like the others, by the time that these have taken: 20 to 8.
    assert times({"new": 5}) == pytest.approx([1, 4 ** (20 / 28)])
    assert times({}) == pytest.approx(times({"new": 5}))


def test_names_of_recurring_applications_differ_in_numbers() -> None:
    affinities = Affinities()
    for day in range(1, 5):
        affinities.observe("prod", f"sales 2026-03-0{day}", "map", "a", 1, 2.0, 0.0, {})
    assert affinities.kinds() == [ApplicationKind("prod", "sales #-#-#")]
    found = affinities.run_times({"prod": {"sales 2027-01-01": 1.0}}, ["a"])
    assert found[0, 0] == pytest.approx(2.0)


def test_a_platform_on_which_a_queue_has_run_nothing_is_inferred_from_others() -> None:
    affinities = Affinities()
    for queue, platform, run_s in [("x", "a", 1.0), ("x", "b", 2.0), ("y", "a", 10.0)]:
        affinities.observe(queue, "job", "map", platform, 1, run_s, 0.0, {})
    wanted = {"x": {"job": 1.0}, "y": {"job": 1.0}, "z": {"job": 1.0}}
    found = affinities.run_times(wanted, ["a", "b", "c"])
    assert found[1, 1] == pytest.approx(20)
    assert np.isnan(found[2]).all()
    assert np.isnan(found[:, 2]).all()
    assert np.isfinite(platform_affinity(Affinity.RECIPROCAL, found)).all()


def test_nothing_is_known_at_first() -> None:
    affinities = Affinities()
    assert np.isnan(affinities.run_times({"prod": {"etl": 1.0}}, PLATFORMS)).all()
    assert affinities.run_times({}, PLATFORMS).shape == (0, 2)
    assert (affinities.kinds(), affinities.platforms()) == ([], [])


def test_a_straggler_changes_little_and_a_change_that_lasts_is_followed() -> None:
    affinities, random = Affinities(), Random(3)

    def observe(times: int, usual_s: float) -> None:
        for at in range(times):
            run_s = usual_s * math.exp(random.gauss(0, 0.1))
            affinities.observe("prod", "etl", "map", "a", 1, run_s, 0.5 + 0.5 * (at % 2), {})

    observe(100, 1.0)
    before = affinities.estimates(ETL)[0].run_s
    affinities.observe("prod", "etl", "map", "a", 1, 1_000.0, 1.0, {})
    assert affinities.estimates(ETL)[0].run_s == pytest.approx(before, rel=0.05)
    observe(200, 10.0)
    assert affinities.estimates(ETL)[0].run_s == pytest.approx(10 * before, rel=0.2)


def test_memory_is_bounded_and_the_least_recently_seen_are_forgotten() -> None:
    affinities = Affinities(kinds_max=5)
    letters = list(itertools.islice(map("".join, itertools.product("abcd", repeat=3)), 40))
    for name in letters:
        affinities.observe("prod", name, "map", "a", 1, 1.0, 0.0, {})
        affinities.observe("prod", "kept", "map", "a", 1, 1.0, 0.0, {})
    assert affinities.kinds() == [kind_of("prod", x) for x in [*letters[-4:], "kept"]]

    affinities = Affinities(cells_max=20)
    for name in letters:
        for stage in "xyz":
            affinities.observe("adhoc" + name, name, stage, "a", 1, 1.0, 0.5, {NOISY: 0.5})
    assert len(affinities) == 5
    assert affinities.kinds()[-1] == ApplicationKind("adhoc" + letters[-1], letters[-1])


def test_names_without_end_push_out_none_of_other_queues() -> None:
    affinities = Affinities(kinds_max=5)
    affinities.observe("other", "report", "map", "a", 1, 1.0, 0.0, {})
    for name in map("".join, itertools.product("abcd", repeat=3)):
        affinities.observe("prod", name, "map", "a", 1, 1.0, 0.0, {})
    assert kind_of("other", "report") in affinities.kinds()
    assert len(affinities) == 5


def test_what_one_kind_keeps_is_bounded() -> None:
    known, random = KindTimes(), Random(1)
    for at in range(2_000):
        company = {kind_of("prod", f"{'x' * (at % 40)}y"): 0.5}
        platform = f"p{random.randrange(PLATFORMS_MAX + 5)}"
        known.observe(f"s{random.randrange(100)}", TaskTimes(platform, 1, 1.0, 0.5, company))
        assert known.cells <= STAGES_MAX * PLATFORMS_MAX + CO_RUNNERS_MAX
        assert len(known.platforms) <= PLATFORMS_MAX
    assert len(known.co_runners) == CO_RUNNERS_MAX
    assert set(known.times()) == set(known.platforms)


OBSERVATIONS = st.lists(
    st.tuples(
        st.sampled_from(["etl", "etl2", "report"]),
        st.sampled_from(["map", "reduce", "write"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 10**9),
        st.floats(1e-300, 1e300),
        st.floats(0, 1),
        st.floats(0, 1),
        st.sampled_from([0.0, 1.0, 1e9, 1e300]),
    ),
    max_size=40,
)


def observed(some: Sequence[tuple[str, str, str, int, float, float, float, float]]) -> Affinities:
    affinities = Affinities()
    for name, stage, platform, tasks, mean_s, load, part, read in some:
        company = {NOISY: load * part, ETL: load * (1 - part)}
        affinities.observe("prod", name, stage, platform, tasks, mean_s, load, company, read)
    return affinities


@given(OBSERVATIONS)
def test_whatever_is_observed_estimates_are_numbers_and_the_same_each_time(
    some: list[tuple[str, str, str, int, float, float, float, float]],
) -> None:
    one, other = observed(some), observed(some)
    kinds = one.kinds()
    assert kinds == other.kinds()
    for kind in kinds:
        assert one.estimates(kind) == other.estimates(kind)
        assert one.co_runners(kind) == other.co_runners(kind)
    for row in (row for kind in kinds for row in one.estimates(kind)):
        assert 0 < row.run_s < math.inf
        assert row.relative >= 1
        assert row.factor >= 1
        assert row.relative_factor >= 1
        assert row.observations > 0
    for each in (row for kind in kinds for row in one.co_runners(kind)):
        assert 0 < each.slowdown.factor < math.inf
        assert 0 < each.slowdown.half_width < math.inf
    times = one.run_times({"prod": {"etl": 2.0, "new": 1.0}}, one.platforms())
    assert np.isfinite(times).all()
    assert (times > 0).all()


@given(OBSERVATIONS, st.permutations(["a", "b", "c"]))
def test_run_times_do_not_depend_on_the_order_of_platforms(
    some: list[tuple[str, str, str, int, float, float, float, float]], platforms: list[str]
) -> None:
    affinities = observed(some)
    straight = affinities.run_times({"prod": {"etl": 1.0}}, ["a", "b", "c"])[0]
    permuted = affinities.run_times({"prod": {"etl": 1.0}}, platforms)[0]
    by_name = dict(zip(platforms, permuted.tolist(), strict=True))
    assert [by_name[x] for x in "abc"] == pytest.approx(straight.tolist(), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ("mean_s", "load", "tasks"),
    [(0.0, 0.5, 1), (-1.0, 0.5, 1), (math.inf, 0.5, 1), (math.nan, 0.5, 1), (1.0, 1.1, 1),
     (1.0, -0.1, 1), (1.0, math.nan, 1), (1.0, 0.5, 0)],
)  # fmt: skip
def test_what_cannot_be_is_refused(mean_s: float, load: float, tasks: int) -> None:
    with pytest.raises(InvalidRequest, match="etl"):
        Affinities().observe("prod", "etl", "map", "a", tasks, mean_s, load, {})
