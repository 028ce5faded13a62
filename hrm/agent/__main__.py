"""``python -m hrm.agent``: an agent without the command-line interface around it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from hrm.agent.daemon import run
from hrm.config import AgentSettings, load
from hrm.errors import HrmError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hrm.agent",
        description="Offer this machine to an HRM master. Every flag has a variable HRM_AGENT_*.",
    )
    parser.add_argument("--master", metavar="HOST:PORT")
    parser.add_argument("--name", help="name of this node; default: the host's")
    parser.add_argument("--host", help="address that others reach this machine at")
    parser.add_argument("--port", type=int, help="port for logs (gRPC)")
    parser.add_argument("--log-port", type=int, help="port of the log pages")
    parser.add_argument("--work-dir", type=Path)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--cores", type=int, help="vcores to offer")
    parser.add_argument("--memory-mib", type=int, help="memory to offer")
    parser.add_argument("--run-limit", type=int, help="containers that may run at once")
    parser.add_argument("--isolation", choices=("auto", "cgroup2", "cgroup1", "none"))
    parser.add_argument("--cpu-limit", choices=("shares", "quota"))
    parser.add_argument("--spark-home", type=Path)
    parser.add_argument("--java-home", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent with the flags ``argv``; the exit status."""
    flags = vars(_parser().parse_args(argv))
    try:
        settings = load(AgentSettings, **flags)
    except HrmError as error:
        print(f"hrm agent: {error.message}", file=sys.stderr)
        return 2
    return asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
