"""ApplicationService: how AppMasters register and ask."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm import ownership, rpc_server
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass
from hrm.errors import HrmError, InvalidRequest, Unavailable
from hrm.master.interpreter import Interpreter, Outbox
from hrm.v1 import application_pb2 as pb
from hrm.v1 import application_pb2_grpc
from hrm.wire import codec

__all__ = ["ApplicationService"]

FIRST_MESSAGE_TIMEOUT_S = 10.0
STATUSES_MAX = 1_000

log = structlog.get_logger("master.applications")

_Register: TypeAlias = grpc.aio.ServicerContext[
    pb.RegisterApplicationRequest, pb.RegisterApplicationResponse
]
_Session: TypeAlias = grpc.aio.ServicerContext[pb.ApplicationUpdate, pb.ApplicationNotice]


class ApplicationService(application_pb2_grpc.ApplicationServiceServicer):
    """Turns messages of AppMasters into events, and notices into messages.

    ``may_register`` raises where the driver of a submission may not; ``registered`` hears of the
    application of one that did.
    """

    def __init__(
        self,
        master: Interpreter,
        heartbeat_interval_s: float,
        may_register: Callable[[str, int, str], None] | None = None,
        registered: Callable[[str, int, str], None] | None = None,
    ) -> None:
        self._master = master
        self._may_register = may_register
        self._registered = registered
        self._heartbeat_interval_s = heartbeat_interval_s
        self._sessions = itertools.count(1)

    async def Register(  # noqa: N802
        self, request: pb.RegisterApplicationRequest, context: _Register
    ) -> pb.RegisterApplicationResponse:
        try:
            if request.submission_id and self._may_register is not None:
                self._may_register(
                    request.submission_id,
                    request.submission_attempt,
                    request.submission_ownership_key,
                )
            answer = await self._master.call(lambda call_id: self._registration(request, call_id))
        except HrmError as error:
            await rpc_server.abort(context, error)
        assert isinstance(answer, c.ApplicationAdmitted)
        if request.submission_id and self._registered is not None:
            self._registered(
                request.submission_id, request.submission_attempt, answer.application_id
            )
        log.info("application registered", application=answer.application_id, name=request.name)
        return pb.RegisterApplicationResponse(
            application_id=answer.application_id,
            epoch=answer.epoch,
            containers=[codec.from_status(x) for x in answer.containers],
            heartbeat_interval_s=self._heartbeat_interval_s,
            last_executor_number=answer.last_executor_number,
            epoch_id=answer.epoch_id,
        )

    async def Session(self, requests: Any, context: _Session) -> None:  # noqa: N802
        """One AppMaster's session, from its attachment to its end."""
        session = next(self._sessions)
        outbox = Outbox()
        try:
            admitted = await self._attach(requests, session, outbox)
        except HrmError as error:
            await rpc_server.abort(context, error)
        application_id = admitted.application_id
        hello = pb.AttachedApplication(
            epoch=admitted.epoch, containers=[codec.from_status(x) for x in admitted.containers]
        )
        reading = asyncio.create_task(self._read(requests, application_id))
        writing = asyncio.create_task(_write(outbox, hello, context))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            problem = reading.exception() if reading.done() else None
            if isinstance(problem, HrmError):
                await rpc_server.abort(context, problem)
        finally:
            self._detach(application_id, session, outbox)
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    def _registration(
        self, request: pb.RegisterApplicationRequest, call_id: int
    ) -> e.ApplicationRegistered:
        if request.application_id:
            codec.to_name(request.application_id, "application_id")
        return e.ApplicationRegistered(
            now=self._master.now(),
            call_id=call_id,
            application_id=ApplicationId(request.application_id),
            submission_key=codec.to_name(request.submission_key, "submission_key"),
            name=codec.to_text(request.name, "name"),
            user=codec.to_text(request.user, "user"),
            tenant=codec.to_text(request.tenant, "tenant"),
            spark_version=codec.to_text(request.spark_version, "spark_version"),
            driver_host=codec.to_text(request.driver_host, "driver_host"),
            web_url=codec.to_text(request.web_url, "web_url"),
            declared_class=codec.to_class(request.declared_class, "declared_class"),
            launch=codec.to_launch(request.launch),
            gang_min=codec.to_gang_min(request.gang_min),
            submission_id=codec.to_text(request.submission_id, "submission_id"),
            submission_attempt=request.submission_attempt,
            owner=ownership.owner_of(request.ownership_key),
            followed=codec.to_followed(request),
        )

    async def _attach(self, requests: Any, session: int, outbox: Outbox) -> c.ApplicationAdmitted:
        try:
            first = await asyncio.wait_for(anext(aiter(requests)), FIRST_MESSAGE_TIMEOUT_S)
        except StopAsyncIteration:
            raise InvalidRequest("the session ended before `attach`") from None
        except TimeoutError:  # or this process slept, and has not read it yet
            limit = f"{FIRST_MESSAGE_TIMEOUT_S:.0f} s"
            raise Unavailable(f"no `attach` came within {limit}; register again") from None
        if first.WhichOneof("update") != "attach":
            raise InvalidRequest("the first message of a session must be `attach`")
        name = codec.to_name(first.attach.application_id, "application_id")
        application_id = ApplicationId(name)
        attached = e.ApplicationAttached(
            now=self._master.now(),
            call_id=0,
            application_id=application_id,
            session=session,
            epoch=first.attach.epoch,
            owner=ownership.owner_of(first.attach.ownership_key),
        )
        refusal = self._master.core.applications.attach_refusal(attached)
        if refusal is not None:
            raise refusal
        previous = self._master.application_outboxes.get(application_id)
        self._master.application_outboxes[application_id] = outbox
        try:
            answer = await self._master.call(lambda call_id: replace(attached, call_id=call_id))
        except HrmError:
            if previous is None:
                self._master.application_outboxes.pop(application_id, None)
            else:
                self._master.application_outboxes[application_id] = previous
            raise
        except asyncio.CancelledError:
            # The client went away before it was answered; the core may have attached it already.
            self._detach(application_id, session, outbox)
            raise
        if previous is not None:
            previous.close()
        assert isinstance(answer, c.ApplicationAdmitted)
        return answer

    def _detach(self, application_id: ApplicationId, session: int, outbox: Outbox) -> None:
        if self._master.application_outboxes.get(application_id) is outbox:
            del self._master.application_outboxes[application_id]
        event = e.ApplicationDetached(
            now=self._master.now(), application_id=application_id, session=session
        )
        self._master.submit(event)

    async def _read(self, requests: Any, application_id: ApplicationId) -> None:
        async for update in requests:
            event = self._event(update, application_id)
            if event is not None:
                self._master.submit(event)

    def _event(
        self, update: pb.ApplicationUpdate, application_id: ApplicationId
    ) -> e.MasterEvent | None:
        now = self._master.now()
        match update.WhichOneof("update"):
            case "request":
                requests = tuple(
                    codec.to_request(
                        x.executor_id,
                        x.resource_profile_id,
                        x.resources,
                        x.heap_mib,
                        x.expected_duration_s,
                        x.gpus,
                        x.hosts,
                        x.locality_wait_s,
                    )
                    for x in update.request.containers
                )
                return e.ContainersRequested(
                    now=now,
                    application_id=application_id,
                    requests=requests,
                    again=update.request.again if update.request.HasField("again") else None,
                )
            case "release":
                return e.ContainersReleased(
                    now=now,
                    application_id=application_id,
                    executor_ids=tuple(
                        codec.to_name(x, "executor_ids") for x in update.release.executor_ids
                    ),
                    reason=codec.to_text(update.release.reason, "reason"),
                )
            case "progress":
                return e.ProgressReported(
                    now=now,
                    application_id=application_id,
                    progress=codec.to_progress(update.progress),
                )
            case "class_changed":
                change = update.class_changed
                observed = codec.to_class(change.workload_class, "workload_class")
                return e.WorkloadClassObserved(
                    now=now,
                    application_id=application_id,
                    workload_class=observed or WorkloadClass.BATCH,
                    evidence=codec.to_text(change.evidence, "evidence"),
                )
            case "finished":
                state = codec.to_application_state(update.finished.state, "state")
                if not state.ended:
                    raise InvalidRequest(f"an application cannot finish as {state.value}")
                return e.ApplicationFinished(
                    now=now,
                    application_id=application_id,
                    state=state,
                    message=codec.to_text(update.finished.message, "message"),
                )
            case "heartbeat":
                return None
            case kind:
                raise InvalidRequest(f"an attached application may not send {kind or 'nothing'}")


