"""Brings what executors need before their JVM starts to their working directories.

An application names such files by content (``LaunchContext.files``), and the master keeps them. A
node fetches each once, into its cache (``hrm.agent.containers.file_cache``), and every executor
gets a copy of its own, verified while it is copied. The agent does this itself, because no executor
has the cluster's token; archives are only laid down here, and unpacked in the container
(``hrm.agent.containers.unpack``).

A few threads do all of it, so that a slow master delays neither the agent nor other starts. An
order to stop the container ends its fetch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakValueDictionary

import grpc

from hrm import rpc, tls
from hrm.agent.containers import file_cache, unpack
from hrm.agent.drivers.driver_files import FETCH_LIMIT_S, Fetch, bring
from hrm.agent.drivers.driver_process import files_dir
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import LaunchFile
from hrm.errors import LaunchFailed
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

__all__ = ["ApplicationFiles", "application_files", "unpacking"]

THREADS = 4
ARCHIVES_DIR = ".archives"
_STOPPED = "the container was ordered to stop"


class ApplicationFiles:
    """One event loop. ``fetch``: yields the pieces of a file of the master's."""

    def __init__(self, cache_dir: Path, fetch: Fetch) -> None:
        self._cache_dir = cache_dir
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(THREADS, "hrm-files")
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._bringing: dict[str, tuple[threading.Event, asyncio.Future[None]]] = {}

    async def bring(self, container_id: str, files: Sequence[LaunchFile], home: Path) -> None:
        """Put copies of ``files`` into the new directory ``home``.

        Raises:
            LaunchFailed: the master does not have one, or the container is to stop.
            OSError: the disk does not take them.
        """
        ending = threading.Event()
        task = asyncio.ensure_future(self._bring(files, home, ending))
        self._bringing[container_id] = (ending, task)
        try:
            await task
        except asyncio.CancelledError:
            if not ending.is_set():
                raise
            raise LaunchFailed(_STOPPED) from None
        finally:
            self._bringing.pop(container_id, None)

    async def _bring(
        self, files: Sequence[LaunchFile], home: Path, ending: threading.Event
    ) -> None:
        (home / ARCHIVES_DIR).mkdir(mode=0o700, parents=True)
        cache = file_cache.own_place(self._cache_dir, None)
        fetch = self._until(ending)
        for number, file in enumerate(files):
            lock = self._one_at_a_time.setdefault(file.sha256, asyncio.Lock())
            async with lock:
                target = _place(home, number, file)
                copying = self._threads.submit(bring, fetch, file.sha256, target, cache)
                await _outcome(asyncio.wrap_future(copying))

    def stop(self, container_id: str) -> None:
        """The container is to stop: give up what is being fetched for it."""
        if container_id in self._bringing:
            ending, task = self._bringing[container_id]
            ending.set()
            task.cancel()

    def close(self) -> None:
        """End every fetch."""
        for container_id in list(self._bringing):
            self.stop(container_id)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _until(self, ending: threading.Event) -> Fetch:
        def fetch(digest: str, offset: int) -> Iterator[bytes]:
            if ending.is_set():
                raise LaunchFailed(_STOPPED)
            for data in self._fetch(digest, offset):
                if ending.is_set():
                    raise LaunchFailed(_STOPPED)
                yield data

        return fetch


async def _outcome(copying: asyncio.Future[None]) -> None:
    """Wait for a thread also where this is cancelled: it still writes into the directory."""
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        await asyncio.wait((copying,))
        if not copying.cancelled():
            copying.exception()  # it has no other reader
        raise


def _fetch_from_master(settings: AgentSettings) -> Fetch:
    """Files of the master, with the agent's token."""

    def fetch(digest: str, offset: int) -> Iterator[bytes]:
        token = rpc.read_token(settings.token_file)
        ca = tls.read_ca(tls.ca_file(settings.token_file, settings.tls_ca))
        allow = settings.allow_clear_text
        with rpc.sync_channel(settings.master, token, ca, allow_clear_text=allow) as channel:
            stub = submission_pb2_grpc.SubmissionServiceStub(channel)
            request = pb.GetFileRequest(sha256=digest, offset=offset)
            try:
                for piece in stub.GetFile(request, timeout=FETCH_LIMIT_S):
                    yield piece.data
            except grpc.RpcError as error:
                raise rpc.error_from(error, settings.master) from error

    return fetch


def application_files(settings: AgentSettings) -> ApplicationFiles:
    """Those of a live agent."""
    return ApplicationFiles(files_dir(settings), _fetch_from_master(settings))


def unpacking(
    files: Sequence[LaunchFile], home: Path, bytes_max: int, argv: Sequence[str]
) -> list[str]:
    """``argv``, preceded by what unpacks the archives among ``files``."""
    archives = [
        [str(_place(home, number, file)), str(home / file.name)]
        for number, file in enumerate(files)
        if file.archive
    ]
    if not archives:
        return list(argv)
    order = json.dumps({"archives": archives, "bytes_max": bytes_max})
    return [sys.executable, "-I", "-S", str(unpack.__file__), order, "--", *argv]


def _place(home: Path, number: int, file: LaunchFile) -> Path:
    """Where a file is laid down. Several archives may have one name."""
    if not file.archive:
        return home / file.name
    return home / ARCHIVES_DIR / f"{number}-{file.archive[-200:]}"
