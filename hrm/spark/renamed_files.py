# ruff: noqa: PTH100, PTH102, PTH110, PTH113, PTH118, PTH207, PTH211
"""Gives files of ``--files a.txt#b.txt`` their names, before a driver's JVM starts.

The name after ``#`` is YARN's, which puts files in place itself. Spark's own ``--files`` ends a
driver that names one, before a plugin of Spark's can prevent it. So the file gets a link of that
name, in a directory of this start's, and Spark is given the link: driver and executors then have
the file under its name, as on YARN.

Files elsewhere (``hdfs:``) cannot be linked to. One that asks for another name than its own is
refused here, because tasks would not find it.

It runs in ``spark-env.sh``, as ``python -I -S renamed_files.py DIRECTORY LIST``, where a name is
given: like ``build.py`` it imports little. It prints the list for Spark.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from urllib.parse import quote, unquote, urlsplit

__all__ = ["RenameError", "is_name", "renamed"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class RenameError(Exception):
    """A file cannot have its name; the message is one line for the user."""


def is_name(fragment: str) -> bool:
    """Whether this names a file in a directory, and nothing else."""
    return fragment not in ("", ".", "..") and not re.search(r"[/,#\0]", fragment)


def renamed(directory: str, listed: str) -> str:
    """The list ``listed`` of Spark's ``--files``, in which no file has a name of its own any more:
    those that had are links below ``directory``.

    Raises:
        RenameError: a name is none or is given twice, or its file is not on this machine.
    """
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    taken = {_own_name(entry) for entry in entries if "#" not in entry}
    done: dict[str, str] = {}
    for number, entry in enumerate(entries):
        if "#" in entry and entry not in done:
            done[entry] = _placed(os.path.join(directory, str(number)), entry, taken)
    return ",".join(dict.fromkeys(done.get(entry, entry) for entry in entries))


def _placed(place: str, entry: str, taken: set[str]) -> str:
    uri, _, name = entry.partition("#")
    if not is_name(name):
        raise RenameError(f"--files {entry}: give a file's name after '#', not a path")
    if uri.startswith("local:"):
        return uri  # every node has it where it is, and Spark leaves it there
    if name in taken:
        raise RenameError(
            f"--files {entry}: another file is named {name}, and all are in one directory; "
            f"give it another name"
        )
    taken.add(name)
    if _own_name(uri) == name:
        return uri
    if _SCHEME.match(uri) and urlsplit(uri).scheme.lower() != "file":
        raise RenameError(
            f"--files {entry}: only a file of this machine can have another name; copy it here, "
            f"or leave #{name} out"
        )
    link = os.path.join(place, name)
    os.mkdir(place, 0o700)
    os.symlink(_local(uri), link)  # absolute, because Spark copies the link itself to SparkFiles
    return f"file://{quote(link)}"


def _own_name(uri: str) -> str:
    name = uri.rstrip("/").rpartition("/")[2]
    return unquote(name) if _SCHEME.match(uri) else name


def _local(uri: str) -> str:
    """The absolute path of the one file that this names.

    Raises:
        RenameError: it names none, or several.
    """
    path = unquote(urlsplit(uri).path) if _SCHEME.match(uri) else uri
    found = [path] if os.path.exists(path) else glob.glob(path)
    if len(found) != 1:
        many = f"{len(found)} files match it; name one" if found else "there is no such file here"
        raise RenameError(f"--files {uri}: {many}")
    if not os.path.isfile(found[0]):
        raise RenameError(f"--files {uri}: this is no file, and only a file can have another name")
    return os.path.abspath(found[0])


def main(arguments: list[str]) -> int:
    """Print the list for Spark."""
    if len(arguments) != 2:
        sys.stderr.write("usage: renamed_files.py DIRECTORY LIST\n")
        return 2
    try:
        sys.stdout.write(renamed(*arguments))
    except (RenameError, OSError) as error:
        sys.stderr.write(f"HRM: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
