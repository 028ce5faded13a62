"""What is sent with a task so that nodes can import its pipeline: a reference, and source files.

A node finds a pipeline as "module:attribute". Modules of installed packages must be there already,
or the task fails with that reason. What users wrote in a script or in a package of their own is
sent: the one file, or the package's Python files, but no data files.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from hrm.errors import InvalidConfig, LimitReached
from hrm.pipelines.client.definition import Pipeline

__all__ = ["SOURCE_BYTES_MAX", "Sources", "load", "sources_of"]

SOURCE_BYTES_MAX = 2_000_000
"""Most bytes of all files that are sent with one pipeline."""


class Sources(NamedTuple):
    """``reference``: "module:attribute"; ``files``: path from the root of imports, content."""

    reference: str
    files: tuple[tuple[str, bytes], ...]


def load(reference: str) -> Pipeline:
    """The pipeline "module:attribute" of this process's path and directory.

    Raises:
        InvalidConfig: malformed, not importable, no such attribute, or not a ``Pipeline``.
    """
    name, colon, attribute = reference.partition(":")
    if not (name and colon and attribute):
        raise InvalidConfig(
            f"{reference!r} names no pipeline; write MODULE:ATTRIBUTE, as in apps.video:synopsis"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise InvalidConfig(
            f"the module {name!r} of pipeline {reference!r} cannot be imported from {Path.cwd()}: "
            f"{type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Pipeline):
        others = sorted(key for key, value in vars(module).items() if isinstance(value, Pipeline))
        has = f"it has {', '.join(others)}" if others else "it has none"
        raise InvalidConfig(f"{name}.{attribute} is no hrm.pipelines.Pipeline; {has}")
    return found


def sources_of(pipeline: Pipeline) -> Sources:
    """The reference of ``pipeline``, and the files that nodes need to import it.

    Raises:
        InvalidConfig: no module has it by name (it was made in a function or an interactive shell).
        LimitReached: its package is larger than ``SOURCE_BYTES_MAX``.
    """
    module, attribute = _home(pipeline)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).exists():
        raise InvalidConfig(
            f"pipeline {pipeline.name!r} is written in no file, so no node can import it; put it "
            f"into a module"
        )
    path = Path(file).resolve()
    if module.__name__ == "__main__" and not (module.__spec__ and module.__spec__.name):
        return Sources(f"{path.stem}:{attribute}", ((path.name, path.read_bytes()),))
    name = module.__spec__.name if module.__spec__ else module.__name__
    if _installed(path):
        return Sources(f"{name}:{attribute}", ())
    depth = name.count(".") + (1 if path.name == "__init__.py" else 0)
    if depth == 0:
        return Sources(f"{name}:{attribute}", ((path.name, path.read_bytes()),))
    package = path.parents[depth - 1]
    return Sources(f"{name}:{attribute}", _package(package))


def _home(pipeline: Pipeline) -> tuple[ModuleType, str]:
    """The module that has ``pipeline`` as an attribute: where it was written, else ``__main__``."""
    names = [
        function.__module__
        for step in pipeline.steps.values()
        for function in step.versions.values()
    ]
    for name in dict.fromkeys([*names, *sys.modules]):
        module = sys.modules.get(name)
        for attribute, value in list(vars(module).items()) if module is not None else ():
            if value is pipeline:
                assert module is not None
                return module, attribute
    raise InvalidConfig(
        f"no module has pipeline {pipeline.name!r} as a name of its own, so no node could import "
        f"it; assign it at the top level of a module"
    )


def _installed(path: Path) -> bool:
    """Whether ``path`` belongs to Python or to an installed package."""
    places = {
        Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "purelib", "platlib")
    }
    return any(path.is_relative_to(place) for place in places)


def _package(directory: Path) -> tuple[tuple[str, bytes], ...]:
    """All Python files below ``directory``, a top-level package."""
    files: list[tuple[str, bytes]] = []
    total = 0
    for file in sorted(directory.rglob("*.py")):
        content = file.read_bytes()
        total += len(content)
        if total > SOURCE_BYTES_MAX:
            raise LimitReached(
                f"the Python files of {directory} are more than {SOURCE_BYTES_MAX:,} bytes; "
                f"install the package on the nodes, or move the pipeline into a small one"
            )
        files.append((file.relative_to(directory.parent).as_posix(), content))
    return tuple(files)
