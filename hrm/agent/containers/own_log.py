"""The agent's own log: structured lines on stderr, JSON where no person is looking.

Not to be confused with ``hrm.agent.containers.logs``, the logs of containers.
"""

from __future__ import annotations

import logging
import sys

import structlog

from hrm import text

__all__ = ["configure_logging"]


def configure_logging() -> None:
    """Set structlog up, unless the program has done so already."""
    if structlog.is_configured():
        return
    person = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            text.log_processor,  # parts of a line come from other processes
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if person
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Looked up for every line: a later redirection of stderr gets the lines too.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
