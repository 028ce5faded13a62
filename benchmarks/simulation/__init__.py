"""The paper's experiments on the production core, in virtual time.

``timed`` runs one cluster, ``costs`` says what decisions cost on its clock, ``workload`` who asks
for what, ``catalogue`` which experiments there are, ``figures`` what comes out.
"""

from benchmarks.simulation.catalogue import (
    CENTRALISED,
    EXPERIMENTS,
    PAPER_SCHEDULERS,
    Point,
    points_of,
    ratios,
    run_points,
)

__all__ = [
    "CENTRALISED",
    "EXPERIMENTS",
    "PAPER_SCHEDULERS",
    "Point",
    "points_of",
    "ratios",
    "run_points",
]
