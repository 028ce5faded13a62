"""Writes ``docs/configuration.md`` from the settings themselves, so that it is never out of date.

``python -m docs.generate.configuration docs/configuration.md`` (or ``make docs``) writes the file;
without an argument the text goes to stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hrm import config
from hrm.cli.daemons import flag_name, shown_default, shown_type

__all__ = ["SPARK_SETTINGS", "document"]

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
        "silence after which an AppMaster is considered dead",
    ),
    "spark.hrm.stop.timeout": ("`5s`", "how long the AppMaster may take to deregister"),
    "spark.hrm.python": ("`$HRM_PYTHON`, else `python3`", "the Python that has HRM"),
}
"""Name: (default, what it does), of the settings that belong into Spark's configuration."""

_ENVIRONMENT = {
    "HRM_HOME": ("`~/.hrm`", "directory of everything HRM keeps for you"),
    "HRM_CONFIG": ("", "the configuration file; it must exist if this is set"),
    "HRM_MASTER": ("", "`host:port` that `hrm status` and its like query"),
    "HRM_TOKEN_FILE": ("`$HRM_HOME/token`", "the cluster's secret, for clients and AppMasters"),
    "HRM_TLS_CA": (
        "`ca.pem` next to the token file",
        "the cluster's authority (PEM): traffic with the master is encrypted; empty: clear text",
    ),
    "HRM_ALLOW_CLEAR_TEXT": (
        "`false`",
        "`true`: speak without TLS on addresses other than loopback, where an eavesdropper, or a "
        "process that takes a port, learns the token",
    ),
    "HRM_TLS": ("", "`1`: `hrm up` encrypts its cluster's traffic, as --tls does"),
    "HRM_ARCHIVE": ("`on`", "`off`: drivers start without the archive of Spark's classes"),
    "HRM_EVENT_LOG": ("", "`0`: `hrm up` leaves Spark's event logs off, as --no-event-log does"),
    "HRM_EVENT_LOG_DIR": (
        "set by `hrm env`",
        "where applications write Spark's event logs; empty: nowhere",
    ),
    "HRM_PYTHON": ("set by `hrm env`", "the Python that has HRM, for Spark's start scripts"),
    "HRM_DEBUG": ("", "`1`: errors of the command line show their traceback"),
    "NO_COLOR": ("", "anything: no colours"),
}

_HEAD = """# Configuration

This file is generated from `hrm/config/` by `make docs`; change it there.

A daemon takes each setting from the most specific place that has it: its flag, its environment
variable, the file `hrm.toml`, the default. The file is looked for at `$HRM_CONFIG`, then in the
current directory, then at `$HRM_HOME/hrm.toml`, and has one table a daemon:

```toml
[master]
port = 7480
node_timeout_s = 15

[agent]
master = "10.0.0.1:7480"
cores = 32
```

An unknown name or a value out of range ends the daemon with exit status 2 and a line that says
which, where, and what would be valid. Units are the last part of a name: `_s` are seconds, `_mib`
are MiB.
"""


def document() -> str:
    """The whole text of ``docs/configuration.md``."""
    return "\n".join(
        [
            _HEAD,
            _daemon("hrm master", config.MasterSettings),
            _daemon("hrm agent", config.AgentSettings),
            _daemon("hrm scheduler", config.SchedulerSettings),
            _plain("Environment of clients", "Variable", _ENVIRONMENT),
            _plain("Settings in Spark's configuration", "Setting", SPARK_SETTINGS),
        ]
    )


def _daemon(
    command: str,
    settings: type[config.MasterSettings]
    | type[config.AgentSettings]
    | type[config.SchedulerSettings],
) -> str:
    prefix = settings.model_config.get("env_prefix", "")
    lines = [
        f"## `{command}`",
        "",
        f"Table `[{settings.table}]` of `hrm.toml`. A variable is `{prefix}` and the name in "
        "capitals; a flag is `--` and the name with hyphens.",
        "",
        "| Setting | Flag | Value | Default | Meaning |",
        "|---|---|---|---|---|",
    ]
    for name, field in settings.model_fields.items():
        default = "" if name == "name" else shown_default(field)
        cells = [
            f"`{name}`",
            f"`{flag_name(name)}`",
            _values(field),
            f"`{default}`" if default else "",
            (field.description or "").replace("|", "\\|"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _values(field: Any) -> str:
    """A short description of a field's type and bounds."""
    kind = shown_type(field.annotation)
    bounds = []
    for sign, attribute in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
        bounds += [
            f"{sign} {getattr(m, attribute):g}" for m in field.metadata if hasattr(m, attribute)
        ]
    words = (
        " or ".join(f"`{choice}`" for choice in kind.split("|")) if "|" in kind else kind.lower()
    )
    return ", ".join([words, *bounds])


def _plain(title: str, column: str, rows: dict[str, tuple[str, str]]) -> str:
    table = [f"| `{name}` | {default} | {text} |" for name, (default, text) in rows.items()]
    return "\n".join(
        [f"## {title}", "", f"| {column} | Default | Meaning |", "|---|---|---|", *table, ""]
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())
