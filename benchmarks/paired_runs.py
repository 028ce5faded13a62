"""Runs of several policies on the same seeds: kept on disk, compared in pairs, judged together.

All policies get the same arrivals, so the difference of two on one seed is a sample of its own;
what the seeds have in common cancels. Several scenarios are several chances for a lucky result:
Holm's procedure raises each p value for that.

``run_kept`` writes what each job has found as soon as it is over, as lines of JSON, and goes on
from there when it is called again: an interrupted command continues. ``version_of`` is for the keys
of jobs, so that runs of another version of the code are not taken for those of this one.

Source of the ship rule: LDWP + IAWP, section 6.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.simulation.figures import Interval, interval

__all__ = ["Paired", "holm", "paired", "run_kept", "ship", "version_of"]

J = TypeVar("J")
R = TypeVar("R")

SHIP_WINS, SHIP_OF = 8, 10
SHIP_WORST = -0.02


@dataclass(frozen=True, slots=True)
class Paired:
    """Relative difference of ours to theirs, its 95 % interval, and the two-sided p value."""

    difference: Interval
    p: float

    def as_json(self) -> dict[str, float]:
        return {**self.difference.as_json(), "p": self.p}


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired:
    """(ours - theirs) over the mean of theirs, by seed. Values of both, by seed.

    If theirs are all 0, nothing can be concluded: 0, with p = 1.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    base = statistics.fmean(theirs[seed] for seed in seeds)
    if base == 0.0:
        return Paired(Interval(0.0, 0.0, 0.0, len(seeds)), 1.0)
    differences = [(ours[seed] - theirs[seed]) / base for seed in seeds]
    found = interval(differences)
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    if spread == 0.0:
        return Paired(found, 0.0 if found.mean and len(differences) > 1 else 1.0)
    from scipy.stats import t

    value = abs(found.mean) / (spread / math.sqrt(len(differences)))
    return Paired(found, float(2.0 * t.sf(value, len(differences) - 1)))


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted for multiple comparisons, in the order given."""
    order = sorted(range(len(values)), key=lambda one: values[one])
    adjusted, least = [1.0] * len(values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = least
    return adjusted


def ship(found: Sequence[Paired]) -> tuple[bool, int, int]:
    """Whether it may become the default: (yes, scenarios won, scenarios lost by more than 2 %).

    Won: the interval lies above 0. Lost: it lies below -2 % in part, so that such a loss cannot be
    ruled out, and its mean is a loss.
    """
    won = sum(one.difference.low > 0.0 for one in found)
    lost = sum(one.difference.low < SHIP_WORST and one.difference.mean < 0.0 for one in found)
    return won >= SHIP_WINS * len(found) / SHIP_OF and not lost, won, lost


@functools.cache
def version_of(*paths: Path) -> str:
    """16 hexadecimal digits that change with the files at ``paths``: code, tables and models, those
    below a directory too. Compiled code and what is hidden do not count."""
    digest = hashlib.sha256()
    for number, path in enumerate(paths):
        below = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for one in below:
            name = one.relative_to(path).as_posix()
            if "__pycache__" in name or any(part.startswith(".") for part in name.split("/")[:-1]):
                continue
            content = one.read_bytes()
            digest.update(f"{number} {name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def run_kept(
    jobs: Sequence[J],
    do: Callable[[J], R],
    *,
    key: Callable[[J], str],
    dump: Callable[[R], Any],
    load: Callable[[Any], R],
    processes: int,
    kept: Path | None = None,
) -> Iterator[R]:
    """What ``do`` finds for each job, in their order. ``processes`` 1: in this one.

    ``kept``: the file of lines; ``key``: of a job there, with all that its result depends on;
    ``dump``, ``load``: a result as JSON.
    """
    held = {} if kept is None else _lines(kept)
    left = [job for job in jobs if key(job) not in held]
    made = iter(_each(left, do, processes))
    for job in jobs:
        if key(job) in held:
            yield load(held[key(job)])
            continue
        found = next(made)
        if kept is not None:
            _append(kept, {"job": key(job), "found": dump(found)})
        yield found


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("ab+") as file:
        # A truncated line must not corrupt this one.
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        truncated = file.read(1) not in (b"", b"\n")
        file.write((b"\n" if truncated else b"") + json.dumps(line).encode() + b"\n")


def _lines(path: Path) -> dict[str, Any]:
    """By job; a truncated line is ignored."""
    found: dict[str, Any] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
            found[line["job"]] = line["found"]
        except (ValueError, KeyError):
            continue
    return found


def _each(jobs: Sequence[J], do: Callable[[J], R], processes: int) -> Iterable[R]:
    if processes <= 1:
        yield from map(do, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(do, jobs)
