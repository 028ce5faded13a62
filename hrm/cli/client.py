"""One connection to the master's services; ``hrm.address`` selects the master."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from hrm.address import default_master, token_file
from hrm.errors import HrmError

PAGES_MAX = 10_000

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.identity_pb2_grpc import IdentityServiceStub
    from hrm.v1.pipeline_pb2_grpc import PipelineServiceStub
    from hrm.v1.policy_pb2_grpc import PolicyServiceStub
    from hrm.v1.queues_pb2_grpc import QueueServiceStub
    from hrm.v1.submission_pb2_grpc import SubmissionServiceStub

__all__ = ["Master", "all_pages", "connect", "connected", "document"]


class Master(NamedTuple):
    """The services of one master."""

    admin: AdminServiceStub
    policies: PolicyServiceStub
    events: EventServiceStub
    submissions: SubmissionServiceStub
    identities: IdentityServiceStub
    queues: QueueServiceStub
    pipelines: PipelineServiceStub


A = TypeVar("A", bound="Message")


def all_pages(
    call: Callable[..., A],
    request: Any,
    timeout_s: float,
    is_enough: Callable[[A], bool] = lambda _: False,
) -> A:
    """The response of a list's ``call``, with all pages in one; ``timeout_s``: for each page.
    With fewer, and the token of the next one, where those so far are enough.

    Raises:
        HrmError: the pages do not end.
    """
    asked = type(request)()
    asked.CopyFrom(request)
    response: Any = call(asked, timeout=timeout_s)
    token = response.next_page_token
    for _ in range(PAGES_MAX):
        if not token:
            response.ClearField("next_page_token")
            return cast("A", response)
        if is_enough(response):
            return cast("A", response)
        asked.page_token = token
        more: Any = call(asked, timeout=timeout_s)
        response.MergeFrom(more)
        token = response.next_page_token = more.next_page_token
    raise HrmError(f"the list does not end: the master has sent {PAGES_MAX} pages of it")


def document(message: Message) -> dict[str, Any]:
    """``message`` as protobuf's JSON, empty fields included; a list's, with all its pages."""
    from google.protobuf.json_format import MessageToDict

    values: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    values.pop("next_page_token", None)
    return values


def connect(master: str | None) -> AbstractContextManager[Master]:
    """A connection for the length of a ``with``; failed calls leave it as ``HrmError``.

    Raises:
        HrmError: no token, no answer in time, or the master's refusal.
    """
    from hrm import tls

    token = token_file(master)
    return connected(default_master(master), token, tls.ca_file(token))


@contextmanager
def connected(target: str, token_path: Path, ca_path: Path | None) -> Iterator[Master]:
    """As ``connect``, to ``target`` (host:port), regardless of the environment."""
    import grpc

    from hrm import rpc, tls
    from hrm.v1.admin_pb2_grpc import AdminServiceStub
    from hrm.v1.events_pb2_grpc import EventServiceStub
    from hrm.v1.identity_pb2_grpc import IdentityServiceStub
    from hrm.v1.pipeline_pb2_grpc import PipelineServiceStub
    from hrm.v1.policy_pb2_grpc import PolicyServiceStub
    from hrm.v1.queues_pb2_grpc import QueueServiceStub
    from hrm.v1.submission_pb2_grpc import SubmissionServiceStub

    with rpc.sync_channel(target, rpc.read_token(token_path), tls.read_ca(ca_path)) as channel:
        try:
            yield Master(
                AdminServiceStub(channel),
                PolicyServiceStub(channel),
                EventServiceStub(channel),
                SubmissionServiceStub(channel),
                IdentityServiceStub(channel),
                QueueServiceStub(channel),
                PipelineServiceStub(channel),
            )
        except grpc.RpcError as error:
            raise rpc.error_from(error, target) from error
