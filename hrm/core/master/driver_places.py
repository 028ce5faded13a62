"""How much of the cluster drivers on nodes may hold, and what they leave to executors.

A driver on a node is never preempted and holds its place until its application ends. Were nothing
to bound them, submissions could fill a cluster with drivers, each of which waits for executors that
the places of the others prevent. Two rules bound them, checked when a driver is granted a place:

The share
    Drivers together hold at most ``driver_share`` of the vcores, and of the memory, of all units
    that take containers. One driver may start whatever its size, if no other is there.

The first executors
    Wherever a driver is placed, its first executors must fit next to it and all other drivers,
    once batch has ended; and so must those of every other driver that could be served before.
    These are as many as ``spark.hrm.gang.min`` says, or one. A driver whose stated gang the empty
    cluster could not hold next to it is refused. One whose number is not stated starts even so.

No state in which only drivers hold the cluster lets all of them wait for executors: of those there,
consider the one that got its place last. The others held theirs when its own was checked, so its
first executors fit into what drivers leave, and nothing else holds any of that. What came later has
ended since, and what ended only left more. The claim rests on the units of that moment: drivers
that are there when a node leaves keep their places. A master that has restarted grants no place
before its nodes are back, for it does not know the drivers there.

Limits: the size of executors is that of the submission until the application requests some; what it
sets in its own code alone is not known before. Where the cluster could hold a driver or its first
executor, never both, that executor waits, and ``hrm app why`` says for what. A driver on a unit
whose cores others share counts with a slot at each of them.

Not in the HRM paper. The share is YARN's ``maximum-am-resource-percent``, for all queues together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from hrm.core.master import admission, gangs
from hrm.core.master.entities import Application, Node
from hrm.core.master.state import MasterState
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.columns import Bools, Ints
from hrm.core.vocabulary.feasibility import (
    Column,
    Vector,
    capacity_vector,
    could_hold,
    demand_vector,
    fitting_rows,
    minus,
    plus,
    pool_folds,
    pooled_part,
)
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerRequest,
    ContainerState,
    FirstExecutors,
    NodeState,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, lasting, unmet

__all__ = ["NO_NODE", "NO_SUITED_NODE", "DriverPlaces", "Verdict", "first_executors", "refusal"]

NO_NODE = (
    "only nodes that are draining, closed or lost are large enough; hrm nodes, and hrm node show "
    "NAME, show which and why"
)
NO_SUITED_NODE = "no node that is large enough and open is for it, see the details"
"""Why a container waits that no resource unit could hold now; the latter: none of a node that its
application may use."""

_NOTHING: Vector = (0, 0, 0, 0)
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a driver may start now. ``why`` not; empty: it may, at ``rows``, shape (rows,).
    ``lacks_node``: it waits for a node that could hold it, not for other drivers."""

    why: str
    rows: Bools
    lacks_node: bool = False


class _Need(NamedTuple):
    """``many`` executors of ``demand`` on nodes that meet ``requires``."""

    demand: Vector
    many: int
    requires: NodeRequirement | None


_Case: TypeAlias = tuple[Vector, FirstExecutors | None, NodeRequirement | None]


def _need(first: FirstExecutors) -> _Need:
    return _Need(demand_vector(first.resources), first.count, first.requires)


def first_executors(master_state: MasterState, driver: Application) -> FirstExecutors | None:
    """What a driver needs to go on: of what its application requests, once it has, else what its
    submission says. ``driver``: the application that holds it. None: it is not known."""
    first = driver.first_executors
    app = master_state.driven.get(driver.application_id)
    if app is not None:
        latest = next(iter(app.containers.values()), None) or (app.ended[-1] if app.ended else None)
        if latest is not None:
            gang = gangs.missing(app)
            many = app.gang_min if gang else 1
            return FirstExecutors(
                count=many,
                resources=latest.request.resources,
                stated=gang > 0,
                requires=lasting(app.requires),
            )
    if first is None or not first.gpus or first.resources.gpu_memory_mib:
        return first
    request = ContainerRequest(
        executor_id="", resource_profile_id=0, resources=first.resources, gpus=first.gpus
    )
    resources = admission.resolve(master_state, request, first.requires).resources
    return replace(first, resources=resources, gpus=0)


