"""Policies by name: entry points of installed packages, HRM's own among them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hrm.errors import InvalidConfig

__all__ = ["PolicyGroup"]


class PolicyGroup:
    """One kind of policies. ``group``: of entry points; ``noun``: for people."""

    def __init__(self, group: str, noun: str) -> None:
        self.group = group
        self.noun = noun

    def known(self) -> list[str]:
        """The names of all that are installed, sorted."""
        return sorted({point.name for point in entry_points(group=self.group)})

    def origin(self, name: str, setting: str) -> str:
        """Where the policy ``name`` comes from; nothing of its package is imported.

        Raises:
            InvalidConfig: no package provides it, or two do; ``setting`` is what names it.
        """
        return _origin(self._find(name, setting))

    def make(self, name: str, setting: str, *arguments: Any) -> tuple[Any, str]:
        """What the policy's entry point returns for these arguments; and what it is called in
        messages.

        Raises:
            InvalidConfig: as ``origin``, or it does not load; with the cause.
        """
        point = self._find(name, setting)
        label = f"{self.noun} {name!r} ({_origin(point)})"
        try:
            return point.load()(*arguments), label
        except Exception as error:
            raise InvalidConfig(
                f"{label} cannot be loaded: {type(error).__name__}: {error}; mend or reinstall its "
                f"package, or choose another {setting}: {self.names()}"
            ) from error

    def names(self) -> str:
        return ", ".join(self.known()) or "none is installed; reinstall HRM (pip install hrm-spark)"

    def _find(self, name: str, setting: str) -> EntryPoint:
        # Of one package that is found twice on the path, importlib returns the first one only.
        points = {point.value: point for point in entry_points(group=self.group, name=name)}
        if not points:
            raise InvalidConfig(
                f"no {self.noun} is called {name!r}; set {setting} in hrm.toml [master] to one of: "
                f"{self.names()}"
            )
        if len(points) > 1:
            origins = " and ".join(_origin(point) for point in points.values())
            raise InvalidConfig(
                f"two packages provide a {self.noun} {name!r}: {origins}; uninstall one of them"
            )
        return next(iter(points.values()))


def _origin(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"{point.value}{package}"
