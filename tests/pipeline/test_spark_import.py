"""What an executor's worker imports when queries bring other versions of one module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hrm.pipelines.client.spark import _import

CODE = """
from hrm.pipelines import Pipeline
from hrm_brought.help import FACTOR
p = Pipeline("p")

@p.subtask()
def times(value):
    return value * FACTOR
"""


def _files(factor: int) -> tuple[tuple[str, bytes], ...]:
    return (
        ("hrm_brought/__init__.py", b""),
        ("hrm_brought/help.py", b"FACTOR = %d" % factor),
        ("hrm_brought/main.py", CODE.encode()),
    )


def test_each_query_gets_the_code_that_it_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        for factor in (2, 3, 2):
            pipeline = _import("hrm_brought.main:p", _files(factor))
            assert pipeline.run_here(10) == 10 * factor
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        for name in [one for one in sys.modules if one.startswith("hrm_brought")]:
            del sys.modules[name]
