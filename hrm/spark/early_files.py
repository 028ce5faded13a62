"""Which of an application's files its executors need before their JVM starts, and their way there.

Spark brings ``--files``, ``--jars`` and ``--archives`` to executors that run already. For a Java
agent, a logging configuration or an entry of the class path that is too late: the JVM reads them as
it starts. The AppMaster sends such files to the master, by content, and names them to the nodes,
which put them into the working directory first. All others stay with Spark: to send them twice
would delay every application, and an executor with files of its own cannot be a warm JVM.

A file is needed early (``spark.hrm.localize=named``) where

* its name, or that of the directory of an archive, is in the executors' Java options, class path or
  environment; ``*`` on the class path names all jars;
* libraries look for it on the class path by its name alone (``log4j2.properties``,
  ``hive-site.xml``): as on YARN, the working directory is part of that, where any file is early.

Only files of the driver's machine can be sent; those on a distributed file system stay with Spark.

Spark goes on to serve these files to executors, which it puts in the same place, and an executor
ends where the two differ. Therefore early files are copied before the application registers, into a
directory of the driver's, and both HRM and Spark (``EarlyFiles.scala``) take the copies: a file
that is edited while its application runs stays as it was for that application, as on YARN.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from hrm.errors import InvalidRequest
from hrm.spark.hrm_settings import LOCALIZE_MODES

if TYPE_CHECKING:
    from hrm.spark.submit import LocalFile

__all__ = ["EarlyFiles", "Found", "needed_early"]

_SETTING = "spark.hrm.localize"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FOUND_BY_NAME = re.compile(
    r"log4j\S*\.(properties|xml|json|jsn|yaml|yml)|logback\S*\.xml|\S+-site\.xml|"
    r"metrics\.properties|application\.(conf|properties|json)"
)
_ALL_JARS = ("*", "./*")
_READ_LATER = re.compile(r"PYSPARK_\w+|PYTHONPATH|_SPARK_\w+")
"""Variables that are read by Python, which starts once Spark has brought the files, and secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of this machine. ``name``: in the working directory; ``is_archive``: of the directory
    there that it is unpacked to."""

    path: Path
    name: str
    kind: str = "file"

    @property
    def is_archive(self) -> bool:
        return self.kind == "archive"


def needed_early(
    listed: Mapping[str, str], launch: Mapping[str, Any], mode: str, copies: Path | None = None
) -> tuple[list[Found], list[str]]:
    """Files to be sent, and warnings for the user.

    ``listed``: Spark's lists, by ``file``, ``jar`` and ``archive``; ``launch``: how executors
    start, as the plugin describes it; ``mode``: one of ``LOCALIZE_MODES``; ``copies``: where they
    may be already, after which the originals need not be.

    Raises:
        InvalidRequest: the mode is another.
    """
    if mode not in LOCALIZE_MODES:
        raise InvalidRequest(
            f"{_SETTING} is {mode!r}; write {', '.join(LOCALIZE_MODES[:-1])} or none"
        )
    if mode == "none":
        return [], []
    found: dict[str, Found] = {}
    warnings: list[str] = []
    texts = _texts(launch)
    for kind, uri, name in _entries(listed):
        named = _is_named(name, kind, launch, texts)
        if not named and mode == "named":
            continue
        path = _local(uri)
        if path is None or not (path.is_file() or _copy_of(path, kind, copies)):
            if named and not uri.startswith("local:"):
                where = "is not a file of this machine" if path is None else "does not exist here"
                warnings.append(
                    f"{uri} {where}, so that executors get it only after their JVM has started"
                )
        elif found.setdefault(name, one := Found(path=path, name=name, kind=kind)) != one:
            warnings.append(f"{path} has the name of {found[name].path}; executors start with that")
    return list(found.values()), warnings


def _copy_of(path: Path, kind: str, copies: Path | None) -> Path | None:
    """The copy that an earlier AppMaster of this driver has made."""
    copy = copies / kind / path.name if copies is not None else None
    return copy if copy is not None and copy.is_file() else None


def _entries(listed: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Kind, URI and name of each file that can have a place of its own."""
    for kind in ("file", "jar", "archive"):
        for entry in filter(None, (x.strip() for x in listed.get(kind, "").split(","))):
            uri, _, fragment = entry.partition("#")
            name = fragment or unquote(uri.rstrip("/").rpartition("/")[2])
            if name not in ("", ".", "..") and "/" not in name:
                yield kind, uri, name


