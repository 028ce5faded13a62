"""How large an application's first executors will be, and how many begin together: from its conf.

What a submission's settings say before its driver runs. The driver itself sums the same quantities
(``hrm/spark/plugin/ExecutorLaunch.scala``), with what its code sets; that is what counts once it
requests executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hrm.core.vocabulary.model import FirstExecutors, Resources
from hrm.errors import InvalidRequest

__all__ = ["first_executors_of", "memory_mib"]

_UNITS = {"b": 2**-20, "k": 2**-10, "m": 1.0, "g": 2**10, "t": 2**20, "p": 2**30}
_MEMORY = re.compile(r"(\d+)\s*([bkmgtp]?)b?", re.IGNORECASE)
_LENGTH_MAX = 100
_OVERHEAD_MIN = "384m"
_OVERHEAD_FACTOR = "0.10"


def memory_mib(text: str, setting: str) -> int:
    """A size such as ``4g`` or ``512m`` in MiB; a bare number is MiB.

    Raises:
        InvalidRequest: it is malformed, or less than 1 MiB.
    """
    matched = _MEMORY.fullmatch(text.strip()) if len(text) <= _LENGTH_MAX else None
    size = int(int(matched[1]) * _UNITS[matched[2].lower() or "m"]) if matched else 0
    if size < 1:
        raise InvalidRequest(f"{setting} is {text!r}; give a size such as 2g or 512m")
    return size


def first_executors_of(conf: Mapping[str, str]) -> FirstExecutors | None:
    """What a driver with these settings needs to begin: its gang, or one executor.

    None where it asks for no executors, or where its settings cannot be read: its driver will say
    so itself.
    """
    try:
        gang = _gang(conf)
        if not gang and _asks_for_none(conf):
            return None
        vcores = int(conf.get("spark.executor.cores", "1"))
        if vcores < 1:
            return None
        return FirstExecutors(
            count=max(1, gang),
            resources=Resources(vcores, _executor_mib(conf), _gpu_mib(conf)),
            gpus=min(1, int(conf.get("spark.executor.resource.gpu.amount", "0"))),
            stated=gang > 0,
        )
    except (InvalidRequest, ValueError, OverflowError):
        return None


def _gang(conf: Mapping[str, str]) -> int:
    gang = int(conf.get("spark.hrm.gang.min", "0"))
    if conf.get("spark.hrm.class", "").lower() == "stream":
        gang = int(conf.get("spark.hrm.stream.min", "0")) or gang
    return max(0, gang)


def _asks_for_none(conf: Mapping[str, str]) -> bool:
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    return not is_dynamic and conf.get("spark.executor.instances", "").strip() == "0"


def _executor_mib(conf: Mapping[str, str]) -> int:
    def size(name: str, default: str = "") -> int:
        text = conf.get(name, default)
        return memory_mib(text, name) if text.strip(" 0") else 0

    heap_mib = size("spark.executor.memory", "1g")
    overhead_mib = size("spark.executor.memoryOverhead")
    if "spark.executor.memoryOverhead" not in conf:
        factor = float(conf.get("spark.executor.memoryOverheadFactor", _OVERHEAD_FACTOR))
        least_mib = size("spark.executor.minMemoryOverhead", _OVERHEAD_MIN)
        overhead_mib = max(int(heap_mib * factor), least_mib)
    off_heap_mib = 0
    if conf.get("spark.memory.offHeap.enabled", "false").lower() == "true":
        text = conf.get("spark.memory.offHeap.size", "0")
        off_heap_mib = int(text) // 2**20 if text.isdecimal() else size("spark.memory.offHeap.size")
    return heap_mib + overhead_mib + off_heap_mib + size("spark.executor.pyspark.memory")


def _gpu_mib(conf: Mapping[str, str]) -> int:
    name = "spark.hrm.executor.gpu.memory"
    return memory_mib(conf[name], name) if name in conf else 0
