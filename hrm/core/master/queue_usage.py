"""Which queue each application is in, and what its containers hold there.

Every container of a live application counts in the account of its queue at one of three levels:
*wanted*, while its queue keeps it from its scheduler (``Container.withheld``), or it is a driver
whose turn has not come; *held*, once it is with its scheduler or waits at a unit; *placed*, once it
runs or is about to. One whose application may not hold any yet, for the number of applications that
do, does not count, nor does one that waits for nodes to come back.

Nothing is counted while the tree governs nothing (``QueueTree.governs``): all applications are in
one queue without limits then.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_use import PlatformUse
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.tenancy.accounts import NOTHING, AccountTree, QueueAccount, less, more
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import Governed, QueueTree
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState, Resources

__all__ = ["Level", "QueueUsage", "amount_of", "slot_of"]


class Level(enum.IntEnum):
    """How a container counts: each as those below it, too."""

    WANTED = 1
    HELD = 2
    PLACED = 3


class _Entry(NamedTuple):
    account: QueueAccount
    level: Level
    amount: Governed
    app: Application


def amount_of(resources: Resources) -> Governed:
    """What a container counts as."""
    return (resources.vcores, resources.memory_mib, resources.gpu_memory_mib)


def slot_of(app: Application) -> str:
    """What counts as one running application: a driver on a node and what it registers are one."""
    return app.record.submission_id or app.application_id


class QueueUsage:
    """``accounts``: None while nothing is governed. ``entries``: all and only the containers that
    count, as they do. ``unplaced``: by leaf, those that are HELD; ``wanting``: by leaf, how many
    are not PLACED; leaves without any have no entry. ``active``: the applications that may hold
    containers, with their accounts. ``on_loan``: those that have passed ``core.master.queue_gate``
    on loan and have no place yet; ``patient``: those that have passed otherwise, for which nothing
    can be preempted, and which may wait at a unit; ``stuck``: of these what counted when it was
    found to be with its scheduler; ``_idle``: of those that are HELD and yield to all others, what
    they count as in their leaf's ``waits_last``. ``placed``: how many are PLACED. ``freed``: leaves
    that hold less than when somebody last emptied it; ``on_platforms``: what leaves have on each
    platform, None where these are not divided (``hrm.core.master.platform_shares``); ``promised``:
    containers that their queue keeps, and for which others are preempted so that a queue above
    stays within its maximum, with until when that counts; ``grown``: leaves with containers that
    hold something and have passed no queue of this master; ``has_freed_slots``: some application
    left its place to another.
    """

    def __init__(self, state: SharedState, tree: QueueTree) -> None:
        self._state = state
        self.tree = tree
        self.accounts: AccountTree | None = None
        self.entries: dict[ContainerId, _Entry] = {}
        self.unplaced: dict[QueueName, dict[ContainerId, Container]] = {}
        self.wanting: dict[QueueName, int] = {}
        self.active: dict[ApplicationId, QueueAccount] = {}
        self.on_loan: dict[ContainerId, Container] = {}
        self.patient: dict[ContainerId, Container] = {}
        self.stuck: dict[ContainerId, _Entry] = {}
        self._idle: dict[ContainerId, Governed] = {}
        self.of_application: defaultdict[ApplicationId, Governed] = defaultdict(lambda: NOTHING)
        self.of_user: defaultdict[tuple[QueueName, str], Governed] = defaultdict(lambda: NOTHING)
        self.users: defaultdict[QueueName, dict[str, int]] = defaultdict(dict)
        self.freed: set[QueueName] = set()
        self.has_freed_slots = False
        self.promised: dict[ContainerId, float] = {}
        self.grown: set[QueueName] = set()
        self._shape = -1
        self._has_closed = False
        self.placed = 0
        self.on_platforms: PlatformUse | None = None

    def begin(self, tree: QueueTree, apps: Iterable[Application], *, always: bool = False) -> None:
        """From now on this is the tree; count all that these applications have, of those that have
        ended what ends yet. The first to be counted are those that hold something: they go on, even
        if there are more of them than may run. ``always``: whether the tree governs anything or
        not."""
        self.tree = tree
        for each in (self.entries, self.unplaced, self.wanting, self.active, self.on_loan):
            each.clear()
        for kept in (self.of_application, self.of_user, self.users, self.freed, self.patient):
            kept.clear()
        self.grown.clear()
        self.promised.clear()
        self.stuck.clear()
        self._idle.clear()
        self.placed = 0
        self._shape = self._state.shape
        governs = always or tree.governs
        before = self.accounts
        self.accounts = AccountTree(tree, self._capacity()) if governs else None
        if self.on_platforms is not None:
            self.on_platforms = PlatformUse(self._state) if governs else None
        if before is not None and self.accounts is not None:
            self.accounts.inherit(before)
        if self.accounts is None:
            return
        for app in apps:
            if any(_holds(container) for container in app.containers.values()):
                self._activate_holder(app, self.account(app))
            self.note_all(app.containers.values(), app)

    def count_platforms(self, use: PlatformUse, apps: Iterable[Application]) -> None:
        """From now on what is held is counted by platform, too: all that these applications have,
        and what comes."""
        self.on_platforms = use
        for app in apps:
            for container in app.containers.values():
                known = self.entries.get(container.container_id)
                if known is not None and known.level is not Level.WANTED:
                    use.note(known.account.name, (container,), known.amount[0], holds=True)

    @property
    def governs(self) -> bool:
        return self.accounts is not None

    def follow_capacity(self, *, all_of_it: bool = False) -> bool:
        """Divide what there is now. Has it changed? What runs on nodes that take no containers is
        not seen to end, unless ``all_of_it`` is to be looked at."""
        looks = all_of_it and self._has_closed
        if self.accounts is None or (self._shape == self._state.shape and not looks):
            return False
        self._shape = self._state.shape
        capacity = self._capacity()
        if capacity == self.accounts.capacity:
            return False
        self.accounts.resize(capacity)
        return True

    def account(self, app: Application) -> QueueAccount:
        assert self.accounts is not None, "queues govern nothing"
        return self.accounts.of[QueueName(app.record.queue)]

    def is_alone(self, account: QueueAccount) -> bool:
        """Does no other queue want more than it has?"""
        return not self.wanting or (len(self.wanting) == 1 and account.name in self.wanting)

    def is_only_holder(self, account: QueueAccount) -> bool:
        """Does no other queue hold or want anything?"""
        root = account.path[-1]
        return root.wanted == account.wanted

    def activate(self, app: Application) -> QueueAccount | None:
        """Let an application hold containers; returns the queue that may have no further one, if
        there is one. What it requests is to be noted then."""
        account = self.account(app)
        if app.application_id in self.active:
            return None
        if slot_of(app) not in account.slots:
            full = account.full()
            if full is not None:
                return full
        self._activate(app, account)
        return None

    def _activate_holder(self, app: Application, account: QueueAccount) -> None:
        """It holds a container, whether one more application may or not: an earlier
        master granted it."""
        if not app.life.state.ended:
            self._activate(app, account)
            self.note_all([x for x in app.containers.values() if x.withheld], app)

    def _activate(self, app: Application, account: QueueAccount) -> None:
        self.active[app.application_id] = account
        slot = slot_of(app)
        for each in account.path:
            each.slots[slot] = each.slots.get(slot, 0) + 1

    def ended(self, app: Application) -> None:
        """A live application has ended; what its containers hold counts until they end."""
        account = self.active.pop(app.application_id, None)
        if account is None:
            return
        slot = slot_of(app)
        for each in account.path:
            if each.slots[slot] > 1:
                each.slots[slot] -= 1
            else:
                del each.slots[slot]
        self.has_freed_slots = True

    def note(self, container: Container, app: Application) -> None:
        """A container has come, has changed, or has ended."""
        self.note_all((container,), app)

    def note_alike(self, some: list[Container], app: Application) -> None:
        """The same for containers of one size, with one past and one present."""
        known = self.entries.get(some[0].container_id)
        self._change(known, self._level(some[0], app, known), some, app)

    def are_alike(self, some: Sequence[Container]) -> bool:
        """Do these, of one size, count as one and the same entry?"""
        find = self.entries.get
        return len({id(find(x.container_id)) for x in some}) == 1

    def note_all(self, containers: Iterable[Container], app: Application) -> None:
        """The same for several of one application, in one step for those that are alike."""
        if self.accounts is None:
            return
        find, groups = self.entries.get, dict[tuple[int, Level | None, int], list[Container]]()
        waits = Level.WANTED if app.application_id in self.active else None
        latest: tuple[_Entry | None, Level | None, Resources | None] = (None, None, None)
        group: list[Container] = []
        for container in containers:
            known, state = find(container.container_id), container.life.state
            if state is ContainerState.ASSIGNED:  # the common cases, without a call
                level: Level | None = Level.HELD if container.queued else Level.PLACED
            elif state is ContainerState.PENDING and not container.held:
                kept = container.withheld or container.waits_for is not None
                level = waits if kept else Level.HELD
            else:
                level = self._level(container, app, known)
            resources = container.request.resources
            if known is not latest[0] or level is not latest[1] or resources is not latest[2]:
                latest = known, level, resources
                group = groups.setdefault((id(known), level, id(resources)), [])
            group.append(container)
        for (_, level, _), group in groups.items():
            known = find(group[0].container_id)
            self._change(known, level, group, app)

    def _change(
        self, known: _Entry | None, level: Level | None, some: list[Container], app: Application
    ) -> None:
        """These are alike, and count as ``known``; from now on they count at this level."""
        amount = amount_of(some[0].request.resources)
        if self.promised:
            for container in some:
                if container.container_id in self.promised:
                    self._forget_promise(container.container_id)
        if self.on_loan or self.patient:
            for container in some:
                if container.node is not None or level is not Level.HELD:
                    self.on_loan.pop(container.container_id, None)
                    self._no_longer_patient(container.container_id)
        account = known.account if known is not None else self.account(app)
        if self.on_platforms is not None:
            holds = level is not None and level is not Level.WANTED
            self.on_platforms.note(account.name, some, amount[0], holds=holds)
        if known is not None and known.level is level and known.amount == amount:
            return
        names = [container.container_id for container in some]
        if level is None:
            for name in names:
                self.entries.pop(name, None)
        else:
            if level is not Level.WANTED and app.application_id not in self.active:
                self._activate_holder(app, account)
            passed = known is not None and known.level is not Level.WANTED
            is_larger = known is not None and known.amount != amount
            if is_larger or (not passed and any(x.node is not None for x in some)):
                self.grown.add(account.name)
            entry = _Entry(account, level, amount, app)
            self.entries.update(dict.fromkeys(names, entry))
        self._move(account, known, level, amount, some, app)

    def _move(
        self,
        account: QueueAccount,
        known: _Entry | None,
        level: Level | None,
        amount: Governed,
        some: Sequence[Container],
        app: Application,
    ) -> None:
        """Enter in the accounts what has changed."""
        many, name = len(some), account.name
        was, before = (0, NOTHING) if known is None else (known.level.value, known.amount)
        now = 0 if level is None else level.value

        def change(least: Level) -> Governed:
            return _times(
                amount if now >= least else NOTHING, before if was >= least else NOTHING, many
            )

        if (wanted := change(Level.WANTED)) != NOTHING:
            account.wants(wanted)
        waited = 0 < was < Level.PLACED
        waits = 0 < now < Level.PLACED
        if waits != waited:
            self._count(self.wanting, name, many if waits else -many)
        if (held := change(Level.HELD)) != NOTHING:
            account.holds(held)
            if app.is_driver:
                account.has_drivers(held)
            if was >= Level.HELD:
                self.freed.add(name)
            counted = (now >= Level.HELD) - (was >= Level.HELD)
            self._hold(app, name, held, many * counted)
        if (placed := change(Level.PLACED)) != NOTHING:
            account.places(placed)
            self.placed += many * ((now >= Level.PLACED) - (was >= Level.PLACED))
        if (was == Level.HELD) == (now == Level.HELD):
            return
        if now == Level.HELD:
            of_leaf = self.unplaced.setdefault(name, {})
            of_leaf.update((x.container_id, x) for x in some)
            for container in some:
                if container.request.yields:
                    self._idle[container.container_id] = amount
                    account.waits_last = more(account.waits_last, amount)
            return
        of_leaf = self.unplaced[name]
        for container in some:
            del of_leaf[container.container_id]
            last = self._idle.pop(container.container_id, None)
            if last is not None:
                account.waits_last = less(account.waits_last, last)
        if not of_leaf:
            del self.unplaced[name]

    def are_patient(self, some: Iterable[Container]) -> None:
        """These have found neither a place nor anything that may be preempted for them. What waits
        for a place with its scheduler keeps others of its queue from no guarantee."""
        for container in some:
            entry = self.entries.get(container.container_id)
            if entry is None or container.container_id in self.patient:
                continue
            self.patient[container.container_id] = container
            if container.state is ContainerState.PENDING and entry.level is Level.HELD:
                self.stuck[container.container_id] = entry
                entry.account.stuck = more(entry.account.stuck, entry.amount)

    def _no_longer_patient(self, name: ContainerId) -> None:
        self.patient.pop(name, None)
        entry = self.stuck.pop(name, None)
        if entry is not None:
            entry.account.stuck = less(entry.account.stuck, entry.amount)

    def promise(self, container: Container, app: Application, until_s: float) -> None:
        """What others leave below a maximum is this container's; see ``promised``."""
        if container.container_id not in self.promised:
            self.account(app).promises(amount_of(container.request.resources))
        self.promised[container.container_id] = until_s

    def forget_promises(self, now: float) -> None:
        """Those whose time is over."""
        for name in [x for x, until_s in self.promised.items() if now >= until_s]:
            self._forget_promise(name)

    def _forget_promise(self, name: ContainerId) -> None:
        del self.promised[name]
        entry = self.entries.get(name)
        if entry is not None:
            entry.account.promises(less(NOTHING, entry.amount))

    def _level(self, container: Container, app: Application, known: _Entry | None) -> Level | None:
        state = container.state
        if state is ContainerState.ASSIGNED:
            return Level.HELD if container.queued else Level.PLACED
        if state is ContainerState.ENDED:
            return None
        if state is ContainerState.PENDING:
            if container.held:
                return None
            if not container.withheld and container.waits_for is None:
                return Level.HELD
            return Level.WANTED if app.application_id in self.active else None
        if state is ContainerState.STOPPING and known is not None:
            return known.level
        return Level.HELD if state is ContainerState.WAITING else Level.PLACED

    def _hold(self, app: Application, name: QueueName, change: Governed, many: int) -> None:
        """``many`` more containers, which may be negative, hold so much more."""
        of_application, of_user = self.of_application, self.of_user
        application_id, user = app.application_id, app.record.user
        if many:
            self._count(self.users[name], user, many)
        of_application[application_id] = more(of_application[application_id], change)
        of_user[name, user] = more(of_user[name, user], change)
        if user not in self.users[name]:
            del of_user[name, user]
        if of_application[application_id] == NOTHING and app.life.state.ended:
            del of_application[application_id]

    @staticmethod
    def _count(counts: dict[str, int] | dict[QueueName, int], key: str, change: int) -> None:
        many = counts.get(key, 0) + change  # type: ignore[call-overload]
        if many:
            counts[key] = many  # type: ignore[index]
        else:
            del counts[key]  # type: ignore[arg-type]

    def _capacity(self) -> Governed:
        """What all units have that take containers, and of others what still runs there; those that
        share their cores count once."""
        state = self._state
        amounts = np.where(state.open[:, np.newaxis], state.total, state.total - state.free)
        rows = np.flatnonzero(state.total.any(axis=1))
        self._has_closed = not state.open[rows].all()
        if not len(rows):
            return NOTHING
        _, first = np.unique(state.pool[rows], return_index=True)
        cores, memory_mib = amounts[rows[first], :2].sum(axis=0).tolist()
        return (float(cores), float(memory_mib), float(amounts[rows, 2].sum()))

    def violations(self, apps: Iterable[Application]) -> list[str]:
        """What the accounts state otherwise than the containers do; for tests and simulators."""
        if self.accounts is None:
            return ["containers are counted, and nothing is governed"] if self.entries else []
        found: list[str] = []
        wanted: defaultdict[str, Governed] = defaultdict(lambda: NOTHING)
        held, placed = wanted.copy(), wanted.copy()
        for app in apps:
            for container in app.containers.values():
                known = self.entries.get(container.container_id)
                if known is None and self._level(container, app, None) is not None:
                    found.append(f"{container.container_id} does not count in its queue")
                if known is None:
                    continue
                if known.level is not self._level(container, app, known):
                    found.append(f"{container.container_id} counts as {known.level.name}")
                for account in known.account.path:
                    wanted[account.name] = more(wanted[account.name], known.amount)
                    if known.level is not Level.WANTED:
                        held[account.name] = more(held[account.name], known.amount)
                    if known.level is Level.PLACED:
                        placed[account.name] = more(placed[account.name], known.amount)
        for account in self.accounts.of.values():
            counted = (account.wanted, account.held, account.placed)
            right = (wanted[account.name], held[account.name], placed[account.name])
            if counted != right:
                found.append(f"{account.name} counts {counted}, its containers are {right}")
            names = {slot_of(app) for app in self._active_in(account, apps)}
            if account.slots.keys() != names:
                found.append(f"{account.name} counts {len(account.slots)} applications")
        found += self._violations_of_idle()
        if self.on_platforms is not None:
            holding = {x for x, entry in self.entries.items() if entry.level is not Level.WANTED}
            found += self.on_platforms.violations(holding)
        return found

    def _violations_of_idle(self) -> list[str]:
        """Of what is held and has no place, all and only what yields takes nothing of its queue's
        share."""
        assert self.accounts is not None, "queues govern nothing"
        found: list[str] = []
        for account in self.accounts.of.values():
            of_leaf = self.unplaced.get(account.name, {})
            last = NOTHING
            for name, container in of_leaf.items():
                if container.request.yields:
                    last = more(last, self.entries[name].amount)
            if account.waits_last != last:
                found.append(f"{account.name} counts {account.waits_last} last, not {last}")
        idle = {x for of in self.unplaced.values() for x, it in of.items() if it.request.yields}
        if self._idle.keys() != idle:
            found.append(f"{sorted(self._idle.keys() ^ idle)} wait last on one side only")
        return found

    def _active_in(self, account: QueueAccount, apps: Iterable[Application]) -> list[Application]:
        active = self.active
        return [
            app
            for app in apps
            if (of := active.get(app.application_id)) is not None and account in of.path
        ]


def _times(one: Governed, other: Governed, many: int) -> Governed:
    """The difference, so many times."""
    return (
        (one[0] - other[0]) * many,
        (one[1] - other[1]) * many,
        (one[2] - other[2]) * many,
    )


def _holds(container: Container) -> bool:
    is_pending = container.state is ContainerState.PENDING
    return not is_pending or not (container.withheld or container.held)
