"""Compares this tree with an older revision of it: the same benchmark, run in turns.

    python -m benchmarks.revisions 761b13a --benchmark scheduler --runs 5
    python -m benchmarks.revisions v1.0 --benchmark spark --runs 3 -- --only wordcount,sort

Both sides are copies of a commit (``git archive``), in a temporary directory, compiled as an
installation compiles them, run with this environment's packages and ``--quick --json``; what
follows ``--`` goes to the benchmark. Runs
alternate (A B, B A, …), so other load affects both alike. For each number that both sides print,
the ratio of medians is reported, new over old, with a bootstrap interval. Rates are better above 1,
times below; a name that implies neither (``conflicts``) is left to the reader.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import note
from benchmarks.processes import MARK, BenchmarkError, in_directory, new_mark, start, sweep, tail

__all__ = ["compare", "main", "numbers"]

_RUN_TIMEOUT_S = 1_800.0
_RATE = re.compile(r"_per_(\w+_)?(s|min)$")
_TIME = re.compile(r"(^|_)(s|ms|us|mib)(_|$)|^ratio_|_ratio$|^growth_")


def numbers(document: Mapping[str, Any]) -> dict[str, float]:
    """The positive numbers of a benchmark's JSON, by key, without those in lists and objects."""
    return {
        key: float(value)
        for key, value in document.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }


def compare(
    new: Sequence[Mapping[str, float]], old: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """By key that every run of both sides has: medians, their ratio (new over old) and which
    direction is better (``more``, ``less`` or None)."""
    keys = set.intersection(*(set(run) for run in (*new, *old)))
    rows: dict[str, dict[str, Any]] = {}
    for key in sorted(keys):
        ours, theirs = [run[key] for run in new], [run[key] for run in old]
        if len({*ours, *theirs}) == 1:
            continue  # a parameter, not a measurement
        better = "more" if _RATE.search(key) else "less" if _TIME.search(key) else None
        rows[key] = {
            "new": common.median(ours),
            "old": common.median(theirs),
            "ratio": common.ratio_of_medians(ours, theirs).as_json(),
            "better": better,
        }
    return rows


def _unpack(revision: str, directory: Path) -> str:
    """Copy the files of ``revision`` to ``directory``, compiled; returns its commit's short name.

    Where PYTHONDONTWRITEBYTECODE is set, each process of an uncompiled tree would compile what it
    imports, and the larger tree would look slower.

    Raises:
        BenchmarkError: git does not know the revision.
    """
    named = subprocess.run(
        ["git", "rev-parse", "--short", "--verify", f"{revision}^{{commit}}"],
        cwd=common.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if named.returncode:
        raise BenchmarkError(f"git knows no revision {revision}; see git log --oneline")
    directory.mkdir(parents=True)
    archive = directory.with_suffix(".tar")
    for command in (
        ["git", "archive", "--output", str(archive), named.stdout.strip()],
        ["tar", "--extract", "--file", str(archive), "--directory", str(directory)],
        [sys.executable, "-m", "compileall", "-q", str(directory / "hrm")],
        [sys.executable, "-m", "compileall", "-q", str(directory / "benchmarks")],
    ):
        subprocess.run(command, cwd=common.REPOSITORY, timeout=120, check=True)
    archive.unlink()
    return named.stdout.strip()


def _run_once(tree: Path, benchmark: str, extra: Sequence[str], result: Path) -> dict[str, float]:
    mark = new_mark()
    log = result.with_suffix(".log")
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(tree)}
    module = f"benchmarks.{benchmark}"
    command = [sys.executable, "-m", module, "--quick", "--json", str(result), *extra]
    process = start(command, log=log, environment=environment, directory=tree)
    try:
        status = process.wait(_RUN_TIMEOUT_S)
    finally:
        process.end()
        sweep(mark)
    if status or not result.exists():
        raise BenchmarkError(f"{module} of {tree.name} ended with {status}:\n{tail(log)}")
    return numbers(json.loads(result.read_text()))


def _measure(arguments: argparse.Namespace, directory: Path) -> int:
    commits = {
        side: _unpack(revision, directory / side)
        for side, revision in (("new", "HEAD"), ("old", arguments.revision))
    }
    runs: dict[str, list[dict[str, float]]] = {"new": [], "old": []}
    for run, side in common.interleaved(("old", "new"), arguments.runs):
        note(f"run {run + 1} of {arguments.runs}: {side} ({commits[side]})")
        result = directory / f"{side}-{run}.json"
        runs[side].append(_run_once(directory / side, arguments.benchmark, arguments.extra, result))
    rows = compare(runs["new"], runs["old"])
    body = common.table(
        ["number", "new", "old", "new over old", "low", "high", "better"],
        [
            [key, row["new"], row["old"], *row["ratio"].values(), row["better"]]
            for key, row in rows.items()
        ],
    )
    document = {
        "benchmark": f"revisions-{arguments.benchmark}",
        "provenance": common.provenance("benchmarks.revisions"),
        "commits": commits,
        "runs": arguments.runs,
        "numbers": rows,
    }
    print(body)
    if arguments.json is not None:
        common.write_json(arguments.json, document)
    else:
        title = f"benchmarks.{arguments.benchmark}: {commits['new']} against {commits['old']}"
        for path in common.write_results(document["benchmark"], title, document, body):
            note(f"wrote {path}")
    return 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    own, extra = list(arguments), []
    if "--" in own:
        at = own.index("--")
        own, extra = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.revisions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("revision", help="the older commit, branch or tag")
    parser.add_argument(
        "--benchmark", choices=("scheduler", "spark"), default="scheduler", help="which one"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write to FILE, not to results/")
    parser.add_argument("--keep", action="store_true", help="keep both trees and the logs")
    parsed = parser.parse_args(own)
    if parsed.runs < 1:
        parser.error(f"--runs {parsed.runs}: at least one of each side")
    parsed.extra = extra
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    return in_directory(
        "hrm-revisions-", lambda directory: _measure(parsed, directory), keep=parsed.keep
    )


if __name__ == "__main__":
    sys.exit(main())
