from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PriorityClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_CLASS_UNSPECIFIED: _ClassVar[PriorityClass]
    PRIORITY_CLASS_HIGHEST: _ClassVar[PriorityClass]
    PRIORITY_CLASS_URGENT: _ClassVar[PriorityClass]
    PRIORITY_CLASS_NORMAL: _ClassVar[PriorityClass]

class WorkloadClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKLOAD_CLASS_UNSPECIFIED: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_BATCH: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_STREAM: _ClassVar[WorkloadClass]

class ApplicationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPLICATION_STATE_UNSPECIFIED: _ClassVar[ApplicationState]
    APPLICATION_STATE_SUBMITTED: _ClassVar[ApplicationState]
    APPLICATION_STATE_RUNNING: _ClassVar[ApplicationState]
    APPLICATION_STATE_DETACHED: _ClassVar[ApplicationState]
    APPLICATION_STATE_SUCCEEDED: _ClassVar[ApplicationState]
    APPLICATION_STATE_FAILED: _ClassVar[ApplicationState]
    APPLICATION_STATE_KILLED: _ClassVar[ApplicationState]

class ContainerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTAINER_STATE_UNSPECIFIED: _ClassVar[ContainerState]
    CONTAINER_STATE_PENDING: _ClassVar[ContainerState]
    CONTAINER_STATE_ASSIGNED: _ClassVar[ContainerState]
    CONTAINER_STATE_WAITING: _ClassVar[ContainerState]
    CONTAINER_STATE_RUNNING: _ClassVar[ContainerState]
    CONTAINER_STATE_STOPPING: _ClassVar[ContainerState]
    CONTAINER_STATE_ENDED: _ClassVar[ContainerState]

class EndCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_CAUSE_UNSPECIFIED: _ClassVar[EndCause]
    END_CAUSE_EXITED: _ClassVar[EndCause]
    END_CAUSE_RELEASED: _ClassVar[EndCause]
    END_CAUSE_MEMORY_LIMIT: _ClassVar[EndCause]
    END_CAUSE_NODE_LOST: _ClassVar[EndCause]
    END_CAUSE_LAUNCH_FAILED: _ClassVar[EndCause]
    END_CAUSE_KILLED: _ClassVar[EndCause]
    END_CAUSE_LOST: _ClassVar[EndCause]
    END_CAUSE_PREEMPTED: _ClassVar[EndCause]
    END_CAUSE_DISK_LIMIT: _ClassVar[EndCause]
    END_CAUSE_GPU_MEMORY_LIMIT: _ClassVar[EndCause]
    END_CAUSE_UNSUITABLE: _ClassVar[EndCause]
    END_CAUSE_MISPLACED: _ClassVar[EndCause]

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_ALIVE: _ClassVar[NodeState]
    NODE_STATE_DRAINING: _ClassVar[NodeState]
    NODE_STATE_LOST: _ClassVar[NodeState]
PRIORITY_CLASS_UNSPECIFIED: PriorityClass
PRIORITY_CLASS_HIGHEST: PriorityClass
PRIORITY_CLASS_URGENT: PriorityClass
PRIORITY_CLASS_NORMAL: PriorityClass
WORKLOAD_CLASS_UNSPECIFIED: WorkloadClass
WORKLOAD_CLASS_BATCH: WorkloadClass
WORKLOAD_CLASS_STREAM: WorkloadClass
APPLICATION_STATE_UNSPECIFIED: ApplicationState
APPLICATION_STATE_SUBMITTED: ApplicationState
APPLICATION_STATE_RUNNING: ApplicationState
APPLICATION_STATE_DETACHED: ApplicationState
APPLICATION_STATE_SUCCEEDED: ApplicationState
APPLICATION_STATE_FAILED: ApplicationState
APPLICATION_STATE_KILLED: ApplicationState
CONTAINER_STATE_UNSPECIFIED: ContainerState
CONTAINER_STATE_PENDING: ContainerState
CONTAINER_STATE_ASSIGNED: ContainerState
CONTAINER_STATE_WAITING: ContainerState
CONTAINER_STATE_RUNNING: ContainerState
CONTAINER_STATE_STOPPING: ContainerState
CONTAINER_STATE_ENDED: ContainerState
END_CAUSE_UNSPECIFIED: EndCause
END_CAUSE_EXITED: EndCause
END_CAUSE_RELEASED: EndCause
END_CAUSE_MEMORY_LIMIT: EndCause
END_CAUSE_NODE_LOST: EndCause
END_CAUSE_LAUNCH_FAILED: EndCause
END_CAUSE_KILLED: EndCause
END_CAUSE_LOST: EndCause
END_CAUSE_PREEMPTED: EndCause
END_CAUSE_DISK_LIMIT: EndCause
END_CAUSE_GPU_MEMORY_LIMIT: EndCause
END_CAUSE_UNSUITABLE: EndCause
END_CAUSE_MISPLACED: EndCause
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_ALIVE: NodeState
NODE_STATE_DRAINING: NodeState
NODE_STATE_LOST: NodeState

