"""HRM's own settings in Spark's configuration, and what to do about names that are none.

The table is part of ``docs/configuration.md`` (``make docs``). A mistyped name would do nothing and
say nothing, so an AppMaster warns of each ``spark.hrm.*`` that is not in it, with the nearest name.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PREFIX", "SPARK_SETTINGS", "unknown"]

PREFIX = "spark.hrm."
_FAMILY = ".NAME"
"""The end of a name whose last part is the user's."""

SPARK_SETTINGS: dict[str, tuple[str, str]] = {
    "spark.hrm.class": (
        "by observation",
        "`stream` or `batch`: what the application is, where HRM should not find out by itself",
    ),
    "spark.hrm.gang.min": (
        "`0`",
        "the first executors that start together or wait together, at most as many as Spark asks "
        "for at first; to queue at a node is to wait. A submitted driver starts only where they "
        "fit, too. 0: each by itself",
    ),
    "spark.hrm.stream.min": (
        "all of the first request",
        "with how many executors a stream may begin: these start together or wait together, where "
        "batch may be preempted for them; what it requests beyond and later is granted one by one",
    ),
    "spark.hrm.input.size": (
        "`0`",
        "how much the application reads, such as `120g`, where that is known: run times of earlier "
        "runs are scaled to it, in proportion until runs of several sizes have shown how. 0: it is "
        "unknown",
    ),
    "spark.hrm.node.label": (
        "",
        "labels that a node must have to get this application's executors, such as `zone=a,ssd`: "
        "all of them, as its agent's `labels` has them",
    ),
    "spark.hrm.node.java": (
        "any",
        "the Java that a node must run executors with, such as `17`",
    ),
    "spark.hrm.node.python": (
        "the driver's, where it runs on a node and names no Python",
        "the Python that a node must have, such as `3.11`, where executors use their node's own",
    ),
    "spark.hrm.driver.node.label": (
        "",
        "in cluster deploy mode: labels that the driver's own node must have",
    ),
    "spark.hrm.submit.spark.version": (
        "the default Spark of the node",
        "in cluster deploy mode: the version of Spark that the driver runs; it is placed on a node "
        "that has it",
    ),
    "spark.hrm.submit.waitAppCompletion": (
        "`true`",
        "in cluster deploy mode: spark-submit waits for the driver and ends with its exit status",
    ),
    "spark.hrm.submit.tied": (
        "`false`",
        "in cluster deploy mode: the driver is killed when spark-submit is ended (SIGTERM, SIGINT, "
        "SIGHUP), or has given no sign for 60 s, or for the time that is given, such as `5m`",
    ),
    "spark.hrm.submit.key": (
        "",
        "in cluster deploy mode: of your submissions with the same key one runs at a time; a later "
        "one waits until the driver of the earlier one is gone for certain",
    ),
    "spark.hrm.submit.confDirs": (
        "`true`",
        "in cluster deploy mode: the files of `SPARK_CONF_DIR`, `HADOOP_CONF_DIR` and "
        "`YARN_CONF_DIR` of the submitter go to the driver's node",
    ),
    "spark.hrm.driverEnv.NAME": (
        "",
        "in cluster deploy mode: the variable NAME of the driver's environment",
    ),
    "spark.hrm.driver.failureGrace": (
        "`30s`",
        "in cluster deploy mode: how long a driver may live on after its application has failed, "
        "before HRM ends it with exit status 1. One that makes another SparkContext goes on",
    ),
    "spark.hrm.tenant": ("", "whose share the application uses"),
    "spark.hrm.token.file": (
        "`$HRM_TOKEN_FILE`, else `$HRM_HOME/token`",
        "the cluster's secret, mode 0600",
    ),
    "spark.hrm.tls.ca": (
        "`$HRM_TLS_CA`, else `ca.pem` next to the token file",
        "certificates (PEM) that authenticate the master: traffic with it is encrypted",
    ),
    "spark.hrm.allowClearText": (
        "`$HRM_ALLOW_CLEAR_TEXT`, else `false`",
        "send the token in clear text to a master that is not on loopback",
    ),
    "spark.hrm.registration.timeout": (
        "`30s`",
        "how long the driver waits until its AppMaster has started, and until it has registered it",
    ),
    "spark.hrm.master.timeout": (
        "`1h`",
        "how long a running application goes on while no master can be reached",
    ),
    "spark.hrm.executor.maxFailures": (
        "`0`",
        "executors that may fail before the application does; 0: twice the executors it may "
        "have, at least three. Where it is not set, `spark.executor.maxNumFailures` (on YARN once "
        "`spark.yarn.max.executor.failures`) holds",
    ),
    "spark.hrm.executor.failures.validityInterval": (
        "`1h`",
        "a failure older than this no longer counts; 0: all count. Where it is not set, "
        "`spark.executor.failuresValidityInterval` (on YARN once "
        "`spark.yarn.executor.failuresValidityInterval`) holds",
    ),
    "spark.hrm.executor.retry.delay": (
        "`100ms`",
        "pause before executors that ended by themselves are replaced; doubles while their "
        "replacements end, too",
    ),
    "spark.hrm.executor.retry.delayMax": ("`10s`", "the longest such pause"),
    "spark.hrm.locality.wait": (
        "`3s`",
        "how long an executor may wait for capacity on a host that has data of waiting tasks, as "
        "dynamic allocation reports; 0: it is preferred and not waited for",
    ),
    "spark.hrm.localize": (
        "`named`",
        "which of `--files`, `--jars` and `--archives` are in the executors' working directories "
        "before their JVM starts: `named`: those that their Java options, class path or "
        "environment name, and configuration that libraries find by its name; `all`; `none`",
    ),
    "spark.hrm.executor.gpu.memory": (
        "the whole GPU",
        "device memory that an executor with `spark.executor.resource.gpu.amount` has of each of "
        "its GPUs, in MiB or such as `4g`: as many executors share a GPU as its memory allows",
    ),
    "spark.hrm.executor.lossReasonTimeout": (
        "the master's `node_timeout_s` and five seconds",
        "how long an executor's tasks wait, when its connection to the driver has broken, for the "
        "reason that HRM reports; without one the tasks are not charged with it. While no master "
        "can be reached: five seconds",
    ),
    "spark.hrm.appmaster.maxRestarts": (
        "`5`",
        "times in a row that an AppMaster that died is started again",
    ),
    "spark.hrm.appmaster.hungTimeout": (
        "`60s`",
        "silence after which an AppMaster is considered dead, at least 15 s",
    ),
    "spark.hrm.stop.timeout": ("`5s`", "how long the AppMaster may take to deregister"),
    "spark.hrm.python": ("`$HRM_PYTHON`, else `python3`", "the Python that has HRM"),
}
"""Name: (default, what it does), of the settings that belong into Spark's configuration."""


def unknown(names: Iterable[str]) -> list[str]:
    """One line for each of ``names`` that is meant for HRM and is no setting of its."""
    families = tuple(x.removesuffix("NAME") for x in SPARK_SETTINGS if x.endswith(_FAMILY))
    return [
        f"{name} is no setting of HRM and has no effect; the nearest is {_nearest(name)} "
        f"(docs/configuration.md has all)"
        for name in sorted(names)
        if name.startswith(PREFIX) and name not in SPARK_SETTINGS and not name.startswith(families)
    ]


def _nearest(name: str) -> str:
    """The setting with the fewest edits in between, in any case; of several the first."""
    return min(SPARK_SETTINGS, key=lambda known: _edits(name.lower(), known.lower()))


def _edits(one: str, other: str) -> int:
    """The edit distance of Levenshtein."""
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        left, row[0] = row[0], at
        for to, against in enumerate(other, 1):
            left, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, left + (letter != against))
    return row[-1]
