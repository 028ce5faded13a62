"""What becomes of each ``spark.executor.*`` and ``spark.driver.*`` setting of Spark on HRM.

A setting that is silently ignored is worse than one that is refused: people bring configurations
from YARN, Kubernetes and Standalone, and expect them to count. So every setting of Spark 4.3 has
one row here. The table is ``docs/spark-settings.md`` (``make docs``); a test compares it with
Spark's own registry, so that a setting of a later Spark cannot be forgotten. It is used, too:
``without_effect`` gives the warnings about what is set and does nothing, ``check_submission``
refuses what cannot be had in cluster deploy mode.

Imports are kept light: an AppMaster starts with every ``spark-submit``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hrm.errors import InvalidRequest

__all__ = [
    "FAMILIES",
    "SETTINGS",
    "SettingSupport",
    "Treatment",
    "check_submission",
    "without_effect",
]


class Treatment(Enum):
    """What HRM does with a setting."""

    HONOURED = "honoured"
    NOT_APPLICABLE = "not applicable"
    REFUSED = "refused"
    OF_SPARK = "not for users"
    """Spark sets it itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSupport:
    """``since``: the Spark that it came with. ``note``: how it is honoured, or why it is not."""

    since: str
    treatment: Treatment
    note: str


def _honoured(since: str, note: str) -> SettingSupport:
    return SettingSupport(since=since, treatment=Treatment.HONOURED, note=note)


def _not_applicable(since: str, note: str) -> SettingSupport:
    return SettingSupport(since=since, treatment=Treatment.NOT_APPLICABLE, note=note)


def _refused(since: str, note: str) -> SettingSupport:
    return SettingSupport(since=since, treatment=Treatment.REFUSED, note=note)


def _of_spark(since: str, note: str) -> SettingSupport:
    return SettingSupport(since=since, treatment=Treatment.OF_SPARK, note=note)


_SPARKS = "by Spark itself"
_LAUNCHER = "by Spark's launcher"
_LOGS = "nodes rotate the logs of all containers alike: log_bytes_max and log_files_max of [agent]"

