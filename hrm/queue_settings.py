"""What Spark's configuration says of an application's queue: its name, its tags, its priority.

Where a setting of HRM is not set, that of YARN counts which says the same. The driver itself reads
them in the same way (``hrm/spark/plugin/QueueSettings.scala``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hrm.errors import InvalidRequest

__all__ = ["TAGS_MAX", "TENANT", "TENANT_WARNING", "QueueSettings", "queue_settings_of"]

TENANT = "spark.hrm.tenant"
TENANT_WARNING = f"{TENANT} is no setting any more, and has no effect; write spark.hrm.queue=NAME"

TAGS_MAX = 64
_TEXT_MAX = 255
_PRIORITY = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """``queue`` is empty where none is named."""

    queue: str = ""
    tags: tuple[str, ...] = ()
    priority: int = 0


def queue_settings_of(conf: Mapping[str, str]) -> QueueSettings:
    """The queue that ``conf`` names, its tags and its priority.

    Raises:
        InvalidRequest: one is malformed.
    """
    name, queue = _value(conf, "queue")
    if len(queue) > _TEXT_MAX:
        raise InvalidRequest(f"{name} has {len(queue)} characters; at most {_TEXT_MAX} are allowed")
    name, listed = _value(conf, "tags")
    tags = tuple(dict.fromkeys(filter(None, (tag.strip() for tag in listed.split(",")))))
    if len(tags) > TAGS_MAX or any(len(tag) > _TEXT_MAX for tag in tags):
        raise InvalidRequest(
            f"{name} has {len(tags)} tags; at most {TAGS_MAX} are allowed, each of at most "
            f"{_TEXT_MAX} characters"
        )
    name, priority = _value(conf, "priority")
    if priority and _PRIORITY.fullmatch(priority) is None:
        raise InvalidRequest(f"{name} is {priority!r}; give a whole number, such as 10")
    return QueueSettings(queue, tags, int(priority or 0))


def _value(conf: Mapping[str, str], what: str) -> tuple[str, str]:
    """The setting that counts, and its value, empty where none is set."""
    for prefix in ("spark.hrm.", "spark.yarn."):
        value = conf.get(prefix + what, "").strip()
        if value:
            return prefix + what, value
    return f"spark.hrm.{what}", ""
