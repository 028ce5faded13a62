from hrm.v1 import common_pb2 as _common_pb2
from hrm.v1 import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimDecision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLAIM_DECISION_UNSPECIFIED: _ClassVar[ClaimDecision]
    CLAIM_DECISION_RUN: _ClassVar[ClaimDecision]
    CLAIM_DECISION_QUEUE: _ClassVar[ClaimDecision]
    CLAIM_DECISION_ABORT: _ClassVar[ClaimDecision]
CLAIM_DECISION_UNSPECIFIED: ClaimDecision
CLAIM_DECISION_RUN: ClaimDecision
CLAIM_DECISION_QUEUE: ClaimDecision
CLAIM_DECISION_ABORT: ClaimDecision

class SubscribeRequest(_message.Message):
    __slots__ = ("name", "followed_epoch", "followed_epoch_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    followed_epoch: int
    followed_epoch_id: str
    def __init__(self, name: _Optional[str] = ..., followed_epoch: _Optional[int] = ..., followed_epoch_id: _Optional[str] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("subscribed", "change")
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    subscribed: Subscribed
    change: StateChange
    def __init__(self, subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., change: _Optional[_Union[StateChange, _Mapping]] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("session", "epoch", "waiting_limit", "wait_max_s", "default_duration_s", "retry_delay_s", "retry_delay_max_s", "epoch_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MAX_S_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MAX_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    waiting_limit: int
    wait_max_s: float
    default_duration_s: float
    retry_delay_s: float
    retry_delay_max_s: float
    epoch_id: str
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., waiting_limit: _Optional[int] = ..., wait_max_s: _Optional[float] = ..., default_duration_s: _Optional[float] = ..., retry_delay_s: _Optional[float] = ..., retry_delay_max_s: _Optional[float] = ..., epoch_id: _Optional[str] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("sequence", "now_s", "units", "gone", "jobs", "room", "properties")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    now_s: float
    units: _containers.RepeatedCompositeFieldContainer[UnitImage]
    gone: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedCompositeFieldContainer[JobImage]
    room: bool
    properties: _containers.RepeatedCompositeFieldContainer[UnitProperties]
    def __init__(self, sequence: _Optional[int] = ..., now_s: _Optional[float] = ..., units: _Optional[_Iterable[_Union[UnitImage, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[_Union[JobImage, _Mapping]]] = ..., room: bool = ..., properties: _Optional[_Iterable[_Union[UnitProperties, _Mapping]]] = ...) -> None: ...

class UnitProperties(_message.Message):
    __slots__ = ("resource_unit_id", "properties")
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    resource_unit_id: str
    properties: _common_pb2.NodeProperties
    def __init__(self, resource_unit_id: _Optional[str] = ..., properties: _Optional[_Union[_common_pb2.NodeProperties, _Mapping]] = ...) -> None: ...

class UnitImage(_message.Message):
    __slots__ = ("unit", "node", "open", "waiting_limit", "running", "stream_waiting", "batch_waiting", "yielding_waiting")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WAITING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STREAM_WAITING_FIELD_NUMBER: _ClassVar[int]
    BATCH_WAITING_FIELD_NUMBER: _ClassVar[int]
    YIELDING_WAITING_FIELD_NUMBER: _ClassVar[int]
    unit: _node_pb2.ResourceUnit
    node: str
    open: bool
    waiting_limit: int
    running: _containers.RepeatedCompositeFieldContainer[QueueEntry]
    stream_waiting: _containers.RepeatedCompositeFieldContainer[QueueEntry]
    batch_waiting: _containers.RepeatedCompositeFieldContainer[QueueEntry]
    yielding_waiting: _containers.RepeatedCompositeFieldContainer[QueueEntry]
    def __init__(self, unit: _Optional[_Union[_node_pb2.ResourceUnit, _Mapping]] = ..., node: _Optional[str] = ..., open: bool = ..., waiting_limit: _Optional[int] = ..., running: _Optional[_Iterable[_Union[QueueEntry, _Mapping]]] = ..., stream_waiting: _Optional[_Iterable[_Union[QueueEntry, _Mapping]]] = ..., batch_waiting: _Optional[_Iterable[_Union[QueueEntry, _Mapping]]] = ..., yielding_waiting: _Optional[_Iterable[_Union[QueueEntry, _Mapping]]] = ...) -> None: ...

class QueueEntry(_message.Message):
    __slots__ = ("container_id", "workload_class", "demand", "duration_s", "started_at_s", "passed", "yields")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    workload_class: _common_pb2.WorkloadClass
    demand: _containers.RepeatedScalarFieldContainer[int]
    duration_s: float
    started_at_s: float
    passed: int
    yields: bool
    def __init__(self, container_id: _Optional[str] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., demand: _Optional[_Iterable[int]] = ..., duration_s: _Optional[float] = ..., started_at_s: _Optional[float] = ..., passed: _Optional[int] = ..., yields: bool = ...) -> None: ...

class JobImage(_message.Message):
    __slots__ = ("application_id", "workload_class", "gang", "pending", "avoid", "gpu_parts", "requires")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    GPU_PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    workload_class: _common_pb2.WorkloadClass
    gang: int
    pending: _containers.RepeatedCompositeFieldContainer[PendingContainer]
    avoid: _containers.RepeatedScalarFieldContainer[str]
    gpu_parts: _containers.RepeatedCompositeFieldContainer[GpuPart]
    requires: _common_pb2.NodeRequirement
    def __init__(self, application_id: _Optional[str] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., gang: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[PendingContainer, _Mapping]]] = ..., avoid: _Optional[_Iterable[str]] = ..., gpu_parts: _Optional[_Iterable[_Union[GpuPart, _Mapping]]] = ..., requires: _Optional[_Union[_common_pb2.NodeRequirement, _Mapping]] = ...) -> None: ...

class GpuPart(_message.Message):
    __slots__ = ("starts", "queues", "demand")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    starts: int
    queues: int
    demand: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[int] = ..., queues: _Optional[int] = ..., demand: _Optional[_Iterable[int]] = ...) -> None: ...

class PendingContainer(_message.Message):
    __slots__ = ("container_id", "executor_id", "resource_profile_id", "resources", "expected_duration_s", "requested_at_s", "near", "locality_wait_s", "platform", "platform_until_s", "yields")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    LOCALITY_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    executor_id: str
    resource_profile_id: int
    resources: _common_pb2.Resources
    expected_duration_s: float
    requested_at_s: float
    near: _containers.RepeatedScalarFieldContainer[str]
    locality_wait_s: float
    platform: str
    platform_until_s: float
    yields: bool
    def __init__(self, container_id: _Optional[str] = ..., executor_id: _Optional[str] = ..., resource_profile_id: _Optional[int] = ..., resources: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., expected_duration_s: _Optional[float] = ..., requested_at_s: _Optional[float] = ..., near: _Optional[_Iterable[str]] = ..., locality_wait_s: _Optional[float] = ..., platform: _Optional[str] = ..., platform_until_s: _Optional[float] = ..., yields: bool = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("scheduler", "session", "application_id", "claims", "lease_token", "problem", "sequence")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    session: int
    application_id: str
    claims: _containers.RepeatedCompositeFieldContainer[UnitClaim]
    lease_token: int
    problem: str
    sequence: int
    def __init__(self, scheduler: _Optional[str] = ..., session: _Optional[int] = ..., application_id: _Optional[str] = ..., claims: _Optional[_Iterable[_Union[UnitClaim, _Mapping]]] = ..., lease_token: _Optional[int] = ..., problem: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class UnitClaim(_message.Message):
    __slots__ = ("container_id", "resource_unit_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    resource_unit_id: str
    def __init__(self, container_id: _Optional[str] = ..., resource_unit_id: _Optional[str] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("outcomes", "sequence")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ClaimOutcome]
    sequence: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ClaimOutcome, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class ClaimOutcome(_message.Message):
    __slots__ = ("container_id", "resource_unit_id", "decision", "reason")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    resource_unit_id: str
    decision: ClaimDecision
    reason: str
    def __init__(self, container_id: _Optional[str] = ..., resource_unit_id: _Optional[str] = ..., decision: _Optional[_Union[ClaimDecision, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("scheduler", "session", "application_id")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    session: int
    application_id: str
    def __init__(self, scheduler: _Optional[str] = ..., session: _Optional[int] = ..., application_id: _Optional[str] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("token", "expires_in_s", "sequence", "some_units", "resource_unit_ids")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOME_UNITS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNIT_IDS_FIELD_NUMBER: _ClassVar[int]
    token: int
    expires_in_s: float
    sequence: int
    some_units: bool
    resource_unit_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[int] = ..., expires_in_s: _Optional[float] = ..., sequence: _Optional[int] = ..., some_units: bool = ..., resource_unit_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("scheduler", "session", "token")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    session: int
    token: int
    def __init__(self, scheduler: _Optional[str] = ..., session: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
