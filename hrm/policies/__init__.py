"""Policies propose, the core commits: one small module a policy, each loaded by its name.

A name is an entry point of the group ``hrm.policies``: HRM's own are declared in its
``pyproject.toml``, and any installed package may add more. What an entry point names is called with
the number of the scheduler that it is to serve, 0 and up, and returns a ``PlacementPolicy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hrm.errors import InvalidConfig
from hrm.policies.groups import PolicyGroup

if TYPE_CHECKING:
    from hrm.core.scheduling.scheduler import PlacementPolicy

__all__ = ["GROUP", "known", "load", "origin"]

GROUP = "hrm.policies"
_POLICIES = PolicyGroup(GROUP, "placement policy")


def known() -> list[str]:
    """The names of all installed placement policies, sorted."""
    return _POLICIES.known()


def origin(name: str, setting: str = "placement_policy") -> str:
    """See ``PolicyGroup.origin``."""
    return _POLICIES.origin(name, setting)


def load(name: str, index: int = 0, setting: str = "placement_policy") -> PlacementPolicy:
    """The placement policy ``name``, which ``setting`` names, for scheduler number ``index``.

    Raises:
        InvalidConfig: no package provides it, two do, or it does not load; with the cause.
    """
    policy, label = _POLICIES.make(name, setting, index)
    if not callable(getattr(policy, "place", None)) or not isinstance(
        getattr(policy, "name", None), str
    ):
        raise InvalidConfig(
            f"{label} gave {policy!r}, which is no placement policy: it needs a name and "
            f"place(view, placement, now); see help(hrm.policies.api)"
        )
    loaded: PlacementPolicy = policy
    return loaded
