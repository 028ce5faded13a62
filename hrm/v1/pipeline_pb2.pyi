from hrm.v1 import common_pb2 as _common_pb2
from hrm.v1 import policy_pb2 as _policy_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubtaskDevice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBTASK_DEVICE_UNSPECIFIED: _ClassVar[SubtaskDevice]
    SUBTASK_DEVICE_CPU: _ClassVar[SubtaskDevice]
    SUBTASK_DEVICE_GPU: _ClassVar[SubtaskDevice]

class PipelineResultFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPELINE_RESULT_FORMAT_UNSPECIFIED: _ClassVar[PipelineResultFormat]
    PIPELINE_RESULT_FORMAT_PICKLE: _ClassVar[PipelineResultFormat]
    PIPELINE_RESULT_FORMAT_JSON: _ClassVar[PipelineResultFormat]
    PIPELINE_RESULT_FORMAT_ARROW: _ClassVar[PipelineResultFormat]
    PIPELINE_RESULT_FORMAT_AUTO: _ClassVar[PipelineResultFormat]

class SubtaskOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBTASK_OUTCOME_UNSPECIFIED: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_DONE: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_RAISED: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_CRASHED: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_OUT_OF_MEMORY: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_OUT_OF_GPU_MEMORY: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_TIMED_OUT: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_NOT_IMPORTABLE: _ClassVar[SubtaskOutcome]
    SUBTASK_OUTCOME_STOPPED: _ClassVar[SubtaskOutcome]

class PipelineTaskOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPELINE_TASK_OUTCOME_UNSPECIFIED: _ClassVar[PipelineTaskOutcome]
    PIPELINE_TASK_OUTCOME_DONE: _ClassVar[PipelineTaskOutcome]
    PIPELINE_TASK_OUTCOME_FAILED: _ClassVar[PipelineTaskOutcome]
    PIPELINE_TASK_OUTCOME_CANCELLED: _ClassVar[PipelineTaskOutcome]
    PIPELINE_TASK_OUTCOME_GIVEN_BACK: _ClassVar[PipelineTaskOutcome]
    PIPELINE_TASK_OUTCOME_REFUSED: _ClassVar[PipelineTaskOutcome]
SUBTASK_DEVICE_UNSPECIFIED: SubtaskDevice
SUBTASK_DEVICE_CPU: SubtaskDevice
SUBTASK_DEVICE_GPU: SubtaskDevice
PIPELINE_RESULT_FORMAT_UNSPECIFIED: PipelineResultFormat
PIPELINE_RESULT_FORMAT_PICKLE: PipelineResultFormat
PIPELINE_RESULT_FORMAT_JSON: PipelineResultFormat
PIPELINE_RESULT_FORMAT_ARROW: PipelineResultFormat
PIPELINE_RESULT_FORMAT_AUTO: PipelineResultFormat
SUBTASK_OUTCOME_UNSPECIFIED: SubtaskOutcome
SUBTASK_OUTCOME_DONE: SubtaskOutcome
SUBTASK_OUTCOME_RAISED: SubtaskOutcome
SUBTASK_OUTCOME_CRASHED: SubtaskOutcome
SUBTASK_OUTCOME_OUT_OF_MEMORY: SubtaskOutcome
SUBTASK_OUTCOME_OUT_OF_GPU_MEMORY: SubtaskOutcome
SUBTASK_OUTCOME_TIMED_OUT: SubtaskOutcome
SUBTASK_OUTCOME_NOT_IMPORTABLE: SubtaskOutcome
SUBTASK_OUTCOME_STOPPED: SubtaskOutcome
PIPELINE_TASK_OUTCOME_UNSPECIFIED: PipelineTaskOutcome
PIPELINE_TASK_OUTCOME_DONE: PipelineTaskOutcome
PIPELINE_TASK_OUTCOME_FAILED: PipelineTaskOutcome
PIPELINE_TASK_OUTCOME_CANCELLED: PipelineTaskOutcome
PIPELINE_TASK_OUTCOME_GIVEN_BACK: PipelineTaskOutcome
PIPELINE_TASK_OUTCOME_REFUSED: PipelineTaskOutcome

