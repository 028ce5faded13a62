"""ApplicationService: how AppMasters register and hold their sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm import rpc_server
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId
from hrm.identity.caller import check_scope, check_user, speaks_for, user_of
from hrm.master.interpreter import Interpreter, Outbox
from hrm.master.user_groups import UserGroups
from hrm.v1 import application_pb2 as pb
from hrm.v1 import application_pb2_grpc
from hrm.wire import applications as app_wire

__all__ = ["ApplicationService"]

STATUSES_MAX = 1_000

log = structlog.get_logger("master.applications")

_Register: TypeAlias = grpc.aio.ServicerContext[
    pb.RegisterApplicationRequest, pb.RegisterApplicationResponse
]
_Session: TypeAlias = grpc.aio.ServicerContext[pb.ApplicationUpdate, pb.ApplicationNotice]


class ApplicationService(application_pb2_grpc.ApplicationServiceServicer):
    """Turns messages of AppMasters into events, and notices into messages.

    ``may_register`` raises if the driver of a submission may not register; ``registered`` is called
    with the application of one that did. ``token_of``: the token that an application has of its
    own, by its id and its user.
    """

    def __init__(
        self,
        master: Interpreter,
        heartbeat_interval_s: float,
        may_register: Callable[[str, int, str], None],
        registered: Callable[[str, int, str], None],
        token_of: Callable[[str, str], str],
        groups: UserGroups,
    ) -> None:
        self._token_of = token_of
        self._master = master
        self._may_register = may_register
        self._registered = registered
        self._groups = groups
        self._heartbeat_interval_s = heartbeat_interval_s
        self._sessions = itertools.count(1)

    async def Register(  # noqa: N802
        self, request: pb.RegisterApplicationRequest, context: _Register
    ) -> pb.RegisterApplicationResponse:
        check_scope(request.submission_id, request.application_id)
        request.user = user_of(request.user)
        known = self._master.core.master_state.applications.get(
            ApplicationId(request.application_id)
        )
        if known is not None:
            check_user(
                known.application_id, known.record.user, known.application_id,
                known.record.submission_id,
            )  # fmt: skip
        if request.submission_id:
            self._may_register(
                request.submission_id,
                request.submission_attempt,
                request.submission_ownership_key,
            )
        groups = await self._groups.of(request.user)
        proven = speaks_for(request.application_id)
        result = await self._master.call(
            lambda call_id: app_wire.to_registration(
                request, call_id, self._master.now(), groups, proven=proven
            )
        )
        assert isinstance(result, c.ApplicationAdmitted)
        if request.submission_id:
            self._registered(
                request.submission_id, request.submission_attempt, result.application_id
            )
        log.info("application registered", application=result.application_id, name=request.name)
        node_timeout_s = self._master.core.master_state.bounds.node_timeout_s
        token = self._token_of(result.application_id, result.user)
        return app_wire.from_admitted(result, self._heartbeat_interval_s, node_timeout_s, token)

    async def Session(self, requests: Any, context: _Session) -> None:  # noqa: N802
        """One AppMaster's session, from its attachment to its end."""
        session = next(self._sessions)
        first = await rpc_server.first_message(requests, "`attach`")
        attached = app_wire.to_attachment(first, session, self._master.now())
        application_id = attached.application_id
        self._check(attached)
        outbox = Outbox()
        self._take_over(application_id, outbox)
        try:
            admitted = await self._master.call(lambda call_id: replace(attached, call_id=call_id))
            assert isinstance(admitted, c.ApplicationAdmitted)
            # Before anything is read, so that no refusal collides with this first write.
            await context.write(app_wire.attached(admitted))
            await rpc_server.both_ways(
                self._read(requests, application_id), _write(outbox, context)
            )
        finally:
            # Also where no reply came, as the disk is full or the client has left: the core has
            # attached it.
            self._detach(application_id, session, outbox)

    def _check(self, attached: e.ApplicationAttached) -> None:
        """May this session be opened? If not, the one that it would replace stays as it is."""
        application_id = attached.application_id
        refusal = self._master.core.applications.attach_refusal(attached)
        if refusal is not None:
            raise refusal
        record = self._master.core.master_state.applications[application_id].record
        check_user(application_id, record.user, application_id, record.submission_id)

    def _take_over(self, application_id: ApplicationId, outbox: Outbox) -> None:
        """Messages go to this session from the core's reply on; the one before it is over."""
        outboxes = self._master.application_outboxes
        previous = outboxes.get(application_id)
        outboxes[application_id] = outbox
        if previous is not None:
            previous.close()

    def _detach(self, application_id: ApplicationId, session: int, outbox: Outbox) -> None:
        if self._master.application_outboxes.get(application_id) is outbox:
            del self._master.application_outboxes[application_id]
        event = e.ApplicationDetached(
            now=self._master.now(), application_id=application_id, session=session
        )
        self._master.submit(event)

    async def _read(self, requests: Any, application_id: ApplicationId) -> None:
        async for update in requests:
            event = app_wire.to_event(update, application_id, self._master.now())
            if event is not None:
                self._master.submit(event)


async def _write(outbox: Outbox, context: _Session) -> None:
    while notices := await outbox.take():
        for kind, some in itertools.groupby(notices, key=type):
            run = list(some)
            if kind is c.ContainerChanged and len(run) > 1:
                statuses = [x.status for x in run if isinstance(x, c.ContainerChanged)]
                for first in range(0, len(run), STATUSES_MAX):
                    some_of_them = statuses[first : first + STATUSES_MAX]
                    await context.write(app_wire.from_changes(some_of_them))
                continue
            for notice in run:
                assert isinstance(notice, c.Notice)
                await context.write(app_wire.from_notice(notice))
