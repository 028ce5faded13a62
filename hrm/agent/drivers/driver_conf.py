"""The configuration directories of a driver on a node: what its submitter sent, and the node's own.

Spark's settings lie in a directory of the driver's own, because it must have HRM's ``spark-env.sh``
and the submitter's ``hive-site.xml`` in one place. A file that was sent goes before the node's of
the same name; scripts of either never run. Hadoop's settings belong together: where some were sent,
the node's are not used.

Files of ``--files`` go before both, as on YARN, where the working directory begins the class path:
the directory of settings has them, too. The working directory itself cannot begin it here, because
an archive of Spark's classes requires that the jars do (``hrm.spark.archive``).

The files may hold passwords: only the driver's user reads them, and they go with its directory.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hrm.errors import LaunchFailed
from hrm.spark.node_conf import HADOOP_VARIABLES
from hrm.spark.submit_conf import BYTES_MAX, HADOOP, SPARK, YARN, is_script

__all__ = ["settle"]

_PARTS = (SPARK, HADOOP, YARN)
_OWN = ("spark-env.sh", "spark-defaults.conf")


def settle(
    directory: Path,
    *,
    archive: Path | None,
    of_node: Path | None,
    of_hrm: Path,
    files: Sequence[Path] = (),
) -> dict[str, str | None]:
    """Lay out the directories below ``directory``; returns the variables that name them, None for
    one that must not be set.

    ``archive``: what was sent; None: nothing. ``of_node``: the node's directory of Spark's
    settings, if it has one. ``of_hrm``: HRM's own. ``files``: of the application.

    Raises:
        LaunchFailed: the archive is damaged, or has what no client sends.
        OSError: the disk does not take it.
    """
    sent = _unpack(archive, directory) if archive is not None else set()
    variables: dict[str, str | None] = {}
    if sent & {HADOOP, YARN}:
        for part, name in zip((HADOOP, YARN), HADOOP_VARIABLES, strict=True):
            variables[name] = str(directory / part) if part in sent else None
    place = directory / SPARK
    brought = _link(place, files, replaces=True)
    of_node_too = _link(place, _files_of(of_node), replaces=False)
    if brought or of_node_too or SPARK in sent:
        script = place / "spark-env.sh"
        script.write_text(f". {shlex.quote(str(of_hrm / 'spark-env.sh'))}\n")
        variables["SPARK_CONF_DIR"] = str(place)
    return variables


def _unpack(archive: Path, directory: Path) -> set[str]:
    """Unpack plain files, one level deep; returns the parts that there were."""
    parts, left = set(), BYTES_MAX
    try:
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                part, _, name = info.filename.partition("/")
                if part not in _PARTS or not name or "/" in name or name in (".", ".."):
                    raise LaunchFailed(f"{info.filename!r} is no file of a settings directory")
                with packed.open(info) as source:
                    data = source.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise LaunchFailed(f"the settings sent are larger than {BYTES_MAX >> 10} KiB")
                if is_script(name) or name in _OWN:
                    continue
                (directory / part).mkdir(mode=0o700, parents=True, exist_ok=True)
                _write_private(directory / part / name, data)
                parts.add(part)
    except (zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise LaunchFailed(f"the settings sent are damaged: {error}") from error
    return parts


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _files_of(directory: Path | None) -> list[Path]:
    there = directory is not None and directory.is_dir()
    return sorted(directory.iterdir()) if directory is not None and there else []


def _link(place: Path, files: Iterable[Path], *, replaces: bool) -> bool:
    """Link files in ``place``, where one of the same name counts unless it is replaced; whether
    any was linked."""
    linked = False
    for path in files:
        if is_script(path.name) or path.name in _OWN or not path.is_file():
            continue
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = place / path.name
        if replaces:
            link.unlink(missing_ok=True)
        if not link.exists():
            link.symlink_to(path)
            linked = True
    return linked
