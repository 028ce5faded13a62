"""The batch applications that use GPUs or wait for some, kept up to date one at a time.

Shares of GPUs depend on all of them, and are computed after every end of a container. But of a
backlog most are alike: they hold nothing, and request the same of the same nodes. Such a *line* is
in order of arrival. Free GPUs go to the one that holds least, of several the earlier; so each of a
line gets its first after all before it have theirs, and of a line no more get any than there are
containers to be started of all GPUs together. The rest of it has nothing, and need not be looked
at, however long it is.

What an application needs is looked at again where its containers that use GPUs have changed
(``GpuIndex.renewed``), and the nodes to avoid have, of all.

Limits: a gang, and an application that leaves what it could have or is late, stand in no line.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from hrm.core.master.entities import Application
from hrm.core.master.gpu_contest import GpuLot, GpuUser
from hrm.core.master.state import MasterState
from hrm.core.messages.claims import GpuPart
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import ApplicationId, NodeName, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["GpuKind", "GpuLines", "Line", "Nodes"]

_NOTHING = GpuPart(0, 0)


class Nodes(NamedTuple):
    """Where an application may be: not at nodes to be ``avoided``, nor at those that do not meet
    what it ``requires``."""

    avoided: frozenset[NodeName]
    requires: NodeRequirement | None


_LineKey: TypeAlias = tuple[tuple[tuple[Vector, int], ...], Nodes]


class Line:
    """Applications that hold nothing and request the same, each with its number, in order.
    ``nothing``: by kind of GPUs, what one of them has to which nothing goes."""

    __slots__ = ("key", "members", "nothing")

    def __init__(self, key: _LineKey) -> None:
        self.key = key
        self.members: list[tuple[int, ApplicationId]] = []
        self.nothing: dict[int, dict[Vector, GpuPart]] = {}
        for demand, _ in key[0]:
            self.nothing.setdefault(demand[Column.SLOTS], {})[demand] = _NOTHING

    def least_mib(self, slots: int) -> int:
        """Of the smallest container of one kind that each of them requests."""
        return min(demand[Column.GPU_MEMORY_MIB] for demand in self.nothing[slots])


class GpuKind:
    """One kind of GPUs: all that use some or wait for some (``users``), those of them that stand in
    no line, each with its number (``singles``), and the lines."""

    __slots__ = ("lines", "singles", "users")

    def __init__(self) -> None:
        self.users: dict[ApplicationId, GpuUser] = {}
        self.singles: dict[ApplicationId, int] = {}
        self.lines: dict[_LineKey, Line] = {}


class GpuLines:
    """Invariants, after ``refresh``: ``kinds`` has, by how many GPUs each container uses, what a
    look at all applications would give (``violations`` compares); none is empty. Numbers are in
    order of ``GpuIndex.uses``. ``version`` rises whenever any of it may have changed, and
    ``renewed`` gets the applications that were looked at, for the owner to empty."""

    def __init__(self, master_state: MasterState, schedulers: Mapping[str, Scheduler]) -> None:
        self._master_state = master_state
        self._schedulers = schedulers
        self.kinds: dict[int, GpuKind] = {}
        self.version = 0
        self.renewed: dict[ApplicationId, None] = {}
        self._lines: dict[ApplicationId, Line] = {}
        self._slots: dict[ApplicationId, tuple[int, ...]] = {}
        self._numbers: dict[ApplicationId, int] = {}
        self._exclusions_version = -1
        self._exclusions_until_s = 0.0
        self._refreshed_at_s = 0.0

    def refresh(self, now: float) -> None:
        """Look again at what has changed."""
        gpus, exclusions = self._master_state.gpus, self._master_state.exclusions
        gpus.expire(now)
        if exclusions.version != self._exclusions_version or now >= self._exclusions_until_s:
            self._exclusions_version = exclusions.version
            self._exclusions_until_s = exclusions.next_end_s(now)
            gpus.renewed.update(dict.fromkeys(gpus.uses))
        if not gpus.renewed:
            return
        self.version += 1
        self._refreshed_at_s = now
        for application_id in gpus.renewed:
            self._leave(application_id)
            self._join(application_id, now)
        self.renewed.update(gpus.renewed)
        gpus.renewed.clear()

    def line_of(self, application_id: ApplicationId) -> Line | None:
        return self._lines.get(application_id)

    def slots_of(self, application_id: ApplicationId) -> tuple[int, ...]:
        """The kinds of GPUs that it uses or waits for."""
        return self._slots.get(application_id, ())

    def first(self, slots: int, free_mib: int) -> list[GpuUser]:
        """All of a kind but those to which nothing could go. ``free_mib``: all that there is of it
        but for what applications hold."""
        kind = self.kinds[slots]
        held_mib = sum(kind.users[name].placed_mib for name in kind.singles)
        found = [(number, name) for name, number in kind.singles.items()]
        for line in kind.lines.values():
            found += line.members[: (free_mib + held_mib) // line.least_mib(slots) + 2]
        return [kind.users[name] for _, name in sorted(found)]

    def everyone(self) -> Iterator[list[GpuUser]]:
        """All of each kind."""
        for kind in self.kinds.values():
            yield [kind.users[name] for name in sorted(kind.users, key=self._numbers.__getitem__)]

    def samples(self, slots: int) -> Iterator[GpuUser]:
        """Of those that wait one of each that are alike."""
        kind = self.kinds[slots]
        yield from (user for name in kind.singles if (user := kind.users[name]).waits)
        for line in kind.lines.values():
            yield kind.users[line.members[0][1]]

    def _leave(self, application_id: ApplicationId) -> None:
        line = self._lines.pop(application_id, None)
        number = self._numbers.pop(application_id, 0)
        if line is not None:
            at = bisect.bisect_left(line.members, (number,))
            del line.members[at]
        for slots in self._slots.pop(application_id, ()):
            kind = self.kinds[slots]
            del kind.users[application_id]
            kind.singles.pop(application_id, None)
            if line is not None and not line.members:
                kind.lines.pop(line.key, None)
            if not kind.users:
                del self.kinds[slots]

    def _join(self, application_id: ApplicationId, now: float) -> None:
        users, key = self._look(application_id, now)
        if not users:
            return
        number = self._master_state.gpus.numbers[application_id]
        self._slots[application_id] = tuple(users)
        self._numbers[application_id] = number
        for slots, user in users.items():
            kind = self.kinds.setdefault(slots, GpuKind())
            kind.users[application_id] = user
            if key is None:
                kind.singles[application_id] = number
        if key is not None:
            line = self._line(key)
            self._lines[application_id] = line
            bisect.insort(line.members, (number, application_id))

    def _line(self, key: _LineKey) -> Line:
        kinds = [self.kinds[demand[Column.SLOTS]] for demand, _ in key[0]]
        line = kinds[0].lines.get(key)
        if line is None:
            line = Line(key)
            for kind in kinds:
                kind.lines[key] = line
        return line

    def _look(
        self, application_id: ApplicationId, now: float
    ) -> tuple[dict[int, GpuUser], _LineKey | None]:
        """What an application uses of each kind of GPUs, and in which line it is to stand."""
        users: dict[int, GpuUser] = {}
        uses = self._master_state.gpus.uses.get(application_id)
        app = self._master_state.applications.get(application_id)
        if uses is None or app is None or app.record.workload_class is not WorkloadClass.BATCH:
            return users, None
        job = self._job_of(app)
        if app.gang_min <= 1 and not any(use.pending for use in uses.values()):
            job = None  # what else it waits for does not matter
        lots: dict[int, list[GpuLot]] = {}
        for demand, use in uses.items():
            pending = use.pending if job is not None else 0
            queued = [app.containers[x] for x in use.queued]
            lot = GpuLot(demand, use.placed, pending, queued, use.returned)
            lots.setdefault(demand[Column.SLOTS], []).append(lot)
        late = application_id in self._master_state.gpus.late
        users = {x: GpuUser(application_id, job, tuple(own), late) for x, own in lots.items()}
        if job is None or app.gang_min > 1 or job.gpus_declined or late:
            return users, None
        if any(use.live > use.pending or use.returned for use in uses.values()):
            return users, None
        avoided = self._master_state.exclusions.avoided(application_id, now)
        wanted = tuple((demand, use.pending) for demand, use in uses.items())
        return users, (wanted, Nodes(avoided, app.requires))

    def violations(self) -> list[str]:
        """What is kept otherwise than a look at all would give, but for one that stands in no line
        and could again; for tests and simulators."""
        gpus, exclusions = self._master_state.gpus, self._master_state.exclusions
        if exclusions.version != self._exclusions_version:
            return []
        found = []
        for application_id in gpus.uses.keys() - gpus.renewed.keys():
            users, key = self._look(application_id, self._refreshed_at_s)
            kept = {x: self.kinds[x].users[application_id] for x in self.slots_of(application_id)}
            line = self._lines.get(application_id)
            if kept != users or (line is not None and line.key != key):
                found.append(f"{application_id} is kept as {kept} in line {line and line.key}")
        many = sum(len(x.users) for x in self.kinds.values())
        if many != sum(map(len, self._slots.values())):
            found.append(f"{many} users of GPUs are kept")
        return found

    def _job_of(self, app: Application) -> Job | None:
        """What of it waits for a place, if its policy can place it."""
        scheduler = self._schedulers.get(app.scheduler)
        job = scheduler.jobs.get(app.application_id) if scheduler is not None else None
        return None if job is None or job.policy_fault else job
