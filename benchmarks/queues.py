"""What queues cost: decisions a second with 1,000 queues, as a part of those without.

    python -m benchmarks.queues                      # writes results/queues.*
    python -m benchmarks.queues --quick --json FILE  # a tenth of it

Both in one process and in turns, so that other load on the machine affects both; the ratio is of
neighbours, its median over the repetitions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.scheduling import queued

__all__ = ["main"]

_TARGET = 0.8


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queues", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of nodes and queues")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    return parser


def _measure(scale: int, repetitions: int) -> dict[str, Any]:
    nodes, apps, containers = 10_000 // scale, 1_000 // scale, 100_000 // scale
    pairs: list[tuple[queued.Sample, queued.Sample]] = []
    for repetition in range(repetitions):
        order = (True, False) if repetition % 2 else (False, True)
        found = {
            x: queued.measure(nodes, apps, containers, 2_000 // scale, with_queues=x) for x in order
        }
        pairs.append((found[True], found[False]))
        CONSOLE.print(f"repetition {repetition + 1}: with {found[True]}, without {found[False]}")
    document: dict[str, Any] = {
        "provenance": common.provenance("benchmarks.queues", ["numpy"]),
        "nodes": nodes,
        "queues": apps,
        "containers": containers,
    }
    for what in ("filling_per_s", "ends_per_s"):
        ratios = [getattr(one, what) / getattr(other, what) for one, other in pairs]
        document[what] = {
            "with": [getattr(one, what) for one, _ in pairs],
            "without": [getattr(other, what) for _, other in pairs],
            "ratio": median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }
    return document


def _body(document: dict[str, Any]) -> str:
    rows = [
        [
            title,
            f"{median(document[what]['without']):,.0f}",
            f"{median(document[what]['with']):,.0f}",
            f"{document[what]['ratio']:.2f} "
            f"[{document[what]['least']:.2f}, {document[what]['greatest']:.2f}]",
        ]
        for title, what in (
            ("containers placed on an empty cluster", "filling_per_s"),
            ("ends on a full one, each with the start that follows", "ends_per_s"),
        )
    ]
    header = ["per second of processor time", "without queues", "with", "ratio"]
    size = f"{document['nodes']:,} nodes, {document['queues']:,} queues"
    return (
        f"{size}, {document['containers']:,} containers on the empty cluster, twice what it holds "
        f"on the full one; one application a queue. Target: a ratio of {_TARGET}.\n\n"
        + common.table(header, rows)
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    document = _measure(10 if args.quick else 1, args.repetitions)
    body = _body(document)
    CONSOLE.print(body, markup=False)
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if not args.quick:
        common.write_results("queues", "What queues cost", document, body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
