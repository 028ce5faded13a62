"""Where HRM's ``SPARK_CONF_DIR`` is, and how a file of Spark's properties is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import hrm
from hrm.errors import InvalidConfig

__all__ = ["DRIVER_ENVIRONMENT", "conf_dir", "properties_text"]

DRIVER_ENVIRONMENT = "spark.hrm.driverEnv.NAME"
"""In cluster deploy mode: the variable NAME of the driver's environment."""

_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_ESCAPED_IN_KEY = _ESCAPED | {":": "\\:", "=": "\\=", " ": "\\ ", "#": "\\#", "!": "\\!"}


def conf_dir() -> Path:
    """HRM's ``SPARK_CONF_DIR``: in a checkout ``spark-conf``, else the package's copy of it.

    Raises:
        InvalidConfig: it is missing.
    """
    package = Path(hrm.__file__).resolve().parent
    for candidate in (package.parent / "spark-conf", package / "spark" / "conf"):
        if (candidate / "spark-env.sh").is_file():
            return candidate
    raise InvalidConfig(
        f"HRM's spark-env.sh is missing from {package}; install HRM again: pip install hrm-spark"
    )


def properties_text(settings: Iterable[tuple[str, str]]) -> str:
    """Settings in the form of ``java.util.Properties``, which Spark reads as UTF-8."""
    lines = []
    for key, value in settings:
        name = "".join(_ESCAPED_IN_KEY.get(x, x) for x in key)
        text = "".join(_ESCAPED.get(x, x) for x in value)
        if text.startswith(" "):
            text = "\\" + text
        lines.append(f"{name}={text}\n")
    return "".join(lines)
