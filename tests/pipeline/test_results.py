"""How results travel: what comes back equals what was returned, and is only read with a proof."""

from __future__ import annotations

import io
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.errors import HrmError, InvalidConfig, PermissionDenied
from hrm.pipelines import Pipeline
from hrm.pipelines.client import results
from hrm.pipelines.client.results import NotPlain, Seal, check_proof, decode, encode
from hrm.pipelines.core.model import ResultFormat

AUTO, PICKLE = ResultFormat.AUTO, ResultFormat.PICKLE
JSON, ARROW = ResultFormat.JSON, ResultFormat.ARROW
KEY = b"k" * 32


def sealed(value: Any, wanted: ResultFormat = AUTO) -> tuple[ResultFormat, bytes, bytes]:
    """A worker's output for a value, with the key: format, bytes, proof."""
    file = io.BytesIO()
    seal = Seal(file, KEY, "task-1", 7)
    kind = encode(value, wanted, seal)
    return kind, file.getvalue(), seal.proof(kind)


def check(data: bytes, proof: bytes, **changed: Any) -> None:
    about = {"key": KEY, "task_id": "task-1", "placement": 7, "kind": PICKLE, "node": "n1"}
    check_proof(data, proof, **{**about, **changed})


def returned(value: Any, wanted: ResultFormat = AUTO) -> tuple[ResultFormat, Any]:
    kind, data, proof = sealed(value, wanted)
    check(data, proof, kind=kind)
    return kind, decode(data, kind, wanted=wanted, task_id="task-1")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
others = st.binary() | st.tuples(st.integers()) | st.complex_numbers() | st.sets(st.integers())


def same(one: Any, two: Any) -> bool:
    """Equal, with equal types, and NaN equal to itself."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two) if isinstance(one, float | complex) else bool(one == two)


@given(value=plain | others | st.lists(others, min_size=1, max_size=3))
def test_what_comes_back_is_what_was_returned(value: Any) -> None:
    _, back = returned(value)
    assert same(back, value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"boxes": [[1, 2.5]], "label": "cat", "more": None, "ok": True}, JSON),
        ("surrogate \udcff", JSON),
        ((1, 2), PICKLE),
        ({1: 2}, PICKLE),
        (math.nan, PICKLE),
        (np.float64(1.5), PICKLE),
        (1 << 20_000, PICKLE),
        ([0] * (results.PLAIN_ITEMS_MAX + 1), PICKLE),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_worker_takes_json_where_it_loses_nothing(value: Any, kind: ResultFormat) -> None:
    assert returned(value)[0] is kind
    assert same(returned(value)[1], value)


def test_what_holds_itself_is_no_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    kind, back = returned(loop)
    assert kind is PICKLE and back[0] is back


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_are_proved_as_they_lie(order: Any) -> None:
    array = np.asarray(np.arange(300_000.0).reshape(300, 1000), order=order)
    kind, back = returned({"array": array})
    assert kind is PICKLE
    np.testing.assert_array_equal(back["array"], array)


def test_tables_and_arrays_travel_as_arrow() -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    batch = table.to_batches()[0]
    frame = pd.DataFrame({"a": [1.5, 2.5]}, index=["x", "y"])
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert returned(table) == (ARROW, table)
    assert returned(batch) == (ARROW, batch)
    assert returned(table["b"], ARROW)[1].equals(table["b"])
    assert returned(batch["a"], ARROW)[1].equals(batch["a"])
    pd.testing.assert_frame_equal(returned(frame, ARROW)[1], frame)
    kind, back = returned(array, ARROW)
    assert kind is ARROW and back.dtype == np.int16
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("value", "wanted", "words"),
    [
        ({"a": (1, 2)}, JSON, "what it returned['a'] is tuple: return None, bool"),
        ([math.inf], JSON, "what it returned[0] is inf, which JSON does not have"),
        ({1: 2}, JSON, "a key of what it returned is int, not str"),
        (np.float32(1), JSON, "is numpy.float32"),
        ([1], ARROW, "it returned list: return a pyarrow Table"),
        (np.array([object()]), ARROW, "cannot hold this numpy.ndarray"),
    ],
)
def test_what_does_not_fit_the_format_states_where(
    value: Any, wanted: ResultFormat, words: str
) -> None:
    with pytest.raises(NotPlain) as caught:
        sealed(value, wanted)
    assert words in str(caught.value)


def test_without_pyarrow_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidConfig, match="needs pyarrow on the node: pip install"):
        sealed(np.arange(3), ARROW)


def test_a_pyarrow_that_runs_code_of_its_data_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, data, _ = sealed(pa.table({"a": [1]}))
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(InvalidConfig, match=r"pyarrow 14\.0\.0 here may run code"):
        decode(data, ARROW, wanted=AUTO, task_id="t")


# --- what lies --------------------------------------------------------------------------------


class Bomb:
    """Its pickle creates a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "changed",
    [{"key": b"x" * 32}, {"task_id": "task-2"}, {"placement": 8}, {"kind": JSON}, {"data": b"."}],
    ids=lambda one: next(iter(one)),
)
def test_a_proof_is_of_one_task_one_placement_one_format_and_these_bytes(
    changed: dict[str, Any],
) -> None:
    kind, data, proof = sealed((1, 2))
    assert kind is PICKLE
    check(data, proof)
    with pytest.raises(PermissionDenied, match=r"task-\d from node n1 is not what a worker.*drain"):
        check(changed.pop("data", data), proof, **changed)


def test_ids_and_numbers_do_not_run_into_each_other() -> None:
    file = io.BytesIO()
    one, two = Seal(file, KEY, "task-1", 11), Seal(file, KEY, "task-11", 1)
    assert one.proof(JSON) != two.proof(JSON)


def test_without_a_proof_nothing_is_read() -> None:
    with pytest.raises(PermissionDenied, match=r"task-1 from node n1 has no proof.*older"):
        check(b"anything", b"")


@pytest.mark.parametrize("wanted", [JSON, ARROW])
def test_one_that_asked_for_data_reads_no_pickle_even_with_a_proof(
    tmp_path: Path, wanted: ResultFormat
) -> None:
    data = pickle.dumps(Bomb(tmp_path / "read"))
    with pytest.raises(PermissionDenied, match="came as pickle, and"):
        decode(data, PICKLE, wanted=wanted, task_id="t")
    with pytest.raises(HrmError, match="does not state its format"):
        decode(data, AUTO, wanted=AUTO, task_id="t")
    assert not (tmp_path / "read").exists()


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"\xff", b"table\nnothing", b"what\n"])
def test_damaged_data_is_an_error_of_ours(data: bytes) -> None:
    for kind in (JSON, ARROW):
        with pytest.raises(HrmError, match="the result of task t is no"):
            decode(data, kind, wanted=kind, task_id="t")


def test_a_format_that_is_none_is_refused_where_it_is_written() -> None:
    assert Pipeline("p", result_format="json").result_format is JSON
    with pytest.raises(InvalidConfig, match="result_format is 'xml'; it may be auto, pickle, json"):
        Pipeline("p", result_format="xml")