class DriverPlaces:
    """What drivers hold at one moment.

    Args:
        master_state: read, never changed. A change of it makes this one out of date.
        endless: count only drivers of streams, as if all others had ended.
    """

    def __init__(self, master_state: MasterState, *, endless: bool = False) -> None:
        self._master_state = master_state
        self._state: SharedState = master_state.state
        self.held: dict[int, Vector] = {}
        """Row: what drivers hold there, running or not yet."""
        self._uncounted: dict[int, Vector] = {}
        """What is to be taken from what streams leave: what drivers that wait at their unit as
        batch will hold, less what those hold that count as ended."""
        self._verdicts: dict[_Case, Verdict] = {}
        """Of drivers within the share: thousands may wait that request the same."""
        self._apps: dict[ApplicationId, Application] = {}
        for container in master_state.unqueued_drivers.values():
            row = self._state.rows.get(container.unit_id)
            app = master_state.applications[container.application_id]
            if (
                container.state is ContainerState.PENDING
                or row is None
                or not self._state.open[row]
            ):
                continue
            demand = demand_vector(container.request.resources)
            waits = container.container_id in self._state.queue(row).batch_waiting
            if endless and not self._has_no_end(app):
                if not waits:
                    self._uncounted[row] = minus(self._uncounted.get(row, _NOTHING), demand)
                continue
            self.held[row] = plus(self.held.get(row, _NOTHING), demand)
            self._apps[app.application_id] = app
            if waits:
                self._uncounted[row] = plus(self._uncounted.get(row, _NOTHING), demand)

    def _has_no_end(self, driver: Application) -> bool:
        app = self._master_state.driven.get(driver.application_id)
        stream = WorkloadClass.STREAM
        return driver.record.workload_class is stream or (
            app is not None and app.record.workload_class is stream
        )

    @cached_property
    def _capacity(self) -> tuple[int, int]:
        """Vcores and memory of all open units, shared ones once."""
        state = self._state
        rows = np.flatnonzero(state.open)
        _, first = np.unique(state.pool[rows], return_index=True)
        vcores, memory_mib = state.total[rows[first], :2].sum(axis=0).tolist()
        return vcores, memory_mib

    @cached_property
    def _used(self) -> Vector:
        used = _NOTHING
        for part in self.held.values():
            used = plus(used, part)
        return used

    @cached_property
    def _needs(self) -> dict[_Need, ApplicationId]:
        """What the drivers there need, and one of them for each."""
        needs: dict[_Need, ApplicationId] = {}
        for application_id, app in self._apps.items():
            first = first_executors(self._master_state, app)
            if first is not None:
                needs.setdefault(_need(first), application_id)
        return needs

    @cached_property
    def _left(self) -> Ints:
        """What drivers leave of each unit; shape (rows, 4)."""
        return self._without(self._state.total, self.held)

    @cached_property
    def _left_by_streams(self) -> Ints:
        """What drivers and streams leave of each unit: what is free once batch has ended."""
        return self._without(self._state.stream_headroom, self._uncounted)

    def _without(self, offers: Ints, held: dict[int, Vector]) -> Ints:
        left: Ints = np.array(offers, np.int64)
        for row, part in held.items():
            left[row] -= part
            left[self._state.siblings(row)] -= pooled_part(part)
        return left

    def verdict(self, app: Application, demand: Vector, reserved: Vector = _NOTHING) -> Verdict:
        """May a driver of ``demand`` start now, and where? ``app``: the application that holds it.
        ``reserved``: what drivers that are about to get a place will hold."""
        everywhere = np.ones_like(self._state.open)
        state = self._state
        could = large = state.open & ~state.gpu_only & fitting_rows(demand, state.total)
        if app.requires is not None:
            could = large & state.suited(app.requires)
        if not could.any():
            why = NO_SUITED_NODE if large.any() else NO_NODE
            return Verdict(why, everywhere, lacks_node=True)
        is_alone = not self.held and reserved == _NOTHING
        if not is_alone:
            why = self._over_share(demand, plus(self._used, reserved))
            if why:
                return Verdict(why, everywhere)
        first = first_executors(self._master_state, app)
        key = (demand, first, app.requires)
        if key not in self._verdicts:
            self._verdicts[key] = self._places_for(demand, app.requires, first, could)
        return self._verdicts[key]

    def _places_for(
        self,
        demand: Vector,
        requires: NodeRequirement | None,
        first: FirstExecutors | None,
        could: Bools,
    ) -> Verdict:
        """Where a driver within the share may start, of the rows that ``could`` hold it.
        ``requires``: what its node must meet."""
        everywhere = np.ones_like(self._state.open)
        mine, others, whose = everywhere, everywhere, ApplicationId("")
        if first is not None:
            mine = self._rows_that_leave(_need(first), self._left_by_streams, demand)
            if not (mine & could).any() and not self._could_begin(demand, requires, first):
                mine = everywhere
        for need, application_id in self._needs.items():
            if self._many(need, self._left) < need.many:
                continue  # nodes have left since; to hold up others does not help it
            rows = self._rows_that_leave(need, self._left, demand)
            if (others & could).any() and not (others & rows & could).any():
                whose = application_id
            others = others & rows
        rows = mine & others
        if (rows & could).any():
            return Verdict("", rows)
        if first is not None and not (mine & could).any():
            open_ones = self._rows_that_leave(_need(first), self._state.total, demand)
            why = _no_executors(first, by_others=bool((open_ones & could).any()))
            return Verdict(why, everywhere)
        whose = whose or next(iter(self._needs.values()))
        return Verdict(
            f"with it, drivers would leave no capacity for the first executors of {whose}; it "
            f"starts when a driver ends or nodes join",
            everywhere,
        )

    def _could_begin(
        self, demand: Vector, requires: NodeRequirement | None, first: FirstExecutors
    ) -> bool:
        """Is it worth waiting for capacity next to which a driver can begin? Not where even the
        empty cluster has none, unless the driver is of no use without."""
        state, need = self._state, _need(first)
        serving = ~state.gpu_only | (need.demand[Column.GPU_MEMORY_MIB] > 0)
        if need.requires is not None:
            serving &= state.suited(need.requires)
        leave = self._rows_that_leave(need, state.total, demand, np.flatnonzero(serving))
        could = ~state.gpu_only & fitting_rows(demand, state.total)
        if requires is not None:
            could &= state.suited(requires)
        if first.stated or (leave & could).any():
            return True
        nodes = self._master_state.nodes.values()
        if all(node.state is not NodeState.LOST for node in nodes):
            return False
        most = _most_next_to(demand, lasting(requires), need, nodes)
        return most is not None and most >= first.count

    def could_get_a_place(self, app: Application, demand: Vector, rows: Bools) -> bool:
        """Would a driver of ``demand`` fit at one of ``rows`` that suits it once batch has ended?
        ``app``: the application that holds it."""
        fitting = self._state.open & rows & fitting_rows(demand, self._left_by_streams)
        if app.requires is not None:
            fitting &= self._state.suited(app.requires)
        return bool((fitting & ~self._state.gpu_only).any())

    def words(self) -> str:
        """What drivers hold, of what there is."""
        vcores, memory_mib = self._capacity
        used = Resources(self._used[Column.VCORES], self._used[Column.MEMORY_MIB])
        return f"drivers hold {used} of {Resources(vcores, memory_mib)}"

    def _over_share(self, demand: Vector, used: Vector) -> str:
        share = self._master_state.bounds.driver_share
        names = ("vcores", "MiB of memory")
        for column, capacity in enumerate(self._capacity):
            if used[column] + demand[column] > share * capacity + _ROUNDING:
                return (
                    f"drivers hold {used[column]} of the {capacity} {names[column]} that take "
                    f"containers, it requests {demand[column]}, and together they may hold "
                    f"{100 * share:g} % (driver_share); it starts when drivers end or nodes "
                    f"join; to start it now, raise driver_share in hrm.toml [master]"
                )
        return ""

    def _usable(self, need: _Need) -> Ints:
        """The rows at which executors may be placed at all."""
        state = self._state
        is_of_gpu = need.demand[Column.GPU_MEMORY_MIB] > 0
        usable = state.open if is_of_gpu else state.open & ~state.gpu_only
        if need.requires is not None:
            usable = usable & state.suited(need.requires)
        return np.flatnonzero(usable)

    def _many(self, need: _Need, left: Ints) -> int:
        rows = self._usable(need)
        if not len(rows):
            return 0
        return int(pool_folds(need.demand, left[rows], self._state.pool[rows])[0].sum())

    def _rows_that_leave(
        self, need: _Need, left: Ints, driver: Vector, among: Ints | None = None
    ) -> Bools:
        """Where a driver may be placed so that what is needed still fits into ``left``, at rows
        ``among``; None: those at which executors may be placed now."""
        executor, count, _ = need
        state, rows = self._state, self._usable(need) if among is None else among
        enough = np.zeros_like(state.open)
        if not len(rows):
            return enough
        pools = state.pool[rows]
        now, index = pool_folds(executor, left[rows], pools)
        then, _ = pool_folds(executor, left[rows] - np.asarray(driver, np.int64), pools)
        total = int(now.sum())
        enough |= total >= count  # at a unit that executors do not use
        leaves = total - now + then >= count
        of_pool = np.full(len(state.pool), -1, np.int64)
        of_pool[pools] = index
        places = of_pool[state.pool]
        used = places >= 0
        enough[used] = leaves[places[used]]
        return enough


