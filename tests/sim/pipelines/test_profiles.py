"""The table of profiles: read, interpolated, refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device
from hrm.pipelines.sim.profiles import load, parse
from tests.sim.pipelines.invented import sample_document


def _write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_between_sizes_the_logarithms_are_interpolated(tmp_path: Path) -> None:
    document = sample_document()
    table = load(_write(tmp_path / "p.json", document))
    rows = {r["size_mb"]: r for r in document["rows"] if r["kind"] == "gaussian-pyramid"}
    kind = table.kinds["gaussian-pyramid"]
    assert kind.run_s(Device.CPU, 60.0) == pytest.approx(rows[60.0]["cpu_s"][1])
    between = math.sqrt(rows[60.0]["cpu_s"][1] * rows[120.0]["cpu_s"][1])
    assert kind.run_s(Device.CPU, math.sqrt(60.0 * 120.0)) == pytest.approx(between)
    assert kind.run_s(Device.CPU, 800.0) > kind.run_s(Device.CPU, 400.0)
    assert math.isinf(table.kinds["tracking"].run_s(Device.GPU, 60.0))
    assert len(table.kinds) == 16


def test_times_may_be_scaled(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.json", sample_document())
    one, two = load(path).kinds["stitching"], parse(sample_document(), scale=2.0).kinds["stitching"]
    assert two.run_s(Device.CPU, 50.0) == pytest.approx(2.0 * one.run_s(Device.CPU, 50.0))


def _without_rows(document: dict[str, object]) -> None:
    document.pop("rows")


def _unknown_kind(document: dict[str, object]) -> None:
    document["rows"] = [r for r in document["rows"] if r["kind"] != "tracking"]  # type: ignore


def _no_times(document: dict[str, object]) -> None:
    for row in document["rows"]:  # type: ignore[attr-defined]
        row["cpu_s"] = None


@pytest.mark.parametrize(
    ("spoil", "words"), [(_without_rows, "rows"), (_unknown_kind, "tracking"), (_no_times, "cpu")]
)
def test_a_bad_table_states_what_is_missing(tmp_path: Path, spoil: object, words: str) -> None:
    document = copy.deepcopy(sample_document())
    spoil(document)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match=words):
        load(_write(tmp_path / "p.json", document))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.json"):
        load(tmp_path / "none.json")
