"""How fast tasks run on one platform, relative to their fastest."""

from __future__ import annotations

import pytest

from hrm.core.tenancy.affinities import Affinities, kind_of

KIND = kind_of("root.a", "job 1")


def run(affinities: Affinities, platform: str, mean_s: float, times: int = 5) -> None:
    for number in range(times):
        affinities.observe(
            "root.a", f"job {number}", "map", platform, 4, mean_s, load=0.0, company={}
        )


def test_speed_is_relative_to_the_fastest_platform_that_is_known() -> None:
    affinities = Affinities()
    run(affinities, "old", 6.0)
    assert affinities.speed(KIND, "old") is None, "nothing to compare with"
    run(affinities, "new", 2.0)
    assert affinities.speed(KIND, "old") == pytest.approx(1 / 3)
    assert affinities.speed(KIND, "new") == 1.0
    assert affinities.speed(KIND, "other") is None
    assert affinities.speed(kind_of("root.b", "job 1"), "old") is None


def test_one_time_on_a_platform_is_no_knowledge_of_it() -> None:
    """An interval is infinite until there are two observations of the kind."""
    affinities = Affinities()
    run(affinities, "old", 6.0, times=1)
    assert affinities.speed(KIND, "old") is None
