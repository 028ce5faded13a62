from hrm.v1 import common_pb2 as _common_pb2
from hrm.v1 import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("version", "epoch", "started_at_s", "address", "nodes_alive", "nodes_draining", "nodes_lost", "capacity", "free", "applications_live", "applications_ended", "containers_running", "containers_waiting", "containers_pending", "schedulers", "lease", "claims_committed", "claims_queued", "claims_aborted", "paused", "run_time_errors", "recovery", "calls_refused", "incomplete")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODES_ALIVE_FIELD_NUMBER: _ClassVar[int]
    NODES_DRAINING_FIELD_NUMBER: _ClassVar[int]
    NODES_LOST_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_LIVE_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_ENDED_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_WAITING_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_PENDING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_ABORTED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_ERRORS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    CALLS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: int
    started_at_s: float
    address: str
    nodes_alive: int
    nodes_draining: int
    nodes_lost: int
    capacity: _common_pb2.Resources
    free: _common_pb2.Resources
    applications_live: int
    applications_ended: int
    containers_running: int
    containers_waiting: int
    containers_pending: int
    schedulers: _containers.RepeatedCompositeFieldContainer[Scheduler]
    lease: Lease
    claims_committed: int
    claims_queued: int
    claims_aborted: int
    paused: str
    run_time_errors: RunTimeErrors
    recovery: Recovery
    calls_refused: int
    incomplete: bool
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., started_at_s: _Optional[float] = ..., address: _Optional[str] = ..., nodes_alive: _Optional[int] = ..., nodes_draining: _Optional[int] = ..., nodes_lost: _Optional[int] = ..., capacity: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., free: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., applications_live: _Optional[int] = ..., applications_ended: _Optional[int] = ..., containers_running: _Optional[int] = ..., containers_waiting: _Optional[int] = ..., containers_pending: _Optional[int] = ..., schedulers: _Optional[_Iterable[_Union[Scheduler, _Mapping]]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., claims_committed: _Optional[int] = ..., claims_queued: _Optional[int] = ..., claims_aborted: _Optional[int] = ..., paused: _Optional[str] = ..., run_time_errors: _Optional[_Union[RunTimeErrors, _Mapping]] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ..., calls_refused: _Optional[int] = ..., incomplete: bool = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("nodes_known", "nodes_back", "ends_in_s", "may_lack_nodes")
    NODES_KNOWN_FIELD_NUMBER: _ClassVar[int]
    NODES_BACK_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    MAY_LACK_NODES_FIELD_NUMBER: _ClassVar[int]
    nodes_known: int
    nodes_back: int
    ends_in_s: float
    may_lack_nodes: bool
    def __init__(self, nodes_known: _Optional[int] = ..., nodes_back: _Optional[int] = ..., ends_in_s: _Optional[float] = ..., may_lack_nodes: bool = ...) -> None: ...

class RunTimeErrors(_message.Message):
    __slots__ = ("containers", "median", "p90", "unknown", "learned")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    containers: int
    median: float
    p90: float
    unknown: int
    learned: int
    def __init__(self, containers: _Optional[int] = ..., median: _Optional[float] = ..., p90: _Optional[float] = ..., unknown: _Optional[int] = ..., learned: _Optional[int] = ...) -> None: ...

class Scheduler(_message.Message):
    __slots__ = ("name", "queued_jobs", "rounds", "placed", "retries", "delay_p50_s", "delay_p99_s", "decision_p50_s", "decision_p99_s", "capacity_wait_p50_s", "capacity_wait_p99_s", "oldest_wait_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUED_JOBS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    DELAY_P50_S_FIELD_NUMBER: _ClassVar[int]
    DELAY_P99_S_FIELD_NUMBER: _ClassVar[int]
    DECISION_P50_S_FIELD_NUMBER: _ClassVar[int]
    DECISION_P99_S_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_WAIT_P99_S_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    queued_jobs: int
    rounds: int
    placed: int
    retries: int
    delay_p50_s: float
    delay_p99_s: float
    decision_p50_s: float
    decision_p99_s: float
    capacity_wait_p50_s: float
    capacity_wait_p99_s: float
    oldest_wait_s: float
    def __init__(self, name: _Optional[str] = ..., queued_jobs: _Optional[int] = ..., rounds: _Optional[int] = ..., placed: _Optional[int] = ..., retries: _Optional[int] = ..., delay_p50_s: _Optional[float] = ..., delay_p99_s: _Optional[float] = ..., decision_p50_s: _Optional[float] = ..., decision_p99_s: _Optional[float] = ..., capacity_wait_p50_s: _Optional[float] = ..., capacity_wait_p99_s: _Optional[float] = ..., oldest_wait_s: _Optional[float] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("holder", "expires_in_s", "token")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    holder: str
    expires_in_s: float
    token: int
    def __init__(self, holder: _Optional[str] = ..., expires_in_s: _Optional[float] = ..., token: _Optional[int] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "name", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    name: str
    states: _containers.RepeatedScalarFieldContainer[_common_pb2.NodeState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., name: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_common_pb2.NodeState, str]]] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "next_page_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    next_page_token: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "host", "endpoint", "state", "resource_units", "isolation", "spark_versions", "usage", "registered_at_s", "last_heard_s_ago", "platform", "shortcuts", "excluded_for_s", "exclusion", "excluded_applications", "remarks", "labels", "runtimes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UNITS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    SPARK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_S_AGO_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SHORTCUTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FOR_S_FIELD_NUMBER: _ClassVar[int]
    EXCLUSION_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    REMARKS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    endpoint: str
    state: _common_pb2.NodeState
    resource_units: _containers.RepeatedCompositeFieldContainer[ResourceUnitStatus]
    isolation: str
    spark_versions: _containers.RepeatedScalarFieldContainer[str]
    usage: _node_pb2.NodeUsage
    registered_at_s: float
    last_heard_s_ago: float
    platform: str
    shortcuts: _containers.RepeatedCompositeFieldContainer[_node_pb2.Shortcut]
    excluded_for_s: float
    exclusion: str
    excluded_applications: int
    remarks: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.RepeatedScalarFieldContainer[str]
    runtimes: _containers.RepeatedCompositeFieldContainer[_common_pb2.SparkRuntime]
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., endpoint: _Optional[str] = ..., state: _Optional[_Union[_common_pb2.NodeState, str]] = ..., resource_units: _Optional[_Iterable[_Union[ResourceUnitStatus, _Mapping]]] = ..., isolation: _Optional[str] = ..., spark_versions: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[_node_pb2.NodeUsage, _Mapping]] = ..., registered_at_s: _Optional[float] = ..., last_heard_s_ago: _Optional[float] = ..., platform: _Optional[str] = ..., shortcuts: _Optional[_Iterable[_Union[_node_pb2.Shortcut, _Mapping]]] = ..., excluded_for_s: _Optional[float] = ..., exclusion: _Optional[str] = ..., excluded_applications: _Optional[int] = ..., remarks: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., runtimes: _Optional[_Iterable[_Union[_common_pb2.SparkRuntime, _Mapping]]] = ...) -> None: ...