def _no_executors(first: FirstExecutors, *, by_others: bool) -> str:
    """``by_others``: drivers and streams hold what they would fit into."""
    start = f"its first {first.count} executors ({first.resources} each)"
    if first.count == 1:
        start = f"its first executor ({first.resources})"
    if not by_others:
        return (
            f"{start} would not fit next to it at any open node; it starts when those that are "
            f"draining, closed or lost (hrm nodes shows them) are back, or nodes join"
        )
    return (
        f"{start} would not fit next to the drivers and streams that are there; it starts when one "
        f"of them ends or nodes join"
    )


def refusal(master_state: MasterState, app: Application, resources: Resources) -> str:
    """Why a driver with its stated gang could never start in this cluster; empty if it could, or
    if it is not known. Every node counts as empty; lost ones may come back."""
    first = first_executors(master_state, app)
    if first is None or not first.stated or master_state.recovering or not master_state.nodes:
        return ""
    driver, requires = demand_vector(resources), lasting(app.requires)
    most = _most_next_to(driver, requires, _need(first), master_state.nodes.values())
    if most is None or most >= first.count:
        return ""
    return (
        f"the driver ({resources}) is to start with {first.count} executors of {first.resources} "
        f"(spark.hrm.gang.min, or spark.hrm.stream.min of a stream), but the whole cluster holds "
        f"{most} of them next to it when it is empty ({len(master_state.nodes)} nodes); lower the "
        f"number or the size of executors, or add nodes"
    )


