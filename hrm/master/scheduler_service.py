"""SharedStateService: how schedulers in other processes see the state and propose claims."""

from __future__ import annotations

import secrets
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged, Subscribed
from hrm.errors import HrmError
from hrm.identity.caller import check_name
from hrm.master.interpreter import Interpreter, Outbox, drain
from hrm.v1 import scheduler_pb2 as pb
from hrm.v1 import scheduler_pb2_grpc
from hrm.wire import codec
from hrm.wire import shared_state as state_wire

__all__ = ["SharedStateService", "add_to_server"]

_SERVICE = pb.DESCRIPTOR.services_by_name["SharedStateService"].full_name
_SESSION_BITS = 62

log = structlog.get_logger("master.schedulers")

_Subscription: TypeAlias = grpc.aio.ServicerContext[pb.SubscribeRequest, bytes]


def add_to_server(service: SharedStateService, server: grpc.aio.Server) -> None:
    """The generated registration, but for ``Subscribe``: what it writes is bytes already."""
    subscribe = grpc.unary_stream_rpc_method_handler(
        service.Subscribe, request_deserializer=pb.SubscribeRequest.FromString
    )
    # Of two handlers of a method, gRPC calls the one that was added first.
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Subscribe": subscribe}),)
    )
    scheduler_pb2_grpc.add_SharedStateServiceServicer_to_server(service, server)


class SharedStateService(scheduler_pb2_grpc.SharedStateServiceServicer):
    """Turns calls of schedulers into events, and changes into messages."""

    def __init__(self, master: Interpreter) -> None:
        self._master = master
        self._changes = state_wire.ChangeEncoder()

    async def Subscribe(  # noqa: N802
        self, request: pb.SubscribeRequest, context: _Subscription
    ) -> None:
        """One scheduler's session, from its beginning to its end."""
        # Random, and sent to the subscriber alone: a call needs the number to propose, or to use a
        # lease, as this scheduler. Numbers of an earlier master are therefore useless.
        session = secrets.randbits(_SESSION_BITS) + 1
        outbox = Outbox()
        try:
            name = codec.to_name(request.name, "name")
            check_name(name, "scheduler")
            followed = codec.to_followed(request)
            self._master.scheduler_outboxes[name, session] = outbox
            hello = await self._master.call(
                lambda call_id: e.SchedulerConnected(
                    now=self._master.now(),
                    call_id=call_id,
                    scheduler=name,
                    session=session,
                    followed=followed,
                )
            )
        except HrmError:
            self._master.scheduler_outboxes.pop((request.name, session), None)
            raise
        assert isinstance(hello, Subscribed)
        log.info("scheduler subscribed", scheduler=name)
        try:
            await context.write(state_wire.subscribed(hello).SerializeToString())

            async def send(message: Any) -> None:
                assert isinstance(message, StateChanged)
                await context.write(self._changes.encode(message))

            await drain(outbox, send)
        finally:
            self._changes.forget()
            del self._master.scheduler_outboxes[name, session]
            self._master.submit(
                e.SchedulerDisconnected(now=self._master.now(), scheduler=name, session=session)
            )
            log.info("scheduler disconnected", scheduler=name)

    async def Propose(self, request: pb.ProposeRequest, context: Any) -> pb.ProposeResponse:  # noqa: N802
        result = await self._master.call(
            lambda call_id: state_wire.to_claims(request, call_id, self._master.now())
        )
        assert isinstance(result, c.ClaimsSettled)
        return state_wire.from_outcomes(result)

    async def AcquireLease(  # noqa: N802
        self, request: pb.AcquireLeaseRequest, context: Any
    ) -> pb.AcquireLeaseResponse:
        result = await self._master.call(
            lambda call_id: state_wire.to_lease_request(request, call_id, self._master.now())
        )
        assert isinstance(result, c.LeaseGranted)
        return state_wire.from_lease(result)

    async def ReleaseLease(  # noqa: N802
        self, request: pb.ReleaseLeaseRequest, context: Any
    ) -> pb.ReleaseLeaseResponse:
        await self._master.call(
            lambda call_id: state_wire.to_lease_return(request, call_id, self._master.now())
        )
        return pb.ReleaseLeaseResponse()
