from hrm.v1 import common_pb2 as _common_pb2
from hrm.v1 import policy_pb2 as _policy_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BindingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BINDING_MODE_UNSPECIFIED: _ClassVar[BindingMode]
    BINDING_MODE_SHARED: _ClassVar[BindingMode]
    BINDING_MODE_PARTIAL: _ClassVar[BindingMode]
    BINDING_MODE_EVEN: _ClassVar[BindingMode]
BINDING_MODE_UNSPECIFIED: BindingMode
BINDING_MODE_SHARED: BindingMode
BINDING_MODE_PARTIAL: BindingMode
BINDING_MODE_EVEN: BindingMode

class ResourceUnit(_message.Message):
    __slots__ = ("resource_unit_id", "capacity", "run_limit", "cpus", "gpu", "pool", "gpu_only", "draining", "lent", "borrowed", "more_gpus", "no_preemption", "yield_grace_s")
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RUN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    GPU_ONLY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    MORE_GPUS_FIELD_NUMBER: _ClassVar[int]
    NO_PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    YIELD_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    resource_unit_id: str
    capacity: _common_pb2.Resources
    run_limit: int
    cpus: _containers.RepeatedScalarFieldContainer[int]
    gpu: Gpu
    pool: str
    gpu_only: bool
    draining: bool
    lent: _common_pb2.Resources
    borrowed: _common_pb2.Resources
    more_gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    no_preemption: bool
    yield_grace_s: float
    def __init__(self, resource_unit_id: _Optional[str] = ..., capacity: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., run_limit: _Optional[int] = ..., cpus: _Optional[_Iterable[int]] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., pool: _Optional[str] = ..., gpu_only: bool = ..., draining: bool = ..., lent: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., borrowed: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., more_gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., no_preemption: bool = ..., yield_grace_s: _Optional[float] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "memory_mib", "numa_node", "uuid", "name", "declared")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    index: int
    memory_mib: int
    numa_node: int
    uuid: str
    name: str
    declared: bool
    def __init__(self, index: _Optional[int] = ..., memory_mib: _Optional[int] = ..., numa_node: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., declared: bool = ...) -> None: ...

class NodeMessage(_message.Message):
    __slots__ = ("sequence", "register", "heartbeat", "container", "rebinding")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    REBINDING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    register: RegisterNode
    heartbeat: NodeHeartbeat
    container: _common_pb2.ContainerStatus
    rebinding: RebindingAnswer
    def __init__(self, sequence: _Optional[int] = ..., register: _Optional[_Union[RegisterNode, _Mapping]] = ..., heartbeat: _Optional[_Union[NodeHeartbeat, _Mapping]] = ..., container: _Optional[_Union[_common_pb2.ContainerStatus, _Mapping]] = ..., rebinding: _Optional[_Union[RebindingAnswer, _Mapping]] = ...) -> None: ...

class RegisterNode(_message.Message):
    __slots__ = ("name", "identity", "incarnation", "host", "endpoint", "resource_units", "containers", "isolation", "spark_versions", "platform", "remarks", "ownership_key", "followed_epoch", "followed_epoch_id", "labels", "runtimes", "preemption_grace_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNITS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    SPARK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    REMARKS_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    identity: str
    incarnation: str
    host: str
    endpoint: str
    resource_units: _containers.RepeatedCompositeFieldContainer[ResourceUnit]
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    isolation: str
    spark_versions: _containers.RepeatedScalarFieldContainer[str]
    platform: str
    remarks: _containers.RepeatedScalarFieldContainer[str]
    ownership_key: str
    followed_epoch: int
    followed_epoch_id: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    runtimes: _containers.RepeatedCompositeFieldContainer[_common_pb2.SparkRuntime]
    preemption_grace_s: float
    def __init__(self, name: _Optional[str] = ..., identity: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., endpoint: _Optional[str] = ..., resource_units: _Optional[_Iterable[_Union[ResourceUnit, _Mapping]]] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ..., isolation: _Optional[str] = ..., spark_versions: _Optional[_Iterable[str]] = ..., platform: _Optional[str] = ..., remarks: _Optional[_Iterable[str]] = ..., ownership_key: _Optional[str] = ..., followed_epoch: _Optional[int] = ..., followed_epoch_id: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., runtimes: _Optional[_Iterable[_Union[_common_pb2.SparkRuntime, _Mapping]]] = ..., preemption_grace_s: _Optional[float] = ...) -> None: ...

class NodeHeartbeat(_message.Message):
    __slots__ = ("usage", "containers", "shortcuts", "gpu_uses", "policies")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    SHORTCUTS_FIELD_NUMBER: _ClassVar[int]
    GPU_USES_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    usage: NodeUsage
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    shortcuts: _containers.RepeatedCompositeFieldContainer[Shortcut]
    gpu_uses: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerGpuUse]
    policies: _containers.RepeatedCompositeFieldContainer[_policy_pb2.LearnedPolicy]
    def __init__(self, usage: _Optional[_Union[NodeUsage, _Mapping]] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ..., shortcuts: _Optional[_Iterable[_Union[Shortcut, _Mapping]]] = ..., gpu_uses: _Optional[_Iterable[_Union[_common_pb2.ContainerGpuUse, _Mapping]]] = ..., policies: _Optional[_Iterable[_Union[_policy_pb2.LearnedPolicy, _Mapping]]] = ...) -> None: ...

