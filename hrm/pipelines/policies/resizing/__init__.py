"""Policies that say how many workers a workload wants, by name.

A name is an entry point of the group ``hrm.resize_policies``: HRM's own are declared in its
``pyproject.toml``, and any installed package may add more. What an entry point names is called
without arguments and returns a ``ResizePolicy`` (``hrm.pipelines.core.resizing``).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from hrm.errors import InvalidConfig
from hrm.pipelines.core.resizing import InForce, ResizePolicy, Resizing
from hrm.pipelines.policies.resizing.guarded import GuardedResizing

__all__ = ["DEFAULT", "GROUP", "load", "with_candidate"]

GROUP = "hrm.resize_policies"
DEFAULT = "one-per-task"
SETTING = "pipeline_resize_policy"
CANDIDATE_SETTING = "pipeline_resize_candidate"


def load(name: str, setting: str = SETTING) -> ResizePolicy:
    """The resize policy ``name``, which ``setting`` names.

    Raises:
        InvalidConfig: no package provides it, two do, or it does not load; with the cause.
    """
    point = _find(name, setting)
    try:
        policy: ResizePolicy = point.load()()
    except Exception as error:
        raise InvalidConfig(
            f"resize policy {name!r} ({_origin(point)}) cannot be loaded: {type(error).__name__}: "
            f"{error}; mend or reinstall its package, or choose another {setting}: {_names()}"
        ) from error
    if not callable(getattr(policy, "workers", None)):
        raise InvalidConfig(
            f"resize policy {name!r} ({_origin(point)}) gave {policy!r}, which needs a name and "
            f"workers(view); see help(hrm.pipelines.core.resizing)"
        )
    return policy


def with_candidate(name: str, candidate: str, *, clock_s: Callable[[], float]) -> Resizing:
    """The policy ``name`` alone, or, where ``candidate`` names another, both under a guard. A
    candidate that does not load keeps no master from starting: where it is shown, the cause is.

    Raises:
        InvalidConfig: no package provides one of them, two do, or both are the same.
    """
    in_force = load(name)
    if not candidate:
        return InForce(in_force)
    if candidate == name:
        raise InvalidConfig(
            f"{CANDIDATE_SETTING} = {candidate!r} is the {SETTING} in force already; remove it "
            f"from hrm.toml [master], or set it to another one: {_names()}"
        )
    origin, missing = _origin(_find(candidate, CANDIDATE_SETTING)), ""
    tried: ResizePolicy | None = None
    try:
        tried = load(candidate, CANDIDATE_SETTING)
    except InvalidConfig as error:
        missing = error.message
    return GuardedResizing(
        candidate, tried, in_force, origin=origin, missing=missing, clock_s=clock_s
    )


def _find(name: str, setting: str) -> EntryPoint:
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        raise InvalidConfig(
            f"no resize policy is called {name!r}; set {setting} in hrm.toml [master] to one of: "
            f"{_names()}"
        )
    if len(points) > 1:
        origins = " and ".join(map(_origin, points.values()))
        raise InvalidConfig(
            f"two packages provide a resize policy {name!r}: {origins}; uninstall one of them"
        )
    return next(iter(points.values()))


def _names() -> str:
    names = sorted({point.name for point in entry_points(group=GROUP)})
    return ", ".join(names) or "none is installed; reinstall HRM (pip install hrm-spark)"


def _origin(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"{point.value}{package}"