class Resources(_message.Message):
    __slots__ = ("vcores", "memory_mib", "gpu_memory_mib", "gpus")
    VCORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    vcores: int
    memory_mib: int
    gpu_memory_mib: int
    gpus: int
    def __init__(self, vcores: _Optional[int] = ..., memory_mib: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ..., gpus: _Optional[int] = ...) -> None: ...

class SparkLaunch(_message.Message):
    __slots__ = ("driver_url", "spark_version", "environment", "java_options", "extra_class_path", "decommissions", "driver", "worker", "files", "decommission_signal")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DRIVER_URL_FIELD_NUMBER: _ClassVar[int]
    SPARK_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    JAVA_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_CLASS_PATH_FIELD_NUMBER: _ClassVar[int]
    DECOMMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DECOMMISSION_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    driver_url: str
    spark_version: str
    environment: _containers.ScalarMap[str, str]
    java_options: _containers.RepeatedScalarFieldContainer[str]
    extra_class_path: _containers.RepeatedScalarFieldContainer[str]
    decommissions: bool
    driver: str
    worker: str
    files: _containers.RepeatedCompositeFieldContainer[LaunchFile]
    decommission_signal: str
    def __init__(self, driver_url: _Optional[str] = ..., spark_version: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., java_options: _Optional[_Iterable[str]] = ..., extra_class_path: _Optional[_Iterable[str]] = ..., decommissions: bool = ..., driver: _Optional[str] = ..., worker: _Optional[str] = ..., files: _Optional[_Iterable[_Union[LaunchFile, _Mapping]]] = ..., decommission_signal: _Optional[str] = ...) -> None: ...

class LaunchFile(_message.Message):
    __slots__ = ("sha256", "size_bytes", "name", "archive")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size_bytes: int
    name: str
    archive: str
    def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., name: _Optional[str] = ..., archive: _Optional[str] = ...) -> None: ...

class ContainerSpec(_message.Message):
    __slots__ = ("container_id", "application_id", "executor_id", "resource_profile_id", "workload_class", "resources", "expected_duration_s", "launch", "resource_unit_id", "heap_mib", "user", "stands_first", "yields", "application_name")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    HEAP_MIB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIRST_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_NAME_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    application_id: str
    executor_id: str
    resource_profile_id: int
    workload_class: WorkloadClass
    resources: Resources
    expected_duration_s: float
    launch: SparkLaunch
    resource_unit_id: str
    heap_mib: int
    user: str
    stands_first: bool
    yields: bool
    application_name: str
    def __init__(self, container_id: _Optional[str] = ..., application_id: _Optional[str] = ..., executor_id: _Optional[str] = ..., resource_profile_id: _Optional[int] = ..., workload_class: _Optional[_Union[WorkloadClass, str]] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., expected_duration_s: _Optional[float] = ..., launch: _Optional[_Union[SparkLaunch, _Mapping]] = ..., resource_unit_id: _Optional[str] = ..., heap_mib: _Optional[int] = ..., user: _Optional[str] = ..., stands_first: bool = ..., yields: bool = ..., application_name: _Optional[str] = ...) -> None: ...

class GpuUsePart(_message.Message):
    __slots__ = ("gpu", "memory_mib", "cores", "pcie")
    GPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    PCIE_FIELD_NUMBER: _ClassVar[int]
    gpu: float
    memory_mib: float
    cores: float
    pcie: float
    def __init__(self, gpu: _Optional[float] = ..., memory_mib: _Optional[float] = ..., cores: _Optional[float] = ..., pcie: _Optional[float] = ...) -> None: ...

