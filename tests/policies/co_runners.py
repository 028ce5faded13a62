"""``CoRunning`` for tests: slowdowns by hand, or drawn from the tenants' names."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hrm.core.scheduling.co_running import Tenant
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["Drawn", "Stated"]


@dataclass
class Stated:
    """Each application is a tenant. ``slowdowns``: by tenant and other; 1 where none is stated."""

    slowdowns: Mapping[tuple[str, str], float]
    cores: Mapping[str, int] = field(default_factory=dict)
    revision: int = 1
    asked: int = 0

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        return (application_id,)

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        self.asked += 1
        return self.slowdowns.get((tenant[0], other[0]), 1.0)

    def wanted(self) -> Mapping[Tenant, Vector]:
        return {(name,): (cores, cores, 0, cores) for name, cores in self.cores.items()}


class Drawn:
    """A few tenants, of many applications each, with slowdowns of any size, below 1 among them."""

    revision = 1

    def __init__(self, tenants: int = 4) -> None:
        self._tenants = tenants

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        return ("root.default", f"kind-{zlib.crc32(application_id.encode()) % self._tenants}")

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        return 0.8 + zlib.crc32(f"{tenant} beside {other}".encode()) % 100 / 50

    def wanted(self) -> Mapping[Tenant, Vector]:
        return {("root.default", f"kind-{each}"): (6, 6, 0, 6) for each in range(self._tenants)}
