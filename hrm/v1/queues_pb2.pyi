from hrm.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueQuota(_message.Message):
    __slots__ = ("cores", "memory", "gpu_memory")
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    cores: str
    memory: str
    gpu_memory: str
    def __init__(self, cores: _Optional[str] = ..., memory: _Optional[str] = ..., gpu_memory: _Optional[str] = ...) -> None: ...

class QueueNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueStated(_message.Message):
    __slots__ = ("name", "guaranteed", "maximum", "weight", "max_running", "order", "preemptible", "driver_share", "minimum_user_limit", "user_limit_factor", "submitters", "administrators", "interrupts", "maximum_class")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_SHARE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_USER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    USER_LIMIT_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SUBMITTERS_FIELD_NUMBER: _ClassVar[int]
    ADMINISTRATORS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTS_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_CLASS_FIELD_NUMBER: _ClassVar[int]
    name: str
    guaranteed: QueueQuota
    maximum: QueueQuota
    weight: float
    max_running: int
    order: str
    preemptible: bool
    driver_share: float
    minimum_user_limit: float
    user_limit_factor: float
    submitters: QueueNames
    administrators: QueueNames
    interrupts: bool
    maximum_class: str
    def __init__(self, name: _Optional[str] = ..., guaranteed: _Optional[_Union[QueueQuota, _Mapping]] = ..., maximum: _Optional[_Union[QueueQuota, _Mapping]] = ..., weight: _Optional[float] = ..., max_running: _Optional[int] = ..., order: _Optional[str] = ..., preemptible: bool = ..., driver_share: _Optional[float] = ..., minimum_user_limit: _Optional[float] = ..., user_limit_factor: _Optional[float] = ..., submitters: _Optional[_Union[QueueNames, _Mapping]] = ..., administrators: _Optional[_Union[QueueNames, _Mapping]] = ..., interrupts: bool = ..., maximum_class: _Optional[str] = ...) -> None: ...