class ContainerGpuUse(_message.Message):
    __slots__ = ("user", "application_name", "part", "resource_profile_id", "gpu_memory_mib", "use", "runs", "node")
    USER_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_NAME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    user: str
    application_name: str
    part: str
    resource_profile_id: int
    gpu_memory_mib: int
    use: _containers.RepeatedCompositeFieldContainer[GpuUsePart]
    runs: int
    node: str
    def __init__(self, user: _Optional[str] = ..., application_name: _Optional[str] = ..., part: _Optional[str] = ..., resource_profile_id: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ..., use: _Optional[_Iterable[_Union[GpuUsePart, _Mapping]]] = ..., runs: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class SparkRuntime(_message.Message):
    __slots__ = ("spark", "scala", "java", "python")
    SPARK_FIELD_NUMBER: _ClassVar[int]
    SCALA_FIELD_NUMBER: _ClassVar[int]
    JAVA_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    spark: str
    scala: str
    java: str
    python: str
    def __init__(self, spark: _Optional[str] = ..., scala: _Optional[str] = ..., java: _Optional[str] = ..., python: _Optional[str] = ...) -> None: ...

class NodeProperties(_message.Message):
    __slots__ = ("host", "labels", "runtimes", "platform")
    HOST_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    host: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    runtimes: _containers.RepeatedCompositeFieldContainer[SparkRuntime]
    platform: str
    def __init__(self, host: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., runtimes: _Optional[_Iterable[_Union[SparkRuntime, _Mapping]]] = ..., platform: _Optional[str] = ...) -> None: ...

class NodeRequirement(_message.Message):
    __slots__ = ("labels", "spark", "scala", "java", "python", "excluded_hosts")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SPARK_FIELD_NUMBER: _ClassVar[int]
    SCALA_FIELD_NUMBER: _ClassVar[int]
    JAVA_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    spark: str
    scala: str
    java: str
    python: str
    excluded_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, labels: _Optional[_Iterable[str]] = ..., spark: _Optional[str] = ..., scala: _Optional[str] = ..., java: _Optional[str] = ..., python: _Optional[str] = ..., excluded_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class ContainerEnd(_message.Message):
    __slots__ = ("cause", "exit_code", "message", "lost_host")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOST_HOST_FIELD_NUMBER: _ClassVar[int]
    cause: EndCause
    exit_code: int
    message: str
    lost_host: str
    def __init__(self, cause: _Optional[_Union[EndCause, str]] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., lost_host: _Optional[str] = ...) -> None: ...

class ContainerStatus(_message.Message):
    __slots__ = ("container_id", "application_id", "executor_id", "resource_profile_id", "workload_class", "resources", "state", "node", "resource_unit_id", "requested_at_s", "assigned_at_s", "started_at_s", "ended_at_s", "end", "stdout_url", "stderr_url", "usage", "expected_duration_s", "preempted", "stands_first", "yields")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNIT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_AT_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_S_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STDOUT_URL_FIELD_NUMBER: _ClassVar[int]
    STDERR_URL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIRST_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    application_id: str
    executor_id: str
    resource_profile_id: int
    workload_class: WorkloadClass
    resources: Resources
    state: ContainerState
    node: str
    resource_unit_id: str
    requested_at_s: float
    assigned_at_s: float
    started_at_s: float
    ended_at_s: float
    end: ContainerEnd
    stdout_url: str
    stderr_url: str
    usage: ContainerUsage
    expected_duration_s: float
    preempted: bool
    stands_first: bool
    yields: bool
    def __init__(self, container_id: _Optional[str] = ..., application_id: _Optional[str] = ..., executor_id: _Optional[str] = ..., resource_profile_id: _Optional[int] = ..., workload_class: _Optional[_Union[WorkloadClass, str]] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., state: _Optional[_Union[ContainerState, str]] = ..., node: _Optional[str] = ..., resource_unit_id: _Optional[str] = ..., requested_at_s: _Optional[float] = ..., assigned_at_s: _Optional[float] = ..., started_at_s: _Optional[float] = ..., ended_at_s: _Optional[float] = ..., end: _Optional[_Union[ContainerEnd, _Mapping]] = ..., stdout_url: _Optional[str] = ..., stderr_url: _Optional[str] = ..., usage: _Optional[_Union[ContainerUsage, _Mapping]] = ..., expected_duration_s: _Optional[float] = ..., preempted: bool = ..., stands_first: bool = ..., yields: bool = ...) -> None: ...

class ContainerUsage(_message.Message):
    __slots__ = ("cpu_percent", "memory_mib", "processes", "disk_mib", "gpu_memory_mib")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_mib: int
    processes: int
    disk_mib: int
    gpu_memory_mib: int
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_mib: _Optional[int] = ..., processes: _Optional[int] = ..., disk_mib: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("active_jobs", "active_stages", "completed_stages", "tasks_total", "tasks_running", "tasks_completed", "tasks_failed", "mean_task_s", "streaming_queries", "stages", "executor_tasks", "training")
    ACTIVE_JOBS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_STAGES_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_STAGES_FIELD_NUMBER: _ClassVar[int]
    TASKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TASKS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    TASKS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MEAN_TASK_S_FIELD_NUMBER: _ClassVar[int]
    STREAMING_QUERIES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_TASKS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    active_jobs: int
    active_stages: int
    completed_stages: int
    tasks_total: int
    tasks_running: int
    tasks_completed: int
    tasks_failed: int
    mean_task_s: float
    streaming_queries: _containers.RepeatedScalarFieldContainer[str]
    stages: _containers.RepeatedCompositeFieldContainer[StageProgress]
    executor_tasks: _containers.RepeatedCompositeFieldContainer[ExecutorTasks]
    training: _containers.RepeatedCompositeFieldContainer[TrainingReport]
    def __init__(self, active_jobs: _Optional[int] = ..., active_stages: _Optional[int] = ..., completed_stages: _Optional[int] = ..., tasks_total: _Optional[int] = ..., tasks_running: _Optional[int] = ..., tasks_completed: _Optional[int] = ..., tasks_failed: _Optional[int] = ..., mean_task_s: _Optional[float] = ..., streaming_queries: _Optional[_Iterable[str]] = ..., stages: _Optional[_Iterable[_Union[StageProgress, _Mapping]]] = ..., executor_tasks: _Optional[_Iterable[_Union[ExecutorTasks, _Mapping]]] = ..., training: _Optional[_Iterable[_Union[TrainingReport, _Mapping]]] = ...) -> None: ...

class TrainingReport(_message.Message):
    __slots__ = ("epoch", "loss", "accuracy", "seconds", "epochs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    loss: float
    accuracy: float
    seconds: float
    epochs: int
    def __init__(self, epoch: _Optional[int] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., seconds: _Optional[float] = ..., epochs: _Optional[int] = ...) -> None: ...

class ExecutorTasks(_message.Message):
    __slots__ = ("executor_id", "stage", "tasks", "run_s", "input_bytes")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    stage: str
    tasks: int
    run_s: float
    input_bytes: int
    def __init__(self, executor_id: _Optional[str] = ..., stage: _Optional[str] = ..., tasks: _Optional[int] = ..., run_s: _Optional[float] = ..., input_bytes: _Optional[int] = ...) -> None: ...

class StageProgress(_message.Message):
    __slots__ = ("stage_id", "attempt", "name", "tasks_total", "tasks_running", "tasks_completed", "tasks_failed", "mean_task_s")
    STAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TASKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TASKS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    TASKS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MEAN_TASK_S_FIELD_NUMBER: _ClassVar[int]
    stage_id: int
    attempt: int
    name: str
    tasks_total: int
    tasks_running: int
    tasks_completed: int
    tasks_failed: int
    mean_task_s: float
    def __init__(self, stage_id: _Optional[int] = ..., attempt: _Optional[int] = ..., name: _Optional[str] = ..., tasks_total: _Optional[int] = ..., tasks_running: _Optional[int] = ..., tasks_completed: _Optional[int] = ..., tasks_failed: _Optional[int] = ..., mean_task_s: _Optional[float] = ...) -> None: ...
