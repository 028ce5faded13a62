"""The master as the AppMaster of pipelines: carries out the steps of ``PipelinesCore`` on its loop.

As ``hrm.master.submission_interpreter`` does for drivers: applications are registered with the
master's core, it is attached to them, and their notices come back here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from hrm import clock
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.hosted import CallMaster, Listen, StopListening, SubmitToMaster
from hrm.core.vocabulary.model import ApplicationId, ContainerId, LaunchContext, NodeName
from hrm.errors import AlreadyExists, HrmError, LimitReached, NotFound, Unavailable
from hrm.master.interpreter import Interpreter, NoticeForwarder
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.pipelines.core.workload import WorkloadKey
from hrm.pipelines.core.workload_steps import CompleteOpening, FollowCommand, WorkloadStep

__all__ = ["WorkloadHost"]

log = structlog.get_logger("master.pipelines")


async def _no_groups(_user: str) -> tuple[str, ...]:
    return ()


class WorkloadHost:
    """Around the workloads of one master. ``groups_of``: of a user, for the rules that choose its
    queue."""

    def __init__(
        self,
        master: Interpreter,
        workloads: PipelinesCore,
        token_of: Callable[[str, str], str],
        follow: Callable[[m.ClusterCommand], None],
    ) -> None:
        """``token_of``: the token that an application has of its own, by its id and its user;
        ``follow`` carries out what concerns tasks and workers."""
        self._master = master
        self._workloads = workloads
        self._token_of = token_of
        self._follow = follow
        self.groups_of: Callable[[str], Awaitable[tuple[str, ...]]] = _no_groups
        self._openings: dict[int, asyncio.Future[ApplicationId]] = {}
        self._numbers = itertools.count(1)
        self._calls: set[asyncio.Task[None]] = set()

    def carry_out(self, decide: Callable[[], list[WorkloadStep]]) -> None:
        """Carry out what the core decides. A bug in it ends the master, whose state it shares.

        Raises:
            HrmError: it refuses.
        """
        try:
            steps = decide()
        except (AlreadyExists, LimitReached, NotFound, Unavailable):
            raise
        except Exception as error:
            log.critical("core of pipelines failed", exc_info=True)
            self.stop_master(error)
            return
        for step in steps:
            self._carry_out(step)

    def age_s(self, worker: NodeName) -> float:
        """How long ago the application of this worker began, which no worker of it precedes; 0: it
        is not known here."""
        workload = self._workloads.of_worker.get(ContainerId(worker))
        known = self._master.core.master_state.applications
        app = None if workload is None else known.get(workload.application_id)
        return 0.0 if app is None else max(0.0, clock.now() - app.record.submitted_at_s)

    def stop_master(self, error: Exception) -> None:
        """After a bug: what its state may be is not known."""
        if not self._master.stopped.done():
            failed = HrmError(f"pipelines could not be processed: {error!r}")
            self._master.stopped.set_result(failed)

    def _carry_out(self, step: WorkloadStep) -> None:
        outboxes = self._master.application_outboxes
        match step:
            case SubmitToMaster():
                self._master.submit(replace(step.event, now=clock.now()))
            case CallMaster():
                call = asyncio.create_task(self._ask(step))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
            case Listen():
                take = partial(self._notice_received, step.application_id)
                outboxes[step.application_id] = NoticeForwarder(take)
            case StopListening():
                outboxes.pop(step.application_id, None)
            case CompleteOpening():
                self._opened(step)
            case FollowCommand():
                self._follow(step.command)

    async def _ask(self, step: CallMaster) -> None:
        """Make the call that a step is about, and pass on the reply."""
        app_id = step.application_id
        reply: c.Reply | c.Refuse
        try:
            reply = c.Reply(call_id=0, result=await self._call(step.event, app_id))
        except HrmError as error:
            log.warning("a workload is refused", application=app_id, why=error.message)
            reply = c.Refuse(call_id=0, error=error)
        self.carry_out(partial(self._workloads.reply_received, app_id, reply, clock.now()))

    async def _call(
        self, event: e.ApplicationRegistered | e.ApplicationAttached, app_id: ApplicationId
    ) -> c.CallResult:
        if isinstance(event, e.ApplicationRegistered):
            groups = await self.groups_of(event.user)
            event = replace(event, launch=self._launch(app_id, event.user), groups=groups)
        return await self._master.call(
            lambda call_id: replace(event, now=clock.now(), call_id=call_id)
        )

    def _launch(self, application_id: ApplicationId, user: str) -> LaunchContext:
        """What its workers need to start. They end on SIGTERM, once their steps have."""
        return LaunchContext(
            worker=json.dumps({"token": self._token_of(application_id, user)}),
            decommissions=True,
            decommission_signal="TERM",
        )

    def _notice_received(self, application_id: ApplicationId, notice: c.Notice) -> None:
        now = clock.now()
        self.carry_out(partial(self._workloads.notice_received, application_id, notice, now))

    def _opened(self, step: CompleteOpening) -> None:
        opening = self._openings.get(step.call_id)
        if opening is None or opening.done():
            return
        if isinstance(step.result, HrmError):
            opening.set_exception(step.result)
        else:
            opening.set_result(step.result)

    async def open(self, key: WorkloadKey, task_id: TaskId) -> ApplicationId:
        """The application of this workload, for a task that arrives, once it is admitted.

        Raises:
            HrmError: it is refused.
        """
        number = next(self._numbers)
        opening: asyncio.Future[ApplicationId] = asyncio.get_running_loop().create_future()
        self._openings[number] = opening
        try:
            self.carry_out(partial(self._workloads.open, number, key, task_id, clock.now()))
            return await opening
        finally:
            del self._openings[number]
