from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShowPoliciesRequest(_message.Message):
    __slots__ = ("policy", "records")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    records: bool
    def __init__(self, policy: _Optional[str] = ..., records: bool = ...) -> None: ...

class ShowPoliciesResponse(_message.Message):
    __slots__ = ("policies", "models")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[LearnedPolicy]
    models: _containers.RepeatedCompositeFieldContainer[ModelFile]
    def __init__(self, policies: _Optional[_Iterable[_Union[LearnedPolicy, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ModelFile, _Mapping]]] = ...) -> None: ...

class SetPolicyModeRequest(_message.Message):
    __slots__ = ("policy", "mode")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    policy: str
    mode: str
    def __init__(self, policy: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class ModelFile(_message.Message):
    __slots__ = ("kind", "version", "path")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    kind: str
    version: int
    path: str
    def __init__(self, kind: _Optional[str] = ..., version: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class LearnedPolicy(_message.Message):
    __slots__ = ("policy", "kind", "heuristic", "model", "schema", "mode", "asked", "learned", "shadowed", "agreed", "fallbacks", "breaker_s", "seconds_p50", "seconds_p99", "ratio_p95", "reference_p95", "rolled_back_at_s", "last", "records", "node", "nodes", "ratio_mean", "reference_mean", "compared", "reference_compared", "proposed", "rolled_back_why")
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    SHADOWED_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    BREAKER_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_P50_FIELD_NUMBER: _ClassVar[int]
    SECONDS_P99_FIELD_NUMBER: _ClassVar[int]
    RATIO_P95_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_P95_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_AT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RATIO_MEAN_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_MEAN_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COMPARED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_WHY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    kind: str
    heuristic: str
    model: str
    schema: str
    mode: str
    asked: int
    learned: int
    shadowed: int
    agreed: int
    fallbacks: _containers.ScalarMap[str, int]
    breaker_s: float
    seconds_p50: float
    seconds_p99: float
    ratio_p95: float
    reference_p95: float
    rolled_back_at_s: float
    last: str
    records: _containers.RepeatedCompositeFieldContainer[ShadowRecord]
    node: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    ratio_mean: float
    reference_mean: float
    compared: int
    reference_compared: int
    proposed: int
    rolled_back_why: str
    def __init__(self, policy: _Optional[str] = ..., kind: _Optional[str] = ..., heuristic: _Optional[str] = ..., model: _Optional[str] = ..., schema: _Optional[str] = ..., mode: _Optional[str] = ..., asked: _Optional[int] = ..., learned: _Optional[int] = ..., shadowed: _Optional[int] = ..., agreed: _Optional[int] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., breaker_s: _Optional[float] = ..., seconds_p50: _Optional[float] = ..., seconds_p99: _Optional[float] = ..., ratio_p95: _Optional[float] = ..., reference_p95: _Optional[float] = ..., rolled_back_at_s: _Optional[float] = ..., last: _Optional[str] = ..., records: _Optional[_Iterable[_Union[ShadowRecord, _Mapping]]] = ..., node: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., ratio_mean: _Optional[float] = ..., reference_mean: _Optional[float] = ..., compared: _Optional[int] = ..., reference_compared: _Optional[int] = ..., proposed: _Optional[int] = ..., rolled_back_why: _Optional[str] = ...) -> None: ...

class PolicyOrder(_message.Message):
    __slots__ = ("policy", "mode", "order")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    policy: str
    mode: str
    order: int
    def __init__(self, policy: _Optional[str] = ..., mode: _Optional[str] = ..., order: _Optional[int] = ...) -> None: ...

class ShadowRecord(_message.Message):
    __slots__ = ("at_s", "key", "heuristic", "learned", "same", "reason", "seconds")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    key: str
    heuristic: str
    learned: str
    same: bool
    reason: str
    seconds: float
    def __init__(self, at_s: _Optional[float] = ..., key: _Optional[str] = ..., heuristic: _Optional[str] = ..., learned: _Optional[str] = ..., same: bool = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
