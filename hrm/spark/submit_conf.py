"""The submitter's configuration directories, as one small archive for the driver on a node.

A driver in client mode finds hive-site.xml, log4j2.properties or core-site.xml in the directories
that Spark's launcher puts on its class path. So that it finds the same ones on a node, their files
travel with the submission, as on YARN: ``SPARK_CONF_DIR`` (``conf/`` of ``SPARK_HOME`` where that
is HRM's own or not set), ``HADOOP_CONF_DIR`` and ``YARN_CONF_DIR``. Equal directories make equal
archives, which the master keeps once.

Not sent are directories, scripts and templates, and what has been read already
(``spark-defaults.conf``). All files together have a bound, ``BYTES_MAX``; the largest stay behind.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hrm.spark.conf import conf_dir

__all__ = [
    "ARCHIVE_NAME",
    "BYTES_MAX",
    "HADOOP",
    "SPARK",
    "YARN",
    "conf_archive",
    "directories",
    "is_script",
]

ARCHIVE_NAME = "__spark_conf__.zip"
BYTES_MAX = 3 * 1024 * 1024 // 2
"""Of all files; Kubernetes bounds its configuration maps alike."""
SPARK, HADOOP, YARN = "spark", "hadoop", "yarn"
_LEFT_OUT = (".template", ".sh", ".cmd", ".example")
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o600


def is_script(name: str) -> bool:
    """Whether a file of Spark's settings directory is one that its start scripts run."""
    return name.startswith("spark-env.")


def conf_archive(environment: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """The archive, empty where there is nothing to send, and why which files are not in it.

    Its entries are ``spark/NAME``, ``hadoop/NAME`` and ``yarn/NAME``.
    """
    found: list[tuple[str, Path]] = []
    warnings: list[str] = []
    for part, directory in directories(environment).items():
        found += [(f"{part}/{path.name}", path) for path in _files(directory, warnings)]
    left, sent = BYTES_MAX, {}
    for entry, path in sorted(found, key=lambda each: (_size(each[1]), each[0])):
        try:
            with path.open("rb") as file:
                data = file.read(left + 1)
        except OSError:
            continue  # another user's, or gone: a driver here could not read it either
        if len(data) > left:
            warnings.append(f"{path} is too large to be sent with the other settings")
        else:
            sent[entry] = data
            left -= len(data)
    return _packed(sent) if sent else b"", sorted(warnings)


def directories(environment: Mapping[str, str]) -> dict[str, Path]:
    """Those of this machine by their part, in the order of a driver's class path."""
    named = environment.get("SPARK_CONF_DIR", "")
    home = environment.get("SPARK_HOME", "")
    if not named or Path(named).resolve() == conf_dir().resolve():
        named = f"{home}/conf" if home else ""
    places = {
        SPARK: named,
        HADOOP: environment.get("HADOOP_CONF_DIR", ""),
        YARN: environment.get("YARN_CONF_DIR", ""),
    }
    if places[YARN] == places[HADOOP]:
        del places[YARN]
    return {part: Path(place) for part, place in places.items() if place}


def _files(directory: Path, warnings: list[str]) -> list[Path]:
    """Those of a directory that are to be sent; adds to ``warnings`` what cannot be."""
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names only, of a missing place too
    except OSError:
        return []
    usual = (name for name in names if not name.endswith(_LEFT_OUT) and not is_script(name))
    paths = []
    for name in usual:
        path = directory / name
        try:
            name.encode()
            if name != "spark-defaults.conf" and path.is_file():
                paths.append(path)
        except UnicodeEncodeError:
            shown = os.fsencode(name).decode(errors="backslashreplace")
            warnings.append(f"{directory}/{shown} is not sent: its name is not valid UTF-8")
        except OSError as error:
            warnings.append(f"{path} is not sent: {error.strerror}")
    return paths


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _packed(files: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in sorted(files):
            info = zipfile.ZipInfo(entry, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = _MODE << 16
            packed.writestr(info, files[entry])
    return archive.getvalue()
