"""Links to a container's logs, and its attributes: what Spark's UI shows of it.

Spark reads both from an executor's environment. Its ``spark.ui.custom.executor.log.url`` is a
pattern that attributes complete, so that the UI leads to logs which another system collects. Of a
driver in a container, the plugin reads them (``hrm/spark/plugin/DriverContainer.scala``) and adds
the application's id, which the node cannot know.
"""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from hrm.core.vocabulary.model import ContainerSpec

__all__ = ["Role", "ui_variables"]

LOG_FILES = "stdout,stderr"
"""For ``{{FILE_NAME}}`` in a pattern: Spark makes a link for each of these attributes' values."""


class Role(StrEnum):
    """What runs in a container of Spark. The value is part of the variables' names."""

    EXECUTOR = "EXECUTOR"
    DRIVER = "DRIVER"


def ui_variables(
    spec: ContainerSpec, role: Role, *, node: str, host: str, stdout_url: str, stderr_url: str
) -> dict[str, str]:
    """Variables for Spark's UI. The addresses of the two logs may be empty: then there is no
    link.

    The scheme ends with ``://``, as YARN's, whose patterns people bring along.
    """
    links = "SPARK_LOG_URL_" if role is Role.EXECUTOR else "SPARK_DRIVER_LOG_URL_"
    variables = {f"{links}STDOUT": stdout_url, f"{links}STDERR": stderr_url}
    pages = urlsplit(stdout_url)
    attributes = {
        "CONTAINER_ID": spec.container_id,
        "USER": spec.user,
        "NODE": node,
        "HOST": host,
        "HTTP_SCHEME": f"{pages.scheme}://" if pages.scheme else "",
        "HTTP_ADDRESS": pages.netloc,
        "LOG_FILES": LOG_FILES,
    }
    if role is Role.EXECUTOR:
        attributes |= {"APP_ID": spec.application_id, "EXECUTOR_ID": spec.executor_id}
    else:
        attributes["SUBMISSION_ID"] = spec.application_id
    variables |= {f"SPARK_{role}_ATTRIBUTE_{name}": text for name, text in attributes.items()}
    return {name: text for name, text in variables.items() if text}
