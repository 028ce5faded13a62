"""``python -m benchmarks.pipelines``: run a pipeline here, profile all, or try a real cluster."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.pipelines import PIPELINES, cluster, profile, rollout
from hrm.errors import HrmError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run a pipeline in this process, with times")
    one.add_argument("name", choices=list(PIPELINES))
    one.add_argument("--size-mb", type=float, default=20.0, help="of raw frames (%(default)s)")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--input", metavar="PATH", help="a video, or a folder of images; no generator")
    every = commands.add_parser("profile", help="measure every subtask alone")
    every.add_argument(
        "--json", type=Path, default=profile.PROFILES, metavar="FILE", help="(%(default)s)"
    )
    every.add_argument(
        "--sizes-mb",
        type=lambda text: tuple(float(part) for part in text.split(",")),
        default=profile.SIZES_MB,
        metavar="A,B,…",
        help="ascending, at least two of them at most 20",
    )
    every.add_argument(
        "--measured-mb",
        type=float,
        default=math.inf,
        metavar="MB",
        help="run no larger sizes: extrapolate them, which the file then says",
    )
    every.add_argument(
        "--only",
        nargs="+",
        choices=list(PIPELINES),
        metavar="NAME",
        help="measure these, and keep the other rows that the file has",
    )
    every.add_argument("--seed", type=int, default=0)
    text = "many tasks on a master and two agents, for every pair of policies; one agent dies"
    cluster.add_arguments(commands.add_parser("cluster", help=text))
    text = "a learned policy from shadow to on, on a master and agents"
    rollout.add_arguments(commands.add_parser("rollout", help=text))
    return parser


def _run(options: argparse.Namespace) -> None:
    value = options.input or profile.input_of(options.name, options.size_mb, options.seed)
    result, times = profile.run(options.name, value)
    rows = [[name, one.cpu_s, one.wall_s, round(one.memory_mib)] for name, one in times]
    sys.stdout.write(common.table(["subtask", "CPU, s", "wall, s", "memory, MiB"], rows) + "\n")
    for name, found in result.summary().items():
        sys.stdout.write(f"{name}: {found}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    options = _parser().parse_args(arguments)
    try:
        if options.command == "run":
            _run(options)
        elif options.command == "cluster":
            return cluster.main(options)
        elif options.command == "rollout":
            return rollout.main(options)
        else:
            only = options.only or tuple(PIPELINES)
            document = profile.profile(
                options.sizes_mb,
                seed=options.seed,
                only=only,
                measured_mb=options.measured_mb,
            )
            if options.only and options.json.exists():
                document = profile.merged(json.loads(options.json.read_text()), document)
            common.write_json(options.json, document)
            CONSOLE.print(f"written to {options.json}")
    except HrmError as error:
        CONSOLE.print(f"error: {error}", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
