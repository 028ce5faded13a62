"""Policies that say how many workers a workload wants, by name.

A name is an entry point of the group ``hrm.resize_policies``: HRM's own are declared in its
``pyproject.toml``, and any installed package may add more. What an entry point names is called
without arguments and returns a ``ResizePolicy`` (``hrm.pipelines.core.resizing``).
"""

from __future__ import annotations

from collections.abc import Callable

from hrm.errors import InvalidConfig
from hrm.pipelines.core.resizing import InForce, ResizePolicy, Resizing
from hrm.pipelines.policies.resizing.guarded import GuardedResizing
from hrm.policies.groups import PolicyGroup

__all__ = ["DEFAULT", "GROUP", "load", "with_candidate"]

GROUP = "hrm.resize_policies"
DEFAULT = "one-per-task"
SETTING = "pipeline_resize_policy"
CANDIDATE_SETTING = "pipeline_resize_candidate"
_POLICIES = PolicyGroup(GROUP, "resize policy")


def load(name: str, setting: str = SETTING) -> ResizePolicy:
    """The resize policy ``name``, which ``setting`` names.

    Raises:
        InvalidConfig: no package provides it, two do, or it does not load; with the cause.
    """
    policy, label = _POLICIES.make(name, setting)
    if not callable(getattr(policy, "workers", None)):
        raise InvalidConfig(
            f"{label} gave {policy!r}, which is no resize policy: it needs a name and "
            f"workers(view); see help(hrm.pipelines.core.resizing)"
        )
    loaded: ResizePolicy = policy
    return loaded


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
            f"from hrm.toml [master], or set it to another one: {_POLICIES.names()}"
        )
    origin, missing = _POLICIES.origin(candidate, CANDIDATE_SETTING), ""
    tried: ResizePolicy | None = None
    try:
        tried = load(candidate, CANDIDATE_SETTING)
    except InvalidConfig as error:
        missing = error.message
    return GuardedResizing(
        candidate, tried, in_force, origin=origin, missing=missing, clock_s=clock_s
    )
