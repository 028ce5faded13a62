"""HRM's own settings in Spark's configuration, and the check of a submission's.

``SPARK_SETTINGS`` is the table of ``docs/configuration.md``, and the names that a submission may
have: a mistyped one is silently ignored by Spark, so it is reported with the nearest that there is.
Values are checked where the submitter sees it: a driver on a node would find them out only after it
has waited for its place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from hrm.errors import InvalidRequest
from hrm.queue_settings import TENANT, TENANT_WARNING, queue_settings_of

__all__ = [
    "LOCALIZE_MODES",
    "OWN_SETTINGS",
    "SPARK_SETTINGS",
    "check_text",
    "check_values",
    "unknown_names",
]

LOCALIZE_MODES = ("named", "all", "none")
"""Which files executors have before their JVMs start (``hrm.spark.early_files``)."""
_PREFIX = "spark.hrm."
_DRIVER_ENVIRONMENT = "spark.hrm.driverEnv."
OWN_SETTINGS = ("spark.hrm.start",)
"""What HRM sets itself, to report it: how a driver started."""
_BOOLEANS = ("true", "false")
_CHOICES: dict[str, tuple[str, ...]] = {
    "spark.hrm.class": ("", "stream", "batch"),
    "spark.hrm.localize": LOCALIZE_MODES,
    "spark.hrm.submit.confDirs": _BOOLEANS,
    "spark.hrm.submit.waitAppCompletion": _BOOLEANS,
}
_WHOLE = ("spark.hrm.gang.min", "spark.hrm.stream.min")
_DIGITS = re.compile(r"\d{1,9}")

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
    "spark.hrm.connect.idle": (
        "",
        "of a Spark Connect server in cluster deploy mode: it rehearses what clients do first, and "
        "ends when it has had no session for so long, such as `4h`; `0s`: it stays. "
        "`hrm connect` sets it",
    ),
    "spark.hrm.queue": (
        "by the master's `queue_rules`, else `root.default`",
        "the queue of the application: its whole name, or the last part of it where one queue "
        "ends so; `--queue` of spark-submit is the same. Where it is not set, `spark.yarn.queue` "
        "counts",
    ),
    "spark.hrm.tags": (
        "",
        "words, separated by commas, by which `queue_rules` may choose the queue. Where it is not "
        "set, `spark.yarn.tags` counts",
    ),
    "spark.hrm.priority": (
        "`0`",
        "of the applications of a queue whose order is `priority`, those with the highest number "
        "go first; where it is `classes`, 1 to 3 declare a normal one, 4 an urgent one and 5 one "
        "of the highest class. Where it is not set, `spark.yarn.priority` counts",
    ),
    "spark.hrm.token.file": (
        "`$HRM_TOKEN_FILE`, else `$HRM_HOME/token`",
        "your token, or the cluster's, mode 0600",
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


def unknown_names(names: Iterable[str]) -> list[str]:
    """One line for each of ``names`` that is a setting of HRM by its prefix, and none that it has,
    with the nearest that there is."""
    by_letters = {name.lower(): name for name in SPARK_SETTINGS}
    lines = []
    for name in sorted(names):
        known = name in (*SPARK_SETTINGS, *OWN_SETTINGS) or name.startswith(_DRIVER_ENVIRONMENT)
        if not name.startswith(_PREFIX) or known:
            continue
        if name == TENANT:
            lines.append(TENANT_WARNING)
            continue
        near = difflib.get_close_matches(name.lower(), by_letters, 1)
        meant = f"; did you mean {by_letters[near[0]]}?" if near else ""
        lines.append(f"{name} is no setting of HRM, and has no effect{meant}")
    return lines


def check_values(conf: Mapping[str, str]) -> None:
    """Refuse values of HRM's settings that its driver could not use.

    Raises:
        InvalidRequest: there is one.
    """
    for name, choices in _CHOICES.items():
        value = conf.get(name, choices[0])
        given = value.strip().lower() if choices is not LOCALIZE_MODES else value
        if given not in choices:
            listed = [choice for choice in choices if choice]
            raise InvalidRequest(
                f"{name} is {value!r}; write {', '.join(listed[:-1])} or {listed[-1]}"
            )
    for name in _WHOLE:
        if name in conf and _DIGITS.fullmatch(conf[name].strip()) is None:
            raise InvalidRequest(f"{name} is {conf[name]!r}; give a whole number from 0 on")
    queue_settings_of(conf)
    for name in conf:
        variable = name.removeprefix(_DRIVER_ENVIRONMENT)
        if variable != name and (not variable or any(mark in variable for mark in "=\0")):
            raise InvalidRequest(
                f"{name!r} names no variable; write {_DRIVER_ENVIRONMENT}NAME=VALUE"
            )


def check_text(what: str, text: str) -> str:
    """``text``, if it can be sent. Names of files and arguments may be any bytes in Linux.

    Raises:
        InvalidRequest: it is not valid UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise InvalidRequest(f"{what} '{shown}' is not valid UTF-8; rename or rewrite it") from None
    return text