class PipelineSubtask(_message.Message):
    __slots__ = ("name", "kind", "after", "devices", "memory_mib", "gpu_memory_mib", "timeout_s", "attempts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    after: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[SubtaskDevice]
    memory_mib: int
    gpu_memory_mib: int
    timeout_s: float
    attempts: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., after: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[_Union[SubtaskDevice, str]]] = ..., memory_mib: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ..., timeout_s: _Optional[float] = ..., attempts: _Optional[int] = ...) -> None: ...

class PipelineSpec(_message.Message):
    __slots__ = ("name", "reference", "subtasks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    reference: str
    subtasks: _containers.RepeatedCompositeFieldContainer[PipelineSubtask]
    def __init__(self, name: _Optional[str] = ..., reference: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[PipelineSubtask, _Mapping]]] = ...) -> None: ...

class SourceFile(_message.Message):
    __slots__ = ("path", "content")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class SubmitPipelineTaskRequest(_message.Message):
    __slots__ = ("task_id", "pipeline", "payload", "raw", "size_mb", "workload_class", "files", "user", "result_format", "result_key", "queue", "node_labels", "result_dir", "ownership_key")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    SIZE_MB_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    RESULT_DIR_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    pipeline: PipelineSpec
    payload: bytes
    raw: bool
    size_mb: float
    workload_class: _common_pb2.WorkloadClass
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    user: str
    result_format: PipelineResultFormat
    result_key: bytes
    queue: str
    node_labels: _containers.RepeatedScalarFieldContainer[str]
    result_dir: str
    ownership_key: str
    def __init__(self, task_id: _Optional[str] = ..., pipeline: _Optional[_Union[PipelineSpec, _Mapping]] = ..., payload: _Optional[bytes] = ..., raw: bool = ..., size_mb: _Optional[float] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ..., user: _Optional[str] = ..., result_format: _Optional[_Union[PipelineResultFormat, str]] = ..., result_key: _Optional[bytes] = ..., queue: _Optional[str] = ..., node_labels: _Optional[_Iterable[str]] = ..., result_dir: _Optional[str] = ..., ownership_key: _Optional[str] = ...) -> None: ...