class QueueAmounts(_message.Message):
    __slots__ = ("cores", "memory_mib", "gpu_memory_mib")
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    cores: float
    memory_mib: float
    gpu_memory_mib: float
    def __init__(self, cores: _Optional[float] = ..., memory_mib: _Optional[float] = ..., gpu_memory_mib: _Optional[float] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("name", "waiting_limit", "page_size", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAITING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    waiting_limit: int
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., waiting_limit: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token", "fairness")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    next_page_token: str
    fairness: QueueFairness
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., fairness: _Optional[_Union[QueueFairness, _Mapping]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "stated", "in_file", "is_leaf", "guaranteed", "maximum", "share", "used", "borrowed", "pending", "running", "applications", "past_use", "waiting", "waiting_total", "observed", "longest_wait_s", "platforms", "classes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATED_FIELD_NUMBER: _ClassVar[int]
    IN_FILE_FIELD_NUMBER: _ClassVar[int]
    IS_LEAF_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    PAST_USE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    LONGEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    stated: QueueStated
    in_file: bool
    is_leaf: bool
    guaranteed: QueueAmounts
    maximum: QueueAmounts
    share: QueueAmounts
    used: QueueAmounts
    borrowed: QueueAmounts
    pending: QueueAmounts
    running: int
    applications: int
    past_use: float
    waiting: _containers.RepeatedCompositeFieldContainer[QueueWait]
    waiting_total: int
    observed: QueueObserved
    longest_wait_s: float
    platforms: _containers.RepeatedCompositeFieldContainer[QueuePlatform]
    classes: _containers.RepeatedCompositeFieldContainer[QueueClass]
    def __init__(self, name: _Optional[str] = ..., stated: _Optional[_Union[QueueStated, _Mapping]] = ..., in_file: bool = ..., is_leaf: bool = ..., guaranteed: _Optional[_Union[QueueAmounts, _Mapping]] = ..., maximum: _Optional[_Union[QueueAmounts, _Mapping]] = ..., share: _Optional[_Union[QueueAmounts, _Mapping]] = ..., used: _Optional[_Union[QueueAmounts, _Mapping]] = ..., borrowed: _Optional[_Union[QueueAmounts, _Mapping]] = ..., pending: _Optional[_Union[QueueAmounts, _Mapping]] = ..., running: _Optional[int] = ..., applications: _Optional[int] = ..., past_use: _Optional[float] = ..., waiting: _Optional[_Iterable[_Union[QueueWait, _Mapping]]] = ..., waiting_total: _Optional[int] = ..., observed: _Optional[_Union[QueueObserved, _Mapping]] = ..., longest_wait_s: _Optional[float] = ..., platforms: _Optional[_Iterable[_Union[QueuePlatform, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[QueueClass, _Mapping]]] = ...) -> None: ...

class QueueClass(_message.Message):
    __slots__ = ("priority_class", "applications", "waiting")
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    priority_class: _common_pb2.PriorityClass
    applications: int
    waiting: int
    def __init__(self, priority_class: _Optional[_Union[_common_pb2.PriorityClass, str]] = ..., applications: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...

class QueuePlatform(_message.Message):
    __slots__ = ("platform", "cores", "held_cores", "affinity")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    HELD_CORES_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    platform: str
    cores: int
    held_cores: float
    affinity: float
    def __init__(self, platform: _Optional[str] = ..., cores: _Optional[int] = ..., held_cores: _Optional[float] = ..., affinity: _Optional[float] = ...) -> None: ...

class QueueObserved(_message.Message):
    __slots__ = ("takes_part", "throughput", "entitled_cores", "held_cores", "speed", "busy", "wait_p50_s", "wait_p90_s", "wait_p99_s", "starts")
    TAKES_PART_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    ENTITLED_CORES_FIELD_NUMBER: _ClassVar[int]
    HELD_CORES_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_P90_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_P99_S_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    takes_part: bool
    throughput: float
    entitled_cores: float
    held_cores: float
    speed: float
    busy: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    starts: float
    def __init__(self, takes_part: bool = ..., throughput: _Optional[float] = ..., entitled_cores: _Optional[float] = ..., held_cores: _Optional[float] = ..., speed: _Optional[float] = ..., busy: _Optional[float] = ..., wait_p50_s: _Optional[float] = ..., wait_p90_s: _Optional[float] = ..., wait_p99_s: _Optional[float] = ..., starts: _Optional[float] = ...) -> None: ...

class QueueFairness(_message.Message):
    __slots__ = ("queues", "with_speeds", "fairness", "jain", "spread", "half_life_s")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WITH_SPEEDS_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_FIELD_NUMBER: _ClassVar[int]
    JAIN_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_S_FIELD_NUMBER: _ClassVar[int]
    queues: int
    with_speeds: int
    fairness: float
    jain: float
    spread: float
    half_life_s: float
    def __init__(self, queues: _Optional[int] = ..., with_speeds: _Optional[int] = ..., fairness: _Optional[float] = ..., jain: _Optional[float] = ..., spread: _Optional[float] = ..., half_life_s: _Optional[float] = ...) -> None: ...

class QueueWait(_message.Message):
    __slots__ = ("application_id", "user", "position", "containers", "reason", "why", "priority_class", "priority_tenths")
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_TENTHS_FIELD_NUMBER: _ClassVar[int]
    application_id: str
    user: str
    position: int
    containers: int
    reason: str
    why: str
    priority_class: _common_pb2.PriorityClass
    priority_tenths: int
    def __init__(self, application_id: _Optional[str] = ..., user: _Optional[str] = ..., position: _Optional[int] = ..., containers: _Optional[int] = ..., reason: _Optional[str] = ..., why: _Optional[str] = ..., priority_class: _Optional[_Union[_common_pb2.PriorityClass, str]] = ..., priority_tenths: _Optional[int] = ...) -> None: ...

class ChangeQueuesRequest(_message.Message):
    __slots__ = ("queues", "create", "unset", "removed", "dry_run")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStated]
    create: bool
    unset: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueStated, _Mapping]]] = ..., create: bool = ..., unset: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ..., dry_run: bool = ...) -> None: ...