async def _write(outbox: Outbox, hello: pb.AttachedApplication, context: _Session) -> None:
    await context.write(pb.ApplicationNotice(attached=hello))
    while notices := await outbox.take():
        for kind, some in itertools.groupby(notices, key=type):
            run = list(some)
            if kind is c.ContainerChanged and len(run) > 1:
                for first in range(0, len(run), STATUSES_MAX):
                    await context.write(_changes(run[first : first + STATUSES_MAX]))
                continue
            for notice in run:
                await context.write(_message(notice))


def _changes(notices: Sequence[Any]) -> pb.ApplicationNotice:
    """Many notices of containers as one message: most of what a message costs is its journey."""
    statuses = [codec.from_status(notice.status) for notice in notices]
    return pb.ApplicationNotice(changed=pb.ContainersChanged(containers=statuses))


def _message(notice: c.NodeMessage | c.Notice | StateChanged) -> pb.ApplicationNotice:
    match notice:
        case c.ContainerChanged():
            return pb.ApplicationNotice(container=codec.from_status(notice.status))
        case c.RequestRefused():
            refused = pb.RequestRefused(
                executor_ids=notice.executor_ids,
                resource_profile_id=notice.resource_profile_id,
                message=notice.message,
            )
            return pb.ApplicationNotice(refused=refused)
        case c.EndApplication():
            end = pb.EndApplication(
                state=codec.APPLICATION_STATE[notice.state], message=notice.message
            )
            return pb.ApplicationNotice(end=end)
    raise AssertionError(f"{type(notice).__name__} is not for applications")