class SubmitPipelineTaskResponse(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class WatchPipelineTasksRequest(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PipelineTaskUpdate(_message.Message):
    __slots__ = ("task_id", "at_s", "queued", "placed", "subtask", "ended")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    at_s: float
    queued: str
    placed: PipelinePlacement
    subtask: SubtaskTiming
    ended: PipelineTaskEnd
    def __init__(self, task_id: _Optional[str] = ..., at_s: _Optional[float] = ..., queued: _Optional[str] = ..., placed: _Optional[_Union[PipelinePlacement, _Mapping]] = ..., subtask: _Optional[_Union[SubtaskTiming, _Mapping]] = ..., ended: _Optional[_Union[PipelineTaskEnd, _Mapping]] = ...) -> None: ...

class PipelinePlacement(_message.Message):
    __slots__ = ("node", "attempt", "why")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    node: str
    attempt: int
    why: str
    def __init__(self, node: _Optional[str] = ..., attempt: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class PipelineRow(_message.Message):
    __slots__ = ("kind", "bucket", "gpu_model")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    bucket: int
    gpu_model: str
    def __init__(self, kind: _Optional[str] = ..., bucket: _Optional[int] = ..., gpu_model: _Optional[str] = ...) -> None: ...

class SubtaskTiming(_message.Message):
    __slots__ = ("subtask", "row", "device", "number", "run", "outcome", "ready_at_s", "started_at_s", "waited_s", "ran_s", "memory_mib", "gpu_memory_mib", "co_runners", "message", "node", "placed_by", "fallback", "cells", "gpu_memory_reserved_mib")
    class CellsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    READY_AT_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    CO_RUNNERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PLACED_BY_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_RESERVED_MIB_FIELD_NUMBER: _ClassVar[int]
    subtask: str
    row: PipelineRow
    device: SubtaskDevice
    number: int
    run: int
    outcome: SubtaskOutcome
    ready_at_s: float
    started_at_s: float
    waited_s: float
    ran_s: float
    memory_mib: float
    gpu_memory_mib: float
    co_runners: _containers.RepeatedCompositeFieldContainer[PipelineRow]
    message: str
    node: str
    placed_by: str
    fallback: str
    cells: _containers.ScalarMap[str, float]
    gpu_memory_reserved_mib: float
    def __init__(self, subtask: _Optional[str] = ..., row: _Optional[_Union[PipelineRow, _Mapping]] = ..., device: _Optional[_Union[SubtaskDevice, str]] = ..., number: _Optional[int] = ..., run: _Optional[int] = ..., outcome: _Optional[_Union[SubtaskOutcome, str]] = ..., ready_at_s: _Optional[float] = ..., started_at_s: _Optional[float] = ..., waited_s: _Optional[float] = ..., ran_s: _Optional[float] = ..., memory_mib: _Optional[float] = ..., gpu_memory_mib: _Optional[float] = ..., co_runners: _Optional[_Iterable[_Union[PipelineRow, _Mapping]]] = ..., message: _Optional[str] = ..., node: _Optional[str] = ..., placed_by: _Optional[str] = ..., fallback: _Optional[str] = ..., cells: _Optional[_Mapping[str, float]] = ..., gpu_memory_reserved_mib: _Optional[float] = ...) -> None: ...

class PipelineTaskEnd(_message.Message):
    __slots__ = ("outcome", "message", "node", "attempt", "timings", "response_s", "result_bytes", "result_format", "proof", "placement", "in_result_dir")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_S_FIELD_NUMBER: _ClassVar[int]
    RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESULT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    IN_RESULT_DIR_FIELD_NUMBER: _ClassVar[int]
    outcome: PipelineTaskOutcome
    message: str
    node: str
    attempt: int
    timings: _containers.RepeatedCompositeFieldContainer[SubtaskTiming]
    response_s: float
    result_bytes: int
    result_format: PipelineResultFormat
    proof: bytes
    placement: int
    in_result_dir: bool
    def __init__(self, outcome: _Optional[_Union[PipelineTaskOutcome, str]] = ..., message: _Optional[str] = ..., node: _Optional[str] = ..., attempt: _Optional[int] = ..., timings: _Optional[_Iterable[_Union[SubtaskTiming, _Mapping]]] = ..., response_s: _Optional[float] = ..., result_bytes: _Optional[int] = ..., result_format: _Optional[_Union[PipelineResultFormat, str]] = ..., proof: _Optional[bytes] = ..., placement: _Optional[int] = ..., in_result_dir: bool = ...) -> None: ...

class GetPipelineResultRequest(_message.Message):
    __slots__ = ("task_id", "forget", "ownership_key")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_KEY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    forget: bool
    ownership_key: str
    def __init__(self, task_id: _Optional[str] = ..., forget: bool = ..., ownership_key: _Optional[str] = ...) -> None: ...

class PipelineResultChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class CancelPipelineTaskRequest(_message.Message):
    __slots__ = ("task_id", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    reason: str
    def __init__(self, task_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelPipelineTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPipelineTasksRequest(_message.Message):
    __slots__ = ("all", "page_size", "page_token", "limit")
    ALL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    all: bool
    page_size: int
    page_token: str
    limit: int
    def __init__(self, all: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListPipelineTasksResponse(_message.Message):
    __slots__ = ("tasks", "nodes", "policy", "policy_faults", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FAULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[PipelineTaskInfo]
    nodes: _containers.RepeatedCompositeFieldContainer[PipelineNodeInfo]
    policy: str
    policy_faults: int
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[PipelineTaskInfo, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[PipelineNodeInfo, _Mapping]]] = ..., policy: _Optional[str] = ..., policy_faults: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetPipelineProfilesRequest(_message.Message):
    __slots__ = ("name", "user", "asker")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    asker: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ..., asker: _Optional[str] = ...) -> None: ...

class GetPipelineProfilesResponse(_message.Message):
    __slots__ = ("profiles", "containers")
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[PipelineProfile]
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerGpuUse]
    def __init__(self, profiles: _Optional[_Iterable[_Union[PipelineProfile, _Mapping]]] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerGpuUse, _Mapping]]] = ...) -> None: ...

class PipelineProfile(_message.Message):
    __slots__ = ("row", "size_above_mb", "size_at_most_mb", "cpu_s", "gpu_s", "memory_mib", "gpu_memory_mib", "gpu_use", "gpu_use_runs", "cpu_p90_s", "cpu_p99_s", "gpu_p90_s", "gpu_p99_s", "gpu_memory_mean_mib", "gpu_memory_deviation_mib", "out_of_gpu_memory")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SIZE_ABOVE_MB_FIELD_NUMBER: _ClassVar[int]
    SIZE_AT_MOST_MB_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    GPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_RUNS_FIELD_NUMBER: _ClassVar[int]
    CPU_P90_S_FIELD_NUMBER: _ClassVar[int]
    CPU_P99_S_FIELD_NUMBER: _ClassVar[int]
    GPU_P90_S_FIELD_NUMBER: _ClassVar[int]
    GPU_P99_S_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MEAN_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_DEVIATION_MIB_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    row: PipelineRow
    size_above_mb: float
    size_at_most_mb: float
    cpu_s: float
    gpu_s: float
    memory_mib: float
    gpu_memory_mib: float
    gpu_use: _containers.RepeatedCompositeFieldContainer[_common_pb2.GpuUsePart]
    gpu_use_runs: int
    cpu_p90_s: float
    cpu_p99_s: float
    gpu_p90_s: float
    gpu_p99_s: float
    gpu_memory_mean_mib: float
    gpu_memory_deviation_mib: float
    out_of_gpu_memory: int
    def __init__(self, row: _Optional[_Union[PipelineRow, _Mapping]] = ..., size_above_mb: _Optional[float] = ..., size_at_most_mb: _Optional[float] = ..., cpu_s: _Optional[float] = ..., gpu_s: _Optional[float] = ..., memory_mib: _Optional[float] = ..., gpu_memory_mib: _Optional[float] = ..., gpu_use: _Optional[_Iterable[_Union[_common_pb2.GpuUsePart, _Mapping]]] = ..., gpu_use_runs: _Optional[int] = ..., cpu_p90_s: _Optional[float] = ..., cpu_p99_s: _Optional[float] = ..., gpu_p90_s: _Optional[float] = ..., gpu_p99_s: _Optional[float] = ..., gpu_memory_mean_mib: _Optional[float] = ..., gpu_memory_deviation_mib: _Optional[float] = ..., out_of_gpu_memory: _Optional[int] = ...) -> None: ...

class PipelineTaskInfo(_message.Message):
    __slots__ = ("task_id", "pipeline", "size_mb", "submitted_at_s", "node", "attempt", "state", "outcome", "placed_by", "fallback", "runs_placed_by", "run_fallback", "user", "application_id")
    class RunsPlacedByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SIZE_MB_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PLACED_BY_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    RUNS_PLACED_BY_FIELD_NUMBER: _ClassVar[int]
    RUN_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    pipeline: str
    size_mb: float
    submitted_at_s: float
    node: str
    attempt: int
    state: str
    outcome: PipelineTaskOutcome
    placed_by: str
    fallback: str
    runs_placed_by: _containers.ScalarMap[str, int]
    run_fallback: str
    user: str
    application_id: str
    def __init__(self, task_id: _Optional[str] = ..., pipeline: _Optional[str] = ..., size_mb: _Optional[float] = ..., submitted_at_s: _Optional[float] = ..., node: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[str] = ..., outcome: _Optional[_Union[PipelineTaskOutcome, str]] = ..., placed_by: _Optional[str] = ..., fallback: _Optional[str] = ..., runs_placed_by: _Optional[_Mapping[str, int]] = ..., run_fallback: _Optional[str] = ..., user: _Optional[str] = ..., application_id: _Optional[str] = ...) -> None: ...

class PipelineNodeInfo(_message.Message):
    __slots__ = ("capacity", "load", "tasks", "away", "application_id", "node")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    capacity: PipelineCapacity
    load: PipelineLoad
    tasks: int
    away: bool
    application_id: str
    node: str
    def __init__(self, capacity: _Optional[_Union[PipelineCapacity, _Mapping]] = ..., load: _Optional[_Union[PipelineLoad, _Mapping]] = ..., tasks: _Optional[int] = ..., away: bool = ..., application_id: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class PipelineGpu(_message.Message):
    __slots__ = ("index", "model", "memory_mib")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    index: int
    model: str
    memory_mib: float
    def __init__(self, index: _Optional[int] = ..., model: _Optional[str] = ..., memory_mib: _Optional[float] = ...) -> None: ...

class PipelineCapacity(_message.Message):
    __slots__ = ("node", "cores", "memory_mib", "gpus", "platform", "cpu_speed", "gpu_speed", "machine")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CPU_SPEED_FIELD_NUMBER: _ClassVar[int]
    GPU_SPEED_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    node: str
    cores: int
    memory_mib: float
    gpus: _containers.RepeatedCompositeFieldContainer[PipelineGpu]
    platform: str
    cpu_speed: float
    gpu_speed: float
    machine: str
    def __init__(self, node: _Optional[str] = ..., cores: _Optional[int] = ..., memory_mib: _Optional[float] = ..., gpus: _Optional[_Iterable[_Union[PipelineGpu, _Mapping]]] = ..., platform: _Optional[str] = ..., cpu_speed: _Optional[float] = ..., gpu_speed: _Optional[float] = ..., machine: _Optional[str] = ...) -> None: ...

class PipelineLoad(_message.Message):
    __slots__ = ("at_s", "cpu", "gpu", "memory", "gpu_memory", "sent", "received", "running", "waiting_batch", "waiting_stream", "expected_wait_s", "free_cores", "free_memory_mib", "free_gpu_memory_mib", "task_ids", "policies", "expected_wait_p90_s")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_BATCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_STREAM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    FREE_CORES_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    FREE_GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_P90_S_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    cpu: float
    gpu: float
    memory: float
    gpu_memory: float
    sent: float
    received: float
    running: int
    waiting_batch: int
    waiting_stream: int
    expected_wait_s: float
    free_cores: int
    free_memory_mib: float
    free_gpu_memory_mib: float
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    policies: _containers.RepeatedCompositeFieldContainer[_policy_pb2.LearnedPolicy]
    expected_wait_p90_s: float
    def __init__(self, at_s: _Optional[float] = ..., cpu: _Optional[float] = ..., gpu: _Optional[float] = ..., memory: _Optional[float] = ..., gpu_memory: _Optional[float] = ..., sent: _Optional[float] = ..., received: _Optional[float] = ..., running: _Optional[int] = ..., waiting_batch: _Optional[int] = ..., waiting_stream: _Optional[int] = ..., expected_wait_s: _Optional[float] = ..., free_cores: _Optional[int] = ..., free_memory_mib: _Optional[float] = ..., free_gpu_memory_mib: _Optional[float] = ..., task_ids: _Optional[_Iterable[str]] = ..., policies: _Optional[_Iterable[_Union[_policy_pb2.LearnedPolicy, _Mapping]]] = ..., expected_wait_p90_s: _Optional[float] = ...) -> None: ...

class PipelineAttempt(_message.Message):
    __slots__ = ("task_id", "attempt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    attempt: int
    def __init__(self, task_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class NodePipelineMessage(_message.Message):
    __slots__ = ("register", "load", "run", "data", "ended")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    register: RegisterPipelineNode
    load: PipelineLoad
    run: PipelineRun
    data: PipelineData
    ended: PipelineAttemptEnd
    def __init__(self, register: _Optional[_Union[RegisterPipelineNode, _Mapping]] = ..., load: _Optional[_Union[PipelineLoad, _Mapping]] = ..., run: _Optional[_Union[PipelineRun, _Mapping]] = ..., data: _Optional[_Union[PipelineData, _Mapping]] = ..., ended: _Optional[_Union[PipelineAttemptEnd, _Mapping]] = ...) -> None: ...

class RegisterPipelineNode(_message.Message):
    __slots__ = ("capacity", "identity", "tasks", "load")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    capacity: PipelineCapacity
    identity: str
    tasks: _containers.RepeatedCompositeFieldContainer[PipelineAttempt]
    load: PipelineLoad
    def __init__(self, capacity: _Optional[_Union[PipelineCapacity, _Mapping]] = ..., identity: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[PipelineAttempt, _Mapping]]] = ..., load: _Optional[_Union[PipelineLoad, _Mapping]] = ...) -> None: ...

class PipelineRun(_message.Message):
    __slots__ = ("attempt", "timing", "gpu_use")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_FIELD_NUMBER: _ClassVar[int]
    attempt: PipelineAttempt
    timing: SubtaskTiming
    gpu_use: _containers.RepeatedCompositeFieldContainer[_common_pb2.GpuUsePart]
    def __init__(self, attempt: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., timing: _Optional[_Union[SubtaskTiming, _Mapping]] = ..., gpu_use: _Optional[_Iterable[_Union[_common_pb2.GpuUsePart, _Mapping]]] = ...) -> None: ...

class PipelineData(_message.Message):
    __slots__ = ("attempt", "offset", "data")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    attempt: PipelineAttempt
    offset: int
    data: bytes
    def __init__(self, attempt: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PipelineAttemptEnd(_message.Message):
    __slots__ = ("attempt", "end")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    attempt: PipelineAttempt
    end: PipelineTaskEnd
    def __init__(self, attempt: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., end: _Optional[_Union[PipelineTaskEnd, _Mapping]] = ...) -> None: ...

class MasterPipelineMessage(_message.Message):
    __slots__ = ("registered", "data", "place", "withdraw", "acknowledge", "policy", "estimates")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    registered: PipelineNodeRegistered
    data: PipelineData
    place: PlacePipelineTask
    withdraw: WithdrawPipelineTask
    acknowledge: PipelineAttempt
    policy: _policy_pb2.PolicyOrder
    estimates: bytes
    def __init__(self, registered: _Optional[_Union[PipelineNodeRegistered, _Mapping]] = ..., data: _Optional[_Union[PipelineData, _Mapping]] = ..., place: _Optional[_Union[PlacePipelineTask, _Mapping]] = ..., withdraw: _Optional[_Union[WithdrawPipelineTask, _Mapping]] = ..., acknowledge: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., policy: _Optional[_Union[_policy_pb2.PolicyOrder, _Mapping]] = ..., estimates: _Optional[bytes] = ...) -> None: ...

class PipelineNodeRegistered(_message.Message):
    __slots__ = ("heartbeat_interval_s", "estimates")
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_s: float
    estimates: bytes
    def __init__(self, heartbeat_interval_s: _Optional[float] = ..., estimates: _Optional[bytes] = ...) -> None: ...

class PipelineCode(_message.Message):
    __slots__ = ("raw", "files")
    RAW_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    raw: bool
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    def __init__(self, raw: bool = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ...) -> None: ...

class StoredPipelineTask(_message.Message):
    __slots__ = ("request", "code", "application_id", "vcores", "memory_mib", "gpu_memory_mib", "submitted_at_s", "scope", "owner", "end")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    VCORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    request: SubmitPipelineTaskRequest
    code: str
    application_id: str
    vcores: int
    memory_mib: int
    gpu_memory_mib: int
    submitted_at_s: float
    scope: str
    owner: str
    end: PipelineTaskEnd
    def __init__(self, request: _Optional[_Union[SubmitPipelineTaskRequest, _Mapping]] = ..., code: _Optional[str] = ..., application_id: _Optional[str] = ..., vcores: _Optional[int] = ..., memory_mib: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ..., submitted_at_s: _Optional[float] = ..., scope: _Optional[str] = ..., owner: _Optional[str] = ..., end: _Optional[_Union[PipelineTaskEnd, _Mapping]] = ...) -> None: ...

class PlacePipelineTask(_message.Message):
    __slots__ = ("attempt", "pipeline", "size_mb", "workload_class", "submitted_at_s", "raw", "payload_bytes", "files", "user", "result_format", "result_key", "result_dir")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SIZE_MB_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_KEY_FIELD_NUMBER: _ClassVar[int]
    RESULT_DIR_FIELD_NUMBER: _ClassVar[int]
    attempt: PipelineAttempt
    pipeline: PipelineSpec
    size_mb: float
    workload_class: _common_pb2.WorkloadClass
    submitted_at_s: float
    raw: bool
    payload_bytes: int
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    user: str
    result_format: PipelineResultFormat
    result_key: bytes
    result_dir: str
    def __init__(self, attempt: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., pipeline: _Optional[_Union[PipelineSpec, _Mapping]] = ..., size_mb: _Optional[float] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., submitted_at_s: _Optional[float] = ..., raw: bool = ..., payload_bytes: _Optional[int] = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ..., user: _Optional[str] = ..., result_format: _Optional[_Union[PipelineResultFormat, str]] = ..., result_key: _Optional[bytes] = ..., result_dir: _Optional[str] = ...) -> None: ...

class WithdrawPipelineTask(_message.Message):
    __slots__ = ("attempt", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: PipelineAttempt
    reason: str
    def __init__(self, attempt: _Optional[_Union[PipelineAttempt, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...
