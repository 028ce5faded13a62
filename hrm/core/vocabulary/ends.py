"""What follows from the end of a container: one table over all causes, read wherever it matters.

An end concerns several components: the master measures run times and evaluates the node, the
AppMaster counts failures, pauses and notifies Spark, the core of submissions must know whether a
driver may still live, and the journal explains unwanted ends. Each takes its column from here.

``EXITED`` has several rows, for the exit code decides: 0 is a success, and some of an executor's
codes mean that neither it nor its tasks have failed, as Spark's own cluster manager takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hrm.core.vocabulary.model import ContainerEnd, EndCause

__all__ = [
    "END_RULES",
    "EXIT_CODE_RULES",
    "Blame",
    "EndRule",
    "StartEvidence",
    "end_rule",
    "ends_badly",
    "is_failure",
    "without_choice",
]


class Blame(Enum):
    """What caused an executor's end."""

    APPLICATION = "application"
    """It ended badly by itself; counts as a failure."""
    NONE = "nobody"
    """It was ordered to stop, preempted or lost; Spark must not blame its tasks."""
    NODE = "node"
    """Its machine disappeared with everything on it."""

    @property
    def caused_by_app(self) -> bool:
        """Does it count against the application, at the AppMaster and in what Spark is notified?"""
        return self is Blame.APPLICATION

    @property
    def lost_machine(self) -> bool:
        """Is Spark notified that the whole machine is gone, with what it kept there?"""
        return self is Blame.NODE

    @property
    def replaced_at_once(self) -> bool:
        """Is the replacement requested without a pause? It will not run on the same machine."""
        return self is Blame.NODE


class StartEvidence(Enum):
    """What an end implies for the start, where no report had stated that the container runs."""

    TRIED = "tried"
    """Its node had it in its hands."""
    FAILED = "failed"
    """Its node could not start it."""
    UNKNOWN = "unknown"
    """No sign that its node had tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRule:
    """One row of the table.

    Attributes:
        blame: the cause: what the AppMaster counts, when it replaces the executor, and what Spark
            is notified.
        avoids_node: is it a failure after which its application avoids the node
            (``core.master.exclusion``)? One that ran out of memory or disk is as large on every
            node.
        against_node: does that count for other applications, too?
        ordinary: was it wanted, so that it needs no explanation?
        complete: does it show how long such a container takes? One that was released had done its
            work.
        unseen: its process has not been seen to end, so it may live.
        start: what it implies for the start.
    """

    blame: Blame
    avoids_node: bool
    against_node: bool
    ordinary: bool
    complete: bool
    unseen: bool
    start: StartEvidence


def _row(blame: Blame, *columns: str, start: StartEvidence = StartEvidence.TRIED) -> EndRule:
    names = ("avoids_node", "against_node", "ordinary", "complete", "unseen")
    assert set(columns) <= set(names), columns
    return EndRule(blame=blame, start=start, **{name: name in columns for name in names})


EXIT_CODE_RULES: Mapping[int, EndRule] = {
    0: _row(Blame.NONE, "ordinary", "complete"),
    53: _row(Blame.NONE, "avoids_node", "against_node"),
    56: _row(Blame.NONE),
    58: _row(Blame.NONE),
}
"""``EXITED`` with one of these codes, which Spark's executors have where they cannot go on: 53, no
local directory could be made on that node; 56, the driver did not take their heartbeats; 58, nor
their blocks, when they registered them again. Those of a driver are its program's own, and are
counted as failures nowhere."""

END_RULES: Mapping[EndCause, EndRule] = {
    EndCause.EXITED: _row(Blame.APPLICATION, "avoids_node", "against_node"),
    EndCause.RELEASED: _row(Blame.NONE, "ordinary", "complete"),
    EndCause.MEMORY_LIMIT: _row(Blame.APPLICATION),
    EndCause.NODE_LOST: _row(Blame.NODE, "unseen", start=StartEvidence.UNKNOWN),
    EndCause.LAUNCH_FAILED: _row(
        Blame.APPLICATION, "avoids_node", "against_node", start=StartEvidence.FAILED
    ),
    EndCause.KILLED: _row(Blame.NONE, "ordinary"),
    EndCause.LOST: _row(Blame.NONE, "unseen", start=StartEvidence.UNKNOWN),
    EndCause.PREEMPTED: _row(Blame.NONE, start=StartEvidence.UNKNOWN),
    EndCause.DISK_LIMIT: _row(Blame.APPLICATION),
    EndCause.GPU_MEMORY_LIMIT: _row(Blame.APPLICATION),
    EndCause.UNSUITABLE: _row(Blame.APPLICATION, "avoids_node", start=StartEvidence.FAILED),
    EndCause.MISPLACED: _row(Blame.NONE, "avoids_node", start=StartEvidence.FAILED),
}
"""Of every cause; ``EXITED`` with an exit code that has no row of its own."""

_BY_VALUE = {cause.value: cause for cause in EndCause}


def end_rule(end: ContainerEnd) -> EndRule:
    """The row of an end."""
    return _rule(end.cause, end.exit_code)


def without_choice(end: ContainerEnd) -> ContainerEnd:
    """The end of one whose node was not chosen by versions: that it lacks them is no mistake of the
    master, and nothing else would end an application whose versions no node has."""
    if end.cause is not EndCause.MISPLACED:
        return end
    return replace(end, cause=EndCause.UNSUITABLE)


def ends_badly(cause: str, exit_code: int) -> bool:
    """Was the end unwanted? ``cause`` as a record keeps it: one that this version does not know
    needs an explanation too."""
    known = _BY_VALUE.get(cause)
    return known is None or not _rule(known, exit_code).ordinary


def is_failure(cause: str, exit_code: int) -> bool:
    """Of an end that was unwanted: does it count against the application? ``cause`` as a record
    keeps it, see ``ends_badly``."""
    known = _BY_VALUE.get(cause)
    return known is None or _rule(known, exit_code).blame.caused_by_app


def _rule(cause: EndCause, exit_code: int) -> EndRule:
    if cause is EndCause.EXITED:
        return EXIT_CODE_RULES.get(exit_code, END_RULES[cause])
    return END_RULES[cause]
