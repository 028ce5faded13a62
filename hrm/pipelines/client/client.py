"""Pipelines on a cluster: submit tasks, watch them, get results and timings back.

    from hrm.pipelines import Client

    with Client() as client:                          # the cluster of `hrm up`, or $HRM_MASTER
        task = client.submit(counting, "clip.bin")
        print(task.result(timeout_s=60).value)
        for result in client.map(counting, clips):    # in the order of clips, with a progress bar
            print(result.value, result.node, result.runs)

One asyncio loop in a thread of its own does all RPCs. The client generates the id of each task, so
a broken call can be repeated: the master accepts an id once. While the master is unreachable or
full, calls are retried for ``patience_s``. What it has accepted it keeps, whatever dies: a task
ends once, and the client may leave and come back for its result (``send``, ``attach``).

No result is read before a worker has proved that it was given the task
(``hrm.pipelines.client.results``).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import pickle
import secrets
import threading
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sized,
)
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from hrm import errors, ownership_keys, rpc, tls
from hrm.address import default_master, token_file
from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.client.definition import Pipeline, to_format
from hrm.pipelines.client.outcome import TaskFailed, TaskResult, is_done, result_of
from hrm.pipelines.client.progress_bar import progress_bar
from hrm.pipelines.client.repeated_calls import RepeatedCalls, shared_loop
from hrm.pipelines.client.result_file import result_file, value_of
from hrm.pipelines.client.results import need_arrow
from hrm.pipelines.client.sources import Sources, sources_of
from hrm.pipelines.client.tickets import Ticket
from hrm.pipelines.core.model import PipelineSpec, ResultFormat, TaskId, TaskSpec
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1.pipeline_pb2_grpc import PipelineServiceStub
from hrm.wire import pipeline_stream
from hrm.wire import pipelines as pipeline_wire

__all__ = ["Client", "Task", "progress_bar"]

IN_FLIGHT = 64
"""Tasks of one ``map`` that the master has at a time."""
WATCHED_A_CONNECTION = 32
CONNECTIONS_MAX = 64
"""Connections on which tasks are watched; beyond their capacity, ends are noticed late."""
WATCHED_MAX = WATCHED_A_CONNECTION * (1 + CONNECTIONS_MAX)
SUBMITTED_AT_ONCE = 16
FETCHED_AT_ONCE = 8
CANCELLED_AT_ONCE = 8
"""Short calls on their way, of one client: with those that watch on the same connection not more
than a master accepts on one (``streams_max``). Others wait here; it would refuse them."""
CALL_TIMEOUT_S = 60.0
KEY_BYTES = 32
GIVE_UP_S = 5.0
"""Longest wait, seconds, for abandoned tasks to end and for a master to be notified of them."""
PAGES_MAX = 10_000

T = TypeVar("T")


class _GivenUp(Exception):
    """The task was abandoned, and the master does not have it."""


class Task:
    """A task on its way."""

    def __init__(
        self,
        client: Client,
        ticket: Ticket,
        future: futures.Future[TaskResult],
        given_up: threading.Event | None = None,
    ) -> None:
        """Setting ``given_up`` keeps the task from being submitted (again)."""
        self._client = client
        self.ticket = ticket
        self._future = future
        self._given_up = given_up or threading.Event()

    @property
    def task_id(self) -> str:
        """Its id at the master."""
        return self.ticket.task_id

    def done(self) -> bool:
        return self._future.done()

    def outcome(self, timeout_s: float | None = None) -> TaskResult:
        """How it ended, well or not.

        Raises:
            TimeoutError: it has not ended after ``timeout_s``; it continues.
            HrmError: the master is unreachable for too long, or refused the task; or the client was
                closed before the task had ended.
        """
        try:
            return self._future.result(timeout_s)
        except futures.TimeoutError as error:
            raise TimeoutError(
                f"task {self.task_id} has not ended after {timeout_s} s; it goes on - "
                f"`hrm pipeline list` shows what it waits for"
            ) from error
        except futures.CancelledError as error:
            raise errors.Unavailable(
                f"the client was closed before task {self.task_id} had ended; if the master has "
                f"it, it goes on - keep the client open until its tasks have ended"
            ) from error

    def result(self, timeout_s: float | None = None) -> TaskResult:
        """How it ended, if it ended well.

        Raises:
            TaskFailed: it failed or was cancelled.
            TimeoutError, HrmError: as ``outcome``.
        """
        outcome = self.outcome(timeout_s)
        if not outcome.ok:
            raise TaskFailed(f"task {self.task_id} failed: {outcome.error}", outcome)
        return outcome

    def when_done(self, call: Callable[[], None]) -> None:
        """``call`` from another thread, once it has ended."""
        self._future.add_done_callback(lambda _future: call())

    def cancel(self, reason: str = "cancelled by its client") -> None:
        """End it, at the master or before it gets there; ``outcome`` then reports that."""
        self._given_up.set()
        with contextlib.suppress(errors.NotFound):
            self._client.cancel(self.task_id, reason)


class Client:
    """A connection to the master's PipelineService, to be closed (or used in a ``with``)."""

    def __init__(
        self,
        master: str | None = None,
        *,
        token_path: Path | None = None,
        tls_ca: Path | None = None,
        allow_clear_text: bool | None = None,
        patience_s: float = 60.0,
        call_timeout_s: float = CALL_TIMEOUT_S,
        user: str | None = None,
        queue: str = "",
        node_labels: Iterable[str] = (),
        result_dir: str | Path = "",
    ) -> None:
        """``patience_s``: how long calls are retried while the master is unreachable or full;
        ``call_timeout_s``: of one call; ``tls_ca``: the cluster's authority, if not the one that
        commands use; ``allow_clear_text``: to a master that is not on loopback (None: the value of
        $HRM_ALLOW_CLEAR_TEXT). ``user``: the owner of the tasks, None: this process's user; nodes
        that run containers as their submitter need a user of that name. ``queue``: of the
        applications that its tasks are; empty: as rules place the user. ``node_labels``: that a
        node must have to run them; a plain text is one label. ``result_dir``: a directory that
        nodes share with the readers of results, where these stay: each ``value`` is a
        ``ResultFile``, and nothing of it passes the master; empty: the master keeps them."""
        self._call_timeout_s = call_timeout_s
        self.user = _this_user() if user is None else user
        self.queue = queue
        labels = (node_labels,) if isinstance(node_labels, str) else node_labels
        self.node_labels = tuple(sorted(set(labels)))
        self.result_dir = str(Path(result_dir).expanduser().absolute()) if result_dir else ""
        self.target = default_master(master)
        path = token_file(master, token_path)
        token, ca = rpc.read_token(path), tls.read_ca(tls.ca_file(path, tls_ca))
        self._submitting = asyncio.Semaphore(SUBMITTED_AT_ONCE)
        self._fetching = asyncio.Semaphore(FETCHED_AT_ONCE)
        self._watching = asyncio.Semaphore(WATCHED_MAX)
        self._calls = RepeatedCalls(self.target)
        self._new_channel = partial(
            rpc.channel, self.target, token, ca, allow_clear_text=allow_clear_text
        )
        self.patience_s = patience_s
        self._loop = shared_loop()
        self._running: dict[asyncio.Task[Any], str] = {}
        self._unsent: set[str] = set()
        self._closed = False
        self._ownership_key = ownership_keys.new_key()
        self._sources: dict[int, tuple[Pipeline, Sources, PipelineSpec, pb.PipelineSpec]] = {}
        self._channel: grpc.aio.Channel = self._call(self._connect())
        self._stub = PipelineServiceStub(self._channel)
        self._watched_here = 0
        self._more: list[_Connection] = []

    def submit(
        self,
        pipeline: Pipeline,
        value: Any,
        *,
        size_mb: float = 0.0,
        workload: WorkloadClass | str = WorkloadClass.BATCH,
        result_format: str | None = None,
    ) -> Task:
        """Send one task; it may wait for capacity at the master before it is accepted.

        ``size_mb``: of the input, for schedulers; 0: of the pickled ``value``. ``result_format``:
        None: the pipeline's. With "json" or "arrow" a result is data, and never unpickled here.
        ``workload``: "batch", or "stream", whose tasks go first.

        Raises:
            InvalidConfig: the pipeline is invalid, or cannot be imported by a node; there is no
                such format, or it requires PyArrow, which is missing.
            InvalidRequest: ``value`` cannot be pickled; there is no such ``workload``.
            HrmError: the client is closed.
        """
        request = self._request(pipeline, value, size_mb, workload, result_format)
        given_up = threading.Event()
        self._unsent.add(request.task_id)
        future = self._start(self._run(request, given_up))
        return Task(self, _ticket_of(request), future, given_up)

    def send(
        self,
        pipeline: Pipeline,
        value: Any,
        *,
        size_mb: float = 0.0,
        workload: WorkloadClass | str = WorkloadClass.BATCH,
        result_format: str | None = None,
    ) -> Ticket:
        """Submit one task and leave it: returns when the master has it. The ticket gets its result,
        from any client, as long as the master keeps that (``pipeline_ended_kept``).

        Raises:
            InvalidConfig, InvalidRequest: as ``submit``.
            HrmError: the master refuses it, or is unreachable for too long.
        """
        request = self._request(pipeline, value, size_mb, workload, result_format)

        async def ask() -> None:
            with contextlib.suppress(errors.AlreadyExists):  # a call that broke had arrived
                await self._again(
                    lambda: self._submit(request, threading.Event()), gate=self._submitting
                )

        self._call(ask())
        return _ticket_of(request)

    def attach(self, ticket: Ticket) -> Task:
        """The task of a ticket; its result stays at the master."""
        return Task(self, ticket, self._start(self._follow(ticket, forget=False)))

    def forget(self, ticket: Ticket) -> None:
        """The result of a task that has ended well is not needed any more."""
        with contextlib.suppress(errors.NotFound):
            self._call(self._again(lambda: self._fetch(ticket, forget=True)))

    def map(
        self,
        pipeline: Pipeline,
        values: Iterable[Any],
        *,
        size_mb: float | Callable[[Any], float] = 0.0,
        workload: WorkloadClass | str = WorkloadClass.BATCH,
        in_flight: int = IN_FLIGHT,
        keep_failures: bool = False,
        progress: bool | None = None,
        timeout_s: float | None = None,
        result_format: str | None = None,
    ) -> Generator[TaskResult, None, None]:
        """Run ``pipeline`` over all ``values``; yields results in their order, as soon as possible.

        At most ``in_flight`` tasks are submitted at a time, so ``values`` may be long.
        ``progress``: a bar on stderr; None: if that is a terminal. ``keep_failures``: a failed
        task is a result, too.
        ``timeout_s``: of the whole, from the first task to the last result; None: no limit.
        ``workload``, ``result_format``: as in ``submit``.

        Raises:
            TaskFailed: a task failed; those in flight are cancelled.
            TimeoutError: ``timeout_s`` has passed; those in flight are cancelled.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        size = size_mb if callable(size_mb) else (lambda _value: float(size_mb))
        more: dict[str, Any] = {"workload": workload, "result_format": result_format}
        waiting: list[Task] = []
        source = iter(values)
        total = len(values) if isinstance(values, Sized) else None
        with progress_bar(pipeline.name, total, progress) as advance:
            try:
                while True:
                    while len(waiting) < in_flight:
                        try:
                            value = next(source)
                        except StopIteration:
                            break
                        task = self.submit(pipeline, value, size_mb=size(value), **more)
                        task.when_done(advance)
                        waiting.append(task)
                    if not waiting:
                        return
                    left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                    first = waiting[0]
                    result = first.outcome(left_s) if keep_failures else first.result(left_s)
                    del waiting[0]
                    yield result
            finally:
                if not self._closed:
                    self.cancel_all(waiting, "the map that it belongs to was abandoned")

    def cancel(self, task_id: str, reason: str) -> None:
        request = pb.CancelPipelineTaskRequest(task_id=task_id, reason=reason)
        self._call(self._again(lambda: self._stub.Cancel(request, timeout=self._call_timeout_s)))

    def cancel_all(self, tasks: Iterable[Task], reason: str) -> None:
        """End these, all at once, at the master or before they get there."""
        given_up = [one for one in tasks if not one.done()]
        gate, is_there = asyncio.Semaphore(CANCELLED_AT_ONCE), True

        async def cancel(task_id: str) -> None:
            nonlocal is_there
            async with gate:
                is_there = is_there and await self._cancel(task_id, reason)

        async def ask() -> None:
            ids = {one.task_id for one in given_up}
            sent = sorted(ids - self._unsent)  # on the loop: nothing is sent before all know
            for one in given_up:
                one._given_up.set()
            await asyncio.gather(*(cancel(task_id) for task_id in sent))
            running = [task for task, own in self._running.items() if own in ids]
            if running:
                await asyncio.wait(running, timeout=GIVE_UP_S)

        self._call(ask())

    async def _cancel(self, task_id: str, reason: str) -> bool:
        """Cancel at the master; whether that replied. An unknown task is ignored."""
        request = pb.CancelPipelineTaskRequest(task_id=task_id, reason=reason)
        call = partial(self._stub.Cancel, request, timeout=min(GIVE_UP_S, self._call_timeout_s))
        try:
            await self._again(call, GIVE_UP_S)
        except errors.Unavailable:
            return False
        except errors.HrmError:
            pass
        return True

    def tasks(self, *, everything: bool = False, limit: int = 0) -> pb.ListPipelineTasksResponse:
        """The tasks and nodes that the master knows; ``everything``: ended tasks, too. ``limit``:
        the latest so many; 0: all."""
        request = pb.ListPipelineTasksRequest(all=everything, limit=limit)

        async def ask() -> pb.ListPipelineTasksResponse:
            response: pb.ListPipelineTasksResponse = await self._stub.List(
                request, timeout=self._call_timeout_s
            )
            return response

        whole = pb.ListPipelineTasksResponse()
        for _ in range(PAGES_MAX):
            response: pb.ListPipelineTasksResponse = self._call(self._again(ask))
            request.page_token = response.next_page_token
            response.ClearField("next_page_token")
            whole.MergeFrom(response)
            if not request.page_token:
                return whole
        raise errors.HrmError(f"the master has sent {PAGES_MAX} pages of tasks, and there are more")

    def close(self) -> None:
        """Close the connection; tasks at the master continue."""
        if not self._closed:
            ending = self._start(self._end())
            self._closed = True
            ending.result()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- in the loop's thread ---------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> futures.Future[T]:
        if self._closed:
            coroutine.close()
            raise errors.HrmError(
                f"this client of {self.target} is closed; make another one, or keep it open "
                f"(`with Client() as client:`) until its tasks have ended"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._start(coroutine).result()

    async def _connect(self) -> grpc.aio.Channel:
        return self._new_channel()

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for channel in (self._channel, *(one.channel for one in self._more)):
            await channel.close(None)

    def _request(
        self,
        pipeline: Pipeline,
        value: Any,
        size_mb: float,
        workload: WorkloadClass | str,
        result_format: str | None,
    ) -> pb.SubmitPipelineTaskRequest:
        workload_class = _workload_class(workload)
        kind = pipeline.result_format if result_format is None else to_format(result_format)
        if kind is ResultFormat.ARROW:
            need_arrow("here")
        known = self._sources.get(id(pipeline))
        if known is None:
            sources = sources_of(pipeline)
            spec = pipeline.spec(sources.reference)
            message = pipeline_wire.from_pipeline(spec)
            known = self._sources[id(pipeline)] = (pipeline, sources, spec, message)
        _pipeline, sources, spec, message = known
        try:
            payload = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise errors.InvalidRequest(
                f"the input of pipeline {pipeline.name!r} cannot be pickled "
                f"({type(error).__name__}: {error}); give the path of a file, or plain data"
            ) from error
        task = TaskSpec(
            task_id=TaskId(f"{pipeline.name[:40]}-{uuid.uuid4().hex[:16]}"),
            pipeline=spec,
            size_mb=size_mb or len(payload) / 1e6,
            workload_class=workload_class,
            user=self.user,
            result_format=kind,
            result_dir=self.result_dir,
        )
        return pipeline_stream.submission(
            *(message, task, sources.files),
            payload=payload,
            result_key=secrets.token_bytes(KEY_BYTES),
            ownership_key=self._ownership_key,
            queue=self.queue,
            node_labels=self.node_labels,
        )

    async def _run(
        self, request: pb.SubmitPipelineTaskRequest, given_up: threading.Event
    ) -> TaskResult:
        """One task from its submission to its result, across restarts of the master."""
        self._note_running(request.task_id)
        try:
            with contextlib.suppress(errors.AlreadyExists):
                await self._again(lambda: self._submit(request, given_up), gate=self._submitting)
        except _GivenUp:
            self._unsent.discard(request.task_id)
            why = "it was abandoned before the master had it"
            return TaskResult(task_id=request.task_id, value=None, error=why)
        return await self._follow(_ticket_of(request), forget=True)

    async def _follow(self, ticket: Ticket, *, forget: bool) -> TaskResult:
        """The result of a task that the master has; ``forget``: it may drop it then."""
        self._note_running(ticket.task_id)
        end = await self._again(lambda: self._watch(ticket.task_id), gate=self._watching)
        if not is_done(end):
            return result_of(ticket.task_id, end, None)
        if end.in_result_dir:
            return result_of(ticket.task_id, end, result_file(ticket, end))
        data = await self._again(lambda: self._fetch(ticket, forget=forget), gate=self._fetching)
        return result_of(ticket.task_id, end, value_of(ticket, end, data))

    def _note_running(self, task_id: str) -> None:
        this = asyncio.current_task()
        assert this is not None
        if this not in self._running:
            this.add_done_callback(lambda task: self._running.pop(task, None))
        self._running[this] = task_id

    async def _submit(
        self, request: pb.SubmitPipelineTaskRequest, given_up: threading.Event
    ) -> None:
        if given_up.is_set():
            raise _GivenUp
        self._unsent.discard(request.task_id)
        await self._stub.Submit(request, timeout=self._call_timeout_s)
        if given_up.is_set():
            # The cancellation may have arrived before the submission.
            await self._cancel(request.task_id, "it was abandoned")

    async def _watch(self, task_id: str) -> pb.PipelineTaskEnd:
        with self._place_to_watch() as stub:
            async for update in stub.Watch(pb.WatchPipelineTasksRequest(task_ids=[task_id])):
                if update.WhichOneof("update") == "ended":
                    ended: pb.PipelineTaskEnd = update.ended
                    return ended
        raise errors.Unavailable(f"{self.target} stopped telling of task {task_id}; try again")

    @contextlib.contextmanager
    def _place_to_watch(self) -> Iterator[PipelineServiceStub]:
        """A connection with few of these long calls: a master accepts a bounded number on one, and
        short calls must not wait for them."""
        if self._watched_here < WATCHED_A_CONNECTION:
            self._watched_here += 1
            try:
                yield self._stub
            finally:
                self._watched_here -= 1
            return
        least = min(self._more, key=lambda one: one.watched, default=None)
        full = least is None or least.watched >= WATCHED_A_CONNECTION
        if least is None or (full and len(self._more) < CONNECTIONS_MAX):
            least = _Connection(self._new_channel())
            self._more.append(least)
        least.watched += 1
        try:
            yield PipelineServiceStub(least.channel)
        finally:
            least.watched -= 1

    async def _fetch(self, task: Ticket, *, forget: bool) -> bytes:
        request = pb.GetPipelineResultRequest(
            task_id=task.task_id, forget=forget, ownership_key=task.ownership_key
        )
        chunks: AsyncIterator[pb.PipelineResultChunk] = self._stub.GetResult(
            request, timeout=self._call_timeout_s
        )
        return b"".join([chunk.data async for chunk in chunks])

    async def _again(
        self,
        call: Callable[[], Awaitable[T]],
        most_s: float = float("inf"),
        gate: asyncio.Semaphore | None = None,
    ) -> T:
        return await self._calls.again(call, min(most_s, self.patience_s), gate)


@dataclass(slots=True)
class _Connection:
    """One connection of a client, and how many tasks are watched on it."""

    channel: grpc.aio.Channel
    watched: int = 0


def _workload_class(workload: WorkloadClass | str) -> WorkloadClass:
    try:
        return WorkloadClass(workload)
    except ValueError:
        *first, last = (repr(one.value) for one in WorkloadClass)
        raise errors.InvalidRequest(
            f"workload is {workload!r}; it must be {', '.join(first)} or {last}"
        ) from None


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # nodes that need a name say so


def _ticket_of(request: pb.SubmitPipelineTaskRequest) -> Ticket:
    return Ticket(
        task_id=request.task_id,
        result_key=request.result_key.hex(),
        ownership_key=request.ownership_key,
        result_format=pipeline_wire.to_result_format(request.result_format).value,
        result_dir=request.result_dir,
    )
