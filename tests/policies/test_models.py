"""Model files: what is written is read, and damage is reported."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidConfig, NotFound
from hrm.policies import model_files
from hrm.policies.model_files import Model


def example(version: int = 3, **changes: Any) -> Model:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    made = Model(kind="some-net", version=version, schema="abc", arrays=arrays, meta={"a": [1]})
    return dataclasses.replace(made, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model_files.write(example(), tmp_path / "some-net-3.npz")
    return tmp_path / "some-net-3.npz"


def test_what_is_written_is_read(path: Path) -> None:
    found = model_files.read(path, kind="some-net")
    assert np.array_equal(found.arrays["w"], example().arrays["w"])
    assert (found.kind, found.version, found.schema, found.meta) == (
        "some-net",
        3,
        "abc",
        {"a": [1]},
    )
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_newest_version_counts_and_a_local_one_wins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = path.parent / "defaults"
    monkeypatch.setattr(model_files, "PACKAGE_DIR", defaults)
    for version in (3, 12):
        model_files.write(example(version, schema="default"), defaults / f"some-net-{version}.npz")
    model_files.write(example(12, schema="local"), path.parent / "some-net-12.npz")
    (path.parent / "notes.txt").write_text("no model")
    assert model_files.find("some-net").schema == "default"
    assert model_files.find("some-net", state_dir=path.parent).schema == "local"
    assert model_files.find("some-net", version=3, state_dir=path.parent).version == 3
    held = [(f.version, f.path.parent == defaults) for f in model_files.listed(None, path.parent)]
    assert held == [(3, True), (3, False), (12, True), (12, False)]


def test_no_model_states_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="hrm policy train other-net"):
        model_files.find("other-net", state_dir=tmp_path)
    with pytest.raises(NotFound, match="hrm policy train"):
        model_files.read(tmp_path / "x.npz")


def _refused(path: Path, part: str, **options: Any) -> None:
    with pytest.raises(InvalidConfig, match=part) as caught:
        model_files.read(path, **options)
    assert str(path) in str(caught.value)
    assert "hrm policy train" in str(caught.value)


def test_every_truncated_and_every_flipped_byte_is_an_error_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        _refused(path, "cannot be read")
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = model_files.read(path)
        except InvalidConfig:
            continue
        assert np.array_equal(found.arrays["w"], example().arrays["w"])


def test_a_pickle_is_never_run(path: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path.write_bytes(pickle.dumps(Evil()))
    _refused(path, "cannot be read")
    np.savez(path, meta=np.array([Evil()], dtype=object), allow_pickle=True)
    _refused(path, "cannot be read")
    assert not (tmp_path / "ran").exists()


def _saved(path: Path, meta: Any, **arrays: Any) -> None:
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    held: dict[str, Any] = {f"array:{name}": array for name, array in arrays.items()}
    np.savez(path, meta=text, **held)


def test_what_is_no_model_of_this_format_is_refused(path: Path) -> None:
    good = {"format": 1, "kind": "some-net", "version": 1, "schema": "abc", "meta": {}}
    _saved(path, good | {"format": 2})
    _refused(path, "format 2")
    _saved(path, good | {"version": "1"})
    _refused(path, "whole number")
    _saved(path, good | {"meta": []})
    _refused(path, "no object")
    _saved(path, [1])
    _refused(path, "cannot be read")
    _saved(path, good, w=np.array([1.0, np.nan], dtype=np.float32))
    _refused(path, "'w' is not of finite")
    _saved(path, good, w=np.array(["x"]))
    _refused(path, "'w' is not of finite")
    _saved(path, good)
    _refused(path, "is of kind 'some-net', not 'ldwp'", kind="ldwp")


def test_a_file_whose_name_lies_is_refused(path: Path) -> None:
    path.rename(path.with_name("some-net-4.npz"))
    with pytest.raises(InvalidConfig, match="holds version 3"):
        model_files.find("some-net", state_dir=path.parent)


def test_a_large_file_is_not_even_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "BYTES_MAX", 100)
    _refused(path, "more than the 100")


def test_what_no_model_can_be_is_not_opened_to_the_end(path: Path) -> None:
    """3 GiB of zeros, which take no place on the disk, and a pipe that nobody writes to."""
    path.unlink()
    path.touch()
    os.truncate(path, 3 << 30)
    tracemalloc.start()
    _refused(path, "has 3221225472 bytes, more than the")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    path.unlink()
    os.mkfifo(path)
    _refused(path, "is no regular file")
    path.unlink()
    path.mkdir()
    _refused(path, "is no regular file")


@pytest.mark.parametrize(
    ("shapes", "part"),
    [
        ({"w": (3, 2)}, r"has the shape \(2, 3\)"),
        ({"w": (2, 3), "b": (3,)}, "'b' is missing"),
        ({}, "'w' belongs to no network"),
    ],
)
def test_arrays_of_another_shape_are_refused(shapes: Any, part: str) -> None:
    assert example().shaped({"w": (2, 3)})
    with pytest.raises(InvalidConfig, match=part):
        example().shaped(shapes)
