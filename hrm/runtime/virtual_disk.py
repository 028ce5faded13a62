"""What outlives a master: the records of its store, as its writes leave them."""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages.submissions import ForgetSubmission, PersistSubmission, SubmissionRecord
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.tenancy.platform_division import PlatformDivision
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.event_table import Watch
from hrm.core.vocabulary.learned_classes import LearnedClass, LearnedClassKey
from hrm.core.vocabulary.model import ApplicationId, NodeName
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey

__all__ = ["VirtualDisk"]


class VirtualDisk:
    """``queues``: those that are stated; ``queue_rules`` are not written, but of a file;
    ``others``: records of what the core of the master does not know, by name.

    Writes are done in order. Each takes ``write_s``, or until ``slow_until_s`` it takes
    ``slow_write_s``; until ``full_until_s`` none is done."""

    def __init__(self, write_s: float = 0.0) -> None:
        self.write_s = write_s
        self.epoch = 0
        self.applications: dict[ApplicationId, ApplicationRecord] = {}
        self.nodes: dict[NodeName, str] = {}
        self.drains: dict[NodeName, None] = {}
        self.run_times: dict[RunTimeKey, RunTime] = {}
        self.learned_classes: dict[LearnedClassKey, LearnedClass] = {}
        self.submissions: dict[str, SubmissionRecord] = {}
        self.others: dict[str, object] = {}
        self.queues: tuple[QueueSpec, ...] = ()
        self.queue_rules: tuple[QueueRule, ...] = ()
        self.slow_until_s = 0.0
        self.slow_write_s = 0.0
        self.full_until_s = 0.0

    def copy(self) -> VirtualDisk:
        """A backup of it."""
        copy = VirtualDisk(self.write_s)
        copy.epoch = self.epoch
        copy.applications, copy.nodes = dict(self.applications), dict(self.nodes)
        copy.drains, copy.run_times = dict(self.drains), dict(self.run_times)
        copy.learned_classes = dict(self.learned_classes)
        copy.submissions = dict(self.submissions)
        copy.others = dict(self.others)
        copy.queues, copy.queue_rules = self.queues, self.queue_rules
        return copy

    def next_master(
        self,
        policies: Iterable[PlacementPolicy],
        bounds: Bounds,
        now: float,
        epoch_id: str = "",
        division: PlatformDivision | None = None,
        watch: Watch | None = None,
    ) -> MasterCore:
        """A master that begins with these records, under the next epoch."""
        self.epoch += 1
        return MasterCore(
            self.epoch,
            policies,
            bounds,
            records=list(self.applications.values()),
            known_nodes=self.nodes,
            drained_nodes=list(self.drains),
            run_times=list(self.run_times.values()),
            learned_classes=list(self.learned_classes.values()),
            now=now,
            watch=watch,
            epoch_id=epoch_id,
            queues=QueueTree.of(self.queues),
            queue_rules=self.queue_rules,
            division=division,
        )

    def write_time_s(self, now: float) -> float:
        return self.slow_write_s if self.slow_until_s > now else self.write_s

    def write_submission(self, command: PersistSubmission | ForgetSubmission) -> None:
        match command:
            case PersistSubmission():
                self.submissions[command.record.submission_id] = command.record
            case ForgetSubmission():
                self.submissions.pop(command.submission_id, None)

    def apply(self, command: c.MasterCommand) -> None:
        match command:
            case c.PersistApplication():
                self.applications[command.record.application_id] = command.record
            case c.ForgetApplication():
                self.applications.pop(command.application_id, None)
            case c.RememberNode():
                self.nodes[command.node] = command.owner
            case c.ForgetNode():
                self.nodes.pop(command.node, None)
            case c.RememberDrain():
                self.drains[command.node] = None
            case c.ForgetDrain():
                self.drains.pop(command.node, None)
            case c.PersistRunTime():
                self.run_times.pop(command.row.key, None)
                self.run_times[command.row.key] = command.row
            case c.ForgetRunTime():
                self.run_times.pop(command.key, None)
            case c.PersistLearnedClass():
                self.learned_classes.pop(command.row.key, None)
                self.learned_classes[command.row.key] = command.row
            case c.ForgetLearnedClass():
                self.learned_classes.pop(command.key, None)
            case c.PersistQueues():
                self.queues = command.stated
            case c.RaiseEpoch():
                self.epoch = command.epoch
