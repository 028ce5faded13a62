"""What every benchmark shares: common options, the machine, statistics, the results file.

Two systems are compared by interleaved runs (A B, B A, A B, …): other load on the machine affects
both alike, and neither always runs on warm caches. The reported value is the ratio of medians with
a bootstrap interval, because a ratio of two medians of five runs each is no more certain than that
interval.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

__all__ = [
    "CONSOLE",
    "REPOSITORY",
    "RESULTS_DIR",
    "Ratio",
    "add_common_arguments",
    "cache_dir",
    "command_line",
    "geometric_ratio",
    "interleaved",
    "loop_ms",
    "machine",
    "median",
    "note",
    "provenance",
    "ratio_of_medians",
    "speed",
    "table",
    "write_json",
    "write_results",
]

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS_DIR = Path(__file__).resolve().parent / "results"
CONSOLE = Console(stderr=True, highlight=False)
_RESAMPLES = 2_000
_FEW = 5
"""Fewer runs than this: drawing them again misses what lies beyond the least and the greatest."""
_LOOPS = 5


def note(text: str) -> None:
    """A line for the user, on stderr: stdout is for results."""
    CONSOLE.print(text, markup=False, soft_wrap=True)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark of the project has."""
    parser.add_argument(
        "--quick", action="store_true", help="a small version of a few minutes, for every change"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the numbers to FILE as one JSON object"
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=cache_dir(),
        metavar="DIR",
        help="where generated inputs are kept between runs (default: %(default)s)",
    )


def cache_dir() -> Path:
    """Where generated inputs are kept: ``$HRM_BENCH_CACHE``, else below the user's cache."""
    named = os.environ.get("HRM_BENCH_CACHE")
    return Path(named or "~/.cache/hrm-benchmarks").expanduser()


def command_line(module: str, arguments: Sequence[str] | None = None) -> str:
    """The command that started this process, in a form that can be typed again."""
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)])


def median(values: Sequence[float]) -> float:
    """Median of at least one value."""
    if not values:
        raise ValueError("the median of no values does not exist")
    return float(statistics.median(values))


def few(runs: int) -> str:
    """What a bootstrap over so few runs is worth, after "bootstrap intervals over 3 runs"."""
    return ", which cover less than 95 %" if runs < _FEW else " (95 %)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of times, ours over the peer's (below 1: ours is faster), with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def ratio_of_medians(ours: Sequence[float], peers: Sequence[float], seed: int = 0) -> Ratio:
    """``median(ours) / median(peers)`` with a percentile bootstrap interval.

    Both sides are resampled independently. The same values and seed give the same interval.
    """
    return geometric_ratio([(ours, peers)], seed)


def geometric_ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0
) -> Ratio:
    """Geometric mean over workloads of the ratio of medians, with a bootstrap interval.

    The geometric mean makes a workload twice as fast and another twice as slow cancel, however
    long either takes.
    """
    if not pairs or any(not ours or not peers for ours, peers in pairs):
        raise ValueError("a ratio needs at least one value on either side of every pair")

    def mean_ratio(samples: Iterator[tuple[Sequence[float], Sequence[float]]]) -> float:
        logarithms = [math.log(median(a) / median(b)) for a, b in samples]
        return math.exp(sum(logarithms) / len(logarithms))

    generator = random.Random(seed)
    resampled = sorted(
        mean_ratio(
            (generator.choices(a, k=len(a)), generator.choices(b, k=len(b))) for a, b in pairs
        )
        for _ in range(_RESAMPLES)
    )
    last = len(resampled) - 1
    return Ratio(
        value=mean_ratio(iter(pairs)),
        low=resampled[round(0.025 * last)],
        high=resampled[round(0.975 * last)],
    )


def interleaved(systems: Sequence[str], runs: int) -> list[tuple[int, str]]:
    """The order of runs: (run, system), every second round backwards: A B, B A, A B, …"""
    return [
        (run, system)
        for run in range(runs)
        for system in (systems if run % 2 == 0 else list(reversed(systems)))
    ]


def machine() -> dict[str, Any]:
    """The properties of the machine that affect times."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count() or 1,
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "kernel": f"{platform.system()} {platform.release()}",
        "load_1m": round(os.getloadavg()[0], 2),
        "loop_ms": round(loop_ms(), 1),
    }


def loop_ms() -> float:
    """How fast this machine is now: processor time of a fixed loop, the least of several.

    A virtual machine may have half its speed an hour later, which no figure above shows.
    """
    found = []
    for _ in range(_LOOPS):
        begun_s = time.thread_time()
        sums = dict.fromkeys(range(256), 0)
        for number in range(200_000):
            sums[number & 255] += number * number % 7
        found.append(1e3 * (time.thread_time() - begun_s))
    return min(found)


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, cwd=REPOSITORY
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def provenance(module: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Machine, versions, date and command, which accompany every number."""
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else "java"
    return {
        "command": command_line(module),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _first_line(["git", "rev-parse", "--short", "HEAD"]),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "java": _first_line([java, "-version"]),
            **{package: _version(package) for package in ("hrm-spark", "pyspark", *packages)},
        },
    }


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats get three digits, None a dash."""

    def cell(value: object) -> str:
        if value is None:
            return "-"
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    partial.replace(path)


def speed(about: Mapping[str, Any]) -> str:
    """Older results have none."""
    return f", loop {about['loop_ms']} ms" if "loop_ms" in about else ""


def write_results(name: str, title: str, document: Mapping[str, Any], body: str) -> list[Path]:
    """Write ``results/NAME.md`` and ``.json``: the numbers and their provenance."""
    where = document["provenance"]
    about = where["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in where["versions"].items())
    head = "\n".join(
        [
            f"# {title}",
            "",
            f"- Command: `{where['command']}`",
            f"- Date: {where['date']}, commit {where['commit']}",
            f"- Machine: {about['cpu']}, {about['cores']} cores, {about['memory_mib']} MiB, "
            f"{about['kernel']}, load {about['load_1m']} at the start{speed(about)}",
            f"- Versions: {versions}",
            "",
        ]
    )
    RESULTS_DIR.mkdir(parents=True, exist_ok=True)
    report = RESULTS_DIR / f"{name}.md"
    report.write_text(f"{head}\n{body.rstrip()}\n")
    numbers = RESULTS_DIR / f"{name}.json"
    write_json(numbers, document)
    return [report, numbers]
