"""Policies propose, the core commits: one small module a policy, each loaded by its name.

A name is an entry point of the group ``hrm.policies``: HRM's own are declared in its
``pyproject.toml``, and any installed package may add more. What an entry point names is called with
the number of the scheduler that it is to serve, 0 and up, and returns a ``PlacementPolicy``.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from hrm.errors import InvalidConfig

if TYPE_CHECKING:
    from hrm.core.scheduling.scheduler import PlacementPolicy

__all__ = ["GROUP", "known", "load", "origin"]

GROUP = "hrm.policies"


def known() -> list[str]:
    """The names of all installed placement policies, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def origin(name: str, setting: str = "placement_policy") -> str:
    """Where the placement policy ``name`` comes from; nothing of its package is imported.

    Raises:
        InvalidConfig: no package provides it, or two do; ``setting`` is what names it.
    """
    return _origin(_find(name, setting))


def load(name: str, index: int = 0, setting: str = "placement_policy") -> PlacementPolicy:
    """The placement policy ``name``, which ``setting`` names, for scheduler number ``index``.

    Raises:
        InvalidConfig: no package provides it, two do, or it does not load; with the cause.
    """
    point = _find(name, setting)
    label = f"placement policy {name!r} ({_origin(point)})"
    try:
        policy = point.load()(index)
    except Exception as error:
        raise InvalidConfig(
            f"{label} cannot be loaded: {type(error).__name__}: {error}; mend or reinstall its "
            f"package, or choose another {setting}: {_names()}"
        ) from error
    if not callable(getattr(policy, "place", None)) or not isinstance(
        getattr(policy, "name", None), str
    ):
        raise InvalidConfig(
            f"{label} gave {policy!r}, which is no placement policy: it needs a name and "
            f"place(view, placement, now); see help(hrm.policies.api)"
        )
    loaded: PlacementPolicy = policy
    return loaded


def _find(name: str, setting: str) -> EntryPoint:
    # Of one package that is found twice on the path, importlib returns the first one only.
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        raise InvalidConfig(
            f"no placement policy is called {name!r}; set {setting} in hrm.toml [master] "
            f"to one of: {_names()}"
        )
    if len(points) > 1:
        origins = " and ".join(_origin(point) for point in points.values())
        raise InvalidConfig(
            f"two packages provide a placement policy {name!r}: {origins}; uninstall one of them"
        )
    return next(iter(points.values()))


def _names() -> str:
    return ", ".join(known()) or "none is installed; reinstall HRM (pip install hrm-spark)"


def _origin(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"{point.value}{package}"
