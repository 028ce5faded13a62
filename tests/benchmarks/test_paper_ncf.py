"""The accuracy of estimates: what is read, what is left out, and how it is measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.paper import ncf, ncf_methods
from benchmarks.paper.ncf_data import SHARES, Measured, read_igniter, read_profiles
from benchmarks.paper.ncf_plot import draw
from hrm.errors import InvalidRequest

BATCHES = (1, 2, 4, 8, 16, 32)
MODELS = ("alpha", "beta", "gamma")


def entries() -> list[dict[str, Any]]:
    """Three models whose loads grow with the batch, and pairs that suffer from their partner's."""
    lines: list[dict[str, Any]] = []
    loads = {}
    for place, model in enumerate(MODELS):
        for metric, scale in (("l2cache", 6.0), ("dram", 9.0), ("latency", 2.0)):
            cells = {
                str(batch): {
                    str(share): scale * (1 + place) * np.log1p(batch) * share / 100
                    for share in SHARES
                }
                for batch in BATCHES
            }
            lines.append({model: {metric: cells}})
            loads[model, metric] = cells
    pairs = []
    for one, other in (("alpha", "beta"), ("alpha", "gamma"), ("beta", "gamma")):
        for batch in BATCHES[1:]:
            for share in (40, 50, 60):
                first, second = str(share), str(100 - share)
                mine, its = str(batch), str(batch // 2)
                alone = loads[one, "latency"][mine][first], loads[other, "latency"][its][second]
                lost = [
                    1 + loads[other, "dram"][its][second] / 100,
                    1 + loads[one, "dram"][mine][first] / 100,
                ]
                pairs.append(
                    [one, other, batch, batch // 2, share, alone[0] * lost[0], alone[1] * lost[1]]
                )
    return [*lines, {"interference": {"latency": pairs}}]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[list[Any]], Path]:
    def write(lines: list[Any]) -> Path:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        path = tmp_path / "v100_profile_and_interference.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode()))
        return tmp_path

    return write


@pytest.fixture
def measured(written: Callable[[list[Any]], Path]) -> Measured:
    return read_igniter(written(entries()))


def test_tables_and_slowdowns_are_read(measured: Measured) -> None:
    assert measured.table.shape == (18, 11)
    assert measured.problems == ()
    assert len(measured.pairs) == 45
    pair = measured.pairs[0]
    assert measured.rows[pair.first] == ("alpha", 2)
    dram = measured.table[pair.second][len(SHARES) + SHARES.index(60)]
    assert pair.slowdown_first == pytest.approx(1 + dram)


def test_what_is_ill_formed_is_reported_and_left_out(written: Callable[[list[Any]], Path]) -> None:
    lines = entries()
    lines[0]["alpha"]["l2cache"]["4"]["50"] = "many"
    lines[1]["alpha"]["dram"]["8"]["20"] = 140.0
    lines[-1]["interference"]["latency"] += [["alpha", "nobody", 2, 2, 50, 1.0, 1.0], [1, 2], None]
    found = read_igniter(written([*lines, "{broken", 7]))
    result = "\n".join(found.problems)
    for what in ("alpha, batch 4: l2cache at 50", "batch 8: dram", "nobody", "[1, 2]", "None"):
        assert what in result
    assert "line 11" in result
    assert "line 12" in result
    assert ("alpha", 4) not in found.rows
    assert len(found.rows) == 16


def test_without_enough_to_go_on_it_reports_it(
    tmp_path: Path, written: Callable[[list[Any]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequest, match="--data"):
        read_igniter(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="0 usable rows"):
        read_igniter(written([{"alpha": {"latency": {}}}]))
    assert ncf.main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err.replace("\n", "")


def test_profiles_are_rows_of_the_estimates(tmp_path: Path) -> None:
    features = dict.fromkeys(("sm", "l1", "l2", "tex", "dram", "load", "store"), 0.3)
    row = {"kind": "edges", "size_mb": 60.0, "cpu_s": [4.0, 6.0], "gpu_s": [1.0], "cpu_share": 0.9}
    rows = [
        {**row, "gpu_features": features},
        {**row, "kind": "track", "gpu_s": None, "gpu_features": None},
        {**row, "kind": "batch", "cpu_s": None, "gpu_features": features},
        {**row, "kind": "broken", "gpu_s": [0.0], "gpu_features": features},
        {"kind": "less"},
    ]
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"gpu": {"source": "derived"}, "rows": rows}))
    found = read_profiles(path)
    assert found.rows == (("edges", 1),)
    assert found.columns[0] == "cpu"
    assert found.columns[-1] == "size"
    assert "derived" in found.source
    assert len(found.problems) == 2
    with pytest.raises(InvalidRequest, match="no subtask profiles"):
        read_profiles(tmp_path / "none.json")


def test_held_out_applications_are_nowhere_else(measured: Measured) -> None:
    for fold in ncf_methods.folds(measured):
        assert not any((fold.test & one).any() for one in fold.validation)
        rest, tests = ncf_methods.split(fold, measured)
        assert len(rest) + len(tests) == len(measured.pairs)
        assert not any(fold.test[pair.first] or fold.test[pair.second] for pair in rest)
        known = ncf_methods.masked(measured.table[fold.test], 3)
        assert (np.isfinite(known).sum(axis=1) == 3).all()


def test_regret_and_ranks_by_hand() -> None:
    truth = np.array([0.1, 0.3, 0.2, 0.4])
    groups = [[0, 1], [2, 3]]
    assert ncf_methods.regret(truth, truth, groups) == 0.0
    assert ncf_methods.regret(-truth, truth, groups) == pytest.approx(2.0)
    assert ncf_methods.regret(np.zeros(4), truth, groups) == pytest.approx(1.0)
    assert ncf_methods.spearman(truth, truth**3) == pytest.approx(1.0)
    assert ncf_methods.spearman(np.ones(4), truth) == 0.0


def test_the_interval_is_students() -> None:
    found = ncf.interval([2, 4, 3, 5, 1])
    assert found["mean"] == 3
    assert found["half"] == pytest.approx(1.963, abs=5e-4)


def test_a_whole_run_is_the_measure_and_reports(
    written: Callable[[list[Any]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ncf_methods, "_STEPS", 60)
    monkeypatch.setattr(ncf, "PROFILES", tmp_path / "no-profiles.json")
    folder = written(entries())
    out = tmp_path / "out.json"
    assert ncf.main(["--data", str(folder), "--quick", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    (table,) = [one for one in document["tables"] if "iGniter" in one["source"]]
    errors = {name: one["mean"] for name, one in table["metrics"]["errors"].items()}
    assert errors.keys() == ncf_methods.METHODS.keys()
    assert errors["gaussian"] < errors["mean"]
    assert table["metrics"]["spearman"]["measured"]["mean"] > 0.8, "the partner's load rules here"
    assert document["best"]["score"] in ("cosine", "overload", "learned")
    assert "| conditional Gaussian |" in capsys.readouterr().out
    draw(tmp_path / "picture.svg", document, {})
    assert "<svg" in (tmp_path / "picture.svg").read_text()
