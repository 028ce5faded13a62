"""The paper's experiments on the production core, in virtual time.

``timed`` runs one cluster, ``costs`` defines what decisions cost on its clock, ``workload`` the
requests, ``catalogue`` the experiments, ``figures`` the results.
"""

from benchmarks.simulation.catalogue import (
    CENTRALISED,
    EXPERIMENTS,
    PAPER_SCHEDULERS,
    Point,
    points_of,
    ratios,
    run_points,
    work_of,
)

__all__ = [
    "CENTRALISED",
    "EXPERIMENTS",
    "PAPER_SCHEDULERS",
    "Point",
    "points_of",
    "ratios",
    "run_points",
    "work_of",
]
