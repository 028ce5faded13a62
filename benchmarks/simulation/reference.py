"""``python -m benchmarks.simulation.reference``: the constants of ``costs.REFERENCE``, measured.

Jobs of 1 and of 40 containers give two points for each kind of work, and the line through them the
cost of an event and of each container in it. What a master does without copies is measured in the
centralised system, the rest with six schedulers. There the core also collects what each copy is to
get, in the middle of its events: what these cost more than in the centralised system is part of
``Kind.COPY_SENT``.

CPU time of this thread, and the median of several runs: other processes then change little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.simulation.costs import Cost, Fixed, Kind, Measured, Tally
from benchmarks.simulation.timed import Setup, TimedCluster
from benchmarks.simulation.workload import TASKS_A_JOB, burst

__all__ = ["main", "reference_costs"]

JOBS = 180
RUNS = 5
_WITH_COPIES = (Kind.UNITS_ENCODED, Kind.COPY_SENT, Kind.COPY_TAKEN, Kind.CALL)
"""Kinds that the centralised system does not have."""
_COLLECTING = (Kind.REQUEST, Kind.COMMIT, Kind.REPORT, Kind.HEARTBEAT)
"""Kinds of events in which the core collects what copies are to get."""


def reference_costs(
    setup: Setup | None = None,
    *,
    jobs: int = JOBS,
    runs: int = RUNS,
    clock: Callable[[], float] | None = None,
) -> Fixed:
    """What work costs on this machine; with ``clock`` instead of the thread's CPU time."""
    several = setup or Setup()
    one = Setup(nodes=several.nodes, schedulers=0)
    found: dict[tuple[Setup, int], list[Tally]] = {}
    for seed in range(runs):
        for system in (one, several):
            for tasks in (1, TASKS_A_JOB):
                cluster = TimedCluster(system, Measured(), burst(jobs, seed, tasks=tasks))
                if clock is not None:
                    cluster.tally.clock = clock
                cluster.run(to_completion=False)
                found.setdefault((system, tasks), []).append(cluster.tally)
    small, large = (_median(found[one, tasks]) for tasks in (1, TASKS_A_JOB))
    costs = {kind: small.cost(kind, large) for kind in Kind if kind not in _WITH_COPIES}
    small, large = (_median(found[several, tasks]) for tasks in (1, TASKS_A_JOB))
    for tally in (small, large):
        tally.used_s[Kind.COPY_SENT] += _surplus_s(tally, costs)
    return Fixed(costs | {kind: small.cost(kind, large) for kind in _WITH_COPIES})


def _median(tallies: Sequence[Tally]) -> Tally:
    """The events of all, each at the median of the runs' means."""
    all_of_them = Tally()
    for kind in {kind for tally in tallies for kind in tally.events}:
        having = [tally for tally in tallies if tally.events.get(kind)]
        events = all_of_them.events[kind] = sum(tally.events[kind] for tally in having)
        all_of_them.containers[kind] = sum(tally.containers[kind] for tally in having)
        all_of_them.used_s[kind] = events * median(tally.mean_s(kind) for tally in having)
    return all_of_them


def _surplus_s(tally: Tally, costs: dict[Kind, Cost]) -> float:
    """What the events of a run with copies took beyond what they cost without."""
    surplus_s = 0.0
    for kind in _COLLECTING:
        events, containers = tally.events.get(kind, 0), tally.containers.get(kind, 0)
        plain_s = events * costs[kind].event_s + containers * costs[kind].container_s
        surplus_s += tally.used_s.get(kind, 0.0) - plain_s
    return max(0.0, surplus_s)


def main() -> None:
    """Print the constants, in microseconds, as ``costs`` has them."""
    for kind, cost in reference_costs().costs.items():
        event_us, container_us = 1e6 * cost.event_s, 1e6 * cost.container_s
        print(f"Kind.{kind.name}: Cost({event_us:.1f}e-6, {container_us:.1f}e-6),")


if __name__ == "__main__":
    main()
