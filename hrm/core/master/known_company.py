"""What the master knows of tenants that share nodes, for placement policies that ask for it.

A tenant is what affinities are learned of: the applications of one queue and name. Slowdowns come
from there, where there are observations; else what company does on average. They change with every
observation, a little: ``revision`` rises when many have come, so that what policies derive from
them is derived again at a cost in proportion to what was observed.

Limit: the containers of an application count as being as large as its first.
"""

from __future__ import annotations

from hrm.core.master.state import MasterState
from hrm.core.scheduling.co_running import Tenant
from hrm.core.tenancy.affinities import ApplicationKind, kind_of
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["KnownCompany"]

_OBSERVATIONS_MIN = 10
_OBSERVATIONS_A_KIND = 50
_PART = 10
"""A tenth more observations change a young estimate noticeably."""


class KnownCompany:
    """See ``CoRunning``."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self._revision = 0
        self._next_version = 1

    @property
    def revision(self) -> int:
        """See ``CoRunning``; 0 until something was observed."""
        affinities = self._master_state.affinities
        version = affinities.version
        if version >= self._next_version:
            self._revision += 1
            step = max(_OBSERVATIONS_MIN, version // _PART)
            self._next_version = version + min(step, _OBSERVATIONS_A_KIND * len(affinities))
        return self._revision

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        """See ``CoRunning``; one that the master has forgotten is a tenant by itself."""
        app = self._master_state.applications.get(application_id)
        return (application_id,) if app is None else kind_of(app.record.queue, app.record.name)

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        """See ``CoRunning``."""
        return self._master_state.affinities.slowdown(_kind(tenant), _kind(other)).factor

    def wanted(self) -> dict[Tenant, Vector]:
        """See ``CoRunning``."""
        wanted: dict[Tenant, Vector] = {}
        for app in self._master_state.live.values():
            if not app.containers:
                continue
            tenant, count = kind_of(app.record.queue, app.record.name), len(app.containers)
            demand = demand_vector(next(iter(app.containers.values())).request.resources)
            before = wanted.get(tenant, (0, 0, 0, 0))
            wanted[tenant] = (
                before[0] + count * demand[0],
                before[1] + count * demand[1],
                before[2] + count * demand[2],
                before[3] + count * demand[3],
            )
        return wanted


def _kind(tenant: Tenant) -> ApplicationKind:
    return tenant if isinstance(tenant, ApplicationKind) else ApplicationKind("", tenant[0])