def _most_next_to(
    driver: Vector, requires: NodeRequirement | None, need: _Need, nodes: Iterable[Node]
) -> int | None:
    """How many executors the nodes hold next to one driver, wherever that leaves the most; None:
    no unit could hold the driver. ``requires``: what the driver's node must meet."""
    total, least_loss, executor = 0, None, need.demand
    for node in nodes:
        holds_drivers = not unmet(requires, node.properties)
        holds_executors = not unmet(need.requires, node.properties)
        units = node.units
        offers = np.array([capacity_vector(unit) for unit in units], np.int64).reshape(-1, 4)
        owners = [unit.pool or unit.unit_id for unit in units]
        pools = np.array([owners.index(owner) for owner in owners], np.int64)
        could = np.array([holds_executors and could_hold(executor, x) for x in units], np.bool_)
        before = _many(executor, offers[could], pools[could])
        total += before
        for index, unit in enumerate(units):
            if not holds_drivers or not could_hold(driver, unit):
                continue
            left = offers.copy()
            left[pools == pools[index]] -= pooled_part(driver)
            left[index] -= minus(driver, pooled_part(driver))
            loss = before - _many(executor, left[could], pools[could])
            least_loss = loss if least_loss is None else min(least_loss, loss)
    return None if least_loss is None else total - least_loss


def _many(executor: Vector, offers: Ints, pools: Ints) -> int:
    return int(pool_folds(executor, offers, pools)[0].sum()) if len(offers) else 0
