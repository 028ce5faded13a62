from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResourceRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_ROLE_UNSPECIFIED: _ClassVar[ResourceRole]
    RESOURCE_ROLE_MAIN: _ClassVar[ResourceRole]
    RESOURCE_ROLE_PY_FILE: _ClassVar[ResourceRole]
    RESOURCE_ROLE_JAR: _ClassVar[ResourceRole]
    RESOURCE_ROLE_FILE: _ClassVar[ResourceRole]
    RESOURCE_ROLE_ARCHIVE: _ClassVar[ResourceRole]
    RESOURCE_ROLE_CONF: _ClassVar[ResourceRole]

class SubmissionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBMISSION_STATE_UNSPECIFIED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_SUBMITTED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_LAUNCHING: _ClassVar[SubmissionState]
    SUBMISSION_STATE_RUNNING: _ClassVar[SubmissionState]
    SUBMISSION_STATE_WAITING_TO_RESTART: _ClassVar[SubmissionState]
    SUBMISSION_STATE_KILLING: _ClassVar[SubmissionState]
    SUBMISSION_STATE_FINISHED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_FAILED: _ClassVar[SubmissionState]
    SUBMISSION_STATE_KILLED: _ClassVar[SubmissionState]
RESOURCE_ROLE_UNSPECIFIED: ResourceRole
RESOURCE_ROLE_MAIN: ResourceRole
RESOURCE_ROLE_PY_FILE: ResourceRole
RESOURCE_ROLE_JAR: ResourceRole
RESOURCE_ROLE_FILE: ResourceRole
RESOURCE_ROLE_ARCHIVE: ResourceRole
RESOURCE_ROLE_CONF: ResourceRole
SUBMISSION_STATE_UNSPECIFIED: SubmissionState
SUBMISSION_STATE_SUBMITTED: SubmissionState
SUBMISSION_STATE_LAUNCHING: SubmissionState
SUBMISSION_STATE_RUNNING: SubmissionState
SUBMISSION_STATE_WAITING_TO_RESTART: SubmissionState
SUBMISSION_STATE_KILLING: SubmissionState
SUBMISSION_STATE_FINISHED: SubmissionState
SUBMISSION_STATE_FAILED: SubmissionState
SUBMISSION_STATE_KILLED: SubmissionState

class FileDigest(_message.Message):
    __slots__ = ("sha256", "size_bytes", "name")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size_bytes: int
    name: str
    def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class FindFilesRequest(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileDigest]
    def __init__(self, files: _Optional[_Iterable[_Union[FileDigest, _Mapping]]] = ...) -> None: ...

class FindFilesResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class PutPieceRequest(_message.Message):
    __slots__ = ("file", "offset", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: FileDigest
    offset: int
    data: bytes
    def __init__(self, file: _Optional[_Union[FileDigest, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutPieceResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class GetFileRequest(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FilePiece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DriverResource(_message.Message):
    __slots__ = ("role", "name", "file", "uri", "fragment")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    role: ResourceRole
    name: str
    file: FileDigest
    uri: str
    fragment: str
    def __init__(self, role: _Optional[_Union[ResourceRole, str]] = ..., name: _Optional[str] = ..., file: _Optional[_Union[FileDigest, _Mapping]] = ..., uri: _Optional[str] = ..., fragment: _Optional[str] = ...) -> None: ...

class DriverSpec(_message.Message):
    __slots__ = ("name", "user", "main_class", "arguments", "conf", "resources", "vcores", "memory_mib", "heap_mib", "supervise", "options", "tie_s", "serial_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MAIN_CLASS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CONF_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    VCORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    HEAP_MIB_FIELD_NUMBER: _ClassVar[int]
    SUPERVISE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TIE_S_FIELD_NUMBER: _ClassVar[int]
    SERIAL_KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    main_class: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    conf: _containers.RepeatedCompositeFieldContainer[SparkSetting]
    resources: _containers.RepeatedCompositeFieldContainer[DriverResource]
    vcores: int
    memory_mib: int
    heap_mib: int
    supervise: bool
    options: _containers.RepeatedScalarFieldContainer[str]
    tie_s: float
    serial_key: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ..., main_class: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., conf: _Optional[_Iterable[_Union[SparkSetting, _Mapping]]] = ..., resources: _Optional[_Iterable[_Union[DriverResource, _Mapping]]] = ..., vcores: _Optional[int] = ..., memory_mib: _Optional[int] = ..., heap_mib: _Optional[int] = ..., supervise: bool = ..., options: _Optional[_Iterable[str]] = ..., tie_s: _Optional[float] = ..., serial_key: _Optional[str] = ...) -> None: ...

class SparkSetting(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("key", "driver", "ownership_key", "tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: str
    driver: DriverSpec
    ownership_key: str
    tokens: bytes
    def __init__(self, key: _Optional[str] = ..., driver: _Optional[_Union[DriverSpec, _Mapping]] = ..., ownership_key: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("submission_id", "name", "user", "state", "supervise", "attempt", "application_ids", "node", "submitted_at_s", "started_at_s", "ended_at_s", "restart_at_s", "exit_code", "message", "server_address")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUPERVISE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_AT_S_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SERVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    name: str
    user: str
    state: SubmissionState
    supervise: bool
    attempt: int
    application_ids: _containers.RepeatedScalarFieldContainer[str]
    node: str
    submitted_at_s: float
    started_at_s: float
    ended_at_s: float
    restart_at_s: float
    exit_code: int
    message: str
    server_address: str
    def __init__(self, submission_id: _Optional[str] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[_Union[SubmissionState, str]] = ..., supervise: bool = ..., attempt: _Optional[int] = ..., application_ids: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ..., submitted_at_s: _Optional[float] = ..., started_at_s: _Optional[float] = ..., ended_at_s: _Optional[float] = ..., restart_at_s: _Optional[float] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., server_address: _Optional[str] = ...) -> None: ...

class GetSubmissionRequest(_message.Message):
    __slots__ = ("submission_id",)
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    def __init__(self, submission_id: _Optional[str] = ...) -> None: ...

class ListSubmissionsRequest(_message.Message):
    __slots__ = ("include_ended", "page_size", "page_token", "limit")
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    include_ended: bool
    page_size: int
    page_token: str
    limit: int
    def __init__(self, include_ended: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSubmissionsResponse(_message.Message):
    __slots__ = ("submissions", "next_page_token")
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    next_page_token: str
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class KillSubmissionRequest(_message.Message):
    __slots__ = ("submission_id", "reason")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    reason: str
    def __init__(self, submission_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TieSubmissionRequest(_message.Message):
    __slots__ = ("submission_id", "ownership_key")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    ownership_key: str
    def __init__(self, submission_id: _Optional[str] = ..., ownership_key: _Optional[str] = ...) -> None: ...

class TieSubmissionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseDriverRequest(_message.Message):
    __slots__ = ("submission_id", "attempt", "gone", "ownership_key")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    attempt: int
    gone: bool
    ownership_key: str
    def __init__(self, submission_id: _Optional[str] = ..., attempt: _Optional[int] = ..., gone: bool = ..., ownership_key: _Optional[str] = ...) -> None: ...

class LeaseDriverResponse(_message.Message):
    __slots__ = ("lease_s", "renew_s")
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    RENEW_S_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    renew_s: float
    def __init__(self, lease_s: _Optional[float] = ..., renew_s: _Optional[float] = ...) -> None: ...

class GetTokensRequest(_message.Message):
    __slots__ = ("submission_id", "attempt", "ownership_key")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    attempt: int
    ownership_key: str
    def __init__(self, submission_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ownership_key: _Optional[str] = ...) -> None: ...

class GetTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    def __init__(self, tokens: _Optional[bytes] = ...) -> None: ...
