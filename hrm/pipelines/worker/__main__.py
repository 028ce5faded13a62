"""``python -m hrm.pipelines.worker DOCUMENT``: one worker of a pipeline, in its container.

It ends on SIGTERM, once the steps that run have ended; the container's grace period bounds that.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

import grpc.aio
import structlog

from hrm import rpc, tls
from hrm.errors import HrmError
from hrm.pipelines.worker.document import WorkerDocument, read_document
from hrm.pipelines.worker.runtime import WorkerRuntime
from hrm.text import log_processor

__all__ = ["main"]


def main() -> int:
    """Serve until SIGTERM; returns the exit status."""
    _log_to_stderr()
    try:
        return asyncio.run(_run(read_document(Path(sys.argv[1])), Path.cwd()))
    except HrmError as error:
        sys.stderr.write(f"the worker cannot start: {error.message}\n")
        return 2


async def _run(document: WorkerDocument, directory: Path) -> int:
    runtime = WorkerRuntime(document, directory, partial(_channel, document))
    to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, to_end.set)
    await runtime.start()
    broken = asyncio.create_task(runtime.broken.wait())
    ending = asyncio.create_task(to_end.wait())
    try:
        await asyncio.wait((broken, ending), return_when=asyncio.FIRST_COMPLETED)
        if not broken.done():
            await asyncio.wait(
                (asyncio.create_task(runtime.yield_all()), broken),
                return_when=asyncio.FIRST_COMPLETED,
            )
        return 1 if broken.done() else 0
    finally:
        broken.cancel()
        ending.cancel()
        await runtime.close()


def _channel(document: WorkerDocument) -> grpc.aio.Channel:
    token = rpc.read_token(document.token_file)
    return rpc.channel(
        document.master, token, tls.read_ca(document.tls_ca),
        allow_clear_text=document.allow_clear_text,
    )  # fmt: skip


def _log_to_stderr() -> None:
    *before, _renderer = structlog.get_config()["processors"]
    structlog.configure(
        processors=[
            *before,
            structlog.processors.format_exc_info,
            log_processor,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
