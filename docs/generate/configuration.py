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
from hrm.spark.hrm_settings import SPARK_SETTINGS

__all__ = ["document"]

_ENVIRONMENT = {
    "HRM_HOME": ("`~/.hrm`", "directory of everything HRM keeps for you"),
    "HRM_CONFIG": ("", "the configuration file; it must exist if this is set"),
    "HRM_MASTER": (
        "",
        "`host:port` that `hrm status` and its like query, and `hrm autoscale` scales",
    ),
    "HRM_TOKEN_FILE": (
        "`$HRM_HOME/token`",
        "your token, or the cluster's, for clients and AppMasters",
    ),
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
    "HRM_WARM": ("`on`", "`off`: drivers start cold, whatever `hrm warm` keeps ready"),
    "HRM_UP_WARM": ("", "`1`: `hrm up` keeps drivers ready for its directory, as --warm does"),
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

Queues of applications have tables of their own, `[queues."root.team"]` and `[[queue_rules]]`, which
the master reads: [queues.md](queues.md).
"""


def document() -> str:
    """The whole text of ``docs/configuration.md``."""
    return "\n".join(
        [
            _HEAD,
            _daemon("hrm master", config.MasterSettings),
            _daemon("hrm agent", config.AgentSettings),
            _daemon("hrm scheduler", config.SchedulerSettings),
            _daemon("hrm autoscale", config.AutoscaleSettings),
            _plain("Environment of clients", "Variable", _ENVIRONMENT),
            _plain("Settings in Spark's configuration", "Setting", SPARK_SETTINGS),
        ]
    )


def _daemon(
    command: str,
    settings: type[config.MasterSettings]
    | type[config.AgentSettings]
    | type[config.SchedulerSettings]
    | type[config.AutoscaleSettings],
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
