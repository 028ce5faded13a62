"""Carries out what ``hrm.core.submission.submissions`` decides: the master as the requester of
drivers.

A driver's container is asked for, placed, queued, started and watched like any other. It belongs to
an application that has the submission's id, its *holder*; the master itself plays the AppMaster of
it. So schedulers, nodes, ``hrm app why`` and a restart of the master need nothing new: the holder
is in the store as an application, the node tells of the container, and this module attaches to the
holder again.

Commands of a submission are carried out one after the other, each only when what was to be written
before it is on the disk. Those of other submissions do not wait for that: a driver renews its lease
also while the disk is full.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from hrm import clock
from hrm.config import MasterSettings
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission.notices import (
    application_end,
    driver_event,
    driver_release,
    driver_request,
    holder_registration,
)
from hrm.core.submission.submissions import Entry, SubmissionsCore
from hrm.core.vocabulary.model import ApplicationId, LaunchContext
from hrm.core.vocabulary.ownership import MASTER
from hrm.errors import HrmError, LimitReached, NotFound, Unavailable
from hrm.master.file_store import FileStore
from hrm.master.interpreter import Interpreter, Outbox

__all__ = ["Submissions", "bounds_of"]

CALL_TIMEOUT_S = 15.0
CLEAN_INTERVAL_S = 30.0
RECOVERY_MARGIN_S = 5.0
HOLDER_SESSION = 1
"""Nobody else attaches to a holder."""
QUEUE_MAX = 100_000

log = structlog.get_logger("master.submissions")


def bounds_of(settings: MasterSettings, recovery_window_s: float) -> m.SubmissionBounds:
    """The core's bounds, as far as settings name them."""
    names = set(m.SubmissionBounds.__dataclass_fields__) & set(type(settings).model_fields)
    return m.SubmissionBounds(
        renew_s=min(5.0, settings.driver_lease_s / 6),
        recovery_s=recovery_window_s + RECOVERY_MARGIN_S,
        **{name: getattr(settings, name) for name in names},
    )


