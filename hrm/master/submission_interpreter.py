"""Submitted drivers, live: runs ``hrm.core.submission.hosting`` on the master's loop.

Its decisions are written to the master's store, passed to the master's core, returned to callers
and sent to watchers; files that no submission needs are removed.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from hrm import clock
from hrm.config import MasterSettings
from hrm.core.messages import commands as c
from hrm.core.messages import hosted
from hrm.core.messages import submissions as m
from hrm.core.submission import hosting
from hrm.core.submission.hosting import SubmissionHost
from hrm.core.submission.submissions import SubmissionEntry, SubmissionsCore
from hrm.core.vocabulary.model import ApplicationId, NodeName, container_id_of
from hrm.errors import HrmError, NotFound, Unavailable
from hrm.master.driver_tokens import DriverTokens
from hrm.master.file_store import FileStore
from hrm.master.interpreter import Interpreter, NoticeForwarder

__all__ = ["Submissions", "bounds_of"]

CALL_TIMEOUT_S = 15.0
CLEAN_INTERVAL_S = 30.0
RECOVERY_MARGIN_S = 5.0
log = structlog.get_logger("master.submissions")


def bounds_of(settings: MasterSettings, recovery_window_s: float) -> m.SubmissionBounds:
    """The core's bounds; those that are settings have the settings' values."""
    names = set(m.SubmissionBounds.__dataclass_fields__) & set(type(settings).model_fields)
    return m.SubmissionBounds(
        renew_s=min(5.0, settings.driver_lease_s / 6, settings.serial_lease_s / 6),
        recovery_s=recovery_window_s + RECOVERY_MARGIN_S,
        **{name: getattr(settings, name) for name in names},
    )


class Submissions:
    """The live side of submissions; on the master's loop."""

    def __init__(
        self, master: Interpreter, settings: MasterSettings, token_of: Callable[[str, str], str]
    ) -> None:
        """``token_of``: the token of a submission's drivers."""
        self._token_of = token_of
        bounds = bounds_of(settings, master.core.master_state.bounds.recovery_window_s)
        self.core = SubmissionsCore(bounds, master.store.submissions(), self.now())
        self.files = FileStore(
            settings.state_dir / "files",
            file_mib_max=settings.file_mib_max,
            held_mib_max=settings.files_held_mib,
        )
        self._tokens = DriverTokens()
        self._host = SubmissionHost(
            self.core, master.core.master_state, master.gate, self._document
        )
        self._keep_s = settings.files_keep_s
        self._master = master
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: dict[str, set[asyncio.Event]] = defaultdict(set)

    def now(self) -> float:
        return clock.now()

    async def run(self, tick_s: float) -> None:
        """Until cancelled. A failure here ends the master, whose state this shares."""
        try:
            self._carry_out(self._host.begin(self.now()))
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

    # --- requests ------------------------------------------------------------------------------

    def _document(self, record: m.SubmissionRecord) -> str:
        """What the node of a driver needs to know."""
        document = json.loads(record.driver)
        document |= {
            "submission_id": record.submission_id,
            "name": record.name,
            "ownership_key": record.ownership_key,
            "token": self._token_of(record.submission_id, record.user),
        }
        return json.dumps(document)

    async def submit(
        self,
        key: str,
        make: Callable[[str, float], m.SubmissionRecord],
        tokens: bytes = b"",
    ) -> SubmissionEntry:
        """A new submission with the record that ``make`` builds from an id and the time, and the
        delegation tokens of its driver.

        Raises:
            HrmError: it is refused.
        """
        known = self._host.admit(key)
        if known is not None:
            return self._with_tokens(await self._enter(known), tokens)
        self._tokens.check(tokens)
        now = self.now()
        record = make(self.core.new_id(now), now)
        await self.files.require(record.files)
        entry = await self._enter(record)
        if entry.record.submission_id == record.submission_id:
            log.info("submitted", submission=record.submission_id, name=record.name)
        return self._with_tokens(entry, tokens)

    def _with_tokens(self, entry: SubmissionEntry, tokens: bytes) -> SubmissionEntry:
        if tokens and not entry.record.state.ended:
            self._tokens.keep(entry.record.submission_id, tokens)
        return entry

    def tokens_of(self, submission_id: str, attempt: int, ownership_key: str) -> bytes:
        """The delegation tokens of a driver that has its lease.

        Raises:
            NotFound: it may not run, or there are none.
            NotOwner: the submission has another key.
        """
        self.core.check_driver(submission_id, attempt, ownership_key)
        return self._tokens.of(submission_id)

    async def _enter(self, record: m.SubmissionRecord) -> SubmissionEntry:
        """The submission of this record's key, once it is on the disk."""
        result = await self._call(lambda call_id: self._host.submit(call_id, record, self.now()))
        return self.find(result.submission_id)

    async def lease(
        self, submission_id: str, attempt: int, gone: bool, ownership_key: str
    ) -> tuple[float, float]:
        """How long this driver may run, and when to renew, in seconds.

        Raises:
            StaleEpoch: it may not run.
            NotOwner: the submission has another key.
        """
        result = await self._call(
            lambda call_id: self._host.take(
                m.LeaseAsked(
                    now=self.now(), call_id=call_id, submission_id=submission_id,
                    attempt=attempt, gone=gone, ownership_key=ownership_key,
                )
            )
        )  # fmt: skip
        return (result.lease_s, result.renew_s) if isinstance(result, m.GrantLease) else (0.0, 0.0)

    async def kill(self, submission_id: str, reason: str) -> SubmissionEntry:
        await self._call(
            lambda call_id: self._host.take(
                m.KillAsked(
                    now=self.now(), call_id=call_id, submission_id=submission_id, reason=reason
                )
            )
        )
        return self.find(submission_id)

    async def renew_tie(self, submission_id: str, ownership_key: str) -> None:
        """The client of a submission still waits for it.

        Raises:
            NotFound: no such submission.
            NotOwner: the submission has another key.
        """
        await self._call(
            lambda call_id: self._host.take(
                m.TieRenewed(
                    now=self.now(), call_id=call_id, submission_id=submission_id,
                    ownership_key=ownership_key,
                )
            )
        )  # fmt: skip

    def find(self, submission_id: str) -> SubmissionEntry:
        """Raises NotFound."""
        entry = self.core.entries.get(submission_id)
        if entry is None:
            raise NotFound(
                f"no such submission: {submission_id!r}; hrm submissions --all lists them"
            )
        return entry

    def host_of(self, entry: SubmissionEntry) -> str:
        """The host of the node that has its driver; empty where there is none."""
        node = self._master.core.master_state.nodes.get(NodeName(entry.node))
        return "" if node is None else node.host

    def waits_for(self, entry: SubmissionEntry) -> str:
        """Why its driver is not given a place yet; empty where that is not held up."""
        record = entry.record
        name = container_id_of(ApplicationId(record.submission_id), str(record.attempt))
        master_state = self._master.core.master_state
        driver = master_state.drivers.get(name)
        if driver is None:
            return ""
        if driver.waits_for is not None:
            return driver.waits_for.why
        app = master_state.applications.get(driver.application_id)
        kept = app.kept if app is not None and driver.withheld else None
        return "" if kept is None else kept.why

    async def watch(self, submission_id: str) -> AsyncIterator[SubmissionEntry]:
        """The submission as it is, and again after changes, until it has ended."""
        changed = asyncio.Event()
        self._watchers[submission_id].add(changed)
        try:
            while True:
                changed.clear()
                entry = self.find(submission_id)
                has_ended = entry.record.state.ended  # it may end while the reader takes this
                yield entry
                if has_ended:
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
        self.core.check_driver(submission_id, attempt, ownership_key)

    def registered(self, submission_id: str, attempt: int, application_id: str) -> None:
        linked = m.DriverLinked(
            now=self.now(), submission_id=submission_id, attempt=attempt,
            application_id=application_id,
        )  # fmt: skip
        self._carry_out(self._host.take(linked))

    # --- steps --------------------------------------------------------------------------------

    def notice_received(self, submission_id: str, notice: Any) -> None:
        """Take in a notice about a submission's driver."""
        self._carry_out(self._host.notice_received(submission_id, notice, self.now()))

    async def _call(self, begin: Callable[[int], list[hosting.Step]]) -> Any:
        """The result of the call that ``begin`` makes of a call id."""
        self._call_count += 1
        call_id = self._call_count
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._carry_out(begin(call_id))
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the master is overloaded; try again") from None
        finally:
            del self._calls[call_id]

    def _carry_out(self, steps: list[hosting.Step]) -> None:
        """A failure ends the master, whose state this shares."""
        master = self._master
        for step in steps:
            match step:
                case hosting.WriteSubmission():
                    self._begin(self._write(step))
                case hosted.SubmitToMaster():
                    master.submit(replace(step.event, now=master.now()))
                    if isinstance(step.because, m.EndHolder):
                        log.info(
                            "submission ended", submission=step.because.submission_id,
                            state=step.because.state.value, why=step.because.message,
                        )  # fmt: skip
                case hosted.CallMaster():
                    self._begin(self._call_master(step))
                case hosted.Listen():
                    take = partial(self.notice_received, step.application_id)
                    master.application_outboxes[step.application_id] = NoticeForwarder(take)
                case hosted.StopListening():
                    master.application_outboxes.pop(step.application_id, None)
                case hosting.CompleteCall():
                    self._complete_call(step.call_id, step.result)
                case hosting.NotifyWatchers():
                    self._drop_tokens(step.submission_id)
                    for changed in self._watchers.get(step.submission_id, ()):
                        changed.set()

    def _drop_tokens(self, submission_id: str) -> None:
        """Once it has ended. A restarted driver gets the same again."""
        entry = self.core.entries.get(submission_id)
        if entry is None or entry.record.state.ended:
            self._tokens.drop(submission_id)

    def _begin(self, work: Coroutine[Any, Any, list[hosting.Step]]) -> None:
        task = asyncio.create_task(self._follow(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, work: Coroutine[Any, Any, list[hosting.Step]]) -> None:
        try:
            self._carry_out(await work)
        except Exception as error:
            self._failed(error)

    async def _write(self, step: hosting.WriteSubmission) -> list[hosting.Step]:
        store = self._master.store
        match step.command:
            case m.PersistSubmission():
                await store.put_submission(step.command.record)
            case m.ForgetSubmission():
                await store.forget_submission(step.command.submission_id)
        return self._host.written(step.number, self.now())

    async def _call_master(self, step: hosted.CallMaster) -> list[hosting.Step]:
        master = self._master
        reply: c.Reply | c.Refuse
        try:
            result = await master.call(
                lambda call_id: replace(step.event, now=master.now(), call_id=call_id)
            )
            reply = c.Reply(call_id=0, result=result)
        except HrmError as error:
            log.warning(
                "the holder of a driver is refused",
                submission=step.application_id, why=error.message,
            )  # fmt: skip
            reply = c.Refuse(call_id=0, error=error)
        return self._host.reply_received(step.number, reply, self.now())

    def _complete_call(self, call_id: int, result: Any) -> None:
        future = self._calls.get(call_id)
        if future is None or future.done():
            return
        if isinstance(result, HrmError):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def _tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._carry_out(self._host.take(m.SubmissionsTicked(now=self.now())))

    def _files_needed(self) -> set[str]:
        """Hashes: of live submissions, and of what executors of live applications start with."""
        live = self._master.core.master_state.live_applications()
        return self.core.files() | {file.sha256 for app in live for file in app.launch.files}

    async def _clean_forever(self) -> None:
        while True:
            try:
                removed = await self.files.clean(self._files_needed(), self._keep_s)
            except OSError as error:
                removed = 0
                log.warning("cannot remove files", why=str(error))
            if removed:
                log.info("removed files that nothing needs", files=removed)
            await asyncio.sleep(min(CLEAN_INTERVAL_S, max(1.0, self._keep_s)))
