"""What queues have and what waits in them, for people: positions, reasons, shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from hrm.core.master import gangs
from hrm.core.master.drained_nodes import drained_note
from hrm.core.master.entities import Application, Container
from hrm.core.master.priorities import has_classes
from hrm.core.master.queue_gate import QueueGate
from hrm.core.master.queue_usage import QueueUsage, amount_of
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import NOTHING, AccountTree, QueueAccount, less, more
from hrm.core.tenancy.observed_fairness import FairnessSummary
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import (
    WITHOUT_PLACE,
    ClassCount,
    QueueStatus,
    QueueWait,
    WaitReason,
)
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ContainerState
from hrm.core.vocabulary.priority_class import PriorityClass

__all__ = ["WAITS_MAX", "QueueReport", "prospect", "queue_statuses", "wait_of"]

WAITS_MAX = 1_000
"""Applications of one queue of which it is said why they wait."""
_FOR_LACK_OF_NODES = frozenset({WaitReason.QUEUE_SHARE, *WITHOUT_PLACE})
"""More nodes would start it."""


def queue_statuses(master_state: MasterState, gate: QueueGate) -> list[QueueStatus]:
    """Of all queues, parents before children."""
    report = QueueReport(master_state, gate)
    return [report.status(name) for name in report.accounts.of]


class QueueReport:
    """Queues as they are now: made, asked, and thrown away within one event.

    The live applications are gone through once, however many queues are asked for."""

    def __init__(self, master_state: MasterState, gate: QueueGate) -> None:
        usage = master_state.queues
        if usage.accounts is None:  # nothing is governed, and nothing counted: count once
            usage = QueueUsage(master_state.state, usage.tree)
            usage.begin(usage.tree, master_state.live_applications(), always=True)
        assert usage.accounts is not None, "it has just been counted"
        self.accounts: AccountTree = usage.accounts
        self._master_state = master_state
        self._gate = gate
        self._of_leaf: dict[QueueName, list[Application]] = {}
        self._many: Counter[QueueName] = Counter()
        self._pending: dict[QueueName, Governed] = {}
        self._fairness = master_state.queue_fairness
        for app in master_state.live.values():
            self._of_leaf.setdefault(QueueName(app.record.queue), []).append(app)
        for name, apps in self._of_leaf.items():
            wants = _pending(apps)
            for account in self.accounts.of[name].path:
                self._many[account.name] += len(apps)
                self._pending[account.name] = more(self._pending.get(account.name, NOTHING), wants)

    def status(self, name: QueueName, waits: int = WAITS_MAX) -> QueueStatus:
        """``waits``: of so many applications of a leaf that wait it says why, the first."""
        account = self.accounts.of[name]
        waiting = [x for x in self._of_leaf.get(name, ()) if _waits_at_all(x)]
        spare = less(account.placed, account.limits.guaranteed)
        return QueueStatus(
            spec=account.spec,
            is_leaf=account.is_leaf,
            guaranteed=account.limits.guaranteed,
            maximum=_maximum(account, self.accounts.capacity),
            share=self.accounts.share(account),
            used=account.placed,
            borrowed=(max(0.0, spare[0]), max(0.0, spare[1]), max(0.0, spare[2])),
            pending=self._pending.get(name, NOTHING),
            running=len(account.slots),
            applications=self._many[name],
            past_use=account.past_use,
            waiting=tuple(_waits(self._master_state, self._gate, waiting, waits)),
            waiting_total=len(waiting),
            observed=self._fairness.of(name) if account.is_leaf else None,
            longest_wait_s=self._longest_wait_s(waiting),
            platforms=tuple(self._gate.platforms.parts(name)) if account.is_leaf else (),
            classes=tuple(_classes(self._of_leaf.get(name, ())))
            if account.spec.has_classes
            else (),
        )

    def fairness(self) -> FairnessSummary:
        """Between the leaf queues, lately."""
        return self._fairness.summary()

    def _longest_wait_s(self, waiting: Sequence[Application]) -> float:
        """As of the latest tick, of containers that have no place yet."""
        since_s = min(
            (
                container.requested_at_s
                for app in waiting
                for container in app.containers.values()
                if _waits_for_place(container)
            ),
            default=math.inf,
        )
        return max(0.0, self._fairness.now - since_s)


def _maximum(account: QueueAccount, capacity: Governed) -> Governed:
    """Its own, or the least of those above it."""
    columns = zip(capacity, *(x.limits.maximum for x in account.path), strict=True)
    cores, memory_mib, gpu_memory_mib = map(min, columns)
    return (cores, memory_mib, gpu_memory_mib)


def _pending(apps: Sequence[Application]) -> Governed:
    cores = memory_mib = gpu_memory_mib = 0
    for app in apps:
        for container in app.containers.values():
            if _waits_for_place(container):
                resources = container.request.resources
                cores += resources.vcores
                memory_mib += resources.memory_mib
                gpu_memory_mib += resources.gpu_memory_mib
    return (float(cores), float(memory_mib), float(gpu_memory_mib))


def _waits_for_place(container: Container) -> bool:
    state = container.state
    return state in (ContainerState.PENDING, ContainerState.WAITING)


def _waits_at_all(app: Application) -> bool:
    return any(map(_waits_for_place, app.containers.values()))


def _classes(apps: Sequence[Application]) -> Iterator[ClassCount]:
    """How many are of which class, those that go first before others."""
    many, waiting = Counter[PriorityClass](), Counter[PriorityClass]()
    for app in apps:
        of = app.record.stands.priority_class
        many[of] += 1
        waiting[of] += _waits_at_all(app)
    return (ClassCount(x, many[x], waiting[x]) for x in PriorityClass if many[x])


def _waits(
    master_state: MasterState, gate: QueueGate, waiting: list[Application], most: int
) -> Iterator[QueueWait]:
    """The applications of a leaf that wait, in the order in which they get something: those of
    which something has passed before those that the queue keeps."""
    if not waiting or not most:
        return
    line = gate.lines.get(QueueName(waiting[0].record.queue))
    kept = [] if line is None else [x.app for x in line.in_order(gate.held_part)]
    positions = {app.application_id: number for number, app in enumerate(kept)}
    note, is_all = drained_note(master_state)
    waiting.sort(key=lambda x: (positions.get(x.application_id, -1), x.record.submitted_at_s))
    for position, app in enumerate(waiting[:most], 1):
        reason, why = wait_of(master_state, gate, app)
        if note and reason in _FOR_LACK_OF_NODES:
            why = note if is_all else f"{why}; {note}"
        if reason is WaitReason.QUEUE_SHARE and positions.get(app.application_id):
            reason, why = WaitReason.BEHIND_OTHERS, f"{kept[0].application_id} goes first; {why}"
        yield QueueWait(
            application_id=app.application_id,
            user=app.record.user,
            position=position,
            containers=sum(map(_waits_for_place, app.containers.values())),
            reason=reason,
            why=why,
            tenths=app.record.stands.tenths if has_classes(master_state, app) else None,
        )


def prospect(master_state: MasterState, app: Application, container: Container) -> str:
    """What a container that has passed its queue, and finds no place, may hope for."""
    usage, bounds = master_state.queues, master_state.bounds
    assert usage.accounts is not None, "queues govern"
    account, amount = usage.account(app), amount_of(container.request.resources)
    if not account.within_guarantee(amount, usage.accounts.root):
        return (
            f"{account.name} has what it is guaranteed; more comes as containers end (hrm queues)"
        )
    if container.container_id in usage.patient:
        return (
            f"{account.name} holds less than it is guaranteed, and no node has enough of what "
            f"other queues hold beyond their guarantees; it starts as containers end"
        )
    if not bounds.queue_preemption:
        return (
            f"{account.name} holds less than it is guaranteed, and gets that as containers end "
            f"(queue_preemption is off)"
        )
    return (
        f"{account.name} holds less than it is guaranteed: what others have borrowed is preempted "
        f"for it, {bounds.queue_reclaim_wait_s:g} s after the request (queue_reclaim_wait_s), and "
        f"has {bounds.queue_preemption_grace_s:g} s to end"
    )


def wait_of(master_state: MasterState, gate: QueueGate, app: Application) -> tuple[WaitReason, str]:
    """Why an application's containers wait, as far as that is known without a look at every
    node."""
    pending = app.in_state(ContainerState.PENDING)
    if any(x.held for x in pending):
        return WaitReason.RECOVERING, "the master waits for its nodes to come back"
    kept = gate.kept(app)
    if kept is not None and len(kept.containers) == len(pending):
        return gate.reason(kept)
    waits = next((x.waits_for for x in pending if x.waits_for), None)
    if waits is not None:
        return WaitReason.DRIVER_SHARE, waits.why
    if pending and gangs.missing(app):
        return WaitReason.GANG, app.refusal or "its first containers start together"
    if pending:
        if master_state.queues.governs:
            return WaitReason.NO_PLACE, prospect(master_state, app, pending[0])
        return WaitReason.NO_PLACE, app.refusal or "no resource unit has that much free now"
    if any(x.state is ContainerState.WAITING for x in app.containers.values()):
        return WaitReason.AT_NODE, "its containers wait in the queues of resource units"
    return WaitReason.NONE, ""
