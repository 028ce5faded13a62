from hrm.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterApplicationRequest(_message.Message):
    __slots__ = ("application_id", "name", "user", "queue", "spark_version", "driver_host", "web_url", "declared_class", "launch", "submission_key", "gang_min", "stream_min", "input_bytes", "submission_id", "submission_attempt", "ownership_key", "submission_ownership_key", "followed_epoch", "followed_epoch_id", "requires", "tags", "priority", "driver_start")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SPARK_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_HOST_FIELD_NUMBER: _ClassVar[int]
    WEB_URL_FIELD_NUMBER: _ClassVar[int]
    DECLARED_CLASS_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_KEY_FIELD_NUMBER: _ClassVar[int]
    GANG_MIN_FIELD_NUMBER: _ClassVar[int]
    STREAM_MIN_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DRIVER_START_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    name: str
    user: str
    queue: str
    spark_version: str
    driver_host: str
    web_url: str
    declared_class: _common_pb2.WorkloadClass
    launch: _common_pb2.SparkLaunch
    submission_key: str
    gang_min: int
    stream_min: int
    input_bytes: int
    submission_id: str
    submission_attempt: int
    ownership_key: str
    submission_ownership_key: str
    followed_epoch: int
    followed_epoch_id: str
    requires: _common_pb2.NodeRequirement
    tags: _containers.RepeatedScalarFieldContainer[str]
    priority: int
    driver_start: str
    def __init__(self, application_id: _Optional[str] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., queue: _Optional[str] = ..., spark_version: _Optional[str] = ..., driver_host: _Optional[str] = ..., web_url: _Optional[str] = ..., declared_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., launch: _Optional[_Union[_common_pb2.SparkLaunch, _Mapping]] = ..., submission_key: _Optional[str] = ..., gang_min: _Optional[int] = ..., stream_min: _Optional[int] = ..., input_bytes: _Optional[int] = ..., submission_id: _Optional[str] = ..., submission_attempt: _Optional[int] = ..., ownership_key: _Optional[str] = ..., submission_ownership_key: _Optional[str] = ..., followed_epoch: _Optional[int] = ..., followed_epoch_id: _Optional[str] = ..., requires: _Optional[_Union[_common_pb2.NodeRequirement, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ..., driver_start: _Optional[str] = ...) -> None: ...

class RegisterApplicationResponse(_message.Message):
    __slots__ = ("application_id", "epoch", "containers", "heartbeat_interval_s", "last_executor_number", "node_timeout_s", "token", "epoch_id")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NODE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    epoch: int
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    heartbeat_interval_s: float
    last_executor_number: int
    node_timeout_s: float
    token: str
    epoch_id: str
    def __init__(self, application_id: _Optional[str] = ..., epoch: _Optional[int] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ..., heartbeat_interval_s: _Optional[float] = ..., last_executor_number: _Optional[int] = ..., node_timeout_s: _Optional[float] = ..., token: _Optional[str] = ..., epoch_id: _Optional[str] = ...) -> None: ...

class ApplicationUpdate(_message.Message):
    __slots__ = ("attach", "request", "release", "progress", "class_changed", "finished", "heartbeat", "excluded_hosts")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CLASS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    attach: AttachApplication
    request: RequestContainers
    release: ReleaseContainers
    progress: _common_pb2.Progress
    class_changed: ClassChanged
    finished: ApplicationFinished
    heartbeat: ApplicationHeartbeat
    excluded_hosts: ExcludedHosts
    def __init__(self, attach: _Optional[_Union[AttachApplication, _Mapping]] = ..., request: _Optional[_Union[RequestContainers, _Mapping]] = ..., release: _Optional[_Union[ReleaseContainers, _Mapping]] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., class_changed: _Optional[_Union[ClassChanged, _Mapping]] = ..., finished: _Optional[_Union[ApplicationFinished, _Mapping]] = ..., heartbeat: _Optional[_Union[ApplicationHeartbeat, _Mapping]] = ..., excluded_hosts: _Optional[_Union[ExcludedHosts, _Mapping]] = ...) -> None: ...

class AttachApplication(_message.Message):
    __slots__ = ("application_id", "epoch", "ownership_key")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    epoch: int
    ownership_key: str
    def __init__(self, application_id: _Optional[str] = ..., epoch: _Optional[int] = ..., ownership_key: _Optional[str] = ...) -> None: ...

class ContainerRequest(_message.Message):
    __slots__ = ("executor_id", "resource_profile_id", "resources", "heap_mib", "expected_duration_s", "gpus", "hosts", "locality_wait_s", "yields")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    HEAP_MIB_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    LOCALITY_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    resource_profile_id: int
    resources: _common_pb2.Resources
    heap_mib: int
    expected_duration_s: float
    gpus: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    locality_wait_s: float
    yields: bool
    def __init__(self, executor_id: _Optional[str] = ..., resource_profile_id: _Optional[int] = ..., resources: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., heap_mib: _Optional[int] = ..., expected_duration_s: _Optional[float] = ..., gpus: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., locality_wait_s: _Optional[float] = ..., yields: bool = ...) -> None: ...

class RequestContainers(_message.Message):
    __slots__ = ("containers", "again")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerRequest]
    again: bool
    def __init__(self, containers: _Optional[_Iterable[_Union[ContainerRequest, _Mapping]]] = ..., again: bool = ...) -> None: ...

class ReleaseContainers(_message.Message):
    __slots__ = ("executor_ids", "reason")
    EXECUTOR_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    executor_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, executor_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ClassChanged(_message.Message):
    __slots__ = ("workload_class", "evidence")
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    workload_class: _common_pb2.WorkloadClass
    evidence: str
    def __init__(self, workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., evidence: _Optional[str] = ...) -> None: ...

class ApplicationFinished(_message.Message):
    __slots__ = ("state", "message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: _common_pb2.ApplicationState
    message: str
    def __init__(self, state: _Optional[_Union[_common_pb2.ApplicationState, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ApplicationHeartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExcludedHosts(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplicationNotice(_message.Message):
    __slots__ = ("attached", "container", "refused", "end", "changed", "limit")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    attached: AttachedApplication
    container: _common_pb2.ContainerStatus
    refused: RequestRefused
    end: EndApplication
    changed: ContainersChanged
    limit: ExecutorLimit
    def __init__(self, attached: _Optional[_Union[AttachedApplication, _Mapping]] = ..., container: _Optional[_Union[_common_pb2.ContainerStatus, _Mapping]] = ..., refused: _Optional[_Union[RequestRefused, _Mapping]] = ..., end: _Optional[_Union[EndApplication, _Mapping]] = ..., changed: _Optional[_Union[ContainersChanged, _Mapping]] = ..., limit: _Optional[_Union[ExecutorLimit, _Mapping]] = ...) -> None: ...

class AttachedApplication(_message.Message):
    __slots__ = ("epoch", "containers", "limit")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    limit: ExecutorLimit
    def __init__(self, epoch: _Optional[int] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ..., limit: _Optional[_Union[ExecutorLimit, _Mapping]] = ...) -> None: ...

class ContainersChanged(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    def __init__(self, containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ...) -> None: ...

class ExecutorLimit(_message.Message):
    __slots__ = ("executors_max",)
    EXECUTORS_MAX_FIELD_NUMBER: _ClassVar[int]
    executors_max: int
    def __init__(self, executors_max: _Optional[int] = ...) -> None: ...

class RequestRefused(_message.Message):
    __slots__ = ("executor_ids", "resource_profile_id", "message")
    EXECUTOR_IDS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    executor_ids: _containers.RepeatedScalarFieldContainer[str]
    resource_profile_id: int
    message: str
    def __init__(self, executor_ids: _Optional[_Iterable[str]] = ..., resource_profile_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class EndApplication(_message.Message):
    __slots__ = ("state", "message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: _common_pb2.ApplicationState
    message: str
    def __init__(self, state: _Optional[_Union[_common_pb2.ApplicationState, str]] = ..., message: _Optional[str] = ...) -> None: ...
