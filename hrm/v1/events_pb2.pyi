from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchEventsRequest(_message.Message):
    __slots__ = ("application_id", "node", "since_s", "resume", "follow", "limit", "kinds")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    node: str
    since_s: float
    resume: str
    follow: bool
    limit: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, application_id: _Optional[str] = ..., node: _Optional[str] = ..., since_s: _Optional[float] = ..., resume: _Optional[str] = ..., follow: bool = ..., limit: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class EventPage(_message.Message):
    __slots__ = ("events", "resume", "gap")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[StateEvent]
    resume: str
    gap: bool
    def __init__(self, events: _Optional[_Iterable[_Union[StateEvent, _Mapping]]] = ..., resume: _Optional[str] = ..., gap: bool = ...) -> None: ...

class StateEvent(_message.Message):
    __slots__ = ("event_id", "at_s", "kind", "application_id", "container_id", "node", "from_state", "to_state", "reason", "actor", "cause", "exit_code")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    TO_STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    event_id: int
    at_s: float
    kind: str
    application_id: str
    container_id: str
    node: str
    from_state: str
    to_state: str
    reason: str
    actor: str
    cause: str
    exit_code: int
    def __init__(self, event_id: _Optional[int] = ..., at_s: _Optional[float] = ..., kind: _Optional[str] = ..., application_id: _Optional[str] = ..., container_id: _Optional[str] = ..., node: _Optional[str] = ..., from_state: _Optional[str] = ..., to_state: _Optional[str] = ..., reason: _Optional[str] = ..., actor: _Optional[str] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...
