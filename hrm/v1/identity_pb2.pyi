from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CallerIdentity(_message.Message):
    __slots__ = ("name", "kind", "role", "token_id", "expires_at_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    role: str
    token_id: str
    expires_at_s: float
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., role: _Optional[str] = ..., token_id: _Optional[str] = ..., expires_at_s: _Optional[float] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("name", "kind", "role", "lifetime_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    role: str
    lifetime_s: float
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., role: _Optional[str] = ..., lifetime_s: _Optional[float] = ...) -> None: ...

class CreatedToken(_message.Message):
    __slots__ = ("info", "token")
    INFO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    info: TokenInfo
    token: str
    def __init__(self, info: _Optional[_Union[TokenInfo, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("token_id", "name", "kind", "role", "created_at_s", "created_by", "expires_at_s", "revoked_at_s", "used_at_s", "used_by", "state")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_S_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_S_FIELD_NUMBER: _ClassVar[int]
    USED_AT_S_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    name: str
    kind: str
    role: str
    created_at_s: float
    created_by: str
    expires_at_s: float
    revoked_at_s: float
    used_at_s: float
    used_by: str
    state: str
    def __init__(self, token_id: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., role: _Optional[str] = ..., created_at_s: _Optional[float] = ..., created_by: _Optional[str] = ..., expires_at_s: _Optional[float] = ..., revoked_at_s: _Optional[float] = ..., used_at_s: _Optional[float] = ..., used_by: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ("include_ended", "name", "page_size", "page_token")
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    include_ended: bool
    name: str
    page_size: int
    page_token: str
    def __init__(self, include_ended: bool = ..., name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens", "next_page_token")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    next_page_token: str
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    def __init__(self, token_id: _Optional[str] = ...) -> None: ...

class EnrolNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ReadAuditRequest(_message.Message):
    __slots__ = ("name", "since_s", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    since_s: float
    limit: int
    def __init__(self, name: _Optional[str] = ..., since_s: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadAuditResponse(_message.Message):
    __slots__ = ("entries", "dropped")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    dropped: int
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("at_s", "name", "kind", "role", "token_id", "peer", "method", "what", "result")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    name: str
    kind: str
    role: str
    token_id: str
    peer: str
    method: str
    what: str
    result: str
    def __init__(self, at_s: _Optional[float] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., role: _Optional[str] = ..., token_id: _Optional[str] = ..., peer: _Optional[str] = ..., method: _Optional[str] = ..., what: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...