SETTINGS: dict[str, SettingSupport] = {
    "spark.driver.appUIAddress": _of_spark("1.1.0", "of YARN's own processes"),
    "spark.driver.bindAddress": _honoured(
        "2.1.0", f"{_SPARKS}; in cluster deploy mode the node binds its own address"
    ),
    "spark.driver.blockManager.port": _honoured("2.1.0", _SPARKS),
    "spark.driver.cores": _honoured(
        "1.3.0", "of the driver's container in cluster deploy mode; there is none in client mode"
    ),
    "spark.driver.defaultExtraClassPath": _honoured("4.0.0", _LAUNCHER),
    "spark.driver.defaultJavaOptions": _honoured("3.0.0", _LAUNCHER),
    "spark.driver.extraClassPath": _honoured("1.0.0", _LAUNCHER),
    "spark.driver.extraJavaOptions": _honoured("1.0.0", _LAUNCHER),
    "spark.driver.extraLibraryPath": _honoured("1.0.0", _LAUNCHER),
    "spark.driver.host": _honoured(
        "0.7.0", f"{_SPARKS}; in cluster deploy mode it is the node's address"
    ),
    "spark.driver.limitActiveProcessorCount.enabled": _honoured(
        "4.2.0", "in cluster deploy mode, as on YARN; with any Spark"
    ),
    "spark.driver.log.allowErasureCoding": _honoured("3.0.0", _SPARKS),
    "spark.driver.log.dfsDir": _honoured("3.0.0", _SPARKS),
    "spark.driver.log.layout": _honoured("3.0.0", _SPARKS),
    "spark.driver.log.localDir": _honoured("4.0.0", _SPARKS),
    "spark.driver.log.persistToDfs.enabled": _honoured("3.0.0", _SPARKS),
    "spark.driver.log.redirectConsoleOutputs": _honoured(
        "4.1.0", f"{_SPARKS}, by its RedirectConsolePlugin"
    ),
    "spark.driver.maxResultSize": _honoured("1.2.0", _SPARKS),
    "spark.driver.memory": _honoured("1.1.1", _LAUNCHER),
    "spark.driver.memoryOverhead": _honoured("2.3.0", "in cluster deploy mode"),
    "spark.driver.memoryOverheadFactor": _honoured(
        "3.3.0", "in cluster deploy mode; by default 0.4 for Python and 0.1 for others"
    ),
    "spark.driver.metrics.pollingInterval": _honoured("4.1.0", _SPARKS),
    "spark.driver.minMemoryOverhead": _honoured("4.0.0", "in cluster deploy mode; with any Spark"),
    "spark.driver.port": _honoured("0.7.0", _SPARKS),
    "spark.driver.resourcesFile": _of_spark("3.0.0", "of Standalone's workers"),
    "spark.driver.supervise": _honoured(
        "1.3.0", "in cluster deploy mode; a driver in client mode is its caller's to restart"
    ),
    "spark.driver.timeout": _honoured("4.0.0", f"{_SPARKS}, by its DriverTimeoutPlugin"),
    "spark.driver.userClassPathFirst": _honoured("1.3.0", _SPARKS),
    "spark.executor.allowSparkContext": _honoured("3.0.1", _SPARKS),
    "spark.executor.cores": _honoured("1.0.0", "of an executor's container; by default 1"),
    "spark.executor.decommission.forceKillTimeout": _honoured("3.2.0", _SPARKS),
    "spark.executor.decommission.killInterval": _honoured(
        "3.1.0",
        f"{_SPARKS}, to speculate on tasks; how long a node waits is its preemption_grace_s",
    ),
    "spark.executor.decommission.signal": _honoured(
        "3.2.0", "nodes send it; one that Java cannot handle is refused"
    ),
    "spark.executor.defaultExtraClassPath": _honoured(
        "4.0.0", "before spark.executor.extraClassPath"
    ),
    "spark.executor.defaultJavaOptions": _honoured(
        "3.0.0", "before spark.executor.extraJavaOptions"
    ),
    "spark.executor.extraClassPath": _honoured("1.0.0", "before Spark's jars"),
    "spark.executor.extraJavaOptions": _honoured("1.0.0", "with {{APP_ID}} and {{EXECUTOR_ID}}"),
    "spark.executor.extraLibraryPath": _honoured("1.0.0", "in LD_LIBRARY_PATH, before the node's"),
    "spark.executor.failuresValidityInterval": _honoured(
        "3.5.0", "where spark.hrm.executor.failures.validityInterval is not set"
    ),
    "spark.executor.heartbeat.dropZeroAccumulatorUpdates": _honoured("3.0.0", _SPARKS),
    "spark.executor.heartbeat.maxFailures": _honoured("1.6.2", _SPARKS),
    "spark.executor.heartbeatInterval": _honoured("1.1.0", _SPARKS),
    "spark.executor.id": _of_spark("1.2.0", "of each process of the application"),
    "spark.executor.instances": _honoured("1.0.0", "executors without dynamic allocation"),
    "spark.executor.isolatedSessionCache.size": _honoured("4.1.0", _SPARKS),
    "spark.executor.killOnFatalError.depth": _honoured("3.1.0", _SPARKS),
    "spark.executor.limitActiveProcessorCount.enabled": _honoured(
        "4.2.0", "as on YARN, with the cores of each resource profile; with any Spark"
    ),
    "spark.executor.logs.redirectConsoleOutputs": _honoured(
        "4.1.0", f"{_SPARKS}, by its RedirectConsolePlugin"
    ),
    "spark.executor.logs.rolling.enableCompression": _not_applicable("2.0.2", _LOGS),
    "spark.executor.logs.rolling.maxRetainedFiles": _not_applicable("1.1.0", _LOGS),
    "spark.executor.logs.rolling.maxSize": _not_applicable("1.4.0", _LOGS),
    "spark.executor.logs.rolling.strategy": _not_applicable("1.1.0", _LOGS),
    "spark.executor.logs.rolling.time.interval": _not_applicable("1.1.0", _LOGS),
    "spark.executor.maxNumFailures": _honoured(
        "3.5.0", "where spark.hrm.executor.maxFailures is not set"
    ),
    "spark.executor.memory": _honoured("0.7.0", "the heap of an executor"),
    "spark.executor.memoryOverhead": _honoured("2.3.0", "of an executor's container"),
    "spark.executor.memoryOverheadFactor": _honoured("3.3.0", "of an executor's container"),
    "spark.executor.metrics.fileSystemSchemes": _honoured("3.1.0", _SPARKS),
    "spark.executor.metrics.pollingInterval": _honoured("3.0.0", _SPARKS),
    "spark.executor.minMemoryOverhead": _honoured(
        "4.0.0", "of an executor's container; with any Spark"
    ),
    "spark.executor.processTreeMetrics.enabled": _honoured("3.0.0", _SPARKS),
    "spark.executor.pyspark.memory": _honoured(
        "2.4.0", "of an executor's container; Spark limits the Python workers to it"
    ),
    "spark.executor.python.worker.log.details": _honoured("3.5.0", _SPARKS),
    "spark.executor.syncLogLevel.enabled": _honoured("4.0.0", _SPARKS),
    "spark.executor.userClassPathFirst": _honoured("1.3.0", _SPARKS),
}
"""All of Spark 4.3, in the order of their names."""

