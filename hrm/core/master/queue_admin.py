"""Changes of the tree of queues while applications are in it, and where applications go."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.master.entities import Application
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.accounts import NOTHING, fits_into
from hrm.core.tenancy.class_bounds import class_refusal
from hrm.core.tenancy.queue_rules import QueueRefusal, QueueRule, place
from hrm.core.tenancy.queue_spec import DEFAULT_QUEUE, RECOVERED_QUEUE, QueueName, QueueSpec
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.advice import advice_for
from hrm.core.vocabulary.model import ApplicationId
from hrm.core.vocabulary.priority_class import NORMAL_MAX
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.errors import AlreadyExists, HrmError, InvalidRequest, NotAllowed, NotFound

__all__ = ["QueueAdministration"]


class QueueAdministration:
    """``rules``: see ``hrm.core.tenancy.queue_rules``."""

    def __init__(
        self,
        master_state: MasterState,
        placement: PlacementCoordinator,
        rules: tuple[QueueRule, ...],
    ) -> None:
        self._master_state = master_state
        self._placement = placement
        self.rules = rules

    @property
    def tree(self) -> QueueTree:
        return self._master_state.queues.tree

    def place(self, event: e.ApplicationRegistered) -> QueueName | HrmError:
        """The queue of a new application; what is part of a submission goes where its driver is."""
        tree = self.tree
        is_plain = not (event.queue or event.submission_id or self.rules)
        is_plain = is_plain and event.priority <= NORMAL_MAX
        if is_plain and DEFAULT_QUEUE in tree.open_to_all and DEFAULT_QUEUE not in tree.children:
            return DEFAULT_QUEUE  # the common case, without a call
        found = self._placed(event)
        if isinstance(found, HrmError) or self._is_of_driver(event):
            return found
        why = class_refusal(tree, found, event.user, event.priority)
        return NotAllowed(why) if why else found

    def _is_of_driver(self, event: e.ApplicationRegistered) -> bool:
        """Was it, or rather what it is of, admitted before?"""
        return ApplicationId(event.submission_id) in self._master_state.applications

    def _placed(self, event: e.ApplicationRegistered) -> QueueName | HrmError:
        driver = self._master_state.applications.get(ApplicationId(event.submission_id))
        if driver is not None and self.tree.is_leaf(QueueName(driver.record.queue)):
            return QueueName(driver.record.queue)
        try:
            return place(
                self.tree,
                self.rules,
                asked=event.queue,
                user=event.user,
                groups=event.groups,
                tags=event.tags,
                name=event.name,
                setting=advice_for(event.new_id or event.application_id).queue,
            )
        except QueueRefusal as refusal:
            error = NotAllowed if refusal.denied else NotFound
            return error(str(refusal))

    def recover(self, record: ApplicationRecord, now: float) -> ApplicationRecord:
        """The record with a queue that there is: ``root.recovered`` where its own is gone."""
        if record.state.ended or self.tree.is_leaf(QueueName(record.queue)):
            return record
        found = self.tree.find(DEFAULT_QUEUE) if not record.queue else None
        record = replace(record, queue=found or self.recovered(now))
        self._master_state.out.append(c.PersistApplication(record=record))
        return record

    def recovered(self, now: float) -> QueueName:
        """The queue of what has none any more, which is made if it is not there."""
        if not self.tree.is_leaf(RECOVERED_QUEUE):
            self._placement.queues.begin(self.tree.with_recovered(), now)
            self._persist()
        return RECOVERED_QUEUE

    def changed(self, event: e.QueuesChanged) -> None:
        """An administrator changes the tree, or asks what that would cost."""
        master_state = self._master_state
        try:
            tree = self._changed(event)
        except ValueError as error:
            master_state.refuse(event.call_id, InvalidRequest(str(error)))
            return
        except HrmError as error:
            master_state.refuse(event.call_id, error)
            return
        cost = self._cost(tree, event.now)
        if not event.dry_run:
            self._placement.queues.begin(tree, event.now)
            self._persist()
        master_state.reply(event.call_id, cost)

    def _changed(self, event: e.QueuesChanged) -> QueueTree:
        """Raises ValueError or HrmError where that is no tree for what is in it."""
        tree = self.tree.changed(event.removed, self._stated(event))
        for app in self._master_state.holding_applications():
            name = QueueName(app.record.queue)
            if tree.is_leaf(name):
                continue
            if app.life.state.ended:
                raise InvalidRequest(
                    f"containers of {app.application_id}, which was in {name}, still end; try "
                    f"again in a moment"
                )
            many = sum(x.record.queue == name for x in self._master_state.live.values())
            what = f"{name} has {many} live applications, as {app.application_id}"
            if name in tree.specs:
                raise InvalidRequest(f"{what}; queues below it can be made once they have ended")
            raise InvalidRequest(f"{what}; wait for their end, or kill them (hrm app kill), first")
        return tree

    def _stated(self, event: e.QueuesChanged) -> tuple[QueueSpec, ...]:
        """What is stated now. Raises AlreadyExists, NotFound."""
        tree, gone = self.tree, set(event.removed)
        made: set[QueueName] = set()
        for spec in event.stated:
            name = spec.name
            is_there = name in tree.specs and name not in gone
            if event.create and (name in made or (is_there and name not in tree.implied)):
                raise AlreadyExists(f"the queue {name} is there; hrm queue set changes it")
            if not event.create and not is_there:
                raise NotFound(f"{tree.unknown(name)}; hrm queue create makes it")
            made.add(name)
        return event.stated

    def _cost(self, tree: QueueTree, now: float) -> c.QueueChangeCost:
        """What a change costs as things are now."""
        master_state = self._master_state
        if not tree.governs or not master_state.bounds.queue_preemption:
            return c.QueueChangeCost()
        usage = QueueUsage(master_state.state, tree)
        usage.begin(tree, master_state.holding_applications())
        victims = self._placement.reclaim.cost(usage, now)
        held_back = [
            app.application_id
            for app in master_state.live_applications()
            if app.application_id in usage.active and _holds_too_much(usage, app)
        ]
        return c.QueueChangeCost(
            preempted=tuple(x.container_id for x in victims), held_back=tuple(held_back)
        )

    def _persist(self) -> None:
        self._master_state.out.append(c.PersistQueues(stated=tuple(self.tree.stated)))


def _holds_too_much(usage: QueueUsage, app: Application) -> bool:
    """Does its queue hold more than its share, so that it gets no more?"""
    assert usage.accounts is not None, "what is active is governed"
    account = usage.account(app)
    return not fits_into(account.held, NOTHING, usage.accounts.share(account))
