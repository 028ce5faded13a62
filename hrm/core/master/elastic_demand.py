"""What waits in the cluster and could use an executor that a training gives up.

What a training that runs waits for, beyond that, does not count here: the policy weighs what one
more is worth to it. Most of the rest could use one. But one that wants a GPU where trainings hold
none, more memory than the node of any training has, another node than theirs, or a gang larger than
all that they could leave, gets nothing from them: to take executors for it would only make their
epochs longer. So a waiter counts if units where trainings run would hold it, with what is free
there and with all that trainings might give up there: an executor more than its least is not a
training's to keep. The trainings that might give it up are those that could do so alone, at one
unit, or together, if none could. One that has no more than its least serves what is no larger than
what it waits for, by waiting for it no more.

That holds for as long as the waiter waits: what a training gives up is free then, and the sum of
the two is what it was.

Thousands may wait. They are grouped by what they request, and of ``LOOKED_MAX`` of them at most, in
``KINDS_MAX`` groups, it is asked; what is beyond counts for nothing until others have gone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from hrm.core.elasticity.elastic_job import ElasticJob
from hrm.core.master.entities import Application, Container
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.columns import Bools, Ints
from hrm.core.vocabulary.feasibility import (
    Vector,
    demand_vector,
    fits,
    fitting_rows,
    folds,
    plus,
    pooled_part,
)
from hrm.core.vocabulary.model import ApplicationId, ContainerState, NodeName
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["KINDS_MAX", "LOOKED_MAX", "ElasticDemand", "ServedWaiters", "wanted_executors"]

LOOKED_MAX = 4_000
"""Waiters that are looked at for one application: some milliseconds."""
KINDS_MAX = 32
_DEFAULT_PROFILE = 0
_NOTHING: Vector = (0, 0, 0, 0)
_NO_NODES: frozenset[NodeName] = frozenset()


class ServedWaiters(NamedTuple):
    """``waiting``: how many could use what trainings give up. ``servers``: the trainings whose
    executors they could use. ``has_use``: something waits that what is free, or might be, would
    hold: it is not for those who have some already."""

    waiting: int
    servers: frozenset[ApplicationId]
    has_use: bool


class _Kind(NamedTuple):
    """``many``: start together. ``own``: the training that waits, which serves itself not."""

    demand: Vector
    requires: NodeRequirement | None
    avoid: frozenset[NodeName]
    many: int
    own: ApplicationId | None


class _Gifts:
    """What trainings might give up, and what is free."""

    def __init__(self, master_state: MasterState, jobs: Mapping[ApplicationId, ElasticJob]) -> None:
        self._state = master_state.state
        self._free = self._state.available()
        self._awaited: dict[ApplicationId, Vector] = {}
        names, rows, given = list[ApplicationId](), list[int](), list[Vector]()
        for name, job in jobs.items():
            wanted = wanted_executors(master_state.applications[name])
            running = [x for x in wanted if x.state is ContainerState.RUNNING]
            if (most := len(running) - job.about.workers_min) > 0:
                found = self._at_rows(running, most)
                names += [name] * len(found)
                rows += found.keys()
                given += found.values()
            elif waiting := [x for x in wanted if x.state is not ContainerState.RUNNING]:
                self._awaited[name] = _times(_demand(waiting[0]), len(waiting))
        self._names = np.array(names, dtype=np.object_)
        self._rows = np.array(rows, np.int64)
        self._given = np.array(given, np.int64).reshape(-1, 4)

    def _at_rows(self, running: list[Container], most: int) -> dict[int, Vector]:
        """By row, siblings included, what ``most`` of these hold at most there."""
        count, found = Counter[int](), dict[int, Vector]()
        for container in running:
            row = self._state.rows.get(container.unit_id)
            if row is None or count[row] >= most:
                continue
            count[row] += 1
            demand = _demand(container)
            found[row] = plus(found.get(row, _NOTHING), demand)
            for other in self._state.siblings(row):
                found[other] = plus(found.get(other, _NOTHING), pooled_part(demand))
        return found

    def offers(self, own: ApplicationId | None) -> Ints:
        """What could be free if all but this one gave all that they might; shape (rows, 4)."""
        others = self._names != own
        offers = self._free.copy()
        np.add.at(offers, self._rows[others], self._given[others])
        return offers

    def servers(self, kind: _Kind, usable: Bools) -> set[ApplicationId]:
        """The trainings that could serve such a waiter, which could start at ``usable`` rows."""
        found = {
            name
            for name, awaited in self._awaited.items()
            if name != kind.own and fits(_times(kind.demand, max(1, kind.many)), awaited)
        }
        useful = usable[self._rows] & (self._names != kind.own)
        if not useful.any():
            return found
        free, demand = self._free[self._rows], np.asarray(kind.demand, np.int64)
        alone = useful & (free + self._given >= demand).all(axis=1)
        helps = useful & ((free < demand) & (self._given > 0)).any(axis=1)
        return found | set(self._names[alone if alone.any() else helps])


class ElasticDemand:
    """Looks at what waits, for one training after the other."""

    def __init__(self, master_state: MasterState, placement: PlacementCoordinator) -> None:
        self._master_state = master_state
        self._placement = placement

    def of_others(
        self, app: Application, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> ServedWaiters:
        """What waits of other applications than ``app``; ``jobs``: all trainings."""
        kinds = self._kinds(app.application_id, jobs)
        if not kinds:
            return ServedWaiters(0, frozenset(), has_use=False)
        gifts = _Gifts(self._master_state, jobs)
        waiting, servers, has_use = 0, set[ApplicationId](), False
        for kind, count in itertools.islice(kinds.items(), KINDS_MAX):
            rows = self._rows(kind, gifts.offers(kind.own))
            has_use = has_use or bool(rows.any())
            serving = gifts.servers(kind, rows)
            servers |= serving
            waiting += count if serving else 0
        return ServedWaiters(waiting, frozenset(servers), has_use or waiting > 0)

    def _rows(self, kind: _Kind, offers: Ints) -> Bools:
        """Where such a waiter could start, were all that free; nowhere, if not all of its gang
        could; shape (rows,)."""
        state = self._master_state.state
        rows: Bools = state.open & state.serving(kind.demand) & fitting_rows(kind.demand, offers)
        if kind.requires is not None:
            rows &= state.suited(kind.requires)
        if kind.avoid:
            rows &= ~state.rows_of(kind.avoid)
        some = kind.many > 1 and rows.any()
        if some and folds(kind.demand, offers[rows], state.pool[rows]) < kind.many:
            rows &= False
        return rows

    def _kinds(
        self, but: ApplicationId, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> dict[_Kind, int]:
        """How many wait of which kind; not of what a training that runs wants beyond that."""
        looked = itertools.chain(
            self._of_schedulers(but, jobs), self._of_queues(but, jobs), self._at_units(but, jobs)
        )
        counts = Counter(itertools.islice(looked, LOOKED_MAX))
        run = {kind.own for kind in counts if kind.own is not None and self._runs(kind.own)}
        return {kind: count for kind, count in counts.items() if kind.own not in run}

    def _runs(self, name: ApplicationId) -> bool:
        wanted = wanted_executors(self._master_state.applications[name])
        return any(x.state is ContainerState.RUNNING for x in wanted)

    def _of_schedulers(
        self, but: ApplicationId, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> Iterator[_Kind]:
        """Applications that wait for a place."""
        for scheduler in self._placement.schedulers.values():
            for name, job in scheduler.jobs.items():
                if name != but and job.pending:
                    demand = demand_vector(next(iter(job.pending.values())).resources)
                    own = name if name in jobs else None
                    yield _Kind(demand, job.requires, job.avoid, job.gang, own)

    def _of_queues(
        self, but: ApplicationId, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> Iterator[_Kind]:
        """Leaves that wait for more of the cluster: the first in each."""
        for some in self._placement.queues.waiting_for_share(but):
            app = self._master_state.applications[some[0].application_id]
            yield self._kind(app, some[0], jobs)._replace(many=len(some))

    def _at_units(
        self, but: ApplicationId, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> Iterator[_Kind]:
        """What waits at units, and moves to others that are free: the first of each application, as
        schedulers and queues have one of each."""
        seen = {but}
        master_state, state = self._master_state, self._master_state.state
        for row in np.flatnonzero(state.waiting_batch + state.waiting_stream).tolist():
            queue, node = state.queue(row), master_state.nodes[state.node(row)]
            for entry in (*queue.stream_waiting.values(), *queue.batch_waiting.values()):
                container = node.containers.get(entry.container_id)
                if container is not None and container.application_id not in seen:
                    seen.add(container.application_id)
                    app = master_state.applications[container.application_id]
                    yield self._kind(app, container, jobs)

    def _kind(
        self, app: Application, container: Container, jobs: Mapping[ApplicationId, ElasticJob]
    ) -> _Kind:
        own = app.application_id if app.application_id in jobs else None
        return _Kind(_demand(container), self._master_state.required(app), _NO_NODES, 1, own)


def _demand(container: Container) -> Vector:
    return demand_vector(container.request.resources)


def _times(demand: Vector, many: int) -> Vector:
    return (many * demand[0], many * demand[1], many * demand[2], many * demand[3])


def wanted_executors(app: Application) -> list[Container]:
    """The executors of its default profile that it has or waits for."""
    return [x for x in app.containers.values() if _is_wanted(x)]


def _is_wanted(container: Container) -> bool:
    return (
        container.request.resource_profile_id == _DEFAULT_PROFILE
        and container.stop_cause is None
        and container.state not in (ContainerState.STOPPING, ContainerState.ENDED)
    )