class Shortcut(_message.Message):
    __slots__ = ("name", "state", "note", "used", "missed", "why_missed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    WHY_MISSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    note: str
    used: int
    missed: int
    why_missed: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., note: _Optional[str] = ..., used: _Optional[int] = ..., missed: _Optional[int] = ..., why_missed: _Optional[str] = ...) -> None: ...

class NodeUsage(_message.Message):
    __slots__ = ("cpu_percent", "memory_used_mib", "memory_total_mib", "load_1m", "disk_used_mib", "disk_free_mib")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_MIB_FIELD_NUMBER: _ClassVar[int]
    LOAD_1M_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_used_mib: int
    memory_total_mib: int
    load_1m: float
    disk_used_mib: int
    disk_free_mib: int
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_used_mib: _Optional[int] = ..., memory_total_mib: _Optional[int] = ..., load_1m: _Optional[float] = ..., disk_used_mib: _Optional[int] = ..., disk_free_mib: _Optional[int] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("epoch", "registered", "assign", "stop", "acknowledge", "set_class", "rebind", "drop_shuffle_files", "policy")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    SET_CLASS_FIELD_NUMBER: _ClassVar[int]
    REBIND_FIELD_NUMBER: _ClassVar[int]
    DROP_SHUFFLE_FILES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    registered: NodeRegistered
    assign: _common_pb2.ContainerSpec
    stop: StopContainer
    acknowledge: AcknowledgeEnded
    set_class: SetContainerClass
    rebind: RebindUnits
    drop_shuffle_files: DropShuffleFiles
    policy: _policy_pb2.PolicyOrder
    def __init__(self, epoch: _Optional[int] = ..., registered: _Optional[_Union[NodeRegistered, _Mapping]] = ..., assign: _Optional[_Union[_common_pb2.ContainerSpec, _Mapping]] = ..., stop: _Optional[_Union[StopContainer, _Mapping]] = ..., acknowledge: _Optional[_Union[AcknowledgeEnded, _Mapping]] = ..., set_class: _Optional[_Union[SetContainerClass, _Mapping]] = ..., rebind: _Optional[_Union[RebindUnits, _Mapping]] = ..., drop_shuffle_files: _Optional[_Union[DropShuffleFiles, _Mapping]] = ..., policy: _Optional[_Union[_policy_pb2.PolicyOrder, _Mapping]] = ...) -> None: ...

class NodeRegistered(_message.Message):
    __slots__ = ("heartbeat_interval_s", "epoch_id")
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_s: float
    epoch_id: str
    def __init__(self, heartbeat_interval_s: _Optional[float] = ..., epoch_id: _Optional[str] = ...) -> None: ...

class StopContainer(_message.Message):
    __slots__ = ("container_id", "cause", "reason", "grace_s", "only_if_waiting", "decommission")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_WAITING_FIELD_NUMBER: _ClassVar[int]
    DECOMMISSION_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    cause: _common_pb2.EndCause
    reason: str
    grace_s: float
    only_if_waiting: bool
    decommission: bool
    def __init__(self, container_id: _Optional[str] = ..., cause: _Optional[_Union[_common_pb2.EndCause, str]] = ..., reason: _Optional[str] = ..., grace_s: _Optional[float] = ..., only_if_waiting: bool = ..., decommission: bool = ...) -> None: ...

class AcknowledgeEnded(_message.Message):
    __slots__ = ("container_ids",)
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, container_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DropShuffleFiles(_message.Message):
    __slots__ = ("application_id",)
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    def __init__(self, application_id: _Optional[str] = ...) -> None: ...

class SetContainerClass(_message.Message):
    __slots__ = ("container_id", "workload_class")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    workload_class: _common_pb2.WorkloadClass
    def __init__(self, container_id: _Optional[str] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ...) -> None: ...

class RebindUnits(_message.Message):
    __slots__ = ("request_id", "mode", "bound_cores", "reserve_cores")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BOUND_CORES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_CORES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    mode: BindingMode
    bound_cores: int
    reserve_cores: int
    def __init__(self, request_id: _Optional[int] = ..., mode: _Optional[_Union[BindingMode, str]] = ..., bound_cores: _Optional[int] = ..., reserve_cores: _Optional[int] = ...) -> None: ...

class RebindingAnswer(_message.Message):
    __slots__ = ("request_id", "accepted", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    accepted: bool
    message: str
    def __init__(self, request_id: _Optional[int] = ..., accepted: bool = ..., message: _Optional[str] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("container_id", "stream", "tail_bytes", "follow")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    stream: str
    tail_bytes: int
    follow: bool
    def __init__(self, container_id: _Optional[str] = ..., stream: _Optional[str] = ..., tail_bytes: _Optional[int] = ..., follow: bool = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class LinkContainerLogRequest(_message.Message):
    __slots__ = ("container_id", "stream", "asker")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    stream: str
    asker: str
    def __init__(self, container_id: _Optional[str] = ..., stream: _Optional[str] = ..., asker: _Optional[str] = ...) -> None: ...

class LogLink(_message.Message):
    __slots__ = ("url", "expires_at_s")
    URL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_S_FIELD_NUMBER: _ClassVar[int]
    url: str
    expires_at_s: float
    def __init__(self, url: _Optional[str] = ..., expires_at_s: _Optional[float] = ...) -> None: ...