class ResourceUnitStatus(_message.Message):
    __slots__ = ("unit", "free", "running", "waiting_stream", "waiting_batch")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_STREAM_FIELD_NUMBER: _ClassVar[int]
    WAITING_BATCH_FIELD_NUMBER: _ClassVar[int]
    unit: _node_pb2.ResourceUnit
    free: _common_pb2.Resources
    running: int
    waiting_stream: int
    waiting_batch: int
    def __init__(self, unit: _Optional[_Union[_node_pb2.ResourceUnit, _Mapping]] = ..., free: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., running: _Optional[int] = ..., waiting_stream: _Optional[int] = ..., waiting_batch: _Optional[int] = ...) -> None: ...

class ListApplicationsRequest(_message.Message):
    __slots__ = ("include_ended", "limit", "page_size", "page_token", "queue")
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    include_ended: bool
    limit: int
    page_size: int
    page_token: str
    queue: str
    def __init__(self, include_ended: bool = ..., limit: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., queue: _Optional[str] = ...) -> None: ...

class ListApplicationsResponse(_message.Message):
    __slots__ = ("applications", "next_page_token")
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    applications: _containers.RepeatedCompositeFieldContainer[Application]
    next_page_token: str
    def __init__(self, applications: _Optional[_Iterable[_Union[Application, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetApplicationRequest(_message.Message):
    __slots__ = ("application_id", "containers_limit")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    containers_limit: int
    def __init__(self, application_id: _Optional[str] = ..., containers_limit: _Optional[int] = ...) -> None: ...

class Application(_message.Message):
    __slots__ = ("application_id", "name", "user", "queue", "state", "workload_class", "class_evidence", "spark_version", "driver_host", "web_url", "submitted_at_s", "first_running_at_s", "ended_at_s", "message", "scheduler", "containers", "progress", "containers_running", "containers_waiting", "containers_pending", "mean_wait_s", "run_times", "gang_min", "submission_id", "submission_attempt", "input_bytes", "containers_total", "priority", "training", "executors_max", "hidden", "priority_class", "priority_tenths", "interruptions", "driver_start")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLASS_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SPARK_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_HOST_FIELD_NUMBER: _ClassVar[int]
    WEB_URL_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_RUNNING_AT_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_WAITING_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_PENDING_FIELD_NUMBER: _ClassVar[int]
    MEAN_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RUN_TIMES_FIELD_NUMBER: _ClassVar[int]
    GANG_MIN_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_MAX_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_TENTHS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_START_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    name: str
    user: str
    queue: str
    state: _common_pb2.ApplicationState
    workload_class: _common_pb2.WorkloadClass
    class_evidence: str
    spark_version: str
    driver_host: str
    web_url: str
    submitted_at_s: float
    first_running_at_s: float
    ended_at_s: float
    message: str
    scheduler: str
    containers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ContainerStatus]
    progress: _common_pb2.Progress
    containers_running: int
    containers_waiting: int
    containers_pending: int
    mean_wait_s: float
    run_times: _containers.RepeatedCompositeFieldContainer[RunTime]
    gang_min: int
    submission_id: str
    submission_attempt: int
    input_bytes: int
    containers_total: int
    priority: int
    training: _common_pb2.TrainingReport
    executors_max: int
    hidden: bool
    priority_class: _common_pb2.PriorityClass
    priority_tenths: int
    interruptions: int
    driver_start: str
    def __init__(self, application_id: _Optional[str] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., queue: _Optional[str] = ..., state: _Optional[_Union[_common_pb2.ApplicationState, str]] = ..., workload_class: _Optional[_Union[_common_pb2.WorkloadClass, str]] = ..., class_evidence: _Optional[str] = ..., spark_version: _Optional[str] = ..., driver_host: _Optional[str] = ..., web_url: _Optional[str] = ..., submitted_at_s: _Optional[float] = ..., first_running_at_s: _Optional[float] = ..., ended_at_s: _Optional[float] = ..., message: _Optional[str] = ..., scheduler: _Optional[str] = ..., containers: _Optional[_Iterable[_Union[_common_pb2.ContainerStatus, _Mapping]]] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., containers_running: _Optional[int] = ..., containers_waiting: _Optional[int] = ..., containers_pending: _Optional[int] = ..., mean_wait_s: _Optional[float] = ..., run_times: _Optional[_Iterable[_Union[RunTime, _Mapping]]] = ..., gang_min: _Optional[int] = ..., submission_id: _Optional[str] = ..., submission_attempt: _Optional[int] = ..., input_bytes: _Optional[int] = ..., containers_total: _Optional[int] = ..., priority: _Optional[int] = ..., training: _Optional[_Union[_common_pb2.TrainingReport, _Mapping]] = ..., executors_max: _Optional[int] = ..., hidden: bool = ..., priority_class: _Optional[_Union[_common_pb2.PriorityClass, str]] = ..., priority_tenths: _Optional[int] = ..., interruptions: _Optional[int] = ..., driver_start: _Optional[str] = ...) -> None: ...

class RunTime(_message.Message):
    __slots__ = ("resource_profile_id", "mean_s", "containers", "expected_s", "mean_input_bytes")
    RESOURCE_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    MEAN_S_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    MEAN_INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    resource_profile_id: int
    mean_s: float
    containers: int
    expected_s: float
    mean_input_bytes: float
    def __init__(self, resource_profile_id: _Optional[int] = ..., mean_s: _Optional[float] = ..., containers: _Optional[int] = ..., expected_s: _Optional[float] = ..., mean_input_bytes: _Optional[float] = ...) -> None: ...

class ExplainApplicationRequest(_message.Message):
    __slots__ = ("application_id",)
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    def __init__(self, application_id: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("application_id", "summary", "details")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    summary: str
    details: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, application_id: _Optional[str] = ..., summary: _Optional[str] = ..., details: _Optional[_Iterable[str]] = ...) -> None: ...

class KillApplicationRequest(_message.Message):
    __slots__ = ("application_id", "reason")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    reason: str
    def __init__(self, application_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangePriorityRequest(_message.Message):
    __slots__ = ("application_id", "steps")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    steps: int
    def __init__(self, application_id: _Optional[str] = ..., steps: _Optional[int] = ...) -> None: ...

class DrainNodesRequest(_message.Message):
    __slots__ = ("names", "undo", "move_within_s", "reason")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    MOVE_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    undo: bool
    move_within_s: float
    reason: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., undo: bool = ..., move_within_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class BindNodeRequest(_message.Message):
    __slots__ = ("name", "mode", "bound_cores", "reserve_cores")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BOUND_CORES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_CORES_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: _node_pb2.BindingMode
    bound_cores: int
    reserve_cores: int
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[_Union[_node_pb2.BindingMode, str]] = ..., bound_cores: _Optional[int] = ..., reserve_cores: _Optional[int] = ...) -> None: ...

class BindNodeResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("application_id", "executor_id", "stream", "tail_bytes", "follow")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    executor_id: str
    stream: str
    tail_bytes: int
    follow: bool
    def __init__(self, application_id: _Optional[str] = ..., executor_id: _Optional[str] = ..., stream: _Optional[str] = ..., tail_bytes: _Optional[int] = ..., follow: bool = ...) -> None: ...

class LinkLogRequest(_message.Message):
    __slots__ = ("application_id", "executor_id", "stream", "asker")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    executor_id: str
    stream: str
    asker: str
    def __init__(self, application_id: _Optional[str] = ..., executor_id: _Optional[str] = ..., stream: _Optional[str] = ..., asker: _Optional[str] = ...) -> None: ...
