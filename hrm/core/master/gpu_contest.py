"""What each of several applications may have of the GPUs that they compete for.

A unit serves containers with as many GPUs as it has, and no others. So GPUs are of several *kinds*,
by how many a unit has, and one application's gain of a kind is no other's loss of another: each
kind is shared out by itself, among those that want some of it.

An application may request executors of several sizes at once. Like ones are a *lot*. Whether one of
a lot could start is counted for it alone, since cores, memory or one size of device memory may be
what it lacks; what all lots of an application hold of a kind counts together, in device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hrm.core.master.entities import Container
from hrm.core.master.gpu_holds import HeldCapacity
from hrm.core.master.max_min import Contender, Lot, contenders, fair_lots, fair_parts
from hrm.core.messages.claims import GpuPart
from hrm.core.scheduling.jobs import Job
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["Contest", "GpuLot", "GpuUser", "placed_mib"]


class GpuLot(NamedTuple):
    """Containers of one demand: how many are ``placed``, for how many its job wants a place, and
    those that wait at units, in order of request; ``returned``: how many more are expected to be
    requested again."""

    demand: Vector
    placed: int
    pending: int
    queued: list[Container]
    returned: int = 0

    @property
    def size_mib(self) -> int:
        return self.demand[Column.GPU_MEMORY_MIB]

    @property
    def waiting(self) -> int:
        """How many have no place, or one in a queue, those to be requested again among them."""
        return len(self.queued) + self.pending + self.returned


@dataclass(frozen=True, slots=True)
class GpuUser:
    """One application's use of one kind of GPUs. ``job``: what waits for a place; None: nothing
    does. ``late``: it has not requested again what was returned to it (``GpuIndex``), so what it
    has queued could not start elsewhere. What follows from its lots is counted once: an end of a
    container looks at all users.

    ``slots``: how many GPUs each of its executors uses. ``waits``: do some wait? ``placed_mib``,
    ``queued_mib``: device memory of those that are placed, and that wait at units. ``wants``: as a
    contender for all that there is, what is placed before what waits. ``nothing``: 0 of each lot.
    """

    application_id: ApplicationId
    job: Job | None
    lots: tuple[GpuLot, ...]
    late: bool = False
    slots: int = field(init=False)
    waits: bool = field(init=False)
    placed_mib: int = field(init=False)
    queued_mib: int = field(init=False)
    wants: tuple[Contender, ...] = field(init=False)
    nothing: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        lots, put = self.lots, object.__setattr__
        put(self, "slots", lots[0].demand[Column.SLOTS])
        put(self, "waits", any(lot.waiting for lot in lots))
        put(self, "placed_mib", placed_mib(lots))
        put(self, "queued_mib", sum(len(lot.queued) * lot.size_mib for lot in lots))
        placed = [Lot(lot.size_mib, lot.placed) for lot in lots]
        waiting = [Lot(lot.size_mib, lot.waiting) for lot in lots]
        wants = (x for x in contenders(0, placed + waiting) if x.most)
        put(self, "wants", tuple(wants))
        put(self, "nothing", (0,) * len(lots))

    @property
    def declines(self) -> bool:
        """Does its policy leave what it could have? Once may be for an older state."""
        return self.job is not None and self.job.gpus_declined > 1


def placed_mib(lots: Iterable[GpuLot]) -> int:
    return sum(lot.placed * lot.size_mib for lot in lots)


class Contest:
    """One kind of GPUs. ``startable``: of each user's lots, how many of those that wait could start
    now if nothing else did. ``may_queue``: may any wait at a unit? ``starting_mib`` and ``behind``:
    see ``GpuQueues``. What is starting is not startable any more, and its user's share of now; what
    is free behind others that wait is nobody's to start now, and shared out all the same."""

    def __init__(
        self,
        users: Sequence[GpuUser],
        startable: Sequence[Sequence[int]],
        *,
        may_queue: bool = True,
        starting_mib: Sequence[int] = (),
        behind: Sequence[Sequence[int]] = (),
    ) -> None:
        self.users = users
        self.starting_mib = starting_mib or (0,) * len(users)
        self.may_queue = may_queue
        self.startable = startable
        self._waiting = [
            (index, user, counts)
            for index, (user, counts) in enumerate(zip(users, startable, strict=True))
            if user.waits
        ]
        self.free_mib = _most_mib((user, counts) for _, user, counts in self._waiting)
        self._unheld_mib = self.free_mib
        if behind:
            self._unheld_mib = _most_mib(
                (user, [*map(sum, zip(counts, behind[index], strict=True))])
                for index, user, counts in self._waiting
            )
        self._held_back: set[ApplicationId] = set()

    def keep(self, holds: Iterable[HeldCapacity], ending_mib: Callable[[GpuUser], int]) -> None:
        """For some users capacity is held: none that has more than one of these starts any.
        ``ending_mib``: what of a user's GPUs is about to be free."""
        placed_mib = {user.application_id: user.placed_mib for user in self.users}
        least_mib = min(placed_mib.get(hold.application_id, 0) for hold in holds)
        self._held_back = {
            user.application_id
            for user in self.users
            if user.placed_mib - ending_mib(user) > least_mib
        }

    def starts(self, *, willing: bool = False) -> list[Sequence[int]]:
        """How many of each user's lots are to start now. ``willing``: none of those that decline
        what they could have."""
        found: list[Sequence[int]] = [user.nothing for user in self.users]
        if not self.free_mib:
            return found
        able = [
            (index, user, counts)
            for index, user, counts in self._waiting
            if any(counts) and not (willing and user.declines)
        ]
        lots = [
            [Lot(lot.size_mib, count) for lot, count in self._allowed(user, counts)]
            for _, user, counts in able
        ]
        held_mib = [user.placed_mib + self.starting_mib[index] for index, user, _ in able]
        for (index, _, _), many in zip(able, fair_lots(self.free_mib, held_mib, lots), strict=True):
            found[index] = many
        return found

    def _allowed(self, user: GpuUser, counts: Sequence[int]) -> Iterator[tuple[GpuLot, int]]:
        """How many of each lot may start: none of one that is held back."""
        held_back = user.application_id in self._held_back
        yield from zip(user.lots, user.nothing if held_back else counts, strict=True)

    def shares_mib(self) -> list[int]:
        """What each would hold if all GPUs were shared out from the start, the containers that are
        placed before those that wait."""
        all_mib = self._unheld_mib + sum(user.placed_mib for user in self.users)
        all_mib += sum(self.starting_mib)
        wants = [each for user in self.users for each in user.wants]
        counts = iter(fair_parts(all_mib, wants))
        return [sum(next(counts) * x.size_mib for x in user.wants) for user in self.users]

    def parts(self) -> Iterator[tuple[ApplicationId, dict[Vector, GpuPart]]]:
        """Of each user with a job, what it may have in a round for each demand that waits."""
        starts, shares_mib = self.starts(willing=True), self.shares_mib()
        started_mib = sum(_mib(user, starts[index]) for index, user, _ in self._waiting)
        left_mib = self.free_mib - started_mib
        for index, user, startable in self._waiting:
            if user.job is None:
                continue
            many: Sequence[int] = starts[index]
            if user.declines:
                many = [
                    min(count, left_mib // lot.size_mib)
                    for lot, count in self._allowed(user, startable)
                ]
            lacks_mib = shares_mib[index] - user.placed_mib - user.queued_mib - _mib(user, many)
            if not self.may_queue:
                lacks_mib = 0
            yield user.application_id, dict(_parts(user, startable, many, lacks_mib))

    def before(self, container: Container) -> Iterator[GpuUser]:
        """Those that start before another of its application does, were this one, which is
        starting, returned: who holds less, of equal ones the earlier."""
        held_mib = [x.placed_mib + y for x, y in zip(self.users, self.starting_mib, strict=True)]
        names = [user.application_id for user in self.users]
        own = names.index(container.application_id)
        place = held_mib[own] - container.request.resources.gpu_memory_mib, own
        for index, user in enumerate(self.users):
            if index != own and (held_mib[index], index) < place and not user.declines:
                yield user

    def misplaced(self) -> Iterator[Container]:
        """What is queued beyond a fair share, and what could start elsewhere now and is due to."""
        starts, shares_mib = self.starts(), self.shares_mib()
        for index, user, _ in self._waiting:
            if not user.queued_mib:
                continue
            kept = _within(user, max(0, shares_mib[index] - user.placed_mib))
            for lot, allowed, many in zip(user.lots, kept, starts[index], strict=True):
                due = max(0, many - lot.pending - lot.returned)
                yield from lot.queued[max(0, min(allowed, len(lot.queued) - due)) :]


def _parts(
    user: GpuUser, startable: Sequence[int], starts: Sequence[int], lacks_mib: int
) -> Iterator[tuple[Vector, GpuPart]]:
    """For each demand that waits for a place how many may start, or may queue where none could."""
    for lot, could, count in zip(user.lots, startable, starts, strict=True):
        queues = 0 if could else min(lot.pending, max(0, lacks_mib // lot.size_mib))
        lacks_mib -= queues * lot.size_mib
        if lot.pending:
            yield lot.demand, GpuPart(min(count, lot.pending), queues)


def _most_mib(could: Iterable[tuple[GpuUser, Sequence[int]]]) -> int:
    """The most device memory that one of these could use, in containers of one size."""
    return max(
        (
            min(count, lot.waiting) * lot.size_mib
            for user, counts in could
            for lot, count in zip(user.lots, counts, strict=True)
        ),
        default=0,
    )


def _mib(user: GpuUser, counts: Sequence[int]) -> int:
    return sum(count * lot.size_mib for lot, count in zip(user.lots, counts, strict=True))


def _within(user: GpuUser, limit_mib: int) -> list[int]:
    """Of each lot, how many of those that are queued take no more than ``limit_mib`` with those
    requested before them."""
    kept = [0] * len(user.lots)
    queued = [(x.number, index) for index, lot in enumerate(user.lots) for x in lot.queued]
    for _, index in sorted(queued):
        size_mib = user.lots[index].size_mib
        if size_mib <= limit_mib:
            limit_mib -= size_mib
            kept[index] += 1
    return kept