class ChangeQueuesResponse(_message.Message):
    __slots__ = ("preempted_containers", "held_back_applications", "in_file", "queues")
    PREEMPTED_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FILE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    preempted_containers: _containers.RepeatedScalarFieldContainer[str]
    held_back_applications: _containers.RepeatedScalarFieldContainer[str]
    in_file: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStated]
    def __init__(self, preempted_containers: _Optional[_Iterable[str]] = ..., held_back_applications: _Optional[_Iterable[str]] = ..., in_file: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[_Union[QueueStated, _Mapping]]] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("queue", "executors", "resources", "user")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    executors: int
    resources: _common_pb2.Resources
    user: str
    def __init__(self, queue: _Optional[str] = ..., executors: _Optional[int] = ..., resources: _Optional[_Union[_common_pb2.Resources, _Mapping]] = ..., user: _Optional[str] = ...) -> None: ...

class WhatIfResponse(_message.Message):
    __slots__ = ("at_once", "by_preemption", "later", "why", "preempted", "grace_s", "later_s")
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    BY_PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    LATER_S_FIELD_NUMBER: _ClassVar[int]
    at_once: int
    by_preemption: int
    later: int
    why: str
    preempted: _containers.RepeatedCompositeFieldContainer[PreemptedContainer]
    grace_s: float
    later_s: float
    def __init__(self, at_once: _Optional[int] = ..., by_preemption: _Optional[int] = ..., later: _Optional[int] = ..., why: _Optional[str] = ..., preempted: _Optional[_Iterable[_Union[PreemptedContainer, _Mapping]]] = ..., grace_s: _Optional[float] = ..., later_s: _Optional[float] = ...) -> None: ...

class PreemptedContainer(_message.Message):
    __slots__ = ("container_id", "application_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    application_id: str
    def __init__(self, container_id: _Optional[str] = ..., application_id: _Optional[str] = ...) -> None: ...

class ListAffinitiesRequest(_message.Message):
    __slots__ = ("queue", "co_runners_limit", "page_size", "page_token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CO_RUNNERS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    co_runners_limit: int
    page_size: int
    page_token: str
    def __init__(self, queue: _Optional[str] = ..., co_runners_limit: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAffinitiesResponse(_message.Message):
    __slots__ = ("kinds", "next_page_token", "platforms")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedCompositeFieldContainer[LearnedKind]
    next_page_token: str
    platforms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kinds: _Optional[_Iterable[_Union[LearnedKind, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., platforms: _Optional[_Iterable[str]] = ...) -> None: ...

class LearnedKind(_message.Message):
    __slots__ = ("queue", "name", "platforms", "company", "co_runners", "hidden")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    COMPANY_FIELD_NUMBER: _ClassVar[int]
    CO_RUNNERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    platforms: _containers.RepeatedCompositeFieldContainer[LearnedPlatform]
    company: LearnedSlowdown
    co_runners: _containers.RepeatedCompositeFieldContainer[LearnedSlowdown]
    hidden: bool
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., platforms: _Optional[_Iterable[_Union[LearnedPlatform, _Mapping]]] = ..., company: _Optional[_Union[LearnedSlowdown, _Mapping]] = ..., co_runners: _Optional[_Iterable[_Union[LearnedSlowdown, _Mapping]]] = ..., hidden: bool = ...) -> None: ...

class LearnedPlatform(_message.Message):
    __slots__ = ("platform", "run_s", "relative", "factor", "observations", "tasks_per_hour", "egocentric", "reciprocal", "relative_factor")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    EGOCENTRIC_FIELD_NUMBER: _ClassVar[int]
    RECIPROCAL_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FACTOR_FIELD_NUMBER: _ClassVar[int]
    platform: str
    run_s: float
    relative: float
    factor: float
    observations: float
    tasks_per_hour: float
    egocentric: float
    reciprocal: float
    relative_factor: float
    def __init__(self, platform: _Optional[str] = ..., run_s: _Optional[float] = ..., relative: _Optional[float] = ..., factor: _Optional[float] = ..., observations: _Optional[float] = ..., tasks_per_hour: _Optional[float] = ..., egocentric: _Optional[float] = ..., reciprocal: _Optional[float] = ..., relative_factor: _Optional[float] = ...) -> None: ...

class LearnedSlowdown(_message.Message):
    __slots__ = ("queue", "name", "factor", "least", "most", "observations")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    factor: float
    least: float
    most: float
    observations: float
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., factor: _Optional[float] = ..., least: _Optional[float] = ..., most: _Optional[float] = ..., observations: _Optional[float] = ...) -> None: ...
