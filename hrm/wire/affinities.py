"""What has been learned of run times, as people see it."""

from __future__ import annotations

import math

from hrm.core.tenancy.affinities import Affinities, ApplicationKind, PlatformEstimate
from hrm.core.tenancy.kind_times import CompanySlowdown
from hrm.policies.sharing import Affinity, platform_affinity
from hrm.v1 import queues_pb2 as pb

__all__ = ["LearnedKinds"]


class LearnedKinds:
    """What is known at one moment. Affinities are among all kinds, whichever are shown."""

    def __init__(self, affinities: Affinities) -> None:
        self._affinities = affinities
        kinds, platforms = affinities.kinds(), affinities.platforms()
        self._rows = {kind: row for row, kind in enumerate(kinds)}
        self._columns = {platform: column for column, platform in enumerate(platforms)}
        times = affinities.table(kinds, platforms)
        self._tables = [platform_affinity(measure, times) for measure in Affinity]

    def message(
        self, kind: ApplicationKind, co_runners_limit: int, *, hidden: bool
    ) -> pb.LearnedKind:
        """``co_runners_limit``: 0 for all. ``hidden``: without times."""
        co_runners = self._affinities.co_runners(kind)
        return pb.LearnedKind(
            queue=kind.queue,
            name=kind.name,
            platforms=[
                self._platform(row, hidden=hidden) for row in self._affinities.estimates(kind)
            ],
            company=_slowdown(self._affinities.sensitivity(kind)),
            co_runners=[
                _slowdown(each.slowdown, each.other)
                for each in co_runners[: co_runners_limit or len(co_runners)]
            ],
            hidden=hidden,
        )

    def _platform(self, row: PlatformEstimate, *, hidden: bool) -> pb.LearnedPlatform:
        at = self._rows[row.kind], self._columns[row.platform]
        tasks_per_hour, egocentric, reciprocal = (float(table[at]) for table in self._tables)
        return pb.LearnedPlatform(
            platform=row.platform,
            run_s=0.0 if hidden else row.run_s,
            relative=row.relative,
            factor=0.0 if math.isinf(row.factor) else row.factor,
            observations=row.observations,
            tasks_per_hour=0.0 if hidden else tasks_per_hour,
            egocentric=egocentric,
            reciprocal=reciprocal,
        )


def _slowdown(found: CompanySlowdown, other: ApplicationKind | None = None) -> pb.LearnedSlowdown:
    wide = math.exp(found.half_width)
    return pb.LearnedSlowdown(
        queue="" if other is None else other.queue,
        name="" if other is None else other.name,
        factor=found.factor,
        least=found.factor / wide,
        most=found.factor * wide,
        observations=found.observations,
    )
