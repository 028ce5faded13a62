"""The master's state machine: one event in, commands out.

The work is in the parts: ``applications`` and ``nodes`` take in events, ``placement`` schedules,
``state`` holds the state. This module routes events to them and lets time pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hrm.core.elasticity.beta_rule import ElasticityPolicy
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.core.master.application_registry import ApplicationRegistry
from hrm.core.master.elastic_applications import ElasticApplications
from hrm.core.master.epochs import Epochs, Registration
from hrm.core.master.gang_starts import GangStarts
from hrm.core.master.known_company import KnownCompany
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.queue_admin import QueueAdministration
from hrm.core.master.repartitioning import Repartitioning
from hrm.core.master.state import MasterState
from hrm.core.master.subscriptions import Subscriptions
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.scheduling.co_running import introduce
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.scheduler import PlacementPolicy, Scheduler
from hrm.core.tenancy.platform_division import PlatformDivision
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.event_table import Watch
from hrm.core.vocabulary.learned_classes import LearnedClass
from hrm.core.vocabulary.model import NodeName
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime
from hrm.core.vocabulary.wakefulness import Wakefulness, excused

__all__ = ["MasterCore"]

_SPEED_UP_RULE = SpeedUpRule()


class MasterCore:
    """One master.

    Args:
        epoch: rises with every master of this cluster; nodes refuse older ones.
        policies: one placement policy a scheduler; as many schedulers as policies.
        records: applications that the store knows.
        known_nodes: nodes that the store knows, each with the digest of its ownership key. New
            containers of recovered applications wait until these are back, or the recovery window
            ends.
        drained_nodes: nodes that an administrator has drained, according to the store.
        run_times: mean run times that the store knows, the latest last.
        learned_classes: what earlier applications turned out to be, likewise.
        watch: called with every change of state, as it is made.
        epoch_id: new with every process.
        queues: the tree of queues that the store knows; None: the one queue ``root.default``.
        queue_rules: which of them applications go to that name none.
        division: how queues' shares are divided over unlike platforms; None: not at all.
        elasticity: how many executors applications have that report what they train; None: all
            that they request.
    """

    def __init__(
        self,
        epoch: int,
        policies: Iterable[PlacementPolicy],
        bounds: Bounds | None = None,
        records: Iterable[ApplicationRecord] = (),
        known_nodes: Mapping[NodeName, str] = MappingProxyType({}),
        drained_nodes: Iterable[NodeName] = (),
        run_times: Iterable[RunTime] = (),
        learned_classes: Iterable[LearnedClass] = (),
        now: float = 0.0,
        watch: Watch | None = None,
        epoch_id: str = "",
        queues: QueueTree | None = None,
        queue_rules: tuple[QueueRule, ...] = (),
        division: PlatformDivision | None = None,
        elasticity: ElasticityPolicy | None = _SPEED_UP_RULE,
    ) -> None:
        bounds = bounds or Bounds()
        self.master_state = MasterState(epoch, bounds, watch, queues)
        self.negotiator = Negotiator(self.master_state.state, bounds)
        schedulers = _schedulers(policies, self.master_state)
        self.placement = PlacementCoordinator(
            self.master_state, self.negotiator, schedulers, division
        )
        self.subscriptions = Subscriptions(self.master_state, self.placement, self.negotiator)
        self.nodes = NodeRegistry(self.master_state, self.placement, known_nodes, drained_nodes)
        self.repartitioning = Repartitioning(self.master_state)
        self.gang_starts = GangStarts(self.master_state)
        self.epochs = Epochs(self.master_state, now)
        self.master_state.epoch_id = epoch_id
        self.queues = QueueAdministration(self.master_state, self.placement, queue_rules)
        self.elastic = ElasticApplications(self.master_state, self.placement, elasticity)
        self.applications = ApplicationRegistry(
            self.master_state, self.placement, self.nodes, self.queues, self.elastic
        )
        self._remember(run_times, learned_classes)
        self._awake = Wakefulness(bounds.asleep_s, now)
        self._began_s, self._excused_s = now, float("-inf")
        self.slept_s = 0.0
        """Seconds slept that have not been reported yet; the reporter resets it to 0."""
        self._recover(records, now)
        self._handlers = self._routes()

    def _routes(self) -> dict[type[e.Event], Callable[..., None]]:
        """Which part takes in what."""
        return {
            e.NodeRegistered: self.nodes.registered,
            e.NodeReported: self.nodes.reported,
            e.ContainerReported: self.nodes.container_reported,
            e.NodeDisconnected: self.nodes.disconnected,
            e.DrainRequested: self.nodes.drains.order,
            e.QueuesChanged: self.queues.changed,
            e.RebindRequested: self.repartitioning.requested,
            e.RebindReplied: self.repartitioning.reply_received,
            e.ApplicationRegistered: self.applications.registered,
            e.ApplicationAttached: self.applications.attached,
            e.ApplicationDetached: self.applications.detached,
            e.ContainersRequested: self.applications.requested,
            e.ContainersReleased: self.applications.released,
            e.ProgressReported: self.applications.progressed,
            e.HostsExcluded: self.applications.hosts_excluded,
            e.WorkloadClassObserved: self.applications.class_observed,
            e.ApplicationFinished: self.applications.finished,
            e.DriverFailed: self.applications.driver_failed,
            e.KillRequested: self.applications.kill,
            e.PriorityRequested: self.placement.priorities.requested,
            e.SchedulerWoken: lambda event: self.placement.woken(event.scheduler, event.now),
            e.ClaimsProposed: self.subscriptions.proposed,
            e.SchedulerConnected: self.subscriptions.connected,
            e.SchedulerDisconnected: self.subscriptions.disconnected,
            e.LeaseRequested: self.subscriptions.lease_requested,
            e.LeaseReturned: self.subscriptions.lease_returned,
            e.EpochRaised: self._epoch_raised,
            e.Ticked: lambda event: self._tick(event.now),
        }

    def _recover(self, records: Iterable[ApplicationRecord], now: float) -> None:
        """The applications that the store knows."""
        for record in records:
            self.applications.recover(self.queues.recover(record, now), now)
        self.placement.queues.begin(self.queues.tree, now)
        self.master_state.recovering = bool(self.nodes.awaited)
        self.master_state.forgot_until_s = now + self.master_state.bounds.application_grace_s

    def _remember(
        self, run_times: Iterable[RunTime], learned_classes: Iterable[LearnedClass]
    ) -> None:
        """What the store knows, as far as it is kept."""
        for row in run_times:
            for key in self.master_state.run_times.put(row):
                self.master_state.out.append(c.ForgetRunTime(key=key))
        for learned in learned_classes:
            for name_and_user in self.master_state.learned_classes.put(learned):
                self.master_state.out.append(c.ForgetLearnedClass(key=name_and_user))

    @property
    def epoch(self) -> int:
        return self.master_state.epoch

    def handle(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        """Take in one event; returns the commands that follow, in order."""
        slept_s = self._awake.passed(event.now)
        if slept_s:
            self._woke(event.now, slept_s)
        if not isinstance(event, Registration) or self.epochs.admits(event):
            self._handlers[type(event)](event)
        if self.master_state.queues.accounts is not None:
            self.placement.queues.flush(event.now)
        self.subscriptions.flush(event.now)
        out = self.master_state.out
        self.master_state.out = []
        return out

    @property
    def recovery_ends_at_s(self) -> float:
        """How long the nodes that an earlier master knew have to come back."""
        window_s = self.master_state.bounds.recovery_window_s
        return max(self._began_s, self._excused_s) + window_s

    def _woke(self, now: float, slept_s: float) -> None:
        """This process slept: messages that arrived meanwhile have not been read yet."""
        self.slept_s += slept_s
        self._excused_s = excused(self._began_s, self._excused_s, now, slept_s)
        if self.master_state.forgot_until_s + slept_s > now:
            # Applications that the store has lost have their time to come back, too.
            since_s = max(self._began_s, self._excused_s)
            grace_s = self.master_state.bounds.application_grace_s
            self.master_state.forgot_until_s = since_s + grace_s
        self.nodes.woke(now, slept_s)
        self.applications.woke(now, slept_s)
        self.placement.woke(now, slept_s)
        self.repartitioning.woke(now, slept_s)
        self.gang_starts.woke(slept_s)

    def _epoch_raised(self, event: e.EpochRaised) -> None:
        """All nodes and AppMasters have time to come back, as after any start; the store may not
        know all of them."""
        before = self.epoch
        self.epochs.raised(event)
        if self.epoch > before:
            self._began_s = event.now
            self.master_state.forgot_until_s = (
                event.now + self.master_state.bounds.application_grace_s
            )
            self.master_state.recovering = True
            self.nodes.forgot()

    def _tick(self, now: float) -> None:
        slept_s = self._awake.ticked(now)
        if slept_s:
            self._woke(now, slept_s)
        if self.master_state.recovering and now >= self.recovery_ends_at_s:
            self.nodes.end_recovery(now)
        self.nodes.tick(now)
        self.gang_starts.tick(now)
        self.repartitioning.tick(now)
        self.applications.tick(now)
        self.elastic.tick(now)
        self.subscriptions.tick(now)
        self.placement.tick(now)
        self.master_state.queue_fairness.tick(now)


def _schedulers(policies: Iterable[PlacementPolicy], master_state: MasterState) -> list[Scheduler]:
    """One for each policy, to which the master's knowledge is given if it asks for that."""
    known_company = KnownCompany(master_state)
    schedulers = []
    for number, policy in enumerate(policies, 1):
        introduce(policy, known_company)
        schedulers.append(Scheduler(f"scheduler-{number}", policy, master_state.bounds))
    return schedulers