def _texts(launch: Mapping[str, Any]) -> str:
    """All that may name a file before the JVM starts."""
    environment: Mapping[str, str] = launch["environment"]
    variables = (text for name, text in environment.items() if not _READ_LATER.fullmatch(name))
    return "\n".join([*launch["java_options"], *launch["extra_class_path"], *variables])


def _is_named(name: str, kind: str, launch: Mapping[str, Any], texts: str) -> bool:
    if kind == "file" and _FOUND_BY_NAME.fullmatch(name):
        return True
    if kind == "jar" and any(entry in _ALL_JARS for entry in launch["extra_class_path"]):
        return True
    whole_name = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
    return re.search(whole_name, texts.replace("./", "/")) is not None


def _local(uri: str) -> Path | None:
    """The path of a file of this machine; None: it is elsewhere."""
    if not _SCHEME.match(uri):
        return Path(uri)
    parsed = urlparse(uri)
    return Path(unquote(parsed.path)) if parsed.scheme.lower() == "file" else None


def _frozen(found: Found, copies: Path) -> Found:
    """The same file by its copy, which is made now, or was by an earlier AppMaster of this driver.

    Raises:
        OSError: it cannot be read, or the disk does not take it.
    """
    copy = copies / found.kind / found.path.name
    if not copy.is_file():
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = copy.parent / f".{copy.name}.{os.getpid()}"
        try:
            shutil.copyfile(found.path, partial)
            partial.replace(copy)  # a copy is whole, or there is none
        finally:
            partial.unlink(missing_ok=True)
    return replace(found, path=copy)


class EarlyFiles:
    """The files of one application: chosen and read once, and sent whenever a master lacks them."""

    def __init__(self, hello: Mapping[str, Any]) -> None:
        """``hello``: what the plugin introduces the driver with.

        Raises:
            InvalidRequest: its settings are wrong.
        """
        mode = hello.get("localize", LOCALIZE_MODES[0])
        # The plugin of a driver that was started before an upgrade of HRM names no directory.
        copies = Path(hello["early_dir"]) if hello.get("early_dir") else None
        chosen, self.warnings = needed_early(hello["files"], hello["launch"], mode, copies)
        self._files: list[tuple[Found, LocalFile]] = []
        if not chosen:
            return
        from hrm.spark.submit import LocalFile

        for found in chosen:
            one = self._frozen_if_possible(found, copies)
            try:
                local = LocalFile.at(one.path, "the file")
            except InvalidRequest as error:
                self.warnings.append(error.message)
            else:
                self._files.append((one, local))

    def _frozen_if_possible(self, found: Found, copies: Path | None) -> Found:
        try:
            return found if copies is None else _frozen(found, copies)
        except OSError as error:
            self.warnings.append(
                f"{found.path} cannot be copied to {copies} ({error.strerror}): do not edit it "
                f"while the application runs, or executors that start later fail"
            )
            return found

    def __bool__(self) -> bool:
        return bool(self._files)

    def send(
        self, target: str, token: str, ca_file: Path | None, allow_clear_text: bool | None
    ) -> None:
        """Send what the master does not have; blocks as long as that takes.

        Raises:
            HrmError: not all could be sent.
        """
        from hrm.spark import submit

        allow = allow_clear_text
        with submit.connect(target, token, ca_file, allow_clear_text=allow) as (client, _):
            client.send([local for _, local in self._files])

    def described(self) -> list[dict[str, Any]]:
        """Fields of ``LaunchFile``, once they have been sent."""
        return [
            {
                "sha256": local.sha256,
                "size_bytes": local.size,
                "name": found.name,
                "archive": found.path.name if found.is_archive else "",
            }
            for found, local in self._files
        ]
