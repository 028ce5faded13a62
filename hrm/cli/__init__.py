"""The command line: ``hrm``.

Every command is a small function that queries, waits with a bound, and prints: data to stdout, the
rest to stderr. No decision about a cluster is made here; the queries are clients of
``AdminService`` like any other gRPC client. ``hrm status`` is typed often, so a module is imported
only when its command is (see :mod:`hrm.cli.app`).
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The ``hrm`` program; ends the process with the command's exit status."""
    from hrm.cli.app import app

    app(prog_name="hrm")
