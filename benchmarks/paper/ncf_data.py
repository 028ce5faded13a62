"""Measured interference and subtask profiles, read into tables for ``benchmarks.paper.ncf``.

``read_igniter``: a folder with ``v100_profile_and_interference.jsonl(.gz)``, the measurements of
the iGniter project (Xu et al., TPDS 2022): inference of four networks on a V100 under NVIDIA MPS
with fixed shares of its processors; one JSON object a line, merged by its first key::

    {MODEL: {"latency" | "l2cache" | "dram": {BATCH: {SHARE: value}}}}     ms, %, %
    {"interference": {"latency": [[model1, model2, batch1, batch2, share, latency1, latency2]]}}

The first of a pair has ``share`` percent of the processors, the second the rest. A slow-down is the
latency in the pair over the latency alone at the same batch and share.

``read_profiles``: the subtask profiles of ``benchmarks/pipelines``. What is ill-formed is skipped
and listed in ``problems``.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Row, size_bucket
from hrm.pipelines.policies.corun.metrics import METRICS, scaled_size, scaled_speedup
from hrm.pipelines.policies.corun.predictors import Floats

__all__ = ["SHARES", "Measured", "Pair", "read_igniter", "read_profiles"]

SHARES = (20, 40, 50, 60, 80)
_LARGEST_BATCH = 32
_FILE = "v100_profile_and_interference.jsonl"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two that ran concurrently. ``first`` and ``second`` are rows of the table."""

    first: int
    second: int
    share: int
    slowdown_first: float
    slowdown_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A complete table of metrics, and the effect of pairs of its rows on each other.

    ``table`` (rows, columns), each 0..1, the last column the input's size; ``applications``: of
    each row.
    """

    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, int], ...]
    table: Floats
    applications: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Raw:
    values: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    pairs: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_igniter(folder: Path) -> Measured:
    """The table and the pairs of ``folder``.

    Raises:
        InvalidRequest: the file does not exist, or nothing in it can be used.
    """
    raw = _Raw()
    for number, line in _lines(folder):
        try:
            _merge(raw, json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raw.problems.append(f"line {number}: {type(error).__name__}: {error}")
    rows, cells = [], []
    for model in sorted(raw.values):
        batches = raw.values[model].get("l2cache", {})
        for batch in sorted(int(key) for key in batches if key.isdigit()):
            row = _row(raw, model, batch)
            if row is not None:
                rows.append((model, batch))
                cells.append(row)
    if len({model for model, _ in rows}) < 3:
        raise InvalidRequest(
            f"{folder / _FILE} has {len(rows)} usable rows of {len({m for m, _ in rows})} models; "
            f"at least 3 models are needed. {'; '.join(raw.problems[:3])}"
        )
    columns = (*(f"l2 {s} %" for s in SHARES), *(f"dram {s} %" for s in SHARES), "size")
    index = {row: number for number, row in enumerate(rows)}
    pairs = tuple(_pairs(raw, index))
    return Measured(
        source="iGniter, V100, MPS",
        columns=columns,
        rows=tuple(rows),
        table=np.array(cells),
        applications=tuple(model for model, _ in rows),
        pairs=pairs,
        problems=tuple(raw.problems),
    )


def _lines(folder: Path) -> Iterator[tuple[int, str]]:
    for path in (folder / _FILE, folder / f"{_FILE}.gz"):
        if path.exists():
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            lines = text.decode().splitlines()
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
            return
    raise InvalidRequest(f"{folder} has no {_FILE} or {_FILE}.gz; name its folder with --data")


def _merge(raw: _Raw, entry: dict[str, Any]) -> None:
    for key, value in entry.items():
        if key == "interference":
            raw.pairs += value.get("latency", [])
        else:
            for metric, batches in value.items():
                raw.values.setdefault(key, {}).setdefault(metric, {}).update(batches)


def _row(raw: _Raw, model: str, batch: int) -> list[float] | None:
    """Its cells, in the order of the columns; None, and a problem, if one is missing."""
    cells = []
    for metric in ("l2cache", "dram"):
        for share in SHARES:
            value = _number(raw, model, metric, batch, share)
            if value is None or not 0 <= value <= 100:
                raw.problems.append(f"{model}, batch {batch}: {metric} at {share} % is {value}")
                return None
            cells.append(value / 100)
    return [*cells, math.log1p(batch) / math.log1p(_LARGEST_BATCH)]


def _number(raw: _Raw, model: str, metric: str, batch: int, share: int) -> float | None:
    value = raw.values.get(model, {}).get(metric, {}).get(str(batch), {}).get(str(share))
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _pairs(raw: _Raw, index: dict[tuple[str, int], int]) -> Iterator[Pair]:
    for entry in raw.pairs:
        try:
            one, other, batch_one, batch_other, share, latency_one, latency_other = entry
            alone_one = _number(raw, one, "latency", batch_one, share)
            alone_other = _number(raw, other, "latency", batch_other, 100 - share)
            if alone_one is None or alone_other is None:
                raise ValueError("there is no latency of one of them alone")
            pair = Pair(
                index[one, batch_one],
                index[other, batch_other],
                int(share),
                float(latency_one) / alone_one,
                float(latency_other) / alone_other,
            )
            if not (math.isfinite(pair.slowdown_first) and math.isfinite(pair.slowdown_second)):
                raise ValueError("a slow-down is not finite")
        except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
            raw.problems.append(f"pair {entry!r}: {type(error).__name__}: {error}")
            continue
        yield pair


def read_profiles(path: Path) -> Measured:
    """The subtask profiles as rows (kind, bucket), in the columns of the estimates.

    Only rows with a CPU and a GPU version: of the others too few cells apply. There are no pairs.

    Raises:
        InvalidRequest: the file cannot be read, or has no usable row.
    """
    try:
        document = json.loads(path.read_text())
        entries = list(document["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} holds no subtask profiles: {type(error).__name__}: {error}"
        ) from error
    found: dict[tuple[str, int], list[float]] = {}
    problems = []
    for number, entry in enumerate(entries):
        try:
            if not (entry["gpu_features"] and entry["gpu_s"] and entry["cpu_s"]):
                continue
            row = Row(str(entry["kind"]), size_bucket(float(entry["size_mb"])), "")
            found[row.kind, row.bucket] = _profile(entry)
        except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
            problems.append(f"row {number}: {type(error).__name__}: {error}")
    if not found:
        raise InvalidRequest(f"{path} has no row with both versions. {'; '.join(problems[:3])}")
    rows = tuple(sorted(found))
    columns = [name for name in METRICS if name not in ("memory", "gpu_memory", "size")]
    return Measured(
        source=f"subtask profiles (GPU figures: {document.get('gpu', {}).get('source', '?')})",
        columns=(*columns, "size"),
        rows=rows,
        table=np.array([found[row] for row in rows]),
        applications=tuple(kind for kind, _ in rows),
        problems=tuple(problems),
    )


def _profile(entry: dict[str, Any]) -> list[float]:
    features = entry["gpu_features"]
    speedup = float(np.median(entry["cpu_s"])) / float(np.median(entry["gpu_s"]))
    names = ("sm", "l1", "l2", "tex", "dram", "load", "store")
    cells = [
        float(entry["cpu_share"]),
        *(float(features[name]) for name in names),
        scaled_speedup(speedup),
        scaled_size(float(entry["size_mb"])),
    ]
    if not np.isfinite(cells).all():
        raise ValueError("a cell is not finite")
    return [min(1.0, max(0.0, cell)) for cell in cells]
