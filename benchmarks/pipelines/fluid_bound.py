"""Upper bounds for all policies: exhaustive search, assignment relaxation, fluid relaxation.

- ``best_makespan``: the shortest time in which independent tasks end, over all assignments of tasks
  to devices. For small cases, since it enumerates all of them.
- ``assignment_bound``: the same with divisible tasks (linear program); at most the former.
- ``fluid_rate``: most tasks per second for which work of all classes can be spread over all pools
  of devices. Tasks are a fluid: no order, no whole numbers, no memory limits.
- ``Fluid``: the fluid bound of a simulated cluster with co-running. A GPU's time is divided among
  *sets* of kinds that may run on it together, each with the speeds that the world gives it, so the
  bound includes the best gain of co-running. The linear program's prices then bound every single
  run by weak duality: work priced at its cheapest place, over what the cluster earns per second.

Needs scipy (``pip install hrm-spark[bench]``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.pipelines.run_measures import WARM_UP
from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, SubtaskKey
from hrm.pipelines.sim.interference import InterferenceWorld
from hrm.pipelines.sim.scenario import SIZES_MB, Scenario, Work

__all__ = ["Fluid", "assignment_bound", "best_makespan", "fluid_rate", "makespans"]

Matrix = npt.NDArray[np.float64]
_ASSIGNMENTS_MAX = 5_000_000
_SIZE_POINTS = 12
"""Sizes that represent the continuous distribution: the middles of as many equal parts."""


def makespans(times: Sequence[Sequence[float]]) -> list[float]:
    """Of every assignment; ``times[task][device]``: seconds, inf where it cannot run.

    Raises:
        InvalidRequest: there are more than five million.
    """
    devices = len(times[0])
    if devices ** len(times) > _ASSIGNMENTS_MAX:
        raise InvalidRequest(
            f"{len(times)} tasks on {devices} devices have too many assignments to look at all; "
            "use assignment_bound"
        )
    found = []
    for chosen in itertools.product(range(devices), repeat=len(times)):
        busy = [0.0] * devices
        for task, device in enumerate(chosen):
            busy[device] += times[task][device]
        found.append(max(busy))
    return found


def best_makespan(times: Sequence[Sequence[float]]) -> float:
    """The shortest of ``makespans``."""
    return min(makespans(times))


def assignment_bound(times: Sequence[Sequence[float]]) -> float:
    """Seconds below which no assignment ends: tasks may be divided among devices."""
    table = np.asarray(times, dtype=float)
    tasks, devices = table.shape
    usable = np.isfinite(table)
    cost = np.zeros(tasks * devices + 1)
    cost[-1] = 1.0
    at_most = np.zeros((devices, len(cost)))
    exactly = np.zeros((tasks, len(cost)))
    for task, device in itertools.product(range(tasks), range(devices)):
        place = task * devices + device
        exactly[task, place] = 1.0
        if usable[task, device]:
            at_most[device, place] = table[task, device]
    at_most[:, -1] = -1.0
    bounds = [(0.0, None if ok else 0.0) for ok in usable.ravel()] + [(0.0, None)]
    return float(_solve(cost, at_most, np.zeros(devices), exactly, np.ones(tasks), bounds).fun)


def fluid_rate(
    mix: Sequence[float],
    work_s: Sequence[Sequence[Sequence[float]]],
    capacity: Sequence[Sequence[float]],
) -> float:
    """Most tasks a second: max theta with sum_j x_ij = theta * mix_i.

    ``work_s[i][j][k]``: seconds of resource k that a task of class i takes on node j (inf: it
    cannot run there); ``capacity[j][k]``: resource-seconds a second.
    """
    work, limits = np.asarray(work_s, dtype=float), np.asarray(capacity, dtype=float)
    classes, nodes, resources = work.shape
    usable = np.isfinite(work).all(axis=2)
    cost = np.zeros(classes * nodes + 1)
    cost[-1] = -1.0
    exactly = np.zeros((classes, len(cost)))
    at_most = np.zeros((nodes * resources, len(cost)))
    for i, j in itertools.product(range(classes), range(nodes)):
        exactly[i, i * nodes + j] = 1.0
        if usable[i, j]:
            at_most[j * resources : (j + 1) * resources, i * nodes + j] = work[i, j]
    exactly[:, -1] = -np.asarray(mix, dtype=float)
    bounds = [(0.0, None if ok else 0.0) for ok in usable.ravel()] + [(0.0, None)]
    found = _solve(cost, at_most, limits.ravel(), exactly, np.zeros(classes), bounds)
    return -float(found.fun)


def _solve(
    cost: Matrix,
    at_most: Any,
    limits: Matrix,
    exactly: Any,
    sums: Matrix,
    bounds: Sequence[tuple[float, float | None]],
) -> Any:
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise InvalidRequest(
            "bounds are linear programs and need scipy; pip install 'hrm-spark[bench]'"
        ) from error
    found = linprog(
        cost, A_ub=at_most, b_ub=limits, A_eq=exactly, b_eq=sums, bounds=bounds, method="highs"
    )
    assert found.status == 0, f"linear program: {found.message}"
    return found


@dataclass(frozen=True, slots=True)
class _Pool:
    """All GPUs of one model, and the speeds of sets of kinds on one of them: (sets, kinds)."""

    model: str
    gpus: int
    speeds: Matrix


class Fluid:
    """The bound of one cluster and world, for the mix of a scenario and for its single runs."""

    def __init__(self, scenario: Scenario, *, co_runners: int = 4) -> None:
        self._scenario = scenario
        self._kinds = sorted(
            {one.kind for pipeline in scenario.pipelines for one in pipeline.subtasks}
        )
        self._number = {kind: place for place, kind in enumerate(self._kinds)}
        types = [worker.type for worker in scenario.all_workers]
        self._cores = sum(one.cores for one in types)
        truth = scenario.truth
        self._pools = [
            _Pool(
                model,
                sum(one.gpus for one in types if one.gpu_model == model),
                self._speeds(truth, model, co_runners),
            )
            for model in sorted({one.gpu_model for one in types})
        ]
        self._classes = [
            (kind, size)
            for kind in self._kinds
            for size in ([scenario.size_mb] if scenario.size_mb else _sizes())
        ]
        self.rate_per_s, self._prices = self._solve()

    @property
    def rate_per_min(self) -> float:
        """Most tasks a minute of the scenario's mix in the long run."""
        return 60.0 * self.rate_per_s

    def throughput_max(self, work: Work) -> float:
        """Most tasks a minute that can end in the measured window of exactly these tasks.

        At best the cheapest tasks end, and all work on them from the beginning was done within the
        window.
        """
        earn, core_price, pool_prices = self._prices
        last_s = work.arrives_s[-1]
        costs = []
        for at_s, task in zip(work.arrives_s, work.tasks, strict=True):
            if at_s + work.least_s(task) > last_s:
                continue
            cost = 0.0
            for subtask in task.pipeline.subtasks:
                key = SubtaskKey(task.task_id, subtask.name)
                cpu_s, number = work.cpu_s[key], self._number[subtask.kind]
                cost += min(
                    core_price * cpu_s if math.isfinite(cpu_s) else math.inf,
                    *(
                        price[number] * work.gpu_s[key][pool.model]
                        for pool, price in zip(self._pools, pool_prices, strict=True)
                        if math.isfinite(price[number])
                    ),
                    math.inf,
                )
            costs.append(cost)
        done = int(np.searchsorted(np.cumsum(np.sort(costs)), earn * last_s, side="right"))
        return 60.0 * done / ((1.0 - WARM_UP) * last_s)

    def _speeds(self, truth: InterferenceWorld, model: str, co_runners: int) -> Matrix:
        """The speeds of every set of at most ``co_runners`` subtasks, by kind."""
        kinds = self._scenario.profiles.kinds
        with_gpu = [kind for kind in self._kinds if kinds[kind].log_gpu_s is not None]
        rows = []
        for count in range(1, co_runners + 1):
            for chosen in itertools.combinations_with_replacement(with_gpu, count):
                row = np.zeros(len(self._kinds))
                for kind, slowdown in zip(chosen, truth.slowdowns(model, chosen), strict=True):
                    row[self._number[kind]] += 1.0 / slowdown
                rows.append(row)
        return np.array(rows)

    def _solve(self) -> tuple[float, tuple[float, float, list[Matrix]]]:
        """Rate, and the prices: earned a second, of a core-second, of a second of each kind alone
        on a GPU of each pool."""
        from scipy.sparse import csr_matrix

        per_task = self._class_mix()
        kinds = self._scenario.profiles.kinds
        classes, sets = len(self._classes), [len(pool.speeds) for pool in self._pools]
        ways = 1 + len(self._pools)
        width = classes * ways + sum(sets) + 1
        exactly, limits = np.zeros((classes, width)), []
        at_most: list[Matrix] = []
        bounds: list[tuple[float, float | None]] = [(0.0, None)] * width
        cores = np.zeros(width)
        done = [np.zeros((len(self._kinds), width)) for _ in self._pools]
        for place, (kind, size) in enumerate(self._classes):
            exactly[place, place * ways : (place + 1) * ways] = 1.0
            exactly[place, -1] = -per_task[place]
            times = [kinds[kind].run_s(Device.CPU, size)]
            times += [kinds[kind].run_s(Device.GPU, size, pool.model) for pool in self._pools]
            for way, time_s in enumerate(times):
                column = place * ways + way
                if math.isinf(time_s) or not self._has(kind, Device.GPU if way else Device.CPU):
                    bounds[column] = (0.0, 0.0)
                elif way == 0:
                    cores[column] = time_s
                else:
                    done[way - 1][self._number[kind], column] = time_s
        at_most.append(cores[None, :])
        limits.append(float(self._cores))
        start = classes * ways
        for pool, rows in zip(self._pools, done, strict=True):
            rows[:, start : start + len(pool.speeds)] = -pool.speeds.T
            at_most.append(rows)
            limits += [0.0] * len(self._kinds)
            whole = np.zeros((1, width))
            whole[0, start : start + len(pool.speeds)] = 1.0
            at_most.append(whole)
            limits.append(float(pool.gpus))
            start += len(pool.speeds)
        cost = np.zeros(width)
        cost[-1] = -1.0
        found = _solve(
            cost, csr_matrix(np.vstack(at_most)), np.array(limits), csr_matrix(exactly),
            np.zeros(classes), bounds,
        )  # fmt: skip
        return -float(found.fun), self._priced(-np.asarray(found.ineqlin.marginals))

    def _priced(self, prices: Matrix) -> tuple[float, float, list[Matrix]]:
        """From the program's dual values, made exactly feasible."""
        kinds, start = len(self._kinds), 1
        core_price = max(0.0, float(prices[0]))
        earn, pools = core_price * self._cores, []
        for pool in self._pools:
            own = np.maximum(0.0, prices[start : start + kinds])
            earn += pool.gpus * float((pool.speeds @ own).max())
            pools.append(own)
            start += kinds + 1
        for place, kind in enumerate(self._kinds):
            if not self._has(kind, Device.GPU):
                for own in pools:
                    own[place] = math.inf
        return earn, core_price, pools

    def _has(self, kind: str, device: Device) -> bool:
        return any(
            device in one.devices
            for pipeline in self._scenario.pipelines
            for one in pipeline.subtasks
            if one.kind == kind
        )

    def _class_mix(self) -> Matrix:
        """Subtasks of each class in one task of the mix."""
        pipelines = self._scenario.pipelines
        each: Mapping[str, float] = {
            kind: sum(
                one.kind == kind for pipeline in pipelines for one in pipeline.subtasks
            ) / len(pipelines)
            for kind in self._kinds
        }  # fmt: skip
        sizes = len(self._classes) // len(self._kinds)
        return np.array([each[kind] / sizes for kind, _ in self._classes])


def _sizes() -> list[float]:
    low, high = math.log(SIZES_MB[0]), math.log(SIZES_MB[-1])
    return [
        math.exp(low + (high - low) * (place + 0.5) / _SIZE_POINTS) for place in range(_SIZE_POINTS)
    ]
