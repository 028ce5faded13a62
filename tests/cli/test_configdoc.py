"""The table of Spark settings names exactly what the plugin and the AppMaster read."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate.configuration import document
from hrm.spark.hrm_settings import OWN_SETTINGS, SPARK_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r'"(spark\.hrm\.[A-Za-z.]*[A-Za-z])"(?:\s*,\s*"?([\w]+)"?\s*\))?')


def _read_by_the_code() -> dict[str, set[str]]:
    """Names, with the defaults next to them."""
    found: dict[str, set[str]] = {}
    sources = [*(ROOT / "hrm/spark").rglob("*.py"), *(ROOT / "hrm/spark").rglob("*.scala")]
    sources.append(ROOT / "hrm/wire/requirements.py")
    sources.remove(ROOT / "hrm/spark/hrm_settings.py")  # the table itself
    for path in sources:
        for name, default in NAME.findall(path.read_text()):
            found.setdefault(name, set()).update({default} - {""})
    return found


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    assert {*SPARK_SETTINGS, *OWN_SETTINGS} == set(_read_by_the_code())


def test_defaults_are_those_of_the_code() -> None:
    for name, defaults in _read_by_the_code().items():
        if name in OWN_SETTINGS:
            continue
        for default in defaults:
            assert SPARK_SETTINGS[name][0] == f"`{default}`", name


def test_no_setting_is_without_a_meaning() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if not row.split(" | ")[-1].rstrip(" |")] == []
