"""Writes ``docs/spark-settings.md`` from the table of ``hrm.spark.spark_settings``.

``python -m docs.generate.spark_settings docs/spark-settings.md`` (or ``make docs``) writes the
file; without an argument the text goes to stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hrm.spark.spark_settings import FAMILIES, SETTINGS, SettingSupport

__all__ = ["document"]

_HEAD = """# Spark's settings of drivers and executors

This file is generated from `hrm/spark/spark_settings.py` by `make docs`; change it there.

What becomes of every `spark.executor.*` and `spark.driver.*` setting of Spark 4.3 on HRM. HRM's own
settings are in [configuration.md](configuration.md#settings-in-sparks-configuration). A setting
that is not applicable leads to a warning where it is set: on the driver's standard error, and in
cluster deploy mode by `spark-submit`, too. One that is refused ends the application at once, with
the reason.

With "any Spark", HRM reads it itself: it works with a Spark that does not know it yet, too.
"""


def document() -> str:
    """The whole text of ``docs/spark-settings.md``."""
    return "\n".join(
        [
            _HEAD,
            *_table(SETTINGS),
            "",
            "## With a part of your own in their names",
            "",
            *_table(FAMILIES),
            "",
        ]
    )


def _table(settings: dict[str, SettingSupport]) -> list[str]:
    rows = [
        f"| {', '.join(f'`{each}`' for each in name.split(', '))} | {setting.since} "
        f"| {setting.treatment.value} | {setting.note} |"
        for name, setting in settings.items()
    ]
    return ["| Setting | Since Spark | On HRM | How, or why not |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())
