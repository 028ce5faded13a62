"""The generated inputs of the Spark benchmark: TPC-H tables and the files of the stream.

Everything is made once per size and kept in the cache directory; the same size gives the same
bytes.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.apps.tpch import TABLES
from benchmarks.processes import BenchmarkError

__all__ = ["stream_files", "tpch_tables"]

_GENERATE_TIMEOUT_S = 1_800.0


def tpch_tables(cache: Path, scale_factor: float) -> Path:
    """The directory of the eight tables as Parquet, made by ``tpchgen-cli``.

    Raises:
        BenchmarkError: ``tpchgen-cli`` is missing, failed, or left a table out.
    """
    target = cache / f"tpch-{scale_factor:g}"
    if all((target / f"{table}.parquet").exists() for table in TABLES):
        return target
    candidate = Path(sys.executable).parent / "tpchgen-cli"
    program = str(candidate) if candidate.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise BenchmarkError("no tpchgen-cli here; pip install 'hrm-spark[bench]'")
    partial = cache / f"tpch-{scale_factor:g}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    command = [program, "parquet", "-s", f"{scale_factor:g}", "-q", "--output-dir", str(partial)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GENERATE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"tpchgen-cli took more than {error.timeout:.0f} s") from error
    missing = [table for table in TABLES if not (partial / f"{table}.parquet").exists()]
    if done.returncode != 0 or missing:
        raise BenchmarkError(f"tpchgen-cli made no {', '.join(missing) or 'tables'}: {done.stderr}")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    return target


def stream_files(cache: Path, batches: int, rows: int, keys: int = 200, seed: int = 7) -> Path:
    """The directory of ``batches`` files with ``rows`` keys each, commoner ones among them."""
    target = cache / f"stream-{batches}x{rows}-{keys}-{seed}"
    if len(list(target.glob("*.txt"))) == batches:
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    generator = random.Random(seed)
    names = [f"key{number:03d}" for number in range(keys)]
    weights = [1 / (number + 1) for number in range(keys)]
    for batch in range(batches):
        chosen = generator.choices(names, weights, k=rows)
        path = target / f"{batch:04d}.txt"
        path.write_text("\n".join(chosen) + "\n")
        # Spark's file source takes the oldest first, and files of equal times in any order.
        moment_s = path.stat().st_mtime - 3600 + batch
        os.utime(path, (moment_s, moment_s))
    return target
