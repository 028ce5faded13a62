"""Between the request for a container and its scheduler: its queue lets it pass, or keeps it.

Schedulers know nothing of queues. What one has, it may place wherever it finds capacity; so the
queues of applications are enforced before, in this one place, over all schedulers, those of other
processes among them. A container passes

- *within its queue's share*: what the queue holds stays within what it may have now, by what all
  want (``hrm.core.tenancy.accounts``). Guarantees come first there;
- *alone*: no other queue wants more than it has. Then only maxima bind; and where no other holds
  anything, containers may wait at units as ever. Not so in a queue with another order than "fifo",
  which no scheduler keeps;
- *on loan*: all that is with schedulers has a place, or none could be found for it now, and there
  is free capacity all the same. Such a container must start at once, or as soon as others have
  yielded (``hrm.core.queue.yielding``): another place in a unit's queue would be a share of the
  future, unless it yields itself. The loan ends when it does, or by preemption
  (``hrm.core.master.queue_reclaim``).

The order of a queue holds for passing: its first application passes first, and where its next
container does not fit into the share, those behind it wait, unless it is larger than all that the
queue is guaranteed. Streams go first. A gang passes whole.

When another queue begins to want something, what is with schedulers beyond its queue's share is
taken back, and so is what waits at units (``hrm.core.master.queue_recall``).

What has passed and has no place yet comes back where others of its queue go before it.

Limits: a gang that has passed keeps its turn. What schedulers in other processes do is seen by
their proposals alone, so they have ``retry_delay_max_s`` before others are lent what they left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hrm.core.master import gangs, queue_bounds
from hrm.core.master.admission import resolve
from hrm.core.master.entities import Application, Container
from hrm.core.master.own_victims import interrupts
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.master.queue_line import QueueLine, Waiter, dominant_part
from hrm.core.master.queue_loans import LENDERS_MAX, QueueLoans
from hrm.core.master.queue_passing import PassingRules
from hrm.core.master.queue_recall import RETURNED_MAX, QueueRecall
from hrm.core.master.queue_usage import Level, QueueUsage, amount_of
from hrm.core.master.state import MasterState
from hrm.core.messages.claims import Proposal
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import WaitReason
from hrm.core.tenancy.queue_tree import Governed, QueueTree
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState, WorkloadClass
from hrm.core.vocabulary.node_requirement import lasting

__all__ = ["QueueGate"]

_MOST: Governed = (math.inf, math.inf, math.inf)


class QueueGate:
    """Invariant: between events ``lines`` has all and only the PENDING containers that are
    ``withheld``, by leaf; a leaf without any has no line. ``may_lend``: has anything changed, as
    that capacity was freed, since it was last looked for what could be lent?"""

    def __init__(
        self,
        master_state: MasterState,
        schedulers: Mapping[str, Scheduler],
        hand_over: Callable[[Application, Container, float], None],
        withdraw: Callable[[Container], None],
        refuse_hopeless: Callable[[Application, Sequence[Container], float], None],
        platforms: PlatformShares,
    ) -> None:
        """``hand_over`` gives a container to its scheduler, ``withdraw`` takes it from there;
        ``refuse_hopeless`` refuses those that no node will ever serve."""
        self._master_state = master_state
        self._usage: QueueUsage = master_state.queues
        self._hand_over = hand_over
        self._withdraw = withdraw
        self._refuse_hopeless = refuse_hopeless
        self.lines: dict[QueueName, QueueLine] = {}
        self._arrived: dict[ApplicationId, dict[ContainerId, Container]] = {}
        self._unsized: dict[ContainerId, Container] = {}
        """Requested while no GPU was known, such as by a new master: how much a whole one is that
        they want is known once there are some."""
        self._due: dict[QueueName, None] = {}
        self._unsorted: dict[QueueName, None] = {}
        self.may_lend = False
        self._was_alone: QueueName | None = None
        self._rules = PassingRules(master_state, self.lines)
        self.platforms = platforms
        self._loans = QueueLoans(master_state, schedulers, self, self._rules)
        self._recall = QueueRecall(master_state, self.lines, self.come_back)
        self._least: Governed = _MOST
        self._aged_s = -math.inf
        self._ticks = False
        self.passed = 0
        self.taken_back = 0

    def put(self, app: Application, container: Container) -> None:
        """A container is requested: it waits here until ``flush`` lets it pass."""
        container.withheld = True
        if container.request.resources.gpu_memory_mib:
            self._master_state.gpus.changed(container)
        elif container.request.gpus:
            self._unsized[container.container_id] = container
        arrived = self._arrived.get(app.application_id)
        if arrived is None:
            self._arrived[app.application_id] = {container.container_id: container}
        else:
            arrived[container.container_id] = container

    def _take_in(self, now: float) -> None:
        """What has been requested during this event passes at once, or joins the lines."""
        arrived, self._arrived = self._arrived, {}
        usage = self._usage
        for application_id, containers in arrived.items():
            app = self._master_state.applications[application_id]
            usage.activate(app)
            some = list(containers.values())
            if self._passes_at_once(app, some):
                self.let_go(app, some, now, at_once=True)
            else:
                for group in self._enter(app, some):
                    usage.note_alike(group, app)
            if len(containers) < len(app.containers):
                usage.note_all(app.containers.values(), app)
            name = QueueName(app.record.queue)
            self._due[name] = None
            if name in usage.unplaced:
                self._unsorted[name] = None

    def _passes_at_once(self, app: Application, some: Sequence[Container]) -> bool:
        """May all of these, of one size, pass without a look at anything that waits here? That
        spares most of what they cost where nothing is short."""
        usage, account = self._usage, self._usage.account(app)
        if account.name in self.lines or usage.on_loan or self.platforms.divides:
            return False
        if app.application_id not in usage.active:
            return False
        if account.name in usage.unplaced and not self._rules.passes_alone(account):
            return False
        if (
            app.is_driver
            or gangs.missing(app)
            or any(x.container_id in usage.entries for x in some)
        ):
            return False
        resources = some[0].request.resources
        if any(x.request.resources is not resources for x in some):
            return False
        is_first = self._rules.lack(account, app, some[:1]) is None
        return is_first and self._rules.times(account, app, resources) >= len(some)

    def let_claim(self, container: Container, now: float) -> None:
        """A container that its queue keeps passes all the same: it gets a place that others of its
        queue leave."""
        app = self._master_state.applications[container.application_id]
        self.let_go(app, [container], now)

    def lets_start(self, driver: Container) -> bool:
        """Does a driver, whose turn among drivers has come, still fit into what its queue may have?
        While it waited for its turn it held nothing, and others have passed. If not, it waits here
        again."""
        usage = self._usage
        if usage.accounts is None:
            return True
        app = self._master_state.applications[driver.application_id]
        self._keep(driver, withheld=True)
        usage.note(driver, app)
        if self._rules.lack(usage.account(app), app, (driver,), on_loan=True) is None:
            self._keep(driver, withheld=False)
            usage.note(driver, app)
            return True
        self._enter(app, (driver,))
        self.taken_back += 1
        return False

    def drop(self, container: Container) -> None:
        """It waits here no more; whoever calls this notes what it is from now on."""
        self._keep(container, withheld=False)
        arrived = self._arrived.get(container.application_id)
        if arrived is not None and arrived.pop(container.container_id, None) is not None:
            return
        app = self._master_state.applications[container.application_id]
        self._leave(app, (container,))

    def _keep(self, container: Container, *, withheld: bool) -> None:
        container.withheld = withheld
        if container.request.resources.gpu_memory_mib:
            self._master_state.gpus.changed(container)

    def _leave(self, app: Application, some: Sequence[Container]) -> None:
        name = QueueName(app.record.queue)
        line = self.lines[name]
        line.remove(app, some)
        if not line.waiters:
            del self.lines[name]

    def reordered(self, app: Application) -> None:
        """Its class of workload, or where it stands in its queue, is another: what waits passes in
        the new order, and what has passed and has no place comes back where others go first now."""
        line = self.lines.get(QueueName(app.record.queue))
        if line is not None:
            line.reordered(app)
            self._due[line.account.name] = None
            self._unsorted[line.account.name] = None

    def begin(self, tree: QueueTree, now: float) -> None:
        """This is the tree from now on, live applications and what waits included."""
        master_state = self._master_state
        self._take_in(now)
        withheld = [x for line in self.lines.values() for x in _all_of(line)]
        self._usage.begin(tree, master_state.holding_applications())
        self.lines.clear()
        self._was_alone = None
        for container in withheld:
            app = master_state.applications[container.application_id]
            if self._usage.governs:
                self._enter(app, (container,))
            else:
                self._keep(container, withheld=False)
                self._hand_over(app, container, now)
        self._usage.grown.update(self._usage.unplaced)
        self.tick(now)

    def flush(self, now: float) -> None:
        """After every event: let pass what may."""
        usage = self._usage
        if usage.accounts is None:
            return
        self._rules.now = now
        ticks, self._ticks = self._ticks, False
        # Nodes come by the thousand: what nobody waits for is divided at the next tick.
        if ticks or self.lines or usage.unplaced or self._arrived:
            self.platforms.follow_nodes()
            self._follow_capacity(all_of_it=ticks)
        if self._arrived:
            self._take_in(now)
        if usage.grown:
            self._recall.keep_below_maxima(now)
        if usage.has_freed_slots:
            usage.has_freed_slots = False
            self._all_due()
        if not self.lines:
            usage.freed.clear()
            self._due.clear()
            self._least = _MOST
        if len(usage.wanting) > 1 and self._was_alone is not None:
            name, self._was_alone = self._was_alone, None
            self._recall.take_back(usage.accounts.of[name], now)
        elif len(usage.wanting) == 1:
            (self._was_alone,) = usage.wanting
        for name in usage.freed:
            if name in self.lines:
                self._due[name] = None
        usage.freed.clear()
        while self._unsorted:
            self._sort(self._unsorted.popitem()[0])
        while self._due:
            name, _ = self._due.popitem()
            line = self.lines.get(name)
            if line is not None:
                self.let_pass(line, now)
        if self.may_lend and self.lines and self._loans.could_lend(self._least, now):
            self.may_lend = self._loans.lend(now)

    def _follow_capacity(self, *, all_of_it: bool) -> None:
        if self._usage.follow_capacity(all_of_it=all_of_it):
            self._size_gpus()
            self.may_lend = True
            self._all_due()
            self._usage.grown.update(self._usage.unplaced)

    def _size_gpus(self) -> None:
        """Nodes have come or gone: turn the whole GPUs that kept containers request into device
        memory, where some node has such GPUs now; what has left its queue is not followed."""
        for container_id, container in list(self._unsized.items()):
            app = self._master_state.applications.get(container.application_id)
            request = container.request
            if container.withheld and app is not None:
                request = resolve(self._master_state, request, app.requires)
            if not container.withheld or request.resources.gpu_memory_mib:
                del self._unsized[container_id]
            if request is not container.request:
                self._master_state.change_request(container, request)

    def tick(self, now: float) -> None:
        """What is not followed as it happens is looked at from time to time."""
        if self._usage.accounts is None:
            return
        half_life_s = self._master_state.bounds.queue_use_half_life_s
        if half_life_s and now > self._aged_s:
            if self._aged_s > -math.inf:
                self._usage.accounts.age(now - self._aged_s, half_life_s)
            self._aged_s = now
        self._rules.now, self._ticks = now, True
        self._follow_capacity(all_of_it=True)  # before anything is reclaimed: nodes may be lost
        self.platforms.tick(now)
        self._loans.look_again()
        self._all_due()
        self.may_lend = True
        self._refuse_some(now)
        self._recall.rejoin_gangs()
        if len(self._usage.wanting) > 1:
            left = RETURNED_MAX
            for name in list(self._usage.unplaced):
                left -= self._recall.take_back(self._usage.accounts.of[name], now, left)

    def _refuse_some(self, now: float) -> None:
        """What was requested before it was known that no node would ever serve it, and would wait
        here without end."""
        master_state, looked = self._master_state, 0
        if master_state.recovering:
            return
        for line in list(self.lines.values()):
            for waiter in list(line.waiters.values()):
                looked += 1
                if looked > LENDERS_MAX:
                    return
                some, app = self._rules.next_of(waiter), waiter.app
                patience_s = master_state.bounds.retry_delay_max_s
                if now - some[0].requested_at_s < patience_s:
                    continue
                demands = {demand_vector(x.request.resources) for x in some}
                requires = lasting(app.requires)
                could = all(master_state.state.could_hold(x, requires) for x in demands)
                first = some[0].request.resources
                if queue_bounds.refusal(master_state, app, first, now):
                    could = False
                if not could or gangs.missing(app):
                    self._refuse_hopeless(app, list(waiter.containers.values()), now)

    def must_run(self, proposal: Proposal) -> frozenset[Vector]:
        """The demands of which no claim may wait at a unit. What is on loan may not, nor what other
        queues want a share of, or what may interrupt others of its own, unless waiting there is all
        that is left; nor a stream, for which batch of others would be preempted there."""
        usage = self._usage
        app = self._master_state.applications.get(proposal.application_id)
        if not usage.governs or app is None or not proposal.claims:
            return frozenset()
        account, on_loan = usage.account(app), usage.on_loan
        may_preempt = self._master_state.bounds.queue_preemption and interrupts(account, app)
        may_wait = usage.is_only_holder(account) and not may_preempt
        is_stream = proposal.workload_class is WorkloadClass.STREAM
        patient: Collection[ContainerId] = () if is_stream else usage.patient
        if may_wait and not on_loan:
            return frozenset()
        entries = (claim.entry for claim in proposal.claims)
        return frozenset(
            x.demand
            for x in entries
            if x.container_id in on_loan or not (may_wait or x.container_id in patient)
        )

    def kept(self, app: Application) -> Waiter | None:
        """What of an application its queue keeps; None: nothing."""
        line = self.lines.get(QueueName(app.record.queue))
        return None if line is None else line.waiters.get(app.application_id)

    def reason(self, waiter: Waiter) -> tuple[WaitReason, str]:
        """Why the next container of an application does not pass."""
        app = waiter.app
        usage, account = self._usage, self._usage.account(app)
        if app.application_id not in usage.active:
            full = account.full() or account
            limit = full.spec.max_running
            return WaitReason.MAX_RUNNING, (
                f"{full.name} runs {len(full.slots)} applications, as many as it may (max_running "
                f"= {limit})"
            )
        lack = self._rules.lack(account, app, self._rules.next_of(waiter))
        if lack is None:
            return WaitReason.BEHIND_OTHERS, f"others of {account.name} go before it"
        return lack[0], lack[1]

    def waiting_for_share(self, but: ApplicationId) -> Iterator[list[Container]]:
        """Of each leaf in which another application than ``but`` waits since others hold what it
        could have, what passes next: what becomes free has a use there. Not of those that are at a
        limit of their own."""
        for line in self.lines.values():
            for waiter in itertools.islice(line.in_order(self.held_part), 2):
                is_other = waiter.app.application_id != but
                if is_other and self.reason(waiter)[0] is WaitReason.QUEUE_SHARE:
                    yield self._rules.next_of(waiter)
                    break

    def _enter(self, app: Application, containers: Collection[Container]) -> list[list[Container]]:
        """They wait here from now on; returns them by size."""
        account = self._usage.account(app)
        line = self.lines.get(account.name)
        if line is None:
            line = self.lines[account.name] = QueueLine(account, self.reason)
        groups: dict[int, list[Container]] = {}
        latest, group = None, list[Container]()
        for container in containers:
            resources = container.request.resources
            if resources is not latest:
                latest, group = resources, groups.setdefault(id(resources), [])
                self._least = _lesser(self._least, amount_of(resources))
            group.append(container)
        line.add(app, containers)
        return list(groups.values())

    def _all_due(self) -> None:
        self._due.update(dict.fromkeys(self.lines))

    def let_pass(self, line: QueueLine, now: float) -> None:
        """Let pass what may within the queue's share, or alone."""
        account, usage = line.account, self._usage
        for waiter in line.in_order(self.held_part):
            app = waiter.app
            if app.application_id not in usage.active:
                if usage.activate(app) is not None:
                    continue
                usage.note_all(app.containers.values(), app)
            while waiter.containers:
                some = self._rules.next_of(waiter)
                lack = self._rules.lack(account, app, some)
                if lack is None:
                    if self._usage.on_loan:
                        self._end_loans()
                        self.let_pass(line, now)  # what has come back may go before it
                        return
                    if len(some) == 1:
                        some = self._rules.alike(account, waiter)
                    self.let_go(app, some, now)
                elif self._rules.holds_up(account, some, lack[0]):
                    return
                else:
                    break

    def _sort(self, name: QueueName) -> None:
        """What has no place yet comes back where others of its queue go before it."""
        line, unplaced = self.lines.get(name), self._usage.unplaced.get(name)
        if line is None or unplaced is None or self._rules.passes_alone(line.account):
            return
        spec, first = line.account.spec, line.order[0]
        is_mixed = spec.order == "fair" or spec.minimum_user_limit < 1
        for container in list(unplaced.values()):
            app = self._master_state.applications[container.application_id]
            if container.state is not ContainerState.PENDING or container.waits_for:
                continue
            if (is_mixed or line.key(app) > first) and not gangs.missing(app):
                self.come_back(container)

    def let_go(
        self,
        app: Application,
        some: list[Container],
        now: float,
        *,
        on_loan: bool = False,
        at_once: bool = False,
    ) -> None:
        """Give these to their scheduler; ``at_once``: they have not waited in a line."""
        usage = self._usage
        if not at_once:
            self._leave(app, some)
        for container in some:
            request = container.request
            if request.yields_on_loan and request.yields != on_loan:
                container.request = replace(request, yields=on_loan)
            container.withheld = False
            if request.resources.gpu_memory_mib:
                self._master_state.gpus.changed(container)
        if self.platforms.divides:
            if on_loan:
                self.platforms.forget(some)
            else:
                self.platforms.choose(app, some, now)
        if at_once or usage.are_alike(some):
            usage.note_alike(some, app)
        else:
            usage.note_all(some, app)
        if on_loan:
            usage.on_loan.update((x.container_id, x) for x in some)
        for container in some:
            self._hand_over(app, container, now)
        self.passed += len(some)
        self._loans.handed_over(app.scheduler, now)
        self.may_lend = True

    def _end_loans(self) -> None:
        """What is on loan and has no place yet comes back: others have a right to it."""
        on_loan = self._usage.on_loan
        while on_loan:
            self.come_back(on_loan.popitem()[1])

    def come_back(self, container: Container) -> None:
        """From its scheduler, or the queue of drivers, to the line of its queue."""
        app = self._master_state.applications[container.application_id]
        self._withdraw(container)
        self._keep(container, withheld=True)
        self._usage.note(container, app)
        self._enter(app, (container,))
        self.taken_back += 1

    def held_part(self, app: Application) -> float:
        """The largest part of a resource of the cluster that an application holds."""
        accounts = self._usage.accounts
        assert accounts is not None, "what waits in a queue is governed"
        return dominant_part(self._usage.of_application[app.application_id], accounts.capacity)

    def violations(self) -> list[str]:
        """For tests and simulators, linear."""
        found: list[str] = []
        waiting = {x.container_id for line in self.lines.values() for x in _all_of(line)}
        live = self._master_state.live_applications()
        right = {x.container_id for app in live for x in app.containers.values() if x.withheld}
        if waiting != right:
            found.append(f"queues keep {sorted(waiting ^ right)} on one side only")
        pending = ContainerState.PENDING
        kept = (x for line in self.lines.values() for x in _all_of(line) if x.state is not pending)
        found += [f"{x.container_id} is kept by its queue, and {x.state.value}" for x in kept]
        if right and not self._usage.governs:
            found.append("containers are kept from schedulers, and nothing is governed")
        for line in self.lines.values():
            found += line.violations()
        entries = self._usage.entries
        for container_id in self._usage.on_loan:
            entry = entries.get(container_id)
            if entry is None or entry.level is not Level.HELD:
                found.append(f"{container_id} is on loan, and is not with a scheduler")
        return found


def _all_of(line: QueueLine) -> list[Container]:
    return [x for waiter in line.waiters.values() for x in waiter.containers.values()]


def _lesser(one: Governed, other: Governed) -> Governed:
    """The least of each resource."""
    return (min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2]))
