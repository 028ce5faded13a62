"""Public programs that use Spark, each on Spark's local mode and on a cluster of HRM.

    python -m benchmarks.clients                          # all; writes results/clients.md and .json
    python -m benchmarks.clients --quick --json FILE      # Airflow, Spark Connect, Jupyter
    python -m benchmarks.clients --only 'dbt*'            # some; their rows replace older ones

A client is what PyPI has, unchanged, in an environment of its own. It runs on ``local[2]`` first,
and what it finds there is what it must find on HRM, where the master must have an application of it
with an executor. A client that fails on ``local[2]`` as well is no fault of HRM, one that cannot be
installed is a row with the reason. Status 1: something fails on HRM alone. Environments (some 6
GiB) are kept in the cache directory and can be removed; each row names the commit of its run.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.clients import table
from benchmarks.clients.checks import CHECKS, Check
from benchmarks.clients.environments import Environment, Missing, prepare, versions
from benchmarks.clients.places import Place
from benchmarks.clients.systems import SHAPE, ClientsHrm, local
from benchmarks.clients.table import Row
from benchmarks.clusters import Cluster
from benchmarks.common import RESULTS_DIR, note
from benchmarks.processes import BenchmarkError, in_directory

__all__ = ["main"]


def attempt(
    check: Check, cluster: Cluster, environment: Environment, directory: Path
) -> tuple[dict[str, Any] | None, float, str]:
    """A client's answer on one system (None: it failed), its seconds, and the reason."""
    work = directory / cluster.name / check.name.replace(", ", "-").replace(" ", "-")
    work.mkdir(parents=True)
    place = Place(cluster=cluster, environment=environment, directory=work)
    began_s = time.monotonic()
    try:
        with cluster.witnessed() if isinstance(cluster, ClientsHrm) else nullcontext():
            answer = check.answer(place)
    except (BenchmarkError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        note(f"  {cluster.name}: {error}")
        return None, time.monotonic() - began_s, reason(str(error))
    return answer, time.monotonic() - began_s, ""


def reason(message: str) -> str:
    """The most informative line of a failure."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [x for x in lines if "Error" in x or "Exception" in x or x.startswith("HRM:")]
    return (errors or lines or ["no reason"])[-1][:160]


def run(check: Check, without: Cluster, hrm: ClientsHrm, options: argparse.Namespace) -> Row:
    """The row of one check."""
    version = versions(check.packages.name).get(check.shows, "-")
    try:
        environment = prepare(check.packages, options.cache_dir)
    except Missing as error:
        return Row(check=check.name, version=version, result=table.MISSING, note=str(error))
    directory = without.directory.parent / "runs"
    expected, seconds_local, why_local = attempt(check, without, environment, directory)
    found, seconds_hrm, why_hrm = attempt(check, hrm, environment, directory)
    return Row(
        check=check.name,
        version=version,
        result=table.verdict(expected, found),
        local=None if expected is None else json.dumps(expected),
        hrm=None if found is None else json.dumps(found),
        seconds_local=seconds_local,
        seconds_hrm=seconds_hrm,
        needed=check.needed,
        note=why_hrm or why_local,
    )


def known(name: str) -> list[Row]:
    """Rows of earlier runs."""
    path = RESULTS_DIR / f"{name}.json"
    return [Row(**x) for x in json.loads(path.read_text())["rows"]] if path.exists() else []


def wanted(options: argparse.Namespace) -> list[Check]:
    """The checks that the command line selects."""
    only = options.only or ["*"]
    named = [c for c in CHECKS if any(fnmatch.fnmatch(c.name.lower(), x.lower()) for x in only)]
    return [c for c in named if c.quick] if options.quick and not options.only else named


def benchmark(options: argparse.Namespace, directory: Path) -> int:
    """Run the checks one after the other, and write after each."""
    document: dict[str, Any] = {"provenance": common.provenance("benchmarks.clients")}
    stamp = {key: document["provenance"][key] for key in ("commit", "date")}
    rows = [] if options.quick else known(options.name)
    mine: list[Row] = []
    with (
        local(directory / "local") as without,
        ClientsHrm(SHAPE, directory / "hrm") as hrm,
    ):
        for check in wanted(options):
            note(f"{check.name} …")
            row = run(check, without, hrm, options)
            mine.append(Row(**{**asdict(row), **stamp}))
            note(f"{check.name}: {row.result} {row.note}")
            rows = table.merged(rows, mine, [c.name for c in CHECKS])
            document |= _figures(mine, rows)
            if not options.quick:
                title = "Clients of Spark on HRM"
                common.write_results(options.name, title, document, _report(rows))
    if options.json:
        common.write_json(options.json, document)
    print(_report(mine))
    return int(any(row.result == table.FAILED for row in mine))


def _report(rows: Sequence[Row]) -> str:
    return table.report(rows, [check.name for check in CHECKS])


def _figures(mine: Sequence[Row], rows: Sequence[Row]) -> dict[str, Any]:
    kinds = {"equal": table.PASSED, "failed": table.FAILED, "not_installed": table.MISSING}
    counts = {name: sum(row.result == kind for row in mine) for name, kind in kinds.items()}
    return {"benchmark": "clients", **counts, "rows": [asdict(row) for row in rows]}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="of names, such as 'dbt*' (again: or)"
    )
    parser.add_argument("--name", default="clients", help="of the results")
    parser.add_argument("--keep", action="store_true", help="keep logs")
    options = parser.parse_args(arguments)
    if not wanted(options):
        names = ", ".join(check.name for check in CHECKS)
        parser.error(f"--only selects none of: {names}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected clients; 1 if one of them fails on HRM alone."""
    options = parse_arguments(arguments)
    return in_directory(
        "hrm-clients-", lambda directory: benchmark(options, directory), keep=options.keep
    )


if __name__ == "__main__":
    sys.exit(main())
