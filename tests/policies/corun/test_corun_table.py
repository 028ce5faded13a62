"""Tables of measured co-runs: what they must hold, and what scores are worth on them."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun import SCORES
from hrm.pipelines.policies.corun.corun_table import (
    CoRunTable,
    TabledJob,
    read_table,
    write_table,
)
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.score_quality import (
    ScoreQuality,
    halves_of,
    pair_of_kinds,
    qualities,
    rank_correlation,
    regret,
)

JOBS = "job,kind,sm,dram\nx,big,0.9,0.5\ny,big,0.7,0.4\nz,small,0.2,0.1\n"
RUNS = (
    "run,sharing,job,slowdown\n"
    "1,time-slicing,x,1.6\n1,time-slicing,y,1.5\n"
    "2,time-slicing,x,1.1\n2,time-slicing,z,1.2\n"
    "3,mps,y,1.05\n3,mps,z,1.01\n"
)


def table(directory: Path, jobs: str = JOBS, runs: str = RUNS) -> CoRunTable:
    (directory / "jobs.csv").write_text(jobs)
    (directory / "runs.csv").write_text(runs)
    return read_table(directory)


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found.features == ("sm", "dram")
    assert {row.kind for row in found.loads} == {"big", "small"}
    x, y, _ = found.loads
    assert (x.bucket, y.bucket) == (0, 1)
    assert found.loads[x].tolist() == pytest.approx([0.9, 0, 0, 0, 0.5, 0, 0, 0])
    assert found.modes() == (GpuSharing.MPS, GpuSharing.TIME_SLICING)
    assert [run.slowdowns for run in found.runs] == [(1.6, 1.5), (1.1, 1.2), (1.05, 1.01)]


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ("", "it has no column job"),
        ("name,sm\nx,0.1\n", "it has no column job"),
        ("job,smm\nx,0.1\n", "'smm' that means nothing here; columns are job, kind, sm"),
        ("job,sm,sm\nx,0.1,0.1\n", "it has sm twice"),
        ("job,sm\nx,\n", "line 2: sm is empty; measure it, or leave the whole column sm out"),
        ("job,sm\n,0.3\n", "line 2: job is empty"),
        ("job,sm\nx,nan\n", "line 2: sm is 'nan', which is no finite number"),
        ("job,sm\nx,half\n", "line 2: sm is 'half', which is no finite number"),
        ("job,sm\nx,96\n", "line 2: sm is 96; it is a share, 0 to 1"),
        ("job,sm\nx,0.3,0.2\n", "line 2: 3 cells, but the header has 2"),
        ("job,sm\nx,0.3\nx,0.4\n", "line 3: job 'x' is there twice"),
        ("job,sm\n", "has no job"),
    ],
)
def test_jobs_that_cannot_be_read(tmp_path: Path, jobs: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=r"jobs\.csv") as caught:
        table(tmp_path, jobs=jobs)
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("4,mps,w,1.2", "line 8: there is no job 'w' in jobs.csv"),
        ("4,shared,x,1.2", "sharing is 'shared'; write mps or time-slicing"),
        ("4,mps,x,", "slowdown is empty"),
        ("4,mps,x,inf", "slowdown is 'inf', which is no finite number"),
        ("4,mps,x,0", "slowdown is 0; it is the time in the set over the time alone, 0.1 to 1000"),
        ("4,mps,x,-1", "line 8: slowdown is -1"),
        ("4,mps,x,1e308", "line 8: slowdown is 1e+308; it is the time in the set over the time"),
        ("4,mps,x,1143", "correct it, or leave out run '4'"),
        ("3,time-slicing,x,1.2", "run '3' was mps before"),
        ("4,mps,x,1.2", "run '4' has one job"),
        ('4,mps,"x,1.2', "cannot be read as CSV"),
    ],
)
def test_runs_that_cannot_be_read(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=r"runs\.csv") as caught:
        table(tmp_path, runs=f"{RUNS}{line}\n")
    assert why in caught.value.message


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"a directory with jobs\.csv and runs\.csv"):
        read_table(tmp_path)
    with pytest.raises(InvalidRequest, match="ranking needs at least 2"):
        table(tmp_path, runs="run,sharing,job,slowdown\n1,mps,x,1\n1,mps,y,1\n")


def test_rank_correlations_by_hand() -> None:
    ranks = np.array([1.0, 2.0, 2.0, 4.0])
    assert rank_correlation(ranks, ranks) == pytest.approx(1.0)
    assert rank_correlation(ranks, -ranks) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 and 2, 1, 4, 3: 1.5 over sqrt(4.5 x 5).
    other = np.array([2.0, 1.0, 9.0, 3.0])
    assert rank_correlation(ranks, other) == pytest.approx(1.5 / np.sqrt(22.5))
    assert rank_correlation(ranks, np.ones(4)) is None
    counts = np.array([2, 1, 0, 1])
    as_listed = rank_correlation(np.array([1.0, 1, 2, 4]), np.array([2.0, 2, 1, 3]))
    assert rank_correlation(ranks, other, counts) == pytest.approx(as_listed)


def test_regret_by_hand() -> None:
    losses, choices = np.array([0.1, 0.5, 0.9]), {0: np.array([0, 1, 2])}
    assert regret(losses, losses, choices) == 0.0
    assert regret(-losses, losses, choices) == pytest.approx(0.8 / 0.4)
    assert regret(np.zeros(3), losses, choices) == pytest.approx(1.0)
    assert regret(losses, np.ones(3), choices) is None


def _drawn(directory: Path, sharing: GpuSharing, seed: int) -> CoRunTable:
    """Jobs with hidden effects and loads that tell a part of them."""
    rng = np.random.default_rng(seed)
    names = [f"j{number}" for number in range(12)]
    suffers, inflicts = rng.uniform(0, 0.6, 12), rng.uniform(0, 0.6, 12)
    jobs = [
        TabledJob(name=name, kind=name, features={"sm": float(one)})
        for name, one in zip(names, np.clip(0.5 + inflicts - 0.3, 0, 1), strict=True)
    ]
    runs = [
        (
            sharing,
            [
                (names[a], float(np.exp(suffers[a] + inflicts[b] + 0.02 * rng.normal()))),
                (names[b], float(np.exp(suffers[b] + inflicts[a] + 0.02 * rng.normal()))),
            ],
        )
        for a in range(12)
        for b in range(a)
    ]
    write_table(directory, ("sm",), jobs, runs)
    return read_table(directory)


def of(found: list[ScoreQuality], score: str, *, seen: bool) -> ScoreQuality:
    return next(one for one in found if (one.score, one.seen) == (score, seen))


@pytest.mark.parametrize("sharing", list(GpuSharing))
def test_effects_of_both_sides_are_found_where_loads_tell_only_one(
    tmp_path: Path, sharing: GpuSharing
) -> None:
    found = qualities(_drawn(tmp_path, sharing, 3), SCORES, resamples=50)
    best = of(found, "sensitivity", seen=True)
    assert best.each is not None and best.regret is not None and best.joint is not None
    assert best.each.value > 0.9 and best.joint.value > 0.8 and best.regret.value < 0.3
    assert best.each.low <= best.each.value <= best.each.high
    assert (best.runs, best.choices, best.sharing) == (66, 12, sharing)
    cold = of(found, "sensitivity", seen=False)
    assert cold.each is None or cold.each.value < best.each.value - 0.2


def test_what_was_measured_twice_is_in_one_half(tmp_path: Path) -> None:
    drawn = _drawn(tmp_path, GpuSharing.MPS, 6)
    twice = [run for run in drawn.runs for _ in range(2)]
    halves = halves_of(twice, np.random.default_rng(0))
    assert halves[::2].tolist() == halves[1::2].tolist()
    assert halves.sum() == len(twice) / 2
    once = halves_of(drawn.runs, np.random.default_rng(0))
    assert once.tolist() == halves[::2].tolist(), "no other division than without the second"


def test_seen_twice_is_not_known_before(tmp_path: Path) -> None:
    """Slow-downs at random: nothing of one set follows from the others."""
    rng = np.random.default_rng(7)
    jobs = [TabledJob(name=f"j{number}", kind=f"j{number}", features={}) for number in range(12)]
    sets = [
        (GpuSharing.MPS, [(f"j{a}", rng.uniform(1, 3)), (f"j{b}", rng.uniform(1, 3))])
        for a in range(12)
        for b in range(a)
    ]
    write_table(tmp_path, (), jobs, [one for one in sets for _ in range(2)])
    found = qualities(read_table(tmp_path), {"sensitivity": SCORES["sensitivity"]}, resamples=1)
    each = of(found, "sensitivity", seen=True).each
    assert each is not None and each.value < 0.3


def test_halves_by_pairs_of_kinds_keep_what_is_alike_together(tmp_path: Path) -> None:
    jobs = "job,kind\n" + "".join(f"{kind}{size},{kind}\n" for kind in "abc" for size in "12")
    names = [f"{kind}{size}" for kind in "abc" for size in "12"]
    lines = [
        f"{one}-{other},mps,{job},1.1"
        for place, one in enumerate(names)
        for other in names[:place]
        for job in (one, other)
    ]
    runs = table(tmp_path, jobs, "run,sharing,job,slowdown\n" + "\n".join(lines) + "\n").runs
    halves = halves_of(runs, np.random.default_rng(1), pair_of_kinds)
    of_kinds: dict[Hashable, set[int]] = {}
    for run, half in zip(runs, halves.tolist(), strict=True):
        of_kinds.setdefault(pair_of_kinds(run), set()).add(half)
    assert all(len(found) == 1 for found in of_kinds.values())
    assert {half for found in of_kinds.values() for half in found} == {0, 1}


def test_a_figure_is_the_same_whenever_it_is_measured(tmp_path: Path) -> None:
    drawn = _drawn(tmp_path, GpuSharing.TIME_SLICING, 4)
    assert qualities(drawn, SCORES, resamples=20) == qualities(drawn, SCORES, resamples=20)


def test_a_table_without_features_ranks_by_what_was_seen_alone(tmp_path: Path) -> None:
    drawn = _drawn(tmp_path, GpuSharing.TIME_SLICING, 5)
    jobs = [TabledJob(name=f"j{n}", kind=f"j{n}", features={}) for n in range(12)]
    names = {row: row.kind for row in drawn.loads}
    runs = [
        (run.sharing, [(names[r], s) for r, s in zip(run.rows, run.slowdowns, strict=True)])
        for run in drawn.runs
    ]
    write_table(tmp_path, (), jobs, runs)
    found = qualities(read_table(tmp_path), SCORES, resamples=10)
    assert of(found, "cosine", seen=False).each is None
    assert of(found, "overload", seen=False).regret is None
    seen = of(found, "sensitivity", seen=True).each
    assert seen is not None and seen.value > 0.9
