"""Measured co-runs of others as tables, and the choice of a score on some of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines import corun_scores, corun_tables
from hrm.errors import InvalidRequest
from hrm.pipelines.policies.corun.corun_table import (
    CoRunTable,
    TabledJob,
    read_table,
    write_table,
)
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.pair_effects import Ridges


def _igniter(folder: Path) -> Path:
    lines = [{net: {"latency": {"2": {"40": 2.0, "60": 1.0}}}} for net in ("one", "two")] + [
        {net: {metric: {"2": {"40": 10.0, "60": 20.0}}}}
        for net in ("one", "two")
        for metric in ("l2cache", "dram")
    ]
    pairs = [
        ["one", "two", 2, 2, 40, 2.2, 1.5],
        ["one", "two", 2, 2, 60, 1.1, 2.4],
        ["one", "two", 2, 7, 60, 1.1, 2.4],
    ]
    text = "".join(
        json.dumps(line) + "\n" for line in [*lines, {"interference": {"latency": pairs}}]
    )
    (folder / "v100_profile_and_interference.jsonl").write_text(text)
    return folder


def test_a_slowdown_is_against_the_same_share_of_the_gpu(tmp_path: Path) -> None:
    found = read_table(corun_tables.convert("igniter", _igniter(tmp_path), tmp_path / "out"))
    assert found.features == ("sm", "l2", "dram", "size")
    assert found.modes() == (GpuSharing.MPS,)
    assert [run.slowdowns for run in found.runs] == [
        pytest.approx((1.1, 1.5)), pytest.approx((1.1, 1.2))
    ], "the third has no latency alone"  # fmt: skip
    assert len(found.loads) == 4
    row = found.runs[0].rows[1]
    assert (row.kind, found.loads[row][0]) == ("two", pytest.approx(0.6))


def test_training_jobs_run_in_turns_and_what_did_not_fit_is_left_out(tmp_path: Path) -> None:
    keys = {name: f"('{name} (batch size 16)', 1)" for name in "abc"}
    document = {
        "k80": {
            keys["a"]: {"null": 4.0, keys["a"]: [2.0, 2.0], keys["b"]: [2.5, 1.0]},
            keys["b"]: {"null": 2.0, keys["a"]: [1.0, 2.5], keys["c"]: [0.0, 0.0]},
            keys["c"]: {"null": 1.0, keys["b"]: [0.0, 0.0]},
        }
    }
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(document))
    found = read_table(corun_tables.convert("gavel-k80", tmp_path, tmp_path / "out"))
    assert (found.features, found.modes()) == ((), (GpuSharing.TIME_SLICING,))
    assert sorted(run.slowdowns for run in found.runs) == [
        pytest.approx((2.0, 1.6)), pytest.approx((2.0, 2.0))
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match="no pairs on a v100; it has k80"):
        corun_tables.convert("gavel-v100", tmp_path, tmp_path / "none")


def test_lucids_speeds_are_shares_of_the_speed_alone(tmp_path: Path) -> None:
    (tmp_path / "single_data.csv").write_text(
        "model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label\n"
        "VGG,CIFAR-10,32,0,2998.7,44.0,23.0,3386.0,0\n"
        "PPO,LunarLander,32,0,5.1,12.4,0.0,2051.0,0\n"
    )
    header = (
        ",model1,dataset1,gpu_num1,batchsize1,amp1,speed1,"
        "model2,dataset2,gpu_num2,batchsize2,amp2,speed2,gpu_util,gmem_util,gmem\n"
    )
    pairs = tmp_path / "colocate_info.csv"
    both = "VGG,CIFAR-10,1,32,0,0.8,PPO,LunarLander,1,32,0,0.5,50,20,5000\n"
    pairs.write_text(header + f"0,{both}1,{both}")
    found = read_table(corun_tables.convert("lucid", tmp_path, tmp_path / "out"))
    assert found.features == ("sm", "dram")
    assert found.runs[0].slowdowns == pytest.approx((1.25, 2.0))
    pairs.write_text(header + "0,VGG,CIFAR-10,1,64,0,0.8,PPO,LunarLander,1,32,0,0.5,50,20,5\n")
    with pytest.raises(InvalidRequest, match="does not hold single_data"):
        corun_tables.convert("lucid", tmp_path, tmp_path / "out")


def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert corun_tables.main(["lucid", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "does not hold single_data.csv" in capsys.readouterr().err.replace("\n", " ")


@pytest.fixture
def drawn(tmp_path: Path) -> CoRunTable:
    """Eight jobs of four kinds; what a kind inflicts is not what its load says."""
    rng = np.random.default_rng(1)
    names = [f"{kind} {size}" for kind in "abcd" for size in (1, 2)]
    suffers = dict(zip(names, rng.uniform(0.0, 0.8, 8), strict=True))
    inflicts = dict(zip("abcd", (0.0, 0.2, 0.5, 0.9), strict=True))
    jobs = [TabledJob(name=n, kind=n[0], features={"sm": 0.5}) for n in names]
    runs = [
        (
            GpuSharing.TIME_SLICING,
            [
                (one, float(np.exp(suffers[one] + inflicts[other[0]]))),
                (other, float(np.exp(suffers[other] + inflicts[one[0]]))),
            ],
        )
        for place, one in enumerate(names)
        for other in names[:place]
    ]
    write_table(tmp_path, ("sm",), jobs, runs)
    return read_table(tmp_path)


def test_the_score_is_chosen_that_ranks_the_table_best(
    drawn: CoRunTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corun_scores, "RIDGES", (Ridges(row=1000.0, kind=1000.0), Ridges()))
    score, seen, ridges, rank = corun_scores.choose(drawn, seeds=1)
    assert (score, seen, ridges) == ("sensitivity", True, Ridges())
    assert rank > 0.8


def test_what_was_never_seen_together_is_ranked_by_what_each_did_with_others(
    drawn: CoRunTable,
) -> None:
    found = corun_scores.unseen_pairs(drawn, Ridges(), divisions=4)
    assert found["pairs"] == 10
    by_sets = corun_scores.curve(drawn, Ridges(), seeds=4)[-1]
    assert 0.3 < found["each"]["value"] < by_sets["each"]
    assert found["each"]["low"] < found["each"]["value"] < found["each"]["high"]


def test_more_co_runs_make_it_better(drawn: CoRunTable) -> None:
    points = corun_scores.curve(drawn, Ridges(), seeds=2)
    assert [point["share"] for point in points] == [share / 2 for share in corun_scores.SHARES]
    assert points[-1]["each"] > points[0]["each"]


def test_running_together_only_with_a_gain_is_between_always_and_knowing(drawn: CoRunTable) -> None:
    found = corun_scores.gains(drawn, Ridges(), seeds=1)
    assert found["harmful"] > 0.2
    assert found["always"] < found["by_gain"]["0"] <= found["oracle"]
    assert found["by_gain"]["0.2"] >= 1.0