class Submissions:
    """The live side of submissions; on the master's loop."""

    def __init__(
        self, master: Interpreter, settings: MasterSettings, files: FileStore | None = None
    ) -> None:
        bounds = bounds_of(settings, master.core.master_state.bounds.recovery_window_s)
        self.core = SubmissionsCore(bounds, master.store.submissions(), self.now())
        self.files = files or FileStore(
            settings.state_dir / "files",
            file_mib_max=settings.file_mib_max,
            held_mib_max=settings.files_held_mib,
        )
        self._keep_s = settings.files_keep_s
        self._master = master
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_count = 0
        self._queues: dict[str, deque[m.Command]] = {}
        """Of each submission for which something is to be done, and a task at work on it."""
        self._queued = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_work = False
        self._watchers: dict[str, set[asyncio.Event]] = defaultdict(set)

    def now(self) -> float:
        return clock.now()

    async def run(self, tick_s: float) -> None:
        """Until cancelled. A failure of its own ends the master, whose books it shares."""
        try:
            for entry in list(self.core.live()):
                await self._hold_again(entry.record)
            self._may_work = True
            for submission_id in list(self._queues):
                self._begin(submission_id)
            await asyncio.gather(self._tick_forever(tick_s), self._clean_forever())
        except Exception as error:
            self._failed(error)
        finally:
            for task in self._tasks:
                task.cancel()

    def _failed(self, error: Exception) -> None:
        log.critical("submissions failed", error=repr(error), exc_info=error)
        if not self._master.stopped.done():
            self._master.stopped.set_result(HrmError(f"submissions failed: {error!r}"))

    # --- what is asked of it ------------------------------------------------------------------

    async def submit(self, key: str, make: Callable[[str, float], m.SubmissionRecord]) -> Entry:
        """A new submission with the record that ``make`` builds from an id and the time.

        Raises:
            HrmError: it is refused.
        """
        known = self.core.submitted_as(key)
        if known is not None:
            return await self._enter(known.record)
        self._check_room()
        self.core.admit()
        now = self.now()
        record = make(self.core.new_id(now), now)
        await self.files.require(record.files)
        try:
            await self._hold(record)
        except HrmError:
            self._master.application_outboxes.pop(ApplicationId(record.submission_id), None)
            raise
        known = self.core.submitted_as(key)
        if known is not None:  # the same call came twice, and both were on their way here
            end = m.EndHolder(
                submission_id=record.submission_id,
                state=m.SubmissionState.KILLED,
                message="submitted twice",
            )
            self._end_holder(end)
            return await self._enter(known.record)
        entry = await self._enter(record)
        log.info("submitted", submission=record.submission_id, name=record.name)
        return entry

    def _check_room(self) -> None:
        """Raises DiskFull while nothing can be written."""
        if self._master.full is not None:
            raise self._master.full

    async def _enter(self, record: m.SubmissionRecord) -> Entry:
        """The submission of this record's key, once it is on the disk."""
        answer = await self._call(
            lambda call_id: m.Submitted(now=self.now(), call_id=call_id, record=record)
        )
        return self.find(answer.submission_id)

    async def lease(
        self, submission_id: str, attempt: int, gone: bool, ownership_key: str
    ) -> tuple[float, float]:
        """How long this driver may run, and when to ask again, in seconds.

        Raises:
            StaleEpoch: it may not run.
            NotOwner: the submission has another key.
        """
        answer = await self._call(
            lambda call_id: m.LeaseAsked(
                now=self.now(), call_id=call_id, submission_id=submission_id, attempt=attempt,
                gone=gone, ownership_key=ownership_key,
            )
        )  # fmt: skip
        return (answer.lease_s, answer.renew_s) if isinstance(answer, m.GrantLease) else (0.0, 0.0)

    async def kill(self, submission_id: str, reason: str) -> Entry:
        self._check_room()
        await self._call(
            lambda call_id: m.KillAsked(
                now=self.now(), call_id=call_id, submission_id=submission_id, reason=reason
            )
        )
        return self.find(submission_id)

    def find(self, submission_id: str) -> Entry:
        """Raises NotFound."""
        entry = self.core.entries.get(submission_id)
        if entry is None:
            raise NotFound(
                f"no such submission: {submission_id!r}; hrm submissions --all lists them"
            )
        return entry

    async def watch(self, submission_id: str) -> AsyncIterator[Entry]:
        """The submission as it is, and again after changes, until it has ended."""
        changed = asyncio.Event()
        self._watchers[submission_id].add(changed)
        try:
            while True:
                changed.clear()
                entry = self.find(submission_id)
                yield entry
                if entry.record.state.ended:
                    return
                await changed.wait()
        finally:
            self._watchers[submission_id].discard(changed)
            if not self._watchers[submission_id]:
                del self._watchers[submission_id]

    def may_register(self, submission_id: str, attempt: int, ownership_key: str) -> None:
        """May this driver have an application?

        Raises:
            NotFound: another has taken its place, or its submission is over.
            NotOwner: the submission has another key.
        """
        entry = self.find(submission_id)
        self.core.check_owner(submission_id, ownership_key)
        state = entry.record.state
        if entry.record.attempt != attempt or state is not m.SubmissionState.RUNNING:
            raise NotFound(
                f"driver {attempt} of {submission_id} may not register: the submission is "
                f"{state.value}, its driver number {entry.record.attempt}"
            )

    def registered(self, submission_id: str, attempt: int, application_id: str) -> None:
        self._feed(
            m.DriverLinked(
                now=self.now(), submission_id=submission_id, attempt=attempt,
                application_id=application_id,
            )
        )  # fmt: skip

    # --- what the holders hear ----------------------------------------------------------------

    def heard(self, submission_id: str, notice: Any) -> None:
        """News of a holder or its container."""
        entry = self.core.entries.get(submission_id)
        if entry is None or entry.record.state.ended:
            return
        now = self.now()
        match notice:
            case c.ContainerChanged():
                master_state = self._master.core.master_state
                if (
                    event := driver_event(entry.record, notice.status, master_state, now)
                ) is not None:
                    self._feed(event)
            case c.RequestRefused():
                self._feed(
                    m.RefusedDriver(
                        now=now, submission_id=submission_id,
                        attempt=int(notice.executor_ids[-1]), message=notice.message,
                    )
                )  # fmt: skip
            case c.EndApplication():
                message = notice.message
                self._feed(m.HolderEnded(now=now, submission_id=submission_id, message=message))

    # --- commands -----------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        for command in self.core.handle(event):
            if self._queued >= QUEUE_MAX:
                raise LimitReached(f"{QUEUE_MAX} commands of submissions wait for the disk")
            self._queued += 1
            submission_id = _submission_of(command) or _submission_of(event)
            if submission_id in self._queues:
                self._queues[submission_id].append(command)
                continue
            self._queues[submission_id] = deque([command])
            if self._may_work:
                self._begin(submission_id)

    def _begin(self, submission_id: str) -> None:
        task = asyncio.create_task(self._work(submission_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, make: Callable[[int], m.Event]) -> Any:
        self._call_count += 1
        call_id = self._call_count
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._feed(make(call_id))
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the master is too busy to answer; try again") from None
        finally:
            del self._calls[call_id]

    async def _work(self, submission_id: str) -> None:
        """Until nothing is left to be done for it. A failure ends the master, whose books it
        shares."""
        queue = self._queues[submission_id]
        writes: list[asyncio.Future[None]] = []
        try:
            while queue or writes:
                if not queue:
                    await writes.pop()
                    continue
                command = queue.popleft()
                self._queued -= 1
                if isinstance(command, m.PersistSubmission):
                    writes.append(self._master.store.put_submission(command.record))
                    continue
                if isinstance(command, m.ForgetSubmission):
                    writes.append(self._master.store.forget_submission(command.submission_id))
                    continue
                while writes:
                    await writes.pop()
                self._carry_out(command)
            del self._queues[submission_id]
        except Exception as error:
            self._failed(error)

    def _carry_out(self, command: m.Command) -> None:
        match command:
            case m.RequestDriver():
                record = self.find(command.submission_id).record
                self._master.submit(driver_request(record, command, self._master.now()))
            case m.ReleaseDriver():
                self._master.submit(driver_release(command, self._master.now()))
            case m.EndHolder():
                self._end_holder(command)
            case m.EndLinked():
                self._master.submit(application_end(command, self._master.now()))
            case m.Changed():
                for changed in self._watchers.get(command.submission_id, ()):
                    changed.set()
            case m.Committed() | m.GrantLease():
                self._answer(command.call_id, command)
            case m.RefuseCall():
                self._answer(command.call_id, command.error)

    def _answer(self, call_id: int, answer: Any) -> None:
        future = self._calls.get(call_id)
        if future is None or future.done():
            return
        if isinstance(answer, HrmError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _end_holder(self, command: m.EndHolder) -> None:
        self._master.application_outboxes.pop(ApplicationId(command.submission_id), None)
        self._master.submit(application_end(command, self._master.now()))
        log.info(
            "submission ended",
            submission=command.submission_id, state=command.state.value, why=command.message,
        )  # fmt: skip

    async def _hold(self, record: m.SubmissionRecord) -> None:
        """Be the AppMaster of the application that holds the driver's container.

        Raises:
            HrmError: the master takes no more applications.
        """
        master, app_id = self._master, ApplicationId(record.submission_id)
        known = master.core.master_state.applications.get(app_id)
        if known is not None and known.record.state.ended:
            message = known.record.message or "the application that held its driver has ended"
            self._feed(m.HolderEnded(now=self.now(), submission_id=app_id, message=message))
            return
        launch = LaunchContext(driver=_document(record))
        master.application_outboxes[app_id] = _Ear(self, record.submission_id)
        await master.call(
            lambda call_id: holder_registration(
                record, launch, known=known is not None, call_id=call_id, now=master.now()
            )
        )
        answer = await master.call(
            lambda call_id: e.ApplicationAttached(
                now=master.now(), call_id=call_id, application_id=app_id,
                session=HOLDER_SESSION, epoch=master.core.epoch, owner=MASTER,
            )
        )  # fmt: skip
        assert isinstance(answer, c.ApplicationAdmitted)
        master_state = master.core.master_state
        for container in master_state.applications[app_id].ended:  # before we listened
            self.heard(app_id, c.ContainerChanged(status=master_state.status(container)))
        for status in answer.containers:
            self.heard(app_id, c.ContainerChanged(status=status))

    async def _hold_again(self, record: m.SubmissionRecord) -> None:
        """After a restart. One that is refused now, by a smaller limit say, ends alone."""
        try:
            await self._hold(record)
        except Unavailable:
            raise
        except HrmError as error:
            app_id = ApplicationId(record.submission_id)
            self._master.application_outboxes.pop(app_id, None)
            log.warning("cannot go on", submission=app_id, why=error.message)
            message = f"the restarted master cannot go on with it: {error.message}"
            self._feed(m.HolderEnded(now=self.now(), submission_id=app_id, message=message))

    async def _tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._feed(m.Ticked(now=self.now()))

    async def _clean_forever(self) -> None:
        while True:
            try:
                removed = await self.files.clean(self.core.files(), self._keep_s)
            except OSError as error:
                removed = 0
                log.warning("cannot remove files", why=str(error))
            if removed:
                log.info("removed files that no submission needs", files=removed)
            await asyncio.sleep(min(CLEAN_INTERVAL_S, max(1.0, self._keep_s)))


class _Ear(Outbox):
    """What would be sent to an AppMaster is heard here; after what the core does now."""

    def __init__(self, submissions: Submissions, submission_id: str) -> None:
        super().__init__()
        self._submissions = submissions
        self._submission_id = submission_id

    def put(self, message: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._submissions.heard, self._submission_id, message)


def _submission_of(what: m.Command | m.Event) -> str:
    """Whose it is; empty: it does not say."""
    if isinstance(what, m.PersistSubmission | m.Submitted):
        return what.record.submission_id
    return getattr(what, "submission_id", "")


def _document(record: m.SubmissionRecord) -> str:
    """What the node of a driver must know."""
    document = json.loads(record.driver)
    document |= {
        "submission_id": record.submission_id,
        "name": record.name,
        "ownership_key": record.ownership_key,
    }
    return json.dumps(document)
