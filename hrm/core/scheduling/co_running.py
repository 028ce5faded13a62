"""What a placement policy may ask of those whose containers share units: who slows whom down.

A view has the ids of containers, and with them the applications. Which applications belong
together, how much they slow each other down, and what they still want, the master alone knows. A
policy that has the method ``learns_from`` is given it once, before its first placement; in
schedulers of other processes it is not: there each application is a tenant, and nothing is known of
slowdowns.

Source: two-level fairness paper (Hwang, Kim, Choi, IEEE Trans. Services Computing, 2018), section
3.3: co-runner affinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import InvalidConfig

__all__ = ["CoRunning", "Tenant", "UnknownCoRunning", "introduce"]

Tenant: TypeAlias = tuple[str, ...]
"""Applications that are alike to each other: of one queue and one name, or a single one."""


class CoRunning(Protocol):
    """What is known of tenants that share units."""

    @property
    def revision(self) -> int:
        """Rises when slowdowns have changed noticeably. 0: none is known, all are 1."""
        ...

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        """Of any application whose containers run or wait, also of one that has ended."""
        ...

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        """How many times as long as alone a task of ``tenant`` runs where ``other`` has all the
        other cores of its unit; with itself for ``other``, where its own tasks have them."""
        ...

    def wanted(self) -> Mapping[Tenant, Vector]:
        """What each tenant holds and waits for: the sum of its containers' demands."""
        ...


_NOTHING: Mapping[Tenant, Vector] = MappingProxyType({})


class UnknownCoRunning:
    """``CoRunning`` where nothing is known."""

    revision = 0

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        return (application_id,)

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        return 1.0

    def wanted(self) -> Mapping[Tenant, Vector]:
        return _NOTHING


def introduce(policy: PlacementPolicy, co_running: CoRunning) -> None:
    """Give ``co_running`` to ``policy``, if it has the method ``learns_from``.

    Raises:
        InvalidConfig: the policy raised.
    """
    learns_from: Callable[[CoRunning], None] | None = getattr(policy, "learns_from", None)
    if not callable(learns_from):
        return
    try:
        learns_from(co_running)
    except Exception as error:
        name = getattr(policy, "name", type(policy).__name__)
        raise InvalidConfig(
            f"placement policy {name!r} failed in learns_from: {type(error).__name__}: {error}; "
            "mend its package, or choose another placement_policy"
        ) from error
