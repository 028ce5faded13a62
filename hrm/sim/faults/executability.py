"""Which executors of an application units could run, when they are empty."""

from __future__ import annotations

from hrm.core.vocabulary.model import ResourceUnit, WorkloadClass
from hrm.sim.faults.capacity import demand_of, how_many, serves
from hrm.sim.faults.plan import ApplicationPlan, OtherSize
from hrm.sim.faults.sizes import fits_whole

__all__ = ["could_run", "could_start", "other_still_fits", "together_of"]


def could_run(application: ApplicationPlan, together: int, units: list[ResourceUnit]) -> bool:
    """Could these units run one executor when they are empty, and so many at once?"""
    demand = demand_of(application.resources, application.gpus, units)
    if not any(serves(demand, unit) for unit in units):
        return False
    return how_many(demand, units) >= together


def could_start(application: ApplicationPlan, units: list[ResourceUnit], *, other: bool) -> bool:
    """Could these units run an executor of its first size, or of the ``other``, and all that are to
    start together? Of a stream that says nothing else that is all of both sizes."""
    together = together_of(application)
    said = application.stream_min or application.gang_min
    if application.other is not None and together and not said:
        return fits_whole(application, units)
    if application.other is None or not other:
        return could_run(application, together, units)
    if application.gang_min:  # what has not been requested is taken to be like what has
        size = application.other
        return how_many(demand_of(size.resources, size.gpus, units), units) >= together
    return _holds(application.other, units)


def other_still_fits(
    application: ApplicationPlan, every_unit: list[ResourceUnit], units: list[ResourceUnit]
) -> bool:
    """Do these units run all that every unit could of an application with two sizes?"""
    if application.other is None:
        return True
    if fits_whole(application, every_unit) and not fits_whole(application, units):
        return False
    other = application.other
    return _holds(other, units) or not _holds(other, every_unit)


def _holds(other: OtherSize, units: list[ResourceUnit]) -> bool:
    demand = demand_of(other.resources, other.gpus, units)
    return any(serves(demand, unit) for unit in units)


def together_of(application: ApplicationPlan) -> int:
    """How many of its executors must start together at most: of a stream, all that it requests."""
    is_stream = application.declared is WorkloadClass.STREAM
    if (
        not application.stream_min
        and not application.gang_min
        and (is_stream or any(name == "STREAM" for _, name in application.classes))
    ):
        return max(count for _, count in application.targets)
    return max(application.stream_min, application.gang_min)
