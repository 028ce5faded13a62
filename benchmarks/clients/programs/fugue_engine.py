"""Fugue's published tests of engines, all of them, on its engine for Spark: ``fugue_engine.py``.

Fugue's backend names its master itself, so the settings of the benchmark go into the configuration
that its plugin for pytest reads.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

_MODULE = """\
import fugue.test as ft
from fugue_spark import SparkExecutionEngine
from fugue_test.execution_suite import ExecutionEngineTests


@ft.fugue_test_suite("spark", mark_test=True)
class TestSparkEngine(ExecutionEngineTests.Tests):
    def make_engine(self):
        return SparkExecutionEngine(self.context.session)
"""


class Outcomes:
    """A plugin that keeps the outcome of every test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of its call, or of a setup that failed."""
        if report.when == "call" or report.failed:
            name = report.nodeid.rpartition("::")[2]
            self.found[name] = report.outcome


def main() -> None:
    """Run them, and count."""
    words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
    given = [words[i + 1] for i, word in enumerate(words) if word == "--conf"]
    lines = [f"spark.master={words[words.index('--master') + 1]}", *given]
    text = "".join(f"    {line}\n" for line in lines if "extraJavaOptions" not in line)
    Path("pytest.ini").write_text(f"[pytest]\nfugue_test_conf =\n{text}")
    Path("test_engine.py").write_text(_MODULE)
    outcomes = Outcomes()
    pytest.main(["-q", "test_engine.py"], plugins=[outcomes])
    found = outcomes.found
    if not found:
        raise SystemExit("no test ran")
    failed = sorted(name for name, outcome in found.items() if outcome == "failed")
    print(json.dumps({"tests": len(found), "failed": failed}))


if __name__ == "__main__":
    main()