FAMILIES: dict[str, SettingSupport] = {
    "spark.driver.resource.{resource}.*": _refused(
        "3.0.0",
        "in cluster deploy mode: drivers on nodes get no GPU and no other device. In client mode "
        "the driver finds its devices by Spark's own means",
    ),
    "spark.executor.resource.gpu.amount": _honoured("3.0.0", "whole GPUs, or parts of them"),
    "spark.executor.resource.{resource}.amount": _refused(
        "3.0.0", "HRM knows no resources but cores, memory and GPUs"
    ),
    "spark.executor.resource.{resource}.discoveryScript": _not_applicable(
        "3.0.0", "the node hands its GPUs to the executor"
    ),
    "spark.executor.resource.{resource}.vendor": _not_applicable("3.0.0", "of Kubernetes alone"),
    "spark.executorEnv.NAME": _honoured("1.0.0", "the variable NAME of executors"),
    "spark.kerberos.*, spark.security.credentials.*": _honoured(
        "3.0.0", "by Spark itself: docs/kerberos.md; spark.yarn.keytab and .principal are the same"
    ),
    "spark.yarn.dist.archives, .files, .jars, .pyFiles": _refused(
        "1.0.0",
        "in favour of spark.archives, spark.files, spark.jars and spark.submit.pyFiles, which "
        "count on YARN, too",
    ),
    "spark.yarn.queue, .tags, .priority": _honoured(
        "1.0.0", "where spark.hrm.queue, .tags and .priority are not set: docs/queues.md"
    ),
    "spark.kubernetes.*, spark.yarn.*": _not_applicable(
        "1.0.0",
        "of other cluster managers, but for those above; no warning, as one configuration may "
        "serve several",
    ),
}
"""Settings whose names have a part that is the user's: Spark's registry does not have them."""

_LISTS_OF_YARN = {
    "spark.yarn.dist.archives": "spark.archives",
    "spark.yarn.dist.files": "spark.files",
    "spark.yarn.dist.jars": "spark.jars",
    "spark.yarn.dist.pyFiles": "spark.submit.pyFiles",
}
"""Also in ``ExecutorLaunch.scala``, for drivers in client mode."""
_OF_DRIVER = re.compile(r"spark\.driver\.resource\.(\w+)\.amount")


def without_effect(names: Iterable[str]) -> list[str]:
    """One line for each of the settings ``names`` that does nothing here, with the reason."""
    lines = []
    for name in sorted(names):
        setting = SETTINGS.get(name)
        if setting is not None and setting.treatment is Treatment.NOT_APPLICABLE:
            lines.append(f"{name} has no effect here: {setting.note}")
    return lines


def check_submission(conf: Mapping[str, str]) -> None:
    """Refuse what no driver on a node can have.

    Raises:
        InvalidRequest: ``conf`` asks for a device of the driver's own, or names files where only
            YARN looks.
    """
    for name, ours in _LISTS_OF_YARN.items():
        if conf.get(name, "").strip():
            raise InvalidRequest(
                f"{name} is read by YARN alone; set {ours}={conf[name]} in its place, which "
                f"counts on YARN, too"
            )
    for name, value in conf.items():
        asked = _OF_DRIVER.fullmatch(name)
        if asked is not None and value.strip() not in ("", "0"):
            raise InvalidRequest(
                f"{name} is {value}, but drivers on nodes get no {asked[1]}; leave it out, or run "
                f"the driver in client mode where the {asked[1]} is"
            )
